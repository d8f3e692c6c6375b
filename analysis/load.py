"""Run directories → scores of the selected checkpoints and trajectories. Reads, never writes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from analysis.labels import BASE
from analysis.table import Score, Table, make_table
from orchestrator import grid, selection, status
from orchestrator.config import Experiment
from orchestrator.grid import Unit
from orchestrator.rundir import RunReader

PERCENT = 100


@dataclass(frozen=True)
class Candidate:
    """One checkpoint of one hyperparameter setting, its scores averaged over seeds (fractions in [0, 1])."""

    method: str
    knobs: dict[str, Any]
    step: int
    benchmarks: dict[str, Fraction]
    seeds: int
    spread: float | None  # standard deviation of the mean score over seeds (n−1); None for one seed

    @property
    def mean(self) -> Fraction:
        return sum(self.benchmarks.values(), Fraction(0)) / len(self.benchmarks)


@dataclass(frozen=True)
class Selected:
    """The best candidate of a method family in one setup, out of how many."""

    setup: str
    best: Candidate
    candidates: int


def results_table(experiment: Experiment, units: list[Unit], runs: Path) -> Table:
    """The paper's table of what has been evaluated so far; notes say what is missing."""
    chosen = select(experiment, units, runs)
    by_family = {(s.setup, s.best.method): s for s in chosen}
    families = [BASE, *experiment.methods]
    scores = [
        Score(family, name, benchmark, _percent(by_family.get((name, family)), benchmark))
        for name, setup in experiment.setups.items()
        for family in families
        for benchmark in setup.evaluation.benchmarks
    ]
    return make_table(scores, notes(experiment, units, runs, chosen))


def select(experiment: Experiment, units: list[Unit], runs: Path) -> list[Selected]:
    """Per setup and method family the checkpoint with the highest mean over the setup's benchmarks.

    Several seeds of one setting are averaged before selecting, so that no lucky seed is picked. Ties go to the
    earliest checkpoint, then to the grid's order (paper, "Evaluation Protocol").
    """
    found = []
    for name in experiment.setups:
        families: dict[str, list[Candidate]] = defaultdict(list)
        for group in _settings([unit for unit in units if unit.setup == name]):
            families[group[0].method or BASE] += _candidates(experiment, group, runs)
        for candidates in families.values():
            if candidates:
                best = max(candidates, key=lambda c: (c.mean, -c.step))
                found.append(Selected(name, best, len(candidates)))
    return found


def notes(experiment: Experiment, units: list[Unit], runs: Path, chosen: list[Selected]) -> list[str]:
    """What a reader of the table must know."""
    done = sum(s.state == "done" for s in status.collect(experiment, units, runs))
    lines = [] if done == len(units) else [f"partial: {done} of {len(units)} units done"]
    return lines + [_selection_note(s) for s in chosen if s.best.method != BASE]


def _selection_note(selected: Selected) -> str:
    """Which checkpoint a row comes from, out of how many; it was chosen on the very problems it is reported on."""
    best = selected.best
    words = [f"{selected.setup} {best.method}:", *(f"{name}={value:g}" for name, value in best.knobs.items())]
    words.append(f"step {best.step}, best of {selected.candidates} checkpoints")
    if best.spread is not None:
        words.append(f"over {best.seeds} seeds, standard deviation of Avg {best.spread * PERCENT:.1f}")
    return " ".join(words)


def trajectories(experiment: Experiment, units: list[Unit], runs: Path) -> dict[str, dict[int, list[float]]]:
    """label → step → mean pass@1 in [0, 1], one value per seed.

    Step 0 is the untrained student, but not for runs that start from the supervised stage.
    """
    base = base_scores(experiment, units, runs)
    curves: dict[str, dict[int, list[float]]] = {}
    for group in _settings([unit for unit in units if unit.kind == "trial"]):
        unit = group[0]
        ids = list(grid.evaluation_ids(experiment.setups[unit.setup]).values())
        curve: dict[int, list[float]] = defaultdict(list)
        for member in group:
            for step, score in selection.trajectory(RunReader(runs, member.id), ids).items():
                curve[step].append(float(score))
        if curve and unit.setup in base and not unit.depends_on:
            curve[0] = [base[unit.setup]]
        label = f"{unit.setup} {unit.label}" if len(experiment.setups) > 1 else unit.label
        curves[label] = dict(sorted(curve.items()))
    return curves


def base_scores(experiment: Experiment, units: list[Unit], runs: Path) -> dict[str, float]:
    """Mean pass@1 of each setup's untrained student."""
    found = {}
    for unit in (unit for unit in units if unit.kind == "base_eval"):
        ids = list(grid.evaluation_ids(experiment.setups[unit.setup]).values())
        score = selection.mean_score(RunReader(runs, unit.id), ids, 0)
        if score is not None:
            found[unit.setup] = score
    return found


def _settings(units: list[Unit]) -> list[list[Unit]]:
    """Units that differ in nothing but the seed, together; the supervised stage has no scores."""
    groups: dict[str, list[Unit]] = defaultdict(list)
    for unit in units:
        if unit.kind != "sft":
            groups[f"{unit.setup} {unit.label}"].append(unit)
    return list(groups.values())


def _candidates(experiment: Experiment, group: list[Unit], runs: Path) -> list[Candidate]:
    """Checkpoints that all seeds of a setting have on all benchmarks."""
    unit = group[0]
    ids = grid.evaluation_ids(experiment.setups[unit.setup])
    readers = [RunReader(runs, member.id) for member in group]
    steps = [set(selection.trajectory(reader, list(ids.values()))) for reader in readers]
    return [
        _candidate(unit, readers, ids, step)
        for step in sorted(set.intersection(*steps))
        if step > 0 or unit.kind == "base_eval"
    ]


def _candidate(unit: Unit, readers: list[RunReader], ids: dict[str, str], step: int) -> Candidate:
    rows = [selection.benchmark_scores(reader, list(ids.values()), step) for reader in readers]
    per_seed = [[score for score in row if score is not None] for row in rows]
    means = [sum(row, Fraction(0)) / len(row) for row in per_seed]
    columns = zip(*per_seed, strict=True)
    averaged = {key: sum(column, Fraction(0)) / len(column) for key, column in zip(ids, columns, strict=True)}
    return Candidate(unit.method or BASE, unit.knobs, step, averaged, len(readers), _deviation(means))


def _deviation(values: list[Fraction]) -> float | None:
    if len(values) < 2:
        return None
    mean = sum(values, Fraction(0)) / len(values)
    return float(sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5


def _percent(selected: Selected | None, benchmark: str) -> Fraction | None:
    return selected.best.benchmarks[benchmark] * PERCENT if selected else None
