"""`trb plan` on a terminal: the numbers of `orchestrator.planning` as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from orchestrator.config import Experiment
from orchestrator.experiment.kinds import KIND_NAMES, Kind
from orchestrator.experiment.methods import method_label
from orchestrator.planning.as_json import GPUS_OF_A_NODE, totals
from orchestrator.planning.assumptions import Assumption
from orchestrator.planning.calibrated import MEASURED_WORDS
from orchestrator.planning.costs import PHASES
from orchestrator.planning.memory import Memory
from orchestrator.planning.numbers import (
    clock_time,
    counted,
    gib_text,
    hours_text,
    long_time,
    plain,
    short,
    short_hours,
    span_text,
)
from orchestrator.planning.plan import Plan
from orchestrator.planning.progress import Reason
from orchestrator.planning.ranges import Range
from orchestrator.planning.rates import RATES
from orchestrator.planning.totals import (
    checkpoints_gib,
    evaluation_budgets,
    hours_on_gpus,
    longest_chain_hours,
    longest_unit_hours,
    on_engines,
    total_gpu_hours,
    units_left,
)
from orchestrator.selection.confirmation import LOOKS
from orchestrator.sheet import Cell, Sheet, to_rich

PARTS = {
    "training": "training",
    "evaluation": "evaluation, full",
}  # that generate responses, and their rows
MOST_DIFFERENCES = 6  # shown of a unit's nearest neighbour
KINDS: tuple[Kind, ...] = ("trial", "base_eval", "sft")  # as they are counted in the first line


@dataclass(frozen=True)
class Machines:
    """The machines that hours on the clock are told for: some `gpus`, or `cores` where no unit uses
    a GPU.

    `cpu_seconds` is the time left on these cores, None before any unit was timed.
    """

    gpus: int = 1
    cores: int = 1
    cpu_seconds: Range | None = None


def render(
    plan: Plan, clock: Machines | None = None, reasons: Sequence[Reason] | None = None
) -> Group:
    """The plan for a terminal of 80 columns or more; with `reasons`, why each unit would run, and
    the assumptions.
    """
    clock = clock or Machines()
    total, left = totals(plan), len(units_left(plan))
    why = [] if reasons is None else ["", *_why(reasons)]
    if not left:
        everything = f"{len(plan.units)} of {len(plan.units)} units done: nothing to run."
        return Group(_heading(plan, total), everything, *why)
    on_gpus = any(planned.resources.gpus for planned in plan.units)
    # Without a GPU the minutes are the whole cost: they stand first.
    parts: list[Any] = [
        _heading(plan, total),
        *_progress(plan, left),
        *([] if on_gpus else _cpu_time(clock)),
        "",
    ]
    parts += [_methods_table(plan), "", *_order(plan)]
    placement = plan.experiment.runtime.placement  # of every setup's untrained student, at least
    of_setups = [p for p in plan.units if p.unit.placement == placement] or plan.units
    memories = {
        p.unit.setup: p.resources.memory for p in of_setups if p.resources.memory is not None
    }
    if memories:
        gib, apart = plan.gpu_of_trial.gib, placement.role_gpus is not None
        parts += ["", _memory_table(memories, gib, apart), *_memory_notes(memories, gib)]
    parts += ["", *_tokens(total), ""]
    parts += [_budget_table(plan), *_budget_notes(plan), _disk(plan), ""]
    parts += [*_gpu_time(plan, clock.gpus), *why]
    if reasons is None:
        return Group(*parts, "[dim]--why: why each unit would run, and what is assumed.[/]")
    return Group(*parts, *([""] if plan.assumptions else []), *_assumptions(plan.assumptions))


def _progress(plan: Plan, left: int) -> list[str]:
    if left == len(plan.units) and not any(
        done.steps or done.generations for done in plan.done.values()
    ):
        return []
    return [
        f"{len(plan.units) - left} of {len(plan.units)} units done; hours and minutes are of what is left."
    ]


def _why(reasons: Sequence[Reason]) -> list[str]:
    """A line for each unit, with the fields in which a missing one differs from its nearest
    neighbour.
    """
    lines = ["[bold]why each unit would run[/]"]
    for reason in reasons:
        lines.append(escape(f"{reason.unit.id}: {reason.why}"))
        if reason.nearest:
            lines.append(escape(f"  nearest: {reason.nearest}"))
            lines += [
                escape(f"    {difference}") for difference in reason.differences[:MOST_DIFFERENCES]
            ]
            more = len(reason.differences) - MOST_DIFFERENCES
            lines += [f"    and {more} more"] if more > 0 else []
    return lines


def _disk(plan: Plan) -> str:
    disk = checkpoints_gib(plan)
    until = "" if disk.kept == disk.most else f", {gib_text(disk.most)} at most before"
    return f"Checkpoints take {gib_text(disk.kept)} in the end{until} (keep: {plan.experiment.runtime.keep})."


def _heading(plan: Plan, total: dict[str, Any]) -> str:
    kinds = ", ".join(
        counted(total["by_kind"][kind], KIND_NAMES[kind])
        for kind in KINDS
        if kind in total["by_kind"]
    )
    lines = [
        f"[bold]{escape(plan.experiment.name)}[/] · {counted(total['units'], 'unit')}: {kinds}"
    ]
    for key, setup in plan.experiment.setups.items():
        trials = counted(total["by_setup"][key].get("trial", 0), "trial")
        lines.append(f"  {escape(key)}: {escape(setup.title)} · {trials}")
    return "\n".join(lines)


def _methods_table(plan: Plan) -> Table:
    """Trials by method and setup with the grid that makes them."""
    setups, rows = list(plan.experiment.setups), []
    exploring = [planned.unit for planned in plan.units if planned.unit.id not in plan.confirming]
    trials = Counter((unit.method, unit.setup) for unit in exploring)
    for method, grid in plan.experiment.methods.items():
        knobs = []
        for knob, values in grid.items():
            knobs.append(f"{knob} {', '.join(f'{value:g}' for value in values)}")
        rows.append(
            [
                method_label(method),
                " × ".join(knobs),
                *(str(trials[method, name]) for name in setups),
            ]
        )
    if any(len(plan.experiment.seeds_of(method)) > 1 for method in plan.experiment.methods):
        rows.append(["", _seeds(plan.experiment), *[""] * len(setups)])
    if plan.confirming:
        seeds = ", ".join(map(str, plan.experiment.confirm.seeds))
        counts = Counter(
            planned.unit.setup for planned in plan.units if planned.unit.id in plan.confirming
        )
        confirmed = f"what each is chosen for, on seeds {seeds}; one checkpoint each"
        if plan.experiment.confirm.until is not None:
            confirmed += f"; until decided up to {LOOKS} times as many"
        rows.append(["confirming", confirmed, *(str(counts[name]) for name in setups)])
    return to_rich(Sheet.of(["trials by method", "grid", *setups], rows, left=(0, 1)))


def _seeds(experiment: Experiment) -> str:
    """`each with seeds 0, 1`, or which methods have which."""
    methods_of: dict[str, list[str]] = {}
    for method in experiment.methods:
        methods_of.setdefault(", ".join(map(str, experiment.seeds_of(method))), []).append(method)
    if len(methods_of) == 1:
        return f"each with seeds {next(iter(methods_of))}"
    parts = []
    for seeds, methods in methods_of.items():
        parts.append(
            f"{', '.join(map(method_label, methods))} with seed{'s' * (',' in seeds)} {seeds}"
        )
    return "; ".join(parts)


def _order(plan: Plan) -> list[str]:
    """Placements of the units that are left, how many can start at once, and which units others
    wait for.
    """
    placements: Counter[tuple[str, float, float]] = Counter()
    waiting: Counter[str] = Counter()  # unit id → how many units wait for it
    left = units_left(plan)
    unfinished = {planned.unit.id for planned in left}
    for planned in left:
        needs = planned.resources
        placements[needs.placement, needs.gpus, needs.cpus] += 1
        waiting.update(unfinished.intersection(planned.unit.depends_on))
    ready = sum(unfinished.isdisjoint(planned.unit.depends_on) for planned in left)
    placed = []
    for (mode, gpus, cpus), number in placements.items():
        on = f"{counted(gpus, 'GPU') if gpus else 'no GPU'} and {counted(cpus, 'CPU core')}"
        placed.append(f"{counted(number, 'unit')} {mode} on {on}")
    lines = [
        f"placement: {'; '.join(placed)}",
        f"order: {counted(ready, 'unit')} can start at once",
    ]
    return lines + [
        f"  {needed} → {counted(number, 'trial')}" for needed, number in waiting.items()
    ]


def _memory_table(memories: dict[str, Memory], gpu_gib: float, apart: bool) -> Table:
    """The parts that a GPU holds; where roles are `apart`, each on the GPUs of its own role."""
    fields = {
        "student weights W_S": "student_weights",
        "teacher weights W_Q": "teacher_weights",
        "learner: float32 master, moments, gradient": "learner_state",
        "workspace": "workspace",
        "KV_S of a sequence of full length": "kv_student",
        "KV_Q of a sequence of full length": "kv_teacher",
        "sequences decoded at once, n, student alone": "sequences_decoded_vanilla",
        "sequences decoded at once, n, blending": "sequences_decoded_blending",
        "sequences decoded at once, evaluation": "sequences_decoded_evaluation",
        "generation W_S + n·KV_S": "generation_vanilla",
        "generation W_S + W_Q + n·(KV_S + KV_Q)": "generation_blending",
        "scoring": "scoring",
        "learning": "learning",
        "tokens of a micro-batch of learning": "learning_tokens",
        "peak, student alone": "peak_vanilla",
        "peak, blending": "peak_blending",
        f"sequences that fit in {gpu_gib:g} GiB, student alone": "sequences_at_once_vanilla",
        f"sequences that fit in {gpu_gib:g} GiB, blending": "sequences_at_once_blending",
    }
    rows = []
    for label, field in fields.items():
        values = [getattr(of_trial, field) for of_trial in memories.values()]
        rows.append([label, *(str(v) if isinstance(v, int) else f"{v:.2f}" for v in values)])
    return to_rich(Sheet.of(["memory of a trial on each of its GPUs, GiB", *memories], rows))


def _memory_notes(memories: dict[str, Memory], gpu_gib: float) -> list[str]:
    """Notes below the memory table, with a warning where a batch of full length may not fit."""
    notes = []
    surely = min(
        min(m.sequences_at_once_vanilla, m.sequences_at_once_blending) for m in memories.values()
    )
    decoded = max(m.sequences_decoded_vanilla for m in memories.values())
    # A configured batch may be larger than what surely fits; a derived one never is.
    exceeding = [
        m
        for m in memories.values()
        if m.sequences_decoded_vanilla > m.sequences_at_once_vanilla
        or m.sequences_decoded_blending > m.sequences_at_once_blending
    ]
    if surely == 0:
        notes.append(
            f"[yellow]Not even one sequence of full length fits in {gpu_gib:g} GiB while blending.[/]"
        )
    elif exceeding:
        notes.append(
            f"[yellow]runtime.rollout_batch: {decoded} sequences fit in {gpu_gib:g} GiB only while they are short; "
            f"{surely} fit at full length, blending included.[/]"
        )
    return notes


def _tokens(total: dict[str, Any]) -> list[Any]:
    """Tokens generated in training and in evaluation, and their ratio."""
    rows = []
    for what, name in PARTS.items():
        most, expected = total[what]["tokens"]["most"], total[what]["tokens"]["expected"]
        span = span_text(Range(**expected), short) if expected else "—"
        rows.append([name, f"{total[what]['generations']:,}", short(most), span])
    table = _table(["generated", "generations", "tokens at most", "tokens expected"], rows)
    training, evaluation = total["training"]["generations"], total["evaluation"]["generations"]
    if not training:
        return [table]
    return [
        table,
        f"Evaluation generates {evaluation / training:.1f} responses for each one of training.",
    ]


def _budget_table(plan: Plan) -> Table:
    """A table of evaluation in full and in races, and of the selected checkpoints' fresh samples."""
    names = {"full": "full", "adaptive": "adaptive, expected", "rescore": "rescore"}
    costs = evaluation_budgets(plan)
    whole = costs["full"].generations.low
    rows = []
    for key, name in names.items():
        generations, hours = costs[key].generations, costs[key].gpu_hours
        shares = span_text(
            generations / whole, lambda share: f"{100 * share:.2g} %" if share < 1 else "100 %"
        )
        rows.append(
            [name, span_text(generations, short), shares, hours_text(hours) if hours else "—"]
        )
    return _table(["evaluation", "generations", "of full", "GPU-hours"], rows)


