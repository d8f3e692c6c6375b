"""`trb submit`: prepare, run the missing units, show them in a tracker, print the table."""

from __future__ import annotations

import argparse
import os
import signal
import sys
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

from orchestrator.checks import catalog
from orchestrator.checks.check import required
from orchestrator.checks.experiment import checked_setup
from orchestrator.checks.preflight import check_address
from orchestrator.commands import display
from orchestrator.commands.arguments import Parser, add_experiment, load_to_run, positive_number
from orchestrator.commands.detach import detach, detach_as_job, lasting_console
from orchestrator.commands.plan import gpu_hours_left
from orchestrator.commands.status import STARTING, Watch, watching
from orchestrator.commands.waiting import SILENCE_S, building, taking
from orchestrator.errors import FULL, ClusterDied, UserError, refuse
from orchestrator.experiment.units import KIND_NAMES, Unit, expand
from orchestrator.liveness.leases import LEASE_PATIENCE_S, Driving
from orchestrator.models import make
from orchestrator.monitor import status
from orchestrator.monitor.unit_status import hours_spent
from orchestrator.planning.numbers import counted, hours_text
from orchestrator.records.rundir import RunReader
from orchestrator.selection.confirmation import missing_units, unconfirmed_units, with_confirmation
from orchestrator.selection.loading import refuse_damaged
from orchestrator.selection.results_folder import note_submit
from orchestrator.selection.retention import prune
from orchestrator.selection.study import Study
from orchestrator.start_up import quick_imports
from orchestrator.sweep import prepare
from orchestrator.sweep.asking import require_searcher
from orchestrator.sweep.prepare import prepare_environment
from orchestrator.tracking.tracker import Mirror, tracker_function

JOB_SERVERS = ("http://", "https://")  # what the addresses of Ray's job servers begin with
INTERRUPTED = 130  # the exit code after Ctrl-C
ASKED_ABOVE = 1000.0  # GPU-hours, of the high estimate
Stopped = Literal["", "interrupted", "limit"]


