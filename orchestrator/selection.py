"""Scores of a unit's checkpoints and the best of them: projections of its run directory."""

from __future__ import annotations

from fractions import Fraction

from orchestrator.records import ProblemRecord
from orchestrator.rundir import RunReader


def pass_at_1(records: list[ProblemRecord]) -> Fraction:
    """Mean over problems of c/n, exact (paper, "Evaluation Protocol")."""
    return sum((Fraction(record.correct, record.n) for record in records), Fraction(0)) / len(records)


def benchmark_scores(run: RunReader, evaluation_ids: list[str], step: int) -> list[Fraction | None]:
    """pass@1 of one checkpoint on each benchmark; None where it was not evaluated."""
    records = [run.evaluation(evaluation_id, step) for evaluation_id in evaluation_ids]
    return [pass_at_1(rows) if rows else None for rows in records]


def exact_mean(scores: list[Fraction | None]) -> Fraction | None:
    """Unweighted mean over benchmarks; None if any is missing."""
    present = [score for score in scores if score is not None]
    return sum(present, Fraction(0)) / len(present) if present and len(present) == len(scores) else None


def mean_score(run: RunReader, evaluation_ids: list[str], step: int) -> float | None:
    """Unweighted mean pass@1 of a checkpoint in [0, 1]."""
    mean = exact_mean(benchmark_scores(run, evaluation_ids, step))
    return None if mean is None else float(mean)


def trajectory(run: RunReader, evaluation_ids: list[str]) -> dict[int, Fraction]:
    """Mean pass@1 by step, for the checkpoints that all benchmarks have."""
    steps = set.intersection(*(set(run.evaluated_steps(evaluation_id)) for evaluation_id in evaluation_ids))
    means = {step: exact_mean(benchmark_scores(run, evaluation_ids, step)) for step in sorted(steps)}
    return {step: mean for step, mean in means.items() if mean is not None}


def best_step(run: RunReader, evaluation_ids: list[str]) -> int | None:
    """The checkpoint with the highest mean, ties to the earliest; None before the first evaluation."""
    return highest(trajectory(run, evaluation_ids))


def highest(means: dict[int, Fraction]) -> int | None:
    """The step with the highest mean, ties to the earliest."""
    return max(means, key=lambda step: (means[step], -step)) if means else None
