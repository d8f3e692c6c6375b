"""Any decoder: our passes against transformers' own model, and a pair through the whole engine.

Reference: `model(...)` of transformers on one unpadded sequence, with eager attention.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from orchestrator.engines.common import causal, passes
from orchestrator.engines.interface import Engine, Limits, Lora, Sampler, WeightsRef
from orchestrator.engines.torch import architecture, decoding
from orchestrator.engines.torch.trainer import add_adapters, merged_weights, trainable
from orchestrator.models.folders import shape_of
from orchestrator.policy.spec import Behavior, Objective, Student, TrustRegion
from orchestrator.rollouts import concatenate, in_order
from tests import tiny
from tests.policy import reference

EXACT = 1e-5  # nats in float32
CONTEXT = 5000
# Each at its published defaults but for what is named, so that the copy has something to shrink.
DECODERS: dict[str, Any] = {
    "llama": t.LlamaConfig(num_key_value_heads=8),
    "llama3-rope": t.LlamaConfig(
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    ),
    "qwen2": t.Qwen2Config(num_key_value_heads=4),
    "qwen3": t.Qwen3Config(),
    "smollm3": t.SmolLM3Config(),
    "olmo2": t.Olmo2Config(),
    "phi3": t.Phi3Config(sliding_window=2047),
    "mistral": t.MistralConfig(sliding_window=None),
    "mistral-window": t.MistralConfig(sliding_window=4096),
    "gpt_neox": t.GPTNeoXConfig(bos_token_id=0, eos_token_id=0),
    "gpt2": t.GPT2Config(n_positions=8192),
    "gemma3": t.Gemma3TextConfig(),
    "granite": t.GraniteConfig(logits_scaling=8.0, attention_multiplier=0.05),
    "cohere": t.CohereConfig(logit_scale=0.25),
    "cohere2": t.Cohere2Config(),
    "qwen3_moe": t.Qwen3MoeConfig(),
    "mixtral": t.MixtralConfig(),
}


def compare(config: Any, folder: Path) -> dict[str, float | str]:
    config.save_pretrained(folder)
    return architecture.compare(folder, CONTEXT)


@pytest.mark.parametrize("name", list(DECODERS))
def test_our_passes_compute_what_transformers_does(name: str, tmp_path: Path) -> None:
    gaps = compare(DECODERS[name], tmp_path)
    assert len(gaps) == 9
    assert all(isinstance(gap, float) and gap <= EXACT for gap in gaps.values()), gaps


@pytest.mark.parametrize(
    ("config", "pass_of_it"),
    [
        (t.Gemma2Config(), "scoring on CPUs"),  # a soft cap of logits
        (t.Gemma2Config(final_logit_softcapping=None), "decoding on GPUs"),  # and of attention
        (t.PhiConfig(), "packed scoring on CPUs"),  # a bias of the head
        (t.StableLmConfig(), "packed scoring on GPUs"),  # eager attention in any case
        (t.GPT2Config(n_positions=1024), "transformers' own pass over up to 5,000 tokens"),
        (t.Qwen3NextConfig(), "decoding on CPUs"),  # recurrent layers
    ],
    ids=["logit cap", "attention cap", "head bias", "own attention", "positions", "recurrent"],
)
def test_an_architecture_that_a_pass_leaves_something_out_of_is_found(
    config: Any, pass_of_it: str, tmp_path: Path
) -> None:
    gap = compare(config, tmp_path)[pass_of_it]
    assert isinstance(gap, str) or gap > 1e-3


@pytest.mark.parametrize(
    ("name", "module", "function", "instead"),
    [
        ("granite", causal, "logit_scale", lambda config: 1.0),
        ("mistral-window", decoding, "windows", lambda config: {"": None}),
        ("cohere", passes, "fuse_norms", None),
    ],
)
def test_a_mistake_of_ours_shows_in_the_numbers(
    name: str,
    module: Any,
    function: str,
    instead: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if function == "fuse_norms":  # of a norm that also subtracts the mean
        monkeypatch.setattr(architecture, function, _fuse_all)
    else:
        monkeypatch.setattr(module, function, instead)
    gaps = [gap for gap in compare(DECODERS[name], tmp_path).values() if isinstance(gap, float)]
    assert max(gaps) > 1e-2


def _fuse_all(model: Any) -> None:
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.forward = passes.MethodType(passes._fused_norm, module)


# --- a pair through the engine ---

TRAINED = [name for name in DECODERS if name not in ("llama3-rope", "mistral", "cohere2")]


def save_pair(folder: Path, name: str, more_rows: int = 0) -> None:
    """Write a student and a teacher of an architecture, with the vocabulary of `tests.tiny`.

    The teacher's tables have `more_rows`.
    """
    for seed, owner in enumerate(("student", "teacher"), 1):
        config = architecture.tiny(copy.deepcopy(DECODERS[name]), CONTEXT)
        config.vocab_size = tiny.SIZE + (more_rows if owner == "teacher" else 0)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            model.get_output_embeddings().weight.normal_(
                std=0.1, generator=torch.Generator().manual_seed(seed)
            )
        model.save_pretrained(folder / owner)


def read(folder: Path, owner: Any, rows: list[tuple[tuple[int, ...], list[int]]]) -> list[Tensor]:
    """log p or log q (T, V) at the prefixes of each response, by transformers alone, in float64."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    log_p: list[Tensor] = []
    for prompt, response in rows:
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *response]]), use_cache=False).logits[0]
        log_p.append(tiny.canonical(logits[len(prompt) - 1 : -1, : tiny.SIZE], owner))
    return log_p