def confirm(study: Study, yes: bool, max_hours: float | None = None) -> None:
    """Return if the rest of the sweep is cheap or limited, or the user agrees; else UserError.

    In a terminal the user is asked. Elsewhere only `yes` (the option --yes) agrees.
    """
    if yes or (max_hours is not None and max_hours <= ASKED_ABOVE):
        return
    hours = gpu_hours_left(study)
    if hours.high <= ASKED_ABOVE:
        return
    planned = f"{hours_text(hours)} GPU-hours are planned (trb plan --gpus N says how many days)"
    if not sys.stdin.isatty():
        raise UserError(f"submit: {planned}: expected --yes to spend them")
    print(f"{planned}. Start? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UserError("submit: not started; nothing was written")


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

    def say(self, line: str) -> None:
        display.say(self.console, line)

    def say_where(self) -> None:
        """Name the runs folder, and how much of the experiment it holds."""
        self.say(display.runs_line(self.study.runs, status.overview(self.study), absent="new"))


def add(parser: Parser) -> None:
    add_experiment(parser)
    text = "Ray cluster to join; without it a private one on this machine"
    parser.option("--address", None, text)
    text = "begin nothing that would take the experiment past H GPU-hours (core-hours without GPUs)"
    parser.option("--max-gpu-hours", "H", text, positive_number)
    parser.flag("--yes", "spend more than 1,000 planned GPU-hours without a question")
    parser.flag("--report", "write the report and all figures, too, when every unit is done")
    text = "go on in the background; with --address http://HEAD:8265 as a job of Ray's job server"
    parser.flag("--detach", text)


def run(options: argparse.Namespace) -> int:
    study, address, limit = load_to_run(options), options.address, options.max_gpu_hours
    confirm(study, options.yes, limit)
    is_job = (address or "").startswith(JOB_SERVERS)
    if is_job and not options.detach:
        expected = "--detach beside the address of a job server, else auto or HOST:PORT"
        raise refuse("--address", address, expected)
    again = ["--report"] if options.report else []
    again += ["--address", address] if address is not None and not is_job else []
    if not options.detach:
        typed = study.invocation.command("submit", *(["--yes"] if options.yes else []), *again)
        return submit(study, address, typed, limit, options.report)
    again += ["--yes"]  # the question was asked before
    again += [] if limit is None else ["--max-gpu-hours", repr(limit)]
    if address is not None and is_job:
        return detach_as_job(study, address, again, print)
    return detach(study, again, print)


def submit(
    study: Study,
    address: str | None,
    again: str,
    max_hours: float | None = None,
    report: bool = False,
) -> int:
    """0 when all units are done, 1 when some are not, 3 at `max_hours`, 130 after Ctrl-C."""
    tracker_function(study.experiment.runtime.tracker)  # refuses one that is not installed
    job = Submission(study, address, again, lasting_console(study.runs), max_hours, report)
    try:
        return _submit(job)
    except OSError as error:
        file = error.filename
        if error.errno not in FULL or (file and not Path(file).is_relative_to(study.runs)):
            raise
        go_on = f"free space, then go on with: {again}"
        raise UserError(f"--runs: {study.runs} is full ({error.strerror}); {go_on}") from None


def _submit(job: Submission) -> int:
    study, max_hours = job.study, job.max_hours
    if any(unit.provisional for unit in study.units):
        try:
            job = _with_models(job)
        except KeyboardInterrupt:
            return _conclude(job, "interrupted")
        study = job.study
    refuse_damaged(study)
    missing = missing_units(study)
    if not missing:
        job.say_where()
        job.mirror.announce()
        prune(study)
        job.say(f"everything is done: {len(study.units)} units")
        return _conclude(job, "")
    if max_hours is not None and hours_spent(study.snapshot()) >= max_hours:
        job.say_where()
        return _conclude(job, "limit")
    return _conclude(job, _run(job, missing))


@contextmanager
def _driving(job: Submission) -> Iterator[None]:
    """Register this process as a driver; SIGTERM and a request to stop act as Ctrl-C does."""
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
    """Answer Ctrl-C at once, however long the sweep takes to stop; a second one ends the process.

    Python raises KeyboardInterrupt only when a call of Ray's returns, and ending the cluster takes
    seconds. The signal is therefore also written into a pipe, which a thread reads. A process that
    ends at once leaves as little behind as a killed one: `liveness.deaths` ends its cluster,
    and the next submit goes on from the last commits.
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
    """Make the embedded models first: the ids of trained units rest on their weights."""
    _check(job)
    job.say_where()
    with _driving(job), building(job.console, "loading PyTorch") as report:
        prepare.prepare(
            job.study.experiment.setups,
            job.study.runs,
            report,
            job.study.experiment.data_dir,
        )
    units = expand(job.study.experiment, job.study.runs)
    return replace(job, study=job.study.with_units(units))


def _check(job: Submission) -> None:
    """Fetch data files that are missing, and make the checks before a submit; UserError.

    A line says so only if that takes a while.
    """
    study = job.study
    require_searcher(study.experiment)
    for check in catalog.driver_checks(job.address):
        required(check, study.runs)
    timer = threading.Timer(SILENCE_S, job.say, ["checking models and data…"])
    timer.daemon = True
    timer.start()
    try:
        prepare.fetch_data(study.experiment, job.say)
        for name, setup in study.experiment.setups.items():
            subject = checked_setup(study, name)
            found = {check.name: required(check, subject) for check in catalog.SUBMIT_CHECKS}
            are_there = make.are_there(setup, study.runs)
            for key, each in found.items():
                if each.verdict == "warn" and (are_there or key != "models"):
                    job.say(f"{name}: {each.detail}")
            # Models that are made next are looked at when they are there.
            if are_there and found["template"].verdict == "skipped":
                job.say(f"{name}.prompt: {found['template'].detail}")
    finally:
        timer.cancel()


def _to_run(missing: list[Unit]) -> str:
    """`8 units to run: 6 trials, 1 supervised stage, 1 untrained student`."""
    counts = Counter(unit.kind for unit in missing)
    kinds = [counted(counts[kind], name) for kind, name in KIND_NAMES.items() if counts[kind]]
    return f"{counted(len(missing), 'unit')} to run: {', '.join(kinds)}"


def company(missing: list[Unit], runs: Path) -> list[str]:
    """Name the other processes that work on these units already, one line for each."""
    holders: Counter[str] = Counter()
    for unit in missing:
        holder = RunReader(runs, unit.id).holder
        if holder:
            holders[str(holder)] += 1
    patience = f"each is waited for, for up to {LEASE_PATIENCE_S / 60:.0f} min, then left to it"
    return [f"{holder} works on {count} of them: {patience}" for holder, count in holders.items()]


def _run(job: Submission, missing: list[Unit]) -> Stopped:
    """Run the sweep; what stopped it before its end, if anything did."""
    stopped = ""
    try:
        _check(job)
        job.say_where()
        with _driving(job):
            stopped = _sweep(job, missing, time.monotonic())
    except KeyboardInterrupt:
        return "interrupted"
    except ClusterDied as error:
        job.say(str(error))
    return stopped


def _sweep(job: Submission, missing: list[Unit], started: float) -> Stopped:
    """Run it on a Ray cluster, and show its progress."""
    study, address = job.study, job.address and check_address(job.address)
    job.say(_to_run(missing))
    later = sum(unit.is_trial for unit in unconfirmed_units(study))
    if later:
        why = "confirm each method's choice on seeds of their own"
        job.say(f"then {later} more trials, which {why}")
    for line in company(missing, study.runs):
        job.say(line)
    job.mirror.announce()
    with ExitStack() as while_running:
        activity = f"joining the cluster at {address}" if address else "starting Ray"
        with taking(job.console, activity):
            prepare_environment(address)
            with quick_imports():
                from orchestrator.sweep import cluster, nodes, tuner  # Ray takes seconds to import

            while_running.enter_context(cluster.cluster(address))
        cluster.check_placement(missing)
        with building(job.console) as report:
            pairs = prepare.prepare(
                study.experiment.setups, study.runs, report, study.experiment.data_dir
            )
        note_submit(study)
        before = status.overview(study).units
        trials = sum(s.is_trial and s.has_ended for s in before)
        session = status.Session(started, trials, cluster.capacity())
        watch = Watch(study, ("Ctrl-C stops", "the same command goes on"), session)
        job.say(f"{STARTING}…")
        usable = while_running.enter_context(nodes.nodes_of(address, study, pairs, job.say))
        with job.mirror.following(), watching(watch, job.console):
            at_limit = tuner.run_sweep(study, pairs, usable, max_hours=job.max_hours)
    return "limit" if at_limit else ""


def _conclude(job: Submission, stopped: Stopped) -> int:
    """Print and write the results so far, and name the work that is left; the exit code."""
    from analysis import results
    from analysis.report.page import write_report
    from analysis.table import terminal
    from analysis.table.model import results_table

    study = with_confirmation(job.study)
    overview = status.overview(study)
    failed = overview.in_state("failed")
    table = results_table(study)
    job.console.print(terminal.to_rich(table, brief=True), crop=False)
    folder = results.write_results(study, table)
    job.mirror.catch_up(results.tracked_tables(table), [*table.notes, *table.verdict.lines()])
    if job.report and overview.is_done:
        results.write_figures(study, None)
        job.say(f"\nAll of it on one page, open it in a browser:\n{write_report(study).path}")
    else:
        job.say(f"\ntable, trials and trajectories: {folder}")
        job.say(f"the evidence of the scores: {study.invocation.command('table')}")
        job.say(f"all of it on one page:      {study.invocation.command('report')}")
    if table.verdict.advice is not None:
        job.say(f"\n{table.verdict.advice.reason}\n{table.verdict.advice.command}")
    for s in failed:
        job.say(f"failed: {s.id}: {s.error}")
        job.say(display.where_to_look(s, study.runs))
    if overview.is_done:
        return 0
    if stopped == "limit":
        spent = f"stopped at --max-gpu-hours {job.max_hours:g} with {display.hours_line(overview)}"
        how = f"{spent}; go on with a higher limit, or without: {job.again}"
        job.say(f"{display.summary(overview)}; {how}")
        return 1 if failed else 3
    limit = "" if job.max_hours is None else f" --max-gpu-hours {job.max_hours:g}"
    how = display.next_step(overview, f"{job.again}{limit}")
    job.say(f"{display.summary(overview)}; {how}")
    return INTERRUPTED if stopped == "interrupted" else 1
