"""What an experiment will cost before anything runs: `trb plan`. Pure arithmetic on the configuration.

Memory of one trial on its GPU, in GiB (2³⁰ bytes), for n sequences of full length (prompt + response):

    generation, student alone   W_S + n·KV_S                     (paper, Appendix "Efficiency Analysis")
    generation, blending        W_S + W_Q + n·(KV_S + KV_Q)      (same)
    peak                        everything on the GPU then: learner state, workspace, and the teacher's weights
                                always, since a trial of one GPU scores every step with them
    sequences at once           ⌊(GPU − weights − learner state − workspace) ÷ KV per sequence⌋

Activations of scoring and learning (`runtime.micro_batch_tokens`) are not in it: they come when KV caches are gone.

Seconds, for sequences decoded in batches by the torch engine (lower bounds: no prefill, sampling, grading, loading):

    decode steps D   batches × longest response         (batches of `runtime.rollout_batch`, whether or not they
                                                         fit; each runs until its longest response ends)
    decoding         max(D × kernel launches of a step, (D × weights + cache traffic) ÷ bandwidth)
    cache traffic    passes × KV per token × tokens × (prompt + mean response ÷ 2), in bytes
    blending         student's decoding + teacher's decoding, in lockstep; the teacher's scores come with it
    scoring          2 × parameters × tokens ÷ FLOP/s   (teacher, prompt + response)
    learning         6 × parameters × tokens ÷ FLOP/s   (student, prompt + response)

Low and high are two scenarios (`LOW`, `HIGH`), not a confidence interval.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.config import Experiment, Model, Setup, Shape, Training
from orchestrator.grid import Unit, expand, problems_wanted, samples_wanted, waves

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

GIB = 2**30
BYTES = {"bfloat16": 2, "float32": 4}  # of a value in `engine.dtype`
GPU_GIB = 80.0
WORKSPACE_GIB = 6.0
HBM_BYTES_PER_S = 3.35e12  # H100 SXM data sheet
PEAK_FLOPS = 990e12  # H100 SXM data sheet, dense bfloat16
LAUNCH_LAYERS = 28
CACHE_PASSES = 3  # of a decode step: copied to append (read, written), read by attention
MASTER_BYTES = 4 + 8 + 4  # of a parameter in training, float32: weight, two AdamW moments, gradient
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
class Decoder:
    """A Qwen3 model as memory and arithmetic."""

    layers: int
    parameters: int
    value_bytes: int
    kv_bytes: int  # per token, keys and values of all layers
    head_groups: int  # query heads that share one key–value head

    @property
    def weight_bytes(self) -> int:
        return self.parameters * self.value_bytes


@dataclass(frozen=True)
class Memory:
    """GiB on the GPU of a trial (its other units need less); `sequences_…` are counts. See the module's formulas."""

    student_weights: float
    teacher_weights: float
    learner_state: float
    workspace: float
    kv_student: float  # per sequence of full length
    kv_teacher: float
    sequences_decoded: int  # n: `runtime.rollout_batch`, or all of a step if fewer
    generation_vanilla: float
    generation_blending: float
    peak_vanilla: float
    peak_blending: float
    sequences_at_once_vanilla: int  # on `GPU_GIB`; 0: does not fit
    sequences_at_once_blending: int


@dataclass(frozen=True)
class Resources:
    """What one unit needs. Memory and GPU-hours are None where no GPU is used."""

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


def make_plan(experiment: Experiment) -> Plan:
    """The plan of `experiment`: instant, without side effects."""
    units = expand(experiment)
    wave_of = {unit.id: number for number, wave in enumerate(waves(units), 1) for unit in wave}
    planned = (PlannedUnit(unit, wave_of[unit.id], resources(experiment, unit)) for unit in units)
    return Plan(experiment, tuple(planned), assumptions(experiment))


def resources(experiment: Experiment, unit: Unit) -> Resources:
    """What `unit` needs."""
    setup, placement = experiment.setups[unit.setup], unit.placement
    training, evaluated = setup.training, checkpoints_evaluated(unit, setup.training)
    generations = unit.steps * sequences_per_step(training)
    evaluations = evaluated * sum(evaluation_generations(setup).values())
    batch = experiment.runtime.rollout_batch
    return Resources(
        placement=placement.mode,
        gpus=placement.gpus,
        cpus=placement.cpus,
        training_generations=generations,
        training_tokens=generations * training.max_response_tokens,
        evaluation_generations=evaluations,
        evaluation_tokens=evaluations * setup.evaluation.max_response_tokens,
        teacher_online_steps=teacher_online_steps(unit),
        memory=memory(setup, batch) if placement.gpus else None,
        gpu_hours=gpu_hours(setup, unit, batch) if placement.gpus else None,
    )


