"""Adapters of the learner against W + (α/r)·B·A written out, in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from orchestrator.config import Optimizer
from orchestrator.engines.common.causal import CausalModel, log_probs_of
from orchestrator.engines.common.passes import Passes, attention_for
from orchestrator.engines.interface import Lora
from orchestrator.engines.memory import adapter_parameters
from orchestrator.engines.torch.decoding import Decoding, generate
from orchestrator.engines.torch.trainer import TorchTrainer
from orchestrator.pair import Shape
from orchestrator.policy.spec import Objective, Student
from orchestrator.records.rundir import LEARNER_STATE
from orchestrator.rollouts import Rollouts
from tests import tiny

RANK, ALPHA, RATE, STEPS = 3, 6, 3e-2, 4
LORA = Lora(RANK, ALPHA, RATE, seed=5)
OPTIMIZER = Optimizer(lr=1e-2, weight_decay=0.05, clip=0.3, warmup_steps=5)
NLL = Objective("nll")
ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.fixture(scope="module")
def answers() -> Rollouts:
    """Responses to learn from."""
    return generate(
        tiny.student(torch.float64), None, tiny.requests(3, seed=5), Student(), Decoding(6, 0, 1)
    )


def learner(
    lora: Lora = LORA, dtype: torch.dtype = torch.float64, **options: object
) -> TorchTrainer:
    student = tiny.student(dtype)
    student.model.set_attn_implementation(attention_for(student.device))
    # Passes of float32 weights are in float32; those of float64 weights are not cast.
    return TorchTrainer(
        student,
        OPTIMIZER,
        10_000,
        torch.float32,
        STEPS,
        lora=lora,
        **options,  # pyright: ignore[reportArgumentType]
    )


def adapters_of(trainer: TorchTrainer, folder: Path) -> dict[tuple[str, str], Tensor]:
    """The trained tensors by the name of their layer and A or B, as the state on disk has them."""
    trainer.save(folder)
    found = {}
    for name, tensor in load_file(folder / LEARNER_STATE).items():
        if name.startswith("weight/"):
            layer, part = name.removeprefix("weight/").split(".lora_")
            found[f"{layer}.weight", part[0]] = tensor
    return found


def published(trainer: TorchTrainer) -> dict[str, Tensor]:
    place = trainer.publish(1).place
    assert not isinstance(place, Path)
    return dict(place)


class ByHand:
    """Merged weights W + (α/r)·B·A as the model's own, and the chain rule down to A and B."""

    def __init__(self, start: dict[tuple[str, str], Tensor]):
        self.student: CausalModel = tiny.student(torch.float64)
        self.frozen = {n: p.detach().clone() for n, p in self.student.model.named_parameters()}
        self.parts = {key: value.double().clone() for key, value in start.items()}
        self.adamw = torch.optim.AdamW(
            self.parts.values(),
            betas=(OPTIMIZER.beta1, OPTIMIZER.beta2),
            eps=OPTIMIZER.eps,
            weight_decay=OPTIMIZER.weight_decay,
        )

    def merge(self) -> dict[str, Tensor]:
        merged = dict(self.frozen)
        for name, part in self.parts:
            if part == "A":
                product = self.parts[name, "B"] @ self.parts[name, "A"]
                merged[name] = self.frozen[name] + ALPHA / RANK * product
        with torch.no_grad():
            for name, parameter in self.student.model.named_parameters():
                parameter.copy_(merged[name])
        return merged

    def step(self, answers: Rollouts, rate: float) -> tuple[float, float]:
        self.merge()
        losses = []
        for row, request in enumerate(answers.requests):
            response = answers.response(row)
            log_p = tiny.visited(self.student, request.prompt_ids, response)
            losses += [-each[token] for each, token in zip(log_p, response, strict=True)]
        loss = torch.stack(losses).mean()
        names = list(self.frozen)
        weights = dict(self.student.model.named_parameters())
        of_weight = dict(
            zip(names, torch.autograd.grad(loss, [weights[n] for n in names]), strict=True)
        )
        gradients = {}
        for name, part in self.parts:
            whole = ALPHA / RANK * of_weight[name]
            other = self.parts[name, "B" if part == "A" else "A"]
            gradients[name, part] = other.T @ whole if part == "A" else whole @ other.T
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients.values()))
        for key, gradient in gradients.items():
            self.parts[key].grad = gradient * min(1.0, OPTIMIZER.clip / (norm + 1e-6))
        self.adamw.param_groups[0]["lr"] = rate
        self.adamw.step()
        return float(loss.detach()), norm


