"""A question before much is spent: `trb submit` of more than `ASKED_ABOVE` GPU-hours."""

from __future__ import annotations

import sys

from orchestrator.commands.plan import gpu_hours_left
from orchestrator.errors import UserError
from orchestrator.planning.numbers import hours_text
from orchestrator.selection.study import Study

ASKED_ABOVE = 1000.0  # GPU-hours, of the high estimate


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