def _budget_notes(plan: Plan) -> list[str]:
    """Name the chosen budget and the basis of the expected one."""
    evaluations = [setup.evaluation for setup in plan.experiment.setups.values()]
    chosen = " and ".join(
        dict.fromkeys(f"{e.budget} with rescore {str(e.rescore).lower()}" for e in evaluations)
    )
    basis = "Expected: shares that simulated races took (benchmarks/race.py); no bound."
    return [f"Chosen: {chosen}.", f"[dim]{basis}[/]"]


def _gpu_time(plan: Plan, gpus: int) -> list[Any]:
    """GPU-hours by phase as chosen, what they are on the clock, and what each engine would make of
    them.
    """
    whole = total_gpu_hours(plan)
    if whole is None:
        return []
    # Of a sweep that has begun people ask how much is left; before, what each setup costs.
    some_done = len(units_left(plan)) < len(plan.units) or any(
        done.steps for done in plan.done.values()
    )
    if some_done:
        columns = {"left": total_gpu_hours(plan, left=True), "whole": whole}
    else:
        columns = {name: total_gpu_hours(plan, name) for name in plan.experiment.setups} | {
            "all": whole
        }
    budgets = {setup.evaluation.budget for setup in plan.experiment.setups.values()}
    names = {"evaluate": f"evaluate, {' and '.join(sorted(budgets))}", "rescore": "fresh samples"}
    columns = {name: part for name, part in columns.items() if part}
    rows = []
    for phase in (*PHASES, "rescore", "total"):
        texts = [names.get(phase, phase), *(hours_text(part[phase]) for part in columns.values())]
        rows.append([Cell(text, mark="total" if phase == "total" else None) for text in texts])
    table = to_rich(Sheet([f"GPU-hours, {plan.gpu_of_trial.title}", *columns], rows))
    return [table, *_on_the_clock(plan, gpus, left=some_done), *_engines(plan, left=some_done)]


