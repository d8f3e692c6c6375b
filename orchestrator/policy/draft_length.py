"""Chooses γ, the number of tokens that the student drafts before the teacher judges them.

γ changes the time, never the result. Two functions call `draft_length` here and cap its answer:

- `ModelStore.draft_length` (`engines.common.store`) for the torch engine, on a GPU by the memory of
  a round (`engines.budget.longest_round`);
- `_draft_length` of `engines.sglang.blending`, by `engines.catalog.LONGEST_ROUND`, 16. The memory of
  a round then limits the requests that run at once (`engines.budget.fitting_round`).

Both pass the behavior's `acceptance_guess` (`policy.spec`), the teacher's parameters ÷ the
student's as the ratio of costs, and the rows that are decoded at once. `runtime.draft_length` takes
the place of the choice, under the caps.
"""

from __future__ import annotations

LONGEST_DRAFT = 32
# Positions of a pass at which arithmetic takes as long as reading the weights, in bfloat16:
# FLOP/s ÷ bytes/s of an H100.
BALANCED_ROWS = 300


def draft_length(acceptance_rate: float, cost_ratio: float, arithmetic: float = 0.0) -> int:
    """Return the γ that emits the most tokens per unit of time.

    Each draft survives with probability a = `acceptance_rate` in [0, 1]. A round of γ student steps
    and one teacher pass over γ positions emits 1 + a + … + a^(γ−1) tokens on average. The teacher's
    cost is `cost_ratio` times the student's.

    A pass costs one read of its model's weights, and each further position of the batch adds
    `arithmetic` times that (see `arithmetic_cost`).
    """
    speeds: dict[int, float] = {}
    for length in range(1, LONGEST_DRAFT + 1):
        # Draft number i is emitted if the i before it survive; the first always is, or its
        # replacement.
        emitted = sum(acceptance_rate**position for position in range(length))
        student_passes = length * (1 + arithmetic)
        teacher_pass = cost_ratio * (1 + length * arithmetic)
        speeds[length] = emitted / (student_passes + teacher_pass)
    return max(speeds, key=lambda length: (speeds[length], -length))


def arithmetic_cost(rows: int, on_gpu: bool) -> float:
    """Cost of one position of each of `rows` sequences, in reads of the weights.

    On GPUs it is rows ÷ BALANCED_ROWS. On CPUs it is 0: small models spend their time on calls.
    """
    return rows / BALANCED_ROWS if on_gpu else 0.0


def least_acceptance(epsilon: float) -> float:
    """1 − √(ε/2): Pinsker's bound on the acceptance inside a KL ball of radius ε."""
    return max(0.0, 1 - (epsilon / 2) ** 0.5)
