"""`trb status`: where every unit stands, and which runs folder says so."""

from __future__ import annotations

import json
import threading

from rich.console import Console

from orchestrator.commands import display
from orchestrator.commands.watching import Watch, follow
from orchestrator.monitor import status
from orchestrator.selection.study import Study

PIPE_WIDTH = 400  # where no terminal is the limit


def show_status(
    study: Study,
    console: Console,
    as_json: bool,
    every: bool,
    sort: str | None,
) -> int:
    """Print the units; 1 if there is no runs folder, or if a unit is damaged, else 0."""
    study = study.snapshot()
    overview = status.overview(study)
    study.remember()
    damaged = [s for s in overview.units if s.state == "damaged"]
    code = 0 if study.runs.is_dir() and not damaged else 1
    if as_json:
        units_json = [s.to_json() for s in overview.units]
        print(json.dumps({"units": units_json, "sweep": overview.to_json(), "runs": str(study.runs)}, indent=2))
        return code
    console.print(display.runs_line(study.runs, overview.units), highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(display.status_view(overview, console.width, every=every, sort=sort))
    for failed in (s for s in overview.units if s.state == "failed"):
        for line in (f"{failed.id}: {failed.error}", display.where_to_look(failed, study.runs)):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    for unit in damaged:
        console.print(f"{unit.id}: {unit.error}", highlight=False, markup=False, soft_wrap=True)
    return code


def watch_status(study: Study, console: Console, every: bool, sort: str | None) -> int:
    """The units while others work on them, until all are done; in a pipe a line for each event."""
    watch = Watch(study, ("Ctrl-C ends the look, not the sweep",), every=every, sort=sort)
    if not console.is_terminal:
        for line in display.header(study.experiment, study.runs, PIPE_WIDTH):
            console.print(line, highlight=False, soft_wrap=True)
    follow(watch, console, threading.Event())
    return 0
