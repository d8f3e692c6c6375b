"""Writes Qwen3 models with random weights in any shape, to measure memory and speed without a hub.

The disk alone limits the speed, also for eight billion parameters. POOL normal numbers are drawn
once, and each matrix is cut from them at its own offset. POOL is a prime, so that no two rows of a
matrix are equal.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from orchestrator.config import Dtype, Shape
from orchestrator.engines.memory import BYTES

POOL = 16_777_213  # the largest prime below 2²⁴
SHARD_BYTES = 2**31  # of one file, which is in memory while it is written
SPREAD = 0.02  # standard deviation of the weights, as Qwen3 is initialised


def write_random_model(
    folder: Path,
    shape: Shape,
    vocabulary: int,
    eos: int | list[int],
    dtype: Dtype,
    seed: int = 0,
    spread: float = SPREAD,
    one_file: bool = False,
) -> None:
    """Write a model in Hugging Face layout, without a tokenizer, into a new folder.

    The same arguments give the same bytes. Norms are one; other weights are normal with standard
    deviation `spread`. With `one_file` all weights go into `model.safetensors` and are in memory
    together.
    """
    folder.mkdir(parents=True)
    config = qwen3_config(shape, vocabulary, eos)
    config.architectures = [Qwen3ForCausalLM.__name__]
    config.dtype = dtype
    config.save_pretrained(folder)
    # On the meta device shapes take no memory. Tied embeddings are among the names once.
    with torch.device("meta"):
        parameters = dict(Qwen3ForCausalLM(config).named_parameters())
    generator = torch.Generator().manual_seed(seed)
    pool = (spread * torch.randn(POOL, generator=generator)).to(getattr(torch, dtype))
    shards = [list(parameters)] if one_file else _shards(parameters, BYTES[dtype])
    files: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = "model.safetensors"
        if len(shards) > 1:
            file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors: dict[str, Tensor] = {}
        for name in names:
            size = parameters[name].shape
            drawn = _cut(pool, size.numel(), generator).view(size)
            tensors[name] = torch.ones_like(drawn) if len(size) == 1 else drawn
            files[name] = file
        save_file(tensors, folder / file, metadata={"format": "pt"})
    if len(shards) > 1:
        total = sum(parameter.numel() for parameter in parameters.values()) * BYTES[dtype]
        index = {"metadata": {"total_size": total}, "weight_map": files}
        (folder / "model.safetensors.index.json").write_text(
            json.dumps(index, indent=2), encoding="utf-8"
        )


def qwen3_config(shape: Shape, vocabulary: int, eos: int | list[int]) -> Qwen3Config:
    """The configuration of a Qwen3 decoder."""
    return Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=32768,
        eos_token_id=eos,
        pad_token_id=eos if isinstance(eos, int) else eos[0],
    )


def _shards(parameters: dict[str, torch.nn.Parameter], value_bytes: int) -> list[list[str]]:
    """Tensor names by file, in the model's order; a tensor over SHARD_BYTES has its own file."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, parameter in parameters.items():
        size = parameter.numel() * value_bytes
        if shards[-1] and filled + size > SHARD_BYTES:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def _cut(pool: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Cut `count` numbers from the pool at a random offset, starting over where it ends."""
    start = int(torch.randint(len(pool), (), generator=generator))
    cut = torch.empty(count, dtype=pool.dtype)
    filled = 0
    while filled < count:
        part = pool[start : start + count - filled]
        cut[filled : filled + len(part)] = part
        filled += len(part)
        start = 0
    return cut
