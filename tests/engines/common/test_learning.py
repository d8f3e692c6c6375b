"""The measurements beside the loss, against their definitions on whole distributions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from orchestrator.config import EngineConfig
from orchestrator.engines.common import learning
from orchestrator.engines.common.learning import (
    Targets,
    head_logits,
    largest_gap,
    measure,
    summed_loss,
    summed_objective,
)
from orchestrator.engines.interface import Limits
from orchestrator.engines.torch.engine import TorchEngine
from orchestrator.policy.objective import Recorded
from orchestrator.policy.spec import Objective
from orchestrator.policy.vocabulary import TokenSpace
from orchestrator.rollouts import concatenate, in_order
from orchestrator.workers.members import job_of
from tests import tiny

SPACE = TokenSpace(valid=8, student_eos=6, teacher_eos=6)


def targets(tokens: Tensor, log_p: Tensor, log_mu: Tensor) -> Targets:
    """Targets of tokens that a sampler drew from μ, where its student had p; both are (N, V)."""
    own = log_p.gather(1, tokens[:, None])[:, 0]
    recorded = Recorded(own, own, own, own)
    support = log_p.topk(3).indices
    drawn = log_mu.gather(1, tokens[:, None])[:, 0]
    return Targets(tokens, support, recorded, drawn, log_p.gather(1, support))


@pytest.mark.parametrize("blended", [False, True])
def test_the_gap_estimates_the_divergence_of_sampler_and_learner(
    blended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60,000 tokens of one prefix, drawn from the sampler's policy or from another one."""
    monkeypatch.setattr("orchestrator.engines.common.learning.MASS_SAMPLE", 10**6)
    generator = torch.Generator().manual_seed(1)
    head = torch.randn(8, 5, generator=generator)
    hidden = torch.randn(1, 5, generator=generator)
    of_learner = SPACE.student_log_prob(hidden @ head.T)
    of_sampler = (of_learner + 0.1 * torch.randn(1, 8, generator=generator)).log_softmax(-1)
    log_mu = of_sampler
    if blended:
        log_mu = (of_sampler + torch.randn(1, 8, generator=generator)).log_softmax(-1)
    count = 60_000
    tokens = torch.multinomial(log_mu[0].exp(), count, replacement=True, generator=generator)
    read = measure(
        hidden.expand(count, -1),
        head,
        targets(tokens, of_sampler.expand(count, -1), log_mu.expand(count, -1)),
        SPACE,
    )
    gap = (of_learner - of_sampler)[0]
    divergence = float((of_sampler[0].exp() * -gap).sum())
    assert divergence > 1e-3
    assert read.sums["sampler_kl"] / count == pytest.approx(divergence, rel=0.05)
    expected = float((log_mu[0].exp() * gap.abs()).sum())
    assert read.sums["sampler_gap"] / count == pytest.approx(expected, rel=0.05)
    assert largest_gap(read.gaps)["sampler_gap_p99"] == pytest.approx(
        float(gap[tokens].abs().double().quantile(0.99))
    )


def test_a_step_without_tokens_or_scores_measures_nothing() -> None:
    none = torch.zeros(0, 8)
    empty = targets(torch.zeros(0, dtype=torch.long), none, none)
    read = measure(torch.zeros(0, 5), torch.zeros(8, 5), empty, SPACE)
    assert set(read.sums.values()) == {0.0}
    assert largest_gap(read.gaps) == {}
    unscored = measure(torch.zeros(0, 5), torch.zeros(8, 5), replace(empty, log_q=None), SPACE)
    assert (unscored.sums, unscored.gaps) == ({}, [])


@pytest.mark.parametrize(("dtype", "least", "most"), [("float32", 0, 1e-6), ("bfloat16", 1e-4, 1)])
def test_a_step_logs_the_rounding_between_its_sampler_and_its_learner(
    tmp_path: Path, dtype: str, least: float, most: float
) -> None:
    job = job_of(tiny.worker_spec(tmp_path))
    engine = TorchEngine(
        replace(job, setup=replace(job.setup, engine=EngineConfig(dtype=dtype)))  # pyright: ignore[reportArgumentType]
    )
    trainer, sampler = engine.trainer(), engine.sampler()
    behavior = tiny.BEHAVIORS[2]
    requests = tiny.requests(4)
    sampler.load(trainer.publish(0))
    rollouts = in_order(
        concatenate(list(sampler.sample(requests, behavior, Limits(6, 4)))), requests
    )
    row = trainer.step(rollouts, rollouts.teacher, Objective("renormalized"), 0)
    assert least <= row["sampler_gap"] <= row["sampler_gap_p99"] <= most
    assert 0 <= row["sampler_kl"] <= most


# --- what GPUs do otherwise in the loss of the head: products of 16-bit matrices with a result
# in float32 ---


