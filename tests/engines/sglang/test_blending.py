"""Blended decoding inside SGLang: what it returns, against plain forward passes, enumeration and
the torch engine.

One engine serves all tests. It reads prompts four tokens at a time, and SGLang is told to take
requests back every few rounds, as it does when its cache is full: they are read again later, with
what they have come to.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from orchestrator.engines.common.tensor_digests import digests_of
from orchestrator.engines.interface import Limits, WeightsRef
from orchestrator.engines.sglang.blending_rows import Order
from orchestrator.engines.sglang.engine import SglangSampler, blending_settings
from orchestrator.engines.sglang.process import CACHED, RETRACTIONS, Ask, EngineProcess, Generate
from orchestrator.engines.torch.decoding import Decoding, generate
from orchestrator.policy.randomness import Purpose, SequenceKey
from orchestrator.policy.spec import Behavior, Student, TrustRegion
from orchestrator.rollouts import Request, Rollouts, concatenate, in_order
from orchestrator.workers.members import job_of
from tests import tiny
from tests.engines.torch.test_decoding import two_token_law
from tests.policy import reference

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(
        importlib.util.find_spec("sglang") is None, reason="SGLang is not installed"
    ),
]

SAMPLES, TOP_K, MAX_TOKENS, DRAFTED = 8, 4, 20, 3
LIMITS = Limits(MAX_TOKENS, TOP_K)
BLENDED = [behavior for behavior in tiny.BEHAVIORS if behavior.needs_teacher]
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def sampler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangSampler]:
    """The blending engine of the tiny pair, up; it gives its caches back after each call, as it
    does on a GPU.
    """
    job = job_of(tiny.worker_spec(tmp_path_factory.mktemp("pair"), draft_length=DRAFTED))
    job = replace(job, takes_turns=True)
    narrow = blending_settings(job)
    assert narrow.second is not None
    narrow = replace(
        narrow,
        second=replace(narrow.second, drafted=DRAFTED, prefilled=4),
        requests=32,
        cache_tokens=400,
    )
    opened = SglangSampler(job, "student")
    opened._beside_teacher, opened._process = True, EngineProcess(narrow)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_TEST_RETRACT", "1")
        patch.setenv("SGLANG_TEST_RETRACT_INTERVAL", "7")
        opened.start(teacher=True)
    yield opened
    opened.release()


_SAMPLED: dict[Behavior, Rollouts] = {}


def sampled(sampler: SglangSampler, behavior: Behavior) -> Rollouts:
    """Rollouts of a behavior in the order of the requests, made once."""
    if behavior not in _SAMPLED:
        _SAMPLED[behavior] = ordered(sampler, tiny.requests(SAMPLES), behavior, LIMITS)
    return _SAMPLED[behavior]


def ordered(sampler: Any, requests: list[Request], behavior: Behavior, limits: Limits) -> Rollouts:
    """What a sampler yields as it comes, in the order of the requests."""
    return in_order(concatenate(list(sampler.sample(requests, behavior, limits))), requests)


@pytest.mark.parametrize("behavior", BLENDED)
def test_log_probs_are_those_of_plain_passes(sampler: SglangSampler, behavior: Behavior) -> None:
    rollouts = sampled(sampler, behavior)
    scores = rollouts.teacher
    assert scores is not None
    assert int(rollouts.lengths_B.sum()) > 250
    log_ps, log_qs = (
        tiny.visited_rows(model, rollouts) for model in (tiny.student(), tiny.teacher())
    )
    for row, (row_p, row_q) in enumerate(zip(log_ps, log_qs, strict=True)):
        for t, token in enumerate(rollouts.response(row)):
            log_p, log_q = row_p[t], row_q[t]
            support = rollouts.support_ids_BTK[row, t].numpy()
            own = set(np.argsort(-log_q)[:TOP_K].tolist())
            beta = rollouts.measured.get("beta")
            log_mu = tiny.law(behavior, log_p, log_q)
            # A trust region is solved to a slack that moves μ by more than the models' rounding: it
            # is read at its β.
            read = log_mu if beta is None else reference.blend(log_p, log_q, float(beta[row, t]))
            assert float(rollouts.student_BT[row, t]) == pytest.approx(log_p[token], abs=TOLERANCE)
            assert float(rollouts.behavior_BT[row, t]) == pytest.approx(read[token], abs=TOLERANCE)
            assert support.tolist() == np.argsort(-log_p, kind="stable")[:TOP_K].tolist()
            assert scores.support_BTK[row, t].numpy() == pytest.approx(
                log_q[support], abs=TOLERANCE
            )
            assert float(scores.token_BT[row, t]) == pytest.approx(log_q[token], abs=TOLERANCE)
            assert float(scores.overlap_BT[row, t]) == len(own & set(support.tolist())) / TOP_K
            entropy = -reference.kl(log_q, np.zeros(tiny.SIZE))
            assert float(scores.entropy_BT[row, t]) == pytest.approx(entropy, abs=TOLERANCE)
            measured = {name: float(value[row, t]) for name, value in rollouts.measured.items()}
            realised = reference.kl(read, log_p)
            assert measured["behavior_kl"] == pytest.approx(realised, abs=TOLERANCE)
            assert measured["acceptance"] == pytest.approx(
                np.minimum(np.exp(read), np.exp(log_p)).sum(), abs=TOLERANCE
            )
            if isinstance(behavior, TrustRegion):
                assert realised <= behavior.epsilon * (1 + 1e-4) + 1e-6
                assert measured["beta"] == 1 or realised >= behavior.epsilon * (1 - 2e-4) - 1e-6


@pytest.mark.parametrize("behavior", BLENDED)
def test_tokens_are_those_of_the_torch_engine(sampler: SglangSampler, behavior: Behavior) -> None:
    ours = sampled(sampler, behavior)
    theirs = generate(
        tiny.student(), tiny.teacher(), ours.requests, behavior, Decoding(MAX_TOKENS, TOP_K)
    )
    pairs = [(ours.response(row), theirs.response(row)) for row in range(len(ours.requests))]
    # The uniforms are the same; logits differ by rounding, which may turn one token in a million.
    assert sum(one == other for one, other in pairs) >= 0.95 * len(pairs)
    assert set(ours.measured) == set(theirs.measured)
    assert set(ours.speculation) == set(theirs.speculation)
    assert (ours.truncated_B == theirs.truncated_B).float().mean() >= 0.95


@pytest.mark.parametrize("behavior", BLENDED)
def test_a_response_ends_at_its_eos_or_at_the_limit(
    sampler: SglangSampler, behavior: Behavior
) -> None:
    rollouts = sampled(sampler, behavior)
    for row, length in enumerate(rollouts.lengths_B.tolist()):
        response = rollouts.response(row)
        assert 1 <= len(response) == length <= MAX_TOKENS
        assert tiny.STUDENT_EOS not in response[:-1]
        assert set(response) <= set(range(tiny.VALID)) - {tiny.TEACHER_EOS}
        assert bool(rollouts.truncated_B[row]) == (response[-1] != tiny.STUDENT_EOS)
    assert 0 < int(rollouts.truncated_B.sum()) < len(rollouts.requests)
    counts = rollouts.speculation
    assert (counts["accepted"] <= counts["drafted"]).all()
    assert (counts["rounds"] <= rollouts.lengths_B).all()
    # Every token is a draft that survived or the one that took a rejected draft's place; what
    # follows EOS is neither.
    assert (counts["accepted"] + counts["rounds"] >= rollouts.lengths_B).all()


def test_requests_of_several_behaviors_share_rounds(sampler: SglangSampler) -> None:
    requests = tiny.requests(2)
    orders = []
    for index, request in enumerate(requests):
        behavior = BLENDED[index % len(BLENDED)]
        orders.append(Order(behavior, request.key, tiny.SPACE, MAX_TOKENS, TOP_K, DRAFTED))
    asks = [Ask(i, request.prompt_ids, orders[i]) for i, request in enumerate(requests)]
    answers = {
        a.index: a for a in sampler._answers(Generate(asks, MAX_TOKENS, (tiny.STUDENT_EOS,), None))
    }
    same = 0
    for index, request in enumerate(requests):
        alone = generate(
            tiny.student(),
            tiny.teacher(),
            [request],
            orders[index].behavior,
            Decoding(MAX_TOKENS, TOP_K),
        )
        same += answers[index].tokens == alone.response(0)
    assert same >= len(requests) - 1


def test_retraction_and_prefix_hits_change_nothing(sampler: SglangSampler) -> None:
    behavior, prompt = TrustRegion(0.3), tuple(range(10)) * 2
    requests = tiny.requests(24, (prompt,), seed=5)
    orders = [
        Order(behavior, request.key, tiny.SPACE, MAX_TOKENS, TOP_K, DRAFTED) for request in requests
    ]
    asks = [Ask(i, prompt, order) for i, order in enumerate(orders)]
    answers = list(sampler._answers(Generate(asks, MAX_TOKENS, (tiny.STUDENT_EOS,), None)))
    assert sum(answer.kept[RETRACTIONS] for answer in answers) > 0
    assert sum(answer.kept[CACHED] for answer in answers) > 0
    plain = generate(
        tiny.student(), tiny.teacher(), requests, behavior, Decoding(MAX_TOKENS, TOP_K)
    )
    same = sum(answer.tokens == plain.response(answer.index) for answer in answers)
    assert same >= len(requests) - 1


@pytest.mark.parametrize("behavior", [TrustRegion(0.3), BLENDED[-2]])
def test_two_tokens_have_the_law_of_the_behavior(
    sampler: SglangSampler, behavior: Behavior
) -> None:
    prompt, draws = (3, 1, 4), 1000
    requests = [
        Request(prompt, SequenceKey(Purpose.TRAINING, 7, 0, 0, sample)) for sample in range(draws)
    ]
    rollouts = concatenate(list(sampler.sample(requests, behavior, Limits(2))))
    counts = np.zeros((tiny.SIZE, tiny.SIZE))
    for first, *rest in map(rollouts.response, range(draws)):
        counts[first, rest[0] if rest else 0] += 1
    tiny.assert_frequencies(
        counts.ravel(), two_token_law(tiny.student(), tiny.teacher(), behavior, prompt).ravel()
    )


def test_new_weights_are_the_students_alone(sampler: SglangSampler) -> None:
    ids = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3)
    student, behavior = tiny.student(), TrustRegion(0.3)
    old = {name: value.detach().clone() for name, value in student.model.named_parameters()}
    before = sampler.log_probs(ids)
    try:
        with torch.no_grad():
            for parameter in student.model.parameters():
                parameter.mul_(1.3)
        sampler.load(WeightsRef(1, dict(student.model.named_parameters())))
        after = sampler.log_probs(ids)
        assert sampler.digests() == digests_of(student.model.named_parameters())
        expected = (
            tiny.visited(student, ids[:1], list(ids[1:]))
            .detach()
            .numpy()[range(len(ids) - 1), ids[1:]]
        )
        assert after == pytest.approx(expected, abs=TOLERANCE)
        assert max(abs(one - other) for one, other in zip(before, after, strict=True)) > 0.1
        ours = ordered(sampler, tiny.requests(4), behavior, LIMITS)
        theirs = generate(
            student, tiny.teacher(), ours.requests, behavior, Decoding(MAX_TOKENS, TOP_K)
        )
        same = sum(ours.response(row) == theirs.response(row) for row in range(len(ours.requests)))
        assert same >= len(ours.requests) - 1
    finally:
        sampler.load(WeightsRef(2, old))
    assert sampler.log_probs(ids) == pytest.approx(before, abs=1e-6)


def test_the_student_goes_on_alone_once_the_teacher_is_done(sampler: SglangSampler) -> None:
    with torch.no_grad():
        tensors = {name: value * 1.1 for name, value in tiny.student().model.named_parameters()}
    sampler.load(WeightsRef(3, tensors))
    blended = sampler._process
    plain = in_order(
        concatenate(list(sampler.sample(tiny.requests(1), Student(), LIMITS))), tiny.requests(1)
    )
    assert plain.teacher is None
    assert sampler._process is not blended
    assert blended is not None
    assert blended.pid is None
    changed = tiny.student()
    changed.model.load_state_dict(tensors, strict=False)
    for row, log_p in enumerate(tiny.visited_rows(changed, plain)):
        for t, token in enumerate(plain.response(row)):
            assert float(plain.student_BT[row, t]) == pytest.approx(log_p[t][token], abs=TOLERANCE)
