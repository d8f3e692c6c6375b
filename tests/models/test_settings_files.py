"""Saved models say the same to readers of other versions as to transformers 5."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast

from orchestrator.models.settings_files import complete_settings

WORDS = {"a": 0, "b": 1, "<end>": 2, "<stop>": 3, "<turn>": 4}
TEMPLATE = "{{ messages[0]['content'] }}"
SIZES = {"vocab_size": 5, "num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONG = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}


def saved(folder: Path, kind: str = "llama", **config: Any) -> Path:
    """A model folder without weights, with the teacher's tokenizer, as transformers 5 saves it."""
    AutoConfig.for_model(kind, dtype="bfloat16", **(SIZES | config)).save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(WORDS, unk_token="a")),
        eos_token="<end>",
        additional_special_tokens=["<turn>"],
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def read(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text())


@pytest.mark.parametrize(
    ("kind", "rotary", "old"),
    [
        ("qwen3", {"rope_type": "default"}, {"rope_scaling": None}),
        ("llama", LLAMA3, {"rope_scaling": LLAMA3}),
        (
            "phi3",
            {"rope_type": "longrope", "original_max_position_embeddings": 32} | LONG,
            {
                "rope_scaling": {"type": "longrope"} | LONG,
                "original_max_position_embeddings": 32,
                "partial_rotary_factor": 1.0,
            },
        ),
        (
            "gpt_neox",
            {"rope_type": "default", "partial_rotary_factor": 0.5},
            {"rotary_pct": 0.5, "rotary_emb_base": 30000.0, "rope_scaling": None},
        ),
    ],
)
def test_the_rotary_base_stands_where_version_4_reads_it(
    kind: str, rotary: dict[str, Any], old: dict[str, Any], tmp_path: Path
) -> None:
    own = {"original_max_position_embeddings": 32} if kind == "phi3" else {}
    parameters = {"rope_theta": 30000.0} | rotary
    folder = saved(tmp_path / "m", kind, pad_token_id=0, rope_parameters=parameters, **own)
    before = AutoConfig.from_pretrained(folder).rope_parameters
    complete_settings(folder, [3])
    config = read(folder, "config")
    wanted = {"rope_theta": 30000.0, "torch_dtype": "bfloat16"} | old
    assert {name: config.get(name) for name in wanted} == wanted
    after = AutoConfig.from_pretrained(folder)
    assert before.items() <= after.rope_parameters.items()  # version 5 reads what it wrote
    assert str(after.dtype) == "torch.bfloat16"


def test_bases_of_two_kinds_of_layers(tmp_path: Path) -> None:
    near = {"rope_type": "default", "rope_theta": 5000.0}
    far = {"rope_type": "linear", "factor": 4.0, "rope_theta": 70000.0}
    kinds = {"sliding_attention": near, "full_attention": far}
    folder = saved(tmp_path / "m", "gemma3_text", layer_types=list(kinds), rope_parameters=kinds)
    complete_settings(folder, [3])
    config = read(folder, "config")
    assert (config["rope_theta"], config["rope_local_base_freq"]) == (70000.0, 5000.0)
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    assert AutoConfig.from_pretrained(folder).rope_parameters == kinds


def test_all_files_end_where_the_student_ends(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", eos_token_id=2)
    complete_settings(folder, [3])
    assert read(folder, "config")["eos_token_id"] == 3
    assert read(folder, "generation_config")["eos_token_id"] == 3
    assert read(folder, "tokenizer_config")["eos_token"] == "<stop>"
    assert AutoTokenizer.from_pretrained(folder).eos_token_id == 3


@pytest.mark.parametrize(("known", "stops"), [([4, 2], [4]), (2, [4, 2])])
def test_several_stop_ids_stay_and_the_tokenizer_keeps_one_of_them(
    known: Any, stops: list[int], tmp_path: Path
) -> None:
    folder = saved(tmp_path / "m", eos_token_id=4)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": known}))
    complete_settings(folder, stops)
    assert read(folder, "generation_config")["eos_token_id"] == [4, 2]
    assert read(folder, "config")["eos_token_id"] == [4, 2]
    assert read(folder, "tokenizer_config")["eos_token"] == "<end>"


def test_the_tokenizer_opens_without_version_5(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m")
    complete_settings(folder, [3])
    settings = read(folder, "tokenizer_config")
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert not {"backend", "is_local", "local_files_only"} & set(settings)
    assert settings["additional_special_tokens"] == ["<turn>"]
    assert "extra_special_tokens" not in settings
    assert settings["chat_template"] == TEMPLATE
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.extra_special_tokens == ["<turn>"]
    shown = tokenizer.apply_chat_template([{"role": "user", "content": "a b"}], tokenize=False)
    assert shown == "a b"


def test_a_second_time_changes_nothing(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", rope_parameters={"rope_theta": 30000.0} | LLAMA3)
    complete_settings(folder, [3])
    once = {file.name: file.read_bytes() for file in folder.iterdir()}
    complete_settings(folder, [3])
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == once
