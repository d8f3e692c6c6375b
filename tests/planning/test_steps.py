"""Steps that methods cut early, or in which the teacher writes whole responses, by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from orchestrator.config import BenchmarkRun
from orchestrator.engines.budget import Situation
from orchestrator.experiment.evaluation_protocol import held_out_prompts
from orchestrator.experiment.load import load_setup
from orchestrator.planning.costs import BLENDED, PLAIN
from orchestrator.planning.lengths import LAWS, Lengths
from orchestrator.planning.numbers import NOTHING, SCENARIOS, Scenario
from orchestrator.planning.plan import Plan, PlannedUnit, generated
from orchestrator.planning.work import (
    BATCH_PASSES,
    SUPERVISED,
    StepWork,
    held_out_responses,
    work_left,
    work_of_kind,
)
from orchestrator.records.log import LEARN, ROLLOUT, SCORE
from orchestrator.rules import EvaluationBudget
from tests.planning.by_hand import by_hand
from tests.planning.plans import FROM_RATES, known, planned

STEPS, RESPONSES, LIMIT, PROMPT = 400, 256, 1024, 150
BANDWIDTH, PEAK = 3.35e12, 990e12  # of an H100
VOCABULARY = 151_936
STUDENT, TEACHER = 596_049_920, 4_022_468_096  # parameters, of two bytes each
KV_STUDENT, KV_TEACHER = 112 * 1024, 144 * 1024  # bytes a token


@cache
def rivals() -> Plan:
    """The rivals on Qwen3-0.6B with SGLang: 400 steps of 256 responses of at most 1,024 tokens."""
    return planned("confirm=null", *FROM_RATES, name="rivals-small")


def planned_of(method: str) -> list[PlannedUnit]:
    """The trials of a method, one for each of its settings."""
    found = [each for each in rivals().units if each.unit.method == method]
    assert found
    return found


def only(method: str) -> PlannedUnit:
    return planned_of(method)[0]


def tokens(limit: int, scenario: Scenario) -> float:
    """Mean tokens of a response under a limit, summed token by token."""
    law = LAWS[scenario]
    return by_hand(law.finished, law.endless, limit).tokens


def learning_hours(limits: list[int], scenario: Scenario) -> float:
    """6 × parameters × tokens ÷ FLOP/s over steps with these limits."""
    reached = {"low": 0.30, "mid": 0.21, "high": 0.11}[scenario]
    read = sum(RESPONSES * (PROMPT + tokens(limit, scenario)) for limit in limits)
    return 6 * STUDENT * read / (reached * PEAK) / 3600


def scoring_hours(limits: list[int], scenario: Scenario) -> float:
    """2 × parameters × tokens ÷ FLOP/s, and 114 bytes of each value of a response's vocabulary."""
    reached = {"low": 0.45, "mid": 0.40, "high": 0.30}[scenario] * PEAK
    moved = {"low": 0.85, "mid": 0.75, "high": 0.60}[scenario] * BANDWIDTH
    seconds = 0.0
    for limit in limits:
        seconds += 2 * TEACHER * RESPONSES * (PROMPT + tokens(limit, scenario)) / reached
        seconds += RESPONSES * tokens(limit, scenario) * VOCABULARY * 114 / moved
    return seconds / 3600


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
        assert hours[SCORE].at(scenario) == pytest.approx(
            scoring_hours(expected, scenario), rel=5e-3
        )
        assert needed.training_tokens == RESPONSES * sum(expected)
        assert needed.expected_training_tokens.at(scenario) == pytest.approx(
            RESPONSES * sum(tokens(limit, scenario) for limit in expected), rel=5e-3
        )


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
    """A blended step reads weights and caches of both models and moves its distributions."""
    costs = rivals().costs["qwen3-0.6b"]
    step = costs.step(BLENDED, share=share)[ROLLOUT].at(scenario)
    assert step == pytest.approx(decoding_by_hand(share, scenario), rel=1e-6)
    blended = [count for work, count in work_left(only(method).unit, LIMIT).items() if work.share]
    assert sum(blended) == (400 if share else 0)


