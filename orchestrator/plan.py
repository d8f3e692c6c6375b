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

Low and high are two scenarios (`LOW`, `HIGH`), not a confidence interval. Memory is `orchestrator.memory`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.config import Experiment, Runtime, Setup, Training
from orchestrator.evaluation_budget import Cost, budgets, checkpoints_evaluated, disk_gib, evaluation_generations
from orchestrator.grid import Unit, expand, waves
from orchestrator.memory import WORKSPACE_GIB, Decoder, Memory, decode_batch, decoder, memory, sequences_per_step

GPU_GIB = 80.0  # of the GPU planned for
HBM_BYTES_PER_S = 3.35e12  # H100 SXM data sheet
PEAK_FLOPS = 990e12  # H100 SXM data sheet, dense bfloat16
LAUNCH_LAYERS = 28
CACHE_PASSES = 3  # of a decode step: copied to append (read, written), read by attention
PHASES = ("rollout", "score", "learn", "evaluate")


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
class Range:
    """A low and a high estimate."""

    low: float
    high: float

    @staticmethod
    def total(ranges: Iterable[Range]) -> Range:
        parts = list(ranges)
        return Range(sum(part.low for part in parts), sum(part.high for part in parts))


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
class Plan:
    """Units in the order of the grid, and the numbers their costs rest on."""

    experiment: Experiment
    units: tuple[PlannedUnit, ...]
    assumptions: tuple[Assumption, ...]


def make_plan(experiment: Experiment, runs: Path | None = None) -> Plan:
    """The plan of `experiment`: instant, without side effects. `runs` is where embedded models were made."""
    units = expand(experiment, runs)
    wave_of = {unit.id: number for number, wave in enumerate(waves(units), 1) for unit in wave}
    planned = (PlannedUnit(unit, wave_of[unit.id], resources(experiment, unit)) for unit in units)
    return Plan(experiment, tuple(planned), assumptions(experiment))


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
    """Steps whose behavior policy needs the teacher's distribution at every token."""
    match unit.method:
        case "trust_region":
            return min(unit.knobs["K"], unit.steps) if unit.knobs["epsilon0"] > 0 else 0
        case "fixed_epsilon":
            return unit.steps if unit.knobs["epsilon"] > 0 else 0
        case "skd":
            return unit.steps
        case _:
            return 0


def gpu_hours(setup: Setup, unit: Unit, runtime: Runtime) -> dict[str, Range]:
    """GPU-hours of a unit by phase."""
    low, high = (phase_seconds(setup, unit, runtime, scenario) for scenario in (LOW, HIGH))
    return {phase: Range(*(s[phase] * unit.placement.gpus / 3600 for s in (low, high))) for phase in PHASES}


def phase_seconds(setup: Setup, unit: Unit, runtime: Runtime, scenario: Scenario) -> dict[str, float]:
    """Seconds of a unit by phase; see the module's formulas."""
    student, teacher, training = decoder(setup.student, setup), decoder(setup.teacher, setup), setup.training
    flops_per_s = scenario.utilisation * PEAK_FLOPS
    tokens = sequences_per_step(training) * (
        scenario.prompt * training.max_prompt_tokens + scenario.mean_response * training.max_response_tokens
    )
    scored = 0 if unit.kind == "sft" else unit.steps - teacher_online_steps(unit)
    return {
        "rollout": rollout_seconds(setup, unit, runtime, scenario),
        "score": scored * 2 * teacher.parameters * tokens / flops_per_s,
        "learn": unit.steps * 6 * student.parameters * tokens / flops_per_s,
        "evaluate": evaluation_seconds(setup, unit, runtime, scenario),
    }


def rollout_seconds(setup: Setup, unit: Unit, runtime: Runtime, scenario: Scenario) -> float:
    """Seconds to generate the training responses of a unit; batches are asked for only where they are decoded."""
    if unit.kind == "sft":  # the teacher answers by itself; its tokens are the targets
        return unit.steps * step_seconds(setup, runtime, scenario, "teacher")
    online = teacher_online_steps(unit)
    alone = unit.steps - online
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
    batch = decode_batch(setup, runtime, GPU_GIB, False, limit, trains=unit.kind != "base_eval")
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


def totals(plan: Plan) -> dict[str, Any]:
    """Sums over the units, as plain values."""
    units = [planned.unit for planned in plan.units]
    trials = [unit for unit in units if unit.kind == "trial"]
    hours = chosen_gpu_hours(plan)
    return {
        "units": len(units),
        "by_kind": dict(Counter(unit.kind for unit in units)),
        "by_setup": {name: dict(Counter(u.kind for u in units if u.setup == name)) for name in plan.experiment.setups},
        "by_method": dict(Counter(unit.method for unit in trials)),
        "waves": list(Counter(planned.wave for planned in plan.units).values()),
        "gpus_per_trial": max((unit.placement.gpus for unit in trials), default=0),
        "training": _generated(plan, "training"),
        "evaluation": _generated(plan, "evaluation"),
        "evaluation_budgets": {name: _cost_json(cost) for name, cost in evaluation_budgets(plan).items()},
        "evaluation_chosen": _chosen(plan.experiment),
        "chosen_gpu_hours": None if hours is None else _rounded_range(Range(*hours)),
        "checkpoints_gib": dict(zip(("kept", "most"), _rounded_span(checkpoints_gib(plan)), strict=True)),
        "gpu_hours": _rounded(total_gpu_hours(plan)),
        "longest_unit_hours": _rounded_range(longest_unit_hours(plan)),
    }


