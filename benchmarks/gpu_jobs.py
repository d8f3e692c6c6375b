"""Jobs for which the parts of `make gpu-proof` open engines, and the requests they make.

The setup is the paper's, with its own lengths and the program's own settings of memory; only the
models lie in a folder. Their weights are random, so that next to no response ends before its limit.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.decoding import TOP_K
from benchmarks.gpu_scale import Scale
from orchestrator.config import EngineConfig, EngineName, Model, Setup, TrainerName, Vocabulary
from orchestrator.engines.interface import Job, ModelFolder, Owner
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import Unit
from orchestrator.policy.randomness import Purpose, SequenceKey
from orchestrator.rollouts import Request, Rollouts, TeacherScores
from orchestrator.workers.members import job_of
from orchestrator.workers.spec import WorkerSpec

OWNERS: tuple[Owner, ...] = ("student", "teacher")


def spec(
    size: Scale,
    sampler: EngineName,
    trainer: TrainerName,
    drafted: int | None = None,
    **changed: bool,
) -> WorkerSpec:
    """A trial of the paper's pair on one GPU, whose roles take turns on it, from the folders that
    `models` wrote; `changed` are other values of the runtime's keys.
    """
    experiment = load_experiment(Path("experiments/paper.yaml"), [])
    setup = experiment.setups["qwen3-1.7b"]
    if size.vocabulary != setup.vocabulary.size:
        setup = _reduced(setup, size)
    dtype = "bfloat16" if torch.cuda.is_available() else "float32"
    setup = replace(setup, engine=EngineConfig(dtype=dtype, sampler=sampler, trainer=trainer))
    runtime = replace(experiment.runtime, draft_length=drafted, **changed)
    unit = Unit("proof", "trial", "proof", None, {}, 0, (), 100, 0, {}, runtime.placement)
    student, teacher = (ModelFolder(str(size.models / owner)) for owner in OWNERS)
    return WorkerSpec(unit, setup, runtime, student, teacher, student, None)


def job(
    size: Scale,
    sampler: EngineName,
    trainer: TrainerName,
    drafted: int | None = None,
    **changed: bool,
) -> Job:
    """The job for which the engines of that trial are opened."""
    return job_of(spec(size, sampler, trainer, drafted, **changed))


def _reduced(setup: Setup, size: Scale) -> Setup:
    """The setup with the shapes and lengths of a small scale."""
    return replace(
        setup,
        student=Model(eos=size.vocabulary - 2, shape=size.student),
        teacher=Model(eos=size.vocabulary - 1, shape=size.teacher),
        vocabulary=Vocabulary(size.vocabulary, size.vocabulary),
        training=replace(
            setup.training, max_prompt_tokens=size.prompt, max_response_tokens=size.longest
        ),
        evaluation=replace(setup.evaluation, max_response_tokens=size.longest),
    )


def requests(size: Scale) -> list[Request]:
    """`rows` prompts that differ in their first token."""
    keys = [SequenceKey(Purpose.TRAINING, 0, 0, row, 0) for row in range(size.rows)]
    return [Request((row % 256, *range(1, size.prompt)), key) for row, key in enumerate(keys)]


def made_up(size: Scale) -> tuple[Rollouts, TeacherScores]:
    """`rows` rollouts of `new_tokens` with made-up teacher scores."""
    asked = requests(size)
    shape = (len(asked), size.new_tokens)
    support = torch.randint(0, size.vocabulary - 2, (*shape, TOP_K))
    nothing = torch.zeros(shape)
    rollouts = Rollouts(
        requests=asked,
        tokens_BT=support[..., 0],
        lengths_B=torch.full((len(asked),), size.new_tokens),
        truncated_B=torch.ones(len(asked), dtype=torch.bool),
        student_BT=nothing,
        behavior_BT=nothing,
        support_ids_BTK=support,
    )
    log_q = torch.randn(*shape, TOP_K).log_softmax(-1) - 0.01
    return rollouts, TeacherScores(
        support_BTK=log_q, token_BT=nothing, entropy_BT=nothing, overlap_BT=nothing
    )


def tokens_of(rollouts: Rollouts) -> int:
    """Prompts and responses together."""
    return sum(len(request.prompt_ids) for request in rollouts.requests) + int(
        rollouts.lengths_B.sum()
    )
