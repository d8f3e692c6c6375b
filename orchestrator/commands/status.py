"""`trb status`: where every unit stands, and which runs folder says so."""

from __future__ import annotations

import json
import threading

from rich.console import Console

from orchestrator.commands import display
from orchestrator.commands.watching import Watch, finished_families, follow, gaps_of
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
        print(
            json.dumps(
                {"units": units_json, "sweep": overview.to_json(), "runs": str(study.runs)},
                indent=2,
            )
        )
        return code
    _say(console, display.runs_line(study.runs, overview.units))
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    gaps = gaps_of(study, finished_families(overview))
    console.print(display.status_view(overview, console.width, every=every, sort=sort, gaps=gaps))
    for failed in (s for s in overview.units if s.state == "failed"):
        _say(console, f"{failed.id}: {failed.error}", display.where_to_look(failed, study.runs))
    _say_how_it_ends(study, overview, console)
    return code


def _say(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _say_how_it_ends(study: Study, overview: status.Overview, console: Console) -> int:
    """Name damaged units, else the command that goes on where no process works; 1 if a unit is
    damaged, else 0.
    """
    damaged = [f"{unit.id}: {unit.error}" for unit in overview.units if unit.state == "damaged"]
    idle = display.idle_line(overview, study.experiment)
    _say(console, *(damaged or [idle] * bool(idle)))
    return int(bool(damaged))


def watch_status(study: Study, console: Console, every: bool, sort: str | None) -> int:
    """The units while others work on them, until all are done or one is damaged; in a pipe a line
    for each event.

    1 if there is no runs folder or a unit is damaged, else 0. A pipe ends where no process works on
    the sweep.
    """
    if not study.runs.is_dir():
        overview = status.overview(study)
        _say(console, display.runs_line(study.runs, overview.units))
        _say_how_it_ends(study, overview, console)
        return 1
    watch = Watch(study, ("Ctrl-C ends the look, not the sweep",), every=every, sort=sort)
    if not console.is_terminal:
        for line in display.header(study.experiment, study.runs, PIPE_WIDTH):
            console.print(line, highlight=False, soft_wrap=True)
    else:
        _say(
            console,
            *filter(None, [display.idle_line(status.overview(study.snapshot()), study.experiment)]),
        )
    follow(watch, console, threading.Event())
    return _say_how_it_ends(study, watch.look(), console)
