"""`trb plan` on a terminal: the numbers of `planning.as_json` as tables and lines."""

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
from orchestrator.planning.as_json import GPUS_OF_A_NODE, summary
from orchestrator.planning.assumptions import Assumption
from orchestrator.planning.calibrated import MEASURED_WORDS
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
    ALL_PHASES,
    hours_on_gpus,
    on_engines,
    packing_gains,
    sufficient_hours,
    total_gpu_hours,
    units_left,
)
from orchestrator.selection.confirmation import LOOKS
from orchestrator.sheet import Cell, Sheet, to_rich

GENERATING = {"training": "training", "evaluation": "evaluation, full"}  # and their rows
BUDGETS = {"full": "full", "adaptive": "adaptive, expected", "rescore": "rescore"}
MOST_DIFFERENCES = 6  # shown of a unit's nearest neighbour
MOST_SETUPS = 4  # that have columns of their own
KINDS: tuple[Kind, ...] = ("trial", "base_eval", "sft")  # as they are counted in the first line
WORTH_PACKING = 0.1  # of the GPU-hours of training: a smaller gain is not recommended
MEMORY_ROWS = {  # field of `Memory` → heading, in which {gib} is the size of the GPU
    "student_weights": "student weights W_S",
    "teacher_weights": "teacher weights W_Q",
    "learner_state": "learner: float32 master, moments, gradient",
    "workspace": "workspace",
    "kv_student": "KV_S of a sequence of full length",
    "kv_teacher": "KV_Q of a sequence of full length",
    "sequences_decoded_vanilla": "sequences decoded at once, n, student alone",
    "sequences_decoded_blending": "sequences decoded at once, n, blending",
    "sequences_decoded_evaluation": "sequences decoded at once, evaluation",
    "generation_vanilla": "generation W_S + n·KV_S",
    "generation_blending": "generation W_S + W_Q + n·(KV_S + KV_Q)",
    "scoring": "scoring",
    "learning": "learning",
    "learning_tokens": "tokens of a micro-batch of learning",
    "learning_recomputes": "layers computed again in learning",
    "learner_stays": "learner stays on the GPU",
    "peak_vanilla": "peak, student alone",
    "peak_blending": "peak, blending",
    "sequences_at_once_vanilla": "sequences that fit in {gib:g} GiB, student alone",
    "sequences_at_once_blending": "sequences that fit in {gib:g} GiB, blending",
}


@dataclass(frozen=True)
class Machines:
    """The machines that hours on the clock are for: `gpus`, or `cores` where no unit uses a GPU.

    `cpu_seconds` is the time left on these cores, None before any unit was timed.
    """

    gpus: int = 1
    cores: int = 1
    cpu_seconds: Range | None = None


def render(
    plan: Plan, machines: Machines | None = None, reasons: Sequence[Reason] | None = None
) -> Group:
    """The plan for a terminal of 80 columns or more.

    With `reasons` it says why each unit would run, and lists the assumptions.
    """
    machines, total = machines or Machines(), summary(plan)
    units, left = total["units"], total["left"]["units"]
    why = [] if reasons is None else ["", *_why(reasons)]
    parts: list[Any] = [_heading(plan, total)]
    if not left:
        return Group(*parts, f"{units} of {units} units done: nothing to run.", *why)
    begun = left < units or any(done.steps or done.generations for done in plan.done.values())
    if begun:
        parts.append(
            f"{units - left} of {units} units done; hours and minutes are of what is left."
        )
    if total["gpu_hours"] is None:
        # Without a GPU the minutes are the whole cost: they stand first.
        parts.append(_cpu_time(machines))
    parts += ["", _methods_table(plan), "", *_order(plan), *_memory(plan)]
    parts += ["", *_tokens(total), "", *_evaluation(plan, total), ""]
    if total["gpu_hours"] is not None:
        parts += [_hours_table(plan, total, begun)]
        parts += _on_the_clock(plan, total, machines.gpus, begun)
        parts += _advice(plan)
        parts += [*_engines(plan, begun), *map(escape, _basis(plan))]
    parts += why
    if reasons is None:
        parts.append("[dim]--why: why each unit would run, and what is assumed.[/]")
    elif plan.assumptions:
        parts += ["", *_assumptions(plan.assumptions)]
    return Group(*parts)


