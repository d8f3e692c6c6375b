"""The reverse-KL family: values and gradients against formulas in numpy, and Veto's target."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from orchestrator.policy.objective import support_mass, token_loss, veto_target

Array = NDArray[np.float64]
TOP_K = ("renormalized", "surrogate", "tail", "truncated")
TRUE_FUNCTIONS = ("renormalized", "tail", "truncated")
NEG_INF = float("-inf")
TOKENS, VOCABULARY, SUPPORT = 5, 30, 8


def random_case(seed: int, distance: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """(student logits, log q) over the vocabulary, (N, V) float64, and the student's top-k ids, (N,
    k).
    """
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(TOKENS, VOCABULARY, generator=generator, dtype=torch.float64)
    noise = torch.randn(TOKENS, VOCABULARY, generator=generator, dtype=torch.float64)
    return logits, (logits + distance * noise).log_softmax(-1), logits.topk(SUPPORT, dim=-1).indices


def loss_of(name: str, logits: Tensor, log_q: Tensor, ids: Tensor) -> Tensor:
    """The loss of each token as a function of the student's logits."""
    return token_loss(name, logits.log_softmax(-1).gather(-1, ids), log_q.gather(-1, ids))


def gradient_of(name: str, logits: Tensor, log_q: Tensor, ids: Tensor) -> Array:
    logits = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss_of(name, logits, log_q, ids).sum(), logits)
    assert not gradient.isnan().any()
    return gradient.numpy()


class Parts:
    """p, q, M, Q, p̄, q̄, KL(p̄‖q̄) of one token, and the gradients of KL(p̄‖q̄) and log M in its
    logits.
    """

    def __init__(self, logits: Array, log_q: Array, ids: NDArray[np.int64]):
        self.p = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        self.q = np.exp(log_q)
        inside = np.zeros(len(logits), dtype=bool)
        inside[ids] = True
        inside &= self.p > 0
        self.inside = inside
        self.mass_p, self.mass_q = float(self.p[ids].sum()), float(self.q[ids].sum())
        p_bar, q_bar = self.p / self.mass_p * inside, self.q / self.mass_q
        score = np.zeros(len(logits))
        score[inside] = np.log(p_bar[inside] / q_bar[inside])
        self.kl = float(p_bar @ score)
        self.kl_gradient = p_bar * (score - self.kl)
        self.mass_gradient = p_bar - self.p

    @property
    def truncated_kl(self) -> float:
        p, q = self.p[self.inside], self.q[self.inside]
        return float(p @ np.log(p / q))

    @property
    def tail_ratio(self) -> float:
        return float(np.log((1 - self.mass_p) / (1 - self.mass_q)))


def expected_value(name: str, parts: Parts) -> float:
    match name:
        case "renormalized":
            return parts.kl
        case "surrogate":
            return parts.kl + float(np.log(parts.mass_p / parts.mass_q))
        case "tail":
            return parts.truncated_kl + (1 - parts.mass_p) * parts.tail_ratio
        case _:
            return parts.truncated_kl


def expected_gradient(name: str, parts: Parts) -> Array:
    """∇KL(p̄‖q̄) + c·∇log M, times M for the two losses that weigh by p instead of p̄."""
    log_ratio = parts.kl + float(np.log(parts.mass_p / parts.mass_q))
    match name:
        case "renormalized":
            return parts.kl_gradient
        case "surrogate":
            return parts.kl_gradient + log_ratio * parts.mass_gradient
        case "tail":
            return parts.mass_p * (
                parts.kl_gradient + (log_ratio - parts.tail_ratio) * parts.mass_gradient
            )
        case _:
            return parts.mass_p * (parts.kl_gradient + (log_ratio + 1) * parts.mass_gradient)


def parts_of(logits: Tensor, log_q: Tensor, ids: Tensor) -> list[Parts]:
    return [Parts(*(x[row].numpy() for x in (logits, log_q, ids))) for row in range(len(logits))]


