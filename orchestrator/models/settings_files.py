"""Completes the settings of a saved model folder, so that other programs read them as trb does.

transformers 5 writes keys and class names that version 4, vLLM, llama.cpp's converter and mlx do not
know, and takes the tokenizer's end of text from the teacher. Readers fall back on defaults of their
own without a word: another rotary base gives other probabilities, and a wrong end never stops.
Old and new keys stand side by side and say the same. Applied twice, nothing changes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.models.folders import token_ids

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
