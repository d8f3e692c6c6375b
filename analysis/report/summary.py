"""The head of the page: the experiment, its verdict, and how much of it is done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from analysis.facts.evidence import Verdict
from analysis.labels import method_label, setup_title
from analysis.report.html import Html, bullets, element, join, paragraph, table
from orchestrator.config import Experiment, Model, Setup
from orchestrator.monitor.unit_status import UnitStatus
from orchestrator.sheet import Sheet

SETUP_HEADINGS = ("Setup", "Student", "Teacher", "Training", "Evaluation")


def summary(experiment: Experiment, statuses: Sequence[UnitStatus], verdict: Verdict) -> Html:
    """Name, verdict on the methods, state and setups."""
    parts = [element("h1", experiment.name)]
    for line in verdict.sentences:
        parts.append(paragraph(element("strong", line), class_="verdict"))
    if verdict.advice:
        # The command stands in a block of its own, from which it can be copied.
        parts.append(paragraph(verdict.advice.reason))
        parts.append(element("pre", verdict.advice.command))
    methods = ", ".join(map(method_label, experiment.methods))
    aim = "On-policy distillation: a student learns from a teacher on what it samples."
    parts.append(paragraph(f"{aim} Compared: {methods}; {_seeds(experiment)}."))
    rows = []
    for name, setup in experiment.setups.items():
        rows.append([setup_title(name, experiment.setups), *_facts(setup)])
    setups = table("Setups", Sheet.of(SETUP_HEADINGS, rows, left=range(len(SETUP_HEADINGS))))
    return element("header", *parts, _progress(statuses), setups)


def _seeds(experiment: Experiment) -> str:
    """`1 seed`, `5 seeds` or `1 to 3 seeds a method`."""
    counts = sorted({len(experiment.seeds_of(method)) for method in experiment.methods})
    if len(counts) > 1:
        return f"{counts[0]} to {counts[-1]} seeds a method"
    return f"{counts[0]} seed{'s' if counts[0] > 1 else ''}"


def _progress(statuses: Sequence[UnitStatus]) -> Html:
    states = Counter[str]()
    failures = []
    for status in statuses:
        states[status.state] += 1
        if status.state == "failed":
            failures.append(f"Failed: {status.id}: {status.error}")
    done = states.pop("done", 0)
    text = f"{done} of {len(statuses)} units are done."
    if not states:
        return paragraph(text)
    others = []
    for state, count in states.items():
        others.append(f"{count} {state}")
    rest = ", ".join(others)
    partial = paragraph(
        element("strong", "This report is partial. "),
        f"{text} The others: {rest}. What is below rests on what has been evaluated so far, and may change.",
        class_="partial",
    )
    return join([partial, bullets(failures)])


def _facts(setup: Setup) -> list[str]:
    training, evaluation = setup.training, setup.evaluation
    batch = f"{training.steps} steps of {training.prompts_per_step} × {training.samples_per_prompt} rollouts"
    samples = []
    for name, run in evaluation.benchmarks.items():
        if run:
            first = "" if run.limit is None else f" of the first {run.limit} problems only"
            samples.append(f"{name} n = {run.n}{first}")
    return [
        _model(setup.student),
        _model(setup.teacher),
        f"{batch}, at most {training.max_response_tokens} tokens, objective {training.objective}",
        f"{', '.join(samples)}; at most {evaluation.max_response_tokens} tokens",
    ]


def _model(model: Model) -> str:
    if model.recipe is not None:
        if model.recipe.package is not None:
            return f"{model.recipe.package}, {model.recipe.updates} updates"
        if model.recipe.without_layers:
            layers = ", ".join(map(str, model.recipe.without_layers))
            return f"the teacher without layers {layers}, {model.recipe.updates} updates"
        return f"made here: {model.shape.layers} layers of {model.shape.hidden}, {model.recipe.updates} updates"
    return f"{model.path} at {(model.revision or '')[:12]}"
