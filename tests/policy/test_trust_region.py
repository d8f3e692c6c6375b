"""The trust-region solver against a convex solver, bisection in float64 and 50-digit arithmetic."""

from __future__ import annotations

import itertools
from typing import Any, cast

import cvxpy as cp
import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from orchestrator.policy.laws import Solution, solve
from orchestrator.policy.vocabulary import TokenSpace
from tests.policy import reference
from tests.policy.reference import PAPER_BUDGETS, Array, exact, logs, random_logits, random_pair

# The last budget before the student takes over, for ε0 = 0.001 and K = 50.
SMALLEST_BUDGET = 0.001 / 50
CONVEX_TOLERANCES = {"tol_gap_abs": 1e-9, "tol_gap_rel": 1e-9, "tol_feas": 1e-9}
DTYPES = (torch.float32, torch.float64)
# (vocabulary, spread of the student's logits, distance of the teacher's)
SHAPES = {
    "two tokens": (2, 1.0, 1.0),
    "flat": (50, 0.0, 0.5),
    "nearly equal": (1000, 2.0, 0.05),
    "almost identical": (1000, 2.0, 1e-3),
    "far": (1000, 3.0, 4.0),
    "very peaked": (1000, 25.0, 5.0),
    "log-ratios beyond 100": (200, 50.0, 50.0),
    "large": (20_000, 3.0, 1.0),
    "large and peaked": (20_000, 10.0, 3.0),
}


def solve_one(log_p: Tensor, log_q: Tensor, epsilon: float) -> Solution:
    """`solve` for one prefix; no value it returns may be NaN."""
    solution = solve(log_p[None], log_q[None], epsilon)
    for value in (solution.log_mu, solution.beta, solution.kl):
        assert not value.isnan().any()
    assert solution.log_mu.dtype == log_p.dtype
    return solution


def convex_optimum(log_p: Array, log_q: Array, epsilon: float) -> tuple[Array, float]:
    """argmin and min of KL(μ‖q) subject to KL(μ‖p) ≤ ε on the simplex (paper, Eq. 1), where both
    have mass.
    """
    shared = (log_p > -np.inf) & (log_q > -np.inf)
    mu = cp.Variable(int(shared.sum()))
    negative_entropy = -cp.sum(cp.entr(mu))
    constraints: list[Any] = [negative_entropy - mu @ log_p[shared] <= epsilon, cp.sum(mu) == 1]
    problem = cp.Problem(cp.Minimize(negative_entropy - mu @ log_q[shared]), constraints)
    value = cast(Any, problem).solve(solver=cp.CLARABEL, **CONVEX_TOLERANCES)
    full = np.zeros(log_p.shape)
    full[shared] = cast(Any, mu.value)
    return full, float(value)


def assert_convex_optimum(log_p: Tensor, log_q: Tensor, epsilon: float) -> None:
    """The same μ and the same KL(μ‖q) as the convex solver's."""
    p, q = exact(log_p), exact(log_q)
    mu = exact(solve_one(log_p, log_q, epsilon).log_mu[0])
    best, value = convex_optimum(p, q, epsilon)
    assert abs(reference.kl(mu, q) - value) <= 1e-6
    assert np.abs(np.exp(mu) - best).max() <= 1e-5


@pytest.mark.parametrize("epsilon", PAPER_BUDGETS)
@pytest.mark.parametrize("seed", range(6))
def test_agrees_with_a_convex_solver(seed: int, epsilon: float) -> None:
    assert_convex_optimum(
        *random_pair(seed, size=2 + 2 * seed, spread=1.5, distance=1.0 + seed / 2), epsilon
    )


@pytest.mark.parametrize("epsilon", PAPER_BUDGETS)
def test_agrees_with_a_convex_solver_when_the_teacher_is_feasible(epsilon: float) -> None:
    assert_convex_optimum(*random_pair(7, size=8, distance=0.01), epsilon)


