"""Updates by the loss of each method that has its own, against the formulas of docs/methods.md.

The formulas take all tokens of a batch and their whole distributions at once, in float64, and leave
the gradients to autograd.

Shapes: N response tokens of a batch, V ids, K outcomes that a divergence compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from orchestrator.config import Training
from orchestrator.engines.common.causal import CausalModel
from orchestrator.engines.torch.decoding import Decoding, generate
from orchestrator.experiment.methods import METHODS, REFERENCE
from orchestrator.policy.spec import TrustRegion
from orchestrator.rollouts import Rollouts
from orchestrator.rules import ObjectiveName
from tests import tiny
from tests.engines.torch.test_trainer import (
    OPTIMIZER,
    STATE,
    STEPS,
    TOP_K,
    Plain,
    assert_close,
    fixed_readings,
    learner,
    rate_of,
    weights_of,
)

OBJECTIVES: tuple[ObjectiveName, ...] = ("renormalized", "tail", "truncated")
# Values at which each rule takes effect at some tokens and not at others.
KNOBS: dict[str, dict[str, Any]] = {
    "veto": {"beta_start": 0.6},
    "gkd": {"teacher_share": 0.5, "beta": 0.3},
    "top_d": {"alpha": 0.6},
    "eopd": {"entropy": 1.5},
    "iw_opd": {"most": 1.5},
    "sampled_token": {"clip": 0.7},
}
CASES: list[tuple[str, ObjectiveName]] = []
for method, row in METHODS.items():
    for name in OBJECTIVES:
        # Veto's target has no mass outside of the support.
        if row.objective is not METHODS[REFERENCE].objective and (method, name) != ("veto", "tail"):
            CASES.append((method, name))


@dataclass(frozen=True)
class Tokens:
    """The response tokens of a batch, one response after the other."""

    p: Tensor  # (N, V) of the student that is trained, with its gradient
    q: Tensor  # (N, V) of the teacher
    before: Tensor  # (N, V) of the student that sampled
    y: Tensor  # (N,) ids of the tokens
    lengths: list[int]  # of the responses

    def at_y(self, probability_NV: Tensor) -> Tensor:
        """Probability of each token itself, (N,)."""
        return probability_NV[torch.arange(len(self.y)), self.y]

    def outcomes(self, name: str, probability_NV: Tensor) -> Tensor:
        """Probability of the outcomes that the objective compares, (N, K)."""
        inside = probability_NV.gather(-1, self.before.topk(TOP_K).indices)
        mass = inside.sum(-1, keepdim=True)
        return {
            "renormalized": inside / mass,
            "tail": torch.cat([inside, 1 - mass], dim=-1),
            "truncated": inside,
        }[name]


@pytest.fixture(scope="module")
def rollouts() -> Rollouts:
    """Float64 rollouts that carry their teacher scores."""
    pair = tiny.student(torch.float64), tiny.teacher(torch.float64)
    return generate(*pair, tiny.requests(3, seed=7), TrustRegion(0.1), Decoding(6, TOP_K))


def tokens_of(student: CausalModel, rollouts: Rollouts) -> Tokens:
    p, q, before, y, lengths = [], [], [], [], []
    for row, request in enumerate(rollouts.requests):
        response = rollouts.response(row)
        log_q, log_before = fixed_readings(request.prompt_ids, tuple(response))
        p.append(tiny.visited(student, request.prompt_ids, response).exp())
        q.append(log_q.exp())
        before.append(log_before.exp())
        y += response
        lengths.append(len(response))
    return Tokens(torch.cat(p), torch.cat(q), torch.cat(before), torch.tensor(y), lengths)


def losses(method: str, knobs: dict[str, Any], step: int, name: str, of: Tokens) -> Tensor:
    """Losses (N,) of step k by the row of the method in docs/methods.md."""
    p, q = of.outcomes(name, of.p), of.outcomes(name, of.q)
    ratio = of.at_y(of.q) / of.at_y(of.before)
    match method:
        case "veto":
            bridge = q * p.detach() ** (knobs["beta_start"] * (1 - step / STEPS))
            return kl(p, bridge / bridge.sum(-1, keepdim=True))
        case "gkd":
            beta = knobs["beta"]
            middle = beta * q + (1 - beta) * p
            return beta * kl(q, middle) + (1 - beta) * kl(p, middle)
        case "top_d":
            return kl(p, knobs["alpha"] * q + (1 - knobs["alpha"]) * p.detach())
        case "tr_opd":
            a = ratio.clamp(max=1)
            return a * kl(p, q) + (1 - a) * kl(q, p)
        case "aopd":
            return torch.where(ratio > 1, kl(p, q), kl(q, p))
        case "eopd":
            entropy = torch.special.entr(of.q).sum(-1)
            return kl(p, q) + torch.where(entropy > knobs["entropy"], kl(q, p), 0.0)
        case "iw_opd":
            return (1 + (knobs["most"] - 1) * (1 - share_before(of))) * kl(p, q)
        case "forward_kl":
            return kl(q, p)
        case "sampled_token":
            clip = knobs["clip"]
            advantage = (of.at_y(of.q) / of.at_y(of.p)).log().detach()
            return policy_gradient(advantage.clamp(-clip, clip), of)
        case "sft_only":
            return -of.at_y(of.p).log()
        case _:
            raise NotImplementedError(f"no formula for {method}")


def kl(a: Tensor, b: Tensor) -> Tensor:
    """Σ a·log(a/b) over the outcomes, (N, K) → (N,)."""
    return (a * (a / b).log()).sum(-1)


def policy_gradient(advantage: Tensor, of: Tokens) -> Tensor:
    """The value −A with the gradient −A·∇log p(y), (N,)."""
    log_p = of.at_y(of.p).log()
    return -advantage * (1 + log_p - log_p.detach())


def share_before(of: Tokens) -> Tensor:
    """Share of Σ|log q − log p| of a token's response that lies before the token, (N,)."""
    shares = []
    for gaps in (of.at_y(of.q).log() - of.at_y(of.before).log()).abs().split(of.lengths):
        for position in range(len(gaps)):
            shares.append(gaps[:position].sum() / gaps.sum())
    return torch.stack(shares)


@pytest.mark.parametrize(("method", "name"), CASES)
def test_a_method_trains_by_its_own_formula(
    rollouts: Rollouts, method: str, name: ObjectiveName
) -> None:
    """The learner works through micro-batches, the formula through all tokens at once."""
    knobs, training = KNOBS.get(method, {}), Training(objective=name)
    engine, student = learner(micro_batch_tokens=30)
    plain = Plain(tiny.student(torch.float64), OPTIMIZER)
    for step in range(STEPS):
        goal = METHODS[method].objective(knobs, training, step, STEPS)
        reported = engine.step(rollouts, rollouts.teacher, goal, step)
        loss = losses(method, knobs, step, name, tokens_of(plain.student, rollouts)).mean()
        expected = plain.update(loss, rate_of(OPTIMIZER, step))
        assert {key: reported[key] for key in STATE} == pytest.approx(expected, abs=1e-9)
    assert_close(weights_of(student), plain.weights, 1e-9)
