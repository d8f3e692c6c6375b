"""Run directories → the plain numbers that the figures draw. Missing numbers are left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from math import sqrt
from statistics import fmean
from typing import Any

import numpy as np

from analysis.facts.candidates import Candidate, Selected, select_settings
from analysis.labels import setup_title
from orchestrator.experiment.methods import METHODS, REFERENCE, behavior_at
from orchestrator.experiment.units import Unit
from orchestrator.records.log import Floats, auroc
from orchestrator.records.rundir import ROLLOUTS, RunReader
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
class WantedSetting:
    """A method, and the values of some of its knobs: one setting, or all that have these values."""

    method: str
    knobs: Mapping[str, Any]

    def matches(self, setting: ScoredSetting) -> bool:
        """Whether a setting is of this method and has these values."""
        return setting.method == self.method and self.knobs.items() <= setting.knobs.items()


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

    def means(self, factor: float = 1.0) -> dict[float, float]:
        """The mean over seeds at each step that has a value, times a factor."""
        return {step: factor * fmean(values) for step, values in self.curve.items() if values}


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
    setting has no `x`, and its score lies at 0. The points that a search `drew` form no lines.
    """

    method: str
    x: str | None
    fixed: dict[str, Any]
    lines: dict[tuple[tuple[str, Any], ...], dict[float, SeedMean | None]]
    drawn: bool = False

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


@dataclass(frozen=True)
class SetupRuns:
    """The runs of one setup that its curves and figures show, with each method's `best` setting.

    `chosen` are its selected checkpoints. `untrained` is the untrained student's mean pass@1 in
    [0, 1], None before it is evaluated.
    """

    name: str
    title: str
    study: Study
    settings: list[ScoredSetting]
    chosen: list[Selected]
    best: dict[str, ScoredSetting]
    untrained: float | None

    def candidates(self, method: str) -> tuple[Candidate, ...]:
        """The checkpoints that a method's best one was selected from."""
        return next((each.pool for each in self.chosen if each.best.method == method), ())

    def best_of(self, methods: Sequence[str]) -> list[ScoredSetting]:
        return [self.best[method] for method in methods if method in self.best]

    def shown(self, wanted: Sequence[WantedSetting]) -> list[ScoredSetting]:
        """The best setting of each method; of a method with `wanted` settings, these in its place.

        In the grid's order.
        """
        methods = {each.method for each in wanted}
        return [
            setting
            for setting in self.settings
            if any(each.matches(setting) for each in wanted)
            or (setting.method not in methods and setting is self.best.get(setting.method))
        ]


def setup_runs(study: Study, selected: Iterable[Selected]) -> list[SetupRuns]:
    """The runs of each setup; `selected` are the checkpoints of all setups."""
    untrained, selected, found = base_scores(study), list(selected), []
    for name in study.experiment.setups:
        settings = read_settings(study, name)
        own = [each for each in selected if each.setup == name]
        title, best = setup_title(name, study.experiment.setups), best_settings(settings, own)
        found.append(SetupRuns(name, title, study, settings, own, best, untrained.get(name)))
    return found


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


def distance_series(study: Study, setting: ScoredSetting) -> tuple[Series, Series]:
    """KL(p‖q) on held-out prompts in nats: over steps, and at the last one over positions.

    A bucket of positions stands at its last one. A run without a measurement adds nothing.
    """
    steps: Curve = defaultdict(list)
    positions: Curve = defaultdict(list)
    for unit in setting.units:
        rows = study.reader(unit).held_out()
        for row in rows:
            if row.kl is not None:
                steps[unit.first_batch + row.step].append(row.kl)
        for bucket in rows[-1].positions if rows else ():
            if bucket["kl"] is not None:
                positions[bucket["last"]].append(bucket["kl"])
    return setting.series(steps), setting.series(positions)


def budgets(unit: Unit) -> dict[int, float]:
    """Step → ε of the steps whose behavior has such a budget, by the method's schedule."""
    found = {}
    for step in range(unit.steps):
        epsilon = getattr(behavior_at(unit.method, unit.knobs, step), "epsilon", None)
        if epsilon is not None:
            found[unit.first_batch + step] = float(epsilon)
    return found


