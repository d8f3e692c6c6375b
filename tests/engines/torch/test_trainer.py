"""Updates of the learner against a plain float64 implementation: full logits, one unpadded row at a
time, AdamW.
"""

from __future__ import annotations

import copy
import functools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from orchestrator.config import Optimizer
from orchestrator.engines.common import passes
from orchestrator.engines.common.causal import CausalModel, load_model
from orchestrator.engines.common.learning import learning_rate
from orchestrator.engines.common.passes import Passes, attention_for
from orchestrator.engines.common.scoring import score
from orchestrator.engines.interface import Limits
from orchestrator.engines.torch import trainer as trainer_module
from orchestrator.engines.torch.decoding import Decoding, generate
from orchestrator.engines.torch.engine import TorchEngine
from orchestrator.engines.torch.trainer import TorchTrainer
from orchestrator.policy.objective import REVERSE_KL
from orchestrator.policy.spec import (
    Behavior,
    Bridge,
    Everywhere,
    FallingWithDiscrepancy,
    ForwardKL,
    JensenShannon,
    Loss,
    Objective,
    Proximal,
    ReverseKL,
    SampledToken,
    Student,
    TeacherKeeps,
    TeacherUncertain,
    Term,
    TrustRegion,
)
from orchestrator.records.rundir import LEARNER_STATE
from orchestrator.rollouts import Rollouts, TeacherScores, concatenate
from orchestrator.rules import ObjectiveName
from orchestrator.workers.members import support_size
from tests import tiny

TOP_K, ENOUGH, STEPS = 4, 10_000, 3
OPTIMIZER = Optimizer(lr=1e-2, weight_decay=0.05, clip=0.3, warmup_steps=5)
GOALS = [Objective(name) for name in ("renormalized", "tail", "surrogate", "truncated", "nll")]
GOALS += [
    Objective(name, Bridge(veto))
    for name in ("renormalized", "surrogate", "truncated")
    for veto in (0.2, 0.8)
]
MIXTURES = [  # of losses, targets and weights of tokens
    Objective(name, Proximal(0.6), (Term(JensenShannon(0.3)),)) for name in ("renormalized", "tail")
]
for support in ("renormalized", "tail", "truncated"):
    uncertain = Term(ForwardKL(), TeacherUncertain(1.5))
    kept, outside = Term(SampledToken(0.7), TeacherKeeps()), TeacherKeeps(inverted=True)
    MIXTURES += [
        Objective(support, terms=(Term(), uncertain)),
        Objective(support, terms=(kept, Term(ForwardKL(), outside))),
        Objective(support, terms=(Term(ReverseKL(), FallingWithDiscrepancy(1.5)),)),
    ]
STATE = ("loss", "grad_norm", "lr")


@pytest.fixture(scope="module")
def rollouts() -> Rollouts:
    """Float64 rollouts that carry their teacher scores."""
    pair = tiny.student(torch.float64), tiny.teacher(torch.float64)
    return generate(*pair, tiny.requests(3, seed=5), TrustRegion(0.1), Decoding(6, TOP_K))


@pytest.fixture(scope="module")
def whole_vocabulary() -> Rollouts:
    """The same with every id as support, those without mass included."""
    pair = tiny.student(torch.float64), tiny.teacher(torch.float64)
    return generate(*pair, tiny.requests(3, seed=5), TrustRegion(0.1), Decoding(6, tiny.VALID))


def token_losses(
    goal: Objective, log_p: Tensor, log_q: Tensor, start: Tensor, tokens: list[int]
) -> Tensor:
    """(T,) losses of one response from full log p (with gradient), log q and the log p it was
    sampled from, (T, V).
    """
    if goal.name == "nll":
        return -torch.stack([row[token] for row, token in zip(log_p, tokens, strict=True)])
    size = tiny.VALID - 1 if goal.name == "full" else TOP_K
    rows = zip(log_p.exp(), log_q.exp(), start.topk(size).indices, start.exp(), tokens, strict=True)
    gaps = [abs(float(log_q[t, y] - start[t, y])) for t, y in enumerate(tokens)]
    losses = []
    for t, (p, q, support, old, token) in enumerate(rows):
        before = sum(gaps[:t]) / sum(gaps)
        losses.append(token_loss(goal, p, q, support, old, token, before))
    return torch.stack(losses)


