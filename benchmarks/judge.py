"""How far a sweep's judgement can be trusted, by simulation: `python -m benchmarks.judge
[REPETITIONS [RACES]]`.

Writes `judge.json`. Its first numbers are shares of sweeps of equal methods in which TRB, or any
method, is called different from vanilla, and of sweeps in which TRB is ahead and found. `naive` is
the t test on explored scores that knows neither grids nor the number of methods; `confirmed` is the
project's own judgement. `tests/judge_world.py` describes the worlds.

`race_share_300` and `race_share_20` are the shares of the full protocol's generations that a race
with an indifference zone of 0.3 points takes among so many checkpoints, the mean over three worlds
with RACES families each. `race_regret_ok` is the share of these families in which the pick lies
within the zone of the best checkpoint (`benchmarks/race.py`).
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.race import zone_choices
from tests.judge_world import GRIDS, TRB, Judged, Shape, World, judged
from tests.race_world import WORLDS

SPREADS: tuple[tuple[float, Shape], ...] = (
    (0.0, "normal"),
    (1.0, "normal"),
    (4.0, "normal"),
    (1.0, "skewed"),
)
AHEAD = 2.5  # points, with runs one point apart


def main() -> None:
    """Print a row for each world, and write the file."""
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    rows = []
    print("grid         seeds  runs apart  shape   each   any  naive each  naive any  lead")
    for grid in GRIDS:
        for count in (2, 3, 5):
            for between, shape in SPREADS:
                row = _row(World(grid, count, count, between, shape), repetitions)
                rows.append(row)
                print(
                    f"{grid:11}  {count:5}  {between:10g}  {shape:6}  {row['each']:.3f}  {row['any']:.3f}"
                    f"  {row['naive_each']:10.3f}  {row['naive_any']:9.3f}  {row['lead']:+.2f}",
                    flush=True,
                )
    paper = next(
        row for row in rows if (row["grid"], row["seeds"], row["between"]) == ("paper", 3, 1.0)
    )
    found = _simulated(World("paper", 3, 3, 1.0, ahead=AHEAD), repetitions)
    document = {
        "repetitions": repetitions,
        "false_positive_paper_3": paper["each"],
        "familywise_paper_3": paper["any"],
        "naive_paper_3": paper["naive_trb"],
        "power_paper_3": fmean(judgement.confirmed[TRB] for judgement in found),
        "naive_power_paper_3": fmean(judgement.naive[TRB] for judgement in found),
        "ahead": AHEAD,
        **_races(int(sys.argv[2]) if len(sys.argv) > 2 else 100),
        "worlds": rows,
    }
    Path("judge.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(
        json.dumps({name: value for name, value in document.items() if name != "worlds"}, indent=2)
    )


def _races(repetitions: int) -> dict[str, float]:
    """Shares of the full protocol's generations that races with a zone take, and of good picks."""
    found: dict[str, float] = {}
    within = []
    for runs in (15, 1):
        shares = []
        for world in WORLDS.values():
            choices = zone_choices(repetitions, world, runs, 20)
            shares.append(fmean(choice.share for choice in choices))
            within.append(fmean(not choice.missed for choice in choices))
        found[f"race_share_{20 * runs}"] = fmean(shares)
    return found | {"race_regret_ok": fmean(within)}


def _simulated(world: World, repetitions: int) -> list[Judged]:
    generator = np.random.default_rng(0)
    return [judged(generator, world) for _ in range(repetitions)]


def _row(world: World, repetitions: int) -> dict[str, Any]:
    """The largest share of a single method called different, and the share of sweeps with any such
    method.
    """
    found = _simulated(world, repetitions)
    confirmed = np.array([list(judgement.confirmed.values()) for judgement in found])
    naive = np.array([list(judgement.naive.values()) for judgement in found])
    return {
        **asdict(world),
        "each": float(confirmed.mean(axis=0).max()),
        "any": float(confirmed.any(axis=1).mean()),
        "naive_each": float(naive.mean(axis=0).max()),
        "naive_any": float(naive.any(axis=1).mean()),
        "naive_trb": fmean(judgement.naive[TRB] for judgement in found),
        "lead": fmean(judgement.lead for judgement in found),
    }


if __name__ == "__main__":
    main()
