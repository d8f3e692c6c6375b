"""Reads model folders on this machine: whether they can be loaded, their sizes and token ids."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from orchestrator.config import Model, Shape, Vocabulary
from orchestrator.data.cache import cached
from orchestrator.data.files import folder_sha256
from orchestrator.errors import UserError, did_you_mean, refuse
from orchestrator.models.identity import digest
from orchestrator.models.weights import check_whole, read_tensors

CONFIG_KEYS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn": "intermediate_size",
}
MODEL_TYPE = "qwen3"  # the type that engines train, count and share over GPUs
# One of them is enough for transformers.
TOKENIZERS = ("tokenizer.json", "vocab.json", "tokenizer.model")
POINTER = "version https://git-lfs"  # begins a file that git-lfs has not fetched
MOST_NAMED = 10  # types of models in a message


def local_folder(model: Model) -> Path | None:
    """The folder of a model on this machine; None for a hub id or a recipe."""
    folder = Path(model.path or "").expanduser()
    return folder if model.path and model.recipe is None and folder.is_dir() else None


def check_folder(
    key: str, folder: Path, types: Collection[str] = (), tokenizer: bool = False
) -> None:
    """Raise UserError, which begins with `key`, unless a model folder holds a whole model.

    Reads a few KiB of each file. The model's type must be one of `types`, if any are given. A setup
    uses its teacher's tokenizer; a student's folder needs none.
    """
    _check_type(key, folder, types)
    config = _json(key, folder / "config.json")
    check_whole(key, folder, config, read_tensors(key, folder))
    if tokenizer and not any((folder / name).is_file() for name in TOKENIZERS):
        raise UserError(
            f"{key}: {folder} has no tokenizer.json: "
            "expected the tokenizer that both models are used with"
        )


def _check_type(key: str, folder: Path, types: Collection[str]) -> None:
    """Raise UserError unless the model_type in `folder` is one of `types`, if any are given."""
    model_type = _json(key, folder / "config.json").get("model_type")
    if not isinstance(model_type, str) or (types and model_type not in types):
        expected = "the type of a transformers model"
        if 0 < len(types) < MOST_NAMED:
            expected = " or ".join(types)
        raise refuse(
            f"{key}: model_type",
            model_type,
            f"{expected} in {folder / 'config.json'}{did_you_mean(str(model_type), types)}",
        )


def describe(key: str, folder: Path) -> tuple[Shape, int]:
    """Shape and stop id of the model in `folder`. Raises UserError if one is not in its files."""
    _check_type(key, folder, (MODEL_TYPE,))
    config = _json(key, folder / "config.json")
    numbers: dict[str, int] = {}
    for ours, theirs in CONFIG_KEYS.items():
        value = config.get(theirs)
        if isinstance(value, int):
            numbers[ours] = value
        else:
            raise refuse(
                f"{key}.shape.{ours}", value, f"a number as {theirs} in {folder / 'config.json'}"
            )
    shape = Shape(**numbers, tied=bool(config.get("tie_word_embeddings", False)))
    return shape, _stop_id(key, folder, config)


def vocabulary_of(key: str, folder: Path) -> Vocabulary:
    """Numbers of embedding rows and of the tokenizer's ids. Raises UserError if one is missing."""
    size = _json(key, folder / "config.json").get("vocab_size")
    if not isinstance(size, int):
        raise refuse(f"{key}: vocab_size", size, f"a number in {folder / 'config.json'}")
    return Vocabulary(size, 1 + max(token_ids(key, folder).values()))


def token_ids(key: str, folder: Path) -> dict[str, int]:
    """Token → id of the tokenizer.json in `folder`. Raises UserError if it cannot be read."""
    tokenizer = _json(key, folder / "tokenizer.json")
    try:
        entries = tokenizer["model"]["vocab"]
        if not isinstance(entries, dict):  # of unigrams: [token, score] in the order of the ids
            entries = {entry[0]: number for number, entry in enumerate(entries)}
        ids: dict[str, int] = {}
        for token, number in entries.items():
            ids[str(token)] = int(number)
        for added in tokenizer.get("added_tokens") or []:
            ids[str(added["content"])] = int(added["id"])
        return ids
    except (KeyError, TypeError, ValueError, IndexError):
        raise UserError(
            f"{key}: {folder / 'tokenizer.json'} has no vocabulary; give vocabulary and eos"
        ) from None


def _stop_id(key: str, folder: Path, config: dict[str, Any]) -> int:
    """The first stop id of the generation settings, else of the model, else of the tokenizer."""
    generation = folder / "generation_config.json"
    for settings in (_json(key, generation) if generation.is_file() else {}, config):
        ids = settings.get("eos_token_id")
        first = ids[0] if isinstance(ids, list) and ids else ids
        if isinstance(first, int):
            return first
    tokenizer = folder / "tokenizer_config.json"
    token = _json(key, tokenizer).get("eos_token") if tokenizer.is_file() else None
    text = token.get("content") if isinstance(token, dict) else token
    ids_by_token = token_ids(key, folder) if text else {}
    if text not in ids_by_token:
        raise refuse(
            f"{key}.eos", None, f"the id of the token that ends a response; {folder} does not say"
        )
    return ids_by_token[text]


def _json(key: str, file: Path) -> dict[str, Any]:
    text = ""
    try:
        text = file.read_text(encoding="utf-8")
        content = json.loads(text)
    except (OSError, ValueError, RecursionError):
        content = None
    if text.startswith(POINTER):
        raise UserError(
            f"{key}: {file} is a pointer of git-lfs: run git lfs pull in {file.parent}"
        ) from None
    if not isinstance(content, dict):
        raise UserError(
            f"{key}: {file} is missing or broken: expected a Hugging Face model folder"
        ) from None
    return content


def content_sha256(folder: Path) -> str:
    """`folder_sha256`, cached while names, sizes and times of the files stay the same."""
    stamps: list[tuple[str, int, int]] = []
    for path in sorted(folder.resolve().rglob("*")):
        if path.is_file():
            stamps.append((str(path), path.stat().st_size, path.stat().st_mtime_ns))
    try:
        return cached(f"folder-{digest(stamps)}.sha256", lambda: folder_sha256(folder))
    except UserError:  # no cache folder to write to
        return folder_sha256(folder)
