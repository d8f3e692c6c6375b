"""Run directories → the checkpoints that each method is selected from, with counts per problem."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from analysis.facts.intervals import Array
from analysis.labels import AVERAGE, BASE, method_label
from orchestrator.errors import UserError
from orchestrator.experiment.axes import setting_text
from orchestrator.experiment.units import Family
from orchestrator.selection import scores
from orchestrator.selection.scores import PASS_AT_1, Metric, Tally
from orchestrator.selection.study import Study

CountsOfSeeds = dict[str, tuple[Tally, ...]]  # by benchmark, one entry for each seed


class Scored(Protocol):
    """A score of a method over training runs: a checkpoint's, or one read off between two of them."""

    @property
    def method(self) -> str: ...

    @property
    def seeds(self) -> int:
        """Training runs that the score is a mean of."""
        ...

    @property
    def by_seed(self) -> Mapping[str, Sequence[Fraction]]:
        """The score of each seed in [0, 1], on each benchmark and as their mean under `avg`."""
        ...

    @property
    def sampling(self) -> Mapping[str, float]:
        """The variance of a run's score by the sampling of responses; without what is unknown."""
        ...


@dataclass(frozen=True)
class Candidate:
    """One checkpoint of one hyperparameter setting; scores in [0, 1] are averaged over seeds.

    `counts` has an entry for each seed, in the order of `units`.
    """

    method: str
    knobs: dict[str, Any]
    step: int
    units: tuple[str, ...]
    counts: CountsOfSeeds = field(repr=False, compare=False)
    complete: bool = True  # all seeds have the wanted samples on all benchmarks
    metric: Metric = PASS_AT_1

    @property
    def seeds(self) -> int:
        return len(self.units)

    @property
    def mean(self) -> Fraction:
        """Unweighted mean over benchmarks."""
        return statistics.mean(self.by_seed[AVERAGE])

    @property
    def by_seed(self) -> dict[str, list[Fraction]]:
        """The score of each seed, on each benchmark and as their mean under `avg`."""
        scores = {}
        for benchmark, seeds in self.counts.items():
            scores[benchmark] = [seed.score(self.metric) for seed in seeds]
        averages = [statistics.mean(of_seed) for of_seed in zip(*scores.values(), strict=True)]
        return {AVERAGE: averages, **scores}

    @property
    def sampling(self) -> dict[str, float]:
        """The variance of a run's score by the sampling of responses, the mean over seeds.

        Empty for other metrics than pass@1.
        """
        if self.metric != PASS_AT_1 or not self.counts:
            return {}
        found = {}
        for benchmark, seeds in self.counts.items():
            found[benchmark] = statistics.fmean(seed.sampling_variance for seed in seeds)
        return {AVERAGE: sum(found.values()) / len(found) ** 2, **found}

    @property
    def spread(self) -> float | None:
        """Standard deviation of the mean score over seeds (n − 1); None for one seed."""
        means = self.by_seed[AVERAGE]
        return float(statistics.stdev(means)) if len(means) > 1 else None

    @property
    def title(self) -> str:
        """Method, knobs and step: `TRB epsilon0=0.05 K=12 step 60`."""
        words = [method_label(self.method), setting_text(self.knobs), f"step {self.step}"]
        return " ".join(filter(None, words))


@dataclass(frozen=True)
class Selected:
    """The best candidate of a method family in one setup, out of how many.

    `pool` are those that it was chosen from, in the order in which ties are settled.
    """

    setup: str
    best: Candidate
    candidates: int
    pool: tuple[Candidate, ...] = field(repr=False)


def select(study: Study) -> list[Selected]:
    """Per setup and method family the checkpoint with the highest mean over the setup's benchmarks.

    Several seeds of one setting are averaged before selecting, so that no lucky seed is picked.
    Ties go to the earliest checkpoint, then to the grid's order (paper, "Evaluation Protocol").
    Checkpoints with fewer samples than others of their family have, which were given up or are not
    evaluated to the end, are counted but not chosen from.
    """
    return _select(study, lambda families: families)


def select_settings(study: Study) -> list[Selected]:
    """Per setup and setting its best checkpoint, chosen as `select` chooses among all settings."""
    return _select(study, lambda families: [[each] for family in families for each in family])


def _select(study: Study, of: Callable[[list[Family]], list[Family]]) -> list[Selected]:
    selected = []
    for name in study.experiment.setups:
        for family in of(study.with_units(study.units_of(name)).families()):
            evaluated = scores.scored_checkpoints(study, family)
            best = scores.best_of(evaluated)
            if best is not None:
                pool = scores.choices(evaluated)
                pool.sort(key=lambda candidate: candidate.step)
                counted = tuple(_count(study, candidate) for candidate in pool)
                selected.append(Selected(name, counted[pool.index(best)], len(evaluated), counted))
    return selected


def read_counts(
    study: Study,
    unit_ids: tuple[str, ...],
    ids: Mapping[str, str],
    step: int,
    metric: Metric = PASS_AT_1,
) -> CountsOfSeeds:
    """Counts of a checkpoint by benchmark, for each seed; `ids` are evaluation ids by benchmark.

    A benchmark is left out where a seed was not evaluated on it, or lacks what the metric needs:
    k samples of each problem, and votes for maj@k.
    """
    tally = scores.tally_with_votes if metric.kind == "maj" else scores.tally
    counts: CountsOfSeeds = {}
    for benchmark, evaluation_id in ids.items():
        present = []
        for unit_id in unit_ids:
            seed = tally(study.reader(unit_id), evaluation_id, step)
            if seed is not None and seed.samples >= metric.k:
                present.append(seed)
        if len(present) == len(unit_ids):
            counts[benchmark] = tuple(present)
    return counts


def _count(study: Study, candidate: scores.ScoredCheckpoint) -> Candidate:
    first, units = candidate.setting[0], tuple(unit.id for unit in candidate.setting)
    ids = study.evaluation_ids(first.setup)
    counts = read_counts(study, units, ids, candidate.step)
    complete = candidate.sampled == len(ids)
    return Candidate(first.method or BASE, first.knobs, candidate.step, units, counts, complete)


# --- scores per problem of several checkpoints, on the same problems ---


def score_matrices(checkpoints: Mapping[str, Candidate], benchmark: str) -> dict[str, Array]:
    """Name → score of each problem, (P,), a mean over the seeds of the checkpoint.

    UserError that names two runs whose problems are not the same in the same order.
    """
    scores: dict[str, Array] = {}
    first: tuple[str, Sequence[str]] | None = None  # a run and its problems
    for name, checkpoint in checkpoints.items():
        shares = []
        for unit, counts in zip(checkpoint.units, checkpoint.counts[benchmark], strict=True):
            run = f"{name} {unit} {benchmark}"
            first = first or (run, counts.problems)
            if counts.problems != first[1]:
                raise UserError(
                    f"{run}: {_difference(first[1], counts.problems)} compared with {first[0]}; "
                    "scores are compared on the same problems; evaluate one of the two again"
                )
            shares.append(counts.shares(checkpoint.metric))
        scores[name] = np.mean(shares, axis=0)
    return scores


def _difference(first: Sequence[str], second: Sequence[str]) -> str:
    """Describe how the problems of the second differ."""
    lacking, added = set(first) - set(second), set(second) - set(first)
    if lacking or added:
        return f"{len(lacking)} problems lacking, {len(added)} added"
    return "problems in another order"
