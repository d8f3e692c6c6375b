"""`trb plan` on a terminal: the numbers of `orchestrator.plan` as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from orchestrator.config import Experiment
from orchestrator.memory import Memory
from orchestrator.plan import (
    GPU_GIB,
    PHASES,
    Plan,
    Range,
    checkpoints_gib,
    chosen_gpu_hours,
    evaluation_budgets,
    longest_unit_hours,
    total_gpu_hours,
    totals,
    with_total,
)


def render(plan: Plan) -> Group:
    """The plan for a terminal of 80 columns or more."""
    total, hours, memories = totals(plan), total_gpu_hours(plan), _memories(plan)
    parts: list[Any] = [_heading(plan, total), "", _methods_table(plan), "", *_order(plan, total)]
    if memories:
        parts += ["", _memory_table(memories), *_memory_notes(memories)]
    parts += ["", _tokens_table(total), *_ratio(total), "", _budget_table(plan), *_budget_notes(plan), _disk(plan), ""]
    if hours is None:
        return Group(*parts, "GPU-hours: — (no GPU is used)")
    return Group(*parts, _hours_table(plan, hours), *_longest(plan), "", _assumptions_table(plan))


def _disk(plan: Plan) -> str:
    kept, most = checkpoints_gib(plan)
    until = "" if kept == most else f", {_gib(most)} at most before"
    return f"Checkpoints take {_gib(kept)} in the end{until} (keep: {plan.experiment.runtime.keep})."


def _gib(size: float) -> str:
    return f"{_three_digits(size / 1024)} TiB" if size >= 1024 else f"{_three_digits(size)} GiB"


def _heading(plan: Plan, total: dict[str, Any]) -> str:
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
    if any(len(plan.experiment.seeds_of(method)) > 1 for method in plan.experiment.methods):
        table.add_row("", _seeds(plan.experiment), *[""] * len(setups))
    return table


def _seeds(experiment: Experiment) -> str:
    """`each with seeds 0, 1`, or which methods have which."""
    methods_of: dict[tuple[int, ...], list[str]] = {}
    for method in experiment.methods:
        methods_of.setdefault(tuple(experiment.seeds_of(method)), []).append(method)
    listed = {", ".join(map(str, seeds)): methods for seeds, methods in methods_of.items()}
    if len(listed) == 1:
        return f"each with seeds {next(iter(listed))}"
    return "; ".join(f"{', '.join(methods)} with seeds {seeds}" for seeds, methods in listed.items())


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
        "sequences decoded at once, n, student alone": "sequences_decoded_vanilla",
        "sequences decoded at once, n, blending": "sequences_decoded_blending",
        "sequences decoded at once, evaluation": "sequences_decoded_evaluation",
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
    decoded = max(m.sequences_decoded_vanilla for m in memories.values())
    if surely == 0:
        notes.append(f"[yellow]Not even one sequence of full length fits in {GPU_GIB:g} GiB while blending.[/]")
    elif any(_exceeds(m) for m in memories.values()):
        notes.append(
            f"[yellow]runtime.rollout_batch: {decoded} sequences fit in {GPU_GIB:g} GiB only while they are short; "
            f"{surely} fit at full length, blending included.[/]"
        )
    return notes


def _exceeds(of_trial: Memory) -> bool:
    """Whether more is decoded than surely fits: a configured batch may, a derived one never does."""
    alone = of_trial.sequences_decoded_vanilla > of_trial.sequences_at_once_vanilla
    return alone or of_trial.sequences_decoded_blending > of_trial.sequences_at_once_blending


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


def _budget_table(plan: Plan) -> Table:
    """What evaluation costs in full and in races, and the selected checkpoints' fresh samples."""
    names = {"full": "full", "adaptive": "adaptive, expected", "rescore": "rescore"}
    costs = evaluation_budgets(plan)
    whole = costs["full"].generations[0]
    table = _table("evaluation", "generations", "of full", "GPU-hours", right_from=1)
    for key, name in names.items():
        low, high = costs[key].generations
        shares = _span(low / whole, high / whole, lambda share: f"{100 * share:.2g} %" if share < 1 else "100 %")
        hours = costs[key].gpu_hours
        table.add_row(name, _span(low, high, _short), shares, _span(*hours, _short_hours) if hours else "—")
    return table


def _budget_notes(plan: Plan) -> list[str]:
    """What is chosen and what it comes to, and what the expectation rests on."""
    evaluations = [setup.evaluation for setup in plan.experiment.setups.values()]
    chosen = " and ".join(dict.fromkeys(f"{e.budget} with rescore {str(e.rescore).lower()}" for e in evaluations))
    hours = chosen_gpu_hours(plan)
    in_all = f": {_span(*hours, _short_hours)} GPU-hours in all" if hours else ""
    basis = "Expected: shares that simulated races took (tests/benchmarks/race.py); no bound."
    return [f"Chosen: {chosen}{in_all}.", f"[dim]{basis}[/]"]


def _hours_table(plan: Plan, hours: dict[str, Range]) -> Table:
    """GPU-hours by phase for each setup and all of them."""
    by_setup = {
        name: with_total([u.resources.gpu_hours for u in plan.units if u.unit.setup == name and u.resources.gpu_hours])
        for name in plan.experiment.setups
    }
    columns = {name: part for name, part in by_setup.items() if part} | {"all": hours}
    table = _table("GPU-hours, H100", *columns, right_from=1)
    for phase in (*PHASES, "total"):
        row = [_span(part[phase].low, part[phase].high, _short_hours) for part in columns.values()]
        label = "evaluate, full" if phase == "evaluate" else phase
        table.add_row(label, *row, style="bold" if phase == "total" else None)
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
