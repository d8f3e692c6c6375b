"""Simulates how many samples a race saves, and its risk: `python -m benchmarks.race [REPETITIONS]
[SHARE …]`.

`python -m benchmarks.race hard [REPETITIONS]` tries the bound where it is hardest to keep: few
problems or few samples, and families whose checkpoints or runs do not differ at all.

Families of 20 checkpoints a run on the paper's setup A, in worlds whose checkpoints lie near each
other or far apart. SHAREs try other rungs. The plan's estimate
(`orchestrator/planning/evaluation_cost.py`) rests on this table.
"""

from __future__ import annotations

import sys
from fractions import Fraction
from statistics import fmean

from orchestrator.experiment import evaluation_protocol
from tests.race_world import PAPER, WORLDS, Suite, World, race_of

RUNS = (1, 3, 6, 9, 15)
STEPS = 20
HARD = {
    "30 problems": (Suite(30, 16, 0.2),),
    "10 problems": (Suite(10, 64, 0.5),),
    "4 samples": (Suite(100, 4, 0.6), Suite(100, 4, 0.3)),
    "two benchmarks": (Suite(60, 16, 0.5), Suite(30, 64, 0.1)),
}
BETWEEN = (World(0, 0), World(0.1, 0.05), World(0.4, 0.1))
SIZES = ((1, 3), (3, 5), (6, 10))  # runs, checkpoints of each


def main() -> None:
    """Print a row for each family and world."""
    if sys.argv[1:2] == ["hard"]:
        hard(int(sys.argv[2]) if len(sys.argv) > 2 else 1000)
        return
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    if sys.argv[2:]:
        evaluation_protocol.SHARES = tuple(map(Fraction, sys.argv[2:]))
    print("runs  checkpoints  world    share of generations  largest  same pick  largest loss")
    for runs in RUNS:
        for name, world in WORLDS.items():
            found = [race_of(seed, PAPER, world, runs, STEPS) for seed in range(repetitions)]
            shares = [outcome.share for outcome in found]
            same, loss = (
                sum(outcome.same for outcome in found),
                max(outcome.loss for outcome in found),
            )
            print(
                f"{runs:4}  {runs * STEPS:11}  {name:7}  {fmean(shares):20.3f}  {max(shares):7.3f}"
                f"  {same:4}/{repetitions:<4}  {loss:12.5f}",
                flush=True,
            )


def hard(repetitions: int) -> None:
    """Print how often the pick of the full protocol was dropped; 5 % is allowed."""
    print("world           between runs  checkpoints  share  dropped  mean loss")
    for name, suites in HARD.items():
        for between in BETWEEN:
            for runs, steps in SIZES:
                found = [race_of(seed, suites, between, runs, steps) for seed in range(repetitions)]
                dropped, share = (
                    (1 - fmean(each.same for each in found)),
                    fmean(each.share for each in found),
                )
                loss = fmean(each.loss for each in found)
                shown = f"{between.between_runs:12}  {runs * steps:11}  {share:5.3f}  {dropped:7.3f}  {loss:9.6f}"
                print(f"{name:14}  {shown}", flush=True)


if __name__ == "__main__":
    main()
