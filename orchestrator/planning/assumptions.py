"""The numbers that a plan rests on, as `trb plan --why` and `--json` list them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from orchestrator.engines.budget import CONTEXT_GIB, MARGIN_SHARE
from orchestrator.planning import design
from orchestrator.planning.costs import SetupCosts
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
from orchestrator.records.clock import BLENDED, PLAIN

Row = tuple[str, str, Range | float, str]  # name, unit, value, why
LENGTHS: list[Row] = [
    ("mean of finished responses", "tokens", FINISHED, "where no finished run directory says it"),
    ("responses that run to the limit", "of all", ENDLESS, "they cost most of the decoding"),
    ("prompt", "tokens", PROMPT_TOKENS, "system message and chat template included"),
]
SEVERAL_GPUS: list[Row] = [
    ("wait for an all-reduce", "µs", ALL_REDUCE_US, "two in each layer of a decode step; NVLink"),
    ("speed that sharding keeps", "of it", SHARDED, "scoring and learning; NVLink"),
]
OF_A_STEP: list[Row] = [
    ("weights to the sampler", "s/GB", design.WEIGHTS_BY_HOST, "through the host"),
    ("weights in one process", "s/GB", design.WEIGHTS_BY_GPU, "copied on the GPU"),
    ("the learner's state", "s/GB", design.STATE, "to page-locked memory and back"),
    ("a KV cache", "s", design.CACHE_S, "given back and taken again"),
    ("grading", "s a response", design.GRADE_S, "of which scoring and learning hide a part"),
    ("data and logs", "s", design.DATA_S, "of a training step"),
    ("bandwidth reached over the vocabulary", "of it", design.STATISTICS, "bytes were counted"),
]
MEASURED = "measured: takes the place of what is assumed"


@dataclass(frozen=True)
class Assumption:
    """A number of the model: its value in the low, the middle and the high estimate, and why."""

    name: str
    unit: str
    low: float
    mid: float
    high: float
    why: str


def assumptions(costs: Mapping[str, SetupCosts], several: bool = False) -> tuple[Assumption, ...]:
    """List a plan's numbers: lengths, the GPU, engines in use, measurements, the rates that follow.

    `several`: some role has more than one GPU.
    """
    first = next(iter(costs.values()))
    rows = [*LENGTHS, *_gpu(first.gpu), *OF_A_STEP]
    for engine in dict.fromkeys(each.engine for each in costs.values()):
        rows += _sampler(engine)
    for trainer in dict.fromkeys(each.setup.engine.trainer for each in costs.values()):
        reached = f"{trainer}: arithmetic reached in"
        rows.append((f"{reached} scoring", "of it", SCORING, "padding included"))
        rows.append((f"{reached} learning", "of it", LEARNING, "padding included"))
    if several:
        rows += SEVERAL_GPUS
    for name, of_setup in costs.items():
        rows += [*_measured(name, of_setup), *_rollout_rates(name, of_setup)]
    listed = []
    for name, unit, value, why in rows:
        estimates = value if isinstance(value, Range) else Range.exactly(value)
        listed.append(Assumption(name, unit, estimates.low, estimates.mid, estimates.high, why))
    return tuple(listed)


def _gpu(gpu: Gpu) -> list[Row]:
    return [
        ("memory bandwidth", "TB/s", gpu.bytes_per_s / 1e12, gpu.title),
        ("peak arithmetic", "TFLOP/s", gpu.flops / 1e12, f"{gpu.title}, dense bfloat16"),
        ("GPU memory", "GiB", gpu.gib, "for sequences at once"),
        ("CUDA context", "GiB", CONTEXT_GIB, "of each process, with cuBLAS workspaces"),
        ("margin", "of the GPU", MARGIN_SHARE, "memory in pieces that allocators cannot use"),
    ]


def _sampler(engine: str) -> list[Row]:
    rates, launches = RATES[engine], f"ms at {LAUNCH_LAYERS} layers"
    training, evaluation = "bandwidth reached in training", "bandwidth reached in evaluation"
    blending, drafts = "teacher passes while blending", "1: drafts of one token"
    rows: list[Row] = [
        (training, "of it", rates.decoding, "decoding the responses of a step"),
        (evaluation, "of it", rates.evaluating, "decoding, responses waiting"),
        ("kernel launches of a step", launches, rates.launch_ms, "∝ layers; 0: CUDA graphs"),
        ("KV cache passes of a step", "× cache", rates.cache_passes, "1: read in place"),
        ("and for each head of a KV head", "× cache", rates.head_passes, "under a padding mask"),
        ("kernel launches while blending", launches, rates.blended_launch_ms, "of each pass"),
        (blending, "a token", rates.teacher_passes, drafts),
        ("drafts of a teacher pass", "tokens", rates.drafted, "so many student passes"),
        ("start of a unit", "s", rates.start_s, "processes, models, data"),
    ]
    return [(f"{engine}: {name}", unit, value, why) for name, unit, value, why in rows]


def _measured(name: str, costs: SetupCosts) -> Iterator[Row]:
    """List the numbers that finished runs or a calibration put in place of assumed ones."""
    for key, lengths in costs.lengths.items():
        yield f"{name}, {key}: mean response", "tokens", lengths.tokens, MEASURED
        yield f"{name}, {key}: run to the limit", "of all", lengths.truncated, MEASURED
    for phase, factor in costs.factors.items():
        source = costs.sources.get(phase, MEASURED)
        yield f"{name}, {phase}: measured ÷ assumed seconds", "", factor, source


def _rollout_rates(name: str, costs: SetupCosts) -> Iterator[Row]:
    """Derived, shown so that they can be compared with a measurement."""
    room = memory(costs.setup, costs.runtime, costs.gpu.gib, costs.runtime.placement)
    why = "derived: rollouts of one trial"
    # Without room for a kind of step, nothing in the experiment decodes like this. Where costs are
    # low, rates are high: a range goes from the low estimate of costs to the high one.
    if room.sequences_decoded_vanilla:
        yield f"{name}, student alone", "tokens/s", costs.rollout_rate(PLAIN), why
    if room.sequences_decoded_blending:
        yield f"{name}, blending", "tokens/s", costs.rollout_rate(BLENDED), why