def _on_the_clock(plan: Plan, gpus: int, left: bool) -> list[str]:
    """How long it takes at least, however many GPUs there are, and on those that were asked for."""
    unit, chain = longest_unit_hours(plan, left), longest_chain_hours(plan, left)
    hours = hours_on_gpus(plan, gpus, left)
    if unit is None or chain is None or hours is None:
        return []
    lines = [f"The longest unit trains for {long_time(unit)} on the clock."] if unit.high else []
    if chain != unit:
        lines.append(
            f"The longest chain of units that wait for each other takes {long_time(chain)}."
        )
    on = f"On {counted(gpus, 'GPU')}{', kept busy' if gpus > 1 else ''}"
    return [*lines, f"[bold]{on}: {long_time(hours)}.[/]"]


def _engines(plan: Plan, left: bool) -> list[str]:
    """The engines of the experiment, what it costs on a node with each that samples, and what that
    rests on.
    """
    engines = [setup.engine for setup in plan.experiment.setups.values()]
    samplers = list(dict.fromkeys(engine.sampler for engine in engines))
    trainers = " and ".join(dict.fromkeys(engine.trainer for engine in engines))
    names = " and ".join(RATES[sampler].title for sampler in samplers)
    lines, middles = [f"Engines: {names} for sampling, {trainers} for scoring and training."], {}
    # Engines of the experiment come first.
    for engine, on_engine in sorted(
        on_engines(plan).items(), key=lambda item: item[0] not in samplers
    ):
        hours, clock = (
            total_gpu_hours(on_engine, left=left),
            hours_on_gpus(on_engine, GPUS_OF_A_NODE, left),
        )
        if hours is not None and clock is not None:
            chosen = " (this experiment)" if samplers == [engine] else ""
            middles[engine] = hours["total"].mid
            lines.append(
                f"With {RATES[engine].title}{chosen}: {hours_text(hours['total'])} GPU-hours, "
                f"{short_hours(middles[engine])} in the middle; {clock_time(clock)} on {GPUS_OF_A_NODE} GPUs."
            )
    lines += _which_engine(samplers, middles)
    return [*lines, *map(escape, _basis(plan))]