def evaluation_budgets(plan: Plan, setup: str | None = None) -> dict[str, Cost]:
    """Cost of evaluation under each budget and of rescoring, of one setup or all; see `evaluation_budget`."""
    spans = {u.unit.id: u.resources.gpu_hours["evaluate"] for u in plan.units if u.resources.gpu_hours}
    hours = {unit_id: (span.low, span.high) for unit_id, span in spans.items()}
    return budgets(plan.experiment, [u.unit for u in plan.units if setup in (None, u.unit.setup)], hours)


def chosen_gpu_hours(plan: Plan) -> tuple[float, float] | None:
    """GPU-hours of everything as chosen: training, evaluation under each setup's budget, rescoring if asked for."""
    whole = total_gpu_hours(plan)
    if whole is None:
        return None
    trained = Range.total(whole[phase] for phase in PHASES if phase != "evaluate")
    low, high = trained.low, trained.high
    for name, setup in plan.experiment.setups.items():
        costs = evaluation_budgets(plan, name)
        for cost in [costs[setup.evaluation.budget], *([costs["rescore"]] if setup.evaluation.rescore else [])]:
            if cost.gpu_hours:
                low, high = low + cost.gpu_hours[0], high + cost.gpu_hours[1]
    return low, high


def checkpoints_gib(plan: Plan) -> tuple[float, float]:
    """GiB of checkpoints kept in the end, and the most before."""
    return disk_gib(plan.experiment, [u.unit for u in plan.units])


def _chosen(experiment: Experiment) -> dict[str, dict[str, Any]]:
    names = ("budget", "error", "rescore")
    return {key: {name: getattr(s.evaluation, name) for name in names} for key, s in experiment.setups.items()}


def _cost_json(cost: Cost) -> dict[str, Any]:
    low, high = cost.generations
    hours = None if cost.gpu_hours is None else _rounded_range(Range(*cost.gpu_hours))
    return {"generations": {"low": round(low), "high": round(high)}, "gpu_hours": hours}


def _rounded_span(span: tuple[float, float]) -> tuple[float, float]:
    return round(span[0], 3), round(span[1], 3)


def longest_unit_hours(plan: Plan) -> Range | None:
    """Hours on the clock of the unit that takes longest; None if no unit uses a GPU."""
    hours = [(Range.total(u.resources.gpu_hours.values()), u) for u in plan.units if u.resources.gpu_hours]
    return max((Range(h.low / u.resources.gpus, h.high / u.resources.gpus) for h, u in hours),
               key=lambda h: h.high, default=None)  # fmt: skip


def total_gpu_hours(plan: Plan) -> dict[str, Range] | None:
    """GPU-hours of all units by phase, with their `total`; None if no unit uses a GPU."""
    return with_total([u.resources.gpu_hours for u in plan.units if u.resources.gpu_hours is not None])


def with_total(parts: list[dict[str, Range]]) -> dict[str, Range] | None:
    """Sums by phase and their `total`; None of nothing."""
    if not parts:
        return None
    phases = {phase: Range.total(part[phase] for part in parts) for phase in PHASES}
    return phases | {"total": Range.total(phases.values())}


def _generated(plan: Plan, what: str) -> dict[str, Any]:
    """Generations and tokens of training or of evaluation.

    Expected tokens follow from the assumed mean response; None where nothing is assumed.
    """
    generations = sum(getattr(planned.resources, f"{what}_generations") for planned in plan.units)
    most = sum(getattr(planned.resources, f"{what}_tokens") for planned in plan.units)
    expected = None
    if plan.assumptions:
        expected = {"low": round(most * LOW.mean_response), "high": round(most * HIGH.mean_response)}
    return {"generations": generations, "tokens": {"most": most, "expected": expected}}


def to_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values: `units`, `totals`, `assumptions`."""
    return {
        "units": [_unit_json(planned) for planned in plan.units],
        "totals": totals(plan),
        "assumptions": [asdict(assumption) for assumption in plan.assumptions],
    }


def _unit_json(planned: PlannedUnit) -> dict[str, Any]:
    unit, needed = planned.unit, planned.resources
    return {
        "id": unit.id,
        "kind": unit.kind,
        "setup": unit.setup,
        "method": unit.method,
        "knobs": dict(unit.knobs),
        "seed": unit.seed,
        "depends_on": list(unit.depends_on),
        "wave": planned.wave,
        "steps": unit.steps,
        "resources": {
            "placement": needed.placement,
            "gpus": needed.gpus,
            "cpus": needed.cpus,
            "training_generations": needed.training_generations,
            "training_tokens": {"most": needed.training_tokens},
            "evaluation_generations": needed.evaluation_generations,
            "evaluation_tokens": {"most": needed.evaluation_tokens},
            "teacher_online_steps": needed.teacher_online_steps,
            "memory_gib": _memory_json(needed.memory),
            "gpu_hours": _rounded(with_total([needed.gpu_hours] if needed.gpu_hours else [])),
        },
    }


def _memory_json(of_trial: Memory | None) -> dict[str, float] | None:
    return None if of_trial is None else {name: round(value, 3) for name, value in asdict(of_trial).items()}


def _rounded(hours: dict[str, Range] | None) -> dict[str, Any] | None:
    return None if hours is None else {phase: _rounded_range(value) for phase, value in hours.items()}


def _rounded_range(value: Range | None) -> dict[str, float] | None:
    return None if value is None else {"low": round(value.low, 3), "high": round(value.high, 3)}
