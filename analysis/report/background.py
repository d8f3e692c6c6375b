"""The background of the scores, as sheets and texts for the page: what the steps logged, cost, units,
parameters and provenance.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from analysis.facts import curves
from analysis.facts.costs import PHASES, Cost, family_costs, total
from analysis.facts.evidence import Facts
from analysis.facts.provenance import Provenance, leaves
from analysis.labels import BASE, benchmark_label, method_label, order_methods, setup_title
from analysis.report.scores import PERCENT, QUANTITIES
from orchestrator.config import Setup
from orchestrator.experiment.methods import METHODS, REFERENCE
from orchestrator.pair import Model
from orchestrator.sheet import Cell, Sheet

# --- diagnostics and costs ---


def diagnostics(facts: Facts) -> dict[str, list[tuple[str, Sheet]]]:
    """Title of a setup → logged quantities of the selected runs, a column for each method."""
    found = {}
    for runs in facts.runs:
        best = runs.best
        # The warmup of the first selected method that fades into vanilla, in the table's order.
        fading = [best[method].warmup for method in METHODS if method in best]
        steps = next((warmup for warmup in fading if warmup is not None), None)
        early, last = dict[str, dict[str, float]](), dict[str, dict[str, float]]()
        for method in order_methods(best):
            logged = curves.metric_series(facts.study, best[method], list(QUANTITIES))
            if logged:
                early[method] = curves.early_means(logged, steps or 0)
                last[method] = curves.last_means(logged)
        sheets = [(f"Mean over the first {steps} steps", _by_quantity(early))] if steps else []
        sheets.append(("Last step", _by_quantity(last)))
        found[runs.title] = sheets if last else []
    return found


def _by_quantity(means: Mapping[str, Mapping[str, float]]) -> Sheet:
    """A row for each quantity that some method has."""
    rows = []
    for key, column in QUANTITIES.items():
        values = []
        for of_method in means.values():
            # A quantity that the method does not log stays missing.
            value = column.factor * of_method[key] if key in of_method else None
            values.append(decimal(value, column.decimals))
        if any(values):
            rows.append([column.heading, *values])
    return Sheet.of(["Quantity", *map(method_label, means)], rows)


KINDS = {"base_eval": method_label(BASE), "sft": "Supervised stage (shared)"}
PLACEMENT = "Placement"
COSTS = (
    *("Method", "Units", "All (s)", "Training step (s)", "Training tokens", "Teacher positions"),
    *("Evaluation tokens", PLACEMENT),
    *(f"{phase.capitalize().replace('_', ' ')} (s)" for phase in PHASES),
)


def costs(facts: Facts) -> dict[str, tuple[Sheet, str]]:
    """Title of a setup → its costs by method, and their sum in words."""
    found = {}
    for name in facts.experiment.setups:
        of_setup = family_costs(facts.study, name)
        everything, words = total([*of_setup.values()]), list[str]()
        if everything.total_seconds is not None:
            words.append(f"{duration_in_words(everything.total_seconds)} in all.")
        if everything.repeated:
            words.append(f"{everything.repeated} training steps ran more than once.")
        rows = []
        for family, cost in of_setup.items():
            label = KINDS.get(family) or method_label(family)
            rows.append(_cost_row(label, cost, _compared(of_setup)))
        label, *sums = _cost_row("Sum", everything, everything.placements)
        rows.append([replace(label, mark="total"), *sums])
        sheet = Sheet(COSTS, rows, left=(0, COSTS.index(PLACEMENT)))
        found[setup_title(name, facts.experiment.setups)] = (sheet, " ".join(words))
    return found


def _compared(costs: Mapping[str, Cost]) -> frozenset[str]:
    """The placement whose steps compare: vanilla's, or that of the first method that ran."""
    ran = {family: cost for family, cost in costs.items() if family not in KINDS and cost.units}
    first = ran.get(REFERENCE) or next(iter(ran.values()), None)
    return first.placements if first else frozenset()


