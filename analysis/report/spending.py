"""Cost and time by phase."""

from __future__ import annotations

from collections.abc import Mapping

from analysis.costs import PHASES, Cost, total
from analysis.labels import BASE, method_label, setup_title
from analysis.report.html import Html, element, join, paragraph, section, table
from analysis.report.texts import decimal, duration, whole
from orchestrator.config import Experiment

KINDS = {"base_eval": method_label(BASE), "sft": "Supervised stage (shared)"}
HEADINGS = (
    *("Method", "Units", *(f"{phase.capitalize()} (s)" for phase in PHASES), "All (s)", "Training step (s)"),
    *("Training tokens", "Teacher positions", "Evaluation tokens"),
)
COUNTING = (
    "Wall-clock as the units logged it, summed over all units of a method, not only the selected ones. A step that "
    "ran again after a kill counts each time, since its time was spent; tokens and positions count once, as they were "
    "kept. Units that ran side by side add up, so the sums may exceed the time that passed. Loading models and saving "
    "checkpoints are not in it. Teacher positions: tokens of finished rollouts that the teacher scored, or drafts that "
    "it judged while decoding. The tokens of the supervised stage are the teacher's. Evaluation: all checkpoints, and "
    "the fresh samples."
)


def costs_section(experiment: Experiment, costs: Mapping[str, Mapping[str, Cost]]) -> Html:
    """A table for each setup of `costs`: setup → method or kind of unit → cost."""
    parts = [join([element("h3", setup_title(setup, experiment.setups)), _table(own)]) for setup, own in costs.items()]
    return section("Cost and time", "cost", *parts, paragraph(COUNTING, class_="note"))


def _table(costs: Mapping[str, Cost]) -> Html:
    everything = total(costs.values())
    shown = table(
        "By phase",
        HEADINGS,
        [_row(KINDS.get(family) or method_label(family), cost) for family, cost in costs.items()],
        total=_row("Sum", everything),
    )
    spent = everything.total_seconds
    words = [] if spent is None else [f"{duration(spent)} in all."]
    words += [f"{everything.repeated} training steps ran more than once."] if everything.repeated else []
    return join([shown, paragraph(" ".join(words)) if words else Html()])


def _row(label: str, cost: Cost) -> list[str]:
    phases = [decimal(cost.seconds.get(phase)) for phase in PHASES]
    numbers = [cost.training_tokens, cost.teacher_positions, cost.evaluation_tokens]
    times = [decimal(cost.total_seconds), decimal(cost.seconds_per_step, 3)]
    return [label, str(cost.units), *phases, *times, *map(whole, numbers)]
