"""Each behavior's law against a token-by-token formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from orchestrator.policy import laws
from orchestrator.policy.laws import Law
from orchestrator.policy.spec import (
    Behavior,
    Fusion,
    Mixture,
    Student,
    TeacherInjection,
    Tempered,
    TrustRegion,
)
from tests import tiny
from tests.policy import reference
from tests.policy.reference import PAPER_BUDGETS, Array, exact, logs, random_pair

DTYPES = (torch.float32, torch.float64)
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}


def law_of(behavior: Behavior, log_p: Tensor, log_q: Tensor | None) -> Law:
    """The law at one prefix."""
    return laws.law(behavior, log_p[None], None if log_q is None else log_q[None])


def probabilities(law: Law) -> Array:
    assert not law.log_mu.isnan().any()
    return law.log_mu[0].double().exp().numpy()


def test_the_student_samples_itself() -> None:
    log_p, log_q = random_pair(0, size=20)
    assert torch.equal(law_of(Student(), log_p, log_q).log_mu[0], log_p)
    assert torch.equal(law_of(Student(), log_p, None).log_mu[0], log_p)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tau", [0.2, 0.8, 0.95, 1.0, 2.0])
def test_tempered_law(tau: float, dtype: torch.dtype) -> None:
    log_p = torch.cat([random_pair(1, size=60, spread=2.0)[0], logs(0)]).to(dtype)
    mu = probabilities(law_of(Tempered(tau), log_p, None))
    expected = reference.tempered(np.exp(exact(log_p)), tau)
    assert np.abs(mu - expected).max() <= TOLERANCE[dtype]
    assert mu.sum() == pytest.approx(1, abs=10 * TOLERANCE[dtype])
    assert mu[-1] == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tau", [0.2, 0.6, 1.0])
@pytest.mark.parametrize("top_k", [1, 15, 25, 50, 80, 200])
def test_skd_law(top_k: int, tau: float, dtype: torch.dtype) -> None:
    log_p, log_q = random_pair(top_k, size=80, spread=2.0, distance=2.0, dtype=dtype)
    assert_skd(log_p, log_q, top_k, tau)


def assert_skd(log_p: Tensor, log_q: Tensor, top_k: int, tau: float) -> None:
    p, q = np.exp(exact(log_p)), np.exp(exact(log_q))
    law = law_of(TeacherInjection(top_k, tau), log_p, log_q)
    mu = probabilities(law)
    assert np.abs(mu - reference.skd(p, q, top_k, tau)).max() <= TOLERANCE[log_p.dtype]
    assert mu.sum() == pytest.approx(1, abs=10 * TOLERANCE[log_p.dtype])
    kept = p[np.argsort(-q)[:top_k]][q[np.argsort(-q)[:top_k]] > 0].sum()
    assert float(law.measured["replaced"]) == pytest.approx(
        1 - kept, abs=10 * TOLERANCE[log_p.dtype]
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("top_k", [1, 2, 3, 4, 5])
def test_skd_law_on_partial_supports(top_k: int, dtype: torch.dtype) -> None:
    log_p, log_q = logs(0.5, 0.3, 0.2, 0, 0).to(dtype), logs(0, 0.1, 0.2, 0.7, 0).to(dtype)
    assert_skd(log_p, log_q, top_k, 0.6)


def test_skd_without_a_shared_token_is_the_teacher() -> None:
    law = law_of(TeacherInjection(2, 0.6), logs(0.5, 0.5, 0, 0), logs(0, 0, 0.3, 0.7))
    assert (
        np.abs(probabilities(law) - reference.tempered(np.array([0, 0, 0.3, 0.7]), 0.6)).max()
        <= 1e-15
    )
    assert float(law.measured["replaced"]) == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("epsilon", PAPER_BUDGETS)
def test_trust_region_law_and_what_it_measures(epsilon: float) -> None:
    log_p, log_q = random_pair(2, size=60)
    p, q = exact(log_p), exact(log_q)
    law = law_of(TrustRegion(epsilon), log_p, log_q)
    assert np.abs(probabilities(law) - np.exp(reference.trust_region(p, q, epsilon))).max() <= 1e-9
    assert float(law.measured["beta"]) == pytest.approx(
        reference.largest_beta(p, q, epsilon), rel=1e-8
    )
    assert float(law.measured["teacher_feasible"]) == 0


def test_trust_region_counts_feasible_teachers() -> None:
    near, far = random_pair(2, size=60, distance=0.01), random_pair(2, size=60)
    log_p, log_q = torch.stack([near[0], far[0]]), torch.stack([near[1], far[1]])
    assert laws.law(TrustRegion(0.01), log_p, log_q).measured["teacher_feasible"].tolist() == [1, 0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight", [0.01, 0.25, 0.9])
def test_mixture_law(weight: float, dtype: torch.dtype) -> None:
    log_p, log_q = random_pair(3, size=60, distance=2.0, dtype=dtype)
    law = law_of(Mixture(weight), log_p, log_q)
    p, q = np.exp(exact(log_p)), np.exp(exact(log_q))
    expected = (1 - weight) * p + weight * q
    assert np.abs(probabilities(law) - expected).max() <= TOLERANCE[dtype]
    kl = float(np.sum(expected * np.log(expected / p)))
    assert float(law.measured["behavior_kl"]) == pytest.approx(
        kl, rel=1e-3 if dtype == torch.float32 else 1e-9
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
def test_fusion_law(alpha: float, dtype: torch.dtype) -> None:
    log_p, log_q = random_pair(4, size=60, distance=2.0, dtype=dtype)
    p, q = np.exp(exact(log_p)), np.exp(exact(log_q))
    expected = p ** (1 - alpha) * q**alpha
    expected /= expected.sum()
    assert (
        np.abs(probabilities(law_of(Fusion(alpha), log_p, log_q)) - expected).max()
        <= TOLERANCE[dtype]
    )


def test_fusion_of_partial_supports() -> None:
    log_p, log_q = logs(0.5, 0.5, 0, 0), logs(0, 0.25, 0.75, 0)
    assert probabilities(law_of(Fusion(0.5), log_p, log_q)).tolist() == [0, 1, 0, 0]
    assert probabilities(law_of(Fusion(0.0), log_p, log_q)).tolist() == [0.5, 0.5, 0, 0]
    assert probabilities(law_of(Fusion(1.0), log_p, log_q)) == pytest.approx([0, 0.25, 0.75, 0])
    mixed = probabilities(law_of(Mixture(0.5), log_p, log_q))
    assert mixed == pytest.approx([0.25, 0.375, 0.375, 0])


@pytest.mark.parametrize("epsilon", PAPER_BUDGETS)
def test_the_trust_region_is_a_fusion_whose_weight_follows_from_the_budget(epsilon: float) -> None:
    log_p, log_q = random_pair(5, size=60)
    ball = law_of(TrustRegion(epsilon), log_p, log_q)
    fused = law_of(Fusion(float(ball.measured["beta"])), log_p, log_q)
    assert np.abs(probabilities(ball) - probabilities(fused)).max() <= 1e-9
    assert float(fused.measured["behavior_kl"]) == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.parametrize("behavior", tiny.BEHAVIORS, ids=str)
def test_a_law_measures_what_its_behavior_says(behavior: Behavior) -> None:
    log_p, log_q = random_pair(0, size=20)
    measured = law_of(behavior, log_p, log_q).measured
    assert tuple(measured) == behavior.measures
    assert {value.shape for value in measured.values()} <= {(1,)}


def test_a_behavior_without_a_law_is_refused() -> None:
    with pytest.raises(TypeError, match="no law is registered for int"):
        laws.law(3, torch.zeros(1, 2), None)
