"""Run directories → the plain numbers that the figures draw. A number that is not there is left out, never zero."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.candidates import Candidate, Selected
from orchestrator import grid, selection
from orchestrator.config import Experiment
from orchestrator.grid import Unit
from orchestrator.rundir import RunReader

# step → one value for each seed that has it; an empty list is a step without a value, where the line breaks.
Curve = dict[int, list[float]]


@dataclass(frozen=True)
class Setting:
    """One point of a method's grid in one setup: its units differ in nothing but the seed.

    `scores` is the mean pass@1 in [0, 1] at each evaluated checkpoint.
    """

    method: str
    knobs: dict[str, Any]
    units: tuple[Unit, ...]
    scores: Curve

    @property
    def from_supervised(self) -> bool:
        """Whether training starts from the supervised stage and not from the untrained student."""
        return any(unit.depends_on for unit in self.units)


@dataclass(frozen=True)
class Series:
    """A line of a figure: whose it is and its values over optimizer steps."""

    method: str
    knobs: dict[str, Any]
    curve: Curve
    from_supervised: bool = False


@dataclass(frozen=True)
class SeedMean:
    """A mean over seeds and its standard deviation (n − 1); None for one seed."""

    mean: float
    spread: float | None = None


def read_settings(experiment: Experiment, units: list[Unit], runs: Path, setup: str) -> list[Setting]:
    """The settings of a setup in the grid's order, with the scores evaluated so far."""
    ids = list(grid.evaluation_ids(experiment.setups[setup]).values())
    families = selection.families(unit for unit in units if unit.setup == setup and unit.kind == "trial")
    return [
        Setting(group[0].method or "", group[0].knobs, tuple(group), _scores(group, runs, ids))
        for family in families
        for group in family
    ]


def best_settings(settings: Sequence[Setting], chosen: Iterable[Selected]) -> dict[str, Setting]:
    """Method → the setting its family was selected with; before that, the only one of a family that has one."""
    families: dict[str, list[Setting]] = defaultdict(list)
    for setting in settings:
        families[setting.method].append(setting)
    best = {method: family[0] for method, family in families.items() if len(family) == 1}
    for selected in chosen:
        for setting in families.get(selected.best.method, []):
            if setting.knobs == selected.best.knobs:
                best[setting.method] = setting
    return {method: best[method] for method in families if method in best}


def score_series(setting: Setting, untrained: float | None) -> Series:
    """Mean pass@1 over steps, from the untrained student's where the run starts there."""
    curve = dict(setting.scores)
    if curve and untrained is not None and not setting.from_supervised:
        curve.setdefault(0, [untrained])
    return Series(setting.method, setting.knobs, dict(sorted(curve.items())), setting.from_supervised)


def metric_series(setting: Setting, runs: Path, keys: Sequence[str]) -> dict[str, Series]:
    """Columns of `metrics.jsonl` over steps; a column that no row has is left out."""
    curves: dict[str, dict[int, list[float]]] = {key: defaultdict(list) for key in keys}
    for unit in setting.units:
        for row in RunReader(runs, unit.id).metrics():
            for key in keys:
                value = row.get(key)
                curves[key][unit.first_batch + row["step"]] += [] if value is None else [value]
    return {
        key: Series(setting.method, setting.knobs, dict(sorted(curve.items())), setting.from_supervised)
        for key, curve in curves.items()
        if any(curve.values())
    }


def best_over_training(candidates: Iterable[Candidate], knobs: dict[str, Any]) -> SeedMean | None:
    """The highest mean pass@1 of one setting over the checkpoints of its family that selection takes."""
    own = [candidate for candidate in candidates if candidate.knobs == knobs]
    best = max(own, key=lambda candidate: candidate.mean, default=None)
    return best and SeedMean(float(best.mean), best.spread)


def sweep_lines(
    settings: Sequence[Setting], candidates: Sequence[Candidate], x: str, line: str | None
) -> dict[float | None, dict[float, SeedMean | None]]:
    """Best-over-training scores of one method's grid: value of knob `line` → value of knob `x` → score.

    Without a second knob there is one line, under None. A setting without scores is None.
    """
    lines: dict[float | None, dict[float, SeedMean | None]] = defaultdict(dict)
    for setting in settings:
        key = setting.knobs[line] if line else None
        lines[key][setting.knobs[x]] = best_over_training(candidates, setting.knobs)
    return dict(lines)


def _scores(group: list[Unit], runs: Path, evaluation_ids: list[str]) -> Curve:
    curve: Curve = defaultdict(list)
    for unit in group:
        for step, score in selection.trajectory(RunReader(runs, unit.id), evaluation_ids).items():
            curve[unit.first_batch + step].append(float(score))
    return dict(sorted(curve.items()))