@pytest.mark.parametrize(("engine", "passes"), [("sglang", 1.0), ("torch", BATCH_PASSES)])
def test_a_batch_that_solves_its_budget_is_sampled_again_where_that_repeats_its_tokens(
    engine: str, passes: float
) -> None:
    """Sampling alone is repeated: the learner has the work of any blended step."""
    own = f"engine.sampler={engine}"
    made = planned("confirm=null", own, *FROM_RATES, name="rivals-small")
    for each in made.units:
        if each.unit.method == "batch_budget":
            horizon = each.unit.knobs["K"]
            assert work_left(each.unit, LIMIT)[StepWork(BLENDED, solved=True)] == horizon
    costs = made.costs["qwen3-0.6b"]
    solved, plain = costs.step(BLENDED, solved=True), costs.step(BLENDED)
    for scenario in SCENARIOS:
        once = plain[ROLLOUT].at(scenario)
        assert solved[ROLLOUT].at(scenario) == pytest.approx(passes * once)
        assert solved[LEARN].at(scenario) == plain[LEARN].at(scenario)


def decoding_by_hand(share: float, scenario: Scenario) -> float:
    passes = {"low": 0.20, "mid": 0.25, "high": 1.0}[scenario]
    drafted = {"low": 6, "mid": 5, "high": 1}[scenario]
    judged = share + (1 - share) * drafted * passes  # student passes for a token
    passes = share + (1 - share) * passes
    launch = {"low": 0.005, "mid": 0.0065, "high": 0.008}[scenario] / 28
    steps = RESPONSES * LAWS[scenario].under(LIMIT, PROMPT).tokens / rows_of("blending", scenario)
    arithmetic = 2 * TEACHER * values(scenario) / VOCABULARY * judged / passes
    arithmetic /= {"low": 0.45, "mid": 0.40, "high": 0.30}[scenario] * PEAK
    student = reading_by_hand(STUDENT, KV_STUDENT, "blending", scenario)
    teacher = reading_by_hand(TEACHER, KV_TEACHER, "blending", scenario)
    student = max(steps * 28 * launch, student + moving_by_hand(128, scenario))
    teacher = max(steps * 36 * launch, teacher, arithmetic)
    return judged * (student + moving_by_hand(450, scenario)) + passes * teacher


def moving_by_hand(moved: int, scenario: Scenario) -> float:
    """Seconds in which so many bytes are moved of each value of the vocabulary, for each token."""
    reached = {"low": 0.85, "mid": 0.75, "high": 0.60}[scenario] * BANDWIDTH
    return values(scenario) * moved / reached


def values(scenario: Scenario) -> float:
    return RESPONSES * LAWS[scenario].under(LIMIT, PROMPT).tokens * VOCABULARY


def rows_of(situation: Situation, scenario: Scenario) -> int:
    lengths, costs = LAWS[scenario].under(LIMIT, PROMPT), rivals().costs["qwen3-0.6b"]
    return min(costs.rows(lengths, situation), RESPONSES)


def reading_by_hand(
    parameters: int, kv_bytes: int, situation: Situation, scenario: Scenario
) -> float:
    """Seconds in which a model's weights and caches are read for the responses of a step."""
    lengths = LAWS[scenario].under(LIMIT, PROMPT)
    rows = rows_of(situation, scenario)
    steps, reads = RESPONSES * lengths.tokens / rows, RESPONSES * lengths.reads
    reached = {"low": 0.60, "mid": 0.55, "high": 0.50}[scenario] * BANDWIDTH
    return (steps * 2 * parameters + reads * kv_bytes) / reached


