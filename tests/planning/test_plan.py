"""`trb plan`: counts, parameters, memory, tokens and GPU-hours against figures worked out here by
hand.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from orchestrator.engines.memory import Decoder
from orchestrator.errors import UserError
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.methods import behavior_at, needs_teacher
from orchestrator.planning import as_json, costs, plan, steps, totals, view
from orchestrator.planning.evaluation_cost import expected_share
from orchestrator.planning.lengths import LAWS
from orchestrator.planning.numbers import hours_text, long_time
from orchestrator.planning.progress import done_of
from orchestrator.planning.ranges import NOTHING, Range
from orchestrator.planning.rates import Gpu
from orchestrator.selection.study import Study
from tests.fake_runs import quickstart, units_of, write_run
from tests.planning.by_hand import by_hand
from tests.sweeps import ROOT

EXPERIMENTS = ROOT / "experiments"
ONLY_VANILLA = tuple(f"methods.{m}=null" for m in (
    "trust_region", "fixed_epsilon", "veto", "skd", "temperature_warmup", "sft_warmup"))  # fmt: skip
SETUPS = ("qwen3-1.7b", "qwen3-0.6b")
ROLES_APART = ("rollout=1", "teacher=1", "learner=4")
TORCH = "engine.sampler=torch"  # whose decoding is worked out by hand here; that of SGLang is in test_costs
COUNTS = {
    "vanilla": 1,
    "trust_region": 15,
    "fixed_epsilon": 5,
    "veto": 4,
    "skd": 9,
    "temperature_warmup": 6,
    "sft_warmup": 3,
}
# Generations of one checkpoint: problems × n.
SETUP_A = 500 * 64 + 674 * 64 + 40 * 512 + 30 * 512 + 30 * 512
SETUP_B = 1319 * 32 + 500 * 64 + 674 * 64 + 40 * 512


def planned(name: str = "paper", *overrides: str) -> plan.Plan:
    return plan.make_plan(load_experiment(EXPERIMENTS / f"{name}.yaml", overrides))


def units(
    made: plan.Plan, setup: str, method: str | None, kind: str = "trial"
) -> list[plan.PlannedUnit]:
    return [
        u for u in made.units if (u.unit.setup, u.unit.method, u.unit.kind) == (setup, method, kind)
    ]


def vanilla(made: plan.Plan, setup: str = "qwen3-1.7b") -> plan.Resources:
    return units(made, setup, "vanilla")[0].resources


def shown(made: plan.Plan, width: int = 100, clock: view.Machines | None = None) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(view.render(made, clock))
    return capture.get()


def test_counts_of_the_papers_sweep() -> None:
    made = planned()
    total = as_json.totals(made)
    assert total["units"] == 90
    assert total["by_kind"] == {"base_eval": 2, "sft": 2, "trial": 86}
    assert total["by_setup"] == {setup: {"base_eval": 1, "sft": 1, "trial": 43} for setup in SETUPS}
    assert total["by_method"] == {method: 2 * count for method, count in COUNTS.items()}
    assert total["ready_at_once"] == 84
    assert total["gpus_per_trial"] == 1
    counted = Counter((u.unit.setup, u.unit.method) for u in made.units if u.unit.kind == "trial")
    assert counted == {
        (setup, method): count for setup in SETUPS for method, count in COUNTS.items()
    }


def test_batches_are_derived_from_the_gpu_planned_for() -> None:
    found = vanilla(planned()).memory
    assert found is not None
    # Pools of 54.5 and 52.6 GiB (`tests/engines/test_budget.py`): ÷ 0.875 = 62.3 and ÷ (0.875 +
    # 1.125) = 26.3.
    assert (found.sequences_decoded_vanilla, found.sequences_decoded_blending) == (62, 26)
    assert found.sequences_decoded_evaluation == 71, (
        "an evaluator holds the student alone: 70.2 ÷ 0.984"
    )


def test_a_model_too_large_for_the_gpu_is_refused_unless_its_batch_is_configured() -> None:
    with pytest.raises(
        UserError,
        match=r"GPU memory: 79.1 GiB: expected at least .* while the student learns \(Qwen3-1.7B",
    ):
        planned("paper", "training.max_response_tokens=300000")
    text = shown(
        planned("paper", TORCH, "training.max_response_tokens=300000", "runtime.rollout_batch=4")
    )
    assert "Not even one sequence" in text


def test_without_blending_no_room_for_it_is_needed() -> None:
    """On cards of 24 GiB, a role each: contexts and margin take 1 + 0.72, attention 0.5, the table
    of slots 0.01.

    Alone: weights 3.205, graphs 0.717, prefill 0.375 and the sampler 0.688 leave 16.8 GiB, ÷ 0.875
    = 19.2. Blending: weights 18.461, prefill 0.375 and a longest round of 110 requests, 3.3, leave
    nothing.
    """
    apart = (
        "runtime.placement.mode=split",
        *(f"runtime.placement.role_gpus.{role}" for role in ROLES_APART),
    )
    overrides = ("setups=[qwen3-1.7b]", "engine.sampler=sglang", "engine.trainer=verl", *apart)
    small = Gpu("small", 24.0, 3.35e12, 990e12)
    made = plan.make_plan(
        load_experiment(EXPERIMENTS / "paper.yaml", (*overrides, *ONLY_VANILLA)), gpu=small
    )
    found = vanilla(made).memory
    assert found is not None
    assert (found.sequences_decoded_vanilla, found.sequences_decoded_blending) == (19, 0)
    assert [a.name for a in made.assumptions if a.unit == "tokens/s"] == [
        "qwen3-1.7b, student alone"
    ]
    with pytest.raises(
        UserError, match=r"GPU memory: 24.0 GiB: expected at least .* while blending \(Qwen3-1.7B"
    ):
        plan.make_plan(load_experiment(EXPERIMENTS / "paper.yaml", overrides), gpu=small)


def test_an_engine_without_room_is_left_out_of_the_comparison() -> None:
    """Learning of 41,024 tokens: 54.34 GiB with the torch engine beside it and 24.73 of
    activations, 79.07 of 79.1.

    SGLang keeps a context, 0.5, and its captured graphs, 0.72, beside the learner.
    """
    tokens = 41_024
    overrides = ("setups=[qwen3-1.7b]", f"training.max_response_tokens={tokens - 1024}")
    made = planned("paper", TORCH, *overrides)
    fixed = 1 + 0.03 * 79.1 + 15.2564 + 3.2048 + 25.6386 + 5.9571
    found = vanilla(made).memory
    assert found is not None
    assert found.learning == pytest.approx(fixed + tokens * 647_168 / 2**30, abs=1e-3)
    assert fixed + tokens * 647_168 / 2**30 <= 79.1 < fixed + 1.2173 + tokens * 647_168 / 2**30
    assert set(totals.on_engines(made)) == {"torch"}
    with pytest.raises(
        UserError,
        match=r"GPU memory: 79.1 GiB: expected at least 79.4 GiB while the student learns",
    ):
        planned("paper", "engine.sampler=sglang", *overrides)


def test_training_tokens() -> None:
    made = planned()
    assert vanilla(made).training_generations == 400 * 64 * 4 == 102_400
    assert vanilla(made).training_tokens == 102_400 * 7168 == 734_003_200
    [stage] = units(made, "qwen3-1.7b", None, "sft")
    assert stage.resources.training_tokens == 50 * 64 * 4 * 7168
    assert stage.resources.evaluation_generations == 0
    total = as_json.totals(made)["training"]
    assert total["generations"] == 86 * 102_400 + 2 * 12_800
    assert total["tokens"]["most"] == total["generations"] * 7168
    for scenario, law in LAWS.items():
        expected = total["generations"] * by_hand(law.finished, law.endless, 7168).tokens
        assert total["tokens"]["expected"][scenario] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("setup", "once"), [("qwen3-1.7b", SETUP_A), ("qwen3-0.6b", SETUP_B)])
def test_evaluation_generations(setup: str, once: int) -> None:
    assert (SETUP_A, SETUP_B) == (126_336, 137_824)
    made = planned()
    assert vanilla(made, setup).evaluation_generations == 20 * once
    assert vanilla(made, setup).evaluation_tokens == 20 * once * 8192
    [base] = units(made, setup, None, "base_eval")
    assert (base.resources.evaluation_generations, base.resources.training_generations) == (once, 0)
    whole = as_json.totals(made)["evaluation"]["generations"]
    assert whole == (43 * 20 + 1) * (SETUP_A + SETUP_B)


def test_evaluation_under_either_budget() -> None:
    """Full is what the units add up to; a race takes an expected share; rescoring is one checkpoint
    of a family.
    """
    total = as_json.totals(planned())
    found = total["evaluation_budgets"]
    assert (
        found["full"]["generations"]["low"]
        == found["full"]["generations"]["high"]
        == 861 * (SETUP_A + SETUP_B)
    )
    assert found["full"]["gpu_hours"] == pytest.approx(total["gpu_hours"]["evaluate"])
    assert found["rescore"]["generations"]["low"] == 8 * (SETUP_A + SETUP_B)
    hours, whole = found["adaptive"]["generations"], found["full"]["generations"]["low"]
    assert 1 / 32 < hours["low"] / whole < hours["high"] / whole < 1 / 3
    assert total["evaluation_chosen"]["qwen3-1.7b"] == {
        "budget": "full",
        "error": 0.05,
        "rescore": True,
    }


def test_the_base_evaluation_is_no_race() -> None:
    only_base = (
        20 * SETUP_A * Fraction(expected_share(20, planned().experiment.setups["qwen3-1.7b"]).high)
        + SETUP_A
    )
    made = planned("paper", "setups=[qwen3-1.7b]", *ONLY_VANILLA)
    found = as_json.totals(made)["evaluation_budgets"]["adaptive"]["generations"]
    assert found["high"] == round(only_base)


def test_seeds_multiply_a_race_and_do_not_widen_it() -> None:
    once, twice = (
        as_json.totals(planned("paper", "setups=[qwen3-1.7b]", f"seeds={seeds}"))[
            "evaluation_budgets"
        ]
        for seeds in ("[0]", "[0,1]")
    )
    base = SETUP_A  # of the untrained student there is one
    for name in ("adaptive", "rescore"):
        low, doubled = once[name]["generations"]["low"], twice[name]["generations"]["low"]
        assert doubled - base == pytest.approx(2 * (low - base), abs=2)


def test_fewer_candidates_and_smaller_n_leave_less_to_save() -> None:
    setup = planned().experiment.setups["qwen3-1.7b"]
    shares = [expected_share(candidates, setup) for candidates in (1, 2, 20, 100, 300, 900)]
    assert shares[0] == Range.exactly(1)
    assert [share.low for share in shares] == sorted((share.low for share in shares), reverse=True)
    assert [share.high for share in shares] == sorted(
        (share.high for share in shares), reverse=True
    )
    assert shares[-1] == shares[-2]
    small = planned("quickstart").experiment.setups["arithmetic"]
    assert expected_share(20, small).low > shares[2].low
    assert expected_share(20, small).high == 1


@pytest.mark.parametrize(
    ("overrides", "most"),
    [
        ((), 20),
        (("runtime.keep=all",), 20),
        (("evaluation.budget=adaptive",), 20),
        (("seeds=[0,1]",), 40),
    ],
)
def test_checkpoints_on_disk(overrides: tuple[str, ...], most: int) -> None:
    found = as_json.totals(planned("paper", "setups=[qwen3-1.7b]", *ONLY_VANILLA, *overrides))[
        "checkpoints_gib"
    ]
    one = 1_720_574_976 * 2 / 2**30
    assert found["most"] == pytest.approx(most * one, abs=0.001)
    kept = {(): 1, ("runtime.keep=all",): 20, ("seeds=[0,1]",): 2}.get(overrides, 1)
    assert found["kept"] == pytest.approx(kept * one, abs=0.001)


def test_the_chosen_hours_are_those_of_the_chosen_budget() -> None:
    full, races = (
        planned("paper", f"evaluation.budget={budget}") for budget in ("full", "adaptive")
    )
    alone = planned("paper", "evaluation.rescore=false")
    most = [as_json.totals(made)["chosen_gpu_hours"]["high"] for made in (races, alone, full)]
    assert most == sorted(set(most))
    total = as_json.totals(alone)
    assert total["chosen_gpu_hours"] == pytest.approx(total["gpu_hours"]["total"])
    assert total["gpu_hours"]["rescore"] == {"low": 0, "mid": 0, "high": 0}
    assert totals.total_gpu_hours(planned("quickstart")) is None
    assert "Chosen: adaptive with rescore true." in shown(races, 80)
    chosen = totals.total_gpu_hours(races)
    assert chosen is not None
    assert shown(races, 80).count(hours_text(chosen["total"])) == 3, (
        "what is chosen, on a GPU and on this engine"
    )


def test_the_papers_sweep_with_races_costs_what_people_with_h100s_can_spend() -> None:
    chosen = as_json.to_json(planned("paper", "evaluation.budget=adaptive"))["totals"][
        "chosen_gpu_hours"
    ]
    assert 0 < chosen["low"] < chosen["mid"] < 3_100
    assert chosen["mid"] < chosen["high"] < 15_000


def test_the_last_step_is_a_checkpoint_too() -> None:
    made = planned("paper", "training.steps=50", "methods.sft_warmup=null")
    assert vanilla(made).evaluation_generations == 3 * SETUP_A  # after 20, 40 and 50 steps


@pytest.mark.parametrize("steps", [20, 60])
def test_online_steps_are_those_whose_behavior_needs_the_teacher(steps: int) -> None:
    made = planned(
        "paper",
        f"training.steps={steps}",
        "methods.trust_region.epsilon0=[0,0.01]",
        "methods.fixed_epsilon.epsilon=[0,0.01]",
    )
    for u in made.units:
        needing = [
            behavior_at(u.unit.method, u.unit.knobs, k).needs_teacher for k in range(u.unit.steps)
        ]
        assert u.resources.teacher_online_steps == sum(needing), u.unit.id


def test_gpu_hours_of_vanilla_by_hand() -> None:
    """Low scenario on torch: kernel launches bound decoding, arithmetic bounds the rest."""
    hours = vanilla(planned("paper", TORCH)).gpu_hours
    assert hours is not None
    lengths, batches = by_hand(800, 0.045, 7168), 5  # 256 sequences, 60 at once
    assert hours["rollout"].low == pytest.approx(
        400 * batches * lengths.longest(60) * 0.025 / 3600, rel=1e-3
    )
    tokens = 256 * (150 + lengths.tokens)
    assert hours["score"].low == pytest.approx(
        400 * 2 * 8_190_735_360 * tokens / (0.45 * 990e12) / 3600, rel=1e-4
    )
    assert hours["learn"].low == pytest.approx(
        400 * 6 * 1_720_574_976 * tokens / (0.30 * 990e12) / 3600, rel=1e-4
    )
    assert hours["other"].low == pytest.approx((400 * 6 + 60) / 3600)
    # (79.1 − 0.5 − 2.373 − 3.205) GiB ÷ (9,216 slots × 120 KiB + 32 bytes a logit) = 68.9: an
    # evaluator has no teacher.
    longest = by_hand(800, 0.045, 8192).longest(68)
    batches = 471 + 635 + 302 + 226 + 226  # of 68 sequences, benchmark after benchmark
    assert hours["evaluate"].low == pytest.approx(20 * batches * longest * 0.025 / 3600, rel=1e-3)


def test_the_untrained_student_costs_what_one_checkpoint_of_a_trial_costs() -> None:
    made = planned()
    [base] = units(made, "qwen3-1.7b", None, "base_eval")
    assert base.resources.gpu_hours is not None
    trial = vanilla(made).gpu_hours
    assert trial is not None
    assert base.resources.gpu_hours["evaluate"].low == pytest.approx(trial["evaluate"].low / 20)
    assert all(base.resources.gpu_hours[phase] == NOTHING for phase in costs.TRAINING_PHASES)


def test_the_supervised_stage_decodes_with_the_teacher_alone() -> None:
    [stage] = units(planned("paper", TORCH), "qwen3-1.7b", None, "sft")
    assert stage.resources.gpu_hours is not None
    # (79.1 − 1 − 2.373 − 15.256) GiB ÷ (8,192 slots × 160 KiB + 32 bytes a logit) = 48.2: 256
    # sequences in 6 batches.
    steps = 50 * 6 * by_hand(800, 0.045, 7168).longest(48)
    assert stage.resources.gpu_hours["rollout"].low == pytest.approx(
        steps * 0.025 * 36 / 28 / 3600, rel=1e-3
    )
    assert stage.resources.gpu_hours["score"] == NOTHING, "the teacher's own answers want no scores"


def test_long_caches_bound_decoding_by_bandwidth() -> None:
    student = Decoder(
        layers=28,
        hidden=2048,
        ffn=6144,
        parameters=10**9,
        value_bytes=2,
        kv_bytes=114_688,
        head_groups=2,
    )
    setup = planned("paper", TORCH).costs["qwen3-1.7b"]
    lengths = setup.training_lengths("high")
    seconds = setup.decode_seconds(student, 128, 128, lengths, 0.5 * 3.35e12, "high")
    hand = by_hand(1600, 0.18, 7168)
    moved = 7168 * 2e9 + (3 + 2 * 2) * 114_688 * 128 * hand.reads
    assert seconds == pytest.approx(moved / (0.5 * 3.35e12), rel=4e-3)
    assert seconds > 7168 * 0.040


def test_blending_adds_the_teachers_decoding_and_saves_its_scoring() -> None:
    made = planned("paper", TORCH)
    plain = vanilla(made).gpu_hours
    skd = units(made, "qwen3-1.7b", "skd")[0].resources.gpu_hours
    assert plain is not None
    assert skd is not None
    step = by_hand(800, 0.045, 7168).longest(23) * 0.025 / 3600  # of one batch of the student's
    both = 12 * step * (1 + 36 / 28)  # 256 sequences, 23 at once; launches ∝ layers
    assert skd["rollout"].low == pytest.approx(400 * both, rel=1e-3)
    assert skd["score"] == NOTHING
    assert (skd["learn"], skd["evaluate"]) == (plain["learn"], plain["evaluate"])
    warm = next(
        u for u in units(made, "qwen3-1.7b", "trust_region") if u.unit.knobs["K"] == 50
    ).resources.gpu_hours
    assert warm is not None
    assert warm["score"].low == pytest.approx(plain["score"].low * 350 / 400)
    assert warm["rollout"].low == pytest.approx(
        plain["rollout"].low * 350 / 400 + 50 * both, rel=1e-3
    )


def test_a_configured_batch_is_the_batch_of_everything() -> None:
    hours = vanilla(planned("paper", TORCH, "runtime.rollout_batch=128")).gpu_hours
    assert hours is not None
    training, evaluation = (by_hand(800, 0.045, limit).longest(128) for limit in (7168, 8192))
    assert hours["rollout"].low == pytest.approx(400 * 2 * training * 0.025 / 3600, rel=1e-3)
    batches = 250 + 337 + 160 + 120 + 120
    assert hours["evaluate"].low == pytest.approx(
        20 * batches * evaluation * 0.025 / 3600, rel=1e-3
    )


def test_the_low_estimate_is_the_lower_one_and_phases_add_up() -> None:
    made = planned()
    hours = as_json.totals(made)["gpu_hours"]
    assert list(hours) == [*costs.PHASES, "rescore", "total"]
    assert all(0 < part["low"] < part["mid"] < part["high"] for part in hours.values())
    for bound in ("low", "mid", "high"):
        assert hours["total"][bound] == pytest.approx(
            sum(hours[phase][bound] for phase in totals.ALL_PHASES), abs=0.01
        )
    assert hours["total"]["low"] == pytest.approx(
        sum(u["resources"]["gpu_hours"]["total"]["low"] for u in as_json.to_json(made)["units"]),
        abs=0.1,
    )


def test_json_is_stable_and_complete() -> None:
    made = as_json.to_json(planned())
    assert json.dumps(made) == json.dumps(as_json.to_json(planned()))
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert set(made) == {"units", "totals", "assumptions"}
    assert [unit["id"] for unit in made["units"]] == [u.unit.id for u in planned().units]
    assert set(made["units"][0]) == {
        "id", "kind", "setup", "method", "knobs", "seed", "depends_on", "steps", "done", "resources",
    }  # fmt: skip
    assert all(set(a) == {"name", "unit", "low", "mid", "high", "why"} for a in made["assumptions"])


def test_the_order_counts_what_is_left(tmp_path: Path) -> None:
    experiment, units = quickstart("methods.skd=null")
    (stage,) = units_of(units, "sft")
    study = Study(experiment, units, tmp_path)
    before = shown(plan.make_plan(experiment, units, done_of(study)))
    ready = len([unit for unit in units if not unit.depends_on])
    assert f"order: {ready} units can start at once" in before
    assert f"{stage.id} → 1 trial" in before
    write_run(tmp_path, experiment, stage, {stage.steps: [None, None]}, steps=stage.steps)
    after = shown(plan.make_plan(experiment, units, done_of(study)))
    assert f"order: {ready} units can start at once" in after, (
        "the stage is done, and its trial can start"
    )
    assert "→" not in after


def test_without_a_gpu_nothing_is_made_up() -> None:
    made = planned("quickstart")
    total = as_json.totals(made)
    assert total["gpu_hours"] is None
    assert total["longest_unit_hours"] is None
    assert total["training"]["tokens"]["expected"] is None
    assert made.assumptions == ()
    assert all(u.resources.gpu_hours is None and u.resources.memory is None for u in made.units)
    assert "GPU" not in shown(made).replace("no GPU", "")


@pytest.mark.parametrize("name", ["paper", "quickstart", "arithmetic-seeds"])
@pytest.mark.parametrize("width", [80, 100])
def test_what_the_terminal_shows_fits_and_is_whole(name: str, width: int) -> None:
    text = shown(planned(name), width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    assert text.startswith(f"{name} · ")


def test_the_terminal_shows_what_matters() -> None:
    text = shown(planned())
    for part in (
        "86 trials",
        "43 trials",
        "→ 3 trials",
        "8,832,000",
        "25.8 responses",
        "GPU-hours",
    ):
        assert part in text


def test_only_a_configured_batch_that_does_not_fit_is_warned_of() -> None:
    text = shown(planned("paper", "runtime.rollout_batch=128"))
    assert "runtime.rollout_batch: 128 sequences fit in 79.1 GiB only while they are short" in text
    assert "runtime.rollout_batch" not in shown(planned())
    assert "runtime.rollout_batch" not in shown(planned("paper", "runtime.rollout_batch=13"))


def test_planning_asks_little_of_the_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is instant: each setting's steps are counted once, by halving, however often its
    totals need them.
    """
    asked: Counter[tuple[object, ...]] = Counter()

    def counted(method: str | None, knobs: Mapping[str, Any], step: int) -> bool:
        asked[method, *knobs.values()] += 1
        return needs_teacher(method, knobs, step)

    monkeypatch.setattr(steps, "needs_teacher", counted)
    steps._online.cache_clear()
    shown(planned())
    assert len(asked) == sum(COUNTS.values())
    assert max(asked.values()) <= math.log2(400) + 1


