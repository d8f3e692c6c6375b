"""The teacher's batched pass over finished rollouts: equal to lockstep decoding and to plain
forward passes.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from orchestrator.engines.common.passes import Passes, attention_for
from orchestrator.engines.common.scoring import score
from orchestrator.engines.torch.decoding import Decoding, generate
from orchestrator.policy.spec import Behavior, Student
from orchestrator.rollouts import Rollouts, TeacherScores
from tests import tiny
from tests.policy import reference

TOP_K = 4
ENOUGH = 10_000
BLENDED = [behavior for behavior in tiny.BEHAVIORS if behavior.needs_teacher]
FIELDS = tuple(TeacherScores.__dataclass_fields__)


def rolled_out(behavior: Behavior, dtype: torch.dtype = torch.float32) -> Rollouts:
    pair = tiny.student(dtype), tiny.teacher(dtype)
    return generate(*pair, tiny.requests(4, seed=3), behavior, Decoding(7, TOP_K))


@pytest.fixture(scope="module")
def plain() -> Rollouts:
    """Responses of the student alone."""
    return rolled_out(Student())


def assert_equal_scores(
    a: TeacherScores, b: TeacherScores, mask: torch.Tensor, tolerance: float
) -> None:
    for name in FIELDS:
        ours, theirs = (getattr(scores, name)[mask].double() for scores in (a, b))
        torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("behavior", BLENDED)
def test_lockstep_and_batched_scores_agree(behavior: Behavior, dtype: torch.dtype) -> None:
    rollouts = rolled_out(behavior, dtype)
    assert rollouts.teacher is not None
    assert_equal_scores(
        score(tiny.teacher(dtype), rollouts, ENOUGH), rollouts.teacher, rollouts.mask_BT, 1e-5
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_are_those_of_a_plain_pass(plain: Rollouts, dtype: torch.dtype) -> None:
    teacher = tiny.teacher(dtype)
    scores = score(teacher, plain, ENOUGH)
    for row, expected in enumerate(tiny.visited_rows(teacher, plain)):
        for t, token in enumerate(plain.response(row)):
            log_q, support = expected[t], plain.support_ids_BTK[row, t].numpy()
            own = np.argsort(-log_q)[:TOP_K]
            assert scores.support_BTK[row, t].numpy() == pytest.approx(log_q[support], abs=1e-5)
            assert float(scores.token_BT[row, t]) == pytest.approx(log_q[token], abs=1e-5)
            entropy = -reference.kl(log_q, np.zeros(tiny.SIZE))
            assert float(scores.entropy_BT[row, t]) == pytest.approx(entropy, abs=1e-5)
            assert float(scores.overlap_BT[row, t]) == pytest.approx(
                len({*own} & {*support}) / TOP_K
            )


@pytest.mark.parametrize("max_tokens", [1, 17, 30, 100])
def test_scores_do_not_depend_on_micro_batches(plain: Rollouts, max_tokens: int) -> None:
    teacher = tiny.teacher()
    assert_equal_scores(
        score(teacher, plain, max_tokens), score(teacher, plain, ENOUGH), plain.mask_BT, 1e-5
    )


@pytest.mark.parametrize("max_tokens", [1, 30, 100])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-6)])
def test_packed_rows_are_scored_as_padded_ones(
    plain: Rollouts, dtype: torch.dtype, tolerance: float, max_tokens: int
) -> None:
    teacher = tiny.teacher(dtype)
    teacher.model.set_attn_implementation(attention_for(teacher.device))
    padded, packed = (
        score(teacher, plain, max_tokens, Passes(packed=way)) for way in (False, True)
    )
    assert_equal_scores(packed, padded, plain.mask_BT, tolerance)


def test_scores_do_not_depend_on_head_chunks(
    plain: Rollouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = tiny.teacher()
    whole = score(teacher, plain, ENOUGH)
    monkeypatch.setattr("orchestrator.engines.common.scoring.HEAD_CHUNK", {"cpu": 7 * tiny.SIZE})
    assert_equal_scores(score(teacher, plain, ENOUGH), whole, plain.mask_BT, 1e-5)


def test_scores_have_the_shape_of_the_rollouts_and_nothing_beyond_them(plain: Rollouts) -> None:
    scores = score(tiny.teacher(), plain, 40)
    assert scores.support_BTK.shape == plain.support_ids_BTK.shape
    for name in FIELDS:
        values = getattr(scores, name)
        assert values.shape[:2] == plain.tokens_BT.shape
        assert not values[~plain.mask_BT].any()
