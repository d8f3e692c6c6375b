"""Cost and time by phase."""

from __future__ import annotations

from collections.abc import Mapping

from analysis.costs import PHASES, Cost, total
from analysis.labels import BASE, method_label, setup_title
from analysis.report.html import Html, element, join, paragraph, section, table
from analysis.report.texts import decimal, duration_in_words, whole
from orchestrator.config import Experiment
from orchestrator.experiment.methods import REFERENCE

KINDS = {"base_eval": method_label(BASE), "sft": "Supervised stage (shared)"}
HEADINGS = (
    *(
        "Method",
        "Units",
        "Placement",
        *(f"{phase.capitalize()} (s)" for phase in PHASES),
        "All (s)",
    ),
    "Training step (s)",
    *("Training tokens", "Teacher positions", "Evaluation tokens"),
)
COUNTING = (
    "Wall-clock as the units logged it, summed over all units of a method, not only the selected ones. A step that "
    "ran again after a kill counts each time, since its time was spent; tokens and positions count once, as they were "
    "kept. Units that ran side by side add up, so the sums may exceed the time that passed. Start: actors come up, "
    "models load, and libraries set themselves up; no step contains it. Saving checkpoints is not in the table. A step "
    "is compared with vanilla's where both ran with the same placement. Teacher positions: tokens of finished rollouts "
    "that the teacher scored, or drafts that it judged while decoding. The tokens of the supervised stage are the "
    "teacher's. Evaluation: all checkpoints, and the fresh samples."
)


def costs_section(
    experiment: Experiment, costs: Mapping[str, Mapping[str, Cost]], *when: Html
) -> Html:
    """A table for each setup of `costs`: setup → method or kind of unit → cost; then a figure of
    `when` it was.
    """
    parts = [
        join([element("h3", setup_title(setup, experiment.setups)), _table(own)])
        for setup, own in costs.items()
    ]
    return section("Cost and time", "cost", *parts, paragraph(COUNTING, class_="note"), *when)


def _table(costs: Mapping[str, Cost]) -> Html:
    everything = total(costs.values())
    reference = _reference(costs)
    shown = table(
        "By phase",
        HEADINGS,
        [
            _row(KINDS.get(family) or method_label(family), cost, reference)
            for family, cost in costs.items()
        ],
        texts=("Placement",),
        total=_row("Sum", everything, everything.placements),
    )
    spent = everything.total_seconds
    words = [] if spent is None else [f"{duration_in_words(spent)} in all."]
    words += (
        [f"{everything.repeated} training steps ran more than once."] if everything.repeated else []
    )
    return join([shown, paragraph(" ".join(words)) if words else Html()])


def _reference(costs: Mapping[str, Cost]) -> frozenset[str]:
    """The placement whose steps are compared: vanilla's, or that of the first method that ran."""
    methods = [cost for family, cost in costs.items() if family not in KINDS and cost.units]
    vanilla = costs.get(REFERENCE)
    return (
        vanilla.placements
        if vanilla and vanilla.units
        else methods[0].placements
        if methods
        else frozenset()
    )


def _row(label: str, cost: Cost, reference: frozenset[str]) -> list[str]:
    phases = [decimal(cost.seconds.get(phase)) for phase in PHASES]
    numbers = [cost.training_tokens, cost.teacher_positions, cost.evaluation_tokens]
    alike = len(cost.placements) == 1 and cost.placements == reference
    step = (
        decimal(cost.seconds_per_step, 3)
        if alike or cost.seconds_per_step is None
        else "not comparable"
    )
    placement = "; ".join(sorted(cost.placements))
    return [
        label,
        str(cost.units),
        placement,
        *phases,
        decimal(cost.total_seconds),
        step,
        *map(whole, numbers),
    ]