# --- units ---


def _heading(plan: Plan, total: Mapping[str, Any]) -> str:
    kinds = []
    for kind in KINDS:
        if kind in total["by_kind"]:
            kinds.append(counted(total["by_kind"][kind], KIND_NAMES[kind]))
    name = escape(plan.experiment.name)
    lines = [f"[bold]{name}[/] · {counted(total['units'], 'unit')}: {', '.join(kinds)}"]
    for key, setup in plan.experiment.setups.items():
        trials = counted(total["by_setup"][key].get("trial", 0), "trial")
        lines.append(f"  {escape(key)}: {escape(setup.title)} · {trials}")
    return "\n".join(lines)


def _cpu_time(machines: Machines) -> str:
    on_cores = f"[bold]On {counted(machines.cores, 'CPU core')}:[/]"
    seconds = machines.cpu_seconds
    if seconds is None:
        return f"{on_cores} minutes to hours; an estimate needs a unit that has run here."
    minutes = Range.of(lambda scenario: max(1.0, seconds.at(scenario) / 60))
    span = span_text(minutes, lambda minutes: f"{minutes:.0f}")
    return f"{on_cores} about {span} minutes (from what was measured in the runs folder)."


def _methods_table(plan: Plan) -> Table:
    """Trials by method and setup with the grid that makes them."""
    experiment, setups, rows = plan.experiment, list(plan.experiment.setups), []
    trials: Counter[tuple[str | None, str]] = Counter()
    confirming: Counter[str] = Counter()
    for planned in plan.units:
        if planned.unit.id in plan.confirming:
            confirming[planned.unit.setup] += 1
        else:
            trials[planned.unit.method, planned.unit.setup] += 1
    for method, grid in experiment.methods.items():
        knobs = []
        for knob, values in grid.items():
            knobs.append(f"{knob} {', '.join(f'{value:g}' for value in values)}")
        counts = [trials[method, name] for name in setups]
        rows.append([method_label(method), " × ".join(knobs), *_counts(counts)])
    if any(len(experiment.seeds_of(method)) > 1 for method in experiment.methods):
        rows.append(["", _seeds(experiment), *[""] * len(_columns(setups))])
    if plan.confirming:
        seeds = ", ".join(map(str, experiment.confirm.seeds))
        purpose = f"what each is chosen for, on seeds {seeds}; one checkpoint each"
        if experiment.confirm.until is not None:
            purpose += f"; until decided up to {LOOKS} times as many"
        counts = [confirming[name] for name in setups]
        rows.append(["confirming", purpose, *_counts(counts)])
    headings = ["trials by method", "grid", *_columns(setups)]
    return to_rich(Sheet.of(headings, rows, left=(0, 1)))


def _columns(setups: Sequence[str]) -> list[str]:
    """A heading for each setup; of more setups than a line holds, one for each and one for all."""
    if len(setups) <= MOST_SETUPS:
        return list(setups)
    return [f"each of {len(setups)} setups", "all"]


def _counts(of_setups: Sequence[int]) -> list[str]:
    """The cells below `_columns`."""
    if len(of_setups) <= MOST_SETUPS:
        return [str(number) for number in of_setups]
    least, most = min(of_setups), max(of_setups)
    return [str(most) if least == most else f"{least} – {most}", str(sum(of_setups))]


