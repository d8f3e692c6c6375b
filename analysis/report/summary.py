"""The head of the page: what was run, and how much of it is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from analysis.labels import method_label, setup_title
from analysis.report.html import Html, bullets, element, join, paragraph, table
from analysis.scores.verdict import Advice, Verdict
from orchestrator.config import BenchmarkRun, Experiment, Model, Setup
from orchestrator.monitor.unit_status import UnitStatus

SETUP_HEADINGS = ("Setup", "Student", "Teacher", "Training", "Evaluation")


def summary(experiment: Experiment, statuses: Sequence[UnitStatus], verdict: Verdict) -> Html:
    """Name, what may be said of the methods, state and setups."""
    seeds = _seeds(experiment)
    methods = ", ".join(map(method_label, experiment.methods))
    rows = [
        [setup_title(name, experiment.setups), *_facts(setup)]
        for name, setup in experiment.setups.items()
    ]
    return element(
        "header",
        element("h1", experiment.name),
        join([paragraph(element("strong", line), class_="verdict") for line in verdict.sentences]),
        _advice(verdict.advice),
        paragraph(
            f"On-policy distillation: a student learns from a teacher on what it samples. Compared: {methods}; {seeds}."
        ),
        _progress(statuses),
        table("Setups", SETUP_HEADINGS, rows, texts=SETUP_HEADINGS),
    )


def _advice(advice: Advice | None) -> Html:
    """Why to run the command, and the command in a block that can be copied."""
    return join([paragraph(advice.reason), element("pre", advice.command)] if advice else [])


def _seeds(experiment: Experiment) -> str:
    """`1 seed`, `5 seeds` or `1 to 3 seeds a method`."""
    counts = {len(experiment.seeds_of(method)) for method in experiment.methods}
    if len(counts) > 1:
        return f"{min(counts)} to {max(counts)} seeds a method"
    return f"{max(counts)} seed{'s' if max(counts) > 1 else ''}"


def _progress(statuses: Sequence[UnitStatus]) -> Html:
    states = Counter(status.state for status in statuses)
    text = f"{states['done']} of {len(statuses)} units are done."
    if states["done"] == len(statuses):
        return paragraph(text)
    rest = ", ".join(f"{count} {state}" for state, count in states.items() if state != "done")
    partial = paragraph(
        element("strong", "This report is partial. "),
        f"{text} The others: {rest}. What is below rests on what has been evaluated so far, and may change.",
        class_="partial",
    )
    return join(
        [partial, bullets(f"Failed: {s.id}: {s.error}" for s in statuses if s.state == "failed")]
    )


def _facts(setup: Setup) -> list[str]:
    training, evaluation = setup.training, setup.evaluation
    batch = f"{training.steps} steps of {training.prompts_per_step} × {training.samples_per_prompt} rollouts"
    samples = ", ".join(_samples(name, run) for name, run in evaluation.benchmarks.items() if run)
    return [
        _model(setup.student),
        _model(setup.teacher),
        f"{batch}, at most {training.max_response_tokens} tokens, objective {training.objective}",
        f"{samples}; at most {evaluation.max_response_tokens} tokens",
    ]


def _samples(name: str, run: BenchmarkRun) -> str:
    """A benchmark of which only the first problems count says so."""
    return f"{name} n = {run.n}" + (
        f" of the first {run.limit} problems only" if run.limit is not None else ""
    )


def _model(model: Model) -> str:
    if model.recipe is not None:
        return f"made here: {model.shape.layers} layers of {model.shape.hidden}, {model.recipe.updates} updates"
    return f"{model.path} at {(model.revision or '')[:12]}"