def test_planning_imports_nothing_heavy() -> None:
    heavy = ("torch", "ray", "transformers", "pandas", "rich")
    code = (
        f"import sys, orchestrator.planning.plan; print([m for m in {heavy!r} if m in sys.modules])"
    )
    result: Any = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.strip() == "[]"


# --- on the clock ---


def test_days_and_years_on_some_gpus() -> None:
    made = planned()
    hours = totals.total_gpu_hours(made)
    on_8, chain = totals.hours_on_gpus(made, 8), totals.longest_chain_hours(made)
    assert hours is not None
    assert chain is not None
    assert on_8 is not None
    assert on_8 == hours["total"] / 8
    assert totals.hours_on_gpus(made, 1000) == chain, "training of a unit is not split over GPUs"
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(view.render(made, view.Machines(gpus=8)))
    assert f"On 8 GPUs, kept busy: {long_time(on_8)}." in capture.get()
    assert long_time(Range(23_900, 30_000, 39_600)) == "23,900 – 39,600 hours = 2.7 – 4.5 years"
    assert long_time(Range(775, 1800, 4103)) == "775 – 4,100 hours = 32 – 170 days"


def test_a_share_of_a_gpu_has_its_share_of_memory_and_speed() -> None:
    """Trials that are packed decode fewer sequences at once; launches of their kernels overlap,
    which is the gain.
    """
    whole, half = (
        planned("paper", "setups=[qwen3-0.6b]", f"runtime.placement.gpus={gpus}")
        for gpus in (1, 0.5)
    )
    (roomy, tight) = (vanilla(made, "qwen3-0.6b").memory for made in (whole, half))
    assert roomy is not None
    assert tight is not None
    # Contexts, margin, graphs, prefill, attention, sampler, and the table of requests.
    workspace = 1.5 + 0.03 * 39.55 + 0.7173 + 0.1875 + 0.5 + 0.6875 + 0.0079
    assert tight.workspace == pytest.approx(workspace, abs=1e-3)
    resident = tight.student_weights + tight.teacher_weights + workspace
    assert tight.sequences_at_once_vanilla == int((39.55 - resident) / roomy.kv_student) == 29
    assert 2 * tight.sequences_at_once_vanilla < roomy.sequences_at_once_vanilla
    hours = [vanilla(made, "qwen3-0.6b").gpu_hours for made in (whole, half)]
    assert hours[0] is not None
    assert hours[1] is not None
    assert hours[1]["learn"].mid == pytest.approx(hours[0]["learn"].mid), "arithmetic is shared"
    chains = [totals.longest_chain_hours(made) for made in (whole, half)]
    assert chains[0] is not None
    assert chains[1] is not None
    assert chains[1].mid > chains[0].mid, "a trial takes longer on its share"
    assert "GPU-hours, 0.5 × H100-80GB" in shown(half)


