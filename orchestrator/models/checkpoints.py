"""Locates a model (in a folder, on a hub, or made here) and checks it against the setup."""

from __future__ import annotations

import hashlib
import json
from contextlib import ExitStack
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryFile

from orchestrator.config import Model, Setup
from orchestrator.data.cache import cached
from orchestrator.data.files import folder_sha256
from orchestrator.engines.interface import ModelFolder
from orchestrator.errors import UserError, refuse
from orchestrator.liveness.children import Child, ChildFailed, ChildLost
from orchestrator.models import made_models
from orchestrator.models.folders import shape_of, token_ids
from orchestrator.models.identity import digest
from orchestrator.models.weights import weight_files

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
        folder = made_models.folder_of(model, setup, runs)
        return ModelFolder(
            str(folder), made_models.recorded(folder) or {}, made_models.remedy(folder)
        )
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
        folder = made_models.folder_of(model, setup, runs)
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
    """Raise UserError unless our passes compute what transformers' model of this type computes.

    A child process compares them on a tiny copy of the architecture (`engines.torch.architecture`)
    for sequences of up to `context` tokens. The result is kept for this configuration, these
    versions and these sources.
    """
    config = (folder / "config.json").read_text(encoding="utf-8")
    inputs = [config, context, *map(version, ("torch", "transformers")), _sources()]
    try:
        text = cached(f"passes-{digest(inputs)}.json", lambda: _compared(folder, context))
    except UserError:  # no cache folder to write to
        text = _compared(folder, context)
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
    """The result of the comparison as JSON: pass → nats, or the error of the pass."""
    with ExitStack() as ends:
        log = ends.enter_context(TemporaryFile())
        child = Child(PASSES, "the process that compares passes", output=log)
        ends.callback(child.end)
        child.send((str(folder), context))
        try:
            return json.dumps(child.receive())
        except (ChildFailed, ChildLost) as error:
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