def token_loss(
    goal: Objective,
    p: Tensor,
    q: Tensor,
    support: Tensor,
    old: Tensor,
    token: int,
    before: float,
) -> Tensor:
    """Loss at one prefix by the definitions: p, q and the p it was sampled from, (V,).

    `before` is the share of the response's discrepancy that lies before the token.
    """
    total = torch.zeros((), dtype=p.dtype)
    entropy = float(-(q[q > 0] * q[q > 0].log()).sum())
    for term in goal.terms:
        match term.where:
            case TeacherUncertain(nats):
                weight = float(entropy > nats)
            case TeacherKeeps(inverted):
                kept = min(1.0, float(q[token] / old[token]))
                weight = 1 - kept if inverted else kept
            case FallingWithDiscrepancy(most):
                weight = most - (most - 1) * before
            case Everywhere():
                weight = 1.0
            case _:
                raise NotImplementedError(f"no reference for {term.where}")
        match term.loss:
            case SampledToken(clip):
                advantage = (q[token] / p[token]).log().detach()
                advantage = advantage if clip is None else advantage.clamp(-clip, clip)
                loss = -advantage * p[token] / p[token].detach()
            case ReverseKL() | ForwardKL() | JensenShannon():
                loss = divergence(goal, p[support], q[support], term.loss)
        total = total + weight * loss
    return total


def divergence(goal: Objective, p: Tensor, q: Tensor, loss: Loss = REVERSE_KL) -> Tensor:
    """Divergence at one prefix: p and q on the support, by the definitions."""
    if isinstance(goal.target, Bridge):
        q = q * p.detach() ** goal.target.beta
        q = q / q.sum()
    if isinstance(goal.target, Proximal):
        scale = (p.sum(), q.sum()) if goal.name == "renormalized" else (1.0, 1.0)
        share = goal.target.alpha
        q = share * q / scale[1] + (1 - share) * (p / scale[0]).detach()
    mass_p, mass_q = p.sum(), q.sum()
    if not isinstance(loss, ReverseKL):
        return symmetric_or_forward(goal.name, p, q, loss)
    if goal.name == "renormalized":
        return (p / mass_p * ((p / mass_p) / (q / mass_q)).log()).sum()
    if goal.name == "surrogate":
        advantage = -(p / mass_p * (p / q).log()).detach()
        return -(advantage * p / p.detach()).sum()
    inside = (p * (p / q).log()).sum()
    if goal.name == "tail":
        return inside + (1 - mass_p) * ((1 - mass_p) / (1 - mass_q)).log()
    return inside


def symmetric_or_forward(name: str, p: Tensor, q: Tensor, loss: Loss) -> Tensor:
    """KL(q‖p), or the Jensen–Shannon divergence, of the outcomes that `name` compares."""
    if name == "renormalized":
        p, q = p / p.sum(), q / q.sum()
    elif name == "tail":
        p, q = (torch.cat([x, 1 - x.sum()[None]]) for x in (p, q))
    if isinstance(loss, ForwardKL):
        return (q * (q / p).log()).sum()
    assert isinstance(loss, JensenShannon)
    mean = loss.beta * q + (1 - loss.beta) * p
    left, right = ((x * (x / mean).log()).sum() for x in (q, p))
    return loss.beta * left + (1 - loss.beta) * right