def _seeds(experiment: Experiment) -> str:
    """`each with seeds 0, 1`, or which methods have which."""
    methods_of: dict[str, list[str]] = {}
    for method in experiment.methods:
        seeds = ", ".join(map(str, experiment.seeds_of(method)))
        methods_of.setdefault(seeds, []).append(method_label(method))
    if len(methods_of) == 1:
        return f"each with seeds {next(iter(methods_of))}"
    parts = []
    for seeds, methods in methods_of.items():
        parts.append(f"{', '.join(methods)} with seed{'s' if ',' in seeds else ''} {seeds}")
    return "; ".join(parts)


def _order(plan: Plan) -> list[str]:
    """Placements of the units that are left, and how many of them wait for others."""
    placements: Counter[tuple[str, float, float]] = Counter()
    left = units_left(plan)
    unfinished: dict[str, Kind] = {planned.unit.id: planned.unit.kind for planned in left}
    needed: dict[str, Kind] = {}  # id of a unit that others wait for → its kind
    ready = 0
    for planned in left:
        needs, waits_for = planned.resources, unfinished.keys() & planned.unit.depends_on
        placements[needs.placement, needs.gpus, needs.cpus] += 1
        needed |= {unit: unfinished[unit] for unit in waits_for}
        ready += not waits_for
    placed = []
    for (mode, gpus, cpus), number in placements.items():
        on = f"{counted(gpus, 'GPU') if gpus else 'no GPU'} and {counted(cpus, 'CPU core')}"
        placed.append(f"{counted(number, 'unit')} {mode} on {on}")
    order = f"order: {counted(ready, 'unit')} can start at once"
    if needed:
        waiting = len(left) - ready
        kinds = Counter(needed.values()).items()
        first = " and ".join(counted(number, KIND_NAMES[kind]) for kind, number in kinds)
        order += f"; {waiting} wait{'s' if waiting == 1 else ''} for {first}"
    return [f"placement: {'; '.join(placed)}", order]


def _why(reasons: Sequence[Reason]) -> list[str]:
    """A line for each unit; below it the fields that the nearest directory has otherwise."""
    lines = ["[bold]why each unit would run[/]"]
    for reason in reasons:
        lines.append(escape(f"{reason.unit.id}: {reason.why}"))
        if reason.nearest:
            lines.append(escape(f"  nearest: {reason.nearest}"))
            for difference in reason.differences[:MOST_DIFFERENCES]:
                lines.append(escape(f"    {difference}"))
            more = len(reason.differences) - MOST_DIFFERENCES
            if more > 0:
                lines.append(f"    and {more} more")
    return lines


# --- memory, tokens, evaluation ---


def _memory(plan: Plan) -> list[Any]:
    """The memory of a typical unit of each setup, with a warning where a batch may not fit."""
    placement = plan.experiment.runtime.placement  # of every setup's untrained student, at least
    of_setups = [each for each in plan.units if each.unit.placement == placement] or plan.units
    memories: dict[str, Memory] = {}
    for planned in of_setups:
        if planned.resources.memory is not None:
            memories[planned.unit.setup] = planned.resources.memory
    if not memories:
        return []
    gib, rows = plan.gpu_of_trial.gib, []
    for field, heading in MEMORY_ROWS.items():
        row = [heading.format(gib=gib)]
        for memory in memories.values():
            value = getattr(memory, field)
            text = str(value) if isinstance(value, int) else f"{value:.2f}"
            row.append(("yes" if value else "no") if isinstance(value, bool) else text)
        rows.append(row)
    table = Sheet.of(["memory of a trial on each of its GPUs, GiB", *memories], rows)
    return ["", to_rich(table), *_memory_notes(list(memories.values()), gib)]


def _memory_notes(memories: Sequence[Memory], gib: float) -> list[str]:
    surely = min(min(m.sequences_at_once_vanilla, m.sequences_at_once_blending) for m in memories)
    if surely == 0:
        note = f"Not even one sequence of full length fits in {gib:g} GiB while blending."
        return [f"[yellow]{note}[/]"]
    # A configured batch may be larger than what surely fits; a derived one never is.
    for m in memories:
        if (
            m.sequences_decoded_vanilla > m.sequences_at_once_vanilla
            or m.sequences_decoded_blending > m.sequences_at_once_blending
        ):
            decoded = max(each.sequences_decoded_vanilla for each in memories)
            note = f"runtime.rollout_batch: {decoded} sequences fit in {gib:g} GiB only while they "
            note += f"are short; {surely} fit at full length, blending included."
            return [f"[yellow]{note}[/]"]
    return []