def assert_formulas(name: str, logits: Tensor, log_q: Tensor, ids: Tensor) -> None:
    loss = loss_of(name, logits, log_q, ids).numpy()
    gradient = gradient_of(name, logits, log_q, ids)
    for row, parts in enumerate(parts_of(logits, log_q, ids)):
        assert loss[row] == pytest.approx(expected_value(name, parts), rel=1e-10, abs=1e-12)
        assert np.abs(gradient[row] - expected_gradient(name, parts)).max() <= 1e-12


@pytest.mark.parametrize("distance", [0.01, 1.0, 5.0])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", TOP_K)
def test_values_and_gradients(name: str, seed: int, distance: float) -> None:
    assert_formulas(name, *random_case(seed, distance))


@pytest.mark.parametrize("seed", range(3))
def test_full_is_the_kl_over_the_vocabulary(seed: int) -> None:
    logits, log_q, _ = random_case(seed)
    ids = torch.arange(VOCABULARY).expand(TOKENS, -1)
    p, log_ratio = logits.softmax(-1).numpy(), (logits.log_softmax(-1) - log_q).numpy()
    divergence = (p * log_ratio).sum(-1)
    assert loss_of("full", logits, log_q, ids).numpy() == pytest.approx(divergence, rel=1e-12)
    expected = p * (log_ratio - divergence[:, None])
    assert np.abs(gradient_of("full", logits, log_q, ids) - expected).max() <= 1e-13


@pytest.mark.parametrize("name", TRUE_FUNCTIONS)
def test_gradients_by_finite_differences(name: str) -> None:
    logits, log_q, ids = random_case(7)
    assert torch.autograd.gradcheck(
        lambda x: loss_of(name, x, log_q, ids), logits.requires_grad_(), atol=1e-7
    )


def test_full_gradient_by_finite_differences() -> None:
    logits, log_q, _ = random_case(7)
    ids = torch.arange(VOCABULARY).expand(TOKENS, -1)
    assert torch.autograd.gradcheck(
        lambda x: loss_of("full", x, log_q, ids), logits.requires_grad_(), atol=1e-7
    )


@pytest.mark.parametrize("name", TOP_K)
def test_unified_gradient_by_automatic_differentiation(name: str) -> None:
    """Every member moves along ∇KL(p̄‖q̄) and ∇log M alone."""
    logits, log_q, ids = random_case(3)
    logits.requires_grad_()
    log_p = logits.log_softmax(-1).gather(-1, ids)
    log_q_bar = log_q.gather(-1, ids).log_softmax(-1)
    divergence = (log_p.softmax(-1) * (log_p.log_softmax(-1) - log_q_bar)).sum()
    (kl_part,) = torch.autograd.grad(divergence, logits, retain_graph=True)
    (mass_part,) = torch.autograd.grad(log_p.logsumexp(-1).sum(), logits)
    for row, gradient in enumerate(gradient_of(name, logits.detach(), log_q, ids)):
        basis = np.stack([kl_part[row].numpy(), mass_part[row].numpy()], axis=1)
        weights, *_ = np.linalg.lstsq(basis, gradient, rcond=None)
        assert np.abs(basis @ weights - gradient).max() <= 1e-12
        if name in ("renormalized", "surrogate"):
            assert weights[0] == pytest.approx(1, abs=1e-10)
        if name == "renormalized":
            assert weights[1] == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize("name", TOP_K)
def test_entries_without_mass_count_for_nothing(name: str) -> None:
    """A support larger than the number of valid ids."""
    logits, log_q, _ = random_case(4)
    logits[:, 5:] = NEG_INF
    logits[:, 5 + SUPPORT :] = torch.where(
        torch.arange(VOCABULARY - 5 - SUPPORT) == 2, -3.0, NEG_INF
    ).double()
    log_q = torch.where(logits == NEG_INF, NEG_INF, log_q).log_softmax(-1)
    ids = torch.arange(SUPPORT).expand(TOKENS, -1)
    assert_formulas(name, logits, log_q, ids)


