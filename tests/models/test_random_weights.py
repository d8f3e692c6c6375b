"""Models of random weights: what transformers read of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from orchestrator.config import Dtype, Model, Setup, Shape, Vocabulary
from orchestrator.engines.interface import ModelFolder
from orchestrator.engines.memory import parameters
from orchestrator.models import random_weights
from orchestrator.models.checkpoints import check_config
from orchestrator.models.random_weights import SPREAD, write_random_model

SHAPE = Shape(layers=3, hidden=32, heads=4, kv_heads=2, head_dim=16, ffn=48, tied=True)
VOCABULARY, EOS = 300, 298


def write(
    folder: Path, tied: bool = True, dtype: Dtype = "float32", seed: int = 0
) -> dict[str, torch.Tensor]:
    """A model in `folder`, and its tensors as they are in all of its files."""
    shape = Shape(**{**vars(SHAPE), "tied": tied})
    write_random_model(folder, shape, VOCABULARY, EOS, dtype, seed)
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


@pytest.mark.parametrize("tied", [True, False])
def test_transformers_read_the_shape_and_every_tensor(tmp_path: Path, tied: bool) -> None:
    tensors = write(tmp_path / "model", tied, "bfloat16")
    shape = Shape(**{**vars(SHAPE), "tied": tied})
    assert sum(tensor.numel() for tensor in tensors.values()) == parameters(shape, VOCABULARY)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto")
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.dtype == torch.bfloat16
    assert model.config.eos_token_id == EOS
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, tensors[name]), name
    setup = Setup(student=Model(shape=shape), vocabulary=Vocabulary(VOCABULARY, VOCABULARY))
    check_config("pair.student", setup.student, ModelFolder(str(tmp_path / "model")), setup)


def test_weights_are_normal_norms_are_one_and_no_two_rows_are_alike(tmp_path: Path) -> None:
    for name, tensor in write(tmp_path / "model", tied=False).items():
        if tensor.ndim == 1:
            assert torch.equal(tensor, torch.ones_like(tensor)), name
            continue
        assert float(tensor.std()) == pytest.approx(SPREAD, rel=0.15), name
        assert float(tensor.mean()) == pytest.approx(0, abs=5 * SPREAD / tensor.numel() ** 0.5), (
            name
        )
        assert len(tensor.unique(dim=0)) == len(tensor), name


def test_rows_differ_where_a_matrix_is_larger_than_the_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_weights, "POOL", 4099)  # a prime, less than half of the embedding
    embedding = write(tmp_path / "model")["model.embed_tokens.weight"]
    assert embedding.numel() > 2 * 4099
    assert len(embedding.unique()) <= 4099
    assert len(embedding.unique(dim=0)) == VOCABULARY


def test_the_seed_decides_the_bytes_and_the_files_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, again, other = (
        write(tmp_path / name, seed=seed) for name, seed in (("one", 1), ("again", 1), ("other", 2))
    )
    written = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "again")]
    assert written[0] == written[1]
    name = "model.embed_tokens.weight"
    assert not torch.equal(one[name], other[name])
    monkeypatch.setattr(random_weights, "SHARD_BYTES", 10_000)
    sharded = write(tmp_path / "sharded", seed=1)
    files = sorted((tmp_path / "sharded").glob("*.safetensors"))
    assert len(files) > 2
    assert max(file.stat().st_size for file in files) < 10_000 + VOCABULARY * 32 * 4, (
        "the embedding has one for itself"
    )
    assert sharded.keys() == again.keys() == one.keys()
    assert all(torch.equal(sharded[name], one[name]) for name in one)
    write_random_model(tmp_path / "whole", SHAPE, VOCABULARY, EOS, "float32", seed=1, one_file=True)
    assert (tmp_path / "whole" / "model.safetensors").read_bytes() == written[0]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "sharded", dtype="auto")
    assert torch.equal(
        model.model.layers[2].mlp.up_proj.weight, one["model.layers.2.mlp.up_proj.weight"]
    )
    assert one["model.norm.weight"].dtype == torch.float32


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        write(tmp_path)
