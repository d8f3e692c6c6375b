"""Weights & Biases as a projection of the run directories: rebuilt from them at any time, never a source.

Offline, a run's fragments are removed and written anew; online, rows that the server has are skipped. Only
committed steps are sent, so a crash neither loses nor doubles a row. The only file that imports wandb.
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # wandb's dependencies deprecate each other
    import wandb

from orchestrator import grid, selection
from orchestrator.config import Experiment
from orchestrator.grid import Unit
from orchestrator.rundir import RunReader
from orchestrator.wandb_mode import mirror_folder, projected_rows, remember

MirrorError = wandb.Error


def mirror(experiment: Experiment, units: list[Unit], runs: Path, mode: str) -> None:
    """Give W&B every committed row of `units`; `mode` is online or offline."""
    mirror_folder(runs).mkdir(parents=True, exist_ok=True)
    for unit in units:
        reader = RunReader(runs, unit.id)
        rows = projected_rows(unit, experiment.setups[unit.setup], reader)
        if mode == "offline":
            for fragment in (mirror_folder(runs) / "wandb").glob(f"offline-run-????????_??????-{unit.id}"):
                shutil.rmtree(fragment)
        _write(_open(experiment, unit, runs, mode), rows, _summary(experiment, unit, reader), mode)
        remember(unit, rows, runs, mode)


def _open(experiment: Experiment, unit: Unit, runs: Path, mode: str) -> Any:
    settings = wandb.Settings(console="off", silent=True, x_disable_stats=True, x_disable_meta=True, disable_git=True)
    return wandb.init(
        project=experiment.runtime.wandb_project,
        id=unit.id,
        name=unit.id,
        group=unit.setup,
        job_type=unit.method or unit.kind,
        tags=[experiment.name],
        config={"method": unit.method or unit.kind, "setup": unit.setup, "seed": unit.seed, **unit.knobs},
        dir=str(mirror_folder(runs)),
        mode=mode,  # pyright: ignore[reportArgumentType]
        resume="allow" if mode == "online" else None,
        reinit="finish_previous",
        settings=settings,
    )


def _write(run: Any, rows: dict[int, dict[str, Any]], summary: dict[str, Any], mode: str) -> None:
    run.define_metric("*", step_metric="step")
    first = run.starting_step if mode == "online" else 0
    for step, row in rows.items():
        if step >= first:
            run.log({"step": step, **row}, step=step, commit=True)
    run.summary.update(summary)
    run.finish()


def _summary(experiment: Experiment, unit: Unit, reader: RunReader) -> dict[str, Any]:
    if unit.kind == "sft":
        return {}
    ids = list(grid.evaluation_ids(experiment.setups[unit.setup]).values())
    best = selection.best_step(reader, ids)
    return {} if best is None else {"best_step": best, "best_score": selection.mean_score(reader, ids, best)}