@pytest.mark.parametrize("method", ["logit_fusion", "teacher_mixture"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_teacher_whose_weight_falls_to_nothing_decodes_k_steps(
    method: str, scenario: Scenario
) -> None:
    """The teacher scores the other steps alone, and the learner has the work of vanilla."""
    vanilla = known(only("vanilla").resources.gpu_hours)
    horizons = []
    for each in planned_of(method):
        horizon = each.unit.knobs["K"]
        horizons.append(horizon)
        assert work_left(each.unit, LIMIT) == {
            StepWork(BLENDED): horizon,
            StepWork(PLAIN): STEPS - horizon,
        }
        assert each.resources.teacher_online_steps == horizon
        hours, plain = known(each.resources.gpu_hours), (STEPS - horizon) / STEPS
        blended = horizon * decoding_by_hand(0.0, scenario) / 3600
        student = reading_by_hand(STUDENT, KV_STUDENT, "decoding", scenario)
        student = STEPS * (student + moving_by_hand(128, scenario)) / 3600
        assert hours[ROLLOUT].at(scenario) == pytest.approx(student * plain + blended, rel=1e-6)
        assert hours[SCORE].at(scenario) == pytest.approx(vanilla[SCORE].at(scenario) * plain)
        assert hours[LEARN] == vanilla[LEARN]
    assert horizons == [15, 50]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_stage_of_adapters_costs_full_training_of_its_updates(scenario: Scenario) -> None:
    """The teacher writes the responses of 50 updates, and their log p is not asked for again."""
    [trial] = planned_of("simple_opd")
    [stage] = [each for each in rivals().units if each.unit.id in trial.unit.depends_on]
    assert stage.unit.knobs == {"rank": 32, "lr": 5e-5}
    assert work_left(stage.unit, LIMIT) == {StepWork(SUPERVISED): 50}
    hours = known(stage.resources.gpu_hours)
    answering = reading_by_hand(TEACHER, KV_TEACHER, "answering", scenario)
    answering = 50 * (answering + moving_by_hand(128, scenario)) / 3600
    assert hours[ROLLOUT].at(scenario) == pytest.approx(answering, rel=1e-6)
    assert hours[LEARN].at(scenario) == pytest.approx(
        learning_hours([LIMIT] * 50, scenario), rel=5e-3
    )
    assert hours[SCORE] == NOTHING
    assert stage.resources.checkpoints == 0, "none of them is evaluated"


def test_each_rank_and_rate_of_adapters_adds_a_stage() -> None:
    grid = "methods.simple_opd={K: [15, 50], rank: [8, 32], lr: [5.0e-5, 1.0e-4]}"
    made = planned("confirm=null", grid, *FROM_RATES, name="rivals-small")
    stages = [each for each in made.units if each.unit.is_supervised]
    trials = [each for each in made.units if each.unit.method == "simple_opd"]
    assert len(stages) == 1 + 4, "one stage of all weights, for sft_warmup"
    assert len(trials) == 8
    assert len({each.unit.depends_on for each in trials}) == 4, "both K start from one stage"
    for each in stages:
        assert each.resources == stages[0].resources
    for each in trials:
        assert each.resources == only("vanilla").resources, "distillation itself is vanilla"


@pytest.mark.parametrize(
    "method", ["top_d", "tr_opd", "aopd", "eopd", "iw_opd", "forward_kl", "sampled_token"]
)
def test_a_method_that_differs_in_its_loss_alone_is_planned_as_vanilla(method: str) -> None:
    for each in planned_of(method):
        assert work_left(each.unit, LIMIT) == {StepWork(PLAIN): STEPS}
        assert each.resources == only("vanilla").resources


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


def test_held_out_prompts_are_answered_at_the_start_and_at_each_checkpoint() -> None:
    """Checkpoints after 20, 40, … 400; the prompts as the experiment asks for them."""
    made = planned("evaluation.held_out=10")
    setup = next(iter(made.experiment.setups.values()))
    counts: dict[str, int] = {}
    for each in made.units:
        counts[each.unit.kind] = held_out_responses(each.unit, setup)
        assert held_out_responses(each.unit, setup, 45) in (0, 10 * 18)
    assert counts == {"trial": 10 * 21, "sft": 0, "base_eval": 0}
    trials = sum(each.unit.is_trial for each in made.units)
    found = generated(made)["held_out"]
    assert (found.generations, found.most_tokens) == (210 * trials, 210 * trials * 7168)
    off = planned("evaluation.held_out=0")
    assert generated(off)["held_out"].generations == 0


@pytest.mark.parametrize(
    ("budget", "limits", "expected"),
    [
        ("full", (8192, 7168), 64),  # 5 % of 68,000 responses
        ("full", (40, 7168), 18),  # of 68,000 × 40 tokens, at full length
        ("adaptive", (40, 7168), 8),  # of a first rung, 1/32 of these
        ("adaptive", (8192, 7168), 64),
    ],
)
def test_by_default_they_cost_a_twentieth_of_a_first_evaluation(
    budget: EvaluationBudget, limits: tuple[int, int], expected: int
) -> None:
    """Two benchmarks of 500 and 1,000 problems, with 64 and 36 samples each."""
    setup = load_setup("arithmetic")
    runs = {
        "short": BenchmarkRun(n=64, path="short.jsonl", problems=500),
        "long": BenchmarkRun(n=36, path="long.jsonl", problems=1000),
    }
    evaluation = replace(
        setup.evaluation, benchmarks=runs, budget=budget, max_response_tokens=limits[0]
    )
    training = replace(setup.training, max_response_tokens=limits[1])
    assert held_out_prompts(replace(setup, evaluation=evaluation, training=training)) == expected


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
