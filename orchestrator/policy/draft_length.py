"""How many tokens the student drafts before the teacher judges them: γ. It decides the time, never the result.

An engine asks with a behavior's `acceptance_guess` and the costs of its models (`engines.torch.store`,
`engines.sglang.blending`); `runtime.draft_length` overrides it.
"""

from __future__ import annotations

LONGEST_DRAFT = 32
# Positions whose arithmetic takes as long as reading the weights, in bfloat16: FLOP/s ÷ bytes/s of an H100.
BALANCED_ROWS = 300


def draft_length(acceptance_rate: float, cost_ratio: float, arithmetic: float = 0.0) -> int:
    """γ that emits the most tokens for the time it takes, when each draft survives with `acceptance_rate` in [0, 1].

    A round of γ student steps and one teacher pass over γ positions emits on average 1 + a + … + a^(γ−1) tokens. A
    pass costs what reading its model's weights costs, the teacher's `cost_ratio` times the student's, and for each
    position of all rows `arithmetic` times that.
    """
    speeds = {}
    for length in range(1, LONGEST_DRAFT + 1):
        emitted = sum(acceptance_rate**position for position in range(length))
        student_passes = length * (1 + arithmetic)
        teacher_pass = cost_ratio * (1 + length * arithmetic)
        speeds[length] = emitted / (student_passes + teacher_pass)
    return max(speeds, key=lambda length: (speeds[length], -length))


def least_acceptance(epsilon: float) -> float:
    """1 − √(ε/2): what Pinsker's inequality guarantees inside a KL ball of radius ε."""
    return max(0.0, 1 - (epsilon / 2) ** 0.5)
