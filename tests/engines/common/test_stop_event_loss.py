"""The loss of a student with several stop ids, beside that of a model whose head already has their
sum in one row.
"""

from __future__ import annotations

import pytest
import torch

from orchestrator.engines.common.learning import Targets, measure, summed_objective
from orchestrator.policy.objective import Recorded
from orchestrator.policy.spec import Objective
from orchestrator.policy.vocabulary import TokenSpace

TOKENS, HIDDEN, SIZE, VALID, SUPPORT = 40, 5, 12, 11, 4
SPACE = TokenSpace(VALID, [3, 1, 8], [6, 1])


def made(space: TokenSpace) -> tuple[torch.Tensor, torch.Tensor, Targets]:
    """Hidden states, a head, and targets on the student's support, which often has the event."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN, generator=generator, dtype=torch.float64)
    head = torch.randn(SIZE, HIDDEN, generator=generator, dtype=torch.float64)
    log_p = space.student_log_prob(hidden @ head.T)
    support = log_p.topk(SUPPORT, dim=-1).indices
    log_q = torch.randn(TOKENS, SIZE, generator=generator, dtype=torch.float64).log_softmax(-1)
    nothing = torch.zeros(TOKENS, dtype=torch.float64)
    recorded = Recorded(nothing, nothing, nothing, nothing, nothing, nothing)
    targets = Targets(support[:, 0], support, recorded, nothing, log_q.gather(-1, support))
    assert 5 < int((support == space.emitted).any(-1).sum()) < TOKENS
    return hidden.requires_grad_(), head.requires_grad_(), targets


def reference(hidden: torch.Tensor, head: torch.Tensor, targets: Targets, name: str):
    """Σ of KL(p̄‖q̄) or of −log p over the tokens, from sums of probabilities."""
    weight = (hidden @ head.T).exp()
    weight = weight * (torch.arange(SIZE) < VALID)
    event = weight[:, [3, 1, 8]].sum(-1, keepdim=True)
    one = torch.nn.functional.one_hot(torch.tensor(3), SIZE)
    keep = torch.ones(SIZE, dtype=torch.float64)
    keep[[3, 1, 8, 6]] = 0
    weight = weight * keep + event * one
    p = weight / weight.sum(-1, keepdim=True)
    if name == "nll":
        return -p.gather(-1, targets.tokens[:, None]).log().sum()
    p = p.gather(-1, targets.support)
    p = p / p.sum(-1, keepdim=True)
    assert targets.log_q is not None
    log_q = targets.log_q.log_softmax(-1)
    return (p * (p.log() - log_q)).sum()


@pytest.mark.parametrize("name", ["renormalized", "nll"])
def test_the_loss_and_its_gradient_are_those_of_the_summed_event(name: str) -> None:
    hidden, head, targets = made(SPACE)
    loss = summed_objective(hidden, head, targets, Objective(name), SPACE)
    gradients = torch.autograd.grad(loss, (hidden, head))
    expected = reference(hidden, head, targets, name)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-10)
    for found, right in zip(gradients, torch.autograd.grad(expected, (hidden, head)), strict=True):
        torch.testing.assert_close(found, right)
    assert gradients[1][[1, 8]].abs().min() > 0, "ids that no response has learn too"


def test_the_mass_of_a_support_counts_the_whole_event() -> None:
    hidden, head, targets = made(SPACE)
    read = measure(hidden.detach(), head.detach(), targets, SPACE)
    mass = read.sums["support_mass_student"]
    log_p = SPACE.student_log_prob((hidden @ head.T).detach())
    assert mass == pytest.approx(log_p.gather(-1, targets.support).exp().sum().item())
