"""The support–reward trade-off of early rollouts, from `rollouts.jsonl`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from analysis.figures.curves import ScoredSetting, Z
from orchestrator.experiment.methods import METHODS, REFERENCE
from orchestrator.experiment.units import Unit
from orchestrator.records.rundir import ROLLOUTS, RunReader
from orchestrator.records.statistics import Floats, auroc
from orchestrator.selection.study import Study

POOLED_STEPS = 25  # paper, "Additional Warmup Diagnostics"


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


def budgets() -> dict[str, str | None]:
    """The methods that are shown, with the knob of their KL budget: the reference has none, and
    others no point.
    """
    return {REFERENCE: None} | {method: row.budget for method, row in METHODS.items() if row.budget}


def support_points(study: Study, settings: Iterable[ScoredSetting]) -> list[SupportPoint]:
    """A point for each run whose first steps are complete, of the reference and of methods with a
    KL budget.
    """
    points = []
    for setting in settings:
        for unit in setting.units if setting.method in budgets() else ():
            point = _point(study, setting, unit)
            if point is not None:
                points.append(point)
    return points


def _point(study: Study, setting: ScoredSetting, unit: Unit) -> SupportPoint | None:
    run = study.reader(unit)
    if run.next_step < min(POOLED_STEPS, unit.steps):
        return None
    pooled = run.derived(ROLLOUTS, f"support of {POOLED_STEPS} steps", lambda: _pool(run))
    if pooled is None:
        return None
    budget = budgets()[setting.method]
    epsilon = setting.knobs[budget] if budget else None
    return SupportPoint(setting.method, epsilon, setting.warmup, unit.seed, *pooled)


def _pool(run: RunReader) -> tuple[float, float, float, float | None, float | None] | None:
    """The point of a run's first rollouts, its margins last; None where the AUROC is missing."""
    rows = [
        row
        for row in takewhile(lambda row: row["step"] < POOLED_STEPS, run.rollouts())
        if _is_scored(row)
    ]
    names = ("step", "length", "teacher_log_prob", "log_ratio", "reward")
    columns = {name: np.array([row[name] for row in rows], dtype=float) for name in names}
    separability = _separability(columns)
    if separability is None:
        return None
    reward, steps = float(columns["reward"].mean()), np.unique(columns["step"])
    if len(steps) < 2:
        return _log_prob(columns), separability, reward, None, None
    log_probs, separabilities = [], []  # each with one of the steps left out
    for step in steps:
        kept = columns["step"] != step
        others = {name: column[kept] for name, column in columns.items()}
        log_probs.append(_log_prob(others))
        separabilities.append(_separability(others))
    return (
        _log_prob(columns),
        separability,
        reward,
        jackknife_margin(log_probs),
        jackknife_margin(separabilities),
    )


def jackknife_margin(left_out: Sequence[float | None]) -> float | None:
    """Half of a 95 % interval from the values that leaving out one of m steps gives; None where one
    cannot be had.

    1.96 √((m − 1)/m Σ (θ₋ᵢ − θ̄)²) (Efron and Tibshirani, "An Introduction to the Bootstrap", §11.2). Steps are left out
    and not rollouts, since the rollouts of a step share their policy and their prompts.
    """
    values = [value for value in left_out if value is not None]
    if len(values) < 2 or len(values) < len(left_out):
        return None
    return Z * float(np.sqrt((len(values) - 1) * np.var(values)))


def _log_prob(columns: Mapping[str, Floats]) -> float:
    """Mean over tokens."""
    return float((columns["length"] * columns["teacher_log_prob"]).sum() / columns["length"].sum())


def _separability(columns: Mapping[str, Floats]) -> float | None:
    return auroc(columns["log_ratio"], columns["reward"])


def _is_scored(row: dict[str, Any]) -> bool:
    return None not in (row["reward"], row["log_ratio"], row["teacher_log_prob"])
