"""Locates a model (in a folder, on a hub, or made by a recipe) and checks it against the setup."""

from __future__ import annotations

import hashlib
import json
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from orchestrator.config import Setup
from orchestrator.data.files import cached, folder_sha256
from orchestrator.engines.interface import ModelFolder
from orchestrator.errors import UserError, refuse
from orchestrator.liveness.children import Child, ChildFailed, ChildLost
from orchestrator.models.folders import shape_of, token_ids
from orchestrator.models.identity import SHAPE, Models, digest, model_identity, part
from orchestrator.models.weights import read_tensors, weight_files
from orchestrator.pair import Model
from orchestrator.records.files import Damaged, damaged, file_sha256, read_sealed, write_sealed
from orchestrator.records.rundir import RunReader, noted_models

PASSES = "orchestrator.engines.torch.architecture"
# Nats between two ways to compute log p in float32. Right passes of 25 architectures are up to 3e-5
# apart; the smallest mistake that was seen, a soft cap of attention, is 6e-3.
MOST_APART = 1e-3


def checkpoint_of(model: Model, setup: Setup, runs: Path) -> ModelFolder:
    """The folder of a model, downloaded if need be. UserError if it is unavailable or changed.

    The hash of its files identifies a local model, the commit a hub model, and the record of its
    files a model made here.
    """
    if model.recipe is not None:
        folder = folder_of(model, setup, runs)
        return ModelFolder(str(folder), recorded(folder) or {}, remedy(folder))
    assert model.path is not None
    assert model.revision is not None
    if Path(model.path).is_dir():
        actual = folder_sha256(Path(model.path))
        if actual != model.revision:
            raise UserError(
                f"{model.path}: sha256 of its files is {actual}: "
                f"expected {model.revision}, as the setup declares"
            )
        return ModelFolder(str(Path(model.path).resolve()))
    if model.path.startswith((".", "/")):
        raise UserError(f"{model.path}: no such model folder")
    return ModelFolder(download(model.path, model.revision), hub=f"{model.path}@{model.revision}")


def lies_here(model: Model, setup: Setup, runs: Path) -> Path | None:
    """The folder of a model that can be opened at once, else None.

    Downloads, makes and verifies nothing.
    """
    if model.recipe is not None:
        folder = folder_of(model, setup, runs)
    elif model.path is None:
        return None
    elif Path(model.path).is_dir():
        folder = Path(model.path).resolve()
    else:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

        try:
            folder = Path(
                snapshot_download(model.path, revision=model.revision, local_files_only=True)
            )
        except (HFValidationError, LocalEntryNotFoundError):
            return None
    return folder if _has_weights(folder) else None


def _has_weights(folder: Path) -> bool:
    """Whether a folder has a configuration and all weights; an interrupted download lacks some."""
    try:
        files = weight_files(str(folder), folder)
    except UserError:  # an index that was cut off
        return False
    return all(file.is_file() for file in (folder / "config.json", *files))


def on_this_machine(model: ModelFolder) -> ModelFolder:
    """Localise a model that another machine found: a hub model gets this machine's folder.

    Downloads the hub model if need be.
    """
    if not model.hub:
        return model
    path, _, revision = model.hub.rpartition("@")
    return replace(model, path=download(path, revision))


def download(path: str, revision: str) -> str:
    """Folder of a hub model at `revision`, fetched if need be. UserError if it is unavailable.

    Without a network the cached files are used, even if no listing of the hub confirms that they
    are complete.
    """
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    # `*.txt` and `*.model` hold tokenizers of folders without a tokenizer.json.
    files = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]
    unreachable = (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OSError,
        httpx.HTTPError,
    )
    try:
        return snapshot_download(path, revision=revision, allow_patterns=files)
    except unreachable as error:
        reason = " ".join(str(error).split())[:160]
    try:
        return snapshot_download(
            path, revision=revision, allow_patterns=files, local_files_only=True
        )
    except unreachable:
        raise UserError(
            f"{path}@{revision[:12]}: not a local folder and not to be had from the hub ({reason})"
        ) from None


def check_config(key: str, model: Model, checkpoint: ModelFolder, setup: Setup) -> None:
    """Raise UserError unless the model has the setup's vocabulary and shape.

    `key` names the model in messages: `qwen3-1.7b.student`.
    """
    file = Path(checkpoint.path) / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        rows = config.get("vocab_size")
    except (OSError, ValueError, AttributeError, RecursionError):
        raise UserError(
            f"{key}: {file} is missing or broken: expected a Hugging Face model folder"
        ) from None
    if not isinstance(rows, int) or rows < setup.vocabulary.size:
        raise UserError(
            f"{key}: vocabulary of {rows} rows: expected {setup.vocabulary.size} or more, "
            "as the setup declares for student and teacher alike"
        )
    actual = asdict(shape_of(key, Path(checkpoint.path)))
    for name, value in asdict(model.shape).items():
        if value != actual[name] and (name != "parameters" or value):
            raise UserError(
                f"{key}.shape.{name}: {value}: expected {actual[name]}, as the model has"
            )


