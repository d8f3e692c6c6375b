"""`trb submit`: prepare, run the missing units, mirror to W&B, print the table."""

from __future__ import annotations

import functools
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from rich.console import Console

from orchestrator.commands import display, watching
from orchestrator.config import Experiment
from orchestrator.errors import ClusterDied
from orchestrator.experiment.units import Unit, expand
from orchestrator.monitor import status
from orchestrator.monitor.status import UnitStatus
from orchestrator.records.lease import LEASE_PATIENCE_S
from orchestrator.records.rundir import RunReader
from orchestrator.selection.damage import refuse_damaged
from orchestrator.selection.retention import prune
from orchestrator.sweep import prepare
from orchestrator.sweep.environment import prepare_environment
from orchestrator.sweep.preflight import check_address, check_runs_folder
from orchestrator.tracking.follow import Mirror
from orchestrator.tracking.projection import result_tables

SILENCE_S = 3.0  # that nobody wonders about


@dataclass(frozen=True)
class Submission:
    """One call of `trb submit`; `again` is the command that goes on where this one stops."""

    experiment: Experiment
    units: list[Unit]
    runs: Path
    address: str | None
    again: str
    console: Console

    @cached_property
    def mirror(self) -> Mirror:
        return Mirror(self.experiment, self.units, self.runs, self.again, self.say)

    def collect(self) -> list[UnitStatus]:
        return status.collect(self.experiment, self.units, self.runs)

    def trials_done(self) -> int:
        return sum(unit.kind == "trial" and unit.state == "done" for unit in self.collect())

    def say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def submit(experiment: Experiment, units: list[Unit], runs: Path, address: str | None, again: str) -> int:
    """0 when every unit is done, 1 when some are not, 130 after Ctrl-C."""
    job = Submission(experiment, units, runs, address, again, watching.lasting_console(runs))
    if any(unit.provisional for unit in units):
        try:
            job = _with_models(job)
        except KeyboardInterrupt:
            return _conclude(job, interrupted=True)
        units = job.units
    refuse_damaged(experiment, units, runs)
    missing = status.missing_units(experiment, units, runs)
    if not missing:
        _say_where(job)
        job.mirror.announce()
        prune(experiment, units, runs)
        job.say(f"everything is done: {len(units)} units")
        return _conclude(job, interrupted=False)
    interrupted = _run(job, missing)
    return _conclude(job, interrupted)


def _with_models(job: Submission) -> Submission:
    """Make the embedded models: the ids of what is trained from them rest on their weights."""
    _check(job)
    _say_where(job)
    job.runs.mkdir(parents=True, exist_ok=True)
    with watching.building(job.console) as report:
        prepare.prepare(job.experiment, job.runs, report)
    return replace(job, units=expand(job.experiment, job.runs))


def _check(job: Submission) -> None:
    """UserError on a folder, cluster, data or models that cannot be used.

    Says that it looks at them only where that takes a while.
    """
    check_runs_folder(job.runs)
    if job.address is not None:
        check_address(job.address)
    timer = threading.Timer(SILENCE_S, job.say, ["checking models and data…"])
    timer.daemon = True
    timer.start()
    try:
        prepare.check(job.experiment, job.runs)
    finally:
        timer.cancel()


def _say_where(job: Submission) -> None:
    job.say(display.runs_line(job.runs, job.collect(), absent="new"))


def _to_run(missing: list[Unit]) -> str:
    """`8 units to run: 6 trials, 1 supervised stage, 1 untrained student`."""
    kinds = {"trial": "trial", "sft": "supervised stage", "base_eval": "untrained student"}
    counts = Counter(unit.kind for unit in missing)
    parts = [f"{counts[kind]} {name}{'s' * (counts[kind] > 1)}" for kind, name in kinds.items() if counts[kind]]
    return f"{len(missing)} unit{'s' * (len(missing) > 1)} to run: {', '.join(parts)}"


def company(missing: list[Unit], runs: Path) -> list[str]:
    """What to say of the units that other processes work on already, one line for each process."""
    holders = Counter(holder for unit in missing if (holder := RunReader(runs, unit.id).holder))
    patience = f"each is waited for, for up to {LEASE_PATIENCE_S / 60:.0f} min, then left to it"
    return [f"{holder} works on {count} of them: {patience}" for holder, count in holders.items()]


def _run(job: Submission, missing: list[Unit]) -> bool:
    """Run the waves; True if the user interrupted them."""
    started = time.monotonic()
    try:
        _check(job)
        _say_where(job)
        job.runs.mkdir(parents=True, exist_ok=True)
        job.say(_to_run(missing))
        for line in company(missing, job.runs):
            job.say(line)
        job.mirror.announce()
        job.say(f"joining the Ray cluster at {job.address}…" if job.address else "starting Ray…")
        prepare_environment(private=job.address is None)
        from orchestrator.sweep import waves  # Ray takes seconds to import

        with waves.cluster(job.address, job.runs):
            waves.check_placement(missing)
            with watching.building(job.console) as report:
                pairs = prepare.prepare(job.experiment, job.runs, report)
            job.say("starting workers…")
            session = status.Session(started, job.trials_done(), waves.capacity())
            look = functools.partial(status.overview, job.experiment, job.units, job.runs, session)
            with job.mirror.following(), watching.watching(look, job.console):
                waves.run_waves(job.experiment, job.units, job.runs, pairs)
    except KeyboardInterrupt:
        return True
    except ClusterDied as error:
        job.say(str(error))
    job.console.print(f"ran for {display.duration(time.monotonic() - started)}", highlight=False)
    return False


def _conclude(job: Submission, interrupted: bool) -> int:
    """Print and write the results so far, and what is left."""
    from analysis import results
    from analysis.table import build, formats, terminal

    statuses = job.collect()
    table = build.results_table(job.experiment, job.units, job.runs)
    job.console.print(terminal.to_rich(table))
    folder = results.write_results(job.experiment, job.units, job.runs, table)
    job.say(f"written to {folder}: the table in all forms, trials.csv, trajectories")
    job.say(f"all of it on one page: {job.experiment.command('report')}")
    job.say(f"every figure:          {job.experiment.command('figures')}")
    document, scores = (formats.FORMATS[form](table) for form in ("json", "csv"))
    job.mirror.catch_up(result_tables(json.loads(document), scores), [*table.notes, *table.verdict])
    for unit in statuses:
        if unit.state == "failed":
            job.say(f"failed: {unit.id}: {unit.error}")
            job.say(display.where_to_look(unit, job.runs))
    if all(unit.state == "done" for unit in statuses):
        return 0
    job.console.print(f"{display.summary(statuses)}; go on with: {job.again}", highlight=False, soft_wrap=True)
    return 130 if interrupted else 1
