"""EOS canonicalisation and padding against sums over dictionaries (paper, Appendix "EOS
Canonicalization").
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from orchestrator.policy.speculation import sample
from orchestrator.policy.vocabulary import TokenSpace

SIZE, VALID, STUDENT_EOS, TEACHER_EOS = 12, 9, 3, 6
SPACE = TokenSpace(VALID, STUDENT_EOS, TEACHER_EOS)
NEXT_TO_ONE = 1 - 2**-53


def softmax(logits: list[float], ids: list[int]) -> dict[int, float]:
    """Probabilities over `ids` alone."""
    top = max(logits[i] for i in ids)
    weights = {i: math.exp(logits[i] - top) for i in ids}
    return {i: weight / math.fsum(weights.values()) for i, weight in weights.items()}


def student_by_hand(logits: list[float]) -> dict[int, float]:
    return softmax(logits, [i for i in range(VALID) if i != TEACHER_EOS])


def teacher_by_hand(logits: list[float]) -> dict[int, float]:
    q = softmax(logits, list(range(VALID)))
    q[STUDENT_EOS] += q.pop(TEACHER_EOS)
    return q


def assert_law(log_prob: Tensor, expected: dict[int, float], tolerance: float) -> None:
    """Same probabilities, exactly none elsewhere, sum one."""
    assert not log_prob.isnan().any()
    found = log_prob.double().exp().tolist()
    assert math.fsum(found) == pytest.approx(1, abs=10 * tolerance)
    for i, probability in enumerate(found):
        assert probability == pytest.approx(expected.get(i, 0.0), abs=tolerance)
        assert i in expected or probability == 0


def random_logits(seed: int, scale: float) -> Tensor:
    return scale * torch.randn(
        SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0, 100.0])
def test_against_brute_force(seed: int, scale: float) -> None:
    logits = random_logits(seed, scale)
    assert_law(SPACE.student_log_prob(logits), student_by_hand(logits.tolist()), 1e-14)
    assert_law(SPACE.teacher_log_prob(logits), teacher_by_hand(logits.tolist()), 1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision_logits_are_normalised_in_float32(dtype: torch.dtype) -> None:
    logits = random_logits(1, 3.0).to(dtype)
    p, q = SPACE.student_log_prob(logits), SPACE.teacher_log_prob(logits)
    assert p.dtype == q.dtype == torch.float32
    assert_law(p, student_by_hand(logits.tolist()), 1e-6)
    assert_law(q, teacher_by_hand(logits.tolist()), 1e-6)


def test_float64_logits_stay_float64() -> None:
    assert SPACE.student_log_prob(random_logits(0, 1.0)).dtype == torch.float64
    assert SPACE.teacher_log_prob(random_logits(0, 1.0)).dtype == torch.float64


def test_dominant_stop_events() -> None:
    logits = torch.zeros(SIZE, dtype=torch.float64)
    logits[TEACHER_EOS] = 60.0
    assert SPACE.teacher_log_prob(logits)[STUDENT_EOS].exp() == pytest.approx(1, abs=1e-14)
    assert SPACE.student_log_prob(logits)[STUDENT_EOS].exp() == pytest.approx(
        1 / (VALID - 1), abs=1e-14
    )


def test_equal_stop_ids_are_one_coordinate() -> None:
    space = TokenSpace(VALID, STUDENT_EOS, STUDENT_EOS)
    logits = random_logits(2, 2.0)
    expected = softmax(logits.tolist(), list(range(VALID)))
    assert_law(space.student_log_prob(logits), expected, 1e-14)
    assert_law(space.teacher_log_prob(logits), expected, 1e-14)


def test_without_padding_every_id_counts() -> None:
    space = TokenSpace(SIZE, STUDENT_EOS, STUDENT_EOS)
    logits = random_logits(3, 2.0)
    assert_law(space.student_log_prob(logits), softmax(logits.tolist(), list(range(SIZE))), 1e-14)


def test_a_teacher_that_cannot_stop() -> None:
    logits = random_logits(4, 1.0)
    logits[[STUDENT_EOS, TEACHER_EOS]] = float("-inf")
    q = SPACE.teacher_log_prob(logits)
    others = [i for i in range(VALID) if i not in (STUDENT_EOS, TEACHER_EOS)]
    assert_law(q, softmax(logits.tolist(), others), 1e-14)


def test_batches_are_rows_and_inputs_stay_untouched() -> None:
    logits = torch.stack([random_logits(seed, 2.0) for seed in range(6)]).reshape(2, 3, SIZE)
    before = logits.clone()
    for function in (SPACE.student_log_prob, SPACE.teacher_log_prob):
        whole = function(logits)
        rows = torch.stack([function(row) for row in logits.reshape(6, SIZE)]).reshape(2, 3, SIZE)
        assert torch.allclose(whole, rows, rtol=1e-14, atol=0)
        assert torch.equal(logits, before)


def test_padding_and_duplicates_are_never_sampled() -> None:
    logits = random_logits(5, 1.0)
    logits[VALID:] = 50.0
    logits[TEACHER_EOS] = 50.0
    grid = torch.cat(
        [torch.arange(20_000, dtype=torch.float64) / 20_000, torch.tensor([NEXT_TO_ONE]).double()]
    )
    for log_prob in (SPACE.student_log_prob(logits), SPACE.teacher_log_prob(logits)):
        drawn = sample(log_prob.expand(len(grid), -1), grid)
        assert int(drawn.max()) < VALID
        assert TEACHER_EOS not in drawn.tolist()


def test_at_the_size_of_qwen3() -> None:
    space = TokenSpace(valid=151_669, student_eos=151_643, teacher_eos=151_645)
    logits = 3 * torch.randn(151_936, generator=torch.Generator().manual_seed(0))
    for log_prob in (space.student_log_prob(logits), space.teacher_log_prob(logits)):
        assert float(log_prob.double().exp().sum()) == pytest.approx(1, abs=2e-6)
        assert log_prob[151_645] == log_prob[151_669:].max() == float("-inf")
        assert int(sample(log_prob[None], torch.tensor([NEXT_TO_ONE]).double())) < space.valid


# --- several stop ids of a model ---

# Student's and teacher's ids: apart, some in common, all in common, one of the teacher alone.
SEVERAL = [
    ([3, 1], [6, 0]),
    ([3, 1], [1, 6]),
    ([3, 1, 8], [1, 3, 8]),
    (3, [6, 3, 5]),
    ([7, 2], 7),
    ([0, 4, 2], 5),
]


def merged_by_hand(logits: list[float], own: list[int], teachers: list[int], owner: str):
    """The events' probabilities: ids that a model does not end with count for it alone."""
    apart = [i for i in teachers if i not in own]
    ids = [i for i in range(VALID) if owner == "teacher" or i not in apart]
    probability = softmax(logits, ids)
    ends = {*own[1:], *apart} & set(ids)
    probability[own[0]] += math.fsum(probability.pop(i) for i in sorted(ends))
    return probability


