"""Sweeps of seven methods, simulated from counts of right answers to the judgement on each method.

A training run moves the logit of every problem alike, so that the runs of a setting scatter by
`between` points of standard deviation. The checkpoints of a run scatter by 0.3 of that about their
run. All methods are equal but for `ahead`, which is TRB's advantage over the others in points. As
in a sweep, each method shows the setting and step with the highest mean over the exploring seeds.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from analysis.facts.assess import to_reference
from analysis.facts.candidates import Candidate, Scored
from orchestrator.selection import significance
from orchestrator.selection.confirmation import LOOKS, NOMINAL_LEVEL, open_methods
from orchestrator.selection.scores import Tally

Array = NDArray[np.float64]
Shape = Literal["normal", "skewed"]

VANILLA, TRB = "vanilla", "trust_region"
METHODS: tuple[str, ...] = (
    VANILLA,
    TRB,
    "fixed_epsilon",
    "veto",
    "skd",
    "temperature_warmup",
    "sft_warmup",
)
GRIDS: Mapping[str, tuple[int, ...]] = {  # settings of each method, in the order of METHODS
    "paper": (1, 15, 5, 4, 9, 6, 3),
    "paper-small": (1, 6, 2, 2, 2, 2, 2),
    "one each": (1, 1, 1, 1, 1, 1, 1),
}
CHECKPOINTS, WITHIN = 20, 0.3
PROBLEMS, ALIKE, SAMPLES = 40, 10, 64  # pass rates, problems of each, samples of each problem


@dataclass(frozen=True)
class World:
    """A grid, its exploring and confirming seeds, and how runs scatter."""

    grid: str = "paper"
    seeds: int = 3
    confirming: int = 3
    between: float = 1.0
    shape: Shape = "normal"
    ahead: float = 0.0


@dataclass(frozen=True)
class Judged:
    """Method → whether it is called different from vanilla, by each way of judging.

    `lead` is explored − confirmed of TRB, in points.
    """

    confirmed: dict[str, bool]
    naive: dict[str, bool]
    lead: float


def judged(generator: np.random.Generator, world: World) -> Judged:
    """Explore, choose and confirm once."""
    logits = generator.normal(0, 1.5, PROBLEMS)
    slope = float((np.exp(-logits) / (1 + np.exp(-logits)) ** 2).mean())
    explored, confirmed = {}, {}
    for method, settings in zip(METHODS, GRIDS[world.grid], strict=True):
        ahead = world.ahead if method == TRB else 0.0
        shifts = _scatter(generator, world, (settings, world.seeds, 1)) + ahead
        shifts = shifts + _scatter(generator, world, (settings, world.seeds, CHECKPOINTS)) * WITHIN
        right = _right(generator, logits, shifts / 100 / slope)
        means = right.mean(axis=(1, 3))  # (settings, checkpoints)
        setting, step = np.unravel_index(means.argmax(), means.shape)
        explored[method] = _candidate(method, right[setting, :, step])
        again = _scatter(generator, world, (world.confirming,)) + ahead
        again = again + _scatter(generator, world, (world.confirming,)) * WITHIN
        confirmed[method] = _candidate(method, _right(generator, logits, again / 100 / slope))
    lead = 100 * float(explored[TRB].mean - confirmed[TRB].mean)
    return Judged(_judged_different(confirmed), _naively_different(explored), lead)


def decided(
    generator: np.random.Generator, world: World, until: float
) -> tuple[dict[str, bool], int]:
    """Confirm in rounds until each difference is decided; what is called different, and the runs
    that it took.

    Scores are those of the runs, without the noise of sampling answers.
    """
    rounds = dict.fromkeys(METHODS, 1)
    of_runs: dict[str, list[Fraction]] = {method: [] for method in METHODS}
    for look in range(1, LOOKS + 1):
        for method in METHODS:
            if rounds[method] == look:
                ahead = world.ahead if method == TRB else 0.0
                scores = 50 + ahead + _scatter(generator, world, (world.confirming,))
                of_runs[method] += [Fraction(float(score)) for score in scores]
        going_on = [method for method in open_methods(of_runs, until) if rounds[method] == look]
        if not going_on or look == LOOKS:
            break
        rounds |= dict.fromkeys([VANILLA, *going_on], look + 1)
    spreads = {method: significance.spread_of(found) for method, found in of_runs.items()}
    gaps, distributions = [], []
    for method in METHODS[1:]:
        found = significance.of_difference(spreads[method], spreads[VANILLA])
        assert found is not None
        distributions.append(found)
        gaps.append(float(statistics.mean(of_runs[method]) - statistics.mean(of_runs[VANILLA])))
    reaches = significance.adjusted(gaps, distributions, NOMINAL_LEVEL).reaches
    shown = [abs(gap) > reach for gap, reach in zip(gaps, reaches, strict=True)]
    different = dict(zip(METHODS[1:], shown, strict=True))
    return different, sum(map(len, of_runs.values()))


# --- runs that scatter unlike, whose methods have equal means ---

COLLAPSE, FAR = 0.3, 10.0  # probability that a run collapses, and by how many points


@dataclass(frozen=True)
class Runs:
    """The scores of a method's runs, as the judgement reads them (`facts.candidates.Scored`)."""

    method: str
    percent: Array

    @property
    def seeds(self) -> int:
        return len(self.percent)

    @property
    def by_seed(self) -> dict[str, list[Fraction]]:
        return {"avg": [Fraction(float(score)) / 100 for score in self.percent]}

    @property
    def sampling(self) -> dict[str, float]:
        return {}


