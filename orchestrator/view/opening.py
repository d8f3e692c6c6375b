"""Opens the view: which experiment is meant, and whether a screen is there to show it."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable

from orchestrator.commands.arguments import free_experiment
from orchestrator.commands.detach import TRB
from orchestrator.errors import UserError, refuse
from orchestrator.experiment.reading import from_here
from orchestrator.selection.results_folder import only_results
from orchestrator.selection.study import Study
from orchestrator.start_up import default_runs

DRIVER = "TEXTUAL_DRIVER"  # set where a server, and no terminal, shows the screen


def open_view(options: argparse.Namespace, load: Callable[[argparse.Namespace], Study]) -> int:
    """Show the view until the user leaves; `load` makes the study of the options.

    UserError without a terminal, without runs, and where no experiment is meant.
    """
    free_experiment(options)
    if options.port is not None and not options.serve:
        raise UserError(f"--port: '{options.port}': expected --serve beside it")
    if options.port is not None and options.port > 65535:
        raise refuse("--port", options.port, "a port up to 65535")
    if not options.serve and not has_screen():
        name = options.experiment or "EXP"
        raise UserError(
            f"view: no terminal: expected one, or trb view {name} --serve for a browser; "
            f"trb status {name} prints the units"
        )
    if options.experiment is None:
        options.experiment = only_results((options.runs or default_runs()).resolve())
    study = load(options)
    if not study.runs.is_dir():
        expected = f"a folder with runs; trb submit {options.experiment} makes it"
        raise refuse("--runs", from_here(study.runs), expected)
    if options.serve:
        from orchestrator.view.serving import serve

        words = [*TRB, "view", *study.invocation.words]
        return serve(shlex.join(words), study.experiment.name, options.port or 0)
    from orchestrator.view.app import ViewApp

    app = ViewApp(study)
    app.run()
    return app.return_code or 0


def has_screen() -> bool:
    """Whether a terminal is there, or a server that shows the screen in its place."""
    return DRIVER in os.environ or (sys.stdin.isatty() and sys.stdout.isatty())
