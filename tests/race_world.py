"""Made-up families of checkpoints whose true success rates are known, and races over samples of
them.

Rates are of logits: the difficulty of a problem, the ability of a checkpoint on its run's
saturating curve, and what a run and a checkpoint are better or worse at by themselves. Shapes: C
candidates (runs × steps), P problems.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from orchestrator.experiment import evaluation_protocol
from orchestrator.selection import race

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Suite:
    """A benchmark: its problems, the protocol's n, and the mean success rate at the end of
    training.
    """

    problems: int
    n: int
    rate: float


@dataclass(frozen=True)
class World:
    """How far runs, and the checkpoints of one run, lie apart: standard deviations in logits (0.1 ≈
    1 point).
    """

    between_runs: float
    between_checkpoints: float


@dataclass(frozen=True)
class Outcome:
    """A race beside the full protocol: picks, the score lost in [0, 1], generations as a share of
    the full ones.

    `loss` is of the full protocol's scores. `regret` is of true rates: the best candidate's minus
    the pick's; `full_regret` is that of the full protocol.
    """

    pick: int
    full_pick: int
    loss: float
    share: float
    alive: tuple[int, ...]  # candidates at each rung
    regret: float = 0.0
    full_regret: float = 0.0

    @property
    def same(self) -> bool:
        return self.pick == self.full_pick


# The paper's setup A: MATH500, OlympiadBench, AMC 2023, AIME 2024 and 2025, with the rates of its
# table.
PAPER = (
    Suite(500, 64, 0.69),
    Suite(674, 64, 0.34),
    Suite(40, 512, 0.44),
    Suite(30, 512, 0.095),
    Suite(30, 512, 0.07),
)
WORLDS = {"far": World(0.15, 0.04), "middle": World(0.07, 0.03), "near": World(0.03, 0.02)}
DIFFICULTY = 2.2  # standard deviation of problems, in logits
TASTE = 0.25  # of what a run, and a checkpoint, is good at by itself


def rates(
    rng: np.random.Generator, suites: tuple[Suite, ...], world: World, runs: int, steps: int
) -> list[Floats]:
    """Success rates (C, P) on each benchmark; candidates are ordered by run, then step."""
    time, ability = np.arange(1, steps + 1), np.empty((runs, steps))
    for run in range(runs):
        drift = rng.normal(0, world.between_runs / 2) * (time / steps - 0.5)
        ability[run] = rng.normal(0, world.between_runs) - np.exp(-time / rng.uniform(2, 5)) + drift
    ability += rng.normal(0, world.between_checkpoints, ability.shape)
    return [_rates(rng, suite, ability.reshape(-1, 1), runs) for suite in suites]


def samples(
    rng: np.random.Generator, rates: list[Floats], sizes: list[tuple[int, ...]]
) -> list[list[Ints]]:
    """Right answers (C, P) at each rung, benchmark by benchmark; a rung holds the samples of those
    before.
    """
    found = []
    for rate, column in zip(rates, zip(*sizes, strict=True), strict=True):
        added = [
            rng.binomial(n - before, rate) for before, n in zip((0, *column), column, strict=False)
        ]
        found.append(list(np.cumsum(added, axis=0)))
    return found


def play(
    suites: tuple[Suite, ...],
    correct: list[list[Ints]],
    sizes: list[tuple[int, ...]],
    error: float,
    zone: float = 0.0,
) -> Outcome:
    """A race over `samples`: a sole survivor goes to full n at once, unless there is a zone."""
    candidates, full = len(correct[0][0]), sizes[-1]
    means = full_means(correct, full)
    bound = race.Race(error, len(sizes), zone)
    alive, generations, before, counted = np.arange(candidates), 0, (0,) * len(full), []
    for rung, size in enumerate(sizes):
        if zone and len(alive) == 1:
            break
        now = size if len(alive) > 1 else full
        generations += len(alive) * _cost(suites, now) - len(alive) * _cost(suites, before)
        before, counted = now, [*counted, len(alive)]
        if rung + 1 < len(sizes) and len(alive) > 1:
            counts = [
                _counts(right[rung][alive], n, suite.n)
                for right, n, suite in zip(correct, size, suites, strict=True)
            ]
            alive = alive[bound.survivors(counts)]
    pick, best = int(alive[means[alive].argmax()]), int(means.argmax())
    share = generations / (candidates * _cost(suites, full))
    return Outcome(pick, best, float(means[best] - means[pick]), share, tuple(counted))


def full_means(correct: list[list[Ints]], full: tuple[int, ...]) -> Floats:
    """Scores (C,) of the full protocol, unweighted over benchmarks."""
    of_benchmarks = [right[-1].mean(axis=1) / n for right, n in zip(correct, full, strict=True)]
    return np.mean(of_benchmarks, axis=0)


def race_of(
    seed: int,
    suites: tuple[Suite, ...],
    world: World,
    runs: int,
    steps: int,
    error: float = 0.05,
    zone: float = 0.0,
) -> Outcome:
    """One family from its rates to the end of its race; `zone` is a share, 0.003 for 0.3 points."""
    rng = np.random.default_rng(seed)
    sizes = evaluation_protocol.rung_sizes([suite.n for suite in suites], zone > 0)
    of_family = rates(rng, suites, world, runs, steps)
    outcome = play(suites, samples(rng, of_family, sizes), sizes, error, zone)
    truth = np.mean([rate.mean(axis=1) for rate in of_family], axis=0)
    return replace(
        outcome,
        regret=float(truth.max() - truth[outcome.pick]),
        full_regret=float(truth.max() - truth[outcome.full_pick]),
    )


def _rates(rng: np.random.Generator, suite: Suite, ability: Floats, runs: int) -> Floats:
    difficulty = rng.normal(0, DIFFICULTY, suite.problems)
    of_run = np.repeat(rng.normal(0, TASTE, (runs, suite.problems)), len(ability) // runs, axis=0)
    of_checkpoint = rng.normal(0, TASTE, (len(ability), suite.problems))
    return _sigmoid(ability + of_run + of_checkpoint + difficulty + _shift(difficulty, suite.rate))


def _shift(difficulty: Floats, rate: float) -> float:
    """What to add to the difficulties for a mean success rate of `rate`, by bisection."""
    low, high = -10.0, 10.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _sigmoid(difficulty + middle).mean() < rate else (low, middle)
    return low


def _sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))


def _cost(suites: tuple[Suite, ...], sizes: tuple[int, ...]) -> int:
    return sum(suite.problems * n for suite, n in zip(suites, sizes, strict=True))


def _counts(correct: Ints, n: int, full: int) -> race.Counts:
    return race.Counts(correct, np.full_like(correct, n), full)