def test_updates_equal_adapters_written_out(answers: Rollouts, tmp_path: Path) -> None:
    trainer = learner()
    start = adapters_of(trainer, tmp_path)
    names = {name for name, _ in start}
    assert {name.split(".")[-2] for name in names} == set(ADAPTED)
    assert all(float(start[name, "B"].abs().max()) == 0 for name in names)
    assert all(start[name, "A"].shape[0] == RANK for name in names)
    config = tiny.student(torch.float64).model.config
    shape = Shape(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        ffn=config.intermediate_size,
    )
    assert sum(tensor.numel() for tensor in start.values()) == adapter_parameters(shape, RANK)
    hand = ByHand(start)
    for step in range(STEPS):
        reported = trainer.step(answers, None, NLL, step)
        rate = RATE * 0.5 * (1 - math.cos(math.pi * (step + 1) / 5))
        loss, norm = hand.step(answers, rate)
        assert (reported["loss"], reported["grad_norm"]) == pytest.approx((loss, norm), abs=1e-9)
        assert reported["lr"] == pytest.approx(rate)
    for key, tensor in adapters_of(trainer, tmp_path).items():
        torch.testing.assert_close(tensor, hand.parts[key], atol=1e-9, rtol=0)
    merged = hand.merge()
    given = published(trainer)
    assert given.keys() == merged.keys()
    for name, weight in merged.items():
        torch.testing.assert_close(given[name], weight.float(), atol=1e-6, rtol=0)
        changed = not torch.equal(given[name], hand.frozen[name].float())
        assert changed == (name in names), "the embedding, the head and the norms stay"


def test_a_checkpoint_is_a_plain_model_that_reads_as_the_learner(
    answers: Rollouts, tmp_path: Path
) -> None:
    trainer = learner(dtype=torch.float32)
    for step in range(2):
        trainer.step(answers, None, NLL, step)
    trainer.export(tmp_path)
    assert not list(tmp_path.glob("adapter*"))
    plain = tiny.student(torch.float32)
    stored = load_file(tmp_path / "model.safetensors")
    assert set(stored) == {name for name, _ in plain.model.named_parameters()}
    opened = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = [id % (tiny.VALID - 2) for id in range(1, 13)]
    read = log_probs_of(replace(plain, model=opened), ids)
    assert read == pytest.approx(trainer.log_probs(ids), abs=1e-5)
    assert read != pytest.approx(log_probs_of(plain, ids), abs=1e-3)


@pytest.mark.parametrize("takes_turns", [False, True])
def test_a_restored_learner_goes_on_to_the_same_bytes(
    answers: Rollouts, tmp_path: Path, takes_turns: bool
) -> None:
    whole, half = learner(dtype=torch.float32), learner(dtype=torch.float32)
    for step in range(STEPS):
        whole.step(answers, None, NLL, step)
    for step in range(2):
        half.step(answers, None, NLL, step)
    half.save(tmp_path)
    state = load_file(tmp_path / LEARNER_STATE)
    assert all(".lora_" in name for name in state), "the frozen weights are those of the start"
    resumed = learner(dtype=torch.float32, takes_turns=takes_turns)
    resumed.restore(tmp_path)
    for step in range(2, STEPS):
        resumed.step(answers, None, NLL, step)
    for name, weight in published(whole).items():
        assert torch.equal(weight, published(resumed)[name]), name


def test_the_seed_decides_where_adapters_start(tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = adapters_of(learner(), tmp_path)
    before = torch.random.get_rng_state()
    again = adapters_of(learner(), tmp_path)
    assert torch.equal(before, torch.random.get_rng_state()), "the global generator is untouched"
    other = adapters_of(learner(replace(LORA, seed=6)), tmp_path)
    for key, tensor in first.items():
        assert torch.equal(tensor, again[key])
        assert torch.equal(tensor, other[key]) == (key[1] == "B")


def test_the_passes_of_gpus_train_adapters_too(answers: Rollouts, tmp_path: Path) -> None:
    results = []
    for passes in (Passes(), Passes(packed=True, checkpointing=True)):
        trainer = learner(passes=passes)
        for step in range(2):
            trainer.step(answers, None, NLL, step)
        results.append(adapters_of(trainer, tmp_path))
    for key, tensor in results[0].items():
        torch.testing.assert_close(results[1][key], tensor, atol=1e-9, rtol=0)
