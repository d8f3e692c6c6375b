"""Locates models made by a recipe, and records the sha256 of their files.

`models/<recipe>/` in the runs folder is a model's folder; `models/<recipe>.made.json` holds the
sha256 of its files. The same recipe gives other floats on another kind of CPU, so units trained
from a made model identify it by its weights. The record outlives the folder: ids stay known, and
different weights are refused instead of mixed. The models of the embedded world are shipped, so
that every machine has the same ones: they are copied instead of made.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.config import Model, Setup
from orchestrator.errors import UserError
from orchestrator.models.identity import SHAPE, Models, digest, model_identity, part
from orchestrator.models.shipped import shipped_model
from orchestrator.records.files import Damaged, damaged, file_sha256, read_sealed, write_sealed
from orchestrator.records.rundir import RunReader, noted_models

WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer.json"
NEEDED = (WEIGHTS, TOKENIZER, "config.json")
ROLES = ("student", "teacher")


def folder_of(model: Model, setup: Setup, runs: Path) -> Path:
    """Path of a model made by a recipe."""
    return (runs / "models" / recipe_of(model, setup)).resolve()


def recipe_of(model: Model, setup: Setup) -> str:
    """The name of a model's folder: 8 hex digits of its recipe, shape, tokenizer and world."""
    return digest(model_identity(model, setup))


def recorded(folder: Path) -> dict[str, str] | None:
    """sha256 by file name of the model that was made in `folder`; None before. Raises Damaged."""
    record = read_sealed(
        record_path(folder),
        f"remove this file; trb submit takes the model in {folder.name} as it is",
    )
    return None if record is None else record["files"]


def record(folder: Path, files_in: Path | None = None) -> None:
    """Record the files of the model in `folder`; until they are moved there they lie in `files_in`.

    Raises UserError if other weights, or another tokenizer, were made there before.
    """
    source = files_in or folder
    files = {path.name: file_sha256(path) for path in sorted(source.iterdir()) if path.is_file()}
    for name in NEEDED:
        if name not in files:
            raise damaged(folder, f"a model without {name}", remedy(folder))
    before = recorded(folder)
    for name in (WEIGHTS, TOKENIZER):
        if before is not None and before[name] != files[name]:
            raise UserError(
                f"{folder / name}: made again with sha256 {files[name][:12]}, but units were "
                f"trained from {before[name][:12]} (another kind of CPU, or other versions); "
                "bring the first one back, or take another folder for --runs"
            )
    write_sealed(record_path(folder), {"files": files})


def remedy(folder: Path) -> str:
    """The remedy for a damaged model in `folder`."""
    return f"remove the folder {folder}; trb submit makes the model again"


def models_of(setup: Setup, runs: Path | None) -> tuple[Models, bool]:
    """Identities of student and teacher, and whether they are final.

    The weights of a recipe are known once it was made, and from the beginning if they are shipped.
    Run directories copied without the models know them, too.
    """
    models: dict[str, dict[str, Any]] = {}
    final = True
    for role in ROLES:
        model: Model = getattr(setup, role)
        models[role] = model_identity(model, setup)
        if model.recipe is None:
            continue
        files = recorded(folder_of(model, setup, runs)) if runs is not None else None
        shipped = shipped_model(recipe_of(model, setup))
        if files is None and shipped is not None:
            files = shipped.files
        if files is None and runs is not None:
            files = _trained_from_here(role, recipe_of(model, setup), runs)
        if files is None:
            final = False
        else:
            models[role] = {
                "weights": files[WEIGHTS],
                "tokenizer": files[TOKENIZER],
                "shape": part(model.shape, SHAPE),
            }
    return models, final


def _trained_from_here(role: str, recipe: str, runs: Path) -> dict[str, str] | None:
    """sha256 by file name of a recipe's model, from the first unit in `runs` trained from it."""
    for unit_id, models in noted_models(runs):
        if models.get(role, {}).get("recipe") == recipe:
            with suppress(Damaged, KeyError):
                identity = RunReader(runs, unit_id).config()["unit"]["identity"][role]
                return {WEIGHTS: identity["weights"], TOKENIZER: identity["tokenizer"]}
    return None


def trained_from(setup: Setup, runs: Path) -> dict[str, dict[str, str | None]]:
    """A unit's note of its student and teacher: recipe and weights' sha256, or the revision."""
    noted: dict[str, dict[str, str | None]] = {}
    for role in ROLES:
        model: Model = getattr(setup, role)
        if model.recipe is None:
            noted[role] = {"revision": model.revision}
        else:
            folder = folder_of(model, setup, runs)
            noted[role] = {"recipe": folder.name, "weights": (recorded(folder) or {}).get(WEIGHTS)}
    return noted


def check_trained_from(setup: Setup, runs: Path) -> None:
    """Raise UserError if units here were trained from other weights of the same recipe.

    Models made on another kind of CPU have other weights, and their runs are not comparable.
    """
    noted = noted_models(runs)
    for role, now in trained_from(setup, runs).items():
        for unit_id, models in noted:
            then = models.get(role, {})
            if (
                "recipe" in now
                and now["recipe"] == then.get("recipe")
                and now["weights"] != then.get("weights")
            ):
                folder = folder_of(getattr(setup, role), setup, runs)
                raise UserError(
                    f"{folder}: weights {str(now['weights'])[:12]}, but {unit_id} was trained from "
                    f"{str(then.get('weights'))[:12]} of the same recipe (another kind of CPU, "
                    "or other versions); bring the first ones back, or take another folder for "
                    "--runs"
                )


def record_path(folder: Path) -> Path:
    """Where the sha256 of the files of the model in `folder` are recorded, beside it."""
    return folder.with_name(f"{folder.name}.made.json")