@pytest.mark.parametrize("name", TOP_K)
def test_a_support_that_holds_everything(name: str) -> None:
    """M = Q = 1: no tail, and every member's gradient is the full KL's, `truncated` included."""
    logits, log_q, _ = random_case(5)
    logits[:, SUPPORT - 2 :] = NEG_INF
    log_q = torch.where(logits == NEG_INF, NEG_INF, log_q).log_softmax(-1)
    ids = torch.arange(SUPPORT).expand(TOKENS, -1)
    for row, parts in enumerate(parts_of(logits, log_q, ids)):
        assert loss_of(name, logits, log_q, ids)[row] == pytest.approx(parts.kl, abs=1e-12)
        assert np.abs(gradient_of(name, logits, log_q, ids)[row] - parts.kl_gradient).max() <= 1e-12


@pytest.mark.parametrize("name", TOP_K)
def test_float32_stays_finite_where_the_tail_vanishes(name: str) -> None:
    logits = torch.tensor(
        [[0.0, -1.0, -40.0, -50.0], [0.0, -17.0, -18.0, -19.0], [0.0, 1.0, -30.0, -90.0]]
    )
    teacher = torch.tensor(
        [[0.0, -1.0, -2.0, -3.0], [0.0, -17.0, -50.0, -50.0], [0.0, 1.0, -60.0, -90.0]]
    )
    log_q = teacher.log_softmax(-1)
    ids = torch.tensor([[0, 1]]).expand(3, -1)
    assert loss_of(name, logits, log_q, ids).isfinite().all()
    assert np.isfinite(gradient_of(name, logits, log_q, ids)).all()


@pytest.mark.parametrize("name", [*TOP_K, "full"])
def test_equal_policies(name: str) -> None:
    logits, _, ids = random_case(6)
    log_q = logits.log_softmax(-1)
    ids = torch.arange(VOCABULARY).expand(TOKENS, -1) if name == "full" else ids
    assert loss_of(name, logits, log_q, ids).abs().max() <= 1e-13
    gradient = gradient_of(name, logits, log_q, ids)
    if name == "truncated":  # its own flaw: it pushes M down even at the optimum
        expected = np.stack(
            [parts.mass_p * parts.mass_gradient for parts in parts_of(logits, log_q, ids)]
        )
        assert np.abs(gradient - expected).max() <= 1e-13
    else:
        assert np.abs(gradient).max() <= 1e-13


@pytest.mark.parametrize("name", [*TOP_K, "full"])
def test_the_teacher_gets_no_gradient(name: str) -> None:
    logits, log_q, ids = random_case(8)
    student, teacher = logits.clone().requires_grad_(), log_q.clone().requires_grad_()
    loss_of(name, student, teacher, ids).sum().backward()
    assert teacher.grad is None
    assert student.grad is not None


def test_renormalized_sees_only_the_logits_of_the_support() -> None:
    logits, log_q, ids = random_case(9)
    inside = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, ids, True)
    moved = torch.where(inside, logits, logits + 1.7)
    assert torch.allclose(
        *(loss_of("renormalized", x, log_q, ids) for x in (logits, moved)), rtol=1e-12, atol=0
    )
    unnormalised = token_loss("renormalized", logits.gather(-1, ids), log_q.gather(-1, ids))
    assert torch.allclose(
        unnormalised, loss_of("renormalized", logits, log_q, ids), rtol=1e-12, atol=0
    )


def test_tail_is_a_divergence_on_one_more_outcome() -> None:
    logits, log_q, ids = random_case(10)
    p, q = (x.gather(-1, ids) for x in (logits.softmax(-1), log_q.exp()))
    p, q = (torch.cat([x, 1 - x.sum(-1, keepdim=True)], dim=-1) for x in (p, q))
    assert torch.allclose(
        loss_of("tail", logits, log_q, ids), (p * (p / q).log()).sum(-1), rtol=1e-10, atol=0
    )


