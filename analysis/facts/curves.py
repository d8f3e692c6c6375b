"""Run directories → the plain numbers that the figures draw. Missing numbers are left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean
from typing import Any

import numpy as np

from analysis.facts.candidates import Candidate, Selected
from orchestrator.experiment.methods import METHODS
from orchestrator.experiment.units import Unit
from orchestrator.selection import scores as selection
from orchestrator.selection.study import Study

# Step (or cost) → the values of the seeds. A step with an empty list breaks the line.
Curve = dict[float, list[float]]

Z = 1.96  # of a two-sided 95 % normal interval


@dataclass(frozen=True)
class ScoredSetting:
    """One point of a method's grid in one setup; its units differ in the seed only.

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

    @property
    def warmup(self) -> int | None:
        """The steps after which the method is vanilla; None if it never is."""
        fades = METHODS[self.method].fades if self.method in METHODS else None
        return None if fades is None else int(self.knobs[fades])

    def series(self, curve: Mapping[float, list[float]]) -> Series:
        """The line of some values by step."""
        return Series(self.method, self.knobs, dict(sorted(curve.items())), self.from_supervised)


@dataclass(frozen=True)
class Series:
    """A line of a figure: a method's setting and its values over optimizer steps, or a cost."""

    method: str
    knobs: dict[str, Any]
    curve: Curve
    from_supervised: bool = False

    @property
    def has_values(self) -> bool:
        """Whether some step has the quantity."""
        return any(self.curve.values())

    @property
    def seeds(self) -> int:
        """How many seeds the step with the most of them has."""
        return max(map(len, self.curve.values()), default=0)


@dataclass(frozen=True)
class SeedMean:
    """A mean over seeds in [0, 1] and its uncertainty.

    `spread` is the standard deviation (n − 1) of several seeds, and None of one seed. `margin` is
    half of the 95 % interval over the problems, and None where all problems score the same.
    """

    mean: float
    spread: float | None = None
    margin: float | None = None

    @property
    def reach(self) -> float | None:
        """Length of an error bar on either side."""
        return self.margin if self.spread is None else self.spread


@dataclass(frozen=True)
class MethodGrid:
    """The scores of one method's grid as lines over the knob `x`.

    `fixed` has the knobs with a single value. Each setting of the other knobs has a line: `lines`
    maps it to the scores by the value of `x`, None where one is missing. A method of a single
    setting has no `x`, and its score lies at 0.
    """

    method: str
    x: str | None
    fixed: dict[str, Any]
    lines: dict[tuple[tuple[str, Any], ...], dict[float, SeedMean | None]]

    @property
    def scored(self) -> bool:
        return any(any(line.values()) for line in self.lines.values())


def read_settings(study: Study, setup: str) -> list[ScoredSetting]:
    """The settings of a setup in the grid's order, with the scores evaluated so far."""
    ids = list(study.evaluation_ids(setup).values())
    trials = study.with_units([unit for unit in study.units_of(setup) if unit.is_trial])
    settings = []
    for family in trials.families():
        for units in family:
            scores: Curve = defaultdict(list)
            for unit in units:
                for step, score in selection.trajectory(study.reader(unit), ids).items():
                    scores[unit.first_batch + step].append(float(score))
            scores = dict(sorted(scores.items()))
            first = units[0]
            settings.append(ScoredSetting(first.method or "", first.knobs, tuple(units), scores))
    return settings


def best_settings(
    settings: Sequence[ScoredSetting], chosen: Iterable[Selected]
) -> dict[str, ScoredSetting]:
    """Method → the setting of its selected checkpoint.

    Before a selection, only a method with a single setting has a best one. `chosen` are the
    selected checkpoints of the same setup.
    """
    families: dict[str, list[ScoredSetting]] = defaultdict(list)
    for setting in settings:
        families[setting.method].append(setting)
    knobs = {selected.best.method: selected.best.knobs for selected in chosen}
    best = {}
    for method, family in families.items():
        for setting in family:
            if setting.knobs == knobs.get(method) or len(family) == 1:
                best[method] = setting
    return best


def selected_settings(
    study: Study, setup: str, chosen: Iterable[Selected]
) -> dict[str, ScoredSetting]:
    """`best_settings` of one setup; `chosen` may have the checkpoints of all setups."""
    own = [selected for selected in chosen if selected.setup == setup]
    return best_settings(read_settings(study, setup), own)


def score_series(setting: ScoredSetting, untrained: float | None) -> Series:
    """Mean pass@1 over steps; a run that starts from the untrained student begins at its score."""
    curve = dict(setting.scores)
    if curve and untrained is not None and not setting.from_supervised:
        curve.setdefault(0, [untrained])
    return setting.series(curve)


