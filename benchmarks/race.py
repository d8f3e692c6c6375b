"""What a race saves and what it risks, by simulation: `python -m benchmarks.race [REPETITIONS]`.

Families of 20 checkpoints a run on the paper's setup A, in worlds whose checkpoints lie near each
other or far apart. Four ways to choose a checkpoint meet on the same families:

- `race`: the race for the pick of the full protocol;
- `zone`: the race with an indifference zone of 0.3 points;
- `SySRs`: Synchronized Successive Rejects (Lyu et al. 2026, arXiv 2606.07726, the abstract and the
  authors' code): the K − 1 phases of Successive Rejects (Audibert and Bubeck 2010), each of which
  drops the worst, with the same queries for all that are left. A query is here a sample of a
  problem, drawn without replacement. It gets as many generations as `zone` took on the family,
  since it needs a budget and does not choose one;
- `halving`: successive halving, the rungs of `zone` with the better half kept at each.

A row has the share of the full protocol's generations, the share of families in which the pick lies
more than 0.3 points below the best by true rates (`missed`), and how far it lies below in the mean.
The plan's estimate (`orchestrator/planning/work.py`) rests on the first two.

`python -m benchmarks.race hard [REPETITIONS]` tries the bounds where they are hardest to keep: few
problems or few samples, and families whose checkpoints or runs do not differ at all.
`python -m benchmarks.race shares SHARE …` tries other rungs for `race`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from statistics import fmean

import numpy as np

from orchestrator.experiment import evaluation_protocol
from tests.race_world import PAPER, WORLDS, Floats, Suite, World, race_of, rates, samples

ZONE = 0.003
FIRST_SEED = 1_000_000  # no seed with which a rule was chosen
SIZES = ((1, 20), (3, 20), (6, 20), (9, 20), (15, 20))  # runs, checkpoints of each
HARD = {
    "30 problems": (Suite(30, 16, 0.2),),
    "10 problems": (Suite(10, 64, 0.5),),
    "4 samples": (Suite(100, 4, 0.6), Suite(100, 4, 0.3)),
    "two benchmarks": (Suite(60, 16, 0.5), Suite(30, 64, 0.1)),
}
BETWEEN = (World(0, 0), World(0.1, 0.05), World(0.4, 0.1))
HARD_SIZES = ((1, 3), (3, 5), (6, 10))


@dataclass(frozen=True)
class Choice:
    """How a family was decided: share of the full generations, and points below the best."""

    share: float
    regret: float

    @property
    def missed(self) -> bool:
        return self.regret > 100 * ZONE


def main() -> None:
    """Print a row for each family and world."""
    words = sys.argv[1:]
    if words[:1] == ["hard"]:
        hard(int(words[1]) if len(words) > 1 else 1000)
        return
    if words[:1] == ["shares"]:
        evaluation_protocol.SHARES = tuple(map(Fraction, words[1:]))
        words = []
    repetitions = int(words[0]) if words else 20
    print("checkpoints  world   way       share  largest  missed  regret")
    for runs, steps in SIZES:
        for name, world in WORLDS.items():
            for way, choices in families(repetitions, world, runs, steps).items():
                shares = [choice.share for choice in choices]
                missed = fmean(choice.missed for choice in choices)
                regret = fmean(choice.regret for choice in choices)
                print(
                    f"{runs * steps:11}  {name:6}  {way:8}  {fmean(shares):.3f}  {max(shares):7.3f}"
                    f"  {missed:6.3f}  {regret:6.3f}",
                    flush=True,
                )


def families(
    repetitions: int, world: World, runs: int, steps: int, first: int = FIRST_SEED
) -> dict[str, list[Choice]]:
    """Way → its choice in each of `repetitions` families."""
    found: dict[str, list[Choice]] = {}
    for seed in range(first, first + repetitions):
        for way, choice in _ways(seed, world, runs, steps):
            found.setdefault(way, []).append(choice)
    return found


def zone_choices(repetitions: int, world: World, runs: int, steps: int) -> list[Choice]:
    """The choices of the race with an indifference zone alone."""
    found = []
    for seed in range(FIRST_SEED, FIRST_SEED + repetitions):
        outcome = race_of(seed, PAPER, world, runs, steps, zone=ZONE)
        found.append(Choice(outcome.share, 100 * outcome.regret))
    return found


def _ways(seed: int, world: World, runs: int, steps: int) -> Iterator[tuple[str, Choice]]:
    race = race_of(seed, PAPER, world, runs, steps)
    yield "full", Choice(1.0, 100 * race.full_regret)
    yield "race", Choice(race.share, 100 * race.regret)
    zone = race_of(seed, PAPER, world, runs, steps, zone=ZONE)
    yield "zone", Choice(zone.share, 100 * zone.regret)
    rng = np.random.default_rng(seed)
    of_family = rates(rng, PAPER, world, runs, steps)
    yield "SySRs", successive_rejects(rng, of_family, zone.share)
    yield "halving", successive_halving(rng, of_family)


def successive_rejects(rng: np.random.Generator, of_family: list[Floats], share: float) -> Choice:
    """SySRs with a budget of this share of the full protocol's generations.

    In phase k of K − 1 all that are left have answered n_k = ⌈(budget − K) ÷ (log̅K · (K + 1 − k))⌉
    queries each, with log̅K = 1/2 + Σ_{i=2}^K 1/i.
    """
    left_n = np.concatenate([np.full(suite.problems, suite.n) for suite in PAPER])
    starts = np.cumsum([0, *(suite.problems for suite in PAPER[:-1])])
    rate = np.concatenate(of_family, axis=1)
    candidates, full = len(rate), int(left_n.sum())
    log_bar = 0.5 + sum(1 / i for i in range(2, candidates + 1))
    budget = share * candidates * full
    alive, asked, spent = np.arange(candidates), 0, 0
    right = np.zeros((candidates, len(PAPER)))
    queries = np.zeros(len(PAPER))
    for phase in range(1, candidates):
        until = int(np.ceil((budget - candidates) / (log_bar * (candidates + 1 - phase))))
        more = rng.multivariate_hypergeometric(left_n, min(until, full) - asked, method="marginals")
        asked, left_n = min(until, full), left_n - more
        spent += len(alive) * int(more.sum())
        drawn = rng.binomial(more[more > 0], rate[alive][:, more > 0])
        answers = np.zeros((len(alive), len(more)))
        answers[:, more > 0] = drawn
        right[alive] += np.add.reduceat(answers, starts, axis=1)
        queries += np.add.reduceat(more, starts)
        scores = (right[alive] / np.maximum(queries, 1)).mean(axis=1)
        alive = np.delete(alive, scores.argmin())
    return Choice(spent / (candidates * full), _regret(of_family, int(alive[0])))


def successive_halving(rng: np.random.Generator, of_family: list[Floats]) -> Choice:
    """Keep the better half at each rung until one is left, or the best at the last rung."""
    full = [suite.n for suite in PAPER]
    sizes = evaluation_protocol.rung_sizes(full, zone=True)
    correct = samples(rng, of_family, sizes)
    costs = np.dot(sizes, [suite.problems for suite in PAPER])
    alive, spent, before = np.arange(len(of_family[0])), 0, 0
    for rung, size in enumerate(sizes):
        spent += len(alive) * (costs[rung] - before)
        before = costs[rung]
        scores = np.mean(
            [right[rung][alive].mean(axis=1) / n for right, n in zip(correct, size, strict=True)],
            axis=0,
        )
        kept = -(-len(alive) // 2) if rung + 1 < len(sizes) else 1
        alive = alive[np.argsort(-scores, kind="stable")[:kept]]
        if len(alive) == 1:
            break
    return Choice(spent / (len(of_family[0]) * costs[-1]), _regret(of_family, int(alive[0])))


def _regret(of_family: list[Floats], pick: int) -> float:
    truth = np.mean([rate.mean(axis=1) for rate in of_family], axis=0)
    return 100 * float(truth.max() - truth[pick])


def hard(repetitions: int) -> None:
    """How often the full protocol's pick was dropped, and how often it lies more than 1 and 3
    points above the winner of a race with such a zone; 5 % are allowed.
    """
    print("world           between runs  checkpoints  zone  share  missed")
    for name, suites in HARD.items():
        for between in BETWEEN:
            for runs, steps in HARD_SIZES:
                for zone in (0.0, 0.01, 0.03):
                    found = []
                    for seed in range(repetitions):
                        found.append(race_of(seed, suites, between, runs, steps, zone=zone))
                    missed = fmean(not each.same and each.loss > zone for each in found)
                    share = fmean(each.share for each in found)
                    shown = f"{between.between_runs:12}  {runs * steps:11}  {zone:4}  {share:5.3f}"
                    print(f"{name:14}  {shown}  {missed:6.3f}", flush=True)


if __name__ == "__main__":
    main()
