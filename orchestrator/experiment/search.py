"""A search: which points of its grid a method tries, drawn from lists and ranges.

Each draw depends on the seed of the search, the key and its number alone. So the same file asks the
same points on any machine and after any kill, more `trials` add points to those of fewer, and methods
that share a key try the same values of it. The points stand in the resolved experiment
(`results/NAME/experiment.yaml`), which asks them again as they are.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.config import Search
from orchestrator.errors import UserError, refuse
from orchestrator.experiment.axes import AXES, ValueRange, Values

SEARCH = "search"
POINTS = "points"  # the key of a method's block that lists points
TRIES = 100  # draws for each trial, of which repeated ones are left out

Space = Mapping[str, Values]  # knob or axis → its values, of one method
PointList = list[dict[str, Any]]


def asked(key: str, space: Space, search: Search) -> PointList | None:
    """The settings that a method tries; None where these are all points of its grid.

    `key` is that of the method. UserError where a range has no number of points and no search draws
    from it.
    """
    if search.kind == "grid" and search.trials is not None:
        right = "null with kind grid, which tries every point; or kind: random"
        raise refuse(f"{SEARCH}.trials", search.trials, right)
    if search.kind in ("random", "optuna") and search.trials is None:
        raise UserError(f"{SEARCH}.trials: missing: expected a number of points, for example 16")
    spans = [name for name, values in space.items() if isinstance(values, ValueRange)]
    size = math.prod(map(len, lists(space).values()))
    if search.trials is None:
        if spans:
            right = f"points: N beside the range, or {SEARCH}={{kind: random, trials: 16}}"
            where = f"{AXES}.{spans[0]}" if "." in spans[0] else f"{key}.{spans[0]}"
            raise UserError(f"{where}: a range without points: expected {right}")
        return None
    if not spans and size <= search.trials:
        return None
    at_once = search.batch if search.kind == "optuna" else search.trials
    return drawn(key, space, search, min(at_once, search.trials))


def drawn(key: str, space: Space, search: Search, count: int) -> PointList:
    """The first `count` different points that are drawn; UserError where a space has fewer."""
    settings: PointList = []
    for number in range(TRIES * count):
        setting = {name: _draw(name, values, search.seed, number) for name, values in space.items()}
        if setting not in settings:
            settings.append(setting)
        if len(settings) == count:
            return settings
    raise refuse(
        f"{SEARCH}.trials", count, f"at most the {len(settings)} different points of {key}"
    )


def _draw(name: str, values: Values, seed: int, number: int) -> Any:
    """Draw `number` of a knob or an axis."""
    share = random.Random(f"{seed} {name} {number}").random()  # a text seeds by its SHA-512
    if isinstance(values, ValueRange):
        return values.at(share)
    return values[int(share * len(values))]


def lists(space: Space) -> dict[str, list[Any]]:
    """A space without ranges as a grid."""
    return {name: values for name, values in space.items() if not isinstance(values, ValueRange)}


def grid_of(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The values that each knob and axis takes in some setting; numbers ascend."""
    grid: dict[str, list[Any]] = {}
    for name in settings[0]:
        values = list(dict.fromkeys(setting[name] for setting in settings))
        numbers = all(type(value) in (int, float) for value in values)
        grid[name] = sorted(values) if numbers else values
    return grid


def rungs(steps: int, every: int, reduction: int) -> list[int]:
    """The steps at which a halving search decides: every · reductionᵏ below `steps`, ascending.

    `every` is the number of steps between checkpoints, so that each rung has one (Jamieson and
    Talwalkar 2016, "Non-stochastic Best Arm Identification", with the rungs of Li et al. 2020, "A
    System for Massively Parallel Hyperparameter Tuning").
    """
    powers = itertools.takewhile(
        lambda rung: rung < steps, (every * reduction**k for k in itertools.count())
    )
    return list(powers)
