"""What an experiment will cost before anything runs: `trb plan`. Pure arithmetic on the configuration.

Seconds, for sequences decoded in batches by the torch engine (lower bounds: no prefill, sampling, grading, loading):

    batch            `memory.decode_batch` on a GPU of `GPU_GIB`: student alone, blending, evaluation; the supervised
                     stage's teacher decodes in the batches of blending
    decode steps D   batches × longest response         (each batch runs until its longest response ends)
    decoding         max(D × kernel launches of a step, (D × weights + cache traffic) ÷ bandwidth)
    cache traffic    passes × KV per token × tokens × (prompt + mean response ÷ 2), in bytes
    blending         student's decoding + teacher's decoding, in lockstep; the teacher's scores come with it
    scoring          2 × parameters × tokens ÷ FLOP/s   (teacher, prompt + response)
    learning         6 × parameters × tokens ÷ FLOP/s   (student, prompt + response)

Low and high are two scenarios (`LOW`, `HIGH`), not a confidence interval. Memory is `orchestrator.engines.memory`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.config import Experiment, Runtime, Setup, Training
from orchestrator.engines.memory import (
    WORKSPACE_GIB,
    Decoder,
    Memory,
    decode_batch,
    decoder,
    memory,
    sequences_per_step,
)
from orchestrator.experiment.methods import needs_teacher
from orchestrator.experiment.units import Unit, expand, waves
from orchestrator.planning.evaluation import checkpoints_evaluated, evaluation_generations
from orchestrator.planning.ranges import Range
from orchestrator.records.columns import EVALUATE, LEARN, ROLLOUT, SCORE

GPU_GIB = 80.0  # of the GPU planned for
HBM_BYTES_PER_S = 3.35e12  # H100 SXM data sheet
PEAK_FLOPS = 990e12  # H100 SXM data sheet, dense bfloat16
LAUNCH_LAYERS = 28
CACHE_PASSES = 3  # of a decode step: copied to append (read, written), read by attention
PHASES = (ROLLOUT, SCORE, LEARN, EVALUATE)  # what is planned; grading takes no GPU


@dataclass(frozen=True)
class Scenario:
    """What cannot be known before a run. Shares are of the configured limits."""

    mean_response: float
    longest_response: float
    prompt: float
    launch_ms: float  # kernel launches of a decode step of `LAUNCH_LAYERS` layers
    bandwidth: float  # share of `HBM_BYTES_PER_S`
    head_passes: int  # cache passes for each query head that shares a key–value head
    utilisation: float  # share of `PEAK_FLOPS`


LOW = Scenario(0.15, 0.7, 0.1, 25.0, 0.8, 0, 0.40)
HIGH = Scenario(0.40, 1.0, 0.5, 40.0, 0.5, 2, 0.15)


@dataclass(frozen=True)
class Assumption:
    """A number of the model: its value in the low and in the high estimate, and why."""

    name: str
    unit: str
    low: float
    high: float
    why: str


@dataclass(frozen=True)
class Resources:
    """What one unit needs, evaluated in full. Memory and GPU-hours are None where no GPU is used."""

    placement: str
    gpus: int
    cpus: float
    training_generations: int
    training_tokens: int  # at most
    evaluation_generations: int
    evaluation_tokens: int  # at most
    teacher_online_steps: int  # steps with the teacher resident while decoding
    memory: Memory | None
    gpu_hours: dict[str, Range] | None  # by phase


@dataclass(frozen=True)
class PlannedUnit:
    """A unit, the wave it starts in (from 1) and what it needs."""

    unit: Unit
    wave: int
    resources: Resources


@dataclass(frozen=True)
class Done:
    """What a runs folder holds of a unit.

    `selected`: the selection of its family is final; `rescored`: fresh samples of the selected checkpoint are there
    too; `complete`: `trb submit` has nothing to do for the unit.
    """

    steps: int = 0
    generations: int = 0  # that take part in selection, of all checkpoints
    selected: bool = False
    rescored: bool = False
    complete: bool = False


@dataclass(frozen=True)
class Plan:
    """Units in the order of the grid, the numbers their costs rest on, and what is there of them already, by id."""

    experiment: Experiment
    units: tuple[PlannedUnit, ...]
    assumptions: tuple[Assumption, ...]
    done: Mapping[str, Done] = field(default_factory=dict)


def make_plan(
    experiment: Experiment, units: Sequence[Unit] | None = None, done: Mapping[str, Done] | None = None
) -> Plan:
    """The plan of `experiment`, whose units are `units`: instant, without side effects."""
    units = expand(experiment) if units is None else units
    wave_of = {unit.id: number for number, wave in enumerate(waves(units), 1) for unit in wave}
    planned = (PlannedUnit(unit, wave_of[unit.id], resources(experiment, unit)) for unit in units)
    return Plan(experiment, tuple(planned), assumptions(experiment), done or {})


def resources(experiment: Experiment, unit: Unit) -> Resources:
    """What `unit` needs."""
    setup, placement = experiment.setups[unit.setup], unit.placement
    training, evaluated = setup.training, checkpoints_evaluated(unit, setup)
    generations = unit.steps * sequences_per_step(training)
    evaluations = evaluated * sum(evaluation_generations(setup).values())
    runtime = experiment.runtime
    return Resources(
        placement=placement.mode,
        gpus=placement.gpus,
        cpus=placement.cpus,
        training_generations=generations,
        training_tokens=generations * training.max_response_tokens,
        evaluation_generations=evaluations,
        evaluation_tokens=evaluations * setup.evaluation.max_response_tokens,
        teacher_online_steps=teacher_online_steps(unit),
        memory=memory(setup, runtime, GPU_GIB) if placement.gpus else None,
        gpu_hours=gpu_hours(setup, unit, runtime) if placement.gpus else None,
    )


def teacher_online_steps(unit: Unit) -> int:
    """Steps whose behavior policy needs the teacher's distribution at every token; they come first."""
    if not unit.is_trial:
        return 0
    return sum(needs_teacher(unit.method, unit.knobs, step) for step in range(unit.steps))