def _collapsing(generator: np.random.Generator, runs: int) -> Array:
    """Runs of mean 14, of which each collapses with the probability COLLAPSE."""
    fallen = generator.random(runs) < COLLAPSE
    return 14 + FAR * (COLLAPSE - fallen) + generator.normal(size=runs)


def scattered(generator: np.random.Generator, world: str, runs: int) -> dict[str, Runs]:
    """The runs of equal methods in a world named in UNLIKE."""
    scores = _scattered(generator, world, runs)
    return {method: Runs(method, percent) for method, percent in scores.items()}


def _scattered(generator: np.random.Generator, world: str, runs: int) -> dict[str, Array]:
    found = {method: 14 + generator.normal(size=runs) for method in METHODS}
    if world == "all collapse":
        return {method: _collapsing(generator, runs) for method in METHODS}
    if world == "vanilla collapses":
        found[VANILLA] = _collapsing(generator, runs)
    elif world == "TRB collapses":
        found[TRB] = _collapsing(generator, runs)
    elif world == "two scatter more":
        found |= {method: 14 + generator.normal(0, 3, runs) for method in (VANILLA, TRB)}
    elif world == "until":  # more seeds for the method that is open, as `confirm.until` adds
        found[VANILLA] = 14 + generator.normal(0, 3, runs)
        found[TRB] = 14 + generator.normal(size=5 * runs)
    elif world == "ties":  # few problems: scores are equal now and then
        found = {method: 2 * np.round(scores / 2) for method, scores in found.items()}
    elif world == "correlated seeds":
        shared = generator.normal(size=runs)
        found = {method: scores + shared for method, scores in found.items()}
    return found


UNLIKE = (
    "all alike",
    "two scatter more",
    "until",
    "ties",
    "correlated seeds",
    "all collapse",
    "vanilla collapses",
    "TRB collapses",
)


def called_different(scored: Mapping[str, Scored]) -> dict[str, bool]:
    """Which methods are called different from vanilla, by the project's own judgement."""
    # Bootstrap replicates are read only where no spread between runs is known.
    drawn = {method: {"avg": np.zeros(2), "bench": np.zeros(2)} for method in scored}
    gaps = to_reference(scored, drawn, dict.fromkeys(scored, 1))
    return {method: columns["avg"].shown for method, columns in gaps.items()}


def _scatter(generator: np.random.Generator, world: World, size: tuple[int, ...]) -> Array:
    """Points by which runs differ, with mean 0 and standard deviation `between`."""
    if world.shape == "skewed":
        return world.between * (generator.standard_exponential(size) - 1)
    return generator.normal(0, world.between, size)


def _right(generator: np.random.Generator, logits: Array, shifts: Array) -> NDArray[np.int64]:
    """Right answers (…, problems) out of ALIKE · SAMPLES each."""
    return generator.binomial(ALIKE * SAMPLES, 1 / (1 + np.exp(-logits - shifts[..., None])))


def _candidate(method: str, right: NDArray[np.int64]) -> Candidate:
    """A checkpoint with the counts (seeds, problems) of its runs."""
    n = np.full(PROBLEMS, ALIKE * SAMPLES)
    units = tuple(f"{method}-s{seed}" for seed in range(len(right)))
    return Candidate(
        method, {}, 20, units, {"bench": tuple(Tally(n, of_seed) for of_seed in right)}
    )


def _judged_different(candidates: Mapping[str, Candidate]) -> dict[str, bool]:
    """What the project says of each method's average, if all were chosen from equally many
    checkpoints.
    """
    return called_different(candidates)


def _naively_different(candidates: Mapping[str, Candidate]) -> dict[str, bool]:
    """What Student's t test with one pooled variance says of each method's average, without regard
    to grids, to the number of methods and to unlike spreads.
    """
    percent = {
        method: 100 * np.array(candidate.by_seed["avg"], dtype=float)
        for method, candidate in candidates.items()
    }
    freedom = sum(len(runs) - 1 for runs in percent.values())
    squares = sum(((runs - runs.mean()) ** 2).sum() for runs in percent.values()) / freedom
    found = {}
    for method, runs in percent.items():
        if method != VANILLA:
            error = np.sqrt(squares * (1 / len(runs) + 1 / len(percent[VANILLA])))
            t = abs(runs.mean() - percent[VANILLA].mean()) / error
            found[method] = bool(2 * stats.t.sf(t, freedom) < 0.05)
    return found
