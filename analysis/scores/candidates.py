"""Run directories → the checkpoints that each method family was selected from, with their counts per problem."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from statistics import stdev
from typing import Any

from analysis.labels import AVERAGE, BASE, method_label
from orchestrator.config import Experiment
from orchestrator.experiment import evaluations
from orchestrator.experiment.units import Unit
from orchestrator.records.rundir import RunReader
from orchestrator.selection import scores
from orchestrator.selection.scores import Tally


@dataclass(frozen=True)
class Candidate:
    """One checkpoint of one hyperparameter setting, its scores averaged over seeds (fractions in [0, 1]).

    `counts` has an entry for each seed, in the order of `units`.
    """

    method: str
    knobs: dict[str, Any]
    step: int
    units: tuple[str, ...]
    counts: dict[str, tuple[Tally, ...]] = field(repr=False, compare=False)
    complete: bool = True  # all seeds have the wanted samples on all benchmarks

    @property
    def seeds(self) -> int:
        return len(self.units)

    @property
    def benchmarks(self) -> dict[str, Fraction]:
        """pass@1 on each benchmark."""
        return {name: _mean([seed.pass_at_1 for seed in seeds]) for name, seeds in self.counts.items()}

    @property
    def mean(self) -> Fraction:
        """Unweighted mean over benchmarks."""
        return _mean(list(self.benchmarks.values()))

    @property
    def by_seed(self) -> dict[str, list[Fraction]]:
        """The score of each seed, on each benchmark and as their mean under `avg`."""
        found = {name: [counts.pass_at_1 for counts in seeds] for name, seeds in self.counts.items()}
        return {AVERAGE: [_mean(list(row)) for row in zip(*found.values(), strict=True)], **found}

    @property
    def spread(self) -> float | None:
        """Standard deviation of the mean score over seeds (n − 1); None for one seed."""
        means = self.by_seed[AVERAGE]
        return float(stdev(means)) if len(means) > 1 else None

    @property
    def title(self) -> str:
        """Method, knobs and step: `TRB epsilon0=0.05 K=12 step 60`."""
        knobs = (f"{name}={value:g}" for name, value in self.knobs.items())
        return " ".join([method_label(self.method), *knobs, f"step {self.step}"])


@dataclass(frozen=True)
class Selected:
    """The best candidate of a method family in one setup, out of how many.

    `pool` are those that it was chosen from, in the order in which ties are settled.
    """

    setup: str
    best: Candidate
    candidates: int
    pool: tuple[Candidate, ...] = field(repr=False)


def select(experiment: Experiment, units: list[Unit], runs: Path) -> list[Selected]:
    """Per setup and method family the checkpoint with the highest mean over the setup's benchmarks.

    Several seeds of one setting are averaged before selecting, so that no lucky seed is picked. Ties go to the
    earliest checkpoint, then to the grid's order (paper, "Evaluation Protocol"). Checkpoints with fewer samples than
    others of their family have, which were given up or are not evaluated to the end, are counted but not chosen from.
    """
    selected = []
    for name, setup in experiment.setups.items():
        ids = evaluations.evaluation_ids(setup)
        for family in scores.families(unit for unit in units if unit.setup == name):
            found = scores.candidates(setup, family, runs)
            best = scores.best_of(found)
            if best is not None:
                pool = [candidate for candidate in found if candidate.sampled == best.sampled]
                pool.sort(key=lambda candidate: candidate.step)
                counted = tuple(_count(ids, candidate, runs) for candidate in pool)
                selected.append(Selected(name, counted[pool.index(best)], len(found), counted))
    return selected


def read_counts(runs: Path, unit_ids: tuple[str, ...], evaluation_id: str, step: int) -> tuple[Tally, ...] | None:
    """Counts of a checkpoint for each seed; None if one was not evaluated."""
    found = [scores.tally(RunReader(runs, unit_id), evaluation_id, step) for unit_id in unit_ids]
    present = tuple(counts for counts in found if counts is not None)
    return present if len(present) == len(found) else None


def _count(ids: dict[str, str], candidate: scores.Candidate, runs: Path) -> Candidate:
    first, units = candidate.setting[0], tuple(unit.id for unit in candidate.setting)
    counts = {key: read_counts(runs, units, evaluation_id, candidate.step) for key, evaluation_id in ids.items()}
    present = {key: seeds for key, seeds in counts.items() if seeds is not None}
    complete = candidate.sampled == len(counts)
    return Candidate(first.method or BASE, first.knobs, candidate.step, units, present, complete)


def _mean(values: list[Fraction]) -> Fraction:
    """Unweighted and exact."""
    return sum(values, Fraction(0)) / len(values)