def test_a_pair_that_does_not_fit_its_share_is_refused() -> None:
    with pytest.raises(
        UserError,
        match=r"GPU memory: 15.8 GiB: expected at least 24.6 GiB while the teacher scores",
    ):
        planned("paper", "setups=[qwen3-1.7b]", "runtime.placement.gpus=0.2")


def test_a_chain_is_the_supervised_stage_and_what_starts_from_it() -> None:
    made = planned("paper", "setups=[qwen3-1.7b]", *ONLY_VANILLA[:-1], "evaluation.rescore=false")
    hours = totals.unit_hours(made)
    [stage] = units(made, "qwen3-1.7b", None, "sft")
    trial = units(made, "qwen3-1.7b", "sft_warmup")[0]
    training = [hours[u.unit.id][phase] for u in (trial, stage) for phase in costs.TRAINING_PHASES]
    chain, expected = totals.longest_chain_hours(made), Range.total(training)
    assert chain is not None
    assert [chain.low, chain.high] == pytest.approx([expected.low, expected.high])


def test_what_is_done_is_not_planned_again() -> None:
    """A trial at step 100 of 400 with a quarter of its evaluations, and one of which nothing is
    left.
    """
    experiment = planned("paper", "setups=[qwen3-1.7b]", "methods.skd=null").experiment
    fresh = plan.make_plan(experiment)
    first, second = units(fresh, "qwen3-1.7b", "fixed_epsilon")[:2]
    done = {
        first.unit.id: plan.Done(steps=100, generations=5 * SETUP_A),
        second.unit.id: plan.Done(
            steps=400, generations=20 * SETUP_A, selected=True, rescored=True, complete=True
        ),
    }
    made = plan.make_plan(experiment, done=done)
    whole, left = totals.unit_hours(made), totals.unit_hours(made, left=True)
    for phase in ("rollout", "learn", "evaluate"):
        assert left[first.unit.id][phase].low == pytest.approx(
            0.75 * whole[first.unit.id][phase].low
        )
        assert left[second.unit.id][phase] == NOTHING
    assert len(totals.units_left(made)) == len(made.units) - 1
    assert as_json.totals(made)["left"]["units"] == len(made.units) - 1
    assert "1 of" in shown(made, 80)
    untouched = units(made, "qwen3-1.7b", "vanilla")[0].unit.id
    assert left[untouched] == whole[untouched]


