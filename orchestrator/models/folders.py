"""Reads model folders on this machine: whether they can be loaded, their sizes and token ids."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.config import Model, Shape
from orchestrator.data.cache import cached
from orchestrator.data.files import folder_sha256
from orchestrator.errors import UserError, did_you_mean, refuse
from orchestrator.models.identity import digest
from orchestrator.models.weights import check_whole, read_tensors

# Sizes by the names that configurations have for them; GPT-2 and its kin have names of their own.
CONFIG_KEYS = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim"),
}
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


def shape_of(key: str, folder: Path) -> Shape:
    """Sizes of the model in `folder`: widths of its configuration, parameters of its files.

    Raises UserError if the configuration lacks one. Without readable weights, which `check_folder`
    refuses, the number of parameters stays 0.
    """
    _check_type(key, folder, ())
    config = _json(key, folder / "config.json")
    shapes: dict[str, tuple[int, ...]] = {}
    with suppress(UserError):
        for name, tensor in read_tensors(key, folder).items():
            shapes[name] = tensor.shape
    numbers: dict[str, int] = {}
    for ours, theirs in CONFIG_KEYS.items():
        value = next((config[name] for name in theirs if config.get(name) is not None), None)
        if value is None:
            value = _left_out(ours, numbers, shapes)
        if not isinstance(value, int) or value < 1:
            raise refuse(
                f"{key}.shape.{ours}", value, f"a number as {theirs[0]} in {folder / 'config.json'}"
            )
        numbers[ours] = value
    table = (config.get("vocab_size"), numbers["hidden"])
    tables = sum(shape == table for shape in shapes.values())
    # A second table in the files is the head, unless the configuration says that it is tied.
    tied = bool(config.get("tie_word_embeddings", tables == 1))
    # Weights have up to three dimensions; GPT-2's files also have masks of four.
    parameters = sum(math.prod(shape) for shape in shapes.values() if 0 < len(shape) <= 3)
    if tied and tables > 1:
        parameters -= math.prod(shape for shape in table if shape)
    return Shape(**numbers, tied=tied, parameters=parameters)


def _left_out(
    size: str, numbers: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]
) -> int | None:
    """A size that a configuration leaves out, from its other sizes and the files; None if unknown.

    The width of a head is that of the first query projection: types have different defaults.
    """
    match size:
        case "kv_heads":
            return numbers["heads"]
        case "head_dim":
            for name, shape in shapes.items():
                if name.endswith("q_proj.weight"):
                    return shape[0] // numbers["heads"]
            return numbers["hidden"] // numbers["heads"]
        case "ffn":
            return 4 * numbers["hidden"]
    return None


def embedding_rows(key: str, folder: Path) -> int:
    """Rows of the model's embedding. Raises UserError if its configuration does not say."""
    size = _json(key, folder / "config.json").get("vocab_size")
    if not isinstance(size, int):
        raise refuse(f"{key}: vocab_size", size, f"a number in {folder / 'config.json'}")
    return size


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


def stop_ids(key: str, folder: Path) -> int | list[int]:
    """All stop ids of the generation settings and of the model; without any that of the tokenizer.

    The tokenizer's EOS adds no id to others, since a conversion may have replaced it, for example
    by the token that opens a message.
    """
    generation = folder / "generation_config.json"
    settings = _json(key, generation) if generation.is_file() else {}
    config = _json(key, folder / "config.json")
    found: dict[int, None] = {}
    for file, ids in (
        (generation, settings.get("eos_token_id")),
        (folder / "config.json", config.get("eos_token_id")),
    ):
        for number in ids if isinstance(ids, list) else [ids]:
            if type(number) is int:
                found[number] = None
            elif number is not None:
                raise refuse(f"{key}: eos_token_id", ids, f"a token id or a list of them in {file}")
    if len(found) == 1:
        return next(iter(found))
    file = folder / "tokenizer_config.json"
    tokenizer = _json(key, file) if file.is_file() else {}
    token = tokenizer.get("eos_token")
    own = token.get("content") if isinstance(token, dict) else token
    if found:
        return _closing_first(key, folder, list(found), own, str(tokenizer.get("chat_template")))
    ids_by_token = token_ids(key, folder) if own else {}
    if own not in ids_by_token:
        raise refuse(
            f"{key}.eos", None, f"the id of the token that ends a response; {folder} does not say"
        )
    return ids_by_token[own]


def _closing_first(
    key: str, folder: Path, ids: list[int], own: str | None, template: str
) -> list[int]:
    """Sort stop ids so that the first is the one with which the model's chats end.

    Its token stands in the chat template; among several such it is the tokenizer's `own` EOS. The
    lists of Llama 3 and Gemma begin with the end of a text instead.
    """
    file = folder / "chat_template.jinja"
    if file.is_file():
        template += file.read_text(encoding="utf-8", errors="replace")
    has_tokens = (folder / "tokenizer.json").is_file()
    tokens = {n: text for text, n in token_ids(key, folder).items()} if has_tokens else {}

    def rank(number: int) -> tuple[bool, bool]:
        text = tokens.get(number)
        return text is None or text not in template, text is None or text != own

    return sorted(ids, key=rank)


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
