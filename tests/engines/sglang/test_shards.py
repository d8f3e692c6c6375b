"""One SGLang engine over two processes, each with half of every layer: what it says, against
transformers and torch.

Two processes of one core meet over gloo, where two GPUs would over NCCL: nothing of this has run on
GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from orchestrator.engines.common.causal import log_probs_of
from orchestrator.engines.common.tensor_digests import digests_of
from orchestrator.engines.interface import Limits, WeightsRef
from orchestrator.engines.memory import Gpus
from orchestrator.engines.sglang.engine import SglangSampler
from orchestrator.engines.torch.decoding import Decoding, generate
from orchestrator.policy.spec import Student, TrustRegion
from orchestrator.rollouts import concatenate, in_order
from orchestrator.workers.canary import canary_ids
from orchestrator.workers.members import job_of
from tests import tiny
from tests.engines.installed import skip_without
from tests.engines.sglang.test_engine import check_against, log_p_after
from tests.sockets import descendants, listening_addresses

pytestmark = [pytest.mark.engines, pytest.mark.xdist_group("sglang-shards")]

SHARDS, MAX_TOKENS, TOP_K = 2, 8, 4
LIMITS = Limits(MAX_TOKENS, TOP_K)


@pytest.fixture(scope="module")
def sampler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangSampler]:
    """The student of the tiny pair with two KV heads, one for each shard; no engine is up yet."""
    skip_without("sglang")
    job = job_of(tiny.worker_spec(tmp_path_factory.mktemp("pair"), kv_heads=SHARDS))
    opened = SglangSampler(replace(job, on=Gpus(SHARDS)), "student")
    yield opened
    opened.release()


def schedulers(sampler: SglangSampler) -> list[str]:
    """The names of the processes that the engine decodes in."""
    assert sampler._process is not None
    assert sampler._process.pid is not None
    commands = [
        Path(f"/proc/{pid}/cmdline").read_text() for pid in descendants(sampler._process.pid)
    ]
    return sorted(name.rstrip("\0 ") for name in commands if name.startswith("sglang::scheduler"))


def test_blended_tokens_and_scores_are_those_of_the_torch_engine(sampler: SglangSampler) -> None:
    requests, behavior = tiny.requests(4), TrustRegion(0.3)
    ours = in_order(concatenate(list(sampler.sample(requests, behavior, LIMITS))), requests)
    assert len(schedulers(sampler)) == SHARDS
    models = tiny.student(kv_heads=SHARDS), tiny.teacher(kv_heads=SHARDS)
    theirs = generate(*models, requests, behavior, Decoding(MAX_TOKENS, TOP_K))
    alike = [row for row in range(len(requests)) if ours.response(row) == theirs.response(row)]
    # The uniforms are the same; logits differ by rounding, which may turn one token in a million.
    assert len(alike) >= 0.95 * len(requests)
    assert ours.teacher is not None
    assert theirs.teacher is not None
    for row in alike:
        count = len(ours.response(row))
        for one, other in (
            (ours.student_BT, theirs.student_BT),
            (ours.behavior_BT, theirs.behavior_BT),
            (ours.teacher.token_BT, theirs.teacher.token_BT),
            (ours.teacher.entropy_BT, theirs.teacher.entropy_BT),
        ):
            torch.testing.assert_close(one[row, :count], other[row, :count], atol=1e-4, rtol=0)


def test_the_student_alone_says_what_transformers_say(sampler: SglangSampler) -> None:
    requests = tiny.requests(2)
    rollouts = in_order(concatenate(list(sampler.sample(requests, Student(), LIMITS))), requests)
    assert len(schedulers(sampler)) == SHARDS
    check_against(tiny.student(kv_heads=SHARDS), Student(), rollouts)


def test_first_tokens_have_the_students_law(sampler: SglangSampler) -> None:
    """1,500 samples after one prompt, counted, against their probabilities under transformers."""
    prompt = tiny.PROMPTS[1]
    counts = torch.zeros(tiny.SIZE)
    for rollouts in sampler.sample(tiny.requests(1500, (prompt,)), Student(), Limits(1)):
        counts += torch.bincount(rollouts.tokens_BT[:, 0], minlength=tiny.SIZE)
    law = log_p_after(tiny.student(kv_heads=SHARDS), prompt, [0])[0].double().exp()
    tiny.assert_frequencies(counts.double().numpy(), (law / law.sum()).numpy())


def test_new_weights_reach_all_shards(sampler: SglangSampler) -> None:
    student = tiny.student(kv_heads=SHARDS)
    with torch.no_grad():
        for parameter in student.model.parameters():
            parameter.mul_(1.3)
    sampler.load(
        WeightsRef(
            1, {name: parameter.detach() for name, parameter in student.model.named_parameters()}
        )
    )
    ids = canary_ids(sampler._job.setup)
    assert sampler.log_probs(ids) == pytest.approx(log_probs_of(student, ids), abs=1e-4)
    digests = digests_of(student.model.named_parameters())
    # On CPUs SGLang pads the widths of sharded MLPs, and the numbers alone stand for them.
    assert sampler.digests() == {n: value for n, value in digests.items() if ".mlp." not in n}


def test_shards_meet_on_loopback_alone(sampler: SglangSampler) -> None:
    sampler.start(teacher=False)
    assert sampler._process is not None
    assert sampler._process.pid is not None
    assert listening_addresses(sampler._process.pid) == {"0100007F"}
