"""Decoding: what is recorded, what is emitted, and the law of it, against plain forward passes and
enumeration.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from orchestrator.engines.common.causal import CausalModel
from orchestrator.engines.interface import Limits
from orchestrator.engines.torch import engine
from orchestrator.engines.torch.decoding import Decoding, generate
from orchestrator.errors import NotFinite
from orchestrator.policy.randomness import Purpose, SequenceKey
from orchestrator.policy.spec import (
    BatchBudget,
    Behavior,
    Student,
    TeacherInjection,
    TrustRegion,
)
from orchestrator.policy.vocabulary import TokenSpace
from orchestrator.rollouts import Request, Rollouts, concatenate
from tests import tiny
from tests.policy import reference
from tests.tiny import Array

SAMPLES, TOP_K, MAX_TOKENS = 4, 4, 7
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
CASES = [(behavior, dtype) for behavior in tiny.BEHAVIORS for dtype in TOLERANCE]
BLENDED = [behavior for behavior in tiny.BEHAVIORS if behavior.needs_teacher]
TRUST_REGIONS = [behavior for behavior in tiny.BEHAVIORS if isinstance(behavior, TrustRegion)]


class Sampled:
    """A pair, rollouts of it, and the plain log-probabilities of both models at all visited
    prefixes.
    """

    def __init__(self, behavior: Behavior, dtype: torch.dtype):
        self.student, self.teacher = tiny.student(dtype), tiny.teacher(dtype)
        self.behavior = behavior
        self.rollouts = self.run(tiny.requests(SAMPLES))
        self.log_p = tiny.visited_rows(self.student, self.rollouts)
        self.log_q = tiny.visited_rows(self.teacher, self.rollouts)

    def run(
        self, requests: list[Request], max_tokens: int = MAX_TOKENS, top_k: int = TOP_K
    ) -> Rollouts:
        return generate(
            self.student, self.teacher, requests, self.behavior, Decoding(max_tokens, top_k)
        )

    def positions(self) -> list[tuple[int, int, int]]:
        """(row, position, token) of every response token."""
        return [
            (row, t, x)
            for row in range(len(self.log_p))
            for t, x in enumerate(self.rollouts.response(row))
        ]


_SAMPLED: dict[tuple[Behavior, torch.dtype], Sampled] = {}


def sampled(behavior: Behavior, dtype: torch.dtype = torch.float32) -> Sampled:
    """Rollouts of `behavior`, made once."""
    if (behavior, dtype) not in _SAMPLED:
        _SAMPLED[behavior, dtype] = Sampled(behavior, dtype)
    return _SAMPLED[behavior, dtype]


def expected_law(case: Sampled, row: int, position: int) -> Array:
    """log μ from the definitions. A trust region is read at its recorded β where that is known only
    to 1e-4·ε.
    """
    log_p, log_q = case.log_p[row][position], case.log_q[row][position]
    beta = case.rollouts.measured.get("beta")
    if beta is None or case.rollouts.behavior_BT.dtype == torch.float64:
        return tiny.law(case.behavior, log_p, log_q)
    return reference.blend(log_p, log_q, float(beta[row, position]))


@pytest.mark.parametrize(("behavior", "dtype"), CASES)
def test_student_and_behavior_log_probs_are_those_of_a_plain_pass(
    behavior: Behavior, dtype: torch.dtype
) -> None:
    case = sampled(behavior, dtype)
    # β* is solved to 1e-9·ε in float64, so its law is known to about that.
    law_tolerance = (
        5e-9 if isinstance(behavior, TrustRegion) and dtype == torch.float64 else TOLERANCE[dtype]
    )
    assert case.rollouts.student_BT.dtype == dtype
    for row, t, token in case.positions():
        student, behaved = case.rollouts.student_BT[row, t], case.rollouts.behavior_BT[row, t]
        assert float(student) == pytest.approx(case.log_p[row][t][token], abs=TOLERANCE[dtype])
        assert float(behaved) == pytest.approx(expected_law(case, row, t)[token], abs=law_tolerance)


@pytest.mark.parametrize(("behavior", "dtype"), CASES)
def test_support_is_the_top_k_of_the_untempered_student(
    behavior: Behavior, dtype: torch.dtype
) -> None:
    case = sampled(behavior, dtype)
    for row, t, _ in case.positions():
        ids = case.rollouts.support_ids_BTK[row, t].tolist()
        assert ids == np.argsort(-case.log_p[row][t], kind="stable")[:TOP_K].tolist()


@pytest.mark.parametrize(("behavior", "dtype"), [(b, d) for b, d in CASES if b in BLENDED])
def test_lockstep_teacher_scores_are_those_of_a_plain_pass(
    behavior: Behavior, dtype: torch.dtype
) -> None:
    case = sampled(behavior, dtype)
    scores = case.rollouts.teacher
    assert scores is not None
    for row, t, token in case.positions():
        log_q = case.log_q[row][t]
        support = case.rollouts.support_ids_BTK[row, t].numpy()
        own = set(np.argsort(-log_q)[:TOP_K].tolist())
        assert scores.support_BTK[row, t].numpy() == pytest.approx(
            log_q[support], abs=TOLERANCE[dtype]
        )
        assert float(scores.token_BT[row, t]) == pytest.approx(log_q[token], abs=TOLERANCE[dtype])
        assert float(scores.entropy_BT[row, t]) == pytest.approx(
            -reference.kl(log_q, np.zeros(tiny.SIZE)), abs=TOLERANCE[dtype]
        )
        assert float(scores.overlap_BT[row, t]) == len(own & set(support.tolist())) / TOP_K


@pytest.mark.parametrize("behavior", BLENDED)
def test_measurements_are_those_of_the_law(behavior: Behavior) -> None:
    case = sampled(behavior, torch.float64)
    measured = case.rollouts.measured
    for row, t, _ in case.positions():
        log_p, log_q = case.log_p[row][t], case.log_q[row][t]
        log_mu = tiny.law(behavior, log_p, log_q)
        assert float(measured["behavior_kl"][row, t]) == pytest.approx(
            reference.kl(log_mu, log_p), abs=1e-6
        )
        survival = np.minimum(np.exp(log_mu), np.exp(log_p)).sum()
        assert float(measured["acceptance"][row, t]) == pytest.approx(survival, abs=1e-6)
        if isinstance(behavior, TeacherInjection):
            outside = np.argsort(-log_q)[behavior.top_k :]
            assert float(measured["replaced"][row, t]) == pytest.approx(
                np.exp(log_p[outside]).sum(), abs=1e-6
            )
        if isinstance(behavior, TrustRegion):
            assert float(measured["beta"][row, t]) == pytest.approx(
                reference.largest_beta(log_p, log_q, behavior.epsilon), abs=1e-6
            )
            assert bool(measured["teacher_feasible"][row, t]) == (
                reference.kl(log_q, log_p) <= behavior.epsilon
            )
        if isinstance(behavior, BatchBudget):
            assert float(measured["beta"][row, t]) == pytest.approx(behavior.beta)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("behavior", TRUST_REGIONS)
def test_trust_region_keeps_its_promises_at_every_position(
    behavior: TrustRegion, dtype: torch.dtype
) -> None:
    case = sampled(behavior, dtype)
    measured, epsilon = case.rollouts.measured, behavior.epsilon
    for row, t, _ in case.positions():
        beta = float(measured["beta"][row, t])
        realised = reference.kl(expected_law(case, row, t), case.log_p[row][t])
        assert realised <= epsilon * (1 + 1e-4) + 1e-6
        assert beta == 1 or realised >= epsilon * (1 - 2e-4) - 1e-6
        assert float(measured["behavior_kl"][row, t]) == pytest.approx(realised, abs=2e-6)
        assert float(measured["acceptance"][row, t]) >= 1 - (epsilon / 2) ** 0.5


def test_the_widest_region_holds_some_teachers_and_not_others() -> None:
    case = sampled(TrustRegion(2.0))
    feasible = case.rollouts.measured["teacher_feasible"][case.rollouts.mask_BT]
    assert 0 < float(feasible.mean()) < 1


@pytest.mark.parametrize("behavior", tiny.BEHAVIORS)
def test_a_response_ends_at_its_eos_or_at_the_limit(behavior: Behavior) -> None:
    rollouts = sampled(behavior).rollouts
    assert len(set(rollouts.lengths_B.tolist())) > 3
    for row, length in enumerate(rollouts.lengths_B.tolist()):
        response = rollouts.response(row)
        assert 1 <= len(response) == length <= MAX_TOKENS
        assert tiny.STUDENT_EOS not in response[:-1]
        assert set(response) <= set(range(tiny.VALID)) - {tiny.TEACHER_EOS}
        stopped = response[-1] == tiny.STUDENT_EOS
        assert bool(rollouts.truncated_B[row]) == (not stopped)
        assert stopped or length == MAX_TOKENS
        assert not rollouts.tokens_BT[row, length:].any()
        assert rollouts.mask_BT[row].tolist() == [
            t < length for t in range(rollouts.tokens_BT.shape[1])
        ]
    assert 0 < int(rollouts.truncated_B.sum()) < len(rollouts.requests)


@pytest.mark.parametrize("behavior", tiny.BEHAVIORS)
def test_eos_at_the_last_allowed_position_is_not_truncation(behavior: Behavior) -> None:
    case = sampled(behavior)
    length = int(case.rollouts.lengths_B[~case.rollouts.truncated_B].max())
    shorter = case.run(tiny.requests(SAMPLES), max_tokens=length)
    ended = (shorter.lengths_B == length) & ~shorter.truncated_B
    assert ended.any()
    assert all(
        shorter.response(row)[-1] == tiny.STUDENT_EOS for row in ended.nonzero()[:, 0].tolist()
    )


@pytest.mark.parametrize("behavior", tiny.BEHAVIORS)
def test_a_lower_limit_gives_a_prefix_of_the_same_tokens(behavior: Behavior) -> None:
    case = sampled(behavior)
    for limit in (1, 3):
        shorter = case.run(tiny.requests(SAMPLES), max_tokens=limit)
        for row in range(len(shorter.requests)):
            assert shorter.response(row) == case.rollouts.response(row)[:limit]


@pytest.mark.parametrize("behavior", tiny.BEHAVIORS)
def test_a_row_does_not_depend_on_its_batch(behavior: Behavior) -> None:
    case = sampled(behavior)
    whole = {request.key: row for row, request in enumerate(case.rollouts.requests)}
    requests = tiny.requests(SAMPLES)
    order = np.random.default_rng(0).permutation(len(requests))
    alone = [[request] for request in requests[::5]]
    for batch in ([requests[i] for i in order], requests[::-1], requests[3:9], *alone):
        part = case.run(batch)
        assert part.requests == batch
        for row, request in enumerate(batch):
            same = whole[request.key]
            length = len(part.response(row))
            assert part.response(row) == case.rollouts.response(same)
            for name in ("student_BT", "behavior_BT"):
                ours, theirs = (
                    getattr(r, name)[i, :length] for r, i in ((part, row), (case.rollouts, same))
                )
                torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_other_keys_give_other_tokens() -> None:
    case = sampled(Student())
    rows = [tuple(case.rollouts.response(row)) for row in range(SAMPLES)]
    again = case.run(tiny.requests(SAMPLES, seed=1))
    assert len(set(rows)) > 1
    assert [tuple(again.response(row)) for row in range(SAMPLES)] != rows


@pytest.mark.parametrize("behavior", tiny.BEHAVIORS)
def test_no_support_is_recorded_where_none_is_asked_for(behavior: Behavior) -> None:
    case = sampled(behavior)
    bare = case.run(tiny.requests(SAMPLES), top_k=0)
    assert bare.support_ids_BTK.shape == (*bare.tokens_BT.shape, 0)
    assert bare.teacher is None
    torch.testing.assert_close(bare.tokens_BT, case.rollouts.tokens_BT)


def test_a_teacher_that_samples_emits_the_students_eos() -> None:
    teacher = tiny.teacher(torch.float64)
    rollouts = generate(teacher, None, tiny.requests(SAMPLES), Student(), Decoding(MAX_TOKENS))
    log_q = tiny.visited_rows(teacher, rollouts)
    assert not rollouts.truncated_B.all()
    for row, expected in enumerate(log_q):
        response = rollouts.response(row)
        assert tiny.TEACHER_EOS not in response
        assert rollouts.student_BT[row, : len(response)].numpy() == pytest.approx(
            expected[range(len(response)), response], abs=1e-10
        )


@pytest.mark.parametrize("behavior", [Student(), TrustRegion(0.05)])
def test_every_stop_id_of_a_student_ends_its_responses(behavior: Behavior) -> None:
    """The first of them stands for all, with the sum of their probabilities."""
    space = TokenSpace(tiny.VALID, [tiny.STUDENT_EOS, 2, 7], [tiny.TEACHER_EOS, 2])
    student = replace(tiny.student(torch.float64), space=space)
    teacher = replace(tiny.teacher(torch.float64), space=space)
    requests = tiny.requests(SAMPLES)
    rollouts = generate(student, teacher, requests, behavior, Decoding(MAX_TOKENS, TOP_K))
    assert not rollouts.truncated_B.all()
    for row, request in enumerate(requests):
        response = rollouts.response(row)
        assert not {2, 7, tiny.TEACHER_EOS} & set(response)
        assert bool(rollouts.truncated_B[row]) == (response[-1] != tiny.STUDENT_EOS)
        ids = torch.tensor([[*request.prompt_ids, *response]])
        with torch.no_grad():
            logits = student.model(input_ids=ids, use_cache=False).logits[0]
        # Brute force: probabilities of the raw ids, the teacher's own masked.
        p = logits[len(request.prompt_ids) - 1 : -1, : tiny.VALID].exp()
        p[:, tiny.TEACHER_EOS] = 0
        p = p / p.sum(-1, keepdim=True)
        p[:, tiny.STUDENT_EOS] += p[:, 2] + p[:, 7]
        expected = p[range(len(response)), response].log()
        assert rollouts.student_BT[row, : len(response)].numpy() == pytest.approx(
            expected.numpy(), abs=1e-10
        )


@pytest.mark.parametrize(
    "behavior", [b for b in tiny.BEHAVIORS if b not in (TrustRegion(2.0), TeacherInjection(6, 1.0))]
)
def test_the_first_two_tokens_have_the_law_of_the_behavior(behavior: Behavior) -> None:
    student, teacher = tiny.student(), tiny.teacher()
    prompt, draws = (3, 1, 4), 20_000
    requests = [
        Request(prompt, SequenceKey(Purpose.TRAINING, 7, 0, 0, sample)) for sample in range(draws)
    ]
    rollouts = generate(student, teacher, requests, behavior, Decoding(2))
    counts = np.zeros((tiny.SIZE, tiny.SIZE))
    for first, *rest in map(rollouts.response, range(draws)):
        counts[first, rest[0] if rest else 0] += 1
    tiny.assert_frequencies(
        counts.ravel(), two_token_law(student, teacher, behavior, prompt).ravel()
    )


def two_token_law(
    student: CausalModel, teacher: CausalModel, behavior: Behavior, prompt: tuple[int, ...]
) -> Array:
    """Probability (V, V) of every pair by enumeration; a response of EOS alone counts as (EOS, 0)."""
    joint = np.zeros((tiny.SIZE, tiny.SIZE))
    for first in range(tiny.VALID):
        with torch.no_grad():
            log_p, log_q = (tiny.visited(m, prompt, [first, 0]).numpy() for m in (student, teacher))
        at_start, after = (np.exp(tiny.law(behavior, log_p[t], log_q[t])) for t in (0, 1))
        joint[first] = at_start[first] * (
            np.eye(tiny.SIZE)[0] if first == tiny.STUDENT_EOS else after
        )
    return joint


@pytest.fixture(scope="module")
def models_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("behavior", tiny.BEHAVIORS)
def test_decoding_batches_of_any_size_give_the_same_rollouts(
    models_folder: Path, behavior: Behavior
) -> None:
    requests, runs = tiny.requests(2), []
    for size in (1, 3, 1000):
        sampler = tiny.torch_engine(models_folder, rollout_batch=size, draft_length=1).sampler()
        runs.append(
            concatenate(list(sampler.sample(requests, behavior, Limits(MAX_TOKENS, TOP_K))))
        )
    for run in runs[:-1]:
        assert_same(run, runs[-1])


def test_a_batch_that_does_not_fit_is_decoded_in_smaller_ones(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    requests, sizes = tiny.requests(2), []
    whole = tiny.torch_engine(models_folder, draft_length=1).sampler()
    expected = concatenate(list(whole.sample(requests, Student(), Limits(MAX_TOKENS))))

    def with_room_for_four(
        student: Any, teacher: Any, batch: list[Request], *more: Any
    ) -> Rollouts:
        sizes.append(len(batch))
        if len(batch) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return generate(student, teacher, batch, *more)

    monkeypatch.setattr(engine, "generate", with_room_for_four)
    sampler = tiny.torch_engine(models_folder, draft_length=1).sampler()
    found = [
        concatenate(list(sampler.sample(requests, Student(), Limits(MAX_TOKENS)))) for _ in range(2)
    ]
    for each in found:
        assert_same(each, expected)
    assert len(requests) == 12
    assert sizes == [12, 6, 3, 3, 3, 3] + [3] * 4, "what does not fit is not tried a second time"
    assert "not enough memory: going on with 3 sequences at once" in caplog.text
    monkeypatch.setattr(
        engine,
        "generate",
        lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("no room at all")),
    )
    with pytest.raises(torch.OutOfMemoryError):
        list(sampler.sample(requests, Student(), Limits(MAX_TOKENS)))


def assert_same(a: Rollouts, b: Rollouts) -> None:
    """Equal requests, tokens, lengths and supports; the rest up to float32 noise."""
    assert a.requests == b.requests
    for name in ("tokens_BT", "lengths_B", "truncated_B"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name
    mask = b.mask_BT
    assert torch.equal(a.support_ids_BTK[mask], b.support_ids_BTK[mask])
    for name in ("student_BT", "behavior_BT"):
        torch.testing.assert_close(
            getattr(a, name)[mask], getattr(b, name)[mask], atol=1e-4, rtol=0
        )
    assert a.measured.keys() == b.measured.keys()
    for name in a.measured:
        torch.testing.assert_close(
            a.measured[name][mask], b.measured[name][mask], atol=1e-3, rtol=0
        )
    assert (a.teacher is None) == (b.teacher is None)
    if a.teacher is not None:
        for name, value in vars(b.teacher).items():
            torch.testing.assert_close(
                getattr(a.teacher, name)[mask], value[mask], atol=1e-5, rtol=0
            )


def test_concatenation_pads_shorter_parts_with_zeros() -> None:
    case = sampled(TrustRegion(0.3))
    long, short = case.run(tiny.requests(2)), case.run(tiny.requests(2, seed=1), max_tokens=2)
    both = concatenate([short, long])
    assert both.tokens_BT.shape == (24, long.tokens_BT.shape[1])
    assert not both.tokens_BT[:12, 2:].any()
    assert [both.response(row) for row in range(24)] == [
        p.response(row) for p in (short, long) for row in range(12)
    ]
    assert both.teacher is not None
    assert both.teacher.support_BTK.shape == both.support_ids_BTK.shape
    assert concatenate([long]) is long


# --- diverged models ---


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("owner", ["student", "teacher"])
def test_a_diverged_model_is_named(owner: str, value: float) -> None:
    pair = {"student": tiny.student(), "teacher": tiny.teacher()}
    with torch.no_grad():
        for parameter in pair[owner].model.parameters():
            parameter.fill_(value)
    behaviors = [TrustRegion(0.3), TeacherInjection(3, 0.6)] + [Student()] * (owner == "student")
    for behavior in behaviors:
        with pytest.raises(NotFinite, match=f"^the {owner}'s logits are not finite$"):
            generate(
                pair["student"],
                pair["teacher"],
                tiny.requests(2),
                behavior,
                Decoding(MAX_TOKENS, TOP_K, 3),
            )


def test_a_diverged_teacher_that_answers_itself_is_named() -> None:
    teacher = tiny.teacher()
    with torch.no_grad():
        teacher.model.lm_head.weight.fill_(float("nan"))
    with pytest.raises(NotFinite, match="the teacher's logits"):
        generate(teacher, None, tiny.requests(2), Student(), Decoding(MAX_TOKENS))
