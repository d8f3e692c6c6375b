"""`trb plan`: counts, parameters, memory, tokens and GPU-hours against figures worked out here by
hand.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.engines.memory import Decoder
from orchestrator.errors import UserError
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.methods import behavior_at, needs_teacher
from orchestrator.planning import costs, plan, work
from orchestrator.planning.lengths import LAWS
from orchestrator.planning.numbers import NOTHING, Range, hours_text, long_time
from orchestrator.planning.progress import done_of
from orchestrator.planning.rates import Gpu
from orchestrator.planning.work import expected_share
from orchestrator.selection.study import Study
from tests.fake_runs import quickstart, units_of, write_run
from tests.planning.by_hand import by_hand
from tests.planning.plans import clock_of, document, known, planned, shown, totals_of
from tests.sweeps import write_experiment

METHODS = ("trust_region", "fixed_epsilon", "veto", "skd", "temperature_warmup", "sft_warmup")
ONLY_VANILLA = tuple(f"methods.{method}=null" for method in METHODS)
SETUPS = ("qwen3-1.7b", "qwen3-0.6b")
ONE_SETUP = "setups=[qwen3-1.7b]"
TORCH = "engine.sampler=torch"  # decodes as worked out here by hand; SGLang in test_costs
COUNTS = dict(zip(("vanilla", *METHODS), (1, 15, 5, 4, 9, 6, 3), strict=True))
# Generations of one checkpoint: problems × n.
SETUP_A = 500 * 64 + 674 * 64 + 40 * 512 + 30 * 512 + 30 * 512
SETUP_B = 1319 * 32 + 500 * 64 + 674 * 64 + 40 * 512
TOO_SMALL = r"GPU memory: {} GiB: expected at least {}"


def units(
    made: plan.Plan, method: str | None, setup: str = "qwen3-1.7b", kind: str = "trial"
) -> list[plan.PlannedUnit]:
    found = []
    for each in made.units:
        if (each.unit.setup, each.unit.method, each.unit.kind) == (setup, method, kind):
            found.append(each)
    return found


def needs(
    made: plan.Plan, method: str | None = "vanilla", setup: str = "qwen3-1.7b", kind: str = "trial"
) -> plan.UnitNeeds:
    return units(made, method, setup, kind)[0].resources


def hours(*args: Any, **kwargs: Any) -> Mapping[str, Range]:
    return known(needs(*args, **kwargs).gpu_hours)


# --- units, tokens and generations ---


def test_counts_of_the_papers_sweep() -> None:
    made = planned()
    total = document(made)["totals"]
    assert total["units"] == 90
    assert total["by_kind"] == {"base_eval": 2, "sft": 2, "trial": 86}
    assert total["by_setup"] == {setup: {"base_eval": 1, "sft": 1, "trial": 43} for setup in SETUPS}
    assert total["by_method"] == {method: 2 * count for method, count in COUNTS.items()}
    assert (total["ready_at_once"], total["gpus_per_trial"]) == (84, 1)
    for setup in SETUPS:
        assert {method: len(units(made, method, setup)) for method in COUNTS} == COUNTS


def test_training_tokens() -> None:
    made = planned()
    assert needs(made).training_generations == 400 * 64 * 4 == 102_400
    assert needs(made).training_tokens == 102_400 * 7168 == 734_003_200
    stage = needs(made, None, kind="sft")
    assert stage.training_tokens == 50 * 64 * 4 * 7168
    assert stage.evaluation_generations == 0
    total = document(made)["totals"]["training"]
    assert total["generations"] == 86 * 102_400 + 2 * 12_800
    assert total["most_tokens"] == total["generations"] * 7168
    for scenario, law in LAWS.items():
        expected = total["generations"] * by_hand(law.finished, law.endless, 7168).tokens
        assert total["expected_tokens"][scenario] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("setup", "once"), [("qwen3-1.7b", SETUP_A), ("qwen3-0.6b", SETUP_B)])
def test_evaluation_generations(setup: str, once: int) -> None:
    assert (SETUP_A, SETUP_B) == (126_336, 137_824)
    made = planned()
    trial, base = needs(made, setup=setup), needs(made, None, setup, "base_eval")
    assert trial.evaluation_generations == 20 * once
    assert trial.evaluation_tokens == 20 * once * 8192
    assert (base.evaluation_generations, base.training_generations) == (once, 0)
    whole = document(made)["totals"]["evaluation"]["generations"]
    assert whole == (43 * 20 + 1) * (SETUP_A + SETUP_B)


def test_the_last_step_is_a_checkpoint_too() -> None:
    made = planned("training.steps=50", "methods.sft_warmup=null")
    assert needs(made).evaluation_generations == 3 * SETUP_A  # after 20, 40 and 50 steps


@pytest.mark.parametrize("of_trial", [20, 60])
def test_online_steps_are_those_whose_behavior_needs_the_teacher(of_trial: int) -> None:
    zero = ("methods.trust_region.epsilon0=[0,0.01]", "methods.fixed_epsilon.epsilon=[0,0.01]")
    for each in planned(f"training.steps={of_trial}", *zero).units:
        unit, needing = each.unit, 0
        for step in range(unit.steps):
            needing += behavior_at(unit.method, unit.knobs, step).needs_teacher
        assert each.resources.teacher_online_steps == needing, unit.id


def test_steps_left_with_the_teacher_come_first() -> None:
    knobs = {"epsilon0": 0.01, "K": 25}
    [u] = [each.unit for each in units(planned(), "trust_region") if each.unit.knobs == knobs]
    assert [work.steps_left(u, first) for first in (0, 10, 25, 399, 400)] == [
        (25, 375), (15, 375), (0, 375), (0, 1), (0, 0),
    ]  # fmt: skip


# --- races and disk ---


def test_fewer_candidates_and_smaller_n_leave_less_to_save() -> None:
    setup = planned().experiment.setups["qwen3-1.7b"]
    shares = [expected_share(candidates, setup) for candidates in (1, 2, 20, 100, 300, 900)]
    assert shares[0] == Range.exactly(1)
    for scenario in ("low", "high"):
        falling = [share.at(scenario) for share in shares]
        assert falling == sorted(falling, reverse=True)
    assert shares[-1] == shares[-2]
    small = expected_share(20, planned(name="arithmetic-seeds").experiment.setups["arithmetic"])
    assert small.low > shares[2].low
    assert small.high == 1


@pytest.mark.parametrize(
    ("override", "kept", "most"),
    [
        ("seeds=[0]", 1, 20),
        ("runtime.keep=all", 20, 20),
        ("evaluation.budget=adaptive", 1, 20),
        ("seeds=[0,1]", 2, 40),
    ],
)
def test_checkpoints_on_disk(override: str, kept: int, most: int) -> None:
    disk = totals_of(ONE_SETUP, *ONLY_VANILLA, override)["checkpoints_gib"]
    one = 1_720_574_976 * 2 / 2**30
    assert disk == pytest.approx({"kept": kept * one, "most": most * one}, abs=0.001)


def test_a_state_to_go_on_from_is_three_numbers_of_each_parameter_twice_while_the_next_is_written() -> (
    None
):
    made = planned(ONE_SETUP, *ONLY_VANILLA)
    gib = 2 * 3 * 4 * 1_720_574_976 / 2**30
    assert document(made)["totals"]["states_gib"] == pytest.approx(gib)
    assert f"each trial in training {gib:.1f} GiB more." in shown(made)
    stages = planned(name="quickstart")
    assert "in training" not in shown(stages)


def test_a_kill_repeats_what_a_trial_did_since_its_last_commit() -> None:
    """Quick steps for the count, slow ones for the hours; at checkpoints alone without saves."""

    def repeated(*overrides: str, name: str = "paper") -> tuple[int, float | None]:
        made = planned(*overrides, name=name)
        lost = document(made)["totals"]["repeated_by_kill"]
        text = shown(made)
        if lost["gpu_hours"] is not None:
            assert f"{lost['steps']} steps, {lost['gpu_hours']:.2f} GPU-hours, of a trial." in text
        return lost["steps"], lost["gpu_hours"]

    vanilla = (ONE_SETUP, *ONLY_VANILLA, "training.checkpoint_every=100")
    step = plan.step_seconds(planned(*vanilla))["qwen3-1.7b"]["now"]["vanilla"]["total"]
    assert repeated(*vanilla, "runtime.save_every=null") == (
        100,
        pytest.approx(100 * step.high / 3600),
    )
    for every, seconds in (("20min", 1200), ("0.5h", 1800), ("90s", 90)):
        expected = math.ceil(seconds / step.high) * step.high / 3600
        assert seconds / 3600 <= expected < (seconds + step.high) / 3600
        assert repeated(*vanilla, f"runtime.save_every={every}") == (
            min(100, math.ceil(seconds / step.low)),
            pytest.approx(expected, rel=0.02),
        )
    on_two = (*vanilla, "runtime.placement.gpus=2", "engine.trainer=verl")
    assert 2 / 3 <= known(repeated(*on_two)[1]) < 0.75
    assert repeated(name="quickstart") == (8, None)
    assert "A kill repeats at most 8 steps of a trial." in shown(planned(name="quickstart"))


def test_races_take_an_expected_share_and_fresh_samples_are_one_checkpoint_of_a_family() -> None:
    full, races, alone = (
        totals_of(f"evaluation.{override}")["gpu_hours"]
        for override in ("budget=full", "budget=adaptive", "rescore=false")
    )
    assert 1 / 32 < races["evaluate"]["low"] / full["evaluate"]["low"] < 1 / 3
    assert races["evaluate"]["high"] < full["evaluate"]["high"] / 3
    assert races["rescore"] == pytest.approx(full["rescore"])
    # Of 861 checkpoints of each setup one stands for each of the eight families.
    assert full["rescore"]["mid"] == pytest.approx(full["evaluate"]["mid"] * 8 / 861)
    assert alone["rescore"] == {"low": 0, "mid": 0, "high": 0}
    assert alone["evaluate"] == pytest.approx(full["evaluate"])
    # People with H100s can spend that.
    assert 0 < races["total"]["low"] < races["total"]["mid"] < 3_100
    assert races["total"]["mid"] < races["total"]["high"] < 15_000


def test_seeds_multiply_a_race_and_do_not_widen_it() -> None:
    adaptive = (ONE_SETUP, "evaluation.budget=adaptive")
    once, twice = (
        totals_of(*adaptive, f"seeds={seeds}")["gpu_hours"] for seeds in ("[0]", "[0,1]")
    )
    base = hours(planned(ONE_SETUP), None, kind="base_eval")["evaluate"].low  # there is one
    for phase in ("evaluate", "rescore"):
        low, doubled = once[phase]["low"], twice[phase]["low"]
        assert doubled - base == pytest.approx(2 * (low - base))


# --- memory ---


@pytest.mark.parametrize(
    ("override", "gib", "needed"),
    [
        ("training.max_response_tokens=300000", "79.1", ".* while the student learns"),
        ("runtime.placement.gpus=0.2", "15.8", "22.8 GiB while the teacher scores"),
    ],
)
def test_a_pair_too_large_for_its_gpu_is_refused(override: str, gib: str, needed: str) -> None:
    with pytest.raises(UserError, match=TOO_SMALL.format(gib, needed)):
        planned(ONE_SETUP, override)


@pytest.mark.parametrize(
    ("overrides", "warned"),
    [
        ((), ""),
        (("runtime.rollout_batch=13",), ""),
        (("runtime.rollout_batch=128",), "runtime.rollout_batch: 128 responses"),
        (
            (TORCH, "runtime.rollout_batch=4", "training.max_response_tokens=300000"),
            "learning does not fit",
        ),
    ],
)
def test_a_configured_batch_that_may_not_fit_is_warned_of(
    overrides: tuple[str, ...], warned: str
) -> None:
    text = shown(planned(*overrides))
    assert warned in text
    assert warned or ("runtime.rollout_batch" not in text and "does not fit" not in text)


def test_without_blending_no_room_for_it_is_needed() -> None:
    """On cards of 24 GiB, a role each: contexts and margin take 1 + 0.72, attention 0.5, the table
    of slots 0.01.

    Alone: weights 3.205, graphs 0.717, prefill 0.375 and the sampler 0.688 leave 16.8 GiB, ÷ 0.875
    = 19.2. Blending: weights 18.461, prefill 0.375 and a longest round of 110 requests, 3.3, leave
    nothing.
    """
    roles = [
        f"runtime.placement.role_gpus.{role}" for role in ("rollout=1", "teacher=1", "learner=4")
    ]
    engines = ("engine.sampler=sglang", "engine.trainer=verl", "runtime.placement.mode=split")
    overrides, small = (ONE_SETUP, *engines, *roles), Gpu("small", 24.0, 3.35e12, 990e12)
    made = planned(*overrides, *ONLY_VANILLA, gpu=small)
    [budgets], [setup] = plan.memories(made).values(), made.experiment.setups.values()
    assert plan.full_length(known(budgets["decoding"]), setup) == 19
    assert budgets["blending"] is None
    with pytest.raises(UserError, match=TOO_SMALL.format("24.0", ".* while blending")):
        planned(*overrides, gpu=small)


# --- GPU-hours ---


def test_gpu_hours_of_vanilla_by_hand() -> None:
    """Low scenario on torch: kernel launches bound decoding, arithmetic bounds the rest."""
    found = hours(planned(TORCH))
    lengths, batches = by_hand(800, 0.045, 7168), 5  # 256 sequences, 60 at once
    rollout = 400 * batches * lengths.longest(60) * 0.025 / 3600
    assert found["rollout"].low == pytest.approx(rollout, rel=1e-3)
    tokens = 400 * 256 * (150 + lengths.tokens) / 3600
    score = 2 * 8_190_735_360 / (0.45 * 990e12)
    learn = 0.75 * 6 * 1_720_574_976 / (0.30 * 990e12)  # no layer is computed again
    moved = 400 * 256 * lengths.tokens * 151_936 * 50 / (0.85 * 3.35e12 * 3600)
    assert found["score"].low == pytest.approx(score * tokens + moved, rel=1e-4)
    assert found["learn"].low == pytest.approx(learn * tokens, rel=1e-4)
    # 3.44 GB of weights stay in the process, 20.6 GB of state leave it; 0.5 s of data.
    other = 0.03 * 3.44115 + 0.07 * 20.6469 + 0.5
    assert found["other"].low == pytest.approx((400 * other + 60) / 3600, rel=1e-4)
    # 64 prompts, sampled and read by both models at the start and at 20 checkpoints.
    batches, alone = 2, lengths.tokens * 64 * 21 / 3600
    sampled = 21 * batches * lengths.longest(60) * 0.025 / 3600
    tokens = 64 * 21 * (150 + lengths.tokens) / 3600
    of_teacher = score * tokens + alone * 151_936 * 50 / (0.85 * 3.35e12)
    measured = sampled + of_teacher * (1 + 1_720_574_976 / 8_190_735_360)
    assert found["held_out"].low == pytest.approx(measured, rel=1e-3)
    # (79.1 − 0.5 − 2.373 − 3.205) GiB ÷ (9,216 slots × 120 KiB + 32 bytes a logit) = 68.9: an
    # evaluator has no teacher.
    longest = by_hand(800, 0.045, 8192).longest(68)
    batches = 471 + 635 + 302 + 226 + 226  # of 68 sequences, benchmark after benchmark
    assert found["evaluate"].low == pytest.approx(20 * batches * longest * 0.025 / 3600, rel=1e-3)


def test_the_untrained_student_costs_what_one_checkpoint_of_a_trial_costs() -> None:
    made = planned()
    base = hours(made, None, kind="base_eval")
    assert base["evaluate"].low == pytest.approx(hours(made)["evaluate"].low / 20)
    assert all(base[phase] == NOTHING for phase in costs.TRAINING_PHASES)


def test_the_supervised_stage_decodes_with_the_teacher_alone() -> None:
    stage = hours(planned(TORCH), None, kind="sft")
    # (79.1 − 1 − 2.373 − 15.256) GiB ÷ (8,192 slots × 160 KiB + 32 bytes a logit) = 48.2: 256
    # sequences in 6 batches.
    decoded = 50 * 6 * by_hand(800, 0.045, 7168).longest(48)
    assert stage["rollout"].low == pytest.approx(decoded * 0.025 * 36 / 28 / 3600, rel=1e-3)
    assert stage["score"] == NOTHING, "the teacher's own answers want no scores"


def test_long_caches_bound_decoding_by_bandwidth() -> None:
    sizes = {"layers": 28, "hidden": 2048, "ffn": 6144, "parameters": 10**9, "value_bytes": 2}
    student = Decoder(**sizes, kv_bytes=114_688, head_groups=2)
    setup = planned(TORCH).costs["qwen3-1.7b"]
    lengths = setup.training_lengths("high")
    seconds = setup.decode_seconds(student, 128, 128, lengths, 0.5 * 3.35e12, "high")
    moved = 7168 * 2e9 + (3 + 2 * 2) * 114_688 * 128 * by_hand(1600, 0.18, 7168).reads
    assert seconds == pytest.approx(moved / (0.5 * 3.35e12), rel=4e-3)
    assert seconds > 7168 * 0.040


def test_blending_adds_the_teachers_decoding_and_saves_its_scoring() -> None:
    made = planned(TORCH)
    plain, skd = hours(made), hours(made, "skd")
    step = by_hand(800, 0.045, 7168).longest(23) * 0.025 / 3600  # of one batch of the student's
    both = 12 * step * (1 + 36 / 28)  # 256 sequences, 23 at once; launches ∝ layers
    tokens = 256 * by_hand(800, 0.045, 7168).tokens
    both += tokens * 151_936 * 450 / (0.85 * 3.35e12) / 3600  # what the verdict moves
    assert skd["rollout"].low == pytest.approx(400 * both, rel=1e-3)
    assert skd["score"] == NOTHING
    assert (skd["learn"], skd["evaluate"]) == (plain["learn"], plain["evaluate"])
    [warm, *_] = [u for u in units(made, "trust_region") if u.unit.knobs["K"] == 50]
    found = known(warm.resources.gpu_hours)
    assert found["score"].low == pytest.approx(plain["score"].low * 350 / 400)
    rollout = plain["rollout"].low * 350 / 400 + 50 * both
    assert found["rollout"].low == pytest.approx(rollout, rel=1e-3)


def test_a_configured_batch_is_the_batch_of_everything() -> None:
    found = hours(planned(TORCH, "runtime.rollout_batch=128"))
    training = 400 * 2 * by_hand(800, 0.045, 7168).longest(128)
    evaluation = 20 * (250 + 337 + 160 + 120 + 120) * by_hand(800, 0.045, 8192).longest(128)
    assert found["rollout"].low == pytest.approx(training * 0.025 / 3600, rel=1e-3)
    assert found["evaluate"].low == pytest.approx(evaluation * 0.025 / 3600, rel=1e-3)


def test_the_low_estimate_is_the_lower_one_and_phases_add_up() -> None:
    made = document(planned())
    found = made["totals"]["gpu_hours"]
    assert list(found) == [*costs.PHASES, "rescore", "total"]
    assert all(0 < part["low"] < part["mid"] < part["high"] for part in found.values())
    for bound in ("low", "mid", "high"):
        by_phase = sum(found[phase][bound] for phase in plan.ALL_PHASES)
        assert found["total"][bound] == pytest.approx(by_phase, abs=0.01)
    by_unit = 0.0
    for unit in made["units"]:
        by_unit += sum(phase["low"] for phase in unit["resources"]["gpu_hours"].values())
    assert found["total"]["low"] == pytest.approx(by_unit, abs=0.1)


def test_a_share_of_a_gpu_has_its_share_of_memory_and_speed() -> None:
    """Trials that are packed decode fewer sequences at once; launches of their kernels overlap,
    which is the gain.
    """
    setup = "qwen3-0.6b"
    whole = planned(f"setups=[{setup}]", "runtime.placement.gpus=1")
    half = planned(f"setups=[{setup}]", "runtime.placement.gpus=0.5")
    roomy, tight = (
        known(plan.memories(made)[setup]["decoding"]).kv_tokens for made in (whole, half)
    )
    assert 2 * tight < roomy
    learn = hours(whole, setup=setup)["learn"].mid
    assert hours(half, setup=setup)["learn"].mid == pytest.approx(learn), "arithmetic is shared"
    chain = known(plan.longest_chain_hours(whole)).mid
    assert known(plan.longest_chain_hours(half)).mid > chain, "a trial takes longer on its share"
    assert "GPU-hours, 0.5 × H100-80GB" in shown(half)


def test_without_a_gpu_nothing_is_made_up() -> None:
    made = planned(name="quickstart")
    found = document(made)
    total = found["totals"]
    assert (
        total["gpu_hours"]
        is total["longest_unit_hours"]
        is total["training"]["expected_tokens"]
        is None
    )
    assert all(u.resources.gpu_hours is None for u in made.units)
    assert found["memory"] == found["step_seconds"] == {}
    assert "GPU" not in shown(made).replace("no GPU", "")


# --- on the clock ---


def test_days_and_years_on_some_gpus() -> None:
    made = planned()
    on_8 = known(plan.hours_on_gpus(made, 8))
    assert on_8 == known(plan.total_gpu_hours(made))["total"] / 8
    chain = plan.longest_chain_hours(made)
    assert plan.hours_on_gpus(made, 1000) == chain, "training of a unit is not split over GPUs"
    assert long_time(on_8) in shown(made, clock_of(made, 8))
    assert long_time(Range(23_900, 30_000, 39_600)) == "23,900 – 39,600 hours = 2.7 – 4.5 years"
    assert long_time(Range(775, 1800, 4103)) == "775 – 4,100 hours = 32 – 170 days"


def test_a_chain_is_the_supervised_stage_and_what_starts_from_it() -> None:
    made = planned(ONE_SETUP, *ONLY_VANILLA[:-1], "evaluation.rescore=false")
    of_units, training = plan.unit_hours(made), []
    for each in (units(made, None, kind="sft")[0], units(made, "sft_warmup")[0]):
        phases = (*costs.TRAINING_PHASES, "held_out")
        training += [of_units[each.unit.id][phase] for phase in phases]
    chain, expected = known(plan.longest_chain_hours(made)), Range.total(training)
    assert [chain.low, chain.high] == pytest.approx([expected.low, expected.high])


def test_many_setups_share_two_columns() -> None:
    """The twelve worlds of the map fit in 80 columns: 3 + 6 + 3 + 3 + 3 + 3 trials in each."""
    lines = shown(planned(name="map"), width=80).splitlines()
    (heading,) = [line for line in lines if line.startswith("trials by method")]
    assert heading.endswith("each of 12 setups  all")
    (trb,) = [line.split() for line in lines if line.startswith("TRB")]
    assert trb[-2:] == ["6", "72"]


# --- what is done ---


def test_seeds_of_the_others_are_named_only_if_there_are_others(tmp_path: Path) -> None:
    def text(own: dict[str, object], others: dict[str, object], seeds: list[int]) -> str:
        methods = {"vanilla": own, "sft_warmup": {"K": [4], **others}}
        path = write_experiment(tmp_path, methods, seeds=seeds)
        return shown(plan.make_plan(load_experiment(path)))

    assert "each with seeds 0, 1" in text({}, {}, [0, 1])
    assert "others with seed 0" in text({"seeds": [0, 1]}, {}, [0])
    of_all = text({"seeds": [0, 1]}, {"seeds": [1, 2]}, [0])
    assert "seeds 1, 2" in of_all
    assert "with seed" not in of_all


def test_what_is_done_is_not_planned_again() -> None:
    """A trial at step 100 of 400 with a quarter of its evaluations, and one of which nothing is
    left.
    """
    fresh = planned(ONE_SETUP, "methods.skd=null")
    first, second = (each.unit.id for each in units(fresh, "fixed_epsilon")[:2])
    everything = {"selected": True, "rescored": True, "complete": True}
    done = {
        first: plan.Done(steps=100, generations=5 * SETUP_A),
        second: plan.Done(steps=400, generations=20 * SETUP_A, **everything),
    }
    made = plan.make_plan(fresh.experiment, done=done)
    whole, left = plan.unit_hours(made), plan.unit_hours(made, left=True)
    for phase in ("rollout", "learn", "evaluate"):
        assert left[first][phase].low == pytest.approx(0.75 * whole[first][phase].low)
        assert left[second][phase] == NOTHING
    assert document(made)["totals"]["left"]["units"] == len(made.units) - 1
    untouched = units(made, "vanilla")[0].unit.id
    assert left[untouched] == whole[untouched]
    text = shown(made)
    assert f"1 of {len(made.units)} units done" in text
    for of_left in (True, False):
        assert hours_text(known(plan.total_gpu_hours(made, left=of_left))["total"]) in text


def test_the_order_counts_what_is_left(tmp_path: Path) -> None:
    experiment, units = quickstart("methods.skd=null")
    (stage,) = units_of(units, "sft")
    study = Study(experiment, units, tmp_path)
    order = f"order: {sum(not unit.depends_on for unit in units)} units can start at once"
    before = shown(plan.make_plan(experiment, units, done_of(study)))
    write_run(tmp_path, experiment, stage, {stage.steps: [None, None]}, steps=stage.steps)
    after = shown(plan.make_plan(experiment, units, done_of(study)))
    assert f"{order}; 1 waits for 1 supervised stage" in before
    assert order in after, "the stage is done, and its trial can start"
    assert "waits" not in after


def test_everything_done_is_nothing_to_run() -> None:
    fresh = planned(name="quickstart")
    done = {each.unit.id: plan.Done(complete=True) for each in fresh.units}
    text = shown(plan.make_plan(fresh.experiment, done=done))
    assert f"{len(done)} of {len(done)} units done: nothing to run." in text


# --- the document and the terminal ---


def test_json_is_stable_and_complete() -> None:
    made = document(planned())
    assert json.dumps(made) == json.dumps(document(planned()))
    assert set(made) == {
        "units", "totals", "memory", "step_seconds", "packing_gains", "max_gpu_hours", "clock",
    }  # fmt: skip
    assert [unit["id"] for unit in made["units"]] == [u.unit.id for u in planned().units]
    assert set(made["units"][0]) == {
        "id", "kind", "setup", "method", "knobs", "seed", "depends_on", "steps", "done", "resources",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["paper", "quickstart", "arithmetic-seeds"])
@pytest.mark.parametrize("width", [80, 100])
def test_the_terminal_shows_whole_lines_that_fit(name: str, width: int) -> None:
    text = shown(planned(name=name), width=width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    assert text.startswith(f"{name} · ")


@pytest.mark.parametrize("budget", ["full", "adaptive"])
def test_the_terminal_shows_the_numbers_of_the_document(budget: str) -> None:
    made = planned(f"evaluation.budget={budget}")
    text = shown(made)
    for estimate in known(plan.total_gpu_hours(made)).values():
        assert hours_text(estimate) in text
    for granted in plan.memories(made)["qwen3-1.7b"].values():
        assert str(granted) in text
    assert f"{document(made)['totals']['training']['generations']:,}" in text


def test_planning_asks_little_of_the_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is instant: each setting's steps are counted once, by halving, however often its
    totals need them.
    """
    asked: Counter[tuple[object, ...]] = Counter()

    def counted(method: str | None, knobs: Mapping[str, Any], step: int) -> bool:
        asked[method, *knobs.values()] += 1
        return needs_teacher(method, knobs, step)

    monkeypatch.setattr(work, "needs_teacher", counted)
    work._online.cache_clear()
    shown(planned())
    assert len(asked) == sum(COUNTS.values())
    assert max(asked.values()) <= math.log2(400) + 1


def test_minutes_on_cpus_are_unknown_before_a_unit_has_run() -> None:
    made = planned(name="quickstart")
    assert "On 2 CPU cores: minutes to hours" in shown(made)
    clock = replace(clock_of(made), cpu_seconds=Range(61.0, 90.0, 200.0))
    assert "On 2 CPU cores: about 1 – 3 minutes" in shown(made, clock)
    clock = replace(clock, cpu_seconds=Range(20.0, 40.0, 61.0))
    assert "On 2 CPU cores: about a minute (" in shown(made, clock)


def test_checkpoints_of_small_models_are_no_zero() -> None:
    """Eleven trials with three checkpoints each of 126,848 parameters in float32."""
    assert pytest.approx(16.0, abs=0.05) == 11 * 3 * 126_848 * 4 / 2**20
    assert "Checkpoints take 16.0 MiB on disk" in shown(planned(name="quickstart"))
