"""Parts of `make gpu-proof` that open one engine as a trial does, and what all parts share: jobs, requests, bounds.

The setup is the paper's, with its own lengths and the program's own settings of memory; only the models lie in a
folder. Their weights are random, so that next to no response ends before its limit. Each part is a generator of
numbers: those that it has yielded are kept when it fails later on.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from orchestrator.config import Engine, EngineName, Model, Setup, TrainerName, Vocabulary
from orchestrator.engines import memory
from orchestrator.engines.catalog import open_engine
from orchestrator.engines.interface import Job, Limits, ModelFolder, Owner, WeightsRef
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import Unit
from orchestrator.models.embedded import make_tokenizer
from orchestrator.planning.rates import GPUS, Gpu
from orchestrator.policy.randomness import Purpose, SequenceKey
from orchestrator.policy.spec import Objective, Student, TrustRegion
from orchestrator.rollouts import Request, Rollouts, TeacherScores, concatenate
from orchestrator.workers.engines import job_of
from orchestrator.workers.spec import WorkerSpec
from tests.benchmarks.decoding import EPSILON, TOP_K, once, synchronize
from tests.benchmarks.gpu_memory import DeviceUse
from tests.benchmarks.gpu_scale import Scale

Numbers = Iterator[dict[str, float]]
OWNERS: tuple[Owner, ...] = ("student", "teacher")
SWAPS = 3


# --- parts ---


def models(size: Scale) -> Numbers:
    """Student and teacher of random weights, in the folders that the other parts read; with the tokenizer of bytes."""
    with Phases() as phases:
        for owner in OWNERS:
            causal = size.model(owner)
            yield phases.over(f"make_{owner}")
            causal.model.save_pretrained(size.models / owner)
            make_tokenizer("bytes").save_pretrained(size.models / owner)
            yield phases.over(f"save_{owner}")
            del causal


def first_start(size: Scale) -> Numbers:
    """SGLang's first start on this machine, which compiles kernels: the starts of other parts find them."""
    engine = open_engine("sglang", job(size, "sglang", "torch"))
    with Phases() as phases:
        sampler = engine.sampler()
        sampler.start(teacher=False)
        yield phases.over("start")
        list(sampler.sample(requests(size)[:2], Student(), Limits(2, TOP_K)))
        yield phases.over("responses")
        engine.close()
        yield phases.over("end")


def plain(size: Scale, name: EngineName) -> Numbers:
    """Tokens/s of the student alone, also as a share of what the memory's bandwidth allows."""
    opened = job(size, name, "torch")
    engine = open_engine(name, opened)
    with Phases() as phases:
        sampler = engine.sampler()
        sampler.start(teacher=False)
        yield phases.over("start")
        list(sampler.sample(requests(size), Student(), Limits(2, TOP_K)))
        yield phases.over("warm_up")
        rollouts = concatenate(list(sampler.sample(requests(size), Student(), Limits(size.new_tokens, TOP_K))))
        taken = phases.over("rollout")
    speed = int(rollouts.lengths_B.sum()) / taken["rollout_s"]
    context = size.prompt + size.new_tokens / 2
    yield {**taken, "tokens_per_s": speed, **share_of_bound(speed, opened, size.rows, context)}
    engine.close()


def blended(size: Scale, name: EngineName, drafted: int) -> Numbers:
    """Tokens/s of trust-region rollouts in rounds of `drafted` drafts, with the teacher's scores."""
    engine, behavior = open_engine(name, job(size, name, "torch", drafted)), TrustRegion(EPSILON)
    with Phases() as phases:
        sampler = engine.sampler()
        sampler.start(teacher=True)
        yield phases.over("start")
        list(sampler.sample(requests(size), behavior, Limits(2, TOP_K)))
        yield phases.over("warm_up")
        rollouts = concatenate(list(sampler.sample(requests(size), behavior, Limits(size.new_tokens, TOP_K))))
        taken = phases.over("rollout")
    tokens = int(rollouts.lengths_B.sum())
    yield {
        **taken,
        "tokens_per_s": tokens / taken["rollout_s"],
        "acceptance": float(rollouts.measured["acceptance"][rollouts.mask_BT].mean()),
        "rounds_per_token": float(rollouts.speculation["rounds"].sum()) / tokens,
    }
    engine.close()


