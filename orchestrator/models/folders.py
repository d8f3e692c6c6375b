"""Reads model folders: whether they can be loaded, their sizes and token ids. Completes saved ones."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.data.files import cached, folder_sha256
from orchestrator.errors import UserError, did_you_mean, refuse
from orchestrator.models.identity import digest
from orchestrator.models.weights import check_usable, read_tensors
from orchestrator.pair import Model, Shape

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
    """Raise UserError, which begins with `key`, unless a model folder holds whole files of a model.

    Reads a few KiB of each file. The model's type must be one of `types`, if any are given. A setup
    uses its teacher's tokenizer; a student's folder needs none.
    """
    _check_type(key, folder, types)
    config = _json(key, folder / "config.json")
    check_usable(key, folder, config, read_tensors(key, folder))
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


# --- settings of a saved folder, so that other programs read them as trb does ---
#
# transformers 5 writes keys and class names that version 4, vLLM, llama.cpp's converter and mlx do
# not know, and takes the tokenizer's end of text from the teacher. Readers fall back on defaults of
# their own without a word: another rotary base gives other probabilities, and a wrong end never
# stops. Old and new keys stand side by side and say the same. Applied twice, nothing changes.


TOKENIZER_CLASSES = {"TokenizersBackend": "PreTrainedTokenizerFast"}  # of version 5 → of all
OWN_KEYS = ("backend", "is_local", "local_files_only")  # of version 5, and of this machine
LAYER_TYPES = {"full_attention", "sliding_attention"}  # with rotary bases of their own, in Gemma 3


def complete_settings(folder: Path, stops: Sequence[int]) -> None:
    """Complete configuration, tokenizer and generation settings of the model in `folder`.

    `stops` are the ids that end the model's responses. Further ids of its own settings stay if
    `stops` are among them.
    """
    config = _read(folder / "config.json")
    generation = _read(folder / "generation_config.json")
    ends = _stop_ids(stops, generation, config)
    _write(folder / "config.json", config | _old_keys(config) | {"eos_token_id": ends})
    _write(folder / "generation_config.json", generation | {"eos_token_id": ends})
    file = folder / "tokenizer_config.json"
    if file.is_file():
        all_stops = ends if isinstance(ends, list) else [ends]
        _write(file, _tokenizer_settings(folder, _read(file), all_stops))


def _stop_ids(stops: Sequence[int], *settings: dict[str, Any]) -> int | list[int]:
    """The ids that end a response, one as a number: those of the first settings that know `stops`."""
    for document in settings:
        known = document.get("eos_token_id")
        if isinstance(known, list) and set(stops) <= set(known):
            return known
    return stops[0] if len(stops) == 1 else list(stops)


def _old_keys(config: dict[str, Any]) -> dict[str, Any]:
    """The keys in which versions before 5 read the dtype and the rotary position embedding."""
    old: dict[str, Any] = {}
    if "dtype" in config:
        old["torch_dtype"] = config["dtype"]
    rotary = config.get("rope_parameters")
    if not isinstance(rotary, dict):
        return old
    if set(rotary) == LAYER_TYPES:
        old["rope_local_base_freq"] = rotary["sliding_attention"].get("rope_theta")
        rotary = rotary["full_attention"]
    if "rope_theta" not in rotary:
        return old
    old["rope_theta"] = rotary["rope_theta"]
    part = rotary.get("partial_rotary_factor")
    if part is not None:
        old["partial_rotary_factor"] = part
    if config.get("model_type") == "gpt_neox":
        old["rotary_emb_base"] = rotary["rope_theta"]
        old |= {} if part is None else {"rotary_pct": part}
    old["rope_scaling"] = _scaling(rotary)
    if "original_max_position_embeddings" in rotary and rotary["rope_type"] == "longrope":
        old["original_max_position_embeddings"] = rotary["original_max_position_embeddings"]
    return old


def _scaling(rotary: dict[str, Any]) -> dict[str, Any] | None:
    """`rope_scaling` of versions before 5; None without scaling."""
    kind = rotary.get("rope_type", "default")
    if kind == "default":
        return None
    if kind == "longrope":  # version 4 takes these three keys and no others
        return {"type": kind} | {key: rotary[key] for key in ("short_factor", "long_factor")}
    apart = ("rope_theta", "partial_rotary_factor")
    return {key: value for key, value in rotary.items() if key not in apart}


def _tokenizer_settings(
    folder: Path, settings: dict[str, Any], stops: Sequence[int]
) -> dict[str, Any]:
    """The tokenizer's settings with a class that all versions know, the template and the end."""
    complete = {key: value for key, value in settings.items() if key not in OWN_KEYS}
    name = complete.get("tokenizer_class")
    complete["tokenizer_class"] = TOKENIZER_CLASSES.get(str(name), name)
    more = complete.get("extra_special_tokens")
    if isinstance(more, list):  # version 4 reads a dict here, and fails on a list
        del complete["extra_special_tokens"]
        complete["additional_special_tokens"] = more
    template = folder / "chat_template.jinja"
    if template.is_file():
        complete["chat_template"] = template.read_text(encoding="utf-8")
    if not (folder / "tokenizer.json").is_file():
        return complete
    ids = token_ids(str(folder), folder)
    end = complete.get("eos_token")
    text = end.get("content") if isinstance(end, dict) else end
    if ids.get(str(text)) not in stops:
        texts = {number: token for token, number in ids.items()}
        # An id without a token of its own stands in the other files alone.
        text = next((texts[stop] for stop in stops if stop in texts), text)
        complete["eos_token"] = text
    if "eos_token_id" in complete:
        complete["eos_token_id"] = ids.get(str(text))
    return complete


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _write(file: Path, settings: dict[str, Any]) -> None:
    text = json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")