def _cost_row(label: str, cost: Cost, compared: frozenset[str]) -> list[Cell]:
    step = decimal(cost.seconds_per_step, 3)
    if step and (len(cost.placements) != 1 or cost.placements != compared):
        step = "not comparable"
    texts = [label, str(cost.units), decimal(cost.total_seconds), step]
    texts += map(whole, (cost.training_tokens, cost.teacher_positions, cost.evaluation_tokens))
    texts.append("; ".join(sorted(cost.placements)))
    texts += [decimal(cost.seconds.get(phase)) for phase in PHASES]
    return list(map(Cell, texts))


# --- units, parameters and provenance ---

UNITS = ("Setting", "Setup", "Seed", "State", "Best step", "Score", "Minutes", "Run directory")


def units(facts: Facts, origin: Provenance) -> Sheet:
    """A row for each unit: setups stay together, the best score of each first, none last."""
    setups = facts.experiment.setups
    order = list(setups)
    statuses = sorted(
        facts.overview.units if facts.overview else (),
        key=lambda status: (order.index(status.setup), status.score is None, -(status.score or 0)),
    )
    rows = []
    for status in statuses:
        progress = "" if status.step == status.steps else f", {status.step} of {status.steps}"
        seconds = origin.seconds.get(status.id, 0.0)
        rows.append(
            [
                status.label,
                setup_title(status.setup, setups),
                str(status.seed),
                status.state + progress,
                "" if status.best_step is None else str(status.best_step),
                decimal(None if status.score is None else PERCENT * status.score),
                decimal(seconds / 60 or None),
                status.id,
            ]
        )
    left = ("Setting", "Setup", "State", "Run directory")
    sheet = Sheet.of(UNITS, rows, left=list(map(UNITS.index, left)))
    alone = UNITS.index("Setup") if len(setups) < 2 else None  # one setup needs no column
    return sheet.only([place for place in range(len(UNITS)) if place != alone])


def links(facts: Facts, page: Path) -> dict[str, str]:
    """Unit id → relative link from a page in the runs folder, so that both can be moved together.

    A page outside the runs folder has none.
    """
    runs, found = facts.study.runs, {}
    for unit in facts.study.units:
        if page.parent.is_relative_to(runs) and (runs / unit.id).is_dir():
            found[unit.id] = (
                quote(Path(os.path.relpath(runs / unit.id, page.parent)).as_posix()) + "/"
            )
    return found


def parameters(facts: Facts) -> list[tuple[str, Sheet]]:
    """The setups in words, the grid of each method, and every key of each setup."""
    experiment = facts.experiment
    titles = [setup_title(name, experiment.setups) for name in experiment.setups]
    setups = []
    for title, setup in zip(titles, experiment.setups.values(), strict=True):
        setups.append([title, *_setup_cells(setup)])
    methods = []
    for method, grid in experiment.methods.items():
        knobs = "; ".join(f"{knob} {plain(values)}" for knob, values in grid.items())
        place = experiment.placements.get(method, experiment.runtime.placement).mode
        seeds = plain(experiment.seeds_of(method))
        methods.append([method_label(method), knobs or "no knobs", seeds, place])
    values_of: dict[str, dict[str, Any]] = {}  # key → setup → value
    for name, setup in experiment.setups.items():
        parts = asdict(setup)
        del parts["evaluation"]["benchmarks"]
        for part in ("training", "engine", "evaluation"):
            for key, value in leaves(parts[part], ".", f"{part}."):
                values_of.setdefault(key, {})[name] = value
    keys = []
    for key, values in values_of.items():
        keys.append([key, *(plain(values.get(name)) for name in experiment.setups)])
    headings = ("Setup", "Student", "Teacher", "Training", "Evaluation")
    return [
        ("Setups", _texts(headings, setups)),
        (
            "Settings that were asked for",
            _texts(("Method", "Values", "Seeds", "Placement"), methods),
        ),
        ("Keys of the experiment file", _texts(("Key", *titles), keys)),
    ]


