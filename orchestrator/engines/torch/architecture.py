"""Compares our passes with transformers' own model, on a tiny random copy of an architecture.

Engines read hidden states and the LM head apart, pack sequences, decode in drafts with masks of
their own, and fuse norms. Each way leaves something out that some architecture has: a window, a
scale or a cap of its logits. No list of names decides about an architecture; its numbers do.

The copy keeps the kinds of layers, the width of a head and every switch of the configuration. It is
small in all else, so that a comparison takes a second after torch is imported. A limit that the
context exceeds, of a window or of positions, becomes one that the compared ids exceed. `serve` runs
it in a child process: `models.locate.check_passes` asks before Ray starts.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from orchestrator.engines.common.causal import CausalModel, load_model
from orchestrator.engines.common.passes import GROUPED, PACKABLE, fuse_norms, inputs
from orchestrator.engines.torch.decoding import Stream
from orchestrator.liveness.children import Parent, serve
from orchestrator.policy.vocabulary import TokenSpace

# Sizes of the copy.
VOCABULARY, HEADS, GROUPS, FFN, EXPERTS = 128, 4, 2, 96, 4
WINDOW, POSITIONS = 16, 32  # limits that the compared ids exceed
PROMPT, LENGTHS = 20, (48, 41)  # tokens of the compared prompts, and of whole sequences
MOST_LAYERS = 12
LOGITS = 1.0  # standard deviation of the copy's logits
SPACE = TokenSpace(VOCABULARY, 1, 1)


def compare(folder: Path, context: int) -> dict[str, float | str]:
    """Largest |Δ log p| in nats of each pass against `model(...)`, in float32 on the CPU.

    A pass that cannot be made has its error in place of a number. `folder` has the configuration,
    and `context` is the longest sequence in tokens. Raises ValueError if transformers has no causal
    language model of the type, or cannot make the copy.
    """
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    config = tiny(AutoConfig.from_pretrained(folder, trust_remote_code=False), context)
    reference = _model(config, "eager").eval()
    _scatter(reference)
    generator = torch.Generator().manual_seed(0)
    rows = [
        torch.randint(4, VOCABULARY, (length,), generator=generator).tolist() for length in LENGTHS
    ]
    found: dict[str, float | str] = {}
    expected: list[Tensor] = []

    def measure(name: str, run: Callable[[], list[Tensor]]) -> None:
        try:
            with torch.no_grad():
                log_p = run()
        except Exception as error:  # whatever an architecture trips over
            found[name] = f"{type(error).__name__}: {error}"
            return
        expected.extend(log_p if not expected else [])
        pairs = zip(log_p, expected, strict=True)
        gaps = [float((ours - own[: len(ours)]).abs().max()) for ours, own in pairs]
        found[name] = math.nan if any(map(math.isnan, gaps)) else max(gaps)

    own = f"transformers' own pass over up to {context:,} tokens"
    measure(own, partial(_own, reference, rows))
    if not expected:
        return found

    for attention, device in ((GROUPED, "CPUs"), (PACKABLE, "GPUs")):
        model = _model(config, attention).eval()
        model.load_state_dict(reference.state_dict())
        causal = CausalModel(model, SPACE, "student")
        in_rows = partial(_scored, causal, rows, packed=False)
        measure(f"scoring on {device}", in_rows)
        measure(f"packed scoring on {device}", partial(_scored, causal, rows, packed=True))
        measure(f"decoding on {device}", partial(_decoded, causal, rows))
        fuse_norms(model)
        measure(f"fused norms on {device}", in_rows)
    return found


def tiny(config: PretrainedConfig, context: int) -> PretrainedConfig:
    """A configuration of the same architecture with few and narrow layers."""
    values = copy.deepcopy(config.to_dict())
    values = {config.attribute_map.get(key, key): value for key, value in values.items()}
    names = {name: config.attribute_map.get(name, name) for name in _SIZES}
    own: dict[str, Any] = {name: values.get(key) for name, key in names.items()}
    heads, groups = own["num_attention_heads"], own["num_key_value_heads"]
    width = own["head_dim"] or own["hidden_size"] // heads
    layers = _layers(values, own["num_hidden_layers"])
    for key, value in values.items():
        if isinstance(value, list) and len(value) == own["num_hidden_layers"]:
            values[key] = value[:layers]
    sizes = {"num_hidden_layers": layers, "num_attention_heads": HEADS, "vocab_size": VOCABULARY}
    sizes["hidden_size"] = HEADS * width
    sizes["num_key_value_heads"] = HEADS if groups in (None, heads) else min(groups, GROUPS)
    window, positions = own["sliding_window"], own["max_position_embeddings"]
    if window is not None and window < context:
        sizes["sliding_window"] = WINDOW
    if positions is not None and positions < context:
        sizes["max_position_embeddings"] = POSITIONS
    for name in ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size"):
        sizes[name] = FFN
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        sizes[name] = EXPERTS
    sizes |= {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
    sizes |= {"eos_token_id": 1, "bos_token_id": 2, "pad_token_id": 1}
    for name, size in sizes.items():
        if values.get(names.get(name, name)) is not None:
            values[names.get(name, name)] = size
    rope = values.get("rope_parameters") or {}
    first = rope.get("original_max_position_embeddings")
    if (
        rope.get("rope_type") in ("dynamic", "longrope")
        and (first or positions or context) < context
    ):
        rope["original_max_position_embeddings"] = POSITIONS - 8
    return type(config)(**values)


_SIZES = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "sliding_window",
    "max_position_embeddings",
)


def _layers(values: dict[str, Any], layers: int) -> int:
    """The fewest first layers, two or more, that have all kinds in every list of layers."""
    most = 2
    for value in values.values():
        if isinstance(value, list) and len(value) == layers:
            kinds = {str(kind) for kind in value}
            seen: set[str] = set()
            for number, kind in enumerate(value, 1):
                seen.add(str(kind))
                if seen == kinds:
                    most = max(most, number)
                    break
    return min(most, layers, MOST_LAYERS)


def _model(config: PretrainedConfig, attention: str) -> Any:
    return AutoModelForCausalLM.from_config(
        copy.deepcopy(config), attn_implementation=attention, dtype=torch.float32
    )


@torch.no_grad()
def _scatter(model: Any) -> None:
    """Give all weights a size at which each part of the model shows in its probabilities.

    transformers' initial weights are so small that attention is nearly uniform.
    """
    generator = torch.Generator().manual_seed(1)
    head = model.get_output_embeddings().weight
    for parameter in model.parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        if parameter is head:
            parameter.copy_(drawn * LOGITS / math.sqrt(parameter.shape[-1]))
        elif parameter.dim() > 1:
            parameter.copy_(drawn / math.sqrt(parameter.shape[-1]))
        else:  # of norms, around what they are; biases
            parameter.add_(drawn, alpha=0.2)


def _own(model: Any, rows: list[list[int]]) -> list[Tensor]:
    """log p (N, V) at the response positions of each row, by `model(...)` on the row alone."""
    log_p: list[Tensor] = []
    for row in rows:
        logits = model(torch.tensor([row]), use_cache=False).logits[0]
        log_p.append(SPACE.student_log_prob(logits[PROMPT - 1 : -1]))
    return log_p


def _scored(causal: CausalModel, rows: list[list[int]], packed: bool) -> list[Tensor]:
    """The same from hidden states and the head's weight alone, as losses read them."""
    prompts = [tuple(row[:PROMPT]) for row in rows]
    responses = [row[PROMPT:] for row in rows]
    hidden = causal.predicting(inputs(prompts, responses, causal.device, packed))
    log_p = causal.log_prob(hidden @ causal.head_weight.T)
    return list(log_p.split([len(response) for response in responses]))


