"""SGLang on Triton's kernels, interpreted: the code that a GPU runs, without its hardware.

The kernels are those of `runtime.attention_backend=triton`, and of the student alone those of
`runtime.logits_kernel`. Their interpreter is about 40 times
slower, so there are few requests of few tokens. What is sampled is compared with plain forward
passes and with the torch engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from orchestrator.engines.interface import Job, Limits
from orchestrator.engines.sglang.engine import SglangSampler, blending_settings, settings
from orchestrator.engines.sglang.process import EngineProcess
from orchestrator.engines.torch.decoding import Decoding, generate
from orchestrator.policy.spec import Behavior, Student, TeacherInjection, Tempered, TrustRegion
from orchestrator.rollouts import Rollouts, concatenate, in_order
from orchestrator.workers.members import job_of
from tests import tiny
from tests.engines.installed import skip_without

pytestmark = pytest.mark.engines
PROMPTS = ((0, 1, 2, 3, 4, 5, 6), (9, 0))
LIMITS = Limits(5, support=4)
DRAFTED = 2
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The tiny pair, for engines on Triton's kernels."""
    skip_without("sglang")
    found = job_of(tiny.worker_spec(tmp_path_factory.mktemp("pair"), draft_length=DRAFTED))
    runtime = replace(found.runtime, attention_backend="triton", logits_kernel="triton")
    return replace(found, runtime=runtime, takes_turns=True)


@pytest.fixture(scope="module")
def blending(job: Job) -> Iterator[SglangSampler]:
    """The blending engine, up; it reads prompts four tokens at a time."""
    narrow = blending_settings(job)
    assert narrow.second is not None
    second = replace(narrow.second, drafted=DRAFTED, prefilled=4)
    narrow = replace(narrow, second=second, requests=4, cache_tokens=200)
    opened = SglangSampler(job, "student")
    opened._beside_teacher, opened._process = True, EngineProcess(narrow)
    opened.start(teacher=True)
    yield opened
    opened.release()


@pytest.fixture(scope="module")
def plain(job: Job) -> Iterator[SglangSampler]:
    """The engine of the student alone."""
    opened = SglangSampler(job, "student")
    yield opened
    opened.release()


def sampled(sampler: SglangSampler, behavior: Behavior, samples: int) -> Rollouts:
    """Rollouts in the order of the requests."""
    requests = tiny.requests(samples, PROMPTS)
    return in_order(concatenate(list(sampler.sample(requests, behavior, LIMITS))), requests)


def check_log_probs(rollouts: Rollouts) -> None:
    """log p of each token and the student's most probable ids are those of plain passes in float64."""
    for row, log_p in enumerate(tiny.visited_rows(tiny.student(), rollouts)):
        for t, token in enumerate(rollouts.response(row)):
            assert float(rollouts.student_BT[row, t]) == pytest.approx(
                log_p[t][token], abs=TOLERANCE
            )
            assert rollouts.support_ids_BTK[row, t].tolist() == (-log_p[t]).argsort()[:4].tolist()


def test_engines_are_asked_for_tritons_kernels(job: Job) -> None:
    assert settings(job, "student").attention == "triton"
    assert blending_settings(job).attention == "triton"
    assert settings(job, "student").kernel


@pytest.mark.parametrize("behavior", [Student(), Tempered(0.7)])
def test_plain_sampling_is_that_of_plain_passes(plain: SglangSampler, behavior: Behavior) -> None:
    rollouts = sampled(plain, behavior, samples=2)
    check_log_probs(rollouts)
    for row, log_p in enumerate(tiny.visited_rows(tiny.student(), rollouts)):
        log_mu = [tiny.law(behavior, each, each) for each in log_p]
        for t, token in enumerate(rollouts.response(row)):
            assert float(rollouts.behavior_BT[row, t]) == pytest.approx(
                log_mu[t][token], abs=TOLERANCE
            )


@pytest.mark.parametrize("behavior", [TrustRegion(0.3), TeacherInjection(3, 0.6)])
def test_blended_tokens_are_those_of_the_torch_engine(
    blending: SglangSampler, behavior: Behavior
) -> None:
    ours = sampled(blending, behavior, samples=2)
    check_log_probs(ours)
    decoding = Decoding(LIMITS.max_tokens, LIMITS.support, DRAFTED)
    theirs = generate(tiny.student(), tiny.teacher(), ours.requests, behavior, decoding)
    # Equal uniforms and logits that differ by rounding: at most one of the few responses may turn.
    same = [row for row in range(len(ours.requests)) if ours.response(row) == theirs.response(row)]
    assert len(same) >= len(ours.requests) - 1
    assert ours.teacher is not None
    assert theirs.teacher is not None
    for row in same:
        length = len(ours.response(row))
        for mine, other in (
            (ours.behavior_BT, theirs.behavior_BT),
            (ours.teacher.token_BT, theirs.teacher.token_BT),
            (ours.teacher.entropy_BT, theirs.teacher.entropy_BT),
        ):
            torch.testing.assert_close(
                mine[row, :length], other[row, :length], atol=TOLERANCE, rtol=0
            )