@functools.cache
def fixed_readings(prompt: tuple[int, ...], response: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """(T, V) of what no update changes: log q of the teacher, and log p of the student that the
    response is from.
    """
    with torch.no_grad():
        teacher, sampler = tiny.teacher(torch.float64), tiny.student(torch.float64)
        return tiny.visited(teacher, prompt, list(response)), tiny.visited(
            sampler, prompt, list(response)
        )


class Plain:
    """Full-batch gradient of the mean over all response tokens, clipped by hand, torch's AdamW."""

    def __init__(self, student: CausalModel, optimizer: Optimizer):
        self.student, self.config = copy.deepcopy(student), optimizer
        self.weights = dict(self.student.model.named_parameters())
        self.adamw = torch.optim.AdamW(
            self.weights.values(),
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
        )

    def step(self, rollouts: Rollouts, goal: Objective, rate: float) -> dict[str, float]:
        losses = []
        for row, request in enumerate(rollouts.requests):
            response = rollouts.response(row)
            log_p = tiny.visited(self.student, request.prompt_ids, response)
            log_q, start = fixed_readings(request.prompt_ids, tuple(response))
            losses.append(token_losses(goal, log_p, log_q, start, response))
        return self.update(torch.cat(losses).mean(), rate)

    def update(self, loss: Tensor, rate: float) -> dict[str, float]:
        gradients = torch.autograd.grad(loss, list(self.weights.values()))
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        for weight, gradient in zip(self.weights.values(), gradients, strict=True):
            weight.grad = gradient * min(1.0, self.config.clip / (norm + 1e-6))
        self.adamw.param_groups[0]["lr"] = rate
        self.adamw.step()
        return {"loss": float(loss.detach()), "grad_norm": norm, "lr": rate}


def rate_of(optimizer: Optimizer, step: int) -> float:
    """Learning rate of one of the five steps of warmup: a cosine that rises to `lr`."""
    return optimizer.lr * 0.5 * (1 - math.cos(math.pi * (step + 1) / 5))


def published(trainer: TorchTrainer) -> dict[str, Tensor]:
    """The weights that a trainer gives out, by name."""
    place = trainer.publish(1).place
    assert not isinstance(place, Path)
    return dict(place)


def learner(
    micro_batch_tokens: int = ENOUGH,
    optimizer: Optimizer = OPTIMIZER,
    tied: bool = True,
    dtype: torch.dtype | None = None,
    passes: Passes | None = None,
) -> tuple[TorchTrainer, CausalModel]:
    """A learner of float64 weights, or of float32 weights with forward passes in `dtype`; and its
    student.
    """
    student = tiny.student(torch.float32 if dtype else torch.float64, tied)
    student.model.set_attn_implementation(attention_for(student.device))  # as engines load it
    forward = dtype or torch.float32
    return TorchTrainer(
        student, optimizer, micro_batch_tokens, forward, STEPS, passes=passes
    ), student


def weights_of(student: CausalModel) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in student.model.named_parameters()}


def assert_close(a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name].detach(), atol=tolerance, rtol=0)


def assert_steps_equal_plain(
    goal: Objective, rollouts: Rollouts, optimizer: Optimizer, tied: bool
) -> None:
    """STEPS updates: reported numbers and weights to 1e-9."""
    engine, student = learner(optimizer=optimizer, tied=tied)
    plain = Plain(tiny.student(torch.float64, tied), optimizer)
    for step in range(STEPS):
        reported = engine.step(rollouts, rollouts.teacher, goal, step)
        expected = plain.step(rollouts, goal, rate_of(optimizer, step))
        assert {name: reported[name] for name in STATE} == pytest.approx(expected, abs=1e-9)
    assert_close(weights_of(student), plain.weights, 1e-9)


@pytest.mark.parametrize("goal", [*GOALS, *MIXTURES], ids=str)
@pytest.mark.parametrize("tied", [True, False])
def test_updates_equal_a_plain_implementation(
    rollouts: Rollouts, goal: Objective, tied: bool
) -> None:
    assert_steps_equal_plain(goal, rollouts, OPTIMIZER, tied)


@pytest.mark.parametrize("veto_beta", [0.0, 0.4])
def test_full_updates_equal_a_plain_implementation(
    whole_vocabulary: Rollouts, veto_beta: float
) -> None:
    assert_steps_equal_plain(
        Objective("full", Bridge(veto_beta)), whole_vocabulary, OPTIMIZER, tied=True
    )


@pytest.mark.parametrize("clip", [1e-8, 1e-2, 1e6])
def test_clipped_updates_equal_a_plain_implementation(rollouts: Rollouts, clip: float) -> None:
    assert_steps_equal_plain(
        Objective("renormalized"), rollouts, replace(OPTIMIZER, clip=clip), tied=True
    )


@pytest.mark.parametrize(("clip", "binds"), [(1e-2, True), (1e6, False)])
def test_the_clipped_gradient_enters_the_moments(
    rollouts: Rollouts, tmp_path: Path, clip: float, binds: bool
) -> None:
    engine, _ = learner(optimizer=replace(OPTIMIZER, clip=clip))
    norm = engine.step(rollouts, rollouts.teacher, Objective("renormalized"), 0)["grad_norm"]
    engine.save(tmp_path)
    first_moments = [
        v for k, v in load_file(tmp_path / LEARNER_STATE).items() if k.startswith("exp_avg/")
    ]
    moment = math.sqrt(sum(float(v.square().sum()) for v in first_moments))
    assert moment == pytest.approx((1 - OPTIMIZER.beta1) * (clip if binds else norm), rel=1e-4)
    assert (norm > clip) == binds


