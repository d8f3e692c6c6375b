"""The teacher's support of a run's first rollouts, and how well it separates correct ones.

The numbers of the figure `tradeoff` are pooled from `rollouts.jsonl`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

import numpy as np

from analysis.facts.curves import ScoredSetting, Z
from orchestrator.experiment.methods import METHODS, REFERENCE
from orchestrator.records.log import Floats, auroc
from orchestrator.records.rundir import ROLLOUTS, RunReader
from orchestrator.selection.study import Study

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


def budgets() -> dict[str, str | None]:
    """The methods that have points, with the knob of their KL budget; the reference has none."""
    return {REFERENCE: None} | {method: row.budget for method, row in METHODS.items() if row.budget}


def support_points(study: Study, settings: Iterable[ScoredSetting]) -> list[SupportPoint]:
    """A point for each run whose first steps are complete.

    Only the reference and methods with a KL budget have points.
    """
    points = []
    for setting in settings:
        if setting.method not in budgets():
            continue
        for unit in setting.units:
            run = study.reader(unit)
            if run.next_step < min(POOLED_STEPS, unit.steps):
                continue
            pooled = run.derived(ROLLOUTS, f"support of {POOLED_STEPS} steps", partial(_pool, run))
            if pooled is not None:
                budget = budgets()[setting.method]
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
