"""What goes to the blending engine and comes back: unchanged. The engine itself is not needed for
that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from orchestrator.config import Runtime
from orchestrator.engines import memory
from orchestrator.engines.common.rounds import Kept, Round, judge, kept_of
from orchestrator.engines.interface import Limits, WeightsRef
from orchestrator.engines.sglang import engine
from orchestrator.engines.sglang.blending_rows import Order, kept_of_records, pack, row_type, unpack
from orchestrator.engines.sglang.engine import SglangSampler
from orchestrator.engines.sglang.process import ROWS, Answer, Generate, Settings
from orchestrator.errors import NotFinite
from orchestrator.policy.spec import Behavior
from orchestrator.policy.vocabulary import TokenSpace
from orchestrator.workers.members import job_of
from tests import tiny

BLENDED = [behavior for behavior in tiny.BEHAVIORS if behavior.needs_teacher]
ROWS_OF_BATCH, DRAFTED = 3, 4


def judged(behavior: Behavior) -> Round:
    """A round on random distributions."""
    generator = torch.Generator().manual_seed(0)
    shape = (ROWS_OF_BATCH, DRAFTED, tiny.SIZE)
    logits = [torch.randn(shape, generator=generator) for _ in range(2)]
    log_p, log_q = tiny.SPACE.student_log_prob(logits[0]), tiny.SPACE.teacher_log_prob(logits[1])
    uniforms = [torch.rand(shape[:2], generator=generator, dtype=torch.float64) for _ in range(2)]
    drafts = log_p.flatten(0, 1).exp().multinomial(1, generator=generator).view(shape[:2])
    return judge(behavior, drafts, log_p, log_q, uniforms[0], uniforms[1])


def records(behavior: Behavior, support: int) -> tuple[Kept, list[bytes]]:
    """What is kept of the tokens that a round emits, and the same as bytes."""
    done = judged(behavior)
    emitted = torch.arange(DRAFTED) < done.count[:, None]
    row, offset = emitted.nonzero(as_tuple=True)
    kept = kept_of(done, row, offset, support)
    first = (offset == 0).int()
    words = pack(kept, first * DRAFTED, first * done.accepted[row], row_type(behavior, support))
    return kept, [one.tobytes() for one in words.numpy()]


@pytest.mark.parametrize("behavior", BLENDED)
def test_an_order_arrives_as_it_was_sent(behavior: Behavior) -> None:
    key = tiny.requests(2)[-1].key
    order = Order(behavior, key, tiny.SPACE, max_tokens=7, support=4, drafted=3, forced=(1, 2))
    assert Order.of_parameters(order.as_parameters() | {"another's": 1}) == order


def test_several_stop_ids_travel_with_an_order() -> None:
    space = TokenSpace(10, [3, 1], [6, 1])
    order = Order(BLENDED[0], tiny.requests(1)[0].key, space, max_tokens=7)
    assert Order.of_parameters(json.loads(json.dumps(order.as_parameters()))) == order


@pytest.mark.parametrize("support", [0, 1, 4])
@pytest.mark.parametrize("behavior", BLENDED)
def test_records_come_back_as_they_were_packed(behavior: Behavior, support: int) -> None:
    kept, rows = records(behavior, support)
    found = unpack(rows, row_type(behavior, support))
    assert int((found["drafted"] > 0).sum()) == ROWS_OF_BATCH
    assert int(found["accepted"].sum()) == int(judged(behavior).accepted.sum())
    again = kept_of_records(found, behavior, support)
    assert set(again.measured) == set(kept.measured)
    assert (again.teacher is None) == (support == 0)
    for name, value in kept.measured.items():
        torch.testing.assert_close(again.measured[name], value, rtol=0, atol=0)
    kept = Kept(kept.tokens, kept.student, kept.behavior, {}, kept.support_ids, kept.teacher)
    again = Kept(again.tokens, again.student, again.behavior, {}, again.support_ids, again.teacher)
    for one, other in zip(again.tensors(), kept.tensors(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


class Process:
    """An engine's process that answers at once with what it is given, and notes what it was asked
    for.
    """

    started: list[Process]
    calls: list[Generate]
    rows: list[bytes]
    tokens: list[int]

    def __init__(self, settings: Settings):
        self.settings, self.weights, self.version, self.ended = settings, [], "0", False
        self.requests = settings.requests
        Process.started.append(self)

    def start(self) -> None: ...

    def load(self, weights: WeightsRef) -> None:
        self.weights.append(weights.step)

    def start_in(self, weights: WeightsRef) -> None:
        self.weights.append(weights.step)

    def generate(self, call: Generate, silence_s: float) -> Iterator[Answer]:
        self.calls.append(call)
        for ask in call.asks:
            yield Answer(
                ask.index,
                self.tokens,
                self.tokens[-1] == tiny.STUDENT_EOS,
                self.version,
                {ROWS: self.rows},
            )

    def end(self) -> None:
        self.ended = True


@pytest.fixture
def student(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SglangSampler:
    monkeypatch.setattr(engine, "EngineProcess", Process)
    Process.started, Process.calls = [], []
    return SglangSampler(job_of(tiny.worker_spec(tmp_path)), "student")


def test_one_engine_is_up_at_a_time_and_has_the_last_weights(student: SglangSampler) -> None:
    student.start(teacher=True)
    student.load(WeightsRef(4, {}))
    for beside_teacher in (True, False, True):
        student._switch(beside_teacher)
        student._opened()
    assert [process.settings.second is not None for process in Process.started] == [
        True,
        False,
        True,
    ]
    assert [process.weights for process in Process.started] == [[4], [4], [4]]
    assert [process.ended for process in Process.started] == [True, True, False]


def test_what_does_not_belong_to_a_response_is_refused(student: SglangSampler) -> None:
    behavior, requests = BLENDED[0], tiny.requests(1)[:1]
    kept, rows = records(behavior, 4)
    student.start(teacher=True)
    Process.rows, Process.tokens = rows, kept.tokens.tolist()
    (rollouts,) = student.sample(requests, behavior, Limits(len(rows), 4))
    assert rollouts.response(0) == Process.tokens
    assert int(rollouts.speculation["rounds"]) == ROWS_OF_BATCH
    with pytest.raises(RuntimeError, match="ended a response after"):
        list(student.sample(requests, behavior, Limits(len(rows) + 1, 4)))
    Process.tokens = Process.tokens[:-1]
    with pytest.raises(RuntimeError, match="records of"):
        list(student.sample(requests, behavior, Limits(len(rows), 4)))


@pytest.mark.parametrize(
    ("drafted", "at_once"),
    [(1, None), (2, None), (3, 5), (16, 1)],
)
def test_longer_rounds_have_fewer_requests(
    drafted: int,
    at_once: int | None,
    student: SglangSampler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A round has room for 16 distributions; 6 requests of γ = 2 fit, as many as are asked for."""
    monkeypatch.setattr(memory, "ROUND_VALUES", 16 * tiny.SIZE)
    behavior = BLENDED[0]
    kept, rows = records(behavior, 4)
    Process.rows, Process.tokens = rows, kept.tokens.tolist()
    student._job = replace(student._job, runtime=Runtime(draft_length=drafted))
    list(student.sample(tiny.requests(1), behavior, Limits(len(rows), 4)))
    [call] = Process.calls
    assert call.at_once == at_once
    orders = [ask.draw for ask in call.asks]
    assert {order.drafted for order in orders if isinstance(order, Order)} == {drafted}


@pytest.mark.parametrize(("name", "owner"), [("student", "student"), ("behavior", "teacher")])
def test_broken_logits_are_named(student: SglangSampler, name: str, owner: str) -> None:
    behavior = BLENDED[0]
    kept, rows = records(behavior, 4)
    broken = unpack(rows, row_type(behavior, 4)).copy()
    broken[name][1] = float("nan")
    student.start(teacher=True)
    Process.rows, Process.tokens = [one.tobytes() for one in broken], kept.tokens.tolist()
    with pytest.raises(NotFinite, match=f"the {owner}'s logits"):
        list(student.sample(tiny.requests(1)[:1], behavior, Limits(len(rows), 4)))
