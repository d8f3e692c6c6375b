"""Speculative sampling: the outcome has law μ whatever the draft, and inverse-CDF sampling at its
edges.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from orchestrator.policy import laws
from orchestrator.policy.spec import Behavior, TeacherInjection, Tempered, TrustRegion
from orchestrator.policy.speculation import acceptance, kl_divergence, sample, verify
from tests.policy import reference
from tests.policy.reference import PAPER_BUDGETS, Array, exact, logs, random_pair

SAMPLES = 250_000
NEXT_TO_ONE = 1 - 2**-53
DTYPES = (torch.float32, torch.float64)


def random_uniforms(seed: int, count: int, size: int = SAMPLES) -> list[Tensor]:
    """`count` independent (size,) vectors of uniforms."""
    generator = np.random.default_rng(seed)
    return [torch.from_numpy(generator.random(size)) for _ in range(count)]


def rows(log_prob: Tensor, count: int) -> Tensor:
    return log_prob.expand(count, -1)


def assert_drawn_from(tokens: Tensor, probability: Array) -> None:
    """χ² test, rare tokens pooled; tokens without mass never occur."""
    counts = np.bincount(tokens.numpy(), minlength=len(probability)).astype(float)
    assert counts[probability == 0].sum() == 0
    expected = probability / probability.sum() * len(tokens)
    rare = expected < 10
    observed, expected = (np.append(x[~rare], x[rare].sum()) for x in (counts, expected))
    if expected[-1] < 1:
        observed, expected = (
            observed[:-1],
            expected[:-1] / expected[:-1].sum() * observed[:-1].sum(),
        )
    if len(expected) > 1:
        assert stats.chisquare(observed, expected).pvalue > 1e-4


def draft_and_verify(log_p: Tensor, log_mu: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens and whether their drafts survived, at SAMPLES copies of one prefix."""
    u_draft, u_accept, u_residual = random_uniforms(seed, 3)
    p, mu = rows(log_p, SAMPLES), rows(log_mu, SAMPLES)
    verified = verify(p, mu, sample(p, u_draft), u_accept, u_residual)
    return verified.tokens, verified.accepted


def assert_verified_law(log_p: Tensor, log_mu: Tensor, mu: Array, seed: int) -> None:
    """Law μ, and as many survivors as Σ min(μ, p) promises."""
    tokens, accepted = draft_and_verify(log_p, log_mu, seed)
    assert_drawn_from(tokens, mu)
    rate = float(np.minimum(np.exp(exact(log_mu)), np.exp(exact(log_p))).sum())
    five_sigma = 5 * (rate * (1 - rate) / SAMPLES) ** 0.5
    assert float(accepted.double().mean()) == pytest.approx(rate, abs=five_sigma + 1e-6)
    assert float(acceptance(log_p[None], log_mu[None])) == pytest.approx(rate, abs=1e-6)


