"""Defines an experiment's evaluations: their ids, their numbers of samples, and their rungs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from orchestrator.config import Evaluation, Setup
from orchestrator.data.benchmarks import benchmark_of
from orchestrator.experiment.identity import evaluation_identity
from orchestrator.experiment.units import OfKind
from orchestrator.models.identity import digest

HELD_OUT_SHARE = Fraction(1, 20)  # of the tokens of an evaluation; all of them at full length
HELD_OUT_RANGE = 8, 64  # prompts
FRESH = 1  # repetition of the samples that take no part in selection
# Doublings, and one more rung where a few close candidates cost most (benchmarks/race.py compares).
SHARES = tuple(Fraction(size, 32) for size in (1, 2, 4, 8, 16, 24, 32))
# Races with an indifference zone mostly end between 1/16 and 1/4. Rungs that grow by a half there
# waste fewer samples than doublings, since a race seldom needs all samples of its last rung.
ZONE_SHARES = tuple(Fraction(size, 64) for size in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64))


def evaluation_id(setup: Setup, benchmark: str, grader: str | None = None) -> str:
    """`<benchmark>-<8 hex>`: see `identity.evaluation_identity`."""
    return f"{benchmark}-{digest(evaluation_identity(setup, benchmark, grader))}"


def evaluation_ids(setup: Setup, grader: str | None = None) -> dict[str, str]:
    """Benchmark key → evaluation id, in the order of the table's columns."""
    return {key: evaluation_id(setup, key, grader) for key in setup.evaluation.benchmarks}


def fresh_evaluation_ids(setup: Setup) -> dict[str, str]:
    """Benchmark key → id of the same evaluation on samples that take no part in selection."""
    return repeated_evaluation_ids(setup, FRESH)


def repeated_evaluation_ids(
    setup: Setup, repetition: int, grader: str | None = None
) -> dict[str, str]:
    """Benchmark key → id of a repetition, whose samples have the seed `seed + repetition`."""
    repeated = replace(setup.evaluation, seed=setup.evaluation.seed + repetition)
    return evaluation_ids(replace(setup, evaluation=repeated), grader)


def full_samples(evaluation: Evaluation, benchmark: str) -> int:
    """Samples of each problem under the full protocol: the benchmark's n."""
    return evaluation.benchmarks[benchmark].n


def rungs(evaluation: Evaluation) -> list[dict[str, int]]:
    """Benchmark → samples for each problem at each rung; the last is n, `budget: full` has it alone."""
    full = {benchmark: full_samples(evaluation, benchmark) for benchmark in evaluation.benchmarks}
    if evaluation.budget == "full":
        return [full]
    sizes = rung_sizes(list(full.values()), evaluation.indifference > 0)
    return [dict(zip(full, of_rung, strict=True)) for of_rung in sizes]


def samples_at_once(evaluation: Evaluation, unit: OfKind) -> dict[str, int]:
    """Benchmark → samples of a new checkpoint: all for the untrained student, which has no rivals."""
    return rungs(evaluation)[-1 if unit.is_untrained else 0]


def held_out_prompts(setup: Setup) -> int:
    """Held-out prompts on which a trial measures KL(p‖q) at a checkpoint, by `evaluation.held_out`.

    The default bounds their responses by HELD_OUT_SHARE of the tokens that every checkpoint is
    evaluated with at once, both at full length, and lies within HELD_OUT_RANGE. More prompts would
    buy little: their error falls with the root of their number, and runs differ by more.
    """
    evaluation, (least, most) = setup.evaluation, HELD_OUT_RANGE
    if evaluation.held_out is not None:
        return evaluation.held_out
    responses = 0
    for benchmark, samples in rungs(evaluation)[0].items():
        responses += samples * problems_wanted(evaluation, benchmark)
    tokens = HELD_OUT_SHARE * responses * evaluation.max_response_tokens
    return max(least, min(most, int(tokens / setup.training.max_response_tokens)))


def keeps_text(evaluation: Evaluation, repetition: int, sample: int) -> bool:
    """Whether the text of a problem's response with this number is kept.

    The first `keep_texts` are, and all fresh ones unless that is 0.
    """
    return evaluation.keep_texts > (0 if repetition == FRESH else sample)


def problems_wanted(evaluation: Evaluation, benchmark: str) -> int:
    """Number of problems of a benchmark that are evaluated."""
    run = evaluation.benchmarks[benchmark]
    total = benchmark_of(benchmark, run).problems
    return total if run.limit is None else min(run.limit, total)


def rung_sizes(full: Sequence[int], zone: bool = False) -> list[tuple[int, ...]]:
    """Samples for each problem at each rung, by benchmark; the last rung is `full`.

    No rung is listed twice. Races with an indifference `zone` have rungs of their own.
    """
    sizes: dict[tuple[int, ...], None] = {}
    for share in ZONE_SHARES if zone else SHARES:
        # Rounded up to whole numbers: n may be small, and each rung needs at least one sample.
        sizes[tuple(-(-n * share.numerator // share.denominator) for n in full)] = None
    return list(sizes)


class Sampling(NamedTuple):
    """One evaluation of one checkpoint; `repetition` 0 selects the best checkpoint, `FRESH` does not."""

    benchmark: str
    step: int
    repetition: int