def swap(size: Scale, name: EngineName) -> Numbers:
    """Seconds of a change of weights, from a checkpoint's folder and from tensors as a learner publishes them."""
    engine = open_engine(name, job(size, name, "torch"))
    sampler = engine.sampler()
    sampler.start(teacher=False)
    folder = size.models / "student"
    tensors = {key: value for file in folder.glob("model*.safetensors") for key, value in load_file(file).items()}
    for kind, place in (("folder", folder), ("tensors", tensors)):
        loads = [functools.partial(sampler.load, WeightsRef(step, place)) for step in range(1, SWAPS + 1)]
        yield {f"swap_{kind}_s": statistics.median(once(load) for load in loads)}
    engine.close()


def scoring(size: Scale, name: TrainerName) -> Numbers:
    """The teacher over as many rollouts as the parts of decoding sample; 2 FLOPs for each parameter and token."""
    opened = job(size, "sglang", name)
    engine = open_engine(name, opened)
    rollouts, _ = made_up(size)
    with Phases() as phases:
        scorer = engine.scorer()
        scorer.start()
        yield phases.over("start")
        scorer.score(rollouts)
        yield phases.over("warm_up")
        scorer.score(rollouts)
        taken = phases.over("scoring")
    speed = tokens_of(rollouts) / taken["scoring_s"]
    teacher = memory.decoder(opened.setup.teacher, opened.setup)
    yield {**taken, "tokens_per_s": speed, **share_of_arithmetic(2 * teacher.parameters * speed)}
    engine.close()


def learning(size: Scale, name: TrainerName) -> Numbers:
    """Updates on two rows of the paper's full length; 6 FLOPs for each parameter and token."""
    opened = job(size, "sglang", name)
    engine = open_engine(name, opened)
    rollouts, scores = made_up(replace(size, rows=2, new_tokens=size.longest))
    with Phases() as phases:
        trainer = engine.trainer()
        yield phases.over("start")
        trainer.step(rollouts, scores, Objective("renormalized"), 0)
        yield phases.over("first_update")
        trainer.step(rollouts, scores, Objective("renormalized"), 1)
        taken = phases.over("update")
        speed = tokens_of(rollouts) / taken["update_s"]
        student = memory.decoder(opened.setup.student, opened.setup)
        yield {**taken, "tokens_per_s": speed, **share_of_arithmetic(6 * student.parameters * speed)}
        trainer.publish(2)
        yield phases.over("publish")
    engine.close()


# --- jobs ---


def spec(size: Scale, sampler: EngineName, trainer: TrainerName, drafted: int | None = None) -> WorkerSpec:
    """A trial of the paper's pair on one GPU, whose roles take turns on it, from the folders that `models` wrote."""
    experiment = load_experiment(Path("experiments/paper.yaml"), [])
    setup = experiment.setups["qwen3-1.7b"]
    if size.vocabulary != setup.vocabulary.size:
        setup = _reduced(setup, size)
    dtype = "bfloat16" if torch.cuda.is_available() else "float32"
    setup = replace(setup, engine=Engine(dtype=dtype, sampler=sampler, trainer=trainer))
    runtime = replace(experiment.runtime, draft_length=drafted)
    unit = Unit("proof", "trial", "proof", None, {}, 0, (), 100, 0, {}, runtime.placement)
    student, teacher = (ModelFolder(str(size.models / owner)) for owner in OWNERS)
    return WorkerSpec(unit, setup, runtime, student, teacher, student, None)


def job(size: Scale, sampler: EngineName, trainer: TrainerName, drafted: int | None = None) -> Job:
    """What the engines of that trial are opened for."""
    return job_of(spec(size, sampler, trainer, drafted))