def sequences_per_step(training: Training) -> int:
    """Rollouts of one optimizer step."""
    return training.prompts_per_step * training.samples_per_prompt


def checkpoints_evaluated(unit: Unit, training: Training) -> int:
    """A trial's are those of every `checkpoint_every` steps and the last; the supervised stage has none."""
    return {"base_eval": 1, "sft": 0}.get(unit.kind, math.ceil(unit.steps / training.checkpoint_every))


def evaluation_generations(setup: Setup) -> dict[str, int]:
    """Generations of one checkpoint by benchmark: problems × n."""
    evaluation = setup.evaluation
    return {key: problems_wanted(evaluation, key) * samples_wanted(evaluation, key) for key in evaluation.benchmarks}


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


def parameters(shape: Shape, vocabulary_size: int) -> int:
    """Parameters of a Qwen3 decoder; tied embeddings are counted once."""
    embeddings = vocabulary_size * shape.hidden * (1 if shape.tied else 2)
    attention = shape.hidden * shape.head_dim * 2 * (shape.heads + shape.kv_heads)  # q, o and k, v; no biases
    norms = 2 * shape.hidden + 2 * shape.head_dim  # before attention and MLP; of queries and keys
    mlp = 3 * shape.hidden * shape.ffn
    return embeddings + shape.layers * (attention + norms + mlp) + shape.hidden


def decoder(model: Model, setup: Setup) -> Decoder:
    """`model` in the setup's vocabulary and dtype."""
    shape, value_bytes = model.shape, BYTES[setup.engine.dtype]
    return Decoder(
        layers=shape.layers,
        parameters=parameters(shape, setup.vocabulary.size),
        value_bytes=value_bytes,
        kv_bytes=2 * shape.layers * shape.kv_heads * shape.head_dim * value_bytes,
        head_groups=shape.heads // shape.kv_heads,
    )


def memory(setup: Setup, rollout_batch: int) -> Memory:
    """Memory of a trial with all its roles on one GPU."""
    student, teacher, training = decoder(setup.student, setup), decoder(setup.teacher, setup), setup.training
    length = training.max_prompt_tokens + training.max_response_tokens
    w_s, w_q = student.weight_bytes / GIB, teacher.weight_bytes / GIB
    kv_s, kv_q = length * student.kv_bytes / GIB, length * teacher.kv_bytes / GIB
    # The forward pass works on a copy in `engine.dtype`, except where that is the master's own.
    copy_bytes = 0 if setup.engine.dtype == "float32" else student.value_bytes
    learner = student.parameters * (MASTER_BYTES + copy_bytes) / GIB
    resident = w_s + w_q + learner + WORKSPACE_GIB
    n = min(rollout_batch, sequences_per_step(training))
    free = max(0.0, GPU_GIB - resident)
    return Memory(
        student_weights=w_s,
        teacher_weights=w_q,
        learner_state=learner,
        workspace=WORKSPACE_GIB,
        kv_student=kv_s,
        kv_teacher=kv_q,
        sequences_decoded=n,
        generation_vanilla=w_s + n * kv_s,
        generation_blending=w_s + w_q + n * (kv_s + kv_q),
        peak_vanilla=resident + n * kv_s,
        peak_blending=resident + n * (kv_s + kv_q),
        sequences_at_once_vanilla=math.floor(free / kv_s),
        sequences_at_once_blending=math.floor(free / (kv_s + kv_q)),
    )


def gpu_hours(setup: Setup, unit: Unit, rollout_batch: int) -> dict[str, Range]:
    """GPU-hours of a unit by phase."""
    low, high = (phase_seconds(setup, unit, rollout_batch, scenario) for scenario in (LOW, HIGH))
    return {phase: Range(*(s[phase] * unit.placement.gpus / 3600 for s in (low, high))) for phase in PHASES}


