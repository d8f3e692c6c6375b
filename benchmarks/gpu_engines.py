"""Parts of `make gpu-proof` that open one engine as a trial does.

Each part is a generator of numbers: those that it has yielded are kept when it fails later on.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace

from safetensors.torch import load_file

from benchmarks.decoding import EPSILON, TOP_K, once
from benchmarks.gpu_jobs import OWNERS, job, made_up, requests, tokens_of
from benchmarks.gpu_phases import Phases, share_of_arithmetic, share_of_bound
from benchmarks.gpu_scale import Scale
from orchestrator.config import EngineName, TrainerName
from orchestrator.engines import memory
from orchestrator.engines.catalog import open_engine
from orchestrator.engines.interface import Limits, WeightsRef
from orchestrator.models.recipes import make_tokenizer
from orchestrator.policy.spec import Objective, Student, TrustRegion
from orchestrator.rollouts import concatenate

Numbers = Iterator[dict[str, float]]
SWAPS = 3


def models(size: Scale) -> Numbers:
    """Student and teacher of random weights, in the folders that the other parts read; with the
    tokenizer of bytes.
    """
    with Phases() as phases:
        for owner in OWNERS:
            causal = size.model(owner)
            yield phases.over(f"make_{owner}")
            causal.model.save_pretrained(size.models / owner)
            make_tokenizer("bytes").save_pretrained(size.models / owner)
            yield phases.over(f"save_{owner}")
            del causal


def first_start(size: Scale) -> Numbers:
    """SGLang's first start on this machine, which compiles kernels: the starts of other parts find
    them.
    """
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
    with Phases(opened) as phases:
        sampler = engine.sampler()
        sampler.start(teacher=False)
        yield phases.over("start")
        list(sampler.sample(requests(size), Student(), Limits(2, TOP_K)))
        yield phases.over("warm_up")
        rollouts = concatenate(
            list(sampler.sample(requests(size), Student(), Limits(size.new_tokens, TOP_K)))
        )
        taken = phases.over("rollout", "decoding")
    speed = int(rollouts.lengths_B.sum()) / taken["rollout_s"]
    context = size.prompt + size.new_tokens / 2
    yield {**taken, "tokens_per_s": speed, **share_of_bound(speed, opened, size.rows, context)}
    engine.close()


def blended(size: Scale, name: EngineName, drafted: int) -> Numbers:
    """Tokens/s of trust-region rollouts in rounds of `drafted` drafts, with the teacher's scores."""
    opened, behavior = job(size, name, "torch", drafted), TrustRegion(EPSILON)
    engine = open_engine(name, opened)
    with Phases(opened) as phases:
        sampler = engine.sampler()
        sampler.start(teacher=True)
        yield phases.over("start")
        list(sampler.sample(requests(size), behavior, Limits(2, TOP_K)))
        yield phases.over("warm_up")
        rollouts = concatenate(
            list(sampler.sample(requests(size), behavior, Limits(size.new_tokens, TOP_K)))
        )
        taken = phases.over("rollout", "blending")
    tokens = int(rollouts.lengths_B.sum())
    yield {
        **taken,
        "tokens_per_s": tokens / taken["rollout_s"],
        "acceptance": float(rollouts.measured["acceptance"][rollouts.mask_BT].mean()),
        "rounds_per_token": float(rollouts.speculation["rounds"].sum()) / tokens,
    }
    engine.close()


def swap(size: Scale, name: EngineName) -> Numbers:
    """Seconds of a change of weights, from a checkpoint's folder and from tensors as a learner
    publishes them.
    """
    engine = open_engine(name, job(size, name, "torch"))
    sampler = engine.sampler()
    sampler.start(teacher=False)
    folder = size.models / "student"
    tensors = {
        key: value
        for file in folder.glob("model*.safetensors")
        for key, value in load_file(file).items()
    }
    for kind, place in (("folder", folder), ("tensors", tensors)):
        loads = [
            functools.partial(sampler.load, WeightsRef(step, place)) for step in range(1, SWAPS + 1)
        ]
        yield {f"swap_{kind}_s": statistics.median(once(load) for load in loads)}
    engine.close()


def scoring(size: Scale, name: TrainerName) -> Numbers:
    """The teacher over as many rollouts as the parts of decoding sample; 2 FLOPs for each parameter
    and token.
    """
    opened = job(size, "sglang", name)
    engine = open_engine(name, opened)
    rollouts, _ = made_up(size)
    with Phases(opened) as phases:
        scorer = engine.scorer()
        scorer.start()
        yield phases.over("start")
        scorer.score(rollouts)
        yield phases.over("warm_up")
        scorer.score(rollouts)
        taken = phases.over("scoring", "scoring")
    speed = tokens_of(rollouts) / taken["scoring_s"]
    teacher = memory.decoder(opened.setup.teacher, opened.setup)
    yield {**taken, "tokens_per_s": speed, **share_of_arithmetic(2 * teacher.parameters * speed)}
    engine.close()


def learning(size: Scale, name: TrainerName, **changed: bool) -> Numbers:
    """Updates on two rows of the paper's full length; 6 FLOPs for each parameter and token."""
    opened = job(size, "sglang", name, **changed)
    engine = open_engine(name, opened)
    rollouts, scores = made_up(replace(size, rows=2, new_tokens=size.longest))
    with Phases(opened) as phases:
        trainer = engine.trainer()
        yield phases.over("start")
        trainer.step(rollouts, scores, Objective("renormalized"), 0)
        yield phases.over("first_update", "learning")
        trainer.step(rollouts, scores, Objective("renormalized"), 1)
        taken = phases.over("update", "learning")
        speed = tokens_of(rollouts) / taken["update_s"]
        student = memory.decoder(opened.setup.student, opened.setup)
        yield {
            **taken,
            "tokens_per_s": speed,
            **share_of_arithmetic(6 * student.parameters * speed),
        }
        trainer.publish(2)
        yield phases.over("publish")
    engine.close()


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
        "torch_learning_again": lambda size: learning(size, "torch", checkpointing=True),
        "verl_learning": lambda size: learning(size, "verl"),
        "torch_scoring": lambda size: scoring(size, "torch"),
        "verl_scoring": lambda size: scoring(size, "verl"),
        "torch_plain": lambda size: plain(size, "torch"),
        "torch_blended_5": lambda size: blended(size, "torch", 5),
    }