def check_passes(key: str, folder: Path, context: int) -> None:
    """Raise UserError unless the files hold transformers' model of this type, as our passes compute it.

    A child process compares names and shapes of the tensors with the model's, then the passes on a
    tiny copy of the architecture (`engines.torch.architecture`) for sequences of up to `context`
    tokens. The result is kept for this configuration, these tensors, versions and sources.
    """
    config = (folder / "config.json").read_text(encoding="utf-8")
    stored = [(name, each.shape) for name, each in sorted(read_tensors(key, folder).items())]
    inputs = [config, stored, context, *map(version, ("torch", "transformers")), _sources()]
    name = f"passes-{digest(inputs)}.json"
    try:
        try:
            text = cached(name, lambda: _compared(folder, context))
        except UserError:  # no cache folder to write to
            text = _compared(folder, context)
    except ChildFailed as failed:
        raise UserError(f"{key}: {failed.error}") from None
    model_type = json.loads(config).get("model_type")
    for name, gap in json.loads(text).items():
        if isinstance(gap, str) or not gap <= MOST_APART:
            found = gap if isinstance(gap, str) else f"{gap:.2g} nats from transformers' own model"
            raise refuse(
                f"{key}: model_type",
                model_type,
                f"a decoder whose passes are computed as by transformers ({name}: {found})",
            )


def _compared(folder: Path, context: int) -> str:
    """The result of the comparison as JSON: pass → nats, or the error of the pass.

    Raises ChildFailed if tensors are missing or have no place in the model.
    """
    with ExitStack() as ends:
        log = ends.enter_context(TemporaryFile())
        child = Child(PASSES, "the process that compares passes", output=log)
        ends.callback(child.end)
        child.send((str(folder), context))
        try:
            return json.dumps(child.receive())
        except (ChildFailed, ChildLost) as error:
            if isinstance(error, ChildFailed) and isinstance(error.error, UserError):
                raise
            first = " ".join(str(error).split()).split(". ")[0]
            return json.dumps({"opening": first[:140]})


def _sources() -> str:
    """sha256 of the code whose passes are compared."""
    engines = Path(__file__).resolve().parents[1] / "engines"
    total = hashlib.sha256()
    for file in sorted([*(engines / "common").glob("*.py"), *(engines / "torch").glob("*.py")]):
        total.update(file.read_bytes())
    return total.hexdigest()


def check_same_tokens(name: str, student: ModelFolder, teacher: ModelFolder) -> None:
    """Raise UserError unless student and teacher have the same token at each shared id.

    The student reads and writes ids of the teacher's tokenizer. With another order of tokens, every
    loss would compare probabilities of different words. `name` is the setup's. Folders without a
    tokenizer.json are not checked.
    """
    tokens: dict[str, dict[int, str]] = {}
    for role, model in (("student", student), ("teacher", teacher)):
        folder = Path(model.path)
        if not (folder / "tokenizer.json").is_file():
            return
        ids = token_ids(f"{name}.{role}", folder)
        tokens[role] = {number: token for token, number in ids.items()}
    ours = tokens["student"]
    theirs = tokens["teacher"]
    # An id of one model alone, for example of an added token, is no contradiction.
    other = [number for number, token in ours.items() if theirs.get(number, token) != token]
    if other:
        first = min(other)
        raise UserError(
            f"{name}: token {first} is {ours[first]!r} to the student and {theirs[first]!r} to the "
            f"teacher: expected models that share their token ids ({len(other):,} of "
            f"{len(ours):,} ids differ)"
        )


# --- shipped models: they come with the program, made by recipes ---


PACKAGE = Path(__file__).resolve().parents[1]
PACKED = PACKAGE / "shipped"  # only a wheel has this folder: setup.py puts experiments/ there
EXPERIMENTS = PACKED if PACKED.is_dir() else PACKAGE.parent / "experiments"
MODELS = EXPERIMENTS / "models"


@dataclass(frozen=True)
class ShippedModel:
    """A shipped model, made by a recipe: its folder, and the sha256 of its files by name."""

    folder: Path
    files: dict[str, str]


def shipped_model(recipe: str) -> ShippedModel | None:
    """The shipped model of a recipe, by the name that `recipe_of` gives the recipe."""
    model = _index().get(recipe)
    return None if model is None else ShippedModel(MODELS / model["folder"], model["files"])


@cache
def _index() -> dict[str, dict[str, Any]]:
    return json.loads((MODELS / "made.json").read_text(encoding="utf-8"))


# --- models made by recipes, and the sha256 of their files ---
#
# `models/<recipe>/` in the runs folder is a model's folder; `models/<recipe>.made.json` holds the
# sha256 of its files. The same recipe gives other floats on another kind of CPU, so units trained
# from a made model identify it by its weights. The record outlives the folder: ids stay known, and
# different weights are refused instead of mixed. The models of the embedded world are shipped, so
# that every machine has the same ones: they are copied instead of made.


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