def phase_seconds(setup: Setup, unit: Unit, rollout_batch: int, scenario: Scenario) -> dict[str, float]:
    """Seconds of a unit by phase; see the module's formulas."""
    student, teacher, training = decoder(setup.student, setup), decoder(setup.teacher, setup), setup.training
    evaluated, online = checkpoints_evaluated(unit, training), teacher_online_steps(unit)
    sequences = sequences_per_step(training)
    by_student, by_teacher = (
        decode_seconds(model, sequences, rollout_batch, training.max_response_tokens, training, scenario)
        for model in (student, teacher)
    )
    flops_per_s = scenario.utilisation * PEAK_FLOPS
    tokens = sequences * (
        scenario.prompt * training.max_prompt_tokens + scenario.mean_response * training.max_response_tokens
    )
    sft = unit.kind == "sft"  # the teacher answers by itself; its tokens are the targets
    return {
        "rollout": unit.steps * by_teacher if sft else unit.steps * by_student + online * by_teacher,
        "score": 0.0 if sft else (unit.steps - online) * 2 * teacher.parameters * tokens / flops_per_s,
        "learn": unit.steps * 6 * student.parameters * tokens / flops_per_s,
        "evaluate": evaluated * evaluation_seconds(setup, student, rollout_batch, scenario),
    }


def evaluation_seconds(setup: Setup, student: Decoder, rollout_batch: int, scenario: Scenario) -> float:
    """Seconds to generate the answers of one checkpoint, benchmark after benchmark."""
    limit = setup.evaluation.max_response_tokens
    return sum(
        decode_seconds(student, generations, rollout_batch, limit, setup.training, scenario)
        for generations in evaluation_generations(setup).values()
    )


def decode_seconds(
    model: Decoder, sequences: int, rollout_batch: int, limit: int, training: Training, scenario: Scenario
) -> float:
    """Seconds one model takes to decode `sequences` responses of at most `limit` tokens."""
    steps = math.ceil(sequences / rollout_batch) * scenario.longest_response * limit
    mean = scenario.mean_response * limit
    context = scenario.prompt * training.max_prompt_tokens + mean / 2
    cache_traffic = cache_passes(model, scenario) * model.kv_bytes * sequences * mean * context
    launches = steps * scenario.launch_ms / 1000 * model.layers / LAUNCH_LAYERS
    return max(launches, (steps * model.weight_bytes + cache_traffic) / (scenario.bandwidth * HBM_BYTES_PER_S))


def cache_passes(model: Decoder, scenario: Scenario) -> int:
    """How often a decode step moves the KV cache; under a padding mask each query head gets its own copy."""
    return CACHE_PASSES + scenario.head_passes * model.head_groups


def decode_rate(setup: Setup, blending: bool, rollout_batch: int, scenario: Scenario) -> float:
    """Training rollout tokens per second of one GPU."""
    training = setup.training
    sequences, limit = sequences_per_step(training), training.max_response_tokens
    models = [setup.student, setup.teacher] if blending else [setup.student]
    decoders = [decoder(model, setup) for model in models]
    seconds = sum(decode_seconds(d, sequences, rollout_batch, limit, training, scenario) for d in decoders)
    return sequences * scenario.mean_response * limit / seconds


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
    batch, rates = experiment.runtime.rollout_batch, []
    for name, setup in experiment.setups.items():
        for blending, who in ((False, "student alone"), (True, "blending")):
            low, high = (decode_rate(setup, blending, batch, scenario) for scenario in (LOW, HIGH))
            rates.append(Assumption(f"{name}, {who}", "tokens/s", low, high, "derived: rollouts of one GPU"))
    return rates


def totals(plan: Plan) -> dict[str, Any]:
    """Sums over the units, as plain values."""
    units = [planned.unit for planned in plan.units]
    trials = [unit for unit in units if unit.kind == "trial"]
    return {
        "units": len(units),
        "by_kind": dict(Counter(unit.kind for unit in units)),
        "by_setup": {name: dict(Counter(u.kind for u in units if u.setup == name)) for name in plan.experiment.setups},
        "by_method": dict(Counter(unit.method for unit in trials)),
        "waves": list(Counter(planned.wave for planned in plan.units).values()),
        "gpus_per_trial": max((unit.placement.gpus for unit in trials), default=0),
        "training": _generated(plan, "training"),
        "evaluation": _generated(plan, "evaluation"),
        "gpu_hours": _rounded(total_gpu_hours(plan)),
        "longest_unit_hours": _rounded_range(longest_unit_hours(plan)),
    }


def longest_unit_hours(plan: Plan) -> Range | None:
    """Hours on the clock of the unit that takes longest; None if no unit uses a GPU."""
    hours = [(Range.total(u.resources.gpu_hours.values()), u) for u in plan.units if u.resources.gpu_hours]
    return max((Range(h.low / u.resources.gpus, h.high / u.resources.gpus) for h, u in hours),
               key=lambda h: h.high, default=None)  # fmt: skip


def total_gpu_hours(plan: Plan) -> dict[str, Range] | None:
    """GPU-hours of all units by phase, with their `total`; None if no unit uses a GPU."""
    return _with_total([u.resources.gpu_hours for u in plan.units if u.resources.gpu_hours is not None])


