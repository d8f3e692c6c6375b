"""Steps that methods cut early, or in which the teacher writes whole responses, by hand."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache

import pytest

from orchestrator.planning.costs import BLENDED, PLAIN, StepWork
from orchestrator.planning.lengths import LAWS, Lengths
from orchestrator.planning.plan import Plan, PlannedUnit
from orchestrator.planning.ranges import SCENARIOS, Scenario
from orchestrator.planning.steps import work_left, work_of_kind
from orchestrator.records.columns import LEARN, ROLLOUT, SCORE
from tests.planning.by_hand import by_hand
from tests.planning.plans import known, planned

STEPS, RESPONSES, LIMIT, PROMPT = 400, 256, 1024, 150
BANDWIDTH, PEAK = 3.35e12, 990e12  # of an H100
STUDENT, TEACHER = 596_049_920, 4_022_468_096  # parameters, of two bytes each
KV_STUDENT, KV_TEACHER = 112 * 1024, 144 * 1024  # bytes a token


@cache
def rivals() -> Plan:
    """The rivals on Qwen3-0.6B with SGLang: 400 steps of 256 responses of at most 1,024 tokens."""
    return planned("confirm=null", name="rivals-small")


def only(method: str) -> PlannedUnit:
    [found] = [each for each in rivals().units if each.unit.method == method][:1]
    return found


def tokens(limit: int, scenario: Scenario) -> float:
    """Mean tokens of a response under a limit, summed token by token."""
    law = LAWS[scenario]
    return by_hand(law.finished, law.endless, limit).tokens


def learning_hours(limits: list[int], scenario: Scenario) -> float:
    """6 × parameters × tokens ÷ FLOP/s over steps with these limits."""
    reached = {"low": 0.30, "mid": 0.21, "high": 0.11}[scenario]
    read = sum(RESPONSES * (PROMPT + tokens(limit, scenario)) for limit in limits)
    return 6 * STUDENT * read / (reached * PEAK) / 3600


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_step_that_is_cut_early_costs_its_own_tokens(scenario: Scenario) -> None:
    whole, cut = only("vanilla").resources, only("prefix_horizon").resources
    growing = only("growing_horizon").resources
    limits = [100 + 924 * step // 200 for step in range(200)] + [LIMIT] * 200
    for needed, expected in ((whole, [LIMIT] * 400), (cut, [100] * 400), (growing, limits)):
        hours = known(needed.gpu_hours)
        assert hours[LEARN].at(scenario) == pytest.approx(
            learning_hours(expected, scenario), rel=5e-3
        )
        ratio = hours[SCORE].at(scenario) / known(whole.gpu_hours)[SCORE].at(scenario)
        assert ratio == pytest.approx(
            learning_hours(expected, scenario) / learning_hours([LIMIT] * 400, scenario), rel=5e-3
        )
        assert needed.training_tokens == RESPONSES * sum(expected)
        assert needed.expected_training_tokens.at(scenario) == pytest.approx(
            RESPONSES * sum(tokens(limit, scenario) for limit in expected), rel=5e-3
        )


def test_a_loss_without_a_teacher_is_planned_without_its_scores() -> None:
    whole = known(only("vanilla").resources.gpu_hours)
    control = known(only("fixed_advantage").resources.gpu_hours)
    for scenario in SCENARIOS:
        assert control[SCORE].at(scenario) == 0 < whole[SCORE].at(scenario)
        for phase in (ROLLOUT, LEARN):
            assert control[phase].at(scenario) == whole[phase].at(scenario) > 0
    [step] = work_of_kind(only("fixed_advantage").unit, PLAIN, LIMIT)
    assert step == StepWork(PLAIN, scored=False)


def test_horizons_sample_less_in_the_order_of_their_tokens() -> None:
    hours = []
    for method in ("prefix_horizon", "growing_horizon", "vanilla"):
        hours.append(known(only(method).resources.gpu_hours)[ROLLOUT])
    for scenario in SCENARIOS:
        of = [each.at(scenario) for each in hours]
        assert of == sorted(set(of))


@pytest.mark.parametrize(
    ("method", "share"), [("trust_region", 0.0), ("gkd", 0.5), ("sft_only", 1.0)]
)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_teacher_passes_once_for_each_token_that_it_writes(
    method: str, share: float, scenario: Scenario
) -> None:
    """A blended step reads weights and caches of the student, and of the teacher `passes` times."""
    costs = rivals().costs["qwen3-0.6b"]
    step = costs.step(BLENDED, share=share)[ROLLOUT].at(scenario)
    assert step == pytest.approx(decoding_by_hand(share, scenario), rel=1e-6)
    blended = [count for work, count in work_left(only(method).unit, LIMIT).items() if work.share]
    assert sum(blended) == (400 if share else 0)


def test_a_prefix_is_counted_by_the_tokens_that_the_teacher_writes() -> None:
    costs = rivals().costs["qwen3-0.6b"]
    works = work_left(only("tr_opd_guided").unit, LIMIT)
    begun = Counter(round(1024 * (1 + math.cos(math.pi * k / 400)) / 2) for k in range(400))
    assert {work.prefix: count for work, count in works.items()} == dict(begun)
    for scenario in SCENARIOS:
        written = min(1.0, 300 / costs.tokens_under(None).at(scenario))
        by_share = costs.step(BLENDED, share=written)[ROLLOUT].at(scenario)
        assert costs.step(BLENDED, prefix=300)[ROLLOUT].at(scenario) == pytest.approx(by_share)


def decoding_by_hand(share: float, scenario: Scenario) -> float:
    lengths, costs = LAWS[scenario].under(LIMIT, PROMPT), rivals().costs["qwen3-0.6b"]
    rows = min(costs.rows(lengths, "blending"), RESPONSES)
    steps, reads = RESPONSES * lengths.tokens / rows, RESPONSES * lengths.reads
    passes = {"low": 0.20, "mid": 0.25, "high": 1.0}[scenario]
    passes = share + (1 - share) * passes
    student = steps * 2 * STUDENT + reads * KV_STUDENT
    teacher = steps * 2 * TEACHER + reads * KV_TEACHER
    reached = {"low": 0.60, "mid": 0.55, "high": 0.50}[scenario] * BANDWIDTH
    return (student + passes * teacher) / reached


def test_the_work_of_a_unit_is_counted_from_any_step() -> None:
    unit = only("growing_horizon").unit
    whole, rest = work_left(unit, LIMIT), work_left(unit, LIMIT, 150)
    assert sum(whole.values()) == STEPS
    assert sum(rest.values()) == STEPS - 150
    assert whole[StepWork(PLAIN)] == rest[StepWork(PLAIN)] == 200
    assert whole[StepWork(PLAIN, 100)] == 1
    assert StepWork(PLAIN, 100) not in rest
    assert work_of_kind(unit, PLAIN, LIMIT) == whole
    assert work_of_kind(unit, BLENDED, LIMIT) == {StepWork(BLENDED): 1}, "it has none"


@pytest.mark.parametrize("limit", [64, 300, 700])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_measured_lengths_are_cut_as_the_law_is(limit: int, scenario: Scenario) -> None:
    """Responses of a law without runaways, whose mean a limit of ten means hardly changes."""
    finished = LAWS[scenario].finished
    measured = Lengths(finished, 0.2, round(10 * finished), PROMPT)
    cut, hand = measured.under(limit), by_hand(finished, 0.2, limit)
    assert cut.limit == limit
    assert cut.truncated == pytest.approx(hand.truncated, abs=2e-3)
    assert cut.tokens == pytest.approx(hand.tokens, rel=4e-3)
    assert measured.under(measured.limit + 1) is measured