def gpu_hours(setup: Setup, unit: Unit, runtime: Runtime, first: int = 0) -> dict[str, Range]:
    """GPU-hours of a unit by phase from step `first` on; its evaluation in full."""
    low, high = (phase_seconds(setup, unit, runtime, scenario, first) for scenario in (LOW, HIGH))
    hours = {}
    for phase in PHASES:
        hours[phase] = Range(low[phase] * unit.placement.gpus / 3600, high[phase] * unit.placement.gpus / 3600)
    return hours


def phase_seconds(setup: Setup, unit: Unit, runtime: Runtime, scenario: Scenario, first: int = 0) -> dict[str, float]:
    """Seconds of a unit by phase from step `first` on; see the module's formulas."""
    student, teacher, training = decoder(setup.student, setup), decoder(setup.teacher, setup), setup.training
    flops_per_s = scenario.utilisation * PEAK_FLOPS
    tokens = sequences_per_step(training) * (
        scenario.prompt * training.max_prompt_tokens + scenario.mean_response * training.max_response_tokens
    )
    online, alone = steps_left(unit, first)
    scored = 0 if unit.is_supervised else alone
    return {
        ROLLOUT: rollout_seconds(setup, unit, runtime, scenario, first),
        SCORE: scored * 2 * teacher.parameters * tokens / flops_per_s,
        LEARN: (online + alone) * 6 * student.parameters * tokens / flops_per_s,
        EVALUATE: evaluation_seconds(setup, unit, runtime, scenario),
    }


def steps_left(unit: Unit, first: int = 0) -> tuple[int, int]:
    """Steps from `first` on that decode with the teacher, and those that do not."""
    online = max(0, teacher_online_steps(unit) - first)
    return online, max(0, unit.steps - first) - online


def rollout_seconds(setup: Setup, unit: Unit, runtime: Runtime, scenario: Scenario, first: int = 0) -> float:
    """Seconds to generate the training responses of a unit; batches are asked for only where they are decoded."""
    online, alone = steps_left(unit, first)
    if unit.is_supervised:  # the teacher answers by itself; its tokens are the targets
        return alone * step_seconds(setup, runtime, scenario, "teacher")
    seconds = alone * step_seconds(setup, runtime, scenario, "student") if alone else 0.0
    return seconds + (online * step_seconds(setup, runtime, scenario, "student", "teacher") if online else 0.0)


def step_seconds(setup: Setup, runtime: Runtime, scenario: Scenario, *roles: str) -> float:
    """Seconds to generate the responses of one optimizer step, `roles` decoding in lockstep."""
    training = setup.training
    sequences, limit = sequences_per_step(training), training.max_response_tokens
    batch = decode_batch(setup, runtime, GPU_GIB, blending="teacher" in roles)
    models = (decoder(getattr(setup, role), setup) for role in roles)
    return sum(decode_seconds(model, sequences, batch, limit, training, scenario) for model in models)