def _with_total(parts: list[dict[str, Range]]) -> dict[str, Range] | None:
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
            "gpu_hours": _rounded(_with_total([needed.gpu_hours] if needed.gpu_hours else [])),
        },
    }


def _memory_json(of_trial: Memory | None) -> dict[str, float] | None:
    return None if of_trial is None else {name: round(value, 3) for name, value in asdict(of_trial).items()}


def _rounded(hours: dict[str, Range] | None) -> dict[str, Any] | None:
    return None if hours is None else {phase: _rounded_range(value) for phase, value in hours.items()}


def _rounded_range(value: Range | None) -> dict[str, float] | None:
    return None if value is None else {"low": round(value.low, 3), "high": round(value.high, 3)}


def render(plan: Plan) -> Group:
    """The plan for a terminal of 80 columns or more."""
    from rich.console import Group

    total, hours, memories = totals(plan), total_gpu_hours(plan), _memories(plan)
    parts: list[Any] = [_heading(plan, total), "", _methods_table(plan), "", *_order(plan, total)]
    if memories:
        parts += ["", _memory_table(memories), *_memory_notes(memories)]
    parts += ["", _tokens_table(total), *_ratio(total), ""]
    if hours is None:
        return Group(*parts, "GPU-hours: — (no GPU is used)")
    return Group(*parts, _hours_table(plan, hours), *_longest(plan), "", _assumptions_table(plan))


def _heading(plan: Plan, total: dict[str, Any]) -> str:
    from rich.markup import escape

    names = {"trial": "trial", "base_eval": "base evaluation", "sft": "supervised stage"}
    kinds = ", ".join(_count(total["by_kind"][kind], name) for kind, name in names.items() if kind in total["by_kind"])
    lines = [f"[bold]{escape(plan.experiment.name)}[/] · {_count(total['units'], 'unit')}: {kinds}"]
    for key, setup in plan.experiment.setups.items():
        trials = _count(total["by_setup"][key].get("trial", 0), "trial")
        lines.append(f"  {escape(key)}: {escape(setup.title)} · {trials}")
    return "\n".join(lines)


def _methods_table(plan: Plan) -> Table:
    """Trials by method and setup with the grid that makes them."""
    table, setups = _table("trials by method", "grid"), list(plan.experiment.setups)
    for name in setups:
        table.add_column(name, justify="right", no_wrap=True)
    counts = Counter((u.unit.method, u.unit.setup) for u in plan.units)
    for method, grid in plan.experiment.methods.items():
        sweep = " × ".join(f"{knob} {', '.join(f'{v:g}' for v in values)}" for knob, values in grid.items())
        table.add_row(method, sweep, *(str(counts[method, name]) for name in setups))
    if len(plan.experiment.seeds) > 1:
        table.add_row("", f"each with seeds {', '.join(map(str, plan.experiment.seeds))}", *[""] * len(setups))
    return table


def _order(plan: Plan, total: dict[str, Any]) -> list[str]:
    """What can start at once and what waits for what."""
    placements = Counter((u.resources.placement, u.resources.gpus, u.resources.cpus) for u in plan.units)
    needs = "; ".join(
        f"{_count(number, 'unit')} {mode} on {_count(gpus, 'GPU') if gpus else 'no GPU'} and {_count(cpus, 'CPU core')}"
        for (mode, gpus, cpus), number in placements.items()
    )
    waiting = Counter(needed for u in plan.units for needed in u.unit.depends_on)
    lines = [f"placement: {needs}", f"order: {_count(total['waves'][0], 'unit')} can start at once"]
    return [*lines, *(f"  {needed} → {_count(number, 'trial')}" for needed, number in waiting.items())]


def _memories(plan: Plan) -> dict[str, Memory]:
    """Memory by setup, of those that use a GPU."""
    return {u.unit.setup: u.resources.memory for u in plan.units if u.resources.memory is not None}


def _memory_table(memories: dict[str, Memory]) -> Table:
    rows = {
        "student weights W_S": "student_weights",
        "teacher weights W_Q": "teacher_weights",
        "learner: float32 master, moments, gradient; copy": "learner_state",
        "workspace": "workspace",
        "KV_S of a sequence of full length": "kv_student",
        "KV_Q of a sequence of full length": "kv_teacher",
        "sequences decoded at once, n": "sequences_decoded",
        "generation W_S + n·KV_S": "generation_vanilla",
        "generation W_S + W_Q + n·(KV_S + KV_Q)": "generation_blending",
        "peak, all on the GPU, student alone": "peak_vanilla",
        "peak, all on the GPU, blending": "peak_blending",
        f"sequences that fit in {GPU_GIB:g} GiB, student alone": "sequences_at_once_vanilla",
        f"sequences that fit in {GPU_GIB:g} GiB, blending": "sequences_at_once_blending",
    }
    table = _table("memory of a trial on its GPU, GiB", *memories, right_from=1)
    for label, field in rows.items():
        values = [getattr(of_trial, field) for of_trial in memories.values()]
        table.add_row(label, *(str(v) if isinstance(v, int) else f"{v:.2f}" for v in values))
    return table


