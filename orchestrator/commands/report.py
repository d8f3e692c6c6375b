"""`trb report` and `trb figures`: the page of an experiment, and its pictures as files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from analysis.facts.curves import WantedSetting
from analysis.report.page import write_report
from analysis.results import write_figures
from orchestrator.commands.arguments import (
    Parser,
    add_experiment,
    lacks_runs,
    load_sound,
    refuse_folder,
)
from orchestrator.errors import UserError, one_of, refuse
from orchestrator.experiment.axes import respelled, short_names, value_text
from orchestrator.experiment.methods import Grid, known_method


def add(parser: Parser) -> None:
    add_experiment(parser)
    parser.option("--out", "FILE.html", "default: report.html in the results folder", Path)
    parser.flag("--figures", "write the figures beside it, too, as PNG and PDF")


def run(options: argparse.Namespace) -> int:
    """Print the page's path; for people the verdict stands before it, and the next command after."""
    study = load_sound(options)
    refuse_folder(options.out)
    if lacks_runs(options):
        return 1
    # Only a terminal shows it: a script reads the lines of stderr.
    with Console(stderr=True).status("reading the runs") as status:
        report = write_report(study, options.out.resolve() if options.out else None, status.update)
        if options.figures:
            status.update("drawing the figures as files")
            write_figures(study, report.path.parent)
    lead = "All of it on one page, open it in a browser:"
    print(*report.verdict.sentences, *report.verdict.caveats, "", lead, sep="\n", file=sys.stderr)
    print(report.path, flush=True)
    advice = report.verdict.advice
    if advice is not None:
        print("", advice.reason, advice.command, sep="\n", file=sys.stderr)
    return 0


def add_figures(parser: Parser) -> None:
    add_experiment(parser)
    parser.option("--out", "FOLDER", "default: the results folder", Path)
    parser.option("--width", "INCHES", "default 7.2; 5.5 fits a page of text at 8 pt", float)
    text = "in the trajectories, instead of the method's selected setting: TRB:epsilon0=0.05,K=25; may be repeated"
    parser.option("--setting", "METHOD:KNOB=VALUE,…", text, action="append", default=[])


def run_figures(options: argparse.Namespace) -> int:
    """Print the paths of the pictures; those that lack their data are named on stderr."""
    study = load_sound(options)
    if options.out is not None and options.out.exists() and not options.out.is_dir():
        raise refuse("--out", str(options.out), "a folder; this is a file")
    if options.width is not None and not 3 <= options.width <= 12:
        raise refuse("--width", options.width, "inches from 3 to 12")
    wanted = [_wanted_setting(text, study.experiment.methods) for text in options.setting]
    if lacks_runs(options):
        return 1
    written = write_figures(study, options.out, options.width, wanted)
    if not written.paths:
        nothing = f"nothing to draw of {study.experiment.name} yet"
        raise UserError(f"{study.runs}: {nothing}; begin with: trb submit {options.experiment}")
    print(*written.paths, sep="\n")
    for line in written.missing:
        print(f"not drawn: {line}", file=sys.stderr)
    return 0


def _wanted_setting(text: str, grids: Mapping[str, Grid]) -> WantedSetting:
    """`TRB:epsilon0=0.05,K=25` of an experiment's grids; UserError if they have no such setting."""
    name, _, values = text.partition(":")
    method = known_method("--setting", name.strip(), grids)
    knobs: dict[str, Any] = {}
    for part in filter(None, values.split(",")):
        knob, _, value = map(str.strip, part.partition("="))
        names = {short: full for full, short in short_names(grids[method]).items()}
        one_of(f"--setting {method}", knob, names)
        given = {value_text(each): each for each in grids[method][names[knob]]}
        typed = respelled(value)
        if typed not in given:
            right = f"a value of the experiment: {', '.join(given)}"
            raise refuse(f"--setting {method}:{knob}", value, right)
        knobs[names[knob]] = given[typed]
    return WantedSetting(method, knobs)
