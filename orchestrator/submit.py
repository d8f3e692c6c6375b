"""`trb submit`: prepare, run the missing units, mirror to W&B, print the table."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from orchestrator import display, prepare, status
from orchestrator.config import Experiment
from orchestrator.grid import Unit
from orchestrator.ray_environment import prepare_environment
from orchestrator.status import UnitStatus

MIRROR_EVERY_S = 30.0


@dataclass(frozen=True)
class Submission:
    """One call of `trb submit`; `again` is the command that goes on where this one stops."""

    experiment: Experiment
    units: list[Unit]
    runs: Path
    address: str | None
    again: str
    console: Console

    def collect(self) -> list[UnitStatus]:
        return status.collect(self.experiment, self.units, self.runs)


def submit(experiment: Experiment, units: list[Unit], runs: Path, address: str | None, again: str) -> int:
    """0 when every unit is done, 1 when some are not, 130 after Ctrl-C."""
    job = Submission(experiment, units, runs, address, again, Console())
    missing = status.missing_units(experiment, units, runs)
    if not missing:
        job.console.print(f"everything is done: {len(units)} units", highlight=False)
        return _conclude(job, interrupted=False)
    interrupted = _run(job, missing)
    return _conclude(job, interrupted)


def _run(job: Submission, missing: list[Unit]) -> bool:
    """Run the waves; True if the user interrupted them."""
    job.runs.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    try:
        prepare.check(job.experiment, job.runs)
        prepare_environment(private=job.address is None)
        from orchestrator import sweep  # Ray takes seconds to import

        with sweep.cluster(job.address, job.runs):
            sweep.check_placement(missing)
            with display.building(job.console) as report:
                pairs = prepare.prepare(job.experiment, job.runs, report)
            with _mirroring(job), display.watching(job.collect, job.console):
                sweep.run_waves(job.experiment, job.units, job.runs, pairs)
    except KeyboardInterrupt:
        return True
    job.console.print(f"ran for {display.duration(time.monotonic() - started)}", highlight=False)
    return False


def _conclude(job: Submission, interrupted: bool) -> int:
    """Print and write the results so far, and what is left."""
    from analysis import load, results, terminal

    statuses = job.collect()
    _mirror(job)
    job.console.print(terminal.to_rich(load.results_table(job.experiment, job.units, job.runs)))
    folder = results.write_results(job.experiment, job.units, job.runs)
    job.console.print(f"written to {folder}", highlight=False, soft_wrap=True)
    for unit in statuses:
        if unit.state == "failed":
            job.console.print(f"failed: {unit.id}: {unit.error}", highlight=False, soft_wrap=True)
    if all(unit.state == "done" for unit in statuses):
        return 0
    job.console.print(f"{display.summary(statuses)}; go on with: {job.again}", highlight=False, soft_wrap=True)
    return 130 if interrupted else 1


@contextmanager
def _mirroring(job: Submission) -> Iterator[None]:
    """While units run, keep W&B up to date if it is online; offline, one projection at the end is enough."""
    from orchestrator.wandb_mode import chosen_mode

    if chosen_mode(job.experiment.runtime.wandb) != "online":
        yield
        return
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(MIRROR_EVERY_S):
            _mirror(job)

    thread = threading.Thread(target=follow, daemon=True, name="mirror")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _mirror(job: Submission) -> None:
    """A failing mirror never fails a sweep: the run directories hold everything and the next call tries again."""
    from orchestrator.wandb_mode import chosen_mode, stale_units

    mode = chosen_mode(job.experiment.runtime.wandb)
    stale = stale_units(job.experiment, job.units, job.runs, mode) if mode != "disabled" else []
    if not stale:
        return
    from orchestrator import wandb_mirror  # wandb takes a second to import

    try:
        wandb_mirror.mirror(job.experiment, stale, job.runs, mode)
    except (wandb_mirror.MirrorError, OSError) as error:
        job.console.print(f"W&B is behind ({error}); it catches up at the next submit", highlight=False, soft_wrap=True)