def _memory_notes(memories: dict[str, Memory]) -> list[str]:
    notes = ["[dim]Not counted: activations of scoring and learning, which hold no cache (micro_batch_tokens).[/]"]
    surely = min(min(m.sequences_at_once_vanilla, m.sequences_at_once_blending) for m in memories.values())
    decoded = max(m.sequences_decoded for m in memories.values())
    if surely == 0:
        notes.append(f"[yellow]Not even one sequence of full length fits in {GPU_GIB:g} GiB while blending.[/]")
    elif decoded > surely:
        notes.append(
            f"[yellow]runtime.rollout_batch: {decoded} sequences fit in {GPU_GIB:g} GiB only while they are short; "
            f"{surely} fit at full length, blending included.[/]"
        )
    return notes


def _tokens_table(total: dict[str, Any]) -> Table:
    table = _table("generated", "generations", "tokens at most", "tokens expected", right_from=1)
    for what in ("training", "evaluation"):
        most, expected = total[what]["tokens"]["most"], total[what]["tokens"]["expected"]
        span = _span(expected["low"], expected["high"], _short) if expected else "—"
        table.add_row(what, f"{total[what]['generations']:,}", _short(most), span)
    return table


def _ratio(total: dict[str, Any]) -> list[str]:
    training, evaluation = total["training"]["generations"], total["evaluation"]["generations"]
    if not training:
        return []
    return [f"Evaluation generates {evaluation / training:.1f} responses for each one of training."]


def _hours_table(plan: Plan, hours: dict[str, Range]) -> Table:
    """GPU-hours by phase for each setup and all of them."""
    by_setup = {
        name: _with_total([u.resources.gpu_hours for u in plan.units if u.unit.setup == name and u.resources.gpu_hours])
        for name in plan.experiment.setups
    }
    columns = {name: part for name, part in by_setup.items() if part} | {"all": hours}
    table = _table("GPU-hours, H100", *columns, right_from=1)
    for phase in (*PHASES, "total"):
        row = [_span(part[phase].low, part[phase].high, _short_hours) for part in columns.values()]
        table.add_row(phase, *row, style="bold" if phase == "total" else None)
    return table


def _longest(plan: Plan) -> list[str]:
    hours = longest_unit_hours(plan)
    if hours is None:
        return []
    days = _span(hours.low / 24, hours.high / 24, _short_hours)
    return [f"The longest unit takes {_span(hours.low, hours.high, _short_hours)} hours ({days} days) on the clock."]


def _assumptions_table(plan: Plan) -> Table:
    """One row each: the values of the low and of the high estimate, and why."""
    table = _table("assumed", "low", "high", "unit", "why")
    for column in table.columns[1:3]:
        column.justify = "right"
    table.columns[4].no_wrap = False
    for a in plan.assumptions:
        table.add_row(a.name, _plain(a.low), "" if a.low == a.high else _plain(a.high), a.unit, a.why, style="dim")
    return table


def _table(*headings: str, right_from: int | None = None) -> Table:
    """A table without lines; columns from `right_from` on hold numbers. A grid may wrap, nothing else."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, heading in enumerate(headings):
        right = right_from is not None and index >= right_from
        table.add_column(heading, justify="right" if right else "left", no_wrap=heading != "grid")
    return table


def _count(number: float, noun: str) -> str:
    return f"{number:g} {noun}{'' if number == 1 else 's'}"


def _span(low: float, high: float, form: Callable[[float], str]) -> str:
    return form(low) if low == high else f"{form(low)} – {form(high)}"


def _short(number: float) -> str:
    """`1.86 T`, `63.1 B`, `840 k`: three digits."""
    for size, suffix in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return _three_digits(number / size) + suffix
    return f"{number:g}"


def _short_hours(hours: float) -> str:
    return _three_digits(hours) if hours < 1000 else f"{float(f'{hours:.3g}'):,.0f}"


def _three_digits(number: float) -> str:
    decimals = 0 if number >= 100 else 1 if number >= 10 else 2
    return f"{number:.{decimals}f}"


def _plain(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:g}"
