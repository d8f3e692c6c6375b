"""How long responses get: some finish after a while, the others run on until they are cut.

Decoding reads the whole context for each token, so its cost grows with the square of a response's
length, and the few responses that never finish cost most of it. A mean length would hide them.
Responses that finish follow a Gamma law of shape 2 with mean m, whose mean square is 1.5 m². A
share q runs to the limit L. With prompts of p tokens, one response has on average

    tokens      (1 − q)·m + q·L
    reads       (1 − q)·(p·m + 0.75 m²) + q·(p·L + L²/2)        contexts of all its tokens, in tokens
    context c̄   reads ÷ tokens

Nothing here was measured by us. `LAWS` are the m and q at which, for L = 8,192 and p = 150, the
responses that run to the limit make up 32 % of the tokens and 73 % of the reads in the low
scenario, and 53 % and 78 % in the high one. The middle scenario lies between them. What finished
run directories hold replaces them (`planning.measured`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from orchestrator.planning.ranges import Range, Scenario

PROMPT_TOKENS = 150.0  # problem, system message and chat template; the problems of the benchmarks alone have 60 to 100


@dataclass(frozen=True)
class Lengths:
    """Responses under a `limit` of tokens: a share `truncated` reaches it, the others have
    `finished` on average.
    """

    finished: float
    truncated: float
    limit: int
    prompt: float

    @property
    def tokens(self) -> float:
        """Tokens of a response, on average."""
        return (1 - self.truncated) * self.finished + self.truncated * self.limit

    @property
    def reads(self) -> float:
        """Tokens of context that are read for all tokens of a response, on average."""
        # Under a limit that cuts most responses the finished ones are nearly as long as it: ½
        # E[length²] ≤ ½ m·L.
        half_square = min(0.75 * self.finished**2, self.finished * self.limit / 2)
        finished = self.prompt * self.finished + half_square
        truncated = self.prompt * self.limit + self.limit**2 / 2
        return (1 - self.truncated) * finished + self.truncated * truncated

    @property
    def context(self) -> float:
        """c̄: tokens of context that are read for one token, on average."""
        return self.reads / self.tokens

    def longest(self, responses: int) -> float:
        """Tokens of the longest of so many responses, on average: how long a batch runs that waits
        for its last.
        """
        lengths = np.linspace(0.0, self.limit, 257)
        shorter = (
            (1 - self.truncated)
            * _gamma_share(lengths, self.finished)
            / _gamma_share(self.limit, self.finished)
        )
        return float(np.trapezoid(1 - shorter**responses, lengths))

    def spread(self, responses: int) -> list[int]:
        """Lengths of so many responses, ascending, that stand for all: quantiles in equal steps."""
        lengths = np.linspace(0.0, self.limit, 257)
        shorter = (
            (1 - self.truncated)
            * _gamma_share(lengths, self.finished)
            / _gamma_share(self.limit, self.finished)
        )
        shares = (np.arange(responses) + 0.5) / responses
        found = np.interp(
            shares, shorter, lengths
        )  # those beyond the share that finishes have the limit
        return [max(1, round(length)) for length in found.tolist()]


@dataclass(frozen=True)
class LengthLaw:
    """Lengths without a limit: a share `endless` never finishes, the others have `finished` tokens
    on average.
    """

    finished: float
    endless: float

    def under(self, limit: int, prompt: float) -> Lengths:
        """The distribution under a limit, which also cuts responses that would have finished later."""
        x = 2 * limit / self.finished
        in_time = float(_gamma_share(limit, self.finished))
        # ∫₀ᴸ l·f(l) dl = m·(1 − e⁻ˣ(1 + x + x²/2)) for the density f of the Gamma law.
        tokens_in_time = self.finished * (1 - math.exp(-x) * (1 + x + x * x / 2))
        return Lengths(tokens_in_time / in_time, 1 - (1 - self.endless) * in_time, limit, prompt)


LAWS: dict[Scenario, LengthLaw] = {
    "low": LengthLaw(800, 0.045),
    "mid": LengthLaw(1200, 0.10),
    "high": LengthLaw(1600, 0.18),
}
FINISHED = Range.of(lambda scenario: LAWS[scenario].finished)
ENDLESS = Range.of(lambda scenario: LAWS[scenario].endless)


def _gamma_share(length: np.ndarray | float, mean: float) -> np.ndarray:
    """Share of a Gamma law of shape 2 that is not longer than `length`."""
    x = 2 * np.asarray(length) / mean
    return 1 - (1 + x) * np.exp(-x)
