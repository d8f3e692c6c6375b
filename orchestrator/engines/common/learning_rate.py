"""The learning rate of each update: a cosine warmup, then constant or falling."""

from __future__ import annotations

import math

from orchestrator.config import Optimizer


def learning_rate(optimizer: Optimizer, step: int, steps: int) -> float:
    """The rate of update k = `step` of N = `steps`, with a warmup of W updates.

    lr·½(1 − cos(π(k+1)/W)) for k < W; then lr, or lr·(N − k)/(N − W) under `decay: linear`. The
    last update k = N − 1 thus keeps a rate above zero.
    """
    warmup = optimizer.warmup_steps
    if step < warmup:
        return optimizer.lr * 0.5 * (1 - math.cos(math.pi * (step + 1) / warmup))
    if optimizer.decay == "linear":
        return optimizer.lr * (steps - step) / (steps - warmup)
    return optimizer.lr
