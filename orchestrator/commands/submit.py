"""`trb submit`: prepare, run the missing units, show them in a tracker, print the table."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from rich.console import Console

from orchestrator.commands import display, watching
from orchestrator.errors import ClusterDied
from orchestrator.experiment.kinds import KIND_NAMES
from orchestrator.experiment.units import Unit, expand
from orchestrator.liveness.drivers import Driving
from orchestrator.liveness.lease import LEASE_PATIENCE_S
from orchestrator.monitor import status
from orchestrator.monitor.device_hours import hours_spent
from orchestrator.monitor.status import Overview
from orchestrator.monitor.unit_status import UnitStatus
from orchestrator.records.rundir import RunReader
from orchestrator.selection.confirmation import missing_units, unconfirmed_units, with_confirmation
from orchestrator.selection.damage import refuse_damaged
from orchestrator.selection.results_folder import note_submit
from orchestrator.selection.retention import prune
from orchestrator.selection.study import Study
from orchestrator.start_up import quick_imports
from orchestrator.sweep import prepare
from orchestrator.sweep.environment import prepare_environment
from orchestrator.sweep.preflight import check_address, check_runs_folder
from orchestrator.tracking.follow import Mirror
from orchestrator.tracking.tracker import tracker_function

INTERRUPTED = 130  # the exit code after Ctrl-C
Stopped = Literal["", "interrupted", "limit"]


@dataclass(frozen=True)
class Submission:
    """One call of `trb submit`; `again` is the command that goes on where this one stops.

    `max_hours` limits the device-hours of the experiment, those of earlier calls included. With
    `report` the page and all figures are written when every unit is done.
    """

    study: Study
    address: str | None
    again: str
    console: Console
    max_hours: float | None = None
    report: bool = False

    @cached_property
    def mirror(self) -> Mirror:
        return Mirror(self.study, self.again, self.say)

    def collect(self) -> list[UnitStatus]:
        return status.collect(self.study)

    def trials_done(self) -> int:
        return sum(unit.is_trial and unit.state == "done" for unit in self.collect())

    def say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def submit(
    study: Study,
    address: str | None,
    again: str,
    max_hours: float | None = None,
    report: bool = False,
) -> int:
    """0 when every unit is done, 1 when some are not, 3 when that is for `max_hours`, 130 after
    Ctrl-C.
    """
    tracker_function(study.experiment.runtime.tracker)  # refuses one that is not installed
    job = Submission(study, address, again, watching.lasting_console(study.runs), max_hours, report)
    if any(unit.provisional for unit in study.units):
        try:
            job = _with_models(job)
        except KeyboardInterrupt:
            return _conclude(job, "interrupted")
        study = job.study
    refuse_damaged(study)
    missing = missing_units(study)
    if not missing:
        _say_where(job)
        job.mirror.announce()
        prune(study)
        job.say(f"everything is done: {len(study.units)} units")
        return _conclude(job, "")
    if max_hours is not None and hours_spent(study.snapshot()) >= max_hours:
        _say_where(job)
        return _conclude(job, "limit")
    return _conclude(job, _run(job, missing))


@contextmanager
def _driving(job: Submission) -> Iterator[None]:
    """Meanwhile this process is found as a driver; SIGTERM, and a request to stop, end the sweep as
    Ctrl-C does.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    driving = Driving(
        job.study.runs, job.study.experiment.name, lambda: os.kill(os.getpid(), signal.SIGTERM)
    )
    try:
        with _answering(job):
            yield
    finally:
        driving.end()