def _basis(plan: Plan) -> list[str]:
    """Name the basis of rates and lengths: finished runs, then calibrations of the card, then
    published numbers.
    """
    lines: list[str] = []
    calibrated: dict[str, list[str]] = {}  # by the source of rates
    if any(costs.factors.keys() - costs.sources.keys() for costs in plan.costs.values()):
        lines.append(
            "Finished runs gave lengths of responses and the seconds of the engine that they ran on."
        )
    for name, costs in plan.costs.items():
        words: dict[str, list[str]] = {}
        for key, source in costs.sources.items():
            if key in MEASURED_WORDS:
                words.setdefault(source, []).append(MEASURED_WORDS[key])
        for source, measured in words.items():
            calibrated.setdefault(source, []).append(f"{name}: {', '.join(measured)}")
    for source, of_setups in calibrated.items():
        lines.append(
            f"{source[0].upper()}{source[1:]} ({'; '.join(of_setups)}). All else is published or assumed."
        )
    if not lines:
        lines.append(
            "No run measured an engine on this GPU yet: rates and lengths are published or assumed."
        )
    gpu = plan.gpu_of_trial
    for calibration in plan.measured.calibrations:
        if not calibration.card.is_a(gpu):
            lines.append(
                f"What was calibrated on {calibration.card.name} says nothing of {gpu.title} and is left out."
            )
    return lines