@pytest.mark.parametrize("goal", [*GOALS, *MIXTURES], ids=str)
def test_micro_batches_change_nothing(rollouts: Rollouts, goal: Objective) -> None:
    results = []
    for micro_batch_tokens in (1, 30, ENOUGH):
        engine, student = learner(micro_batch_tokens)
        reported = [engine.step(rollouts, rollouts.teacher, goal, step) for step in range(2)]
        results.append((reported, weights_of(student)))
    for reported, weights in results[1:]:
        assert_close(weights, results[0][1], 1e-9)
        for ours, theirs in zip(reported, results[0][0], strict=True):
            assert ours == pytest.approx(theirs, abs=1e-9)


@pytest.mark.parametrize(
    "goal", [Objective("renormalized"), Objective("tail"), Objective("nll")], ids=str
)
@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("micro_batch_tokens", [1, 30, ENOUGH])
def test_packed_rows_train_as_padded_ones(
    rollouts: Rollouts, goal: Objective, checkpointing: bool, micro_batch_tokens: int
) -> None:
    results = []
    for packed in (False, True):
        engine, student = learner(micro_batch_tokens, passes=Passes(packed, checkpointing))
        reported = [engine.step(rollouts, rollouts.teacher, goal, step) for step in range(2)]
        results.append((reported, weights_of(student)))
    (padded_steps, padded_weights), (packed_steps, packed_weights) = results
    assert_close(packed_weights, padded_weights, 1e-9)
    for ours, theirs in zip(packed_steps, padded_steps, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-9)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 0.1)])
@pytest.mark.parametrize("lean", [False, True])
def test_the_passes_of_gpus_give_the_gradients_of_those_of_cpus(
    rollouts: Rollouts,
    lean: bool,
    dtype: torch.dtype,
    tolerance: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed: list[int] = []  # tokens of each packed attention
    plain = passes.packed_attention

    def counted(query: Tensor, *others: Any, **named: Any) -> Tensor:
        packed.append(query.shape[2])
        return plain(query, *others, **named)

    monkeypatch.setattr(passes, "packed_attention", counted)
    # Adam's first update has the size of the rate in every weight; with a large eps it follows the
    # gradient instead.
    optimizer = replace(OPTIMIZER, weight_decay=0.0, eps=1.0, clip=1e6)
    moved = []
    for chosen in (Passes(), Passes(packed=True, checkpointing=True, lean=lean)):
        assert not packed
        engine, student = learner(30, optimizer, dtype=dtype, passes=chosen)
        before = weights_of(student)
        engine.step(rollouts, rollouts.teacher, Objective("renormalized"), 0)
        moved.append(
            torch.cat([(weights_of(student)[name] - before[name]).flatten() for name in before])
        )
    assert packed
    assert float(moved[0].norm()) > 0
    # Some processors round both ways alike, and the difference is then zero.
    assert float((moved[1] - moved[0]).norm() / moved[0].norm()) < tolerance


@pytest.mark.parametrize("lean", [False, True])
def test_lean_passes_have_all_activations_in_their_dtype(rollouts: Rollouts, lean: bool) -> None:
    engine, student = learner(dtype=torch.bfloat16, passes=Passes(lean=lean))
    seen = set[torch.dtype]()
    for module in student.model.model.modules():
        module.register_forward_hook(lambda module, _, output: seen.add(dtype_of(output)))
    engine.step(rollouts, rollouts.teacher, Objective("renormalized"), 0)
    assert (seen == {torch.bfloat16}) == lean
    assert {parameter.dtype for parameter in student.model.parameters()} == {torch.float32}


def dtype_of(output: object) -> torch.dtype:
    """Of the first tensor that a module of a transformers model returns."""
    while not isinstance(output, Tensor):
        output = output[0]  # pyright: ignore[reportIndexIssue]
    return output.dtype


def test_micro_batches_change_nothing_in_float32(rollouts: Rollouts) -> None:
    # AdamW divides by the size of the gradient: the larger eps keeps rounding of near-zero
    # gradients from growing.
    optimizer = replace(OPTIMIZER, eps=1e-4)
    results = []
    for micro_batch_tokens in (1, ENOUGH):
        engine, student = learner(micro_batch_tokens, optimizer, dtype=torch.float32)
        engine.step(rollouts, rollouts.teacher, Objective("renormalized"), 0)
        results.append(weights_of(student))
    assert_close(results[0], results[1], 1e-6)


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16])
def test_layers_are_computed_again_on_gpus_and_to_the_same_bits(
    rollouts: Rollouts, dtype: torch.dtype | None
) -> None:
    results = []
    for checkpointing in (False, True):
        engine, student = learner(
            30, dtype=dtype, passes=Passes(packed=False, checkpointing=checkpointing)
        )
        calls = count_calls(student.model.model.layers[0])
        reported = [
            engine.step(rollouts, rollouts.teacher, Objective("tail"), step) for step in range(2)
        ]
        results.append((reported, weights_of(student), len(calls)))
    kept, again = results
    assert again[2] == 2 * kept[2] > 0
    assert again[0] == kept[0]
    assert_close(again[1], kept[1], 0)
    engine, student = learner(30, dtype=dtype)
    calls = count_calls(student.model.model.layers[0])
    engine.step(rollouts, rollouts.teacher, Objective("tail"), 0)
    assert 2 * len(calls) == kept[2], "a CPU keeps what it has computed"
    assert Passes.on(torch.device("cuda"), torch.float32).checkpointing