@contextmanager
def _answering(job: Submission) -> Iterator[None]:
    """Answer Ctrl-C at once, however long the sweep takes to stop; a second one ends this process
    where it stands.

    Python raises KeyboardInterrupt only when a call of Ray's returns, and ending the cluster takes
    seconds. The signal is therefore also written into a pipe, which a thread reads. A process that
    ends at once leaves as little behind as a killed one: `liveness.driver_death` ends its cluster, and the
    next submit goes on from the last commits.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def answer() -> None:
        stopping = False
        while number := os.read(reading, 1):
            if number[0] != signal.SIGINT:
                continue
            if stopping:
                job.console.show_cursor()
                job.say(f"stopped at once; go on with: {job.again}")
                os._exit(INTERRUPTED)
            stopping = True
            job.say("stopping at the last commit; Ctrl-C again stops at once")
        os.close(reading)

    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=answer, daemon=True, name="ctrl-c").start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writing)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _with_models(job: Submission) -> Submission:
    """Make the embedded models: the ids of what is trained from them rest on their weights."""
    _check(job)
    _say_where(job)
    with _driving(job), watching.building(job.console, "loading PyTorch") as report:
        prepare.prepare(job.study.experiment.setups, job.study.runs, report)
    units = expand(job.study.experiment, job.study.runs)
    return replace(job, study=job.study.with_units(units))


def _check(job: Submission) -> None:
    """UserError on a folder, cluster, data or models that cannot be used; data files that are
    lacking are fetched.

    Says that it looks at them only where that takes a while.
    """
    check_runs_folder(job.study.runs)
    if job.address is not None:
        check_address(job.address)
    timer = threading.Timer(watching.SILENCE_S, job.say, ["checking models and data…"])
    timer.daemon = True
    timer.start()
    try:
        prepare.fetch_data(job.study.experiment, job.say)
        prepare.check(job.study.experiment, job.study.runs)
    finally:
        timer.cancel()


def _say_where(job: Submission) -> None:
    job.say(display.runs_line(job.study.runs, job.collect(), absent="new"))


def _to_run(missing: list[Unit]) -> str:
    """`8 units to run: 6 trials, 1 supervised stage, 1 untrained student`."""
    counts = Counter(unit.kind for unit in missing)
    parts = [
        f"{counts[kind]} {name}{'s' * (counts[kind] > 1)}"
        for kind, name in KIND_NAMES.items()
        if counts[kind]
    ]
    return f"{len(missing)} unit{'s' * (len(missing) > 1)} to run: {', '.join(parts)}"


def company(missing: list[Unit], runs: Path) -> list[str]:
    """Name the other processes that work on these units already, one line for each."""
    holders = Counter(holder for unit in missing if (holder := RunReader(runs, unit.id).holder))
    patience = f"each is waited for, for up to {LEASE_PATIENCE_S / 60:.0f} min, then left to it"
    return [f"{holder} works on {count} of them: {patience}" for holder, count in holders.items()]


def _run(job: Submission, missing: list[Unit]) -> Stopped:
    """Run the sweep; what stopped it before its end, if anything did."""
    stopped = ""
    try:
        _check(job)
        _say_where(job)
        with _driving(job):
            stopped = _sweep(job, missing, time.monotonic())
    except KeyboardInterrupt:
        return "interrupted"
    except ClusterDied as error:
        job.say(str(error))
    return stopped


def _sweep(job: Submission, missing: list[Unit], started: float) -> Stopped:
    """Run it on a Ray cluster, and show how far it is."""
    job.say(_to_run(missing))
    later = [unit for unit in unconfirmed_units(job.study) if unit.is_trial]
    if later:
        job.say(
            f"then {len(later)} more trials, which confirm what each method is chosen for on seeds of their own"
        )
    for line in company(missing, job.study.runs):
        job.say(line)
    job.mirror.announce()
    with ExitStack() as while_running:
        with watching.taking(
            job.console, f"joining the cluster at {job.address}" if job.address else "starting Ray"
        ):
            prepare_environment(job.address)
            with quick_imports():
                from orchestrator.sweep import cluster, nodes, tuner  # Ray takes seconds to import

            while_running.enter_context(cluster.cluster(job.address))
        cluster.check_placement(missing)
        with watching.building(job.console) as report:
            pairs = prepare.prepare(job.study.experiment.setups, job.study.runs, report)
        note_submit(job.study)
        session = status.Session(started, job.trials_done(), cluster.capacity())
        watch = watching.Watch(job.study, ("Ctrl-C stops", "the same command goes on"), session)
        job.say(f"{watching.STARTING}…")
        with (
            nodes.nodes_of(job.address, job.study, pairs, job.say) as usable,
            job.mirror.following(),
            watching.watching(watch, job.console),
        ):
            return (
                "limit"
                if tuner.run_sweep(job.study, pairs, usable, max_hours=job.max_hours)
                else ""
            )


def _conclude(job: Submission, stopped: Stopped) -> int:
    """Print and write the results so far, and what is left."""
    from analysis import results
    from analysis.report.page import write_report
    from analysis.table import build, terminal

    study = with_confirmation(job.study)
    overview = status.overview(study)
    statuses = overview.units
    table = build.results_table(study)
    job.console.print(terminal.to_rich(table, brief=True), crop=False)
    folder = results.write_results(study, table)
    job.mirror.catch_up(results.tracked_tables(table), [*table.notes, *table.verdict.lines()])
    if job.report and all(unit.state == "done" for unit in statuses):
        results.write_figures(study, None)
        job.say(f"\nAll of it on one page, open it in a browser:\n{write_report(study).path}")
    else:
        job.say(f"\ntable, trials and trajectories: {folder}")
        job.say(f"what the scores rest on: {job.study.experiment.command('table')}")
        job.say(f"all of it on one page:   {job.study.experiment.command('report')}")
    if table.verdict.advice is not None:
        job.say(f"\n{table.verdict.advice.reason}\n{table.verdict.advice.command}")
    for unit in statuses:
        if unit.state == "failed":
            job.say(f"failed: {unit.id}: {unit.error}")
            job.say(display.where_to_look(unit, job.study.runs))
    if all(unit.state == "done" for unit in statuses):
        return 0
    if stopped == "limit":
        job.say(f"{display.summary(statuses)}; {_at_the_limit(job, overview)}: {job.again}")
        return 1 if any(unit.state == "failed" for unit in statuses) else 3
    limit = "" if job.max_hours is None else f" --max-gpu-hours {job.max_hours:g}"
    job.say(f"{display.summary(statuses)}; go on with: {job.again}{limit}")
    return INTERRUPTED if stopped == "interrupted" else 1


def _at_the_limit(job: Submission, overview: Overview) -> str:
    """Say how many hours were spent and are left where `--max-gpu-hours` stopped the sweep, and how
    to go on.
    """
    left, unit = overview.device_hours_left, f"{overview.device}-hours"
    rest = "" if left is None else f", about {display.hours(left.mid)} left"
    rest += "" if left is None else f" ({display.hours(left.low)} to {display.hours(left.high)})"
    rest += ", by rates measured on this card" if left is not None and overview.calibrated else ""
    spent = f"{display.hours(overview.device_hours_spent)} {unit} spent{rest}"
    return f"stopped at --max-gpu-hours {job.max_hours:g} with {spent}; go on with a higher limit, or without"
