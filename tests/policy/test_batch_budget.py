"""One budget for a whole batch: why its β is the same at every prefix, its law, and how β is found."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import optimize

from orchestrator.policy import laws
from orchestrator.policy.laws import MOST_PASSES, TOLERANCE, Pass, next_beta
from orchestrator.policy.spec import BatchBudget, TrustRegion
from tests.policy import reference
from tests.policy.reference import PAPER_BUDGETS, Array, exact, logs, random_pair

PREFIXES, SIZE = 12, 30


def world(distances: tuple[float, ...] = (0.2, 0.5, 1.0, 2.0)) -> list[tuple[Array, Array]]:
    """log p and log q of prefixes that are held fixed; the teacher is near at some, far at others."""
    pairs = []
    for prefix in range(PREFIXES):
        distance = distances[prefix % len(distances)]
        log_p, log_q = random_pair(prefix, SIZE, spread=1.5, distance=distance)
        pairs.append((exact(log_p), exact(log_q)))
    return pairs


def means(pairs: list[tuple[Array, Array]], betas: Array) -> tuple[float, float]:
    """Mean KL(μ‖p) and mean KL(μ‖q) with a β of its own at each prefix."""
    spent, left = [], []
    for (log_p, log_q), beta in zip(pairs, betas, strict=True):
        log_mu = reference.blend(log_p, log_q, beta)
        spent.append(reference.kl(log_mu, log_p))
        left.append(reference.kl(log_mu, log_q))
    return float(np.mean(spent)), float(np.mean(left))


def constant_beta(pairs: list[tuple[Array, Array]], budget: float) -> float:
    """The one β that spends a mean KL(μ‖p), by bisection."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        spent, _ = means(pairs, np.full(len(pairs), middle))
        low, high = (middle, high) if spent <= budget else (low, middle)
    return low


# --- theory ---