def test_steps_left_with_the_teacher_come_first() -> None:
    [u] = [
        u.unit
        for u in units(planned(), "qwen3-1.7b", "trust_region")
        if u.unit.knobs == {"epsilon0": 0.01, "K": 25}
    ]
    assert [steps.steps_left(u, first) for first in (0, 10, 25, 399, 400)] == [
        (25, 375), (15, 375), (0, 375), (0, 1), (0, 0),
    ]  # fmt: skip


def test_everything_done_is_nothing_to_run() -> None:
    units_of_plan = planned("quickstart").units
    done = {u.unit.id: plan.Done(complete=True) for u in units_of_plan}
    made = plan.make_plan(load_experiment(EXPERIMENTS / "quickstart.yaml"), done=done)
    assert f"{len(units_of_plan)} of {len(units_of_plan)} units done: nothing to run." in shown(
        made, 80
    )


def test_minutes_on_cpus_stand_first_and_are_unknown_before_a_unit_has_run() -> None:
    made = planned("quickstart")
    assert "On 2 CPU cores: minutes to hours" in shown(made, 80, view.Machines(cores=2))
    measured = shown(made, 80, view.Machines(cores=2, cpu_seconds=Range(61.0, 90.0, 200.0)))
    assert "On 2 CPU cores: about 1 – 3 minutes" in measured
    assert measured.index("CPU cores") < measured.index("Vanilla")
