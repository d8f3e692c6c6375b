"""`trb status`: the state of every unit, once or while the sweep goes on."""

from __future__ import annotations

import argparse
import json
import threading

from rich.console import Console

from orchestrator.commands import display
from orchestrator.commands.arguments import JSON, Parser, add_experiment, load
from orchestrator.commands.display import say
from orchestrator.commands.status_tables import units_view
from orchestrator.commands.watching import Watch, finished_families, follow, gaps_of
from orchestrator.monitor import status
from orchestrator.selection.study import Study

PIPE_WIDTH = 400  # where no terminal is the limit


def add(parser: Parser) -> None:
    add_experiment(parser)
    shown = parser.add_mutually_exclusive_group()
    text = "go on looking until every unit is done or Ctrl-C; in a pipe a line for each event"
    shown.add_argument("--watch", action="store_true", help=text)
    shown.add_argument("--json", action="store_true", help=JSON)
    parser.flag("--all", "every unit, also of a large sweep")
    orders = ("score", "name", "state", "left")
    parser.option("--sort", None, "order of the units (default: plan)", choices=orders)


def run(options: argparse.Namespace) -> int:
    study = load(options)
    if options.watch:
        return watch_status(study, Console(), options.all, options.sort)
    return show_status(study, Console(), options.json, options.all, options.sort)


def show_status(
    study: Study, console: Console, as_json: bool, every: bool, sort: str | None
) -> int:
    """Print the units; 1 if no runs folder exists, or if a unit is damaged, else 0."""
    study = study.snapshot()
    overview = status.overview(study)
    study.remember()
    if as_json:
        document = {
            "units": [s.to_json() for s in overview.units],
            "sweep": overview.to_json(),
            "runs": str(study.runs),
        }
        print(json.dumps(document, indent=2))
        return _code(study, overview)
    say(console, display.runs_line(study.runs, overview.units))
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    width = console.width
    gaps = gaps_of(study, finished_families(overview))
    units = units_view(overview, width, every=every, sort=sort)
    below = display.summary_lines(overview, width, gaps)
    console.print(*units, "", *below, sep="\n")
    for s in overview.units:
        if s.state == "failed":
            say(console, f"{s.id}: {s.error}", display.where_to_look(s, study.runs))
    return _say_how_it_ends(study, overview, console)


def watch_status(study: Study, console: Console, every: bool, sort: str | None) -> int:
    """Show the units while others work on them, until all are done or one is damaged.

    A pipe gets a line for each event. 1 if no runs folder exists or a unit is damaged, else 0. A
    pipe ends where no process works on the sweep.
    """
    if not study.runs.is_dir():
        overview = status.overview(study)
        say(console, display.runs_line(study.runs, overview.units))
        return _say_how_it_ends(study, overview, console)
    watch = Watch(study, ("Ctrl-C ends the look, not the sweep",), every=every, sort=sort)
    if console.is_terminal:
        idle = display.idle_line(status.overview(study.snapshot()), study)
        if idle:
            say(console, idle)
    else:
        for line in display.header(study, PIPE_WIDTH):
            console.print(line, highlight=False, soft_wrap=True)
    follow(watch, console, threading.Event())
    return _say_how_it_ends(study, watch.look(), console)


def _say_how_it_ends(study: Study, overview: status.Overview, console: Console) -> int:
    """Name damaged units, else the command that goes on where no process works; the exit code."""
    damaged = [s for s in overview.units if s.state == "damaged"]
    for s in damaged:
        say(console, f"{s.id}: {s.error}")
    idle = display.idle_line(overview, study)
    if idle and not damaged:
        say(console, idle)
    return _code(study, overview)


def _code(study: Study, overview: status.Overview) -> int:
    damaged = any(s.state == "damaged" for s in overview.units)
    return 0 if study.runs.is_dir() and not damaged else 1