def check_pair(sampler: Sampler, engine: Engine, folder: Path, exact: float) -> None:
    """Sample, blend, score, train, export and load the pair below `folder`, each beside transformers."""
    trainer = engine.trainer()
    sampler.start(teacher=True)
    behaviors: tuple[Behavior, ...] = (Student(), TrustRegion(0.05))
    for step, behavior in enumerate(behaviors):
        asked = tiny.requests(2)
        parts = list(sampler.sample(asked, behavior, Limits(max_tokens=6, support=4)))
        rollouts = in_order(concatenate(parts), asked)
        scores = engine.scorer().score(rollouts)
        rows = []
        for row, request in enumerate(rollouts.requests):
            rows.append((request.prompt_ids, rollouts.response(row)))
        read_from = folder / ("student" if step == 0 else "exported")
        log_p = read(read_from, "student", rows)
        log_q = read(folder / "teacher", "teacher", rows)
        for row, (_, response) in enumerate(rows):
            for position, token in enumerate(response):
                p, q = log_p[row][position].numpy(), log_q[row][position].numpy()
                mu = p if step == 0 else reference.trust_region(p, q, 0.05)
                at = row, position
                assert float(rollouts.student_BT[at]) == pytest.approx(p[token], abs=exact)
                assert float(rollouts.behavior_BT[at]) == pytest.approx(mu[token], abs=2e-4)
                assert float(scores.token_BT[at]) == pytest.approx(q[token], abs=exact)
        trainer.step(rollouts, scores, Objective("renormalized"), step)
        (folder / "exported").mkdir(exist_ok=True)
        trainer.export(folder / "exported")
        sampler.load(WeightsRef(step + 1, folder / "exported"))
        expected = trainer.log_probs(range(12))
        assert sampler.log_probs(range(12)) == pytest.approx(expected, abs=exact)
        sampler.load(trainer.publish(step + 1))
        assert sampler.log_probs(range(12)) == pytest.approx(expected, abs=exact)
    assert load_file(folder / "exported" / "model.safetensors").keys() == (
        load_file(folder / "student" / "model.safetensors").keys()
    )


@pytest.mark.parametrize(
    ("name", "more_rows"), [*((name, 0) for name in TRAINED), ("qwen2", 3), ("gpt2", 64)]
)
def test_a_pair_is_sampled_blended_scored_trained_and_loaded_again(
    name: str, more_rows: int, tmp_path: Path
) -> None:
    save_pair(tmp_path, name, more_rows)
    engine = tiny.torch_engine(tmp_path, draft_length=3)
    check_pair(engine.sampler(), engine, tmp_path, EXACT)


@pytest.mark.parametrize("name", TRAINED)
def test_sizes_are_read_off_the_files(name: str, tmp_path: Path) -> None:
    save_pair(tmp_path, name)
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "student")
    shape = shape_of("student", tmp_path / "student")
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    tables = (model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    assert shape.tied == (tables[0] is tables[1])
    assert (shape.layers, shape.hidden) == (model.config.num_hidden_layers, tables[0].shape[1])


@pytest.mark.parametrize("name", ["llama", "phi3", "gpt_neox", "gpt2"])
def test_adapters_stand_beside_every_linear_layer_and_merge(name: str, tmp_path: Path) -> None:
    save_pair(tmp_path, name)
    model, plain = (AutoModelForCausalLM.from_pretrained(tmp_path / "student") for _ in range(2))
    linear = [
        weight
        for key, weight in plain.named_parameters()
        if weight.dim() == 2 and key.split(".")[-2] not in ("wte", "wpe", "embed_in", "embed_out")
    ]
    linear = [weight for weight in linear if len(weight) != tiny.SIZE]  # the other tables
    add_adapters(model, Lora(rank=2, alpha=2, lr=1e-3, seed=0))
    started = trainable(model)
    assert sum(weight.numel() for weight in started.values()) == sum(
        2 * sum(weight.shape) for weight in linear
    )
    with torch.no_grad():
        for weight in started.values():
            weight.normal_(generator=torch.Generator().manual_seed(len(weight)))
    plain.load_state_dict(dict(merged_weights(model)), strict=False)
    ids = torch.tensor([[1, 5, 2, 8, 3]])
    with torch.no_grad():
        expected, merged = model(ids).logits, plain(ids).logits
    assert torch.allclose(merged, expected, atol=1e-4)
    untouched = AutoModelForCausalLM.from_pretrained(tmp_path / "student")(ids).logits
    assert float((untouched - expected).detach().abs().max()) > 0.01
