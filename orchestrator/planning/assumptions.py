"""The numbers that a plan rests on, as `trb plan --why` and `--json` list them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.engines.budget import CONTEXT_GIB, MARGIN_SHARE
from orchestrator.planning.costs import BLENDED, PLAIN, SetupCosts
from orchestrator.planning.lengths import ENDLESS, FINISHED, PROMPT_TOKENS
from orchestrator.planning.memory import memory
from orchestrator.planning.ranges import Range
from orchestrator.planning.rates import (
    ALL_REDUCE_US,
    LAUNCH_LAYERS,
    LEARNING,
    RATES,
    SCORING,
    SHARDED,
    Gpu,
)


@dataclass(frozen=True)
class Assumption:
    """A number of the model: its value in the low, the middle and the high estimate, and why."""

    name: str
    unit: str
    low: float
    mid: float
    high: float
    why: str

    @staticmethod
    def of(name: str, unit: str, value: Range | float, why: str) -> Assumption:
        """A number that differs from estimate to estimate, or one that does not."""
        value = value if isinstance(value, Range) else Range.exactly(value)
        return Assumption(name, unit, value.low, value.mid, value.high, why)


def assumptions(costs: Mapping[str, SetupCosts], several: bool = False) -> tuple[Assumption, ...]:
    """List the numbers under a plan: lengths, the GPU, engines in use, measurements, and the rates
    that follow.

    `several`: some role has more than one GPU.
    """
    first = next(iter(costs.values()))
    assumed = [*_lengths(), *_gpu(first.gpu)]
    for engine in dict.fromkeys(each.engine for each in costs.values()):
        assumed += _sampler(engine)
    for trainer in dict.fromkeys(each.setup.engine.trainer for each in costs.values()):
        assumed += _trainer(trainer)
    if several:
        assumed += _several_gpus()
    for name, of_setup in costs.items():
        assumed += [*_measured(name, of_setup), *_rollout_rates(name, of_setup)]
    return tuple(assumed)


def _lengths() -> list[Assumption]:
    why = "where no finished run directory says it"
    return [
        Assumption.of("mean of finished responses", "tokens", FINISHED, why),
        Assumption.of(
            "responses that run to the limit", "of all", ENDLESS, "they cost most of the decoding"
        ),
        Assumption.of(
            "prompt", "tokens", PROMPT_TOKENS, "system message and chat template included"
        ),
    ]


def _gpu(gpu: Gpu) -> list[Assumption]:
    return [
        Assumption.of("memory bandwidth", "TB/s", gpu.bytes_per_s / 1e12, gpu.title),
        Assumption.of(
            "peak arithmetic", "TFLOP/s", gpu.flops / 1e12, f"{gpu.title}, dense bfloat16"
        ),
        Assumption.of("GPU memory", "GiB", gpu.gib, "for sequences at once"),
        Assumption.of(
            "CUDA context", "GiB", CONTEXT_GIB, "of each process, with cuBLAS workspaces"
        ),
        Assumption.of(
            "margin", "of the GPU", MARGIN_SHARE, "memory in pieces that allocators cannot use"
        ),
    ]


def _sampler(engine: str) -> list[Assumption]:
    rates, varied = RATES[engine], Assumption.of
    launches = f"ms at {LAUNCH_LAYERS} layers"
    return [
        varied(
            f"{engine}: bandwidth reached in training",
            "of it",
            rates.decoding,
            "decoding the responses of a step",
        ),
        varied(
            f"{engine}: bandwidth reached in evaluation",
            "of it",
            rates.evaluating,
            "decoding, responses waiting",
        ),
        varied(
            f"{engine}: kernel launches of a step",
            launches,
            rates.launch_ms,
            "∝ layers; 0: CUDA graphs",
        ),
        varied(
            f"{engine}: KV cache passes of a step",
            "× cache",
            rates.cache_passes,
            "1: read in place",
        ),
        varied(
            f"{engine}: and for each head of a KV head",
            "× cache",
            rates.head_passes,
            "under a padding mask",
        ),
        varied(
            f"{engine}: teacher passes while blending",
            "a token",
            rates.teacher_passes,
            "1: drafts of one token",
        ),
        varied(
            f"{engine}: rest of a training step",
            "s",
            rates.step_s,
            "passing on weights, grading, data",
        ),
        varied(f"{engine}: start of a unit", "s", rates.start_s, "processes, models, data"),
    ]


def _trainer(engine: str) -> list[Assumption]:
    return [
        Assumption.of(
            f"{engine}: arithmetic reached in scoring", "of it", SCORING, "padding included"
        ),
        Assumption.of(
            f"{engine}: arithmetic reached in learning", "of it", LEARNING, "padding included"
        ),
    ]


def _several_gpus() -> list[Assumption]:
    """Of trials with roles on more than one GPU."""
    return [
        Assumption.of(
            "wait for an all-reduce",
            "µs",
            ALL_REDUCE_US,
            "two in each layer of a decode step; NVLink",
        ),
        Assumption.of(
            "speed that sharding keeps", "of it", SHARDED, "scoring and learning; NVLink"
        ),
    ]


def _measured(name: str, costs: SetupCosts) -> list[Assumption]:
    """List the numbers that finished runs or a calibration put in place of assumed ones."""
    why, found = "measured: takes the place of what is assumed", []
    for key, lengths in costs.lengths.items():
        found.append(Assumption.of(f"{name}, {key}: mean response", "tokens", lengths.tokens, why))
        found.append(
            Assumption.of(f"{name}, {key}: run to the limit", "of all", lengths.truncated, why)
        )
    for phase, factor in costs.factors.items():
        source = costs.sources.get(phase, why)
        found.append(
            Assumption.of(f"{name}, {phase}: measured ÷ assumed seconds", "", factor, source)
        )
    return found


def _rollout_rates(name: str, costs: SetupCosts) -> list[Assumption]:
    """Derived, shown so that they can be compared with a measurement."""
    room = memory(costs.setup, costs.runtime, costs.gpu.gib, costs.runtime.placement)
    fitting = {PLAIN: room.sequences_decoded_vanilla, BLENDED: room.sequences_decoded_blending}
    derived = []
    for kind, who in ((PLAIN, "student alone"), (BLENDED, "blending")):
        if fitting[kind]:  # 0: no room for it, so nothing in the experiment decodes like this
            # Where costs are low, rates are high: a range goes from the low estimate of costs to
            # the high one.
            why = "derived: rollouts of one trial"
            derived.append(
                Assumption.of(f"{name}, {who}", "tokens/s", costs.rollout_rate(kind), why)
            )
    return derived
