"""`trb power`: how many runs find a difference, and how small a difference so many runs find.

The standard deviation between runs comes from finished runs, or from `--sd`. Costs are the plan's.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from rich.console import Console

from analysis.facts.assess import MethodRuns, finished_runs
from analysis.labels import setup_title
from orchestrator.commands.arguments import (
    JSON,
    Parser,
    add_experiment,
    load_sound,
    positive_number,
    whole_number,
)
from orchestrator.config import Experiment, Setup
from orchestrator.errors import UserError, refuse
from orchestrator.experiment.evaluation_protocol import problems_wanted
from orchestrator.experiment.methods import REFERENCE, method_label
from orchestrator.experiment.units import Unit, families, with_seed
from orchestrator.monitor.unit_status import (
    device_hours,
    device_of,
    left_of,
    left_once_trained,
    work_left,
)
from orchestrator.planning.calibrated import gpu_here
from orchestrator.planning.numbers import Range, hours_text, span_text
from orchestrator.planning.plan import TOTAL, make_plan, total_gpu_hours
from orchestrator.planning.seconds import measure, study_seconds
from orchestrator.selection.confirmation import with_confirmation
from orchestrator.selection.significance import MOST_RUNS, POWER, Comparison, RunSpread, pooled
from orchestrator.selection.study import Study
from orchestrator.sheet import Sheet, to_rich

DIFFERENCES = (0.4, 1.0)  # points
MOST_SEEDS = 10_000  # of --seeds
POOLED = "all, pooled"


def add(parser: Parser) -> None:
    add_experiment(parser)
    text = "standard deviation between runs (default: that of the finished runs)"
    parser.option("--sd", "POINTS", text, positive_number)
    text = "differences to find, such as 0.4,1 (the default)"
    parser.option("--difference", "POINTS", text, _differences)
    text = f"the probability of finding a difference that is there (default: {POWER})"
    parser.option("--power", "SHARE", text, _share)
    text = "runs of each method (default: the experiment's confirming or exploring seeds)"
    parser.option("--seeds", "N", text, whole_number)
    parser.flag("--json", JSON)


def run(options: argparse.Namespace) -> int:
    if options.seeds is not None and not 2 <= options.seeds <= MOST_SEEDS:
        raise refuse("--seeds", options.seeds, f"2 to {MOST_SEEDS:,}")
    study = with_confirmation(load_sound(options))
    known, experiment = finished_runs(study), study.experiment
    if not known and options.sd is None:
        lacking = f"{experiment.name}: no two finished runs of a method, so no standard deviation"
        raise UserError(f"{lacking}; give one: {study.invocation.command('power', '--sd', '0.5')}")
    asked = Asked(
        options.power or POWER,
        options.difference or DIFFERENCES,
        options.seeds or max(2, seeds_of(experiment)),
        compared(experiment),
    )
    lines = lines_of(experiment, known, options.sd)
    cost = seed_cost(study)
    if options.json:
        print(json.dumps(document(lines, asked, cost), indent=2))
    else:
        show(experiment, lines, asked, cost, Console())
    return 0


def _differences(text: str) -> tuple[float, ...]:
    """The type of an option that takes numbers > 0, such as `0.4,1`."""
    return tuple(positive_number(word) for word in text.split(","))


def _share(text: str) -> float:
    """The type of an option that takes a power: above the level of the tests, and below one."""
    share = positive_number(text)
    if not 0.1 <= share <= 0.99:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 0.1 to 0.99")
    return share


# --- what is asked, and the lines that answer it ---


@dataclass(frozen=True)
class Asked:
    """The wanted power, the differences to find in points, and the runs of each method.

    `compared` methods are tested against vanilla.
    """

    power: float
    differences: Sequence[float]
    seeds: int
    compared: int

    def comparisons(self, line: PowerLine) -> tuple[Comparison, Comparison]:
        """The comparison of a line without a correction, and with it."""
        deviations = line.spread.deviation, line.control
        return Comparison(*deviations), Comparison(*deviations, self.compared)


@dataclass(frozen=True)
class PowerLine:
    """A method, all methods of a setup pooled, or one standard deviation that was given.

    `control` is the standard deviation of vanilla's runs, `sampling` the variance of a run's
    average by the sampling of responses alone, `assumed` where it is the worst case. Standard
    deviations are in points. `spread.runs` is 0 where no run is behind it.
    """

    setup: str
    name: str
    spread: RunSpread
    control: float
    sampling: float
    assumed: bool = False
    method: str | None = None

    @property
    def of_sampling(self) -> float:
        """The share of the variance between runs that comes from sampling."""
        return min(1.0, self.sampling / self.spread.deviation**2)

    def with_twice_n(self) -> float:
        """The standard deviation with twice the samples of each problem."""
        return self.spread.deviation * sqrt(1 - self.of_sampling / 2)


def compared(experiment: Experiment) -> int:
    """How many methods are tested against vanilla, at least 1."""
    methods = experiment.confirmed_methods or experiment.methods
    return max(1, sum(method != REFERENCE for method in methods))


def seeds_of(experiment: Experiment) -> int:
    """How many confirming seeds there are, else the most exploring seeds of any method."""
    explored = max(len(experiment.seeds_of(method)) for method in experiment.methods)
    return len(experiment.confirm.seeds) or explored


def lines_of(
    experiment: Experiment, known: Sequence[MethodRuns], deviation: float | None = None
) -> list[PowerLine]:
    """The lines of each setup: one for the given `deviation`, else its methods and all pooled."""
    lines = []
    for name, setup in experiment.setups.items():
        own = [runs for runs in known if runs.setup == name]
        counted = [runs.sampling for runs in own if runs.sampling is not None]
        assumed = not counted
        mean = worst_sampling(setup) if assumed else sum(counted) / len(counted)
        if deviation is not None:
            spread = RunSpread(deviation, 0)
            label = f"s.d. {deviation:g}"
            lines.append(PowerLine(name, label, spread, deviation, mean, assumed))
        elif own:
            together = pooled([runs.spread for runs in own])
            of_method = {runs.method: runs.spread.deviation for runs in own}
            for runs in own:
                control = of_method.get(REFERENCE, runs.spread.deviation)
                sampling = mean if runs.sampling is None else runs.sampling
                given = runs.spread, control, sampling, runs.sampling is None and assumed
                lines.append(PowerLine(name, method_label(runs.method), *given, runs.method))
            lines.append(PowerLine(name, POOLED, together, together.deviation, mean, assumed))
    return lines


def worst_sampling(setup: Setup) -> float:
    """The variance of an average by sampling, were every problem solved in half of its samples."""
    evaluation, total = setup.evaluation, 0.0
    for key, benchmark in evaluation.benchmarks.items():
        total += 0.25 / (benchmark.n * problems_wanted(evaluation, key))
    return 100**2 * total / len(evaluation.benchmarks) ** 2


# --- the cost of one more seed ---


@dataclass(frozen=True)
class SeedCost:
    """One more seed of every method: its trials, and their `device`-hours; None while unknown."""

    trials: int
    device: str
    hours: Range | None

    @property
    def text(self) -> str:
        if self.hours is None:
            return "a time that is unknown before a unit has run here"
        if self.device == "GPU":
            return f"{hours_text(self.hours)} GPU-hours"
        return f"{span_text(self.hours * 60, lambda minutes: f'{minutes:.3g}')} core-minutes"


def seed_cost(study: Study) -> SeedCost:
    """One more confirming seed, or without these one more exploring seed of every setting."""
    experiment = study.experiment
    confirms = bool(experiment.confirm.seeds)
    seed = max([*experiment.explored_seeds, *experiment.confirm.seeds]) + 1
    units: dict[str, Unit] = {}
    for family in study.families():
        if family[0][0].is_trial:
            if confirms and family[0][0].method not in experiment.confirmed_methods:
                continue
            for setting in family[:1] if confirms else family:
                for unit in with_seed(setting[0], seed, experiment, study.runs):
                    units[unit.id] = unit
    chosen = [*units.values()]
    trials, device = sum(unit.is_trial for unit in chosen), device_of(study)
    if device == "core":
        return SeedCost(trials, device, _core_hours(study, chosen, confirms))
    confirming = {unit.id for unit in chosen if confirms and unit.is_trial}
    measured = measure(study)
    gpu = gpu_here(measured.calibrations)
    hours = total_gpu_hours(make_plan(experiment, chosen, None, measured, gpu, confirming))
    return SeedCost(trials, device, hours[TOTAL] if hours else None)


def _core_hours(study: Study, units: Sequence[Unit], confirms: bool) -> Range | None:
    experiment, seconds = study.experiment, study_seconds(study)
    jobs = []
    for unit in units:
        confirming = confirms and unit.is_trial
        work = work_left(experiment, unit, study.reader(unit), 0, {}, confirming)
        jobs.append(left_of(unit, work, seconds))
    for family in [] if confirms else families(units):
        jobs.append(left_once_trained(experiment, family, seconds))
    known = [job for job in jobs if job is not None]
    evaluator = experiment.runtime.placement.of_evaluator
    return device_hours(known, evaluator, "core") if len(known) == len(jobs) else None


# --- as it is printed ---


def show(
    experiment: Experiment,
    lines: Sequence[PowerLine],
    asked: Asked,
    cost: SeedCost,
    console: Console,
) -> None:
    """Print a table for each setup, which of seeds and n limits it, and the cost of a seed."""
    several = f"; in brackets corrected for {asked.compared} methods" if asked.compared > 1 else ""
    head = f"Differences to {method_label(REFERENCE)}, two-sided at 5 %, found in "
    print(f"{head}{100 * asked.power:g} % of sweeps{several}.")
    for setup in dict.fromkeys(line.setup for line in lines):
        own = [line for line in lines if line.setup == setup]
        columns = [f"runs for {points:g}" for points in asked.differences]
        title = setup_title(setup, experiment.setups)
        headings = [title, "s.d.", "of runs", "sampling", *columns, f"{asked.seeds} runs find"]
        rows = [_cells(line, asked) for line in own]
        console.print()
        console.print(to_rich(Sheet.of(headings, rows)), highlight=False)
        console.print(_bottleneck(own[-1], asked), highlight=False, markup=False)
    trials = f"{cost.trials} trial{'' if cost.trials == 1 else 's'}"
    every = f"One more seed of every method: {trials}, {cost.text}."
    console.print(f"\ns.d., sampling and differences are in points. {every}", highlight=False)


def _cells(line: PowerLine, asked: Asked) -> list[str]:
    spread, pair = line.spread, asked.comparisons(line)
    cells = [
        line.name,
        f"{spread.deviation:.2f}",
        "" if line.name == POOLED else str(spread.runs or ""),
    ]
    cells.append(f"{'≤ ' if line.assumed else ''}{sqrt(line.sampling):.2f}")
    if line.method == REFERENCE:
        return [*cells, *[""] * (len(asked.differences) + 1)]
    pair = pair[: 1 if asked.compared == 1 else 2]
    for points in asked.differences:
        found = [each.runs_needed(points, asked.power) for each in pair]
        cells.append(
            _with_corrected([f"> {MOST_RUNS:,}" if n is None else f"{n:,}" for n in found])
        )
    cells.append(_with_corrected([f"{each.seen(asked.seeds, asked.power):.2f}" for each in pair]))
    return cells


def _with_corrected(texts: Sequence[str]) -> str:
    """`10 (16)`: without a correction and with it; one number where there is none."""
    return texts[0] if len(texts) == 1 else f"{texts[0]} ({texts[1]})"


def _bottleneck(line: PowerLine, asked: Asked) -> str:
    """Twice the samples of each problem beside one more seed, and which of both is the limit."""
    seen = asked.comparisons(line)[1].seen(asked.seeds, asked.power)
    quiet = line.with_twice_n()
    of_n = Comparison(quiet, quiet, asked.compared).seen(asked.seeds, asked.power)
    of_seed = asked.comparisons(line)[1].seen(asked.seeds + 1, asked.power)
    basis = " at most (every problem solved in half of its samples)" if line.assumed else ""
    limit = "n" if line.of_sampling > 0.5 else "seeds"
    if line.assumed and limit == "n":
        limit += ", unless most problems are nearly always or never solved"
    return (
        f"{line.name}: sampling makes {100 * line.of_sampling:.0f} % of the variance between runs"
        f"{basis}. {asked.seeds} runs find {seen:.2f} points, with twice the n {of_n:.2f}, and "
        f"{asked.seeds + 1} runs {of_seed:.2f}: the bottleneck is {limit}."
    )


def document(lines: Sequence[PowerLine], asked: Asked, cost: SeedCost) -> dict[str, Any]:
    """The numbers as `--json` prints them; differences and standard deviations are in points."""
    rows = []
    for line in lines:
        alone, corrected = asked.comparisons(line)
        row: dict[str, Any] = {
            "setup": line.setup,
            "method": line.method,
            "sd": line.spread.deviation,
            "sd_interval": line.spread.interval if line.spread.runs else None,
            "runs": line.spread.runs if line.method else None,
            "sampling_sd": sqrt(line.sampling),
            "sampling_assumed": line.assumed,
            "needed": None,
            "found": None,
        }
        if line.method != REFERENCE:
            needed = []
            for points in asked.differences:
                own = alone.runs_needed(points, asked.power)
                for_all = corrected.runs_needed(points, asked.power)
                needed.append({"difference": points, "runs": own, "corrected": for_all})
            points = [each.seen(asked.seeds, asked.power) for each in (alone, corrected)]
            row["needed"] = needed
            row["found"] = {"runs": asked.seeds, "points": points[0], "corrected": points[1]}
        rows.append(row)
    hours = cost.hours and {"low": cost.hours.low, "mid": cost.hours.mid, "high": cost.hours.high}
    one_more = {"trials": cost.trials, "device": cost.device, "hours": hours}
    asked_for = {"power": asked.power, "compared": asked.compared, "seeds": asked.seeds}
    return {**asked_for, "rows": rows, "one_more_seed": one_more}


# --- for `trb plan` ---


def outlook(study: Study) -> dict[str, Any]:
    """The differences that the planned seeds find by the runs so far, corrected.

    `setups` is empty while unknown.
    """
    found: dict[str, Any] = {}
    experiment = study.experiment
    asked = Asked(POWER, (), seeds_of(experiment), compared(experiment))
    for line in lines_of(experiment, finished_runs(study)):
        if line.name == POOLED:
            points = asked.comparisons(line)[1].seen(asked.seeds)
            sd = line.spread.deviation
            found[line.setup] = {"sd": round(sd, 3), "points": round(points, 3)}
    return {"seeds": asked.seeds, "compared": asked.compared, "setups": found}


def outlook_text(study: Study, known: dict[str, Any]) -> str:
    """`3 confirming seeds find 4.2 points at s.d. 1.1`, or how to ask where no run says."""
    kind, setups = "confirming" if study.experiment.confirm.seeds else "exploring", known["setups"]
    command = study.invocation.command("power", *(() if setups else ("--sd", "0.5")))
    if not setups:
        return f"No runs say yet how small a difference the seeds find: {command}"
    spans = []
    for key in ("points", "sd"):
        values = sorted(of_setup[key] for of_setup in setups.values())
        ends = dict.fromkeys(f"{value:.1f}" for value in (values[0], values[-1]))
        spans.append(" – ".join(ends))
    seeds = f"{known['seeds']} {kind} seeds find {spans[0]} points at s.d. {spans[1]}"
    tests = f"{100 * POWER:g} % power"
    if known["compared"] > 1:
        tests += f", corrected for {known['compared']} methods"
    return f"{seeds} ({tests}): {command}"