def evaluation_seconds(setup: Setup, unit: Unit, runtime: Runtime, scenario: Scenario) -> float:
    """Seconds to generate the answers of a unit's checkpoints, benchmark after benchmark."""
    evaluated, limit = checkpoints_evaluated(unit, setup), setup.evaluation.max_response_tokens
    if not evaluated:
        return 0.0
    student = decoder(setup.student, setup)
    batch = decode_batch(setup, runtime, GPU_GIB, False, limit, trains=unit.trains)
    return evaluated * sum(
        decode_seconds(student, generations, batch, limit, setup.training, scenario)
        for generations in evaluation_generations(setup).values()
    )


def decode_seconds(
    model: Decoder, sequences: int, batch: int, limit: int, training: Training, scenario: Scenario
) -> float:
    """Seconds one model takes to decode `sequences` responses of at most `limit` tokens."""
    steps = math.ceil(sequences / batch) * scenario.longest_response * limit
    mean = scenario.mean_response * limit
    context = scenario.prompt * training.max_prompt_tokens + mean / 2
    cache_traffic = cache_passes(model, scenario) * model.kv_bytes * sequences * mean * context
    launches = steps * scenario.launch_ms / 1000 * model.layers / LAUNCH_LAYERS
    return max(launches, (steps * model.weight_bytes + cache_traffic) / (scenario.bandwidth * HBM_BYTES_PER_S))


def cache_passes(model: Decoder, scenario: Scenario) -> int:
    """How often a decode step moves the KV cache; under a padding mask each query head gets its own copy."""
    return CACHE_PASSES + scenario.head_passes * model.head_groups


def decode_rate(setup: Setup, runtime: Runtime, scenario: Scenario, *roles: str) -> float:
    """Training rollout tokens per second of one GPU."""
    tokens = sequences_per_step(setup.training) * scenario.mean_response * setup.training.max_response_tokens
    return tokens / step_seconds(setup, runtime, scenario, *roles)


def assumptions(experiment: Experiment) -> tuple[Assumption, ...]:
    """What is assumed of lengths and hardware, and the rates that follow; nothing where no GPU is used."""
    uses_gpus = any(p.gpus for p in (experiment.runtime.placement, *experiment.placements.values()))
    return (*_lengths(), *_hardware(), *_rates(experiment)) if uses_gpus else ()


def _lengths() -> tuple[Assumption, ...]:
    return (
        _varied("mean response", "of the limit", "mean_response", "training and evaluation"),
        _varied("longest response of a batch", "of the limit", "longest_response", "the batch decodes until it ends"),
        _varied("prompt", "of the limit", "prompt", "with its padding"),
    )


def _varied(name: str, unit: str, field: str, why: str) -> Assumption:
    return Assumption(name, unit, getattr(LOW, field), getattr(HIGH, field), why)


def _fixed(name: str, unit: str, value: float, why: str) -> Assumption:
    return Assumption(name, unit, value, value, why)


def _hardware() -> tuple[Assumption, ...]:
    return (
        _varied("kernel launches of a step", f"ms at {LAUNCH_LAYERS} layers", "launch_ms", "eager decoding, ∝ layers"),
        _fixed("memory bandwidth", "TB/s", HBM_BYTES_PER_S / 1e12, "H100 SXM"),
        _varied("bandwidth reached", "of it", "bandwidth", "decoding"),
        _fixed("KV cache passes of a step", "× cache", CACHE_PASSES, "copied to append, then read"),
        _varied("and for each head of a KV head", "× cache", "head_passes", "repeated under a padding mask"),
        _fixed("peak arithmetic", "TFLOP/s", PEAK_FLOPS / 1e12, "H100 SXM, dense bfloat16"),
        _varied("arithmetic reached", "of it", "utilisation", "scoring and learning, padding included"),
        _fixed("GPU memory", "GiB", GPU_GIB, "for sequences at once"),
        _fixed("workspace", "GiB", WORKSPACE_GIB, "CUDA, a layer's cache copy, vocabulary rows"),
    )


def _rates(experiment: Experiment) -> list[Assumption]:
    """Derived, shown so that they can be compared with a measurement."""
    runtime, rates = experiment.runtime, []
    for name, setup in experiment.setups.items():
        room = memory(setup, runtime, GPU_GIB)
        kinds = (
            ("student alone", ("student",), room.sequences_decoded_vanilla),
            ("blending", ("student", "teacher"), room.sequences_decoded_blending),
        )
        for who, roles, fitting in kinds:
            if fitting:  # 0: no room for it, so nothing in the experiment decodes like this
                low, high = (decode_rate(setup, runtime, scenario, *roles) for scenario in (LOW, HIGH))
                rates.append(Assumption(f"{name}, {who}", "tokens/s", low, high, "derived: rollouts of one GPU"))
    return rates