def count_calls(module: torch.nn.Module) -> list[None]:
    """One entry for each forward pass of a module from now on."""
    calls: list[None] = []
    module.register_forward_pre_hook(lambda *_: calls.append(None))
    return calls


def test_the_order_of_rows_changes_nothing(rollouts: Rollouts) -> None:
    order = torch.randperm(len(rollouts.requests), generator=torch.Generator().manual_seed(0))
    assert rollouts.teacher is not None
    shuffled = replace(
        rollouts,
        requests=[rollouts.requests[i] for i in order.tolist()],
        teacher=TeacherScores(
            **{name: value[order] for name, value in vars(rollouts.teacher).items()}
        ),
        **{
            name: getattr(rollouts, name)[order]
            for name in ("tokens_BT", "lengths_B", "support_ids_BTK")
        },
    )
    results = []
    for batch in (rollouts, shuffled):
        engine, student = learner(40)
        engine.step(batch, batch.teacher, Objective("tail"), 0)
        results.append(weights_of(student))
    assert_close(results[0], results[1], 1e-9)


def test_masses_are_those_of_the_support(rollouts: Rollouts) -> None:
    engine, _ = learner()
    reported = engine.step(rollouts, rollouts.teacher, Objective("renormalized"), 0)
    for name, causal in (
        ("student", tiny.student(torch.float64)),
        ("teacher", tiny.teacher(torch.float64)),
    ):
        logs = torch.cat([torch.from_numpy(row) for row in tiny.visited_rows(causal, rollouts)])
        mass = logs.gather(-1, rollouts.support_ids_BTK[rollouts.mask_BT]).exp().sum(-1).mean()
        assert reported[f"support_mass_{name}"] == pytest.approx(float(mass), abs=1e-9)


def test_nll_needs_no_scores_and_veto_at_zero_is_the_plain_objective(rollouts: Rollouts) -> None:
    engine, _ = learner()
    assert set(engine.step(rollouts, None, Objective("nll"), 0)) == set(STATE)
    results = []
    for goal in (Objective("surrogate"), Objective("surrogate", Bridge(0.0))):
        engine, student = learner()
        engine.step(rollouts, rollouts.teacher, goal, 0)
        results.append(weights_of(student))
    assert_close(results[0], results[1], 0)


def test_warmup_rises_as_a_cosine_to_a_constant() -> None:
    paper = Optimizer()
    for k in range(15):
        assert learning_rate(paper, k, 400) == pytest.approx(
            1e-5 * (1 - math.cos(math.pi * (k + 1) / 15)) / 2, rel=1e-12
        )
    assert learning_rate(paper, 0, 400) == pytest.approx(1.0926199633097157e-7, rel=1e-9)
    assert [learning_rate(paper, k, 400) for k in (14, 15, 16, 399)] == pytest.approx(
        [1e-5] * 4, rel=1e-12
    )
    rates = [learning_rate(paper, k, 400) for k in range(15)]
    assert rates == sorted(rates)
    assert learning_rate(Optimizer(warmup_steps=0), 0, 400) == 1e-5
    assert learning_rate(Optimizer(warmup_steps=1), 0, 400) == pytest.approx(1e-5, rel=1e-12)


