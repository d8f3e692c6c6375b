"""How long responses get: some finish after a while, and the others run on until they are cut.

Decoding reads the whole context for each token, so its cost grows with the square of a response's
length, and the few responses that never finish cost most of it. A mean length would hide them.
Responses that finish follow a Gamma law of shape 2 with mean m, whose mean square is 1.5 m². A
share q runs to the limit L. With prompts of p tokens, one response has on average

    tokens      (1 − q)·m + q·L
    reads       (1 − q)·(p·m + 0.75 m²) + q·(p·L + L²/2)    contexts of all its tokens, in tokens
    context c̄   reads ÷ tokens

None of these numbers was measured by us. `LAWS` are the m and q at which, for L = 8,192 and
p = 150, responses that run to the limit make up 32 % of the tokens and 73 % of the reads in the low
scenario, and 53 % and 78 % in the high one. The middle scenario lies between them. Lengths in
finished run directories replace them (`measured_lengths`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from orchestrator.experiment.methods import response_limit
from orchestrator.experiment.units import Unit
from orchestrator.planning.numbers import Range, Scenario
from orchestrator.records.files import Damaged
from orchestrator.selection.study import Study

# Of problem, system message and chat template; the problems of the benchmarks have 60 to 100.
PROMPT_TOKENS = 150.0
TRAINING_LENGTHS = "training"  # where lengths go by benchmark, the key of training responses


@dataclass(frozen=True)
class Lengths:
    """Responses under a `limit` of tokens: a share `truncated` has as many, the others `finished`.

    `finished` is a mean; `prompt` are the tokens before each response.
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
        # Under a limit that cuts most responses the finished ones are nearly as long as the limit:
        # ½ E[length²] ≤ ½ m·L.
        half_square = min(0.75 * self.finished**2, self.finished * self.limit / 2)
        finished = self.prompt * self.finished + half_square
        truncated = self.prompt * self.limit + self.limit**2 / 2
        return (1 - self.truncated) * finished + self.truncated * truncated

    @property
    def context(self) -> float:
        """c̄: tokens of context that are read for one token, on average."""
        return self.reads / self.tokens

    def under(self, limit: int) -> Lengths:
        """The same responses under a lower limit, which cuts some that finish under this one."""
        if limit >= self.limit:
            return self
        in_time, mean = _in_time(limit, self.finished)
        finished = (1 - self.truncated) * in_time / float(_gamma_share(self.limit, self.finished))
        return Lengths(mean, 1 - finished, limit, self.prompt)

    def longest(self, responses: int) -> float:
        """Mean tokens of the longest of so many responses, for which a static batch runs."""
        lengths, shorter = self._shares()
        return float(np.trapezoid(1 - shorter**responses, lengths))

    def spread(self, responses: int) -> list[int]:
        """Lengths of so many responses, ascending, that stand for all: quantiles in equal steps."""
        lengths, shorter = self._shares()
        shares = (np.arange(responses) + 0.5) / responses
        # Responses beyond the share that finishes have the limit.
        quantiles = np.interp(shares, shorter, lengths)
        return [max(1, round(length)) for length in quantiles.tolist()]

    def _shares(self) -> tuple[np.ndarray, np.ndarray]:
        """Lengths up to the limit, and the share of responses that is not longer than each."""
        lengths = np.linspace(0.0, self.limit, 257)
        finished = _gamma_share(lengths, self.finished) / _gamma_share(self.limit, self.finished)
        return lengths, (1 - self.truncated) * finished


@dataclass(frozen=True)
class LengthLaw:
    """Lengths without a limit: a share `endless` never ends.

    The other responses end after `finished` tokens on average.
    """

    finished: float
    endless: float

    def under(self, limit: int, prompt: float) -> Lengths:
        """The lengths under a limit, which also cuts responses that would have finished later."""
        in_time, mean = _in_time(limit, self.finished)
        return Lengths(mean, 1 - (1 - self.endless) * in_time, limit, prompt)


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


def _in_time(limit: int, mean: float) -> tuple[float, float]:
    """Share of a Gamma law of shape 2 that ends within `limit` tokens, and the mean of that share."""
    x = 2 * limit / mean
    in_time = float(_gamma_share(limit, mean))
    # ∫₀ᴸ l·f(l) dl = m·(1 − e⁻ˣ(1 + x + x²/2)) for the density f of the Gamma law.
    return in_time, mean * (1 - math.exp(-x) * (1 + x + x * x / 2)) / in_time


# --- what runs say ---


def measured_lengths(study: Study, name: str, units: Sequence[Unit]) -> dict[str, Lengths]:
    """Lengths of training responses and of responses to each benchmark in `units` of a setup.

    Lengths that none of the units says are left out, and so are steps that a method cuts earlier
    than its setup.
    """
    setup, lengths = study.experiment.setups[name], {}
    prompt = min(PROMPT_TOKENS, setup.training.max_prompt_tokens)
    steps, limit = [], setup.training.max_response_tokens
    for unit in units:
        with suppress(Damaged):
            for row in study.reader(unit).committed_metrics():
                known = row.get("response_length") is not None and row.get("truncated") is not None
                if known and response_limit(unit.method, unit.knobs, row["step"], limit) == limit:
                    steps.append((1.0, row["truncated"], row["response_length"]))
    if steps:
        lengths[TRAINING_LENGTHS] = _lengths_of(steps, limit, prompt)
    for benchmark, evaluation_id in study.evaluation_ids(name).items():
        problems = []
        for unit in units:
            with suppress(Damaged):
                run = study.reader(unit)
                evaluated = run.evaluated_steps(evaluation_id)
                if evaluated:  # the middle checkpoint stands for all of a unit
                    middle = evaluated[len(evaluated) // 2]
                    for record in run.evaluation(evaluation_id, middle) or ():
                        problems.append((record.n, record.truncated, record.tokens))
        if problems:
            limit = setup.evaluation.max_response_tokens
            lengths[benchmark] = _lengths_of(problems, limit, prompt)
    return lengths


def _lengths_of(counts: Iterable[tuple[float, float, float]], limit: int, prompt: float) -> Lengths:
    """Lengths by (responses, truncated ones among them, tokens of all) of several samples."""
    responses = truncated = tokens = 0.0
    for of_responses, of_truncated, of_tokens in counts:
        responses += of_responses
        truncated += of_truncated
        tokens += of_tokens
    finished = responses - truncated
    # Truncated responses have `limit` tokens each; the mean is that of the others.
    mean = (tokens - truncated * limit) / finished if finished > 0 else float(limit)
    return Lengths(min(max(mean, 1.0), float(limit)), truncated / responses, limit, prompt)