@pytest.mark.parametrize("budget", [0.005, 0.05, 0.2])
def test_one_beta_everywhere_is_the_best_use_of_a_mean_budget(budget: float) -> None:
    """SLSQP may give each prefix a β of its own, and ends at equal ones, from unequal starts."""
    pairs = world()
    one = np.full(PREFIXES, constant_beta(pairs, budget))
    start = one * np.linspace(0.5, 1.5, PREFIXES)
    found = optimize.minimize(
        lambda betas: means(pairs, betas)[1],
        np.clip(start, 0.01, 0.99),
        method="SLSQP",
        bounds=[(1e-4, 1.0)] * PREFIXES,
        constraints={"type": "ineq", "fun": lambda betas: budget - means(pairs, betas)[0]},
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    assert found.success, found.message
    assert found.x == pytest.approx(one, rel=2e-3)
    assert means(pairs, one)[1] <= found.fun + 1e-9


@pytest.mark.parametrize("epsilon", [0.005, 0.05, 0.5])
def test_a_budget_at_each_prefix_buys_less_than_the_same_mean_budget(epsilon: float) -> None:
    """TRB's β, and one β that spends the mean KL that TRB spent."""
    pairs = world()
    trb = np.array([reference.largest_beta(log_p, log_q, epsilon) for log_p, log_q in pairs])
    spent, left = means(pairs, trb)
    one = constant_beta(pairs, spent)
    _, before = means(pairs, np.full(PREFIXES, 1e-12))  # of the student
    spent_by_one, left_by_one = means(pairs, np.full(PREFIXES, one))
    assert spent_by_one == pytest.approx(spent, rel=1e-9)
    assert 0.3 < (before - left) / (before - left_by_one) < 0.95
    assert trb.min() < one < trb.max()


# --- the law, and its slope ---


def law_of(behavior: BatchBudget, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> laws.Law:
    log_p, log_q = (torch.stack([pair[model] for pair in pairs]) for model in (0, 1))
    return laws.law(behavior, log_p, log_q)


@pytest.mark.parametrize("beta", [1e-4, 0.05, 0.5, 0.9, 1.0])
def test_law_and_slope(beta: float) -> None:
    """The slope beside a central difference of KL in float64."""
    pairs = [random_pair(seed, 60, distance=1.5) for seed in range(4)]
    pairs.append((torch.cat([logs(0.5, 0.5, 0, 0), logs(*[0.0] * 56)]), pairs[0][1]))
    pairs.append((pairs[0][0], torch.cat([logs(0.2, 0.8, 0, 0), logs(*[0.0] * 56)])))
    law = law_of(BatchBudget(0.1, beta), pairs)
    for row, (log_p, log_q) in enumerate(pairs):
        p, q = exact(log_p), exact(log_q)
        log_mu = reference.blend(p, q, beta)
        if beta == 1 and row != 4:  # there the teacher has mass where the student has none
            log_mu = q
        assert np.abs(law.log_mu[row].exp().numpy() - np.exp(log_mu)).max() <= 1e-12
        kl = float(law.measured["behavior_kl"][row])
        assert kl == pytest.approx(reference.kl(log_mu, p), rel=1e-8, abs=1e-14)
        h = beta * 1e-2
        ends = [reference.kl(reference.blend(p, q, beta + side * h), p) for side in (-1, 1)]
        slope = float(law.measured["kl_slope"][row])
        assert slope == pytest.approx((ends[1] - ends[0]) / (2 * h), rel=1e-4, abs=1e-9)
        assert float(law.measured["beta"][row]) == beta


@pytest.mark.parametrize("beta", [0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_models_without_a_common_id_leave_the_student(beta: float, dtype: torch.dtype) -> None:
    apart = logs(0.5, 0.5, 0, 0).to(dtype), logs(0, 0, 0.5, 0.5).to(dtype)
    near = logs(0.5, 0.5, 0, 0).to(dtype), logs(0.2, 0.8, 0, 0).to(dtype)
    law = law_of(BatchBudget(0.1, beta), [apart, near])
    assert torch.equal(law.log_mu[0], apart[0])
    assert not law.log_mu.isnan().any()
    for values in law.measured.values():
        assert bool(values.isfinite().all())
    assert law.measured["behavior_kl"].tolist()[0] == law.measured["kl_slope"].tolist()[0] == 0


# --- how β is found ---


def solve(
    measured: Callable[[float], tuple[float, float]], epsilon: float, first: float = 0.5
) -> list[Pass]:
    """The passes of a batch whose mean KL and slope at a β are given, until one fits."""
    passes = [Pass(first, *measured(first))]
    while not passes[-1].fits(epsilon) and len(passes) < 60:
        beta = next_beta(passes, epsilon)
        assert 0 < beta <= 1
        passes.append(Pass(beta, *measured(beta)))
    return passes


def of_prefixes(pairs: list[tuple[Array, Array]]) -> Callable[[float], tuple[float, float]]:
    """Mean KL and slope by the law itself, in float32 as samplers compute it."""
    log_p, log_q = (torch.tensor(np.stack([pair[k] for pair in pairs])).float() for k in (0, 1))

    def measured(beta: float) -> tuple[float, float]:
        values = laws.law(BatchBudget(1.0, beta), log_p, log_q).measured
        return float(values["behavior_kl"].mean()), float(values["kl_slope"].mean())

    return measured


@pytest.mark.parametrize("epsilon", [1e-5, *PAPER_BUDGETS, 0.2])
def test_few_passes_find_the_beta_of_a_fixed_batch(epsilon: float) -> None:
    pairs = world()
    passes = solve(of_prefixes(pairs), epsilon)
    assert len(passes) <= MOST_PASSES
    spent, _ = means(pairs, np.full(PREFIXES, passes[-1].beta))
    assert spent == pytest.approx(epsilon, rel=1.1 * TOLERANCE)


def test_a_falling_budget_needs_one_pass_a_step() -> None:
    """With prefixes held fixed the running estimate alone stays within 2 % of a linear fall."""
    measured, beta = of_prefixes(world()), constant_beta(world(), 0.05)
    last = Pass(beta, *measured(beta))
    for step in range(1, 20):
        epsilon = 0.05 * (1 - step / 24)
        beta = next_beta([last], epsilon)
        last = Pass(beta, *measured(beta))
        assert last.fits(epsilon), (step, last)


def test_a_teacher_inside_of_the_budget_is_taken_whole() -> None:
    pairs = world()
    reached, _ = means(pairs, np.full(PREFIXES, 1.0))
    for epsilon in (reached * 1.5, 100.0, 1e9):
        assert solve(of_prefixes(pairs), epsilon)[-1].beta == 1
    same = [(log_p, log_p) for log_p, _ in pairs]
    passes = solve(of_prefixes(same), 1e-3)
    assert [each.beta for each in passes] == [0.5, 1.0]
    assert next_beta(passes[-1:], 1e-4) == 1.0, "and stays"


def test_a_budget_below_the_cost_of_excluded_ids_shrinks_beta() -> None:
    """Any β > 0 costs log 2 here. Each pass takes a smaller one, and none is zero or NaN."""
    excluded = [(exact(logs(0.5, 0.5)), exact(logs(0, 1.0)))]
    passes = solve(of_prefixes(excluded), 0.05)
    betas = [each.beta for each in passes]
    assert betas == sorted(betas, reverse=True)
    assert 0 < betas[-1] < 1e-3
    assert laws.closest(passes, 0.05).kl == pytest.approx(math.log(2))


def test_jumps_of_a_batch_stay_inside_of_a_bracket() -> None:
    """Other tokens lead to other prefixes: the mean KL jumps, and here skips the budget."""

    def jumping(beta: float) -> tuple[float, float]:
        return (0.5 * beta**2 + (0.05 if beta > 0.4 else 0.0)), beta

    passes = solve(jumping, 0.1)
    assert not passes[-1].fits(0.1)
    assert all(0.3 < each.beta <= 0.5 for each in passes[1:])
    assert passes[-1].beta == pytest.approx(0.4, abs=1e-3)


def test_a_budget_at_each_prefix_spends_at_most_that_mean() -> None:
    """Why `epsilon0` of a comparison is TRB's measured mean KL and not its ε."""
    pairs = [random_pair(seed, 40, distance=distance) for seed, distance in enumerate((0.1, 2.0))]
    log_p, log_q = (torch.stack([pair[model] for pair in pairs]) for model in (0, 1))
    spent = laws.law(TrustRegion(0.5), log_p, log_q).measured["behavior_kl"]
    assert float(spent.mean()) < 0.3
    assert float(spent.max()) == pytest.approx(0.5, rel=1e-3)