def test_support_mass() -> None:
    logits, _, ids = random_case(11)
    mass = support_mass(logits.log_softmax(-1).gather(-1, ids))
    assert torch.allclose(mass, logits.softmax(-1).gather(-1, ids).sum(-1), rtol=1e-14, atol=0)


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(ValueError, match="forward"):
        token_loss("forward", torch.zeros(1, 1), torch.zeros(1, 1))


@pytest.mark.parametrize("beta", [0.0, 0.2, 0.4, 0.6, 0.8])
def test_veto_target_is_the_normalised_product(beta: float) -> None:
    logits, log_q, ids = random_case(12)
    log_p, log_q = logits.log_softmax(-1).gather(-1, ids), log_q.gather(-1, ids)
    product = np.exp(log_q.numpy()) * np.exp(log_p.numpy()) ** beta
    expected = product / product.sum(-1, keepdims=True)
    assert np.abs(veto_target(log_p, log_q, beta).exp().numpy() - expected).max() <= 1e-14


def test_veto_target_is_detached() -> None:
    logits, log_q, ids = random_case(13)
    student, teacher = logits.requires_grad_(), log_q.requires_grad_()
    target = veto_target(student.log_softmax(-1).gather(-1, ids), teacher.gather(-1, ids), 0.4)
    assert not target.requires_grad


@pytest.mark.parametrize("beta", [0.2, 0.4, 0.6, 0.8])
def test_veto_gradient_holds_the_target_fixed(beta: float) -> None:
    """∂/∂z_j KL(p̄‖sg(q̃)) = p̄_j (log p̄_j/q̃_j − KL), not the (1−β)-scaled gradient of a moving
    target.
    """
    logits, log_q, ids = random_case(14)
    logits.requires_grad_()
    log_p, log_q = logits.log_softmax(-1).gather(-1, ids), log_q.gather(-1, ids)
    loss = token_loss("renormalized", log_p, veto_target(log_p, log_q, beta)).sum()
    (gradient,) = torch.autograd.grad(loss, logits)
    p_bar = log_p.detach().softmax(-1)
    score = p_bar.log() - (log_q + beta * log_p.detach()).log_softmax(-1)
    expected = torch.zeros_like(gradient).scatter(
        -1, ids, p_bar * (score - (p_bar * score).sum(-1, keepdim=True))
    )
    assert torch.allclose(gradient, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("beta", [0.2, 0.4, 0.6, 0.8])
def test_veto_fixed_point(beta: float) -> None:
    """At p ∝ q^{1/(1−β)} on the support the target is p̄ itself and nothing moves."""
    _, log_q, ids = random_case(15)
    logits = (log_q / (1 - beta)).requires_grad_()
    log_p = logits.log_softmax(-1).gather(-1, ids)
    target = veto_target(log_p, log_q.gather(-1, ids), beta)
    assert torch.allclose(target.exp(), log_p.detach().softmax(-1), rtol=0, atol=1e-13)
    (gradient,) = torch.autograd.grad(token_loss("renormalized", log_p, target).sum(), logits)
    assert gradient.abs().max() <= 1e-13


@pytest.mark.parametrize("beta", [0.0, 0.4])
def test_veto_with_entries_without_mass(beta: float) -> None:
    log_p = torch.tensor([[0.5, 0.5, 0.0, 0.0]]).double().log().requires_grad_()
    log_q = torch.tensor([[0.2, 0.3, 0.5, 0.0]]).double().log()
    target = veto_target(log_p, log_q, beta)
    assert torch.allclose(target.exp(), torch.tensor([[0.4, 0.6, 0.0, 0.0]]).double())
    (gradient,) = torch.autograd.grad(token_loss("renormalized", log_p, target).sum(), log_p)
    assert gradient.isfinite().all()


def test_without_bridge_veto_is_vanilla() -> None:
    logits, log_q, ids = random_case(16)
    log_p, log_q = logits.log_softmax(-1).gather(-1, ids), log_q.gather(-1, ids)
    vanilla = token_loss("renormalized", log_p, log_q)
    veto = token_loss("renormalized", log_p, veto_target(log_p, log_q, 0.0))
    assert torch.allclose(veto, vanilla, rtol=1e-12, atol=0)