def sequence_budgets(unit: Unit, rows: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """Step → ε·T in nats: the budget of a token times the mean length of the step's responses.

    In a trust region KL(μ‖p) ≤ ε at each prefix, and the KL of a response is the expected sum of
    these, so that ε·T bounds the logged `sequence_kl`; a batch budget has ε as a mean. `rows` are
    those of `metrics.jsonl`; steps count from the first batch of prompts.
    """
    of_token, found = budgets(unit), {}
    for row in rows:
        step, length = unit.first_batch + row["step"], row.get("response_length")
        if step in of_token and length is not None:
            found[step] = of_token[step] * length
    return found


def budget_series(study: Study, setting: ScoredSetting) -> Series:
    """ε·T over the steps of a setting that has such a budget; see `sequence_budgets`."""
    curve: Curve = defaultdict(list)
    for unit in setting.units:
        for step, budget in sequence_budgets(unit, study.reader(unit).metrics()).items():
            curve[step].append(budget)
    return setting.series(curve)


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


def drawn_grids(data: SetupRuns, family: Sequence[ScoredSetting]) -> list[MethodGrid]:
    """The points that a search drew of a method, over each number that varies; stopped ones, too."""
    method, pools = family[0].method, list[Candidate]()
    for each in select_settings(data.study):
        if each.setup == data.name and each.best.method == method:
            pools += each.pool
    varied = {knob: {setting.knobs[knob] for setting in family} for knob in family[0].knobs}
    grids: list[MethodGrid] = []
    for knob, values in varied.items():
        if len(values) > 1 and all(type(value) in (int, float) for value in values):
            grids.append(replace(method_grid(family, pools, knob), fixed={}, drawn=True))
    return grids


def method_grid(
    settings: Sequence[ScoredSetting], candidates: Sequence[Candidate], x: str | None = None
) -> MethodGrid:
    """Best-over-training scores over the grid of one method; there is at least one setting.

    Without `x` the knob that METHODS names for the paper's axis is on it, or if that has one value
    only, the knob with the most values.
    """
    method = settings[0].method
    values: dict[str, list[Any]] = {}  # of each knob, ascending
    for knob in settings[0].knobs:
        values[knob] = sorted({setting.knobs[knob] for setting in settings})
    fixed = {knob: own[0] for knob, own in values.items() if len(own) == 1}
    varied = [knob for knob in values if knob not in fixed]
    if x is None and method in METHODS:
        x = METHODS[method].axis
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


# --- the teacher's support of a run's first rollouts, and how well it separates correct ones ---

POOLED_STEPS = 25  # paper, "Additional Warmup Diagnostics"
SCORED = ("teacher_log_prob", "log_ratio", "reward")  # a rollout may lack any of them


@dataclass(frozen=True)
class SupportPoint:
    """Rollouts of a run's first steps, pooled.

    `log_prob` is the mean teacher log-prob of a sampled token (nats); `auroc` the probability that
    a correct rollout has a higher mean_t(log q − log p) than an incorrect one; `reward` the share
    of correct rollouts. The margins are half of the 95 % intervals over the pooled steps, None of
    fewer than two.
    """

    method: str
    epsilon: float | None  # None: pure student rollouts
    warmup: int | None  # steps after which the method has faded; None: it never does
    seed: int
    log_prob: float
    auroc: float
    reward: float
    log_prob_margin: float | None = None
    auroc_margin: float | None = None


def budget_knobs() -> dict[str, str | None]:
    """The methods that have points, with the knob of their KL budget; the reference has none."""
    return {REFERENCE: None} | {method: row.budget for method, row in METHODS.items() if row.budget}


def support_points(study: Study, settings: Iterable[ScoredSetting]) -> list[SupportPoint]:
    """A point for each run whose first steps are complete.

    Only the reference and methods with a KL budget have points.
    """
    points = []
    for setting in settings:
        if setting.method not in budget_knobs():
            continue
        for unit in setting.units:
            run = study.reader(unit)
            if run.next_step < min(POOLED_STEPS, unit.steps):
                continue
            pooled = run.derived(ROLLOUTS, f"support of {POOLED_STEPS} steps", partial(_pool, run))
            if pooled is not None:
                budget = budget_knobs()[setting.method]
                epsilon = setting.knobs[budget] if budget else None
                point = SupportPoint(setting.method, epsilon, setting.warmup, unit.seed, *pooled)
                points.append(point)
    return points


def _pool(run: RunReader) -> tuple[float, float, float, float | None, float | None] | None:
    """The numbers of a run's first rollouts, margins last; None where the AUROC is missing."""
    rows = []  # step, length, then SCORED
    for row in takewhile(lambda row: row["step"] < POOLED_STEPS, run.rollouts()):
        values = [row[name] for name in ("step", "length", *SCORED)]
        if None not in values:
            rows.append(values)
    rollouts = np.array(rows, dtype=float).reshape(-1, 2 + len(SCORED))
    separability = _separability(rollouts)
    if separability is None:
        return None
    reward = float(rollouts[:, 4].mean())
    steps = np.unique(rollouts[:, 0])
    if len(steps) < 2:
        return _log_prob(rollouts), separability, reward, None, None
    log_probs, separabilities = [], []  # each with one of the steps left out
    for step in steps:
        others = rollouts[rollouts[:, 0] != step]
        log_probs.append(_log_prob(others))
        separabilities.append(_separability(others))
    margins = jackknife_margin(log_probs), jackknife_margin(separabilities)
    return _log_prob(rollouts), separability, reward, *margins


def jackknife_margin(left_out: Sequence[float | None]) -> float | None:
    """Half of a 95 % interval from m values, each with one of m steps left out.

    None where a value is missing. The margin is 1.96 √((m − 1)/m Σ (θ₋ᵢ − θ̄)²) (Efron and
    Tibshirani, "An Introduction to the Bootstrap", §11.2). Steps are left out and not rollouts,
    since the rollouts of a step share their policy and their prompts.
    """
    values = [value for value in left_out if value is not None]
    if len(values) < 2 or len(values) < len(left_out):
        return None
    return Z * float(np.sqrt((len(values) - 1) * np.var(values)))


def _log_prob(rollouts: Floats) -> float:
    """Mean over tokens: each rollout weighs as much as its length."""
    return float(np.average(rollouts[:, 2], weights=rollouts[:, 1]))


def _separability(rollouts: Floats) -> float | None:
    """AUROC of the mean log-ratio for the reward; None unless both rewards occur."""
    return auroc(rollouts[:, 3], rollouts[:, 4])
