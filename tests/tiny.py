"""Tiny random Qwen3 pairs made in memory, and plain float64 readings of them: no cache, no padding,
no batching.

Shapes: L positions of one sequence, V vocabulary rows, T response positions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from orchestrator.config import EngineConfig, Optimizer, Runtime, Setup, Training
from orchestrator.engines.common.causal import CausalModel
from orchestrator.engines.interface import ModelFolder, Owner
from orchestrator.engines.torch.engine import TorchEngine
from orchestrator.experiment.units import Unit
from orchestrator.pair import Model, Shape, Vocabulary
from orchestrator.policy.randomness import Purpose, SequenceKey
from orchestrator.policy.spec import (
    BatchBudget,
    Behavior,
    Fusion,
    Mixture,
    Student,
    TeacherInjection,
    Tempered,
    TrustRegion,
)
from orchestrator.policy.vocabulary import TokenSpace
from orchestrator.rollouts import Request, Rollouts
from orchestrator.rules import ObjectiveName
from orchestrator.workers.members import job_of
from orchestrator.workers.spec import WorkerSpec
from tests.policy import reference

Array = NDArray[np.float64]
SIZE, VALID, STUDENT_EOS, TEACHER_EOS = 14, 12, 10, 11
SPACE = TokenSpace(VALID, STUDENT_EOS, TEACHER_EOS)
PROMPTS = ((3,), (0, 1, 2, 3, 4, 5, 6), (9, 0), (5, 5, 10, 5), (7, 2, 11, 0, 1), (0, 0, 0))
BEHAVIORS = (
    Student(),
    Tempered(0.8),
    TrustRegion(0.01),
    TrustRegion(0.3),
    TrustRegion(2.0),
    TeacherInjection(3, 0.6),
    TeacherInjection(6, 1.0),
    Mixture(0.25),
    Fusion(0.5),
    Fusion(1.0),
    BatchBudget(0.3, 0.6),
)


def student(
    dtype: torch.dtype = torch.float32, tied: bool = True, kv_heads: int = 1
) -> CausalModel:
    """Two layers; always the same weights."""
    return CausalModel(
        _model(dtype, 1, hidden=16, layers=2, tied=tied, kv_heads=kv_heads), SPACE, "student"
    )


def teacher(dtype: torch.dtype = torch.float32, kv_heads: int = 1) -> CausalModel:
    """Another shape and other weights: about one nat away from the student."""
    return CausalModel(
        _model(dtype, 2, hidden=24, layers=1, tied=False, kv_heads=kv_heads), SPACE, "teacher"
    )


def _model(
    dtype: torch.dtype, seed: int, hidden: int, layers: int, tied: bool, kv_heads: int
) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=SIZE,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=kv_heads,
        head_dim=8,
        tie_word_embeddings=tied,
        initializer_range=0.25,
        max_position_embeddings=64,
    )
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config).eval()
    return model.double() if dtype == torch.float64 else model


def requests(
    samples: int, prompts: tuple[tuple[int, ...], ...] = PROMPTS, seed: int = 0
) -> list[Request]:
    """`samples` requests for each prompt, each with a key of its own."""
    return [
        Request(prompt, SequenceKey(Purpose.TRAINING, seed, 0, index, sample))
        for index, prompt in enumerate(prompts)
        for sample in range(samples)
    ]


def canonical(logits: Tensor, owner: Owner, space: TokenSpace = SPACE) -> Tensor:
    """log-probabilities (…, V) over the shared events, float64, differentiable: the stop event is
    the student's EOS.
    """
    weight = (logits.double() - logits.detach().double().amax(-1, keepdim=True)).exp()
    weight = weight * (torch.arange(SIZE) < space.valid)
    if owner == "teacher":
        weight = weight + weight[..., space.teacher_eos, None] * (
            torch.arange(SIZE) == space.student_eos
        )
    weight = weight * (torch.arange(SIZE) != space.teacher_eos)
    probability = weight / weight.sum(-1, keepdim=True)
    live = probability > 0
    return torch.where(live, torch.where(live, probability, 1.0).log(), -torch.inf)


def visited(causal: CausalModel, prompt: tuple[int, ...], response: list[int]) -> Tensor:
    """log-probabilities (T, V) at the prefixes of one response, from one plain forward pass."""
    logits = causal.model(input_ids=torch.tensor([[*prompt, *response]]), use_cache=False).logits[0]
    return canonical(logits[len(prompt) - 1 : -1], causal.owner, causal.space)


def visited_rows(causal: CausalModel, rollouts: Rollouts) -> list[Array]:
    """`visited` for every row."""
    with torch.no_grad():
        return [
            visited(causal, r.prompt_ids, rollouts.response(i)).numpy()
            for i, r in enumerate(rollouts.requests)
        ]


def law(behavior: Behavior, log_p: Array, log_q: Array) -> Array:
    """log μ (V,) at one prefix, from the definitions."""
    with np.errstate(divide="ignore"):
        match behavior:
            case Tempered(tau):
                return np.log(reference.tempered(np.exp(log_p), tau))
            case TrustRegion(epsilon):
                return reference.trust_region(log_p, log_q, epsilon)
            case TeacherInjection(top_k, tau):
                return np.log(reference.skd(np.exp(log_p), np.exp(log_q), top_k, tau))
            case Mixture(weight):
                return np.log((1 - weight) * np.exp(log_p) + weight * np.exp(log_q))
            case Fusion(alpha):
                product = np.exp(log_p) ** (1 - alpha) * np.exp(log_q) ** alpha
                return np.log(product / product.sum())
            case BatchBudget(_, beta):
                return reference.blend(log_p, log_q, beta)
            case Student():
                return log_p
    raise NotImplementedError(f"no reference for {behavior}")


def assert_frequencies(counts: Array, probability: Array) -> None:
    """χ² test of counts, cells expected fewer than 8 times pooled; what has no mass never occurs."""
    assert abs(probability.sum() - 1) < 1e-9
    assert counts[probability == 0].sum() == 0
    expected = probability * counts.sum()
    rare = expected < 8
    observed, expected = (np.append(x[~rare], x[rare].sum()) for x in (counts, expected))
    if expected[-1] < 1:
        observed, expected = (
            observed[:-1],
            expected[:-1] / expected[:-1].sum() * observed[:-1].sum(),
        )
    assert stats.chisquare(observed, expected).pvalue > 1e-4


def torch_engine(folder: Path, **options: Any) -> TorchEngine:
    """The pair saved below `folder`, in the engine that a worker opens; `options` are those of
    `worker_spec`.
    """
    return TorchEngine(job_of(worker_spec(folder, **options)))


def worker_spec(
    folder: Path,
    rollout_batch: int = 512,
    objective: ObjectiveName = "renormalized",
    optimizer: Optimizer | None = None,
    micro_batch_tokens: int = 64,
    draft_length: int | None = None,
    kv_heads: int = 1,
) -> WorkerSpec:
    """A unit of one step of the pair saved below `folder`."""
    for causal in (student(kv_heads=kv_heads), teacher(kv_heads=kv_heads)):
        if not (folder / causal.owner).is_dir():
            causal.model.save_pretrained(folder / causal.owner)
    setup = Setup(
        student=Model(eos=STUDENT_EOS, shape=Shape(2, 16, 2, kv_heads, 8, 32, tied=True)),
        teacher=Model(eos=TEACHER_EOS, shape=Shape(1, 24, 2, kv_heads, 8, 48, tied=False)),
        vocabulary=Vocabulary(SIZE, VALID),
        engine=EngineConfig(dtype="float32"),
        training=Training(
            max_response_tokens=6,
            top_k=4,
            objective=objective,
            optimizer=optimizer or Optimizer(warmup_steps=0),
        ),
    )
    unit = Unit("tiny", "trial", "tiny", 0, 1, {})
    start, goal = (ModelFolder(str(folder / owner)) for owner in ("student", "teacher"))
    runtime = Runtime(
        rollout_batch=rollout_batch,
        micro_batch_tokens=micro_batch_tokens,
        draft_length=draft_length,
    )
    return WorkerSpec(unit, setup, runtime, start, goal, start, None)
