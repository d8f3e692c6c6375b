"""Opens the view: which experiment is meant, and whether a screen is there to show it."""

from __future__ import annotations

import argparse
import sys

from orchestrator.commands.arguments import (
    ONLY_RESULTS,
    Parser,
    add_experiment,
    free_experiment,
    load,
)
from orchestrator.errors import UserError, refuse
from orchestrator.experiment.reading import from_here
from orchestrator.selection.results_folder import only_results
from orchestrator.start_up import default_runs


def add(parser: Parser) -> None:
    add_experiment(parser, without=ONLY_RESULTS)


def run(options: argparse.Namespace) -> int:
    """Show the view until the user leaves.

    UserError without a terminal, without runs, and where no experiment is meant.
    """
    free_experiment(options)
    if not has_screen():
        name = options.experiment or "EXP"
        raise UserError(f"view: no terminal: expected one; trb status {name} prints the units")
    if options.experiment is None:
        options.experiment = only_results((options.runs or default_runs()).resolve())
    study = load(options)
    if not study.runs.is_dir():
        expected = f"a folder with runs; trb submit {options.experiment} makes it"
        raise refuse("--runs", from_here(study.runs), expected)
    from orchestrator.view.app import ViewApp

    app = ViewApp(study)
    app.run()
    return app.return_code or 0


def has_screen() -> bool:
    """Whether a terminal is there."""
    return sys.stdin.isatty() and sys.stdout.isatty()
