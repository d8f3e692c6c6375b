"""Schedules of methods over the steps of a run, as pure functions of the step.

That of the learning rate is `engines.common.learning.learning_rate`.
"""

from __future__ import annotations


def annealed(start: float, horizon: int, step: int) -> float:
    """A budget or weight that falls linearly to zero: start·(1 − k/K) for k < K, then exactly 0.

    The KL budget ε_k of the trust region is one (paper, Section 4.3).
    """
    return start * (1 - step / horizon) if step < horizon else 0.0


def annealed_temperature(tau0: float, horizon: int, step: int) -> float:
    """τ_k = τ0 + (1 − τ0)·k/E for k < E, then exactly 1."""
    return tau0 + (1 - tau0) * step / horizon if step < horizon else 1.0


def annealed_veto(beta_start: float, total_steps: int, step: int) -> float:
    """β_k = β_start(1 − k/N) over the whole run (Veto, 2601.07155)."""
    return beta_start * (1 - step / total_steps)


def growing_limit(start: int, horizon: int, step: int, longest: int) -> int:
    """Tokens of a response: `start` at step 0, growing linearly to `longest` over `horizon` steps."""
    if step >= horizon:
        return longest
    return start + (longest - start) * step // horizon
