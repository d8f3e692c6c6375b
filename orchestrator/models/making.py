"""Provides missing embedded models: copies shipped ones, makes the others (`models.embedded`)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.config import Model, Setup
from orchestrator.errors import UserError
from orchestrator.models import made_models
from orchestrator.models.identity import model_identity
from orchestrator.models.shipped import ShippedModel, shipped_model
from orchestrator.records.files import give_usual_mode, verify_files

Report = Callable[[str, dict[str, Any]], None]


def must_make(model: Model, setup: Setup, runs: Path) -> bool:
    """Whether a model has a recipe and no recorded folder yet."""
    if model.recipe is None:
        return False
    folder = made_models.folder_of(model, setup, runs)
    return not folder.is_dir() or made_models.recorded(folder) is None


def verify_made(model: Model, setup: Setup, runs: Path) -> None:
    """Raise Damaged unless a recipe's model still has the files that were recorded."""
    if model.recipe is not None:
        folder = made_models.folder_of(model, setup, runs)
        verify_files(folder, made_models.recorded(folder) or {}, made_models.remedy(folder))


def make(setup: Setup, roles: list[str], runs: Path, report: Report) -> None:
    """Make the missing models of `roles` in parallel, each in a process of its own.

    A shipped model is copied; an existing folder without a record is recorded unchanged. `report`
    gets a role and the progress of its model, `{"update": 20, "of": 600, "loss": 1.2}`. Raises
    UserError with the last line of a failed process, and kills the others.
    """
    processes = {}
    for role in roles:
        model: Model = getattr(setup, role)
        folder = made_models.folder_of(model, setup, runs)
        if folder.is_dir():
            made_models.record(folder)
            continue
        folder.parent.mkdir(parents=True, exist_ok=True)
        shipped = shipped_model(folder.name)
        if shipped is not None and made_models.recorded(folder) in (None, shipped.files):
            _copy(shipped, folder)
            continue
        spec = folder.with_suffix(".json")
        spec.write_text(
            json.dumps(model_identity(model, setup) | {"folder": str(folder)}, indent=2),
            encoding="utf-8",
        )
        command = [sys.executable, "-m", "orchestrator.models.embedded", str(spec)]
        log = folder.with_suffix(".log").open("w+", encoding="utf-8")
        processes[role] = (
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True),
            log,
        )
    try:
        _follow(processes, report)
    finally:
        for process, log in processes.values():
            process.kill()
            process.communicate()
            log.close()


def _copy(shipped: ShippedModel, folder: Path) -> None:
    """Put a shipped model into `folder`, whole or not at all."""
    scratch = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    shutil.copytree(shipped.folder, scratch, dirs_exist_ok=True)
    give_usual_mode(scratch)
    try:
        verify_files(scratch, shipped.files, "install trb again")
        made_models.record(folder, files_in=scratch)
        os.replace(scratch, folder)
    except OSError:
        if not folder.is_dir():  # else another process was faster and wrote the same files
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _follow(processes: dict[str, Any], report: Report) -> None:
    """Report progress until all processes end. Lines of a slower process wait in its pipe."""
    running = dict(processes)
    while running:
        for role, (process, log) in list(running.items()):
            line = process.stdout.readline()
            if line:
                report(role, json.loads(line))
            elif process.wait() == 0:
                del running[role]
            else:
                log.seek(0)
                lines = log.read().strip().splitlines()
                raise UserError(
                    f"making the {role} model failed: {lines[-1] if lines else process.returncode}"
                )


def are_there(setup: Setup, runs: Path) -> bool:
    """Whether no model of the setup still has to be made."""
    return not any(must_make(model, setup, runs) for model in (setup.student, setup.teacher))
