"""Measures how many answers of teacher and student end with the stop tokens of the pair.

Student and teacher stop with different ids, which a setup names. With a wrong one the teacher never
stops in the eyes of the sweep: its targets teach the student to go on, and responses grow until all
are cut (ms-swift, issue 9526). A student whose id is missing is cut from the first step on. Losses
stay finite meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.config import Experiment, Setup
from orchestrator.data.benchmarks import load_benchmark
from orchestrator.engines.interface import Job, Limits, Owner
from orchestrator.errors import UserError
from orchestrator.models import locate
from orchestrator.selftest.template import NOT_TRIED, tokenizer_of, why_untried

# A teacher that answers ends nearly always; one whose stop token is another id ends by chance. The
# bound lies far from both, since long answers are cut at the setup's limit.
LEAST_SHARE = 0.1
PROBLEMS, LONGEST = 16, 2048  # answers, and the most tokens of each


def check_endings(name: str, setup: Setup, experiment: Experiment, runs: Path) -> str:
    """Say in a line what was found; UserError if too few answers end: of the teacher fewer than the
    bound, of the student none.

    Models of random weights, models that are not made yet, and models that need a GPU where none
    is, are not tried, and the line says so. The process may hold some of a GPU's memory afterwards.
    """
    recipe = setup.teacher.recipe
    if recipe is not None and recipe.is_embedded and not recipe.updates:
        return f"{NOT_TRIED}: the teacher's weights are random"
    untried = why_untried(setup, runs, on_gpu=True)
    if untried is not None:
        return untried
    from orchestrator.data.prompts import render

    student = locate.checkpoint_of(setup.student, setup, runs)
    teacher = locate.checkpoint_of(setup.teacher, setup, runs)
    tokenizer = tokenizer_of(setup, teacher.path)
    benchmark, run = next(iter(setup.evaluation.benchmarks.items()))
    problems = load_benchmark(benchmark, experiment.data_dir, run)[:PROBLEMS]
    prompts = [render(problem.text, setup.prompt, tokenizer) for problem in problems]
    job = Job(setup, experiment.runtime, student, teacher, trains=False)
    ended = share_that_ends(job, prompts, "teacher")
    limit = _limit(setup)
    if ended < LEAST_SHARE:
        raise UserError(
            f"{name}.teacher.eos: {setup.teacher.eos}: expected the id with which the teacher "
            f"stops: {ended:.0%} of its answers end within {limit:,} tokens, at least "
            f"{LEAST_SHARE:.0%} should"
        )
    detail = f"{ended:.0%} of the teacher's answers end within {limit:,} tokens"
    if setup.student.recipe is not None and not setup.student.recipe.updates:
        return detail
    ended = share_that_ends(job, prompts, "student")
    if not ended:  # a weak student may ramble, but not always
        raise UserError(
            f"{name}.student.eos: {setup.student.eos}: expected the ids with which the student "
            f"stops: none of its {len(prompts)} answers ends within {limit:,} tokens"
        )
    return f"{detail}, {ended:.0%} of the untrained student's"


def share_that_ends(job: Job, prompts: Sequence[tuple[int, ...]], owner: Owner) -> float:
    """Share of a model's samples at T = 1, one for each prompt, that end before the limit."""
    from orchestrator.engines.torch.engine import TorchEngine
    from orchestrator.policy.randomness import Purpose, SequenceKey
    from orchestrator.policy.spec import Student
    from orchestrator.rollouts import Request

    requests: list[Request] = []
    for index, ids in enumerate(prompts):
        requests.append(Request(ids, SequenceKey(Purpose.CONTINUATION, 0, 0, index, 0)))
    engine = TorchEngine(job)
    answering = engine.sampler(owner)
    answering.start(teacher=False)
    cut = 0
    for part in answering.sample(requests, Student(), Limits(_limit(job.setup))):
        cut += int(part.truncated_B.sum())
    engine.close()
    return 1 - cut / len(requests)


def _limit(setup: Setup) -> int:
    return min(setup.training.max_response_tokens, LONGEST)
