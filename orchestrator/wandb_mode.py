"""What W&B should show of a unit, and whether it already does: everything about the mirror that needs no wandb."""

from __future__ import annotations

import json
import netrc
import os
from pathlib import Path
from typing import Any

from orchestrator import grid, selection
from orchestrator.config import Experiment, Setup
from orchestrator.grid import Unit
from orchestrator.rundir import RunReader

API_HOST = "api.wandb.ai"


def chosen_mode(wish: str) -> str:
    """`online`, `offline` or `disabled`; the wish `auto` is online only when the user is logged in."""
    if wish != "auto":
        return wish
    match os.environ.get("WANDB_MODE"):
        case "online" | "offline" as forced:
            return forced
        case "dryrun":
            return "offline"
        case "disabled":
            return "disabled"
    return "online" if os.environ.get("WANDB_API_KEY") or _in_netrc() else "offline"


def stale_units(experiment: Experiment, units: list[Unit], runs: Path, mode: str) -> list[Unit]:
    """Units whose projection is not what W&B was last given."""
    return [u for u in units if not _is_current(u, experiment.setups[u.setup], runs, mode)]


def projected_rows(unit: Unit, setup: Setup, run: RunReader) -> dict[int, dict[str, Any]]:
    """W&B rows by step: committed metrics of update k and scores of the checkpoint after k updates.

    A row is final once training went past its step; until then a later score could still belong to it.
    """
    rows: dict[int, dict[str, Any]] = {}
    for metrics in run.committed_metrics():
        named = {f"train/{key}": value for key, value in metrics.items() if key != "step" and value is not None}
        rows.setdefault(metrics["step"], {}).update(named)
    ids = grid.evaluation_ids(setup)
    for step in sorted({s for evaluation_id in ids.values() for s in run.evaluated_steps(evaluation_id)}):
        scores = selection.benchmark_scores(run, list(ids.values()), step)
        row = {f"eval/{key}": float(score) for key, score in zip(ids, scores, strict=True) if score is not None}
        mean = selection.exact_mean(scores)
        rows.setdefault(step, {}).update(row | ({"eval/mean": float(mean)} if mean is not None else {}))
    return {step: rows[step] for step in sorted(rows) if run.trained or step < run.next_step}


def mirror_folder(runs: Path) -> Path:
    """Where offline runs and the markers lie."""
    return runs / ".wandb"


def remember(unit: Unit, rows: dict[int, dict[str, Any]], runs: Path, mode: str) -> None:
    """Note what W&B was given."""
    marker = _marker(unit, runs)
    scratch = marker.with_suffix(".tmp")
    scratch.write_text(json.dumps(_state(rows, mode)))
    os.replace(scratch, marker)


def _is_current(unit: Unit, setup: Setup, runs: Path, mode: str) -> bool:
    rows = projected_rows(unit, setup, RunReader(runs, unit.id))
    return not rows or _given(unit, runs) == _state(rows, mode)


def _given(unit: Unit, runs: Path) -> dict[str, str] | None:
    """What the marker says; None where it is absent or torn."""
    try:
        return json.loads(_marker(unit, runs).read_text())
    except (FileNotFoundError, ValueError):
        return None


def _marker(unit: Unit, runs: Path) -> Path:
    return mirror_folder(runs) / f"{unit.id}.json"


def _state(rows: dict[int, dict[str, Any]], mode: str) -> dict[str, str]:
    return {"mode": mode, "rows": grid.digest(list(rows.items()))}


def _in_netrc() -> bool:
    try:
        return netrc.netrc().authenticators(API_HOST) is not None
    except (OSError, netrc.NetrcParseError):
        return False
