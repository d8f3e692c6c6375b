"""Model folders: whole ones are told from broken ones, and saved ones are completed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from orchestrator.engines.common.causal import load_model
from orchestrator.errors import UserError
from orchestrator.models.folders import check_folder, complete_settings
from orchestrator.models.locate import check_passes, lies_here
from orchestrator.models.weights import INDEX, WEIGHTS, missing_names, read_tensors

SIZES = {"vocab_size": 40, "num_hidden_layers": 3, "hidden_size": 16, "num_attention_heads": 2}
MORE = {"intermediate_size": 24, "num_key_value_heads": 1, "head_dim": 8}
OF_TYPE: dict[str, dict[str, Any]] = {
    "llama": MORE,
    "qwen2": MORE,
    "qwen3": MORE,
    "gemma2": MORE,
    "gpt_neox": {"intermediate_size": 24},
    "gpt2": {},
    # Layer 0 is dense, the others have experts.
    "deepseek_v3": MORE
    | {"n_routed_experts": 4, "first_k_dense_replace": 1, "moe_intermediate_size": 8, "n_group": 1}
    | {"topk_group": 1, "num_experts_per_tok": 1, "q_lora_rank": 8, "kv_lora_rank": 8}
    | {"qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 8, "num_key_value_heads": 2},
}


def write(folder: Path, kind: str = "llama", shard: str = "1TB", **config: Any) -> Path:
    """A tiny random model of a type, as transformers writes it."""
    torch.manual_seed(0)
    made = AutoConfig.for_model(kind, **SIZES, **OF_TYPE[kind], **config)
    AutoModelForCausalLM.from_config(made).save_pretrained(folder, max_shard_size=shard)
    return folder


def change(folder: Path, edit: Callable[[dict[str, Tensor]], Any], file: str = WEIGHTS) -> None:
    tensors = load_file(folder / file)
    edit(tensors)
    save_file(tensors, folder / file, metadata={"format": "pt"})


def configure(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: v for name, v in config.items() if v is not ...}))


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as error:
        check_folder("pair.student", folder)
    assert str(error.value).startswith("pair.student: ")
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("kind", OF_TYPE)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shard", ["1TB", "6KB"])
def test_whole_models_are_taken(kind: str, tied: bool, shard: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "model", kind, shard, tie_word_embeddings=tied)
    assert (folder / INDEX).is_file() == (shard == "6KB")
    check_folder("pair.student", folder)
    load_model(str(folder), torch.float32, torch.device("meta"))


def without(*names: str) -> Callable[[Path], None]:
    return lambda folder: change(folder, lambda tensors: [tensors.pop(name) for name in names])


def with_tensor(name: str, tensor: Tensor) -> Callable[[Path], None]:
    return lambda folder: change(folder, lambda tensors: tensors.update({name: tensor}))


def configured(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: configure(folder, **changes)


def quantised(folder: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    change(folder, lambda tensors: tensors.update({name: tensors[name].to(torch.int8)}))


def wrapped(folder: Path) -> None:
    change(folder, lambda t: [t.update({f"_orig_mod.{name}": t.pop(name)}) for name in list(t)])


def another_head(folder: Path) -> None:
    configure(folder, tie_word_embeddings=True)


def adapter(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text("{}")


def pickled(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


def pointer(folder: Path) -> None:
    (folder / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")


def dangling(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to("../blobs/gone")


def index_beside(folder: Path) -> None:
    (folder / INDEX).write_text(
        json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors"}})
    )


def named(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / WEIGHTS).rename(folder / name)


DOWN, HEAD, NORM = "model.layers.1.mlp.down_proj.weight", "lm_head.weight", "model.norm.weight"
EMBEDDING = "model.embed_tokens.weight"


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (another_head, f"tie_word_embeddings: True: .* ({EMBEDDING}|{HEAD}) differ"),
        (
            configured(quantization_config={"quant_method": "gptq"}),
            "quantization_config: 'gptq': expected weights in float32",
        ),
        (quantised, "up_proj.weight in .* is of I8: expected F32"),
        (with_tensor("model.layers.0.x.lora_A.weight", torch.ones(2)), "part of an adapter"),
        (wrapped, "_orig_mod.* is a name of a wrapped model"),
        (adapter, "the folder has an adapter: merge it"),
        (pickled, "pytorch_model.bin is a pickle, .* convert it"),
        (named("consolidated.safetensors"), "the folder has consolidated.safetensors"),
        (named("model.gguf"), "the folder has model.gguf"),
        (pointer, "is a pointer of git-lfs without the weights: run git lfs pull in"),
        (dangling, "a link to ../blobs/gone, which is not there"),
        (lambda folder: (folder / WEIGHTS).write_bytes(b""), "model.safetensors is empty"),
        (index_beside, f"has {WEIGHTS} and an {INDEX} of other files"),
    ],
)
def test_a_folder_that_is_no_whole_model_is_refused(
    break_it: Callable[[Path], Any], words: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "model", tie_word_embeddings=False)
    break_it(folder)
    assert re.search(words, refusal(folder))


def test_a_config_that_git_lfs_has_not_fetched(tmp_path: Path) -> None:
    folder = write(tmp_path / "model")
    (folder / "config.json").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "config.json is a pointer of git-lfs" in refusal(folder)


def test_an_index_is_no_proof(tmp_path: Path) -> None:
    whole = write(tmp_path / "model", shard="6KB")
    index = json.loads((whole / INDEX).read_text())
    places: dict[str, str] = index["weight_map"]

    def write_index(weight_map: dict[str, str]) -> None:
        (whole / INDEX).write_text(json.dumps(index | {"weight_map": weight_map}))

    files = sorted(set(places.values()))
    assert len(files) > 2
    last = files[-1]
    write_index({name: file for name, file in places.items() if file != last})
    assert f"names {len(files) - 1} of {len(files)} files" in refusal(whole)
    half = dict(places)
    gone = half.popitem()
    write_index(half)
    assert f"does not name {gone[0]}" in refusal(whole)
    write_index(places)
    last = files[1]
    name = next(name for name in places if places[name] == last)
    kept = load_file(whole / last)
    change(whole, lambda tensors: tensors.pop(name), last)
    assert f"{last} lacks {name}" in refusal(whole)
    first = next(name for name in places if places[name] == files[0])
    twice = kept | {first: torch.zeros_like(load_file(whole / files[0])[first])}
    save_file(twice, whole / last, metadata={"format": "pt"})
    assert re.search(rf"{first} lies in .* with other values", refusal(whole))
    (whole / last).unlink()
    assert f"{last}: No such file or directory" in refusal(whole)


def test_a_copy_of_the_tied_head_and_old_buffers_are_harmless(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", tie_word_embeddings=True)
    change(folder, lambda tensors: tensors.update({HEAD: tensors[EMBEDDING].clone()}))
    with_tensor("model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(4))(folder)
    with_tensor("v_head.weight", torch.ones(1, 16))(folder)
    check_folder("pair.student", folder)
    load_model(str(folder), torch.float32, torch.device("cpu"))


def test_names_that_no_header_has(tmp_path: Path) -> None:
    tensors = read_tensors("x", write(tmp_path / "model"))
    assert missing_names([NORM, "model.other", *tensors], tensors) == ["model.other"]


# --- while loading ---


def loading(folder: Path, device: str = "cpu") -> str:
    with pytest.raises(UserError) as error:
        load_model(str(folder), torch.float32, torch.device(device))
    return str(error.value)


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (
            without(DOWN),
            rf"lacks {DOWN} \(1 tensors are missing\): expected all tensors of a llama",
        ),
        (without(HEAD), f"lacks {HEAD}"),
        # No layer is like another in a way that headers show.
        (
            without(*[f"model.layers.{layer}.self_attn.k_proj.weight" for layer in range(3)]),
            r"self_attn.k_proj.weight \(3 tensors are missing\)",
        ),
        (configured(intermediate_size=32), r"has the shape \[16, 24\] .* expected \[16, 32\]"),
        (
            with_tensor("model.layers.0.self_attn.q_proj.bias", torch.ones(16)),
            "self_attn.q_proj.bias has no place in a llama model",
        ),
        (configured(num_hidden_layers=2), "model.layers.2.* has no place"),
    ],
)
def test_nothing_is_filled_with_random_numbers(
    break_it: Callable[[Path], Any],
    words: str,
    device: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = write(tmp_path / "model", tie_word_embeddings=False)
    break_it(folder)
    capfd.readouterr()
    assert re.search(words, loading(folder, device))
    assert "LOAD REPORT" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_refused(value: float, tmp_path: Path) -> None:
    folder = write(tmp_path / "model")
    change(folder, lambda tensors: tensors[DOWN].view(-1)[5:6].fill_(value))
    assert f"{DOWN} has NaN or infinity" in loading(folder)


def test_an_embedding_of_zeros_is_refused_and_other_zeros_are_not(tmp_path: Path) -> None:
    folder = write(tmp_path / "model")
    change(folder, lambda tensors: tensors[DOWN].zero_())  # as in layers that were added
    load_model(str(folder), torch.float32, torch.device("cpu"))
    change(folder, lambda tensors: tensors[EMBEDDING].zero_())
    assert f"{EMBEDDING} is all zeros" in loading(folder)


@pytest.mark.parametrize("hole", [DOWN, HEAD])
def test_a_hole_is_found_before_anything_is_loaded(hole: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "model", tie_word_embeddings=False)
    check_passes("pair.student", folder, 64)
    without(hole)(folder)
    with pytest.raises(UserError, match=f"^pair.student: {folder} lacks {hole} "):
        check_passes("pair.student", folder, 64)


# --- on this machine ---


def test_an_interrupted_download_is_not_here(tmp_path: Path) -> None:
    from orchestrator.config import Setup
    from orchestrator.pair import Model

    folder = write(tmp_path / "model", shard="6KB")
    model = Model(path=str(folder))
    setup: Setup = None  # pyright: ignore[reportAssignmentType] — read for recipes alone
    assert lies_here(model, setup, tmp_path) == folder
    (folder / INDEX).write_text("{")
    assert lies_here(model, setup, tmp_path) is None


# --- settings that other programs read ---


WORDS = {"a": 0, "b": 1, "<end>": 2, "<stop>": 3, "<turn>": 4}
TEMPLATE = "{{ messages[0]['content'] }}"
CONFIG_SIZES = {
    "vocab_size": 5,
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 2,
}
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
    AutoConfig.for_model(kind, dtype="bfloat16", **(CONFIG_SIZES | config)).save_pretrained(folder)
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