def _reduced(setup: Setup, size: Scale) -> Setup:
    """The setup with the shapes and lengths of a small scale."""
    return replace(
        setup,
        student=Model(eos=size.vocabulary - 2, shape=size.student),
        teacher=Model(eos=size.vocabulary - 1, shape=size.teacher),
        vocabulary=Vocabulary(size.vocabulary, size.vocabulary),
        training=replace(setup.training, max_prompt_tokens=size.prompt, max_response_tokens=size.longest),
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
    return rollouts, TeacherScores(support_BTK=log_q, token_BT=nothing, entropy_BT=nothing, overlap_BT=nothing)


def tokens_of(rollouts: Rollouts) -> int:
    """Prompts and responses together."""
    return sum(len(request.prompt_ids) for request in rollouts.requests) + int(rollouts.lengths_B.sum())


# --- measuring ---


def share_of_bound(speed: float, opened: Job, rows: int, context: float) -> dict[str, float]:
    """`speed` in tokens/s beside that at which reading the student's KV cache and weights fills the bandwidth."""
    gpu = this_gpu()
    if gpu is None:
        return {}
    student = memory.decoder(opened.setup.student, opened.setup)
    return {"share_of_bound": speed * (student.kv_bytes * context + student.weight_bytes / rows) / gpu.bytes_per_s}


def share_of_arithmetic(flops: float) -> dict[str, float]:
    """FLOP/s beside the GPU's; nothing on other devices."""
    gpu = this_gpu()
    return {} if gpu is None else {"share_of_arithmetic": flops / gpu.flops}


def this_gpu() -> Gpu | None:
    """The row of `planning.rates` for the GPU that is here; None where it has none."""
    if not torch.cuda.is_available():
        return None
    total_gib = torch.cuda.get_device_properties(0).total_memory / memory.GIB
    return gpu_named(torch.cuda.get_device_name(), total_gib)


def gpu_named(name: str, gib: float) -> Gpu | None:
    """The row whose kind is in the card's name, `NVIDIA H100 80GB HBM3`, the nearest in memory; None for others."""
    kinds = [gpu for gpu in GPUS.values() if gpu.name.partition("-")[0] in name]
    return min(kinds, key=lambda gpu: abs(gpu.gib - gib), default=None)


class Phases:
    """Seconds and peaks of memory of the phases of a part, one after the other."""

    def __init__(self) -> None:
        self._use = DeviceUse()
        self._started = 0.0

    def __enter__(self) -> Phases:
        self._use.__enter__()
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._use.__exit__()

    def over(self, name: str) -> dict[str, float]:
        """Of the phase that ends here: seconds, and GiB of this process's tensors and of all processes on the GPU."""
        synchronize()
        of_phase = {f"{name}_s": time.perf_counter() - self._started}
        if torch.cuda.is_available():
            of_phase[f"{name}_torch_gib"] = torch.cuda.max_memory_allocated() / memory.GIB
        if self._use.peak_gib is not None:
            of_phase[f"{name}_device_gib"] = self._use.peak_gib
        self._begin()
        return of_phase

    def _begin(self) -> None:
        self._use.forget()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        self._started = time.perf_counter()


def engine_parts() -> dict[str, Callable[[Scale], Numbers]]:
    """Name → part, of those that open one engine."""
    return {
        "models": models,
        "sglang_start": first_start,
        "sglang_plain": lambda size: plain(size, "sglang"),
        "sglang_blended_3": lambda size: blended(size, "sglang", 3),
        "sglang_blended_5": lambda size: blended(size, "sglang", 5),
        "sglang_blended_8": lambda size: blended(size, "sglang", 8),
        "sglang_swap": lambda size: swap(size, "sglang"),
        "torch_learning": lambda size: learning(size, "torch"),
        "verl_learning": lambda size: learning(size, "verl"),
        "torch_scoring": lambda size: scoring(size, "torch"),
        "verl_scoring": lambda size: scoring(size, "verl"),
        "torch_plain": lambda size: plain(size, "torch"),
        "torch_blended_5": lambda size: blended(size, "torch", 5),
    }
