"""The section `cost`: seconds by phase, tokens and positions of each method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from analysis.costs import PHASES, Cost, total
from analysis.labels import BASE, method_label, setup_title
from analysis.report.html import Html, element, note, paragraph, section, table
from analysis.report.texts import decimal, duration_in_words, whole
from orchestrator.config import Experiment
from orchestrator.experiment.methods import REFERENCE
from orchestrator.sheet import Cell, Sheet

KINDS = {"base_eval": method_label(BASE), "sft": "Supervised stage (shared)"}
HEADINGS = (
    *("Method", "Units", "Placement"),
    *(f"{phase.capitalize()} (s)" for phase in PHASES),
    *("All (s)", "Training step (s)", "Training tokens", "Teacher positions", "Evaluation tokens"),
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


def costs_section(experiment: Experiment, costs: Mapping[str, Mapping[str, Cost]]) -> Html:
    """A table for each setup; `costs` has the cost of each method and of each kind of unit without
    one.
    """
    parts = []
    for setup, of_setup in costs.items():
        everything = total(of_setup.values())
        seconds, words = everything.total_seconds, list[str]()
        if seconds is not None:
            words.append(f"{duration_in_words(seconds)} in all.")
        if everything.repeated:
            words.append(f"{everything.repeated} training steps ran more than once.")
        parts.append(element("h3", setup_title(setup, experiment.setups)))
        parts.append(table("By phase", _sheet(of_setup, everything)))
        parts += [paragraph(" ".join(words))] if words else []
    return section("Cost and time", "cost", *parts, note(COUNTING))


def _sheet(costs: Mapping[str, Cost], everything: Cost) -> Sheet:
    reference = _reference(costs)
    rows = []
    for family, cost in costs.items():
        rows.append(_row(KINDS.get(family) or method_label(family), cost, reference))
    label, *sums = _row("Sum", everything, everything.placements)
    rows.append([replace(label, mark="total"), *sums])
    return Sheet(HEADINGS, rows, left=(0, HEADINGS.index("Placement")))


def _reference(costs: Mapping[str, Cost]) -> frozenset[str]:
    """The placement whose steps compare: vanilla's, or that of the first method that ran."""
    ran = {family: cost for family, cost in costs.items() if family not in KINDS and cost.units}
    first = ran.get(REFERENCE) or next(iter(ran.values()), None)
    return first.placements if first else frozenset()


def _row(label: str, cost: Cost, reference: frozenset[str]) -> list[Cell]:
    step = decimal(cost.seconds_per_step, 3)
    if step and (len(cost.placements) != 1 or cost.placements != reference):
        step = "not comparable"
    texts = [label, str(cost.units), "; ".join(sorted(cost.placements))]
    for phase in PHASES:
        texts.append(decimal(cost.seconds.get(phase)))
    texts += [decimal(cost.total_seconds), step]
    texts += map(whole, (cost.training_tokens, cost.teacher_positions, cost.evaluation_tokens))
    return list(map(Cell, texts))
