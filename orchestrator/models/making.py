"""Provides missing embedded models: copies shipped ones, makes the others (`models.embedded`)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from orchestrator.config import Model, Setup
from orchestrator.errors import UserError
from orchestrator.liveness.children import Child, ChildFailed, ChildLost, messages
from orchestrator.models import made_models
from orchestrator.models.identity import model_identity
from orchestrator.models.shipped import ShippedModel, shipped_model
from orchestrator.records.files import give_usual_mode, verify_files

MODULE = "orchestrator.models.embedded"
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
    making: list[str] = []
    children: list[Child] = []
    with ExitStack() as ends:
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
            spec = model_identity(model, setup) | {"folder": str(folder)}
            folder.with_suffix(".json").write_text(json.dumps(spec, indent=2), encoding="utf-8")
            log = ends.enter_context(folder.with_suffix(".log").open("wb+"))
            child = Child(MODULE, f"the process that makes the {role} model", output=log)
            ends.callback(child.end)
            child.send(spec)
            making.append(role)
            children.append(child)
        for index, message in messages(children):
            role = making[index]
            match message:
                case ChildFailed():
                    raise UserError(f"making the {role} model failed: {message}")
                case ChildLost(printed=printed):
                    reason = [str(message), *printed.strip().splitlines()][-1]
                    raise UserError(f"making the {role} model failed: {reason}")
                case dict():
                    report(role, message)


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


def are_there(setup: Setup, runs: Path) -> bool:
    """Whether no model of the setup still has to be made."""
    return not any(must_make(model, setup, runs) for model in (setup.student, setup.teacher))
