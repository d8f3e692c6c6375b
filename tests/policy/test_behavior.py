"""Schedules at their corners, and each behavior's law against a token-by-token formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from orchestrator.policy.behavior import (
    Behavior,
    Law,
    Student,
    TeacherInjection,
    Tempered,
    TrustRegion,
    annealed_budget,
    annealed_temperature,
    annealed_veto,
    behavior_at,
)
from tests.policy import reference
from tests.policy.reference import PAPER_BUDGETS, Array, exact, logs, random_pair

DTYPES = (torch.float32, torch.float64)
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}


def law_of(behavior: Behavior, log_p: Tensor, log_q: Tensor | None) -> Law:
    """The law at one prefix."""
    return behavior.law(log_p[None], None if log_q is None else log_q[None])


def probabilities(law: Law) -> Array:
    assert not law.log_mu.isnan().any()
    return law.log_mu[0].double().exp().numpy()


@pytest.mark.parametrize("epsilon0", PAPER_BUDGETS)
@pytest.mark.parametrize("horizon", [15, 25, 50])
def test_budget_schedule(epsilon0: float, horizon: int) -> None:
    """ε_k = ε0(1 − k/K), then exactly zero (paper, Section "Annealed Warmup")."""
    assert annealed_budget(epsilon0, horizon, 0) == epsilon0
    for step in range(horizon):
        expected = epsilon0 * (horizon - step) / horizon
        assert annealed_budget(epsilon0, horizon, step) == pytest.approx(expected, rel=1e-12)
    assert annealed_budget(epsilon0, horizon, horizon - 1) > 0
    assert [annealed_budget(epsilon0, horizon, step) for step in (horizon, horizon + 1, 399)] == [0, 0, 0]


def test_budget_halves_in_the_middle() -> None:
    assert annealed_budget(0.05, 50, 25) == 0.025


@pytest.mark.parametrize("tau0", [0.8, 0.9, 0.95])
@pytest.mark.parametrize("horizon", [15, 25])
def test_temperature_schedule(tau0: float, horizon: int) -> None:
    assert annealed_temperature(tau0, horizon, 0) == tau0
    for step in range(horizon):
        left = (horizon - step) / horizon
        assert annealed_temperature(tau0, horizon, step) == pytest.approx(left * tau0 + (1 - left), rel=1e-12)
    assert annealed_temperature(tau0, horizon, horizon - 1) < 1
    assert [annealed_temperature(tau0, horizon, step) for step in (horizon, horizon + 1, 399)] == [1, 1, 1]


@pytest.mark.parametrize("beta_start", [0.2, 0.4, 0.6, 0.8])
def test_veto_schedule(beta_start: float) -> None:
    """β_k = β_start(1 − k/N) over the whole run, never longer than it."""
    assert annealed_veto(beta_start, 400, 0) == beta_start
    assert annealed_veto(beta_start, 400, 200) == beta_start / 2
    assert annealed_veto(beta_start, 400, 399) == pytest.approx(beta_start / 400, rel=1e-12)
    assert annealed_veto(beta_start, 400, 400) == 0


@pytest.mark.parametrize("method", [None, "vanilla", "veto", "sft_warmup"])
@pytest.mark.parametrize("step", [0, 1, 15, 399])
def test_methods_that_roll_out_the_student(method: str | None, step: int) -> None:
    knobs: dict[str | None, dict[str, Any]] = {"veto": {"beta_start": 0.8}, "sft_warmup": {"K": 25}}
    behavior = behavior_at(method, knobs.get(method, {}), step)
    assert behavior == Student()
    assert not behavior.needs_teacher


def test_trust_region_by_step() -> None:
    knobs = {"epsilon0": 0.02, "K": 25}
    assert behavior_at("trust_region", knobs, 0) == TrustRegion(0.02)
    for step in range(25):
        behavior = behavior_at("trust_region", knobs, step)
        assert isinstance(behavior, TrustRegion)
        assert behavior.epsilon == pytest.approx(0.02 * (25 - step) / 25, rel=1e-12)
        assert behavior.needs_teacher
    assert [behavior_at("trust_region", knobs, step) for step in (25, 26, 399)] == [Student()] * 3
    assert behavior_at("trust_region", {"epsilon0": 0.0, "K": 25}, 0) == Student()


def test_fixed_epsilon_by_step() -> None:
    assert [behavior_at("fixed_epsilon", {"epsilon": 0.01}, k) for k in (0, 24, 25, 399)] == [TrustRegion(0.01)] * 4
    assert behavior_at("fixed_epsilon", {"epsilon": 0.0}, 0) == Student()


def test_skd_by_step() -> None:
    knobs = {"K": 15, "tau_T": 0.2}
    assert [behavior_at("skd", knobs, k) for k in (0, 14, 15, 399)] == [TeacherInjection(15, 0.2)] * 4
    assert behavior_at("skd", knobs, 0).needs_teacher


def test_temperature_by_step() -> None:
    knobs = {"tau0": 0.8, "E": 15}
    assert behavior_at("temperature_warmup", knobs, 0) == Tempered(0.8)
    behavior = behavior_at("temperature_warmup", knobs, 14)
    assert isinstance(behavior, Tempered)
    assert behavior.tau == pytest.approx(0.8 + 0.2 * 14 / 15, rel=1e-12)
    assert not behavior.needs_teacher
    assert [behavior_at("temperature_warmup", knobs, k) for k in (15, 16, 399)] == [Student()] * 3


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
    assert float(law.measured["replaced"]) == pytest.approx(1 - kept, abs=10 * TOLERANCE[log_p.dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("top_k", [1, 2, 3, 4, 5])
def test_skd_law_on_partial_supports(top_k: int, dtype: torch.dtype) -> None:
    log_p, log_q = logs(0.5, 0.3, 0.2, 0, 0).to(dtype), logs(0, 0.1, 0.2, 0.7, 0).to(dtype)
    assert_skd(log_p, log_q, top_k, 0.6)


def test_skd_without_a_shared_token_is_the_teacher() -> None:
    law = law_of(TeacherInjection(2, 0.6), logs(0.5, 0.5, 0, 0), logs(0, 0, 0.3, 0.7))
    assert np.abs(probabilities(law) - reference.tempered(np.array([0, 0, 0.3, 0.7]), 0.6)).max() <= 1e-15
    assert float(law.measured["replaced"]) == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("epsilon", PAPER_BUDGETS)
def test_trust_region_law_and_what_it_measures(epsilon: float) -> None:
    log_p, log_q = random_pair(2, size=60)
    p, q = exact(log_p), exact(log_q)
    law = law_of(TrustRegion(epsilon), log_p, log_q)
    assert np.abs(probabilities(law) - np.exp(reference.trust_region(p, q, epsilon))).max() <= 1e-9
    assert float(law.measured["beta"]) == pytest.approx(reference.largest_beta(p, q, epsilon), rel=1e-8)
    assert float(law.measured["teacher_feasible"]) == 0


def test_trust_region_counts_feasible_teachers() -> None:
    near, far = random_pair(2, size=60, distance=0.01), random_pair(2, size=60)
    log_p, log_q = torch.stack([near[0], far[0]]), torch.stack([near[1], far[1]])
    assert TrustRegion(0.01).law(log_p, log_q).measured["teacher_feasible"].tolist() == [1, 0]
