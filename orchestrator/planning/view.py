"""`trb plan` on a terminal, the four sections of `planning.plan` and why units would run, and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from orchestrator.experiment.axes import short_names, value_text
from orchestrator.experiment.methods import method_label
from orchestrator.experiment.units import KIND_NAMES, Kind, widest_setup
from orchestrator.planning.calibrated import MEASURED_WORDS
from orchestrator.planning.numbers import (
    Range,
    counted,
    gib_text,
    hours_text,
    long_time,
    short,
    short_hours,
    span_text,
)
from orchestrator.planning.plan import (
    ALL_PHASES,
    TOTAL,
    Plan,
    TimeLeft,
    checkpoints_gib,
    full_length,
    generated,
    longest_chain_hours,
    longest_unit_hours,
    memories,
    packing_gains,
    repeated_by_kill,
    states_gib,
    step_seconds,
    sufficient_hours,
    total_gpu_hours,
    unit_hours,
)
from orchestrator.planning.progress import Reason
from orchestrator.planning.rates import RATES
from orchestrator.records.log import MEASURE
from orchestrator.selection.confirmation import LOOKS
from orchestrator.sheet import Cell, Sheet, to_rich

# What the document has of a unit itself, beside its `done` and its `resources`.
OF_UNITS = ("id", "kind", "setup", "method", "knobs", "seed", "depends_on", "steps")
MOST_DIFFERENCES = 6  # shown of a unit's nearest neighbour
MOST_SETUPS = 4  # that have columns of their own
KINDS: tuple[Kind, ...] = ("trial", "base_eval", "sft")  # as they are counted in the first line
WORTH_PACKING = 0.1  # of the GPU-hours of training: a smaller gain is not recommended


def render(plan: Plan, clock: TimeLeft, reasons: Sequence[Reason] | None = None) -> Group:
    """The plan for a terminal of 80 columns or more; with `reasons`, why each unit would run."""
    units, left = len(plan.units), len(plan.left)
    why = [] if reasons is None else ["", *_why(reasons)]
    parts: list[Any] = [_heading(plan)]
    if not left:
        return Group(*parts, f"{units} of {units} units done: nothing to run.", *why)
    begun = left < units or any(done.steps or done.generations for done in plan.done.values())
    if begun:
        parts.append(
            f"{units - left} of {units} units done; hours and minutes are of what is left."
        )
    parts += ["", *_answer(plan, clock, begun)]
    parts += ["", _methods_table(plan), "", *_order(plan), *_responses(plan)]
    if plan.on_gpus:
        parts += ["", _hours_table(plan, begun), *map(escape, _basis(plan))]
        parts += ["", *_memory(plan)]
    parts += why
    if reasons is None:
        parts.append("[dim]--why: why each unit would run.[/]")
    return Group(*parts)


# --- the answer ---


def _answer(plan: Plan, clock: TimeLeft, begun: bool) -> list[str]:
    """The time, GPU-hours, disk, and the limit to submit with."""
    lines = _on_the_clock(plan, clock, begun)
    hours = total_gpu_hours(plan, left=begun)
    if plan.on_gpus and hours:
        lines.append(f"{hours_text(hours[TOTAL])} GPU-hours on {plan.gpu_of_trial.title}.")
    disk, keep = checkpoints_gib(plan), plan.experiment.runtime.keep
    until = "" if disk.kept == disk.most else f", {gib_text(disk.most)} at most before"
    states = f"; each trial in training {gib_text(states_gib(plan))} more" if plan.on_gpus else ""
    lines.append(
        f"Checkpoints take {gib_text(disk.kept)} on disk in the end{until} (keep: {keep}){states}."
    )
    lost = repeated_by_kill(plan)
    if lost is not None:
        hours = "" if lost.gpu_hours is None else f", {short_hours(lost.gpu_hours)} GPU-hours,"
        lines.append(f"A kill repeats at most {counted(lost.steps, 'step')}{hours} of a trial.")
    return [*lines, *(_advice(plan) if plan.on_gpus else [])]


# --- units ---


def _heading(plan: Plan) -> str:
    by_kind = Counter(planned.unit.kind for planned in plan.units)
    kinds = ", ".join(counted(by_kind[kind], KIND_NAMES[kind]) for kind in KINDS if by_kind[kind])
    name = escape(plan.experiment.name)
    lines = [f"[bold]{name}[/] · {counted(len(plan.units), 'unit')}: {kinds}"]
    for key, setup in plan.experiment.setups.items():
        trials = sum(planned.unit.is_trial for planned in plan.of_setup(key))
        lines.append(f"  {escape(key)}: {escape(setup.title)} · {counted(trials, 'trial')}")
    return "\n".join(lines)


def _values(values: Sequence[Any], drawn: Any) -> str:
    """`0.05, 0.5`; many of a range as `0.05 … 0.5`."""
    texts = [value_text(value) for value in values]
    return f"{texts[0]} … {texts[-1]}" if drawn and len(texts) > 3 else ", ".join(texts)


def _methods_table(plan: Plan) -> Table:
    """Trials by method and setup with the grid that makes them."""
    experiment, setups, rows = plan.experiment, list(plan.experiment.setups), []
    trials: Counter[tuple[str | None, str]] = Counter()
    for planned in plan.units:
        confirms = planned.unit.id in plan.confirming
        trials["confirming" if confirms else planned.unit.method, planned.unit.setup] += 1
    for method, grid in experiment.methods.items():
        own = experiment.method_seeds.get(method)
        axes = {**grid, "seeds": own} if own else grid
        short = short_names(axes)
        drawn = experiment.points.get(method, [])
        words = [f"{short[name]} {_values(axes[name], name in grid and drawn)}" for name in axes]
        of_grid = f"{counted(len(drawn), 'point')} of " if drawn else ""
        if method in experiment.spaces:
            of_grid = f"{experiment.search.trials} points, first {of_grid}"
        counts = _by_setup([trials[method, name] for name in setups])
        rows.append([method_label(method), of_grid + " × ".join(words), *counts])
    without_own = experiment.methods.keys() - experiment.method_seeds.keys()
    if without_own and len(experiment.explored_seeds) > 1:
        each = "others" if experiment.method_seeds else "each"
        seeds = f"seed{'s' if len(experiment.seeds) > 1 else ''}"
        words = f"{each} with {seeds} {', '.join(map(str, experiment.seeds))}"
        rows.append(["", words, *[""] * len(_by_setup([0] * len(setups)))])
    if plan.confirming:
        others = ", ".join(map(str, experiment.confirm.seeds))
        purpose = f"what each is chosen for, on seeds {others}; one checkpoint each"
        if experiment.confirm.until is not None:
            purpose += f"; until decided up to {LOOKS} times as many"
        counts = _by_setup([trials["confirming", name] for name in setups])
        rows.append(["confirming", purpose, *counts])
    columns = [f"each of {len(setups)} setups", "all"] if len(setups) > MOST_SETUPS else setups
    return to_rich(Sheet.of(["trials by method", "grid", *columns], rows, left=(0, 1)))


def _by_setup(counts: Sequence[int]) -> list[str]:
    """A cell for each setup; of more setups than a line holds, one for each and one for all."""
    if len(counts) <= MOST_SETUPS:
        return list(map(str, counts))
    least, most = min(counts), max(counts)
    return [str(most) if least == most else f"{least} – {most}", str(sum(counts))]


def _order(plan: Plan) -> list[str]:
    """Placements of the units that are left, and how many of them wait for others."""
    left = {planned.unit.id: planned for planned in plan.left}
    placements = Counter(
        (each.resources.placement, each.resources.gpus, each.resources.cpus)
        for each in left.values()
    )
    placed = []
    for (mode, gpus, cpus), number in placements.items():
        on = f"{counted(gpus, 'GPU') if gpus else 'no GPU'} and {counted(cpus, 'CPU core')}"
        placed.append(f"{counted(number, 'unit')} {mode} on {on}")
    waits = [left.keys() & each.unit.depends_on for each in left.values()]
    waiting = sum(map(bool, waits))
    order = f"order: {counted(len(left) - waiting, 'unit')} can start at once"
    if waiting:
        kinds: Counter[Kind] = Counter(left[unit].unit.kind for unit in set().union(*waits))
        first = " and ".join(counted(number, KIND_NAMES[kind]) for kind, number in kinds.items())
        order += f"; {waiting} wait{'s' if waiting == 1 else ''} for {first}"
    return [f"placement: {'; '.join(placed)}", order]


def _responses(plan: Plan) -> list[str]:
    """Responses and tokens of training, and of the evaluation in full."""
    lines = []
    for what, made in generated(plan).items():
        if not made.generations:
            continue
        line = f"{what.replace('_', ' ')}: {made.generations:,} responses"
        if made.expected_tokens is not None:
            line += f", {span_text(made.expected_tokens, short)} tokens expected"
        lines.append(f"{line}, {short(made.most_tokens)} tokens at most")
    chosen = {setup.evaluation.budget for setup in plan.experiment.setups.values()}
    if "adaptive" in chosen:
        lines[-1] += "; races take a part of them (benchmarks/race.py)"
    return lines


def _why(reasons: Sequence[Reason]) -> list[str]:
    """A line for each unit; below it the fields that the nearest directory has otherwise."""
    lines = ["[bold]why each unit would run[/]"]
    for reason in reasons:
        lines.append(escape(f"{reason.unit.id}: {reason.why}"))
        if reason.nearest:
            more = len(reason.differences) - MOST_DIFFERENCES
            shown = list(reason.differences[:MOST_DIFFERENCES])
            if more > 0:
                shown.append(f"and {more} more")
            lines.append(escape(f"  nearest: {reason.nearest}"))
            lines += [escape(f"    {difference}") for difference in shown]
    return lines


# --- memory ---


def _memory(plan: Plan) -> list[str]:
    """The budgets of each setup, and a warning where a batch may not fit."""
    lines = []
    gib, batch = plan.gpu_of_trial.gib, plan.experiment.runtime.rollout_batch
    for name, budgets in memories(plan).items():
        lines.append(f"[bold]GiB on each GPU of a trial of {escape(name)}, of {gib:g}[/]")
        fitting = []
        for situation, granted in budgets.items():
            line = f"  {granted or f'{situation} does not fit'}"
            if granted is not None and situation in ("decoding", "blending"):
                fitting.append(full_length(granted, widest_setup(plan.experiment, name)))
                line += f"; {fitting[-1]} at full length"
            lines.append(line)
        if batch is not None and batch > min(fitting, default=batch):
            note = f"runtime.rollout_batch: {batch} responses fit only while they are short; "
            lines.append(f"[yellow]{note}{min(fitting)} fit at full length.[/]")
    return lines


# --- GPU-hours ---


def _hours_table(plan: Plan, begun: bool) -> Table:
    """GPU-hours by phase as chosen: before a sweep by setup, then what is left beside the whole."""
    setups = list(plan.experiment.setups)
    columns = {"left": total_gpu_hours(plan, left=True)} if begun else {}
    if not begun and len(setups) <= MOST_SETUPS:
        columns = {name: total_gpu_hours(plan, name) for name in setups}
    columns["whole" if begun else "all"] = total_gpu_hours(plan)
    known = {name: hours for name, hours in columns.items() if hours}
    budgets = sorted({setup.evaluation.budget for setup in plan.experiment.setups.values()})
    names = {"evaluate": f"evaluate, {' and '.join(budgets)}", "rescore": "fresh samples"}
    names |= {MEASURE: "held-out prompts"}
    rows = []
    for phase in (*ALL_PHASES, TOTAL):
        texts = [names.get(phase, phase), *(hours_text(hours[phase]) for hours in known.values())]
        rows.append([Cell(text, mark="total" if phase == TOTAL else None) for text in texts])
    return to_rich(Sheet([f"GPU-hours, {plan.gpu_of_trial.title}", *known], rows))


def _advice(plan: Plan) -> list[str]:
    """A limit of GPU-hours that the high estimate fits in, and setups that gain by sharing GPUs."""
    lines = []
    hours = sufficient_hours(plan)
    if hours is not None:
        lines.append(f"`trb submit --max-gpu-hours {hours:g}` has room for the high estimate.")
    for name, gain in packing_gains(plan).items():
        if gain > WORTH_PACKING:
            line = f"Two trials of {escape(name)} on each GPU (runtime.placement.gpus=0.5) would "
            lines.append(f"{line}take about {100 * gain:.0f} % fewer GPU-hours in training.")
    return lines


def _basis(plan: Plan) -> list[str]:
    """The engines, and the basis of rates and lengths: runs, calibrations, published numbers."""
    engines = {setup.engine for setup in plan.experiment.setups.values()}
    samplers = " and ".join(sorted({RATES[engine.sampler].title for engine in engines}))
    trainers = " and ".join(sorted({engine.trainer for engine in engines}))
    lines = [f"Engines: {samplers} for sampling, {trainers} for scoring and training."]
    if any(costs.factors.keys() - costs.sources.keys() for costs in plan.costs.values()):
        seconds = "the seconds of the engine that they ran on"
        lines.append(f"Finished runs gave lengths of responses and {seconds}.")
    calibrated: dict[str, dict[str, list[str]]] = {}  # source of rates → setup → what it measured
    for name, costs in plan.costs.items():
        for key, source in costs.sources.items():
            if key in MEASURED_WORDS:
                of_setups = calibrated.setdefault(source, {})
                of_setups.setdefault(name, []).append(MEASURED_WORDS[key])
    for source, of_setups in calibrated.items():
        measured = "; ".join(f"{name}: {', '.join(words)}" for name, words in of_setups.items())
        rest = "All else is published or assumed."
        lines.append(f"{source[0].upper()}{source[1:]} ({measured}). {rest}")
    if len(lines) == 1:
        assumed = "rates and lengths are published or assumed (orchestrator/planning/rates.py)"
        lines.append(f"No run measured an engine on this GPU yet: {assumed}.")
    gpu = plan.gpu_of_trial
    for calibration in plan.measured.calibrations:
        if not calibration.card.is_a(gpu):
            kinds = f"{calibration.card.name} says nothing of {gpu.title}"
            lines.append(f"What was calibrated on {kinds} and is left out.")
    return lines


# --- the clock ---


def _on_the_clock(plan: Plan, clock: TimeLeft, begun: bool) -> list[str]:
    """How long it takes at least, with any number of GPUs, and how long on these machines."""
    if clock.cpu_cores is not None:
        return [_cpu_time(clock.cpu_cores, clock.cpu_seconds)]
    unit, chain = longest_unit_hours(plan, begun), longest_chain_hours(plan, begun)
    if unit is None or chain is None or clock.gpu_clock_hours is None:
        return []
    lines = [f"The longest unit trains for {long_time(unit)} on the clock."] if unit.high else []
    if chain != unit:
        waiting = "The longest chain of units that wait for each other takes"
        lines.append(f"{waiting} {long_time(chain)}.")
    on = f"On {counted(clock.gpus, 'GPU')}{', kept busy' if clock.gpus > 1 else ''}"
    return [*lines, f"[bold]{on}: {long_time(clock.gpu_clock_hours)}.[/]"]


def _cpu_time(cores: int, seconds: Range | None) -> str:
    on_cores = f"[bold]On {counted(cores, 'CPU core')}:[/]"
    if seconds is None:
        return f"{on_cores} minutes to hours; an estimate needs a unit that has run here."
    minutes = Range.of(lambda scenario: max(1.0, seconds.at(scenario) / 60))
    span = span_text(minutes, lambda minutes: f"{minutes:.0f}")
    time = "a minute" if span == "1" else f"{span} minutes"
    return f"{on_cores} about {time} (from what was measured in the runs folder)."


# --- the document ---


def to_json(plan: Plan, clock: TimeLeft) -> dict[str, Any]:
    """The plan as the values that `trb plan --json` prints: the data above by `asdict`."""
    hours, units = unit_hours(plan), []
    # Units of a kind need the same: they share one value.
    needs: dict[tuple[int, int], dict[str, Any]] = {}
    for planned in plan.units:
        unit, of_unit = planned.unit, hours.get(planned.unit.id)
        key = id(planned.resources), id(of_unit)
        if key not in needs:
            needs[key] = asdict(replace(planned.resources, gpu_hours=of_unit))
        values: dict[str, Any] = {name: getattr(unit, name) for name in OF_UNITS}
        values["depends_on"] = list(unit.depends_on)
        values |= {"done": asdict(plan.done_of(unit)), "resources": needs[key]}
        units.append(values)
    return {
        "units": units,
        "totals": totals(plan),
        "memory": plain(memories(plan)),
        "step_seconds": plain(step_seconds(plan)),
        "packing_gains": packing_gains(plan),
        "max_gpu_hours": sufficient_hours(plan),
        "clock": asdict(clock),
    }


def totals(plan: Plan) -> dict[str, Any]:
    """Sums over the units as values of JSON; `left` has those of what the runs folder lacks."""
    by_setup: dict[str, Counter[str]] = {name: Counter() for name in plan.costs}
    for planned in plan.units:
        by_setup[planned.unit.setup][planned.unit.kind] += 1
    trials = [planned.unit for planned in plan.units if planned.unit.is_trial]
    sums = {
        "by_kind": Counter(planned.unit.kind for planned in plan.units),
        "by_setup": by_setup,
        "by_method": Counter(unit.method for unit in trials),
        "confirming": len(plan.confirming),
        "ready_at_once": sum(not planned.unit.depends_on for planned in plan.units),
        "gpus_per_trial": max((unit.placement.gpus for unit in trials), default=0),
        **generated(plan),
        "checkpoints_gib": checkpoints_gib(plan),
        "states_gib": states_gib(plan),
        "repeated_by_kill": repeated_by_kill(plan),
        **_sums(plan),
        "left": _sums(plan, left=True),
    }
    return plain(sums)


def _sums(plan: Plan, left: bool = False) -> dict[str, Any]:
    return {
        "units": len(plan.left if left else plan.units),
        "gpu_hours": total_gpu_hours(plan, left=left),
        "longest_unit_hours": longest_unit_hours(plan, left),
        "longest_chain_hours": longest_chain_hours(plan, left),
    }


def plain(value: Any) -> Any:
    """Mappings, and dataclasses in them, as values of JSON."""
    if isinstance(value, Mapping):
        return {key: plain(of_key) for key, of_key in value.items()}
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value