def law_of(behavior: Behavior, log_p: Tensor, log_q: Tensor) -> Tensor:
    return laws.law(behavior, log_p[None], log_q[None]).log_mu[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("epsilon", [*PAPER_BUDGETS, 0.5])
def test_verified_tokens_follow_the_trust_region(epsilon: float, dtype: torch.dtype) -> None:
    log_p, log_q = random_pair(3, size=12, distance=1.5, dtype=dtype)
    mu = np.exp(reference.trust_region(exact(log_p), exact(log_q), epsilon))
    assert_verified_law(log_p, law_of(TrustRegion(epsilon), log_p, log_q), mu, seed=1)


@pytest.mark.parametrize("top_k", [1, 3, 8])
@pytest.mark.parametrize("tau", [0.6, 1.0])
def test_verified_tokens_follow_teacher_injection(top_k: int, tau: float) -> None:
    log_p, log_q = random_pair(4, size=12, distance=1.5)
    mu = reference.skd(np.exp(exact(log_p)), np.exp(exact(log_q)), top_k, tau)
    assert_verified_law(log_p, law_of(TeacherInjection(top_k, tau), log_p, log_q), mu, seed=2)


@pytest.mark.parametrize("tau", [0.8, 2.0])
def test_verified_tokens_follow_a_tempered_target(tau: float) -> None:
    log_p, log_q = random_pair(5, size=12)
    mu = reference.tempered(np.exp(exact(log_p)), tau)
    assert_verified_law(log_p, law_of(Tempered(tau), log_p, log_q), mu, seed=3)


def test_verified_tokens_follow_the_student() -> None:
    log_p, _ = random_pair(6, size=12)
    tokens, accepted = draft_and_verify(log_p, log_p, seed=4)
    assert bool(accepted.all())
    assert_drawn_from(tokens, np.exp(exact(log_p)))


@pytest.mark.parametrize(
    ("p", "mu"),
    [
        ((0.5, 0.3, 0.2, 0.0, 0.0), (0.25, 0.0, 0.25, 0.4, 0.1)),
        ((0.5, 0.5, 0.0, 0.0), (0.0, 0.0, 0.7, 0.3)),
        ((1.0, 0.0, 0.0), (0.0, 0.0, 1.0)),
        ((1.0, 0.0, 0.0), (0.9, 0.05, 0.05)),
        ((0.1, 0.2, 0.7), (0.0, 1.0, 0.0)),
    ],
)
def test_verified_tokens_follow_targets_on_other_supports(
    p: tuple[float, ...], mu: tuple[float, ...]
) -> None:
    assert_verified_law(logs(*p), logs(*mu), np.array(mu), seed=5)


def induced_law(log_p: Tensor, log_mu: Tensor, points: int) -> Array:
    """The law of `verify` by quadrature: every draft against a grid of uniforms for each decision."""
    grid = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    reject = torch.full_like(grid, NEXT_TO_ONE)
    p, mu = rows(log_p, points), rows(log_mu, points)
    law = np.zeros(len(log_p))
    for token, mass in enumerate(np.exp(exact(log_p))):
        draft = torch.full((points,), token)
        survival = float(verify(p, mu, draft, grid, grid).accepted.double().mean())
        replaced = verify(p, mu, draft, reject, grid).tokens
        law += mass * (1 - survival) * np.bincount(replaced.numpy(), minlength=len(law)) / points
        law[token] += mass * survival
    return law


@pytest.mark.parametrize("seed", range(4))
def test_the_induced_law_is_the_target(seed: int) -> None:
    log_p, log_mu = random_pair(seed, size=7, distance=2.0)
    assert np.abs(induced_law(log_p, log_mu, 20_000) - np.exp(exact(log_mu))).max() <= 1e-4


@pytest.mark.parametrize("epsilon", PAPER_BUDGETS)
def test_acceptance_inside_the_ball(epsilon: float) -> None:
    """Σ min(μ, p) = 1 − TV(μ, p) ≥ 1 − √(ε/2) (Pinsker)."""
    for seed in range(40):
        log_p, log_q = random_pair(seed, size=50, spread=seed / 10, distance=1 + seed / 5)
        log_mu = law_of(TrustRegion(epsilon), log_p, log_q)
        p, mu = np.exp(exact(log_p)), np.exp(exact(log_mu))
        rate = float(acceptance(log_p[None], log_mu[None]))
        assert rate == pytest.approx(1 - np.abs(mu - p).sum() / 2, abs=1e-12)
        assert rate >= 1 - (epsilon / 2) ** 0.5


def test_kl_divergence() -> None:
    assert float(
        kl_divergence(logs(0.5, 0.5, 0)[None], logs(0.25, 0.25, 0.5)[None])
    ) == pytest.approx(np.log(2))
    assert float(
        kl_divergence(logs(0.5, 0, 0.5)[None], logs(0.25, 0, 0.75)[None])
    ) == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(2 / 3))
    assert float(kl_divergence(logs(0.5, 0.5)[None], logs(1, 0)[None])) == float("inf")