@pytest.mark.parametrize("epsilon", PAPER_BUDGETS)
def test_agrees_with_a_convex_solver_on_partial_supports(epsilon: float) -> None:
    log_p = logs(0.3, 0.4, 0.1, 0.1995, 0.0005, 0.0)
    log_q = logs(0.1, 0.2, 0.3, 0.3, 0.0, 0.1)
    assert_convex_optimum(log_p, log_q, epsilon)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_never_exceeds_the_budget(shape: str, dtype: torch.dtype) -> None:
    for seed in range(3):
        log_p, log_q = random_pair(seed, *SHAPES[shape], dtype=dtype)
        for epsilon in (SMALLEST_BUDGET, *PAPER_BUDGETS):
            solution = solve_one(log_p, log_q, epsilon)
            spent = reference.kl(exact(solution.log_mu[0]), exact(log_p))
            assert spent <= epsilon * (1 + 1e-4) + 1e-6
            assert float(solution.kl) == pytest.approx(spent, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("epsilon", [SMALLEST_BUDGET, *PAPER_BUDGETS])
def test_holds_the_budget_from_logits_of_qwen3s_size(epsilon: float) -> None:
    space = TokenSpace(valid=151_669, student_eos=151_643, teacher_eos=151_645)
    student, teacher = (x.float() for x in random_logits(0, 151_936, spread=3.0, distance=1.0))
    log_p, log_q = space.student_log_prob(student), space.teacher_log_prob(teacher)
    spent = reference.kl(exact(solve_one(log_p, log_q, epsilon).log_mu[0]), exact(log_p))
    assert spent <= epsilon * (1 + 1e-4) + 1e-6


def test_float64_holds_the_budget_for_log_ratios_of_hundreds() -> None:
    for seed in range(3):
        log_p, log_q = random_pair(seed, size=200, spread=200.0, distance=200.0)
        for epsilon in (SMALLEST_BUDGET, *PAPER_BUDGETS):
            mu = exact(solve_one(log_p, log_q, epsilon).log_mu[0])
            assert epsilon * (1 - 1e-8) <= reference.kl(mu, exact(log_p)) <= epsilon * (1 + 1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_no_larger_beta_is_feasible_in_float64(shape: str) -> None:
    for seed in range(3):
        log_p, log_q = random_pair(seed, *SHAPES[shape])
        p, q = exact(log_p), exact(log_q)
        for epsilon in (SMALLEST_BUDGET, *PAPER_BUDGETS):
            beta = float(solve_one(log_p, log_q, epsilon).beta)
            assert beta == pytest.approx(reference.largest_beta(p, q, epsilon), rel=1e-8)
            assert beta == 1 or reference.kl(reference.blend(p, q, beta * (1 + 1e-8)), p) > epsilon


@pytest.mark.parametrize("shape", SHAPES)
def test_float32_spends_the_budget(shape: str) -> None:
    for seed in range(3):
        log_p, log_q = random_pair(seed, *SHAPES[shape], dtype=torch.float32)
        p, q = exact(log_p), exact(log_q)
        for epsilon in (SMALLEST_BUDGET, *PAPER_BUDGETS):
            solution = solve_one(log_p, log_q, epsilon)
            best = reference.kl(reference.trust_region(p, q, epsilon), p)
            assert reference.kl(exact(solution.log_mu[0]), p) >= best * (1 - 2e-4) - 1e-6


def precise_kl(log_p: Tensor, log_q: Tensor, beta: Any) -> Any:
    """KL(μ_β‖p) from its definition, in the working precision of mpmath."""
    p = [mpmath.exp(x) for x in log_p.tolist()]
    q = [mpmath.exp(x) for x in log_q.tolist()]
    p, q = ([x / mpmath.fsum(law) for x in law] for law in (p, q))
    weight = [a ** (1 - beta) * b**beta for a, b in zip(p, q, strict=True)]
    mu = [w / mpmath.fsum(weight) for w in weight]
    return mpmath.fsum(m * mpmath.log(m / a) for m, a in zip(mu, p, strict=True))


@pytest.mark.parametrize("epsilon", [SMALLEST_BUDGET, *PAPER_BUDGETS])
def test_beta_is_the_root_in_50_digits(epsilon: float) -> None:
    log_p, log_q = random_pair(11, size=6, distance=2.0)
    beta = float(solve_one(log_p, log_q, epsilon).beta)
    with mpmath.workdps(50):
        assert precise_kl(log_p, log_q, mpmath.mpf(beta)) <= mpmath.mpf(epsilon) * (
            1 + mpmath.mpf("1e-12")
        )
        assert precise_kl(log_p, log_q, mpmath.mpf(beta) * (1 + mpmath.mpf("1e-9"))) > epsilon


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_budget_the_student_is_returned_exactly(dtype: torch.dtype) -> None:
    for shape in SHAPES.values():
        log_p, log_q = random_pair(3, *shape, dtype=dtype)
        solution = solve_one(log_p, log_q, 0.0)
        assert float(solution.beta) == 0
        assert float(solution.kl) == pytest.approx(0, abs=1e-6)
        assert torch.equal(solution.log_mu[0], log_p)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_feasible_teacher_is_returned_exactly(dtype: torch.dtype) -> None:
    log_p, log_q = random_pair(5, size=300, distance=0.05, dtype=dtype)
    cost = reference.kl(exact(log_q), exact(log_p))
    solution = solve_one(log_p, log_q, 1.01 * cost)
    assert torch.equal(solution.log_mu[0], log_q)
    assert float(solution.beta) == 1
    assert bool(solution.teacher_feasible)
    assert float(solution.kl) == pytest.approx(cost, rel=1e-2)
    assert not solve_one(log_p, log_q, 0.99 * cost).teacher_feasible


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("epsilon", [0.0, *PAPER_BUDGETS])
def test_identical_policies(epsilon: float, dtype: torch.dtype) -> None:
    log_p = random_pair(1, size=100, spread=5.0, dtype=dtype)[0]
    solution = solve_one(log_p, log_p.clone(), epsilon)
    assert torch.equal(solution.log_mu[0], log_p)
    assert float(solution.kl) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("epsilon", [0.0, *PAPER_BUDGETS])
def test_a_student_with_one_token_stays_there(epsilon: float) -> None:
    log_p = logs(0, 1, 0, 0)
    for log_q in (logs(0.2, 0.1, 0.3, 0.4), logs(0, 1, 0, 0), logs(0.5, 0.5, 0, 0)):
        mu = solve_one(log_p, log_q, epsilon).log_mu[0]
        assert torch.equal(mu.exp(), log_p.exp())


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_teacher_with_one_token_costs_that_tokens_surprise(dtype: torch.dtype) -> None:
    log_p, log_q = logs(0.002, 0.99, 0.008).to(dtype), logs(0, 1, 0).to(dtype)
    surprise = -float(np.log(0.99))  # KL(q‖p) ≈ 0.01005
    assert torch.equal(solve_one(log_p, log_q, surprise * 1.001).log_mu[0], log_q)
    assert torch.allclose(
        solve_one(log_p, log_q, surprise * 0.999).log_mu[0], log_p, rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outside", [0.0011, 0.01, 0.5])
def test_a_jump_beyond_the_budget_leaves_the_student(outside: float, dtype: torch.dtype) -> None:
    log_p = logs(outside, (1 - outside) * 0.7, (1 - outside) * 0.3).to(dtype)
    log_q = logs(0, 0.2, 0.8).to(dtype)
    solution = solve_one(log_p, log_q, 0.001)  # −log p(supp q) ≥ 0.0011
    assert float(solution.beta) == 0
    assert float(solution.kl) == pytest.approx(0, abs=1e-6)
    assert torch.allclose(solution.log_mu[0], log_p, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outside", [1e-12, 1e-6, 1e-4, 9e-4])
def test_a_jump_inside_the_budget_leaves_room(outside: float, dtype: torch.dtype) -> None:
    log_p = logs(outside, (1 - outside) * 0.7, (1 - outside) * 0.3).to(dtype)
    log_q = logs(0, 0.2, 0.8).to(dtype)
    p, q = exact(log_p), exact(log_q)
    solution = solve_one(log_p, log_q, 0.001)
    mu = exact(solution.log_mu[0])
    assert mu[0] == -np.inf
    assert float(solution.beta) == pytest.approx(
        reference.largest_beta(p, q, 0.001), rel=1e-3 if dtype == torch.float32 else 1e-7
    )
    assert reference.kl(mu, p) <= 0.001 * (1 + 1e-4) + 1e-6


@pytest.mark.parametrize("epsilon", PAPER_BUDGETS)
def test_tokens_the_student_lacks_stay_impossible(epsilon: float) -> None:
    log_p, log_q = logs(0.6, 0.4, 0.0, 0.0), logs(0.1, 0.2, 0.7, 0.0)
    solution = solve_one(log_p, log_q, epsilon)
    expected = reference.trust_region(exact(log_p), exact(log_q), epsilon)
    assert np.abs(np.exp(exact(solution.log_mu[0])) - np.exp(expected)).max() <= 1e-9
    assert not solution.teacher_feasible


def test_a_teacher_close_inside_but_with_mass_outside_is_restricted() -> None:
    log_p, log_q = logs(0.6, 0.4, 0.0), logs(0.3, 0.2, 0.5)
    solution = solve_one(log_p, log_q, 0.01)
    assert torch.allclose(
        solution.log_mu[0].exp(), torch.tensor([0.6, 0.4, 0.0], dtype=torch.float64)
    )
    assert not solution.teacher_feasible  # KL(q‖p) = ∞


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("epsilon", [0.0, *PAPER_BUDGETS])
def test_disjoint_supports_leave_the_student(epsilon: float, dtype: torch.dtype) -> None:
    log_p, log_q = logs(0.3, 0.7, 0, 0).to(dtype), logs(0, 0, 0.5, 0.5).to(dtype)
    solution = solve_one(log_p, log_q, epsilon)
    assert float(solution.beta) == 0
    assert torch.allclose(solution.log_mu[0].exp(), log_p.exp(), rtol=0, atol=1e-6)
    assert not solution.teacher_feasible


@pytest.mark.parametrize("shape", ["nearly equal", "far", "very peaked"])
def test_more_budget_means_more_teacher(shape: str) -> None:
    log_p, log_q = random_pair(2, *SHAPES[shape])
    solutions = [solve_one(log_p, log_q, float(epsilon)) for epsilon in np.geomspace(1e-5, 2.0, 40)]
    betas = [float(s.beta) for s in solutions]
    distances = [reference.kl(exact(s.log_mu[0]), exact(log_q)) for s in solutions]
    assert betas == sorted(betas)
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(distances))


@pytest.mark.parametrize("epsilon", [1e-6, 1e-8, 1e-10])
def test_small_budget_law(epsilon: float) -> None:
    """β*(ε) = √(2ε/Var_p[r]) + O(ε) (paper, Appendix "Small-Budget Efficiency of Trust Regions")."""
    log_p, log_q = random_pair(4, size=200)
    p, r = np.exp(exact(log_p)), (log_q - log_p).numpy()
    law = np.sqrt(2 * epsilon / (p @ (r - p @ r) ** 2))
    assert abs(float(solve_one(log_p, log_q, epsilon).beta) - law) <= 5 * epsilon + 1e-8 * law


def test_rows_do_not_influence_each_other() -> None:
    pairs = [random_pair(seed, size=40, spread=3.0, distance=0.01 + seed / 2) for seed in range(6)]
    pairs.append((logs(0.5, 0.5, *[0] * 38), logs(0, 0.5, 0.5, *[0] * 37)))
    together = solve(torch.stack([p for p, _ in pairs]), torch.stack([q for _, q in pairs]), 0.01)
    for row, (log_p, log_q) in enumerate(pairs):
        alone = solve_one(log_p, log_q, 0.01)
        assert float(together.beta[row]) == pytest.approx(float(alone.beta), rel=1e-12)
        assert torch.allclose(together.log_mu[row].exp(), alone.log_mu[0].exp(), rtol=0, atol=1e-12)
