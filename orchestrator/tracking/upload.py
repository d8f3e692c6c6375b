"""Shows run directories in Weights & Biases, as a projection that can be rebuilt at any time.

Offline, an upload removes the earlier files of a run and writes the run anew; online, it skips the
rows that the server has. It sends committed steps alone, so a crash neither loses nor doubles a
row. Every call to the server has a time limit.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # wandb's dependencies deprecate each other
    import wandb

from orchestrator.config import Experiment
from orchestrator.experiment.methods import method_label
from orchestrator.tracking.login import Destination, mirror_folder, note_project, remember
from orchestrator.tracking.projection import FAILED, FINISHED, OPEN, Projection, Results

INIT_TIMEOUT_S = 20.0
FINISH_TIMEOUT_S = 40.0  # of one run's rows
ASK_TIMEOUT_S = 5


@dataclass(frozen=True)
class RunFacts:
    """The arguments with which a W&B run is opened."""

    id: str
    name: str
    job_type: str
    tags: list[str]
    config: dict[str, Any]
    notes: str | None = None


def mirror(experiment: Experiment, projection: Projection, runs: Path, mode: str) -> None:
    """Give W&B every row of a unit, its configuration and its state; `mode` is online or offline.

    Raises wandb.Error or TimeoutError if the server does not take them.
    """
    unit = projection.unit
    kind = method_label(unit.method) if unit.method else unit.kind
    facts = RunFacts(unit.id, projection.name, kind, [unit.setup], projection.config)
    with _service(mode):
        run = _open(experiment, facts, runs, mode, projection.outcome == OPEN)
        _write(run, projection.rows, projection.summary, mode, projection.outcome)
    to = Destination(runs, mode, experiment.runtime.wandb_project)
    remember(unit.id, projection.content, to)


def mirror_results(experiment: Experiment, results: Results, runs: Path, mode: str) -> None:
    """Give W&B the results tables as a run of their own; raises as `mirror` does.

    The tables are in the run's summary. Sending them again replaces them and doubles nothing.
    """
    setups = list(experiment.setups)
    # The workspace groups runs by method, so the results count as a method of their own.
    config = {"method": "results", "setup": ", ".join(setups)}
    notes = "\n".join(results.notes)
    facts = RunFacts(results.id, results.name, "results", setups, config, notes)
    summary = {}
    for name, (headings, rows) in results.tables.items():
        summary[name] = wandb.Table(columns=headings, data=rows)
    with _service(mode):
        run = _open(experiment, facts, runs, mode)
        _write(run, {}, summary, mode)
    to = Destination(runs, mode, experiment.runtime.wandb_project)
    remember(results.id, results.content, to)


def project_page(project: str) -> str | None:
    """The address of a project of the user's own entity; None if the server knows no user.

    Raises wandb's errors if the server does not answer.
    """
    wandb.setup(wandb.Settings(silent=True))
    entity = os.environ.get("WANDB_ENTITY") or wandb.Api(timeout=ASK_TIMEOUT_S).default_entity
    return f"{wandb.setup().settings.app_url}/{entity}/{project}" if entity else None


@contextmanager
def _service(mode: str) -> Iterator[None]:
    """Provide wandb's service for one run.

    It ends after a failed run, whose id it would keep in use; wandb then starts another one.
    Offline it ends with each run: it would close the file of a finished run only some time later,
    and a kill before that would lose rows that are noted as sent.
    """
    try:
        yield
    except BaseException:
        with suppress(OSError):  # a crashed service cannot be ended
            _end_service()
        raise
    if mode == "offline":
        _end_service()


def _end_service() -> None:
    """End wandb's service, which first writes its pending data. OSError if it fails."""
    try:
        wandb.teardown()
    except SystemExit as ended:
        raise OSError(f"wandb's service ended with exit code {ended.code}") from None


def _open(
    experiment: Experiment, facts: RunFacts, runs: Path, mode: str, goes_on: bool = False
) -> Any:
    """Open a W&B run; one that `goes_on` stays running on the server after this process closes it."""
    folder = mirror_folder(runs)
    folder.mkdir(parents=True, exist_ok=True)
    if mode == "offline":
        for fragment in (folder / "wandb").glob(f"offline-run-????????_??????-{facts.id}"):
            shutil.rmtree(fragment)
    wandb.setup(wandb.Settings(silent=True))  # before the login, which wandb would announce
    run = wandb.init(
        project=experiment.runtime.wandb_project,
        id=facts.id,
        name=facts.name,
        group=experiment.name,
        job_type=facts.job_type,
        tags=facts.tags,
        notes=facts.notes,
        config=facts.config,
        dir=str(folder),
        mode=mode,  # pyright: ignore[reportArgumentType]
        resume="allow" if mode == "online" else None,
        reinit="finish_previous",
        settings=_settings(mode, goes_on),
    )
    if mode == "online" and run.project_url:
        note_project(experiment.runtime.wandb_project, run.project_url, runs)
    return run


def _settings(mode: str, goes_on: bool) -> wandb.Settings:
    """Settings for rows only: no console, no machine statistics, no code, no package list."""
    return wandb.Settings(
        console="off",
        silent=True,
        symlink=mode == "offline",
        disable_git=True,
        save_code=False,
        x_disable_stats=True,
        x_disable_meta=True,
        x_save_requirements=False,
        x_update_finish_state=not goes_on,
        init_timeout=INIT_TIMEOUT_S,
        finish_timeout=FINISH_TIMEOUT_S,
        finish_timeout_raises=True,
    )


def _write(
    run: Any,
    rows: dict[int, dict[str, Any]],
    summary: dict[str, Any],
    mode: str,
    outcome: str = FINISHED,
) -> None:
    """Log the rows that the server lacks, then the summary, and end the run."""
    first = run.starting_step if mode == "online" else 0
    for step, row in rows.items():
        if step >= first:
            run.log(row, step=step, commit=True)
    run.summary.update(summary)
    run.finish(exit_code=int(outcome == FAILED))
    # The server has all rows now, and the folders of repeated uploads would pile up.
    if mode == "online":
        shutil.rmtree(run.settings.sync_dir)