def test_a_bound_on_acceptance_is_decided_by_the_ratio() -> None:
    log_p, log_mu = logs(0.8, 0.2)[None], logs(0.4, 0.6)[None]  # token 0 survives where u < 1/2
    below, above = torch.tensor([0.4999]).double(), torch.tensor([0.5001]).double()
    draft = torch.tensor([0])
    assert verify(log_p, log_mu, draft, below, below).tokens.tolist() == [0]
    assert verify(log_p, log_mu, draft, above, below).tokens.tolist() == [1]


def test_rows_are_decided_apart() -> None:
    log_p = torch.stack([logs(0.8, 0.2, 0), logs(0.8, 0.2, 0), logs(0.1, 0.9, 0)])
    log_mu = torch.stack([logs(0.4, 0.6, 0), logs(0, 0, 1), logs(0.1, 0.9, 0)])
    u = torch.tensor([0.9, 0.0, 0.99]).double()
    verified = verify(log_p, log_mu, torch.tensor([0, 0, 1]), u, u)
    assert verified.tokens.tolist() == [1, 2, 1]
    assert verified.accepted.tolist() == [False, False, True]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(3))
def test_sample_follows_its_law(seed: int, dtype: torch.dtype) -> None:
    log_p, _ = random_pair(seed, size=30, spread=1.5, dtype=dtype)
    tokens = sample(rows(log_p, SAMPLES), random_uniforms(seed, 1)[0])
    assert_drawn_from(tokens, np.exp(exact(log_p)))


def test_sample_is_the_inverse_of_the_cumulative_distribution() -> None:
    log_p, _ = random_pair(9, size=20)
    uniform = random_uniforms(0, 1, size=2000)[0]
    cumulative = np.cumsum(np.exp(exact(log_p)))
    expected = [
        next(i for i, total in enumerate(cumulative) if u < total) for u in uniform.tolist()
    ]
    assert sample(rows(log_p, 2000), uniform).tolist() == expected


def test_sample_ignores_an_offset() -> None:
    log_p, _ = random_pair(9, size=20)
    uniform = random_uniforms(0, 1, size=2000)[0]
    for offset in (-800.0, -3.0, 800.0):
        assert torch.equal(
            sample(rows(log_p + offset, 2000), uniform), sample(rows(log_p, 2000), uniform)
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("uniform", [0.0, 2**-53, 0.25, 0.5, 1 - 2**-52, NEXT_TO_ONE])
def test_sample_never_draws_a_token_without_mass(uniform: float, dtype: torch.dtype) -> None:
    laws = [
        (0, 1, 0),
        (0, 0, 1),
        (1, 0, 0),
        (0, 0.5, 0, 0.5, 0),
        (0.25, 0, 0, 0.75, 0, 0),
        (0, 0.1, 0.2, 0.7, 0),
    ]
    for law in laws:
        token = int(sample(logs(*law).to(dtype)[None], torch.tensor([uniform]).double()))
        assert law[token] > 0


def test_sample_at_both_ends_of_a_large_vocabulary() -> None:
    log_p, _ = random_pair(0, size=150_000, spread=4.0)
    log_p[:1000] = log_p[-1000:] = float("-inf")
    log_p[5000:6000] = float("-inf")
    uniform = torch.cat(
        [torch.tensor([0.0, NEXT_TO_ONE]).double(), random_uniforms(1, 1, size=62)[0]]
    )
    tokens = sample(rows(log_p, 64), uniform)
    assert bool((log_p[tokens] > float("-inf")).all())
    assert tokens[0] == 1000
    assert 140_000 < int(tokens[1]) < 149_000


def test_verify_never_emits_a_token_the_target_lacks() -> None:
    ends = torch.tensor([0.0, 2**-53, 0.5, NEXT_TO_ONE]).double()
    log_p, log_mu = logs(0, 0.5, 0.5, 0, 0), logs(0, 0, 0.3, 0.7, 0)
    for u_accept in ends:
        for draft in (1, 2):
            u = u_accept.expand(len(ends))
            tokens = verify(
                rows(log_p, 4), rows(log_mu, 4), torch.full((4,), draft), u, ends
            ).tokens
            assert set(tokens.tolist()) <= {2, 3}
