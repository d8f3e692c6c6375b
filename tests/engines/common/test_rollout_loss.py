"""The measurements beside the loss, against their definitions on whole distributions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from orchestrator.config import EngineConfig
from orchestrator.engines.common.learning import Targets, largest_gap, measure
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
    recorded = Recorded(own, own, own, torch.arange(len(tokens)), own, own)
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