def listed(eos: int | list[int]) -> list[int]:
    return [eos] if isinstance(eos, int) else eos


@pytest.mark.parametrize(("own", "teachers"), SEVERAL)
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0, 100.0])
def test_all_stop_ids_are_one_event(own: Any, teachers: Any, scale: float) -> None:
    space = TokenSpace(VALID, own, teachers)
    logits = random_logits(6, scale)
    for owner, function in (
        ("student", space.student_log_prob),
        ("teacher", space.teacher_log_prob),
    ):
        expected = merged_by_hand(logits.tolist(), listed(own), listed(teachers), owner)
        assert_law(function(logits), expected, 1e-14)
        assert set(expected) == {
            i for i in range(SIZE) if not bool(space.is_masked(torch.tensor(i)))
        } | ({space.emitted} & set(expected))
    assert space.emitted == listed(own)[0]


@pytest.mark.parametrize(("own", "teachers"), SEVERAL)
def test_the_gradient_reaches_all_stop_ids_of_the_student(own: Any, teachers: Any) -> None:
    space = TokenSpace(VALID, own, teachers)
    logits = random_logits(7, 2.0).expand(2, -1).clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: space.student_log_prob(x)[:, space.emitted], logits)
    space.student_log_prob(logits)[0, space.emitted].backward()
    assert logits.grad is not None
    p = space.student_log_prob(logits.detach())[0].exp()
    raw = logits.detach()[0]
    ends = listed(own)
    share = (raw[ends] - raw[ends].logsumexp(-1)).exp()
    # ∂ log P(stop) / ∂ logit of its id i = P(i | stop) · (1 − P(stop)).
    assert torch.allclose(logits.grad[0, ends], share * (1 - p[space.emitted]), atol=1e-14)


@pytest.mark.parametrize(("own", "teachers"), SEVERAL)
def test_logits_of_a_support_give_its_law(own: Any, teachers: Any) -> None:
    """As a loss on the support reads them: the softmax over the support, without other logits."""
    space = TokenSpace(VALID, own, teachers)
    logits = torch.stack([random_logits(seed, 3.0) for seed in range(8)])
    log_p = space.student_log_prob(logits)
    support = log_p.topk(4, dim=-1).indices
    support[0, 0] = space.is_masked(torch.arange(SIZE)).nonzero()[0, 0]  # as a foreign one may be
    wide = logits.gather(-1, space.with_others(support))
    found = space.support_logits(wide, support).log_softmax(-1)
    torch.testing.assert_close(found, log_p.gather(-1, support).log_softmax(-1))


def test_a_list_of_one_id_and_an_id_of_both_change_no_bit() -> None:
    logits = torch.stack([random_logits(seed, 4.0) for seed in range(9)]).float()
    for same in (
        TokenSpace(VALID, [STUDENT_EOS], [TEACHER_EOS]),
        TokenSpace(VALID, STUDENT_EOS, [TEACHER_EOS, STUDENT_EOS]),
    ):
        assert torch.equal(same.student_log_prob(logits), SPACE.student_log_prob(logits))
        assert torch.equal(same.teacher_log_prob(logits), SPACE.teacher_log_prob(logits))
        assert same.with_others(torch.zeros(2, 3)).shape == (2, 3)