def test_linear_decay_falls_from_the_end_of_the_warmup_to_zero_after_the_last_step() -> None:
    decayed, constant = (
        Optimizer(lr=6e-4, warmup_steps=5, decay=decay) for decay in ("linear", "constant")
    )
    assert [learning_rate(decayed, k, 60) for k in range(5)] == [
        learning_rate(constant, k, 60) for k in range(5)
    ]
    expected = [6e-4 * (1 - (k - 5) / 55) for k in range(5, 60)]
    assert [learning_rate(decayed, k, 60) for k in range(5, 60)] == pytest.approx(
        expected, rel=1e-12
    )
    assert learning_rate(decayed, 5, 60) == pytest.approx(6e-4, rel=1e-12)
    assert learning_rate(decayed, 59, 60) == pytest.approx(6e-4 / 55, rel=1e-12)
    assert learning_rate(Optimizer(lr=1.0, warmup_steps=0, decay="linear"), 1, 2) == 0.5
    short = [
        learning_rate(Optimizer(lr=1.0, warmup_steps=9, decay="linear"), k, 4) for k in range(4)
    ]
    assert short == [learning_rate(Optimizer(lr=1.0, warmup_steps=9), k, 4) for k in range(4)]


def test_a_learner_takes_the_rates_of_its_schedule(rollouts: Rollouts) -> None:
    optimizer = replace(OPTIMIZER, warmup_steps=1, decay="linear")
    engine, _ = learner(optimizer=optimizer)
    rates = [
        engine.step(rollouts, rollouts.teacher, Objective("nll"), step)["lr"]
        for step in range(STEPS)
    ]
    assert rates == [learning_rate(optimizer, step, STEPS) for step in range(STEPS)]
    assert rates == pytest.approx([1e-2, 1e-2, 0.5e-2])


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_restored_learner_goes_on_bitwise(
    rollouts: Rollouts, tmp_path: Path, done: int, dtype: torch.dtype | None
) -> None:
    goal = Objective("renormalized")
    first, undisturbed = learner(40, dtype=dtype)
    for step in range(done):
        first.step(rollouts, rollouts.teacher, goal, step)
    first.save(tmp_path)
    second, restored = learner(40, dtype=dtype)
    second.step(
        rollouts, rollouts.teacher, Objective("nll"), 0
    )  # whatever it did before is forgotten
    second.restore(tmp_path)
    for step in range(done, done + 2):
        reports = [
            engine.step(rollouts, rollouts.teacher, goal, step) for engine in (first, second)
        ]
        assert reports[0] == reports[1]
        assert_close(weights_of(undisturbed), weights_of(restored), 0)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_model_is_the_trained_one(
    rollouts: Rollouts, tmp_path: Path, tied: bool, dtype: torch.dtype
) -> None:
    engine, student = learner(tied=tied, dtype=dtype)
    engine.step(rollouts, rollouts.teacher, Objective("renormalized"), 0)
    before = weights_of(student)
    engine.export(tmp_path)
    assert_close(weights_of(student), before, 0)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert loaded.config.tie_word_embeddings == tied
    ids = torch.tensor([[1, 2, 3, 4, 5, 0]])
    expected = copy.deepcopy(student.model)
    with torch.no_grad():
        for parameter in expected.parameters():
            parameter.copy_(parameter.to(dtype))
        assert torch.equal(
            loaded.eval()(input_ids=ids).logits, expected.eval()(input_ids=ids).logits
        )


def test_a_saved_model_ends_with_the_students_own_ids(tmp_path: Path) -> None:
    engine, student = learner(dtype=torch.float32)
    student.model.config.eos_token_id = 3
    student.model.generation_config.eos_token_id = [5, 3]
    engine.export(tmp_path)
    found = []
    for name in ("config", "generation_config"):
        found.append(json.loads((tmp_path / f"{name}.json").read_text())["eos_token_id"])
    assert found == [3, [5, 3]]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_saved_file_holds_the_weights_that_generate(
    tmp_path: Path, tied: bool, dtype: torch.dtype
) -> None:
    engine, student = learner(tied=tied, dtype=dtype)
    engine.export(tmp_path)
    weights, saved = published(engine), load_file(tmp_path / "model.safetensors")
    assert_close(saved, weights, 0)
    assert {tensor.dtype for tensor in saved.values()} == {dtype}
    assert {p.dtype for p in student.model.parameters()} == {torch.float32}
    own = {
        name for name, _ in load_model(str(tmp_path), dtype, torch.device("cpu")).named_parameters()
    }
    assert own == weights.keys()


