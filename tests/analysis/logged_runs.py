"""Logged steps of made-up runs, for the figures and the report."""

from __future__ import annotations

from typing import Any

from orchestrator.records.writer import RunWriter


def log_steps(run: RunWriter, steps: int, blended: int = 0, **extra: float) -> None:
    """Commit steps with a wrong and a right rollout each.

    The first `blended` of them log the quantities of a behavior that blends; all log the `extra`
    columns.
    """
    rows, rollouts = list[dict[str, Any]](), list[dict[str, Any]]()
    for step in range(steps):
        row = {"step": step, "teacher_entropy": 0.1, "reward": 0.5, "response_length": 20.0 + step}
        own = {"beta": 0.1 * step, "acceptance": 0.9, "teacher_positions": 150}
        rows.append(row | extra | (own if step < blended else {}))
        for reward in (0.0, 1.0):
            scores = {"reward": reward, "log_ratio": reward - 1, "teacher_log_prob": -0.5}
            rollouts.append({"step": step, "length": 9, **scores})
    run.append("metrics.jsonl", rows)
    run.append("rollouts.jsonl", rollouts)
    run.commit(steps)