def metric_series(study: Study, setting: ScoredSetting, keys: Sequence[str]) -> dict[str, Series]:
    """Columns of `metrics.jsonl` over steps; a column that no row has is left out."""
    curves: dict[str, Curve] = {key: defaultdict(list) for key in keys}
    for unit in setting.units:
        for row in study.reader(unit).metrics():
            for key in keys:
                # A step without the quantity keeps an empty list, at which the line breaks.
                values = curves[key][unit.first_batch + row["step"]]
                if row.get(key) is not None:
                    values.append(row[key])
    return {key: setting.series(curve) for key, curve in curves.items() if any(curve.values())}


def best_over_training(candidates: Iterable[Candidate], knobs: dict[str, Any]) -> SeedMean | None:
    """The highest mean pass@1 of one setting over the checkpoints that selection may take."""
    best = None
    for candidate in candidates:
        if candidate.knobs == knobs and (best is None or candidate.mean > best.mean):
            best = candidate
    return best and SeedMean(float(best.mean), best.spread, problem_margin(best))


def problem_margin(checkpoint: Candidate) -> float | None:
    """Half of a checkpoint's 95 % interval over the problems, for the seeds that were run.

    The interval is normal: 1.96 √(Σ s²/P) ÷ B, with a sum over the B benchmarks and the standard
    deviation s of the scores of P problems. s contains the noise of sampling responses (see
    `intervals`). None where all problems of all benchmarks score the same.
    """
    variance = 0.0
    for seeds in checkpoint.counts.values():
        # Seeds are averaged first, so that only the problems vary.
        scores = np.mean([seed.correct / seed.n for seed in seeds], axis=0)
        if len(scores) > 1:
            variance += float(np.var(scores, ddof=1)) / len(scores)
    return Z * sqrt(variance) / len(checkpoint.counts) if variance > 0 else None


def method_grid(settings: Sequence[ScoredSetting], candidates: Sequence[Candidate]) -> MethodGrid:
    """Best-over-training scores over the grid of one method; there is at least one setting."""
    method = settings[0].method
    values: dict[str, list[Any]] = {}  # of each knob, ascending
    for knob in settings[0].knobs:
        values[knob] = sorted({setting.knobs[knob] for setting in settings})
    fixed = {knob: own[0] for knob, own in values.items() if len(own) == 1}
    varied = [knob for knob in values if knob not in fixed]
    # METHODS names the knob that the paper puts on the axis. If that knob has one value only, the
    # knob with the most values takes its place.
    x = METHODS[method].axis if method in METHODS else None
    if x not in varied:
        x = max(varied, key=lambda knob: len(values[knob]), default=None)
    lines: dict[tuple[tuple[str, Any], ...], dict[float, SeedMean | None]] = defaultdict(dict)
    for setting in sorted(settings, key=lambda setting: [setting.knobs[knob] for knob in values]):
        key = tuple((knob, setting.knobs[knob]) for knob in varied if knob != x)
        lines[key][setting.knobs[x] if x else 0] = best_over_training(candidates, setting.knobs)
    return MethodGrid(method, x, fixed, dict(lines))


def base_scores(study: Study) -> dict[str, float]:
    """Mean pass@1 of each setup's untrained student."""
    scores = {}
    for unit in study.units:
        if unit.is_untrained:
            ids = list(study.evaluation_ids(unit.setup).values())
            score = selection.mean_score(study.reader(unit), ids, 0)
            if score is not None:
                scores[unit.setup] = score
    return scores


def seed_scores(study: Study, setting: ScoredSetting) -> dict[int, dict[int, float]]:
    """Seed → step → mean pass@1 in [0, 1] of one setting's runs."""
    scores = {}
    for unit in setting.units:
        ids = list(study.evaluation_ids(unit.setup).values())
        trajectory = selection.trajectory(study.reader(unit), ids)
        scores[unit.seed] = {unit.first_batch + at: float(one) for at, one in trajectory.items()}
    return scores


def early_means(logged: Mapping[str, Series], steps: int) -> dict[str, float]:
    """Mean of each quantity over the values of the first `steps` of a setting's runs."""
    means = {}
    for key, series in logged.items():
        first = min(series.curve)
        values: list[float] = []
        for step, of_seeds in series.curve.items():
            if step < first + steps:
                values += of_seeds
        if values:
            means[key] = fmean(values)
    return means


def last_means(logged: Mapping[str, Series]) -> dict[str, float]:
    """Mean over seeds of each quantity that the last logged step has."""
    last = {key: series.curve[max(series.curve)] for key, series in logged.items()}
    return {key: fmean(values) for key, values in last.items() if values}