def _decoded(causal: CausalModel, rows: list[list[int]]) -> list[Tensor]:
    """The same from a stream that is fed one to four tokens at once, and takes some back.

    It ends with the first row that ends, so that of other rows the last positions are missing.
    """
    stream = Stream(causal, [tuple(row[:PROMPT]) for row in rows])
    at = [PROMPT - 1] * len(rows)  # the pending token of each row
    parts: list[list[Tensor]] = [[] for _ in rows]
    turn = 0
    while (left := min(len(row) - 1 - start for row, start in zip(rows, at, strict=True))) > 0:
        fed = min(1 + turn % 4, left)
        tokens = torch.tensor(
            [row[start : start + fed] for row, start in zip(rows, at, strict=True)]
        )
        log_p = stream.feed(tokens)
        # Rows keep different numbers of tokens, as after rejected drafts.
        kept = [max(1, fed - (turn + row) % 2) for row in range(len(rows))]
        stream.take_back(fed, torch.tensor(kept))
        for row, count in enumerate(kept):
            parts[row].append(log_p[row, :count])
            at[row] += count
        turn += 1
    return [torch.cat(part) for part in parts]


def answer(call: tuple[str, int], parent: Parent) -> None:
    """Send the result of `compare` for a folder and a context.

    Raises UserError unless the files hold each tensor of the whole model, in its shape.
    """
    folder, context = call
    load_model(folder, torch.float32, torch.device("meta"))
    parent.send(compare(Path(folder), context))


if __name__ == "__main__":
    serve(answer)
