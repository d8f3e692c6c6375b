"""How large `make gpu-proof` makes everything."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.decoding import TOP_K, Workload, random_model
from orchestrator.config import EngineConfig, Model, Setup, Shape, Vocabulary
from orchestrator.engines.common.causal import CausalModel, best_device
from orchestrator.engines.interface import Job, ModelFolder, Owner
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import Unit
from orchestrator.policy.randomness import Purpose, SequenceKey
from orchestrator.rollouts import Request, Rollouts, TeacherScores
from orchestrator.rules import EngineName, TrainerName
from orchestrator.workers.members import job_of
from orchestrator.workers.spec import WorkerSpec

SMALL = Shape(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=128)
SMALL_VOCABULARY = 512
ENGINES = "tests/engines"
OWNERS: tuple[Owner, ...] = ("student", "teacher")


@dataclasses.dataclass(frozen=True)
class Scale:
    """Shapes and lengths: `rows` responses of `new_tokens` at prompts of `prompt`.

    `longest` are the tokens of the longest response that training may have. An evaluator is asked
    for `waiting` responses of `evaluated` tokens. The loss is compared on one sequence of
    `sequence` tokens. A trial decodes `trial_tokens` at most. `models` is the folder of the pair,
    and `tests` has what pytest is given for each part.
    """

    student: Shape
    teacher: Shape
    vocabulary: int
    rows: int
    prompt: int
    new_tokens: int
    longest: int
    waiting: int
    evaluated: int
    sequence: int
    trial_tokens: int
    repeats: int
    models: Path
    tests: dict[str, tuple[str, ...]]

    def workload(self) -> Workload:
        """For ratios, whose slowest mode passes the teacher once for each token: an eighth of them."""
        return Workload(
            self.model("student"),
            self.model("teacher"),
            self.rows,
            64,
            self.new_tokens // 4,
            self.repeats,
        )

    def model(self, owner: Owner) -> CausalModel:
        """On the GPU in bfloat16, or on the CPU in float32 where there is none."""
        shape, seed = (self.student, 0) if owner == "student" else (self.teacher, 1)
        device = best_device()
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        return random_model(shape, self.vocabulary, owner, seed, 0.02, device, dtype)


def scale(small: bool, models: Path) -> Scale:
    """The paper's 1.7B pair at its own lengths; or what a CPU does in seconds."""
    if small:
        return Scale(
            student=SMALL,
            teacher=dataclasses.replace(SMALL, layers=4, hidden=128),
            vocabulary=SMALL_VOCABULARY,
            rows=4,
            prompt=8,
            new_tokens=12,
            longest=24,
            waiting=40,
            evaluated=4,
            sequence=64,
            trial_tokens=12,
            repeats=1,
            models=models,
            tests={
                "torch": (f"{ENGINES}/torch/test_scoring.py",),
                "sglang": (
                    f"{ENGINES}/sglang/test_blending_rows.py",
                    f"{ENGINES}/sglang/test_private.py",
                ),
                "trainers": (f"{ENGINES}/test_catalog.py",),
            },
        )
    setup = load_experiment(Path("experiments/paper.yaml"), []).setups["qwen3-1.7b"]
    return Scale(
        student=setup.student.shape,
        teacher=setup.teacher.shape,
        vocabulary=setup.vocabulary.size,
        rows=32,
        prompt=setup.training.max_prompt_tokens,
        new_tokens=1024,
        longest=setup.training.max_response_tokens,
        waiting=2000,
        evaluated=512,
        sequence=4096,
        trial_tokens=256,
        repeats=1,
        models=models,
        tests={
            "torch": (f"{ENGINES}/torch",),
            "sglang": (f"{ENGINES}/sglang/test_engine.py", f"{ENGINES}/sglang/test_blending.py"),
            "trainers": (f"{ENGINES}/test_trainer_contract.py",),
        },
    )


# --- jobs for which engines are opened, and the requests that they get ---
#
# The setup is the paper's, with its own lengths and the program's own settings of memory; only the
# models lie in a folder. Their weights are random, so that next to no response ends before its limit.


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
