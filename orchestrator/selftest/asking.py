"""Checks on a GPU that the sweep asks its teacher well: the prompt's template, and the stop token.

Both need the experiment's own models. Random weights have no template and end by chance.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from orchestrator.config import Experiment, Setup
from orchestrator.selftest.bench import Bench
from orchestrator.selftest.endings import check_endings
from orchestrator.selftest.runner import Found
from orchestrator.selftest.template import NOT_TRIED, check_template


def template(bench: Bench) -> Found:
    """Check the cost of the prompt to the teacher, in nats a token."""
    return _tried(bench, partial(check_template, on_gpu=True))


def endings(bench: Bench) -> Found:
    """Check the share of the teacher's answers that end with its stop token."""
    return _tried(bench, check_endings)


def _tried(bench: Bench, check: Callable[[str, Setup, Experiment, Path], str]) -> Found:
    if bench.made:
        models = " and ".join(bench.made)
        return Found("skipped", f"random weights stand for {models} in this check")
    found = check(bench.name, bench.declared, bench.experiment, bench.runs)
    return Found("skipped" if found.startswith(NOT_TRIED) else "ok", found)
