"""Scores at equal cost, read off each method's trajectory of scores over training cost.

All methods of a setup are compared at one cost, the most that all of them have reached. Between two
evaluated checkpoints the score is interpolated linearly, as a weighted mean of both, so that no
step is chosen by its score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from statistics import fmean

from analysis.costs import MEASURES, TrainingCost, combined, hardware, placement_of, training_cost
from analysis.facts.assess import Columns, estimates, replicate_scores, seed_spreads, to_reference
from analysis.facts.candidates import Candidate, Selected, read_counts
from analysis.facts.evidence import AtCost, CostRow, CostTable
from analysis.labels import BASE
from orchestrator.experiment.methods import REFERENCE
from orchestrator.selection.scores import evaluated_steps
from orchestrator.selection.study import Study

# Why no score can be read off.
OTHER_HARDWARE = "other hardware"
NOT_LOGGED = "not logged"
TOO_EARLY = "before its first checkpoint"


@dataclass(frozen=True)
class CurvePoint:
    """A checkpoint of the chosen setting, and what its training took by then."""

    cost: TrainingCost
    checkpoint: Candidate


Curves = Mapping[str, Sequence[CurvePoint]]  # by method, none of them empty


@dataclass(frozen=True)
class ReadOff:
    """The score between two checkpoints of a setting, a part `weight` of the way to the second."""

    first: Candidate
    second: Candidate
    weight: Fraction

    @property
    def method(self) -> str:
        return self.first.method

    @property
    def seeds(self) -> int:
        return self.first.seeds

    @property
    def by_seed(self) -> dict[str, list[Fraction]]:
        found: dict[str, list[Fraction]] = {}
        after = self.second.by_seed
        for key, before in self.first.by_seed.items():
            found[key] = []
            for one, other in zip(before, after[key], strict=True):
                found[key].append((1 - self.weight) * one + self.weight * other)
        return found


def cost_tables(
    study: Study, chosen: Sequence[Selected], measure: str = "updates"
) -> list[CostTable]:
    """A table for each setup that a method has a score in; `measure` is a key of `costs.MEASURES`.

    UserError where two checkpoints of a setup were evaluated on different problems.
    """
    tables = []
    for setup in study.experiment.setups:
        trained = [each for each in chosen if each.setup == setup and each.best.method != BASE]
        if trained:
            tables.append(_table(study, setup, trained, measure))
    return tables


def curve(study: Study, best: Candidate) -> list[CurvePoint]:
    """The checkpoints of a chosen setting that the metric can score, in the order of their steps."""
    units = [unit for unit in study.units if unit.id in best.units]
    ids = study.evaluation_ids(units[0].setup)
    points = []
    for step in evaluated_steps(study, units):
        counts = read_counts(study, best.units, ids, step, best.metric)
        if len(counts) < len(ids):  # fewer than k samples, as where a race dropped it
            continue
        cost = combined([training_cost(study, unit, step) for unit in units], fmean)
        points.append(CurvePoint(cost, replace(best, step=step, counts=counts)))
    return points


def incomparable(study: Study, curves: Curves, measure: str) -> dict[str, str]:
    """Method → why its cost compares with no other: not logged, or on other hardware."""
    places = _places(study, curves)
    reference = places.get(REFERENCE) or next(iter(places.values()), ())
    found = {}
    for method, points in curves.items():
        costs = [MEASURES[measure](point.cost) for point in points]
        if None in costs:
            found[method] = NOT_LOGGED
        elif measure == "time" and (len(reference) > 1 or places[method] != reference):
            found[method] = OTHER_HARDWARE
    return found


def _places(study: Study, curves: Curves) -> dict[str, tuple[str, ...]]:
    """Method → the kinds of hardware that the runs of its chosen setting were trained on."""
    places = {}
    for method, points in curves.items():
        kinds: dict[str, None] = {}
        for unit in study.units:
            if unit.id in points[0].checkpoint.units:
                kinds[hardware(study, unit)] = None
        places[method] = tuple(kinds)
    return places


def _table(study: Study, setup: str, trained: Sequence[Selected], measure: str) -> CostTable:
    curves = {each.best.method: curve(study, each.best) for each in trained}
    why_not, places = incomparable(study, curves, measure), _places(study, curves)
    comparable = {method: points for method, points in curves.items() if method not in why_not}
    amount = min((_cost(points[-1], measure) for points in comparable.values()), default=None)
    read: dict[str, ReadOff] = {}
    for method, points in comparable.items():
        assert amount is not None, "the method itself has reached one"
        found = _read_off(points, amount, measure)
        if found is None:
            why_not[method] = TOO_EARLY
        else:
            read[method] = found
    columns = _compare(read, trained, tested=measure != "time")
    rows = []
    for each in trained:
        method, step = each.best.method, each.best.step
        row = CostRow(
            setup=setup,
            method=method,
            step=step,
            units=each.best.units,
            hardware=places[method],
            cost=next(point.cost for point in curves[method] if point.checkpoint.step == step),
            columns=columns.get(method, {}),
            why_not=why_not.get(method, ""),
        )
        rows.append(row)
    first = next(unit for unit in study.units if unit.id in trained[0].best.units)
    on_gpus = bool(placement_of(first, study.reader(first)).gpus)
    return CostTable(setup, measure, amount, on_gpus, tuple(rows))


def _cost(point: CurvePoint, measure: str) -> float:
    found = MEASURES[measure](point.cost)
    assert found is not None, "methods without it are left out"
    return found


def _read_off(points: Sequence[CurvePoint], amount: float, measure: str) -> ReadOff | None:
    """The score at a cost that the last point has reached; None before the first point."""
    for before, after in pairwise(points):
        low, high = _cost(before, measure), _cost(after, measure)
        if low <= amount <= high:
            weight = Fraction(amount - low) / Fraction(high - low) if high > low else Fraction(1)
            return ReadOff(before.checkpoint, after.checkpoint, weight)
    if _cost(points[-1], measure) == amount:
        return ReadOff(points[-1].checkpoint, points[-1].checkpoint, Fraction(1))
    return None


def _compare(
    read: Mapping[str, ReadOff], trained: Sequence[Selected], tested: bool
) -> dict[str, dict[str, AtCost]]:
    """Method → column → score at equal cost and difference to vanilla, with the table's intervals.

    Without `tested` there is no p-value: a clock has a spread of its own, which the spread between
    seeds does not hold.
    """
    ends: dict[str, Candidate] = {}
    for method, found in read.items():
        ends |= {f"{method} before": found.first, f"{method} after": found.second}
    drawn_ends = replicate_scores(ends)
    drawn: dict[str, Columns] = {}
    for method, found in read.items():
        before, after = drawn_ends[f"{method} before"], drawn_ends[f"{method} after"]
        weight = float(found.weight)
        drawn[method] = {key: (1 - weight) * before[key] + weight * after[key] for key in before}
    spreads = seed_spreads(read.values())
    sizes = {each.best.method: each.candidates for each in trained}
    gaps = to_reference(read, drawn, spreads, sizes)
    columns: dict[str, dict[str, AtCost]] = {}
    for method, found in read.items():
        columns[method] = {}
        for key, score in estimates(found, drawn[method], spreads).items():
            gap = gaps.get(method, {}).get(key)
            if gap is not None and not tested:
                gap = replace(gap, p_value=None, holm=None)
            columns[method][key] = AtCost(score, gap)
    return columns
