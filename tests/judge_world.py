"""Sweeps of seven methods, simulated from counts of right answers to the judgement on each method.

A training run moves the logit of every problem alike, so that the runs of a setting scatter by
`between` points of standard deviation. The checkpoints of a run scatter by 0.3 of that about their
run. All methods are equal but for `ahead`, which is TRB's advantage over the others in points. As
in a sweep, each method shows the setting and step with the highest mean over the exploring seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from analysis.facts.assess import seed_spreads, to_reference
from analysis.facts.candidates import Candidate
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
    spread = significance.pool(of_runs.values())
    assert spread is not None
    means = {method: sum(found, Fraction(0)) / len(found) for method, found in of_runs.items()}
    gaps = [means[method] - means[VANILLA] for method in METHODS[1:]]
    runs = [len(of_runs[method]) for method in METHODS]
    reaches = significance.adjusted(gaps, spread, runs[1:], runs[0], NOMINAL_LEVEL).reaches
    different = [abs(gap) > reach for gap, reach in zip(gaps, reaches, strict=True)]
    return dict(zip(METHODS[1:], different, strict=True)), sum(runs)


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
    # Bootstrap replicates are read only where no spread between runs is known.
    columns = {"avg": np.zeros(2), "bench": np.zeros(2)}
    alike = dict.fromkeys(candidates, 1)
    gaps = to_reference(
        candidates, dict.fromkeys(candidates, columns), seed_spreads(candidates.values()), alike
    )
    return {method: columns["avg"].shown for method, columns in gaps.items()}


def _naively_different(candidates: Mapping[str, Candidate]) -> dict[str, bool]:
    """What a t test says of each method's average without regard to grids and to the number of
    methods.
    """
    spread = seed_spreads(candidates.values())["avg"]
    assert spread is not None
    found = {}
    for method, candidate in candidates.items():
        if method != VANILLA:
            gap = 100 * (candidate.mean - candidates[VANILLA].mean)
            found[method] = (
                significance.p_value(gap, spread, candidate.seeds, candidates[VANILLA].seeds) < 0.05
            )
    return found