def _setup_cells(setup: Setup) -> list[str]:
    training, evaluation = setup.training, setup.evaluation
    batch = f"{training.steps} steps of {training.prompts_per_step} × {training.samples_per_prompt} rollouts"
    samples = []
    for name, run in evaluation.benchmarks.items():
        if run:
            first = "" if run.limit is None else f" of the first {run.limit} problems only"
            samples.append(f"{benchmark_label(name, run)} n = {run.n}{first}")
    return [
        _model(setup.student),
        _model(setup.teacher),
        f"{batch}, at most {training.max_response_tokens} tokens, objective {training.objective}",
        f"{', '.join(samples)}; at most {evaluation.max_response_tokens} tokens",
    ]


def _model(model: Model) -> str:
    if model.recipe is not None:
        if model.recipe.package is not None:
            return f"{model.recipe.package}, {model.recipe.updates} updates"
        if model.recipe.without_layers:
            layers = ", ".join(map(str, model.recipe.without_layers))
            return f"the teacher without layers {layers}, {model.recipe.updates} updates"
        return f"by recipe: {model.shape.layers} layers of {model.shape.hidden}, {model.recipe.updates} updates"
    return f"{model.path} at {(model.revision or '')[:12]}"


def provenance(facts: Facts, origin: Provenance) -> dict[str, Any]:
    """Commands, date and hardware; problems by content; and the counts of the training data."""
    setups = facts.experiment.setups
    terms = {
        "Command": ", ".join(f"{command} ({moment} UTC)" for command, moment in origin.submits),
        "Date": period_text(origin.time.start, origin.time.end) if origin.time else "",
        "At work": f"{duration_in_words(origin.time.busy)}, without pauses" if origin.time else "",
        "Hardware": "; ".join(origin.machines),
    }
    benchmarks = []
    for source in facts.benchmarks:
        run = setups[source.setup].evaluation.benchmarks[source.benchmark]
        name = f"{benchmark_label(source.benchmark, run)}, {setup_title(source.setup, setups)}"
        scored = next((row for row in facts.rows if row.setup == source.setup), None)
        problems = f" × {scored.columns[source.benchmark].problems:,}" if scored else ""
        content = ", ".join(f"{key} {_counted(value)}" for key, value in source.content.items())
        asked = f"{run.n}{problems}" if run else ""
        benchmarks.append([name, asked, content, source.evaluation_id])
    counted, overlap = list[list[str]](), dict[str, None]()
    for data in origin.data:
        title = setup_title(data.setup, setups)
        for key, value in leaves(data.counts, ": "):
            counted.append([title, key.replace("_", " "), _counted(value)])
        overlap |= dict.fromkeys(f"{title}: {line}" for line in data.overlap)
    headings = ("Benchmark", "Samples × problems", "Content", "Evaluation")
    data = Sheet.of(("Setup", "Counted", "Number"), counted, left=(0, 1))
    return {
        "terms": terms,
        "benchmarks": _texts(headings, benchmarks),
        "data": data if counted else None,
        "overlap": list(overlap),
    }


def _texts(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Sheet:
    """A sheet without numbers."""
    return Sheet.of(headings, rows, left=range(len(headings)))


def _counted(value: Any) -> str:
    """A count with commas, or another value as a text."""
    return whole(value) if type(value) is int else plain(value)


# --- values as texts: a missing number is empty, which a table marks with – ---


def whole(value: int | None) -> str:
    """`12,345`."""
    return "" if value is None else f"{value:,}"


def decimal(value: float | None, places: int = 1) -> str:
    """A fixed number of decimals, with commas."""
    return "" if value is None else f"{value:,.{places}f}"


def duration_in_words(seconds: float) -> str:
    """`1 h 05 min`, `4 min 10 s`, `8.3 s`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60:,} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{seconds:.1f} s"


def period_text(start: float, end: float) -> str:
    """`21 November 2026, 13:02 to 13:40 UTC`; both dates where they differ."""
    first, last = datetime.fromtimestamp(start, UTC), datetime.fromtimestamp(end, UTC)
    until = f"{last:%H:%M}" if first.date() == last.date() else _moment_text(last)
    return f"{_moment_text(first)} to {until} UTC"


def _moment_text(time: datetime) -> str:
    return f"{time.day} {time:%B %Y}, {time:%H:%M}"


def plain(value: Any) -> str:
    """A value as an experiment file writes it."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case list() | tuple():
            return ", ".join(map(plain, value))
    return str(value)
