"""What a race saves and what it risks, by simulation: `python -m tests.benchmarks.race [REPETITIONS] [SHARE …]`.

Families of 20 checkpoints a run on the paper's setup A, in worlds whose checkpoints lie near each other or far apart.
SHAREs try other rungs. The plan's estimate (`orchestrator/planning/evaluation_cost.py`) rests on this table.
"""

from __future__ import annotations

import sys
from fractions import Fraction
from statistics import fmean

from orchestrator.experiment import evaluation_protocol
from tests.race_world import PAPER, WORLDS, race_of

RUNS = (1, 3, 6, 9, 15)
STEPS = 20


def main() -> None:
    """Print a row for each family and world."""
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    if sys.argv[2:]:
        evaluation_protocol.SHARES = tuple(map(Fraction, sys.argv[2:]))
    print("runs  checkpoints  world    share of generations  largest  same pick  largest loss")
    for runs in RUNS:
        for name, world in WORLDS.items():
            found = [race_of(seed, PAPER, world, runs, STEPS) for seed in range(repetitions)]
            shares = [outcome.share for outcome in found]
            same, loss = sum(outcome.same for outcome in found), max(outcome.loss for outcome in found)
            print(
                f"{runs:4}  {runs * STEPS:11}  {name:7}  {fmean(shares):20.3f}  {max(shares):7.3f}"
                f"  {same:4}/{repetitions:<4}  {loss:12.5f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