N, H, V, K = 7, 8, 11, 3


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_the_products_of_gpus_exist_in_the_installed_pytorch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Shapes alone, on tensors without memory: CPUs have no such products."""
    monkeypatch.setattr(learning, "_accumulates_precisely", lambda tensor: True)
    logits = learning._product(empty(N, H), empty(V, H).T)
    assert (logits.shape, logits.dtype) == ((N, V), torch.float32)
    gathered = learning._product(empty(N, K, H), empty(N, H, 1))
    assert (gathered.shape, gathered.dtype) == ((N, K, 1), torch.float32)
    total = empty(V, H, dtype=torch.float32)
    learning._add_product(total, empty(N, V).T, empty(N, H))
    assert total.shape == (V, H)


@pytest.mark.parametrize("gathered", [True, False])
@pytest.mark.parametrize("chunk", [1, 50, 10_000])
def test_products_in_float32_change_a_loss_by_their_rounding_alone(
    monkeypatch: pytest.MonkeyPatch, gathered: bool, chunk: int
) -> None:
    """With products as a GPU makes them, by their definition."""
    generator = torch.Generator().manual_seed(0)
    hidden, head = (torch.randn(rows, H, generator=generator).bfloat16() for rows in (N, V))
    support = torch.randint(V, (N, K), generator=generator) if gathered else None

    def results() -> list[Tensor]:
        given = [tensor.clone().requires_grad_() for tensor in (hidden, head)]
        loss = summed_loss(
            given[0], given[1], support, lambda logits, part: -logits.log_softmax(-1)[:, 0]
        )
        return [loss.detach(), *torch.autograd.grad(loss, given)]

    def exactly(a: Tensor, b: Tensor, out_dtype: torch.dtype) -> Tensor:
        return a.to(out_dtype) @ b.to(out_dtype)

    def added(total: Tensor, a: Tensor, b: Tensor, out_dtype: torch.dtype, out: Tensor) -> None:
        assert out is total
        out += exactly(a, b, out_dtype)

    on_cpu = results()
    monkeypatch.setattr(learning, "_accumulates_precisely", lambda tensor: True)
    monkeypatch.setattr(learning, "CHUNK_ELEMENTS", {"cpu": chunk})
    for name, stands_in in (("mm", exactly), ("bmm", exactly), ("addmm", added)):
        monkeypatch.setattr(torch, name, stands_in)
    for ours, theirs in zip(results(), on_cpu, strict=True):
        torch.testing.assert_close(ours, theirs, atol=0.03, rtol=0.03)


@pytest.mark.parametrize("widened", [1, 100, 2**19])
def test_logits_of_16_bit_factors_are_rounded_once(
    widened: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "WIDENED", widened)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 2, 16, generator=generator).bfloat16()
    head = torch.randn(37, 16, generator=generator)  # a learner's, wider than the hidden states
    exact = hidden.double() @ head.bfloat16().double().T
    with torch.autocast("cpu", torch.bfloat16):
        logits = head_logits(hidden, head)
    assert logits.dtype == torch.float32
    assert logits.shape == (3, 2, 37)
    assert float((logits - exact).abs().max()) < 1e-5
    bias = torch.arange(37).bfloat16()
    assert float((head_logits(hidden, head, bias) - exact - bias).abs().max()) < 1e-5
    rounded = hidden @ head.bfloat16().T
    assert float((rounded - exact).abs().max()) > 1e-3
    assert head_logits(hidden[:0], head).shape == (0, 2, 37)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_of_wide_factors_are_those_of_a_linear_layer(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, 5, 16, generator=generator, dtype=dtype)
    for biased in (False, True):
        head = torch.nn.Linear(16, 37, bias=biased, dtype=dtype)
        assert torch.equal(head_logits(hidden, head.weight, head.bias), head(hidden))


# --- the loss of a student with several stop ids, beside that of a model whose head already has
# their sum in one row ---


TOKENS, HIDDEN, SIZE, VALID, SUPPORT = 40, 5, 12, 11, 4
SEVERAL_STOPS = TokenSpace(VALID, [3, 1, 8], [6, 1])


def made(space: TokenSpace) -> tuple[torch.Tensor, torch.Tensor, Targets]:
    """Hidden states, a head, and targets on the student's support, which often has the event."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN, generator=generator, dtype=torch.float64)
    head = torch.randn(SIZE, HIDDEN, generator=generator, dtype=torch.float64)
    log_p = space.student_log_prob(hidden @ head.T)
    support = log_p.topk(SUPPORT, dim=-1).indices
    log_q = torch.randn(TOKENS, SIZE, generator=generator, dtype=torch.float64).log_softmax(-1)
    nothing = torch.zeros(TOKENS, dtype=torch.float64)
    recorded = Recorded(nothing, nothing, nothing, nothing)
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
    hidden, head, targets = made(SEVERAL_STOPS)
    loss = summed_objective(hidden, head, targets, Objective(name), SEVERAL_STOPS)
    gradients = torch.autograd.grad(loss, (hidden, head))
    expected = reference(hidden, head, targets, name)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-10)
    for found, right in zip(gradients, torch.autograd.grad(expected, (hidden, head)), strict=True):
        torch.testing.assert_close(found, right)
    assert gradients[1][[1, 8]].abs().min() > 0, "ids that no response has learn too"


def test_the_mass_of_a_support_counts_the_whole_event() -> None:
    hidden, head, targets = made(SEVERAL_STOPS)
    read = measure(hidden.detach(), head.detach(), targets, SEVERAL_STOPS)
    mass = read.sums["support_mass_student"]
    log_p = SEVERAL_STOPS.student_log_prob((hidden @ head.T).detach())
    assert mass == pytest.approx(log_p.gather(-1, targets.support).exp().sum().item())
