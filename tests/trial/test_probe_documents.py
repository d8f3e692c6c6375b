"""The solved prefix that the probe writes: a real one, chosen as said, solved as the definitions
say.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch

from orchestrator.engines.common.causal import CausalModel
from orchestrator.engines.torch.decoding import Decoding, generate
from orchestrator.policy.spec import Student
from orchestrator.trial import probe
from orchestrator.trial.probe import Visited, solved_example
from tests import tiny
from tests.policy import reference

BUDGETS = [0.01, 0.05, 100.0]


class Digits:
    """A tokenizer of ids in brackets."""

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return "".join(f"<{i}>" for i in ids)


@pytest.fixture(scope="module")
def models() -> tuple[CausalModel, CausalModel]:
    return tiny.student(), tiny.teacher()


@pytest.fixture(scope="module")
def visited(models: tuple[CausalModel, CausalModel]) -> list[Visited]:
    rollouts = generate(models[0], None, tiny.requests(1), Student(), Decoding(12))
    return [
        (request.prompt_ids, rollouts.response(row))
        for row, request in enumerate(rollouts.requests)
    ]


def solve(
    models: tuple[CausalModel, CausalModel],
    visited: list[Visited],
    budgets: list[float] = BUDGETS,
) -> dict[str, Any]:
    return solved_example(*models, visited, cast(Any, Digits()), budgets)


def prefixes(
    models: tuple[CausalModel, CausalModel], visited: list[Visited]
) -> list[tuple[str, str, Any, Any]]:
    """(prompt, prefix, log p, log q) of all visited prefixes in order, from plain forward passes."""
    show = Digits().decode
    found = []
    for prompt, response in visited:
        with torch.no_grad():
            laws = [tiny.visited(model, prompt, response) for model in models]
        for position, (log_p, log_q) in enumerate(zip(*laws, strict=True)):
            found.append(
                (
                    show([*prompt], False),
                    show(response[:position], False),
                    log_p.numpy(),
                    log_q.numpy(),
                )
            )
    return found


def expected_prefix(
    models: tuple[CausalModel, CausalModel], visited: list[Visited], budget: float = BUDGETS[0]
) -> tuple[Any, ...] | None:
    """The first prefix with KL(q‖p) above the median and the budget, a student torn among > 3
    tokens, the teacher's favourite in.
    """
    found = prefixes(models, visited)
    kls = [reference.kl(log_q, log_p) for _, _, log_p, log_q in found]
    median = sorted(kls)[(len(kls) - 1) // 2]
    for place, kl in zip(found, kls, strict=True):
        plausible = np.exp(place[2]) > 0.05
        if kl > max(median, budget) and plausible.sum() > 3 and plausible[place[3].argmax()]:
            return place
    return None


def test_the_prefix_is_the_first_telling_one(
    models: tuple[CausalModel, CausalModel], visited: list[Visited], monkeypatch: pytest.MonkeyPatch
) -> None:
    example, expected = solve(models, visited), expected_prefix(models, visited)
    assert expected is not None
    assert (example["prompt"], example["prefix"]) == expected[:2]
    monkeypatch.setattr(probe, "HEAD_CHUNK", 5)
    again = solve(models, visited)
    assert (again["prompt"], again["prefix"]) == expected[:2]


def test_the_smallest_budget_binds_at_the_prefix(
    models: tuple[CausalModel, CausalModel], visited: list[Visited]
) -> None:
    first = solve(models, visited)
    budget = first["kl_teacher"] * 1.01
    example = solve(models, visited, [100.0, budget])
    expected = expected_prefix(models, visited, budget)
    assert expected is not None
    assert (example["prompt"], example["prefix"]) == expected[:2]
    assert (example["prompt"], example["prefix"]) != (first["prompt"], first["prefix"])
    assert example["solutions"][1]["beta"] < 1


def test_its_numbers_are_those_of_the_models(
    models: tuple[CausalModel, CausalModel], visited: list[Visited]
) -> None:
    example = solve(models, visited)
    place = expected_prefix(models, visited)
    assert place is not None
    log_p, log_q = place[2:]
    shown = [int(token[1:-1]) for token in example["tokens"]]
    ranked = sorted(range(tiny.SIZE), key=lambda i: -max(log_p[i], log_q[i]))
    assert shown == ranked[:10]
    np.testing.assert_allclose(example["p"], np.exp(log_p[shown]), rtol=1e-4)
    np.testing.assert_allclose(example["q"], np.exp(log_q[shown]), rtol=1e-4)
    assert example["kl_teacher"] == pytest.approx(reference.kl(log_q, log_p), rel=1e-4)
    assert [solution["epsilon"] for solution in example["solutions"]] == BUDGETS
    for solution in example["solutions"]:
        beta = reference.largest_beta(log_p, log_q, solution["epsilon"])
        mu = np.exp(reference.blend(log_p, log_q, beta))
        assert solution["beta"] == pytest.approx(beta, rel=1e-3)
        assert solution["kl"] <= solution["epsilon"] * (1 + 1e-9)
        np.testing.assert_allclose(solution["mu"], mu[shown], rtol=1e-3)
    assert example["solutions"][-1]["beta"] == 1.0


def test_the_path_leads_from_student_to_teacher(
    models: tuple[CausalModel, CausalModel], visited: list[Visited]
) -> None:
    example = solve(models, visited)
    place = expected_prefix(models, visited)
    assert place is not None
    betas, kls = zip(*example["path"], strict=True)
    assert (betas[0], betas[-1]) == (0.0, 1.0)
    # KL(p‖p) in float64 is exactly 0 with vector instructions, and 1.9e-16 without (measured).
    assert kls[0] == pytest.approx(0.0, abs=1e-15)
    assert kls[-1] == pytest.approx(example["kl_teacher"], rel=1e-12)
    assert list(betas) == sorted(set(betas))
    assert list(kls) == sorted(kls)
    for beta, kl in example["path"][1:]:
        assert kl == pytest.approx(
            reference.kl(reference.blend(place[2], place[3], beta), place[2]), rel=1e-3, abs=1e-9
        )


def test_without_a_telling_prefix_it_is_the_farthest(
    models: tuple[CausalModel, CausalModel], visited: list[Visited], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "PLAUSIBLE_TOKENS", tiny.SIZE)
    found = prefixes(models, visited)
    farthest = max(found, key=lambda place: reference.kl(place[3], place[2]))
    example = solve(models, visited)
    assert (example["prompt"], example["prefix"]) == farthest[:2]
