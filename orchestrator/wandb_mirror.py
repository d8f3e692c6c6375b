"""Weights & Biases as a projection of the run directories: rebuilt from them at any time, never a source.

Offline, a run's fragments are removed and written anew; online, rows that the server has are skipped. Only
committed steps are sent, so a crash neither loses nor doubles a row. No call waits for the server for ever.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # wandb's dependencies deprecate each other
    import wandb

from orchestrator import grid, selection
from orchestrator.config import Experiment
from orchestrator.grid import Unit
from orchestrator.rundir import RunReader
from orchestrator.wandb_mode import Table, mirror_folder, projected_rows, remember, results_id

INIT_TIMEOUT_S = 20.0
FINISH_TIMEOUT_S = 40.0  # of one run's rows


def mirror(experiment: Experiment, units: list[Unit], runs: Path, mode: str) -> None:
    """Give W&B every committed row of `units`; `mode` is online or offline.

    Raises wandb.Error or TimeoutError where the server does not take them.
    """
    for unit in units:
        reader = RunReader(runs, unit.id)
        rows = projected_rows(unit, experiment.setups[unit.setup], reader)
        config = {"method": unit.method or unit.kind, "setup": unit.setup, "seed": unit.seed, **unit.knobs}
        with _service():
            run = _open(experiment, unit.id, runs, mode, unit.setup, unit.method or unit.kind, config)
            _write(run, rows, _summary(experiment, unit, reader), mode)
        remember(unit.id, list(rows.items()), runs, mode)


def mirror_results(experiment: Experiment, tables: dict[str, Table], notes: list[str], runs: Path, mode: str) -> None:
    """Give W&B the results tables as a run of their own; raises as `mirror` does.

    They lie in its summary, which the next ones replace, so giving them again doubles nothing.
    """
    run_id = results_id(experiment)
    config = {"method": "results", "setup": ", ".join(experiment.setups)}  # a group of its own among the units
    summary = {name: wandb.Table(columns=headings, data=rows) for name, (headings, rows) in tables.items()}
    with _service():
        run = _open(experiment, run_id, runs, mode, experiment.name, "results", config, "\n".join(notes))
        _write(run, {}, summary, mode)
    remember(run_id, [tables, notes], runs, mode)


@contextmanager
def _service() -> Iterator[None]:
    """wandb's service for one run. A run that failed keeps its id taken there, so the next one gets a new service."""
    try:
        yield
    except BaseException:
        with suppress(OSError, SystemExit):  # a service that crashed cannot be asked to end
            wandb.teardown()
        raise


def _open(
    experiment: Experiment, run_id: str, runs: Path, mode: str, group: str, job_type: str, config: dict[str, Any],
    notes: str | None = None,
) -> Any:  # fmt: skip
    folder = mirror_folder(runs)
    folder.mkdir(parents=True, exist_ok=True)
    if mode == "offline":
        for fragment in (folder / "wandb").glob(f"offline-run-????????_??????-{run_id}"):
            shutil.rmtree(fragment)
    wandb.setup(wandb.Settings(silent=True))  # before the login, which would be announced
    return wandb.init(
        project=experiment.runtime.wandb_project,
        id=run_id,
        name=run_id,
        group=group,
        job_type=job_type,
        tags=[experiment.name],
        notes=notes,
        config=config,
        dir=str(folder),
        mode=mode,  # pyright: ignore[reportArgumentType]
        resume="allow" if mode == "online" else None,
        reinit="finish_previous",
        settings=_settings(mode),
    )


def _settings(mode: str) -> wandb.Settings:
    """Rows only: no console, no machine statistics, no code, no package list."""
    return wandb.Settings(
        console="off",
        silent=True,
        symlink=mode == "offline",
        disable_git=True,
        save_code=False,
        x_disable_stats=True,
        x_disable_meta=True,
        x_save_requirements=False,
        init_timeout=INIT_TIMEOUT_S,
        finish_timeout=FINISH_TIMEOUT_S,
        finish_timeout_raises=True,
    )


def _write(run: Any, rows: dict[int, dict[str, Any]], summary: dict[str, Any], mode: str) -> None:
    run.define_metric("*", step_metric="step")
    first = run.starting_step if mode == "online" else 0
    for step, row in rows.items():
        if step >= first:
            run.log({"step": step, **row}, step=step, commit=True)
    run.summary.update(summary)
    run.finish()
    if mode == "online":  # the server has it all; a folder for each time would pile up
        shutil.rmtree(run.settings.sync_dir)


def _summary(experiment: Experiment, unit: Unit, reader: RunReader) -> dict[str, Any]:
    """The best checkpoint, out of how many, and its score on each benchmark; empty without evaluations."""
    ids = grid.evaluation_ids(experiment.setups[unit.setup])
    known = list(ids.values())
    best = selection.best_step(reader, known)
    if best is None:
        return {}
    scores = zip(ids, selection.benchmark_scores(reader, known, best), strict=True)
    each = {f"best/{benchmark}": float(score) for benchmark, score in scores if score is not None}
    found = {"best_step": best, "best_score": selection.mean_score(reader, known, best)}
    return {**found, "candidates": len(selection.trajectory(reader, known)), **each}