def test_weights_are_copies(rollouts: Rollouts) -> None:
    engine, student = learner(dtype=torch.float32)
    taken = published(engine)
    before = weights_of(student)
    engine.step(rollouts, rollouts.teacher, Objective("nll"), 0)
    assert_close(taken, before, 0)
    assert not torch.equal(taken["model.norm.weight"], weights_of(student)["model.norm.weight"])


def test_bfloat16_passes_train_float32_weights_in_nearly_the_same_direction(
    rollouts: Rollouts,
) -> None:
    moved = []
    for dtype in (torch.float32, torch.bfloat16):
        engine, student = learner(
            dtype=dtype, optimizer=replace(OPTIMIZER, weight_decay=0.0, eps=1.0, clip=1e6)
        )
        before = weights_of(student)
        engine.step(rollouts, rollouts.teacher, Objective("renormalized"), 0)
        moved.append(
            torch.cat([(weights_of(student)[name] - before[name]).flatten() for name in before])
        )
    assert float(torch.cosine_similarity(*moved, dim=0)) > 0.99


@pytest.fixture(scope="module")
def models_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def sampled(engine: TorchEngine, behavior: Behavior) -> Rollouts:
    """Two responses to each prompt, as a step of training samples them."""
    training = engine.store.job.setup.training
    limits = Limits(training.max_response_tokens, support_size(engine.store.job.setup))
    return concatenate(list(engine.sampler().sample(tiny.requests(2), behavior, limits)))


@pytest.mark.parametrize("blended", [True, False])
@pytest.mark.parametrize("objective", ["renormalized", "full"])
def test_the_engine_takes_the_same_update_as_a_plain_implementation(
    models_folder: Path, objective: ObjectiveName, blended: bool
) -> None:
    optimizer = replace(OPTIMIZER, eps=1e-3)
    engine = tiny.torch_engine(
        models_folder, rollout_batch=5, objective=objective, optimizer=optimizer
    )
    batch = sampled(engine, TrustRegion(0.05) if blended else Student())
    assert (batch.teacher is not None) == blended
    scores = batch.teacher or engine.scorer().score(batch)
    trainer, goal = engine.trainer(), Objective(objective)
    plain = Plain(tiny.student(torch.float64), optimizer)
    expected = plain.step(batch, goal, rate_of(optimizer, 0))
    reported = trainer.step(batch, scores, goal, 0)
    assert {name: reported[name] for name in STATE} == pytest.approx(expected, abs=2e-6, rel=1e-5)
    assert_close({name: w.double() for name, w in published(trainer).items()}, plain.weights, 1e-6)


def test_the_full_support_is_every_valid_id(models_folder: Path) -> None:
    engine = tiny.torch_engine(models_folder, objective="full")
    batch = sampled(engine, Student())
    scores = engine.scorer().score(batch)
    ids = batch.support_ids_BTK[batch.mask_BT]
    assert ids.shape[-1] == tiny.VALID
    live = set(range(tiny.VALID)) - {tiny.TEACHER_EOS}
    assert all(live <= set(row) and len(set(row)) == tiny.VALID for row in ids.tolist())
    assert score(engine.store.teacher, batch, ENOUGH).support_BTK.shape == scores.support_BTK.shape
    mass = scores.support_BTK[batch.mask_BT].exp().sum(-1)
    torch.testing.assert_close(mass, torch.ones_like(mass))


def test_saved_and_restored_trainers_agree(models_folder: Path, tmp_path: Path) -> None:
    engine = tiny.torch_engine(models_folder)
    batch = sampled(engine, TrustRegion(0.05))
    first, second = engine.trainer(), engine.trainer()
    first.step(batch, batch.teacher, Objective("renormalized"), 0)
    first.save(tmp_path)
    second.restore(tmp_path)
    for trainer in (first, second):
        trainer.step(batch, batch.teacher, Objective("renormalized"), 1)
    assert_close(published(first), published(second), 0)