def _which_engine(samplers: Sequence[str], middles: Mapping[str, float]) -> list[str]:
    """Why the engine that samples is the right one, or which would be, by GPU-hours in the middle
    estimate.
    """
    least, *others = sorted(middles, key=lambda engine: middles[engine])
    if not others or not middles[others[0]]:
        return []
    share = (
        f"{100 * middles[least] / middles[others[0]]:.2g} % of {RATES[others[0]].title}'s GPU-hours"
    )
    if samplers == [least]:
        return [f"{RATES[least].title} samples because it takes {share}."]
    return [f"{RATES[least].title} would take {share}: engine.sampler={least}."]


def _cpu_time(clock: Machines) -> list[str]:
    on_cores = f"[bold]On {counted(clock.cores, 'CPU core')}:[/]"
    seconds = clock.cpu_seconds
    if seconds is None:
        return [f"{on_cores} minutes to hours; an estimate needs a unit that has run here."]
    minutes = Range.of(lambda scenario: max(1.0, seconds.at(scenario) / 60))
    span = span_text(minutes, lambda minutes: f"{minutes:.0f}")
    return [f"{on_cores} about {span} minutes (from what was measured in the runs folder)."]


def _assumptions(assumed: Sequence[Assumption]) -> list[str]:
    """One line each: the values of the low, the middle and the high estimate, and why."""
    lines = []
    for each in assumed:
        values = dict.fromkeys(plain(value) for value in (each.low, each.mid, each.high))
        line = f"{each.name}: {' – '.join(values)} {each.unit} ({each.why})"
        lines.append(f"[dim]{escape(line)}[/]")
    return ["[bold]assumed[/]", *lines] if lines else []


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table without its last column where no row has a number there."""
    sheet = Sheet.of(headings, rows)
    return to_rich(
        sheet if any(row[-1] != "—" for row in rows) else sheet.only(range(len(headings) - 1))
    )
