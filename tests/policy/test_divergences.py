"""Divergences beyond the reverse KL, policy gradients, targets and weights of tokens.

References are written in numpy from the definitions; gradients are compared with those of a plain
float64 formula by automatic differentiation and by finite differences.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from orchestrator.policy.objective import (
    Recorded,
    discrepancy_before,
    sampled_loss,
    target_of,
    token_loss,
    weigh,
)
from orchestrator.policy.spec import (
    Divergence,
    Everywhere,
    FallingWithDiscrepancy,
    ForwardKL,
    JensenShannon,
    Objective,
    Proximal,
    ReverseKL,
    SampledToken,
    TeacherKeeps,
    TeacherPrefers,
    TeacherUncertain,
    Term,
    TokenWeight,
    Unchanged,
)
from orchestrator.rules import ObjectiveName

Array = NDArray[np.float64]
NAMES: tuple[ObjectiveName, ...] = ("renormalized", "tail", "truncated", "full")
DIVERGENCES: list[Divergence] = [
    ReverseKL(),
    ForwardKL(),
    JensenShannon(0.1),
    JensenShannon(0.5),
    JensenShannon(0.9),
]
NEG_INF = float("-inf")
TOKENS, VOCABULARY, SUPPORT = 6, 20, 5


def random_case(seed: int, distance: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """(student logits (N, V), log q (N, V), the student's top ids (N, k)), float64."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(TOKENS, VOCABULARY, generator=generator, dtype=torch.float64)
    noise = torch.randn(TOKENS, VOCABULARY, generator=generator, dtype=torch.float64)
    return logits, (logits + distance * noise).log_softmax(-1), logits.topk(SUPPORT, dim=-1).indices


def support_of(name: str, ids: Tensor) -> Tensor:
    return torch.arange(VOCABULARY).expand(TOKENS, -1) if name == "full" else ids


def loss_of(
    name: str, divergence: Divergence, logits: Tensor, log_q: Tensor, ids: Tensor
) -> Tensor:
    ids = support_of(name, ids)
    log_p = logits.log_softmax(-1).gather(-1, ids)
    return token_loss(name, log_p, log_q.gather(-1, ids), divergence)


def outcomes(name: str, probabilities: Array, ids: NDArray[np.int64]) -> Array:
    """The probabilities that an objective compares, at one prefix."""
    inside = probabilities if name == "full" else probabilities[ids]
    if name == "renormalized":
        return inside / inside.sum()
    if name == "tail":
        return np.append(inside, 1 - inside.sum())
    return inside


def kl(a: Array, b: Array) -> float:
    some = a > 0
    return float(np.sum(a[some] * np.log(a[some] / b[some])))


def by_definition(divergence: Divergence, p: Array, q: Array) -> float:
    if isinstance(divergence, ReverseKL):
        return kl(p, q)
    if isinstance(divergence, ForwardKL):
        return kl(q, p)
    mean = divergence.beta * q + (1 - divergence.beta) * p
    return divergence.beta * kl(q, mean) + (1 - divergence.beta) * kl(p, mean)


@pytest.mark.parametrize("distance", [0.01, 1.0, 4.0])
@pytest.mark.parametrize("divergence", DIVERGENCES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_values(name: str, divergence: Divergence, distance: float) -> None:
    logits, log_q, ids = random_case(1, distance)
    values = loss_of(name, divergence, logits, log_q, ids)
    for row in range(TOKENS):
        p, q = logits[row].softmax(-1).numpy(), log_q[row].exp().numpy()
        compared = [outcomes(name, x, ids[row].numpy()) for x in (p, q)]
        expected = by_definition(divergence, *compared)
        assert values[row].item() == pytest.approx(expected, rel=1e-9, abs=1e-13)


@pytest.mark.parametrize("divergence", DIVERGENCES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_gradients_by_finite_differences(name: str, divergence: Divergence) -> None:
    logits, log_q, ids = random_case(2)
    assert torch.autograd.gradcheck(
        lambda x: loss_of(name, divergence, x, log_q, ids), logits.requires_grad_(), atol=1e-7
    )


@pytest.mark.parametrize("name", ["renormalized", "full"])
def test_the_forward_kl_moves_p_towards_q(name: str) -> None:
    """∂KL(q̄‖p̄)/∂z = p̄ − q̄ on the support, and nothing outside of it."""
    logits, log_q, ids = random_case(3)
    logits.requires_grad_()
    (gradient,) = torch.autograd.grad(loss_of(name, ForwardKL(), logits, log_q, ids).sum(), logits)
    support = support_of(name, ids)
    p_bar = logits.detach().gather(-1, support).softmax(-1)
    q_bar = log_q.gather(-1, support).softmax(-1)
    expected = torch.zeros_like(gradient).scatter(-1, support, p_bar - q_bar)
    assert torch.allclose(gradient, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_the_ends_of_jensen_shannon(name: str) -> None:
    """JSD ÷ β → KL(q‖p) for β → 0, and JSD ÷ (1 − β) → KL(p‖q) for β → 1."""
    logits, log_q, ids = random_case(4)
    if name == "truncated":  # the limits need masses that sum to one
        log_q = log_q.scatter(-1, ids, logits.log_softmax(-1).gather(-1, ids).flip(-1))
    small = 1e-7
    nearly_forward = loss_of(name, JensenShannon(small), logits, log_q, ids) / small
    nearly_reverse = loss_of(name, JensenShannon(1 - small), logits, log_q, ids) / small
    forward, reverse = (loss_of(name, d, logits, log_q, ids) for d in (ForwardKL(), ReverseKL()))
    assert torch.allclose(nearly_forward, forward, rtol=1e-4, atol=1e-6)
    assert torch.allclose(nearly_reverse, reverse, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("divergence", DIVERGENCES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_equal_policies_are_a_minimum(name: str, divergence: Divergence) -> None:
    logits, _, ids = random_case(5)
    log_q = logits.log_softmax(-1)
    logits.requires_grad_()
    losses = loss_of(name, divergence, logits, log_q, ids)
    assert losses.abs().max() <= 1e-13
    if name != "truncated":
        (gradient,) = torch.autograd.grad(losses.sum(), logits)
        assert gradient.abs().max() <= 1e-13


@pytest.mark.parametrize("divergence", DIVERGENCES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_ids_without_mass_count_for_nothing(name: str, divergence: Divergence) -> None:
    """Masked ids, and ids that the teacher alone has no mass on."""
    logits, log_q, _ = random_case(6)
    logits[:, 4:] = NEG_INF
    log_q = torch.where(logits == NEG_INF, NEG_INF, log_q).log_softmax(-1)
    ids = torch.arange(SUPPORT).expand(TOKENS, -1)
    logits.requires_grad_()
    losses = loss_of(name, divergence, logits, log_q, ids)
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    assert losses.isfinite().all()
    assert not gradient[:, :4].isnan().any()
    fewer = logits.detach()[:, :4].clone().requires_grad_()
    log_p = fewer.log_softmax(-1)
    plain = token_loss(name, log_p, log_q[:, :4], divergence)
    (expected,) = torch.autograd.grad(plain.sum(), fewer)
    assert torch.allclose(losses, plain, rtol=0, atol=1e-12)
    assert torch.allclose(gradient[:, :4], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("divergence", DIVERGENCES, ids=str)
def test_float32_stays_finite_where_the_tail_vanishes(divergence: Divergence) -> None:
    logits = torch.tensor([[0.0, -1.0, -40.0, -50.0], [0.0, -17.0, -18.0, -19.0]])
    log_q = torch.tensor([[0.0, -1.0, -2.0, -3.0], [0.0, -17.0, -50.0, -50.0]]).log_softmax(-1)
    ids = torch.tensor([[0, 1]]).expand(2, -1)
    logits.requires_grad_()
    losses = token_loss(
        "tail", logits.log_softmax(-1).gather(-1, ids), log_q.gather(-1, ids), divergence
    )
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    assert losses.isfinite().all()
    assert gradient.isfinite().all()


def test_the_released_estimator_estimates_the_reverse_kl_alone() -> None:
    logits, log_q, ids = random_case(7)
    with pytest.raises(ValueError, match="ForwardKL"):
        loss_of("surrogate", ForwardKL(), logits, log_q, ids)


# --- policy gradients of the sampled token ---


@pytest.mark.parametrize("clip", [None, 0.5])
def test_the_sampled_token_is_an_unbiased_gradient_of_the_kl_unless_clipped(
    clip: float | None,
) -> None:
    """Summed over all tokens with weights p, the gradient is that of KL(p‖q)."""
    logits, log_q, _ = random_case(8)
    logits.requires_grad_()
    log_p = logits.log_softmax(-1)
    p = log_p.exp().detach()
    losses = torch.stack(
        [sampled_loss(SampledToken(clip), log_p[:, y], log_q[:, y]) for y in range(VOCABULARY)], -1
    )
    (gradient,) = torch.autograd.grad((p * losses).sum(), logits)
    advantage = (log_q - log_p.detach()).numpy()
    if clip is not None:
        advantage = np.clip(advantage, -clip, clip)
    # Σ_y p(y)·(−A(y))·(1[y = j] − p(j)), by the definition of the policy gradient
    p_values = p.numpy()
    expected = -p_values * (advantage - (p_values * advantage).sum(-1, keepdims=True))
    assert np.abs(gradient.numpy() - expected).max() <= 1e-13
    if clip is None:
        (whole,) = torch.autograd.grad(loss_of("full", ReverseKL(), logits, log_q, _).sum(), logits)
        assert torch.allclose(gradient, whole, rtol=0, atol=1e-12)


def test_the_value_of_the_sampled_token_is_k1() -> None:
    log_p, log_q = torch.tensor([-1.0, -2.0]), torch.tensor([-3.0, -1.5])
    assert sampled_loss(SampledToken(), log_p, log_q).tolist() == [2.0, -0.5]
    assert sampled_loss(SampledToken(1.0), log_p, log_q).tolist() == [1.0, -0.5]


# --- targets ---


@pytest.mark.parametrize("alpha", [0.25, 0.7, 1.0])
@pytest.mark.parametrize("name", NAMES)
def test_the_proximal_target_is_the_mixture(name: str, alpha: float) -> None:
    logits, log_q, ids = random_case(9)
    support = support_of(name, ids)
    log_p = logits.requires_grad_().log_softmax(-1).gather(-1, support)
    log_q = log_q.gather(-1, support)
    target = target_of(Proximal(alpha), name, log_p, log_q)
    p, q = log_p.detach().exp().numpy(), log_q.exp().numpy()
    if name == "renormalized":
        p, q = (x / x.sum(-1, keepdims=True) for x in (p, q))
    expected = alpha * q + (1 - alpha) * p
    if alpha < 1:
        assert np.abs(target.exp().numpy() - expected).max() <= 1e-13
    assert not target.requires_grad
    losses = token_loss(name, log_p, target)
    for row in range(TOKENS):
        compared = [p[row], expected[row]]
        if name == "tail":
            compared = [np.append(x, 1 - x.sum()) for x in compared]
        assert losses[row].item() == pytest.approx(kl(*compared), rel=1e-8, abs=1e-13)


def test_an_unchanged_target_is_the_teacher() -> None:
    logits, log_q, ids = random_case(10)
    log_p, log_q = logits.log_softmax(-1).gather(-1, ids), log_q.gather(-1, ids)
    assert torch.equal(target_of(Unchanged(), "tail", log_p, log_q), log_q)


# --- weights of tokens ---

RECORDED = Recorded(
    log_p=torch.tensor([-1.0, -1.0, -0.125, -5.0], dtype=torch.float64),
    log_q=torch.tensor([-1.5, -4.0, -0.125, -1.0], dtype=torch.float64),
    entropy=torch.tensor([0.1, 0.8, 1.2, 0.0], dtype=torch.float64),
    before=torch.tensor([0.0, 0.25, 0.5, 1.0], dtype=torch.float64),
)
KEPT = [math.exp(-0.5), math.exp(-3), 1.0, 1.0]


@pytest.mark.parametrize(
    ("where", "weights"),
    [
        (Everywhere(), [1, 1, 1, 1]),
        (TeacherUncertain(0.8), [0, 0, 1, 0]),
        (TeacherUncertain(0.8, inverted=True), [1, 1, 0, 1]),
        (TeacherKeeps(), KEPT),
        (TeacherKeeps(inverted=True), [1 - kept for kept in KEPT]),
        (TeacherPrefers(), [0, 0, 0, 1]),
        (TeacherPrefers(inverted=True), [1, 1, 1, 0]),
        (FallingWithDiscrepancy(1.5), [1.5, 1.375, 1.25, 1.0]),
    ],
    ids=str,
)
def test_weights(where: TokenWeight, weights: list[float]) -> None:
    assert weigh(where, RECORDED).tolist() == pytest.approx(weights, rel=1e-12)


def test_the_trusted_share_is_the_mean_of_a_random_mask() -> None:
    """TrOPD draws a mask for each token; our weights are its mean, token by token."""
    generator = np.random.default_rng(0)
    kept = weigh(TeacherKeeps(), RECORDED).numpy()
    drawn = generator.random((40_000, 4)) < kept
    assert np.abs(drawn.mean(0) - kept).max() <= 4 * 0.5 / 200
    assert weigh(TeacherKeeps(inverted=True), RECORDED).numpy() == pytest.approx(1 - kept)


def test_the_discrepancy_before_a_token() -> None:
    log_p = torch.tensor([[-1.0, -1.0, -1.0, -9.0], [-1.0, -1.0, 0.0, 0.0]])
    log_q = torch.tensor([[-2.0, -3.0, -0.0, -1.0], [-1.0, -1.0, 7.0, 7.0]])
    mask = torch.tensor([[True, True, True, False], [True, True, False, False]])
    before = discrepancy_before(log_p, log_q, mask)
    assert before[0, :3].tolist() == pytest.approx([0, 1 / 4, 3 / 4])  # gaps 1, 2, 1
    assert before[1, :2].tolist() == [0, 0]  # without any discrepancy


# --- which losses need the teacher ---


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_needs_the_teacher_unless_it_is_the_likelihood(name: ObjectiveName) -> None:
    assert Objective(name).needs_teacher
    assert Objective(name, terms=(Term(SampledToken(), TeacherKeeps()),)).needs_teacher
    assert not Objective("nll").needs_teacher