def test_loaded_weights_are_what_generates(models_folder: Path) -> None:
    engine = tiny.torch_engine(models_folder)
    trained = engine.trainer()
    before = sampled(engine, Student())
    trained.step(before, None, Objective("nll"), 0)
    engine.sampler().load(trained.publish(1))
    after = sampled(engine, Student())
    log_p = tiny.visited_rows(engine.store.student, after)
    for row, expected in enumerate(log_p):
        response = after.response(row)
        assert after.student_BT[row, : len(response)].numpy() == pytest.approx(
            expected[range(len(response)), response], abs=1e-5
        )
    assert not torch.equal(before.student_BT[:, 0], after.student_BT[:, 0])
    assert_close(weights_of(engine.store.student), published(trained), 0)


def test_a_learner_that_takes_turns_rests_on_the_host_and_learns_the_same_bytes(
    rollouts: Rollouts, tmp_path: Path
) -> None:
    """On CPUs the host's buffers are memory like any other, but values go there and back as they do
    on a GPU.
    """
    staying, resting = (
        TorchTrainer(tiny.student(), OPTIMIZER, 40, torch.bfloat16, STEPS, takes_turns)
        for takes_turns in (False, True)
    )
    goal = Objective("renormalized")
    for step in range(2):
        logged = [
            trainer.step(rollouts, rollouts.teacher, goal, step) for trainer in (staying, resting)
        ]
        assert logged[0] == logged[1]
        assert_close(published(resting), published(staying), 0)
    assert resting.log_probs([1, 5, 9, 2]) == staying.log_probs([1, 5, 9, 2])
    files = []
    for name, trainer in (("staying", staying), ("resting", resting)):
        folder = tmp_path / name
        folder.mkdir()
        trainer.export(folder)
        trainer.save(folder)
        files.append({file.name: file.read_bytes() for file in folder.iterdir()})
    assert files[0] == files[1]


def test_buffers_of_the_host_are_shared_and_little_larger_than_their_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trainer_module, "BUFFER_BYTES", 4096)
    sizes = {
        f"{number}": size for number, size in enumerate([700, 5000, 1, 2048, 2048, 900, 300, 256])
    }
    shared = trainer_module.buffers(sizes)
    places = {key: aligned for tensors in shared for key, aligned in tensors}
    assert places.keys() == sizes.keys()
    assert sum(len(tensors) for tensors in shared) == len(sizes)
    for key, aligned in places.items():
        assert 0 <= aligned - sizes[key] < trainer_module.ALIGNMENT
        assert aligned % trainer_module.ALIGNMENT == 0
    held = [sum(aligned for _, aligned in tensors) for tensors in shared]
    assert sorted(held, reverse=True) == [5120, 4096, 2816]
    assert all(len(tensors) == 1 for tensors, size in zip(shared, held, strict=True) if size > 4096)
    assert trainer_module.buffers({}) == []


def test_a_learner_rests_in_few_buffers(rollouts: Rollouts) -> None:
    student = tiny.student()
    trainer = TorchTrainer(student, OPTIMIZER, ENOUGH, torch.float32, STEPS, takes_turns=True)
    trainer.step(rollouts, rollouts.teacher, Objective("nll"), 0)
    storages = set[int]()
    for parameter in student.model.parameters():
        moments = (trainer._adamw.state[parameter][key] for key in trainer_module.MOMENTS)
        for tensor in (parameter.data, *moments):
            assert (
                tensor.data_ptr() % trainer_module.ALIGNMENT
                == tensor.untyped_storage().data_ptr() % trainer_module.ALIGNMENT
            )
            storages.add(tensor.untyped_storage().data_ptr())
    assert len(storages) == 2, "one of the weights, and one of the moments that came later"


def test_offloaded_tensors_are_elsewhere_and_what_lay_on_the_device_is_let_go(
    rollouts: Rollouts,
) -> None:
    student = tiny.student()
    trainer = TorchTrainer(student, OPTIMIZER, ENOUGH, torch.float32, STEPS, takes_turns=True)
    parameter = student.model.lm_head.weight
    resting = parameter.data_ptr()
    used = set[int]()
    student.model.register_forward_pre_hook(lambda *_: used.add(parameter.data_ptr()))
    student.model.model.register_forward_pre_hook(lambda *_: used.add(parameter.data_ptr()))
    for step in range(2):
        trainer.step(rollouts, rollouts.teacher, Objective("nll"), step)
        assert parameter.data_ptr() == resting, "the same buffer each time"
        assert parameter.grad is None
    assert used
    assert resting not in used