def _tokens(total: Mapping[str, Any]) -> list[Any]:
    """Tokens generated in training and in evaluation, and their ratio."""
    rows = []
    for key, name in GENERATING.items():
        most, expected = total[key]["tokens"]["most"], total[key]["tokens"]["expected"]
        span = span_text(expected, short) if expected else "—"
        rows.append([name, f"{total[key]['generations']:,}", short(most), span])
    table = _table(["generated", "generations", "tokens at most", "tokens expected"], rows)
    training, evaluation = total["training"]["generations"], total["evaluation"]["generations"]
    if not training:
        return [table]
    ratio = evaluation / training
    return [table, f"Evaluation generates {ratio:.1f} responses for each one of training."]


def _evaluation(plan: Plan, total: Mapping[str, Any]) -> list[Any]:
    """The cost of the evaluation under each budget, the chosen budget, and the disk it takes."""
    costs, rows = total["evaluation_budgets"], []
    whole = costs["full"]["generations"].low
    for key, name in BUDGETS.items():
        generations, hours = costs[key]["generations"], costs[key]["gpu_hours"]
        share = span_text(generations / whole, lambda s: f"{100 * s:.2g} %" if s < 1 else "100 %")
        texts = [span_text(generations, short), share, hours_text(hours) if hours else "—"]
        rows.append([name, *texts])
    chosen: dict[str, None] = {}
    for setup in total["evaluation_chosen"].values():
        chosen[f"{setup['budget']} with rescore {str(setup['rescore']).lower()}"] = None
    disk, keep = total["checkpoints_gib"], plan.experiment.runtime.keep
    until = "" if disk.kept == disk.most else f", {gib_text(disk.most)} at most before"
    texts = []
    if total["texts_gib"].high >= 0.01:
        size = span_text(total["texts_gib"], gib_text)
        texts = [f"Texts of responses take {size} (evaluation.keep_texts)."]
    return [
        _table(["evaluation", "generations", "of full", "GPU-hours"], rows),
        f"Chosen: {' and '.join(chosen)}.",
        "[dim]Expected: shares that simulated races took (benchmarks/race.py); no bound.[/]",
        f"Checkpoints take {gib_text(disk.kept)} in the end{until} (keep: {keep}).",
        *texts,
    ]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table without its last column where no row has a number there."""
    sheet = Sheet.of(headings, rows)
    if all(row[-1] == "—" for row in rows):
        sheet = sheet.only(range(len(headings) - 1))
    return to_rich(sheet)


# --- GPU-hours ---


def _hours_table(plan: Plan, total: Mapping[str, Any], begun: bool) -> Table:
    """GPU-hours by phase as chosen: before a sweep by setup, then what is left beside the whole."""
    if begun:
        columns = {"left": total["left"]["gpu_hours"], "whole": total["gpu_hours"]}
    else:
        setups = list(plan.experiment.setups)
        shown = setups if len(setups) <= MOST_SETUPS else []
        columns = {name: total_gpu_hours(plan, name) for name in shown}
        columns["all"] = total["gpu_hours"]
    columns = {name: hours for name, hours in columns.items() if hours}
    budgets = sorted({setup["budget"] for setup in total["evaluation_chosen"].values()})
    names = {"evaluate": f"evaluate, {' and '.join(budgets)}", "rescore": "fresh samples"}
    rows = []
    for phase in (*ALL_PHASES, "total"):
        mark = "total" if phase == "total" else None
        row = [Cell(names.get(phase, phase), mark=mark)]
        for hours in columns.values():
            row.append(Cell(hours_text(hours[phase]), mark=mark))
        rows.append(row)
    return to_rich(Sheet([f"GPU-hours, {plan.gpu_of_trial.title}", *columns], rows))


def _on_the_clock(plan: Plan, total: Mapping[str, Any], gpus: int, begun: bool) -> list[str]:
    """How long it takes at least, with any number of GPUs, and how long on these."""
    longest = total["left"] if begun else total
    unit, chain = longest["longest_unit_hours"], longest["longest_chain_hours"]
    hours = hours_on_gpus(plan, gpus, begun)
    if unit is None or chain is None or hours is None:
        return []
    lines = [f"The longest unit trains for {long_time(unit)} on the clock."] if unit.high else []
    if chain != unit:
        waiting = "The longest chain of units that wait for each other takes"
        lines.append(f"{waiting} {long_time(chain)}.")
    on = f"On {counted(gpus, 'GPU')}{', kept busy' if gpus > 1 else ''}"
    return [*lines, f"[bold]{on}: {long_time(hours)}.[/]"]


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


def _engines(plan: Plan, left: bool) -> list[str]:
    """The engines of the experiment, and its cost on a node with each engine that samples."""
    titles: dict[str, str] = {}  # of engines that sample
    trainers: dict[str, None] = {}
    for setup in plan.experiment.setups.values():
        titles[setup.engine.sampler] = RATES[setup.engine.sampler].title
        trainers[setup.engine.trainer] = None
    samplers, names = list(titles), " and ".join(titles.values())
    training = " and ".join(trainers)
    lines = [f"Engines: {names} for sampling, {training} for scoring and training."]
    middles: dict[str, float] = {}
    plans = on_engines(plan)
    for engine in sorted(plans, key=lambda engine: engine not in samplers):
        hours = total_gpu_hours(plans[engine], left=left)
        clock = hours_on_gpus(plans[engine], GPUS_OF_A_NODE, left)
        if hours is not None and clock is not None:
            middles[engine] = hours["total"].mid
            chosen = " (this experiment)" if samplers == [engine] else ""
            line = f"With {RATES[engine].title}{chosen}: {hours_text(hours['total'])} GPU-hours, "
            line += f"{short_hours(middles[engine])} in the middle; "
            lines.append(f"{line}{clock_time(clock)} on {GPUS_OF_A_NODE} GPUs.")
    least, *others = sorted(middles, key=lambda engine: middles[engine])
    if others and middles[others[0]]:
        share = f"{100 * middles[least] / middles[others[0]]:.2g} %"
        share += f" of {RATES[others[0]].title}'s GPU-hours"
        if samplers == [least]:
            lines.append(f"{RATES[least].title} samples because it takes {share}.")
        else:
            lines.append(f"{RATES[least].title} would take {share}: engine.sampler={least}.")
    return lines


def _basis(plan: Plan) -> list[str]:
    """Name the basis of rates and lengths.

    Finished runs come first, then calibrations of the card, then published numbers.
    """
    lines: list[str] = []
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
    if not lines:
        assumed = "rates and lengths are published or assumed"
        lines.append(f"No run measured an engine on this GPU yet: {assumed}.")
    gpu = plan.gpu_of_trial
    for calibration in plan.measured.calibrations:
        if not calibration.card.is_a(gpu):
            kinds = f"{calibration.card.name} says nothing of {gpu.title}"
            lines.append(f"What was calibrated on {kinds} and is left out.")
    return lines


def _assumptions(assumed: Sequence[Assumption]) -> list[str]:
    """A line each: the values of the low, the middle and the high estimate, and why."""
    lines = ["[bold]assumed[/]"]
    for each in assumed:
        values = dict.fromkeys(plain(value) for value in (each.low, each.mid, each.high))
        line = f"{each.name}: {' – '.join(values)} {each.unit} ({each.why})"
        lines.append(f"[dim]{escape(line)}[/]")
    return lines
