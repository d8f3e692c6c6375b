"""`trb dashboard`: a W&B workspace over the runs of an experiment (`tracking.dashboard`)."""

from __future__ import annotations

import argparse

from orchestrator.commands.arguments import Parser, add_experiment, load


def add(parser: Parser) -> None:
    add_experiment(parser)
    parser.option("--entity", None, "W&B user or team (default: your own)")
    parser.option("--project", None, "W&B project (default: runtime.wandb_project)")
    parser.flag("--dry-run", "print the specification as JSON; no network")


def run(options: argparse.Namespace) -> int:
    from orchestrator.tracking.dashboard import dashboard  # wandb takes a second to import

    print(dashboard(load(options), options.entity, options.project, options.dry_run))
    return 0
