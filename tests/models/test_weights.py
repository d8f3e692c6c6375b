"""Model folders with holes, in other formats, or at odds with their config.json, are refused by name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from orchestrator.engines.common.causal import load_model
from orchestrator.errors import UserError
from orchestrator.models.checkpoints import lies_here
from orchestrator.models.folders import check_folder
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


def last_layer(folder: Path) -> None:
    change(folder, lambda t: [t.pop(name) for name in list(t) if ".layers.2." in name])


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
        (without(DOWN), f"lacks {DOWN}, which the other layers have"),
        (without(HEAD), "tie_word_embeddings: False: expected true in .*, or a head"),
        (without(EMBEDDING), "tie_word_embeddings: False: .* or a head"),
        (without(EMBEDDING, HEAD), "vocab_size: 40: expected the rows of an embedding"),
        (without(NORM), "has norms in its layers and none after the last"),
        (last_layer, r"has no tensor of layer 2 \(1 of 3 layers are missing\)"),
        (configured(num_hidden_layers=2), "num_hidden_layers: 2: expected 3 .*model.layers.2$"),
        (configured(num_hidden_layers=4), "has no tensor of layer 3"),
        (configured(vocab_size=44), f"vocab_size: 44: expected .*; ({EMBEDDING}|{HEAD}) has 40"),
        (configured(hidden_size=32), f"({EMBEDDING}|{HEAD}) has 16 columns: expected 32"),
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


# --- on this machine ---


def test_an_interrupted_download_is_not_here(tmp_path: Path) -> None:
    from orchestrator.config import Model, Setup

    folder = write(tmp_path / "model", shard="6KB")
    model = Model(path=str(folder))
    setup: Setup = None  # pyright: ignore[reportAssignmentType] — read for recipes alone
    assert lies_here(model, setup, tmp_path) == folder
    (folder / INDEX).write_text("{")
    assert lies_here(model, setup, tmp_path) is None
