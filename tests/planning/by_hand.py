"""Response lengths summed token by token, to check the closed forms of `planning.lengths` against."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

PROMPT = 150


@dataclass(frozen=True)
class ByHand:
    """Shares of responses of each whole length up to a limit; finished ones follow a Gamma law of
    shape 2.
    """

    shares: tuple[float, ...]  # by length, the last one that of the limit

    @property
    def tokens(self) -> float:
        return sum(length * share for length, share in enumerate(self.shares))

    @property
    def reads(self) -> float:
        return sum(
            (PROMPT * length + length * length / 2) * share
            for length, share in enumerate(self.shares)
        )

    @property
    def truncated(self) -> float:
        return self.shares[-1]

    def longest(self, responses: int) -> float:
        shorter = expected = 0.0
        for share in self.shares:
            expected += 1 - shorter**responses
            shorter += share
        return expected - 1


@cache
def by_hand(finished: float, endless: float, limit: int) -> ByHand:
    """Of responses that finish after `finished` tokens on average, but for a share `endless`, under
    a limit.
    """

    def density(length: float) -> float:
        return 4 * length / finished**2 * math.exp(-2 * length / finished)

    shares = [(1 - endless) * density(length) for length in range(limit)]
    return ByHand((*shares, 1 - sum(shares)))
