"""`trb plan`: counts, parameters, memory, tokens and GPU-hours against figures worked out here by hand."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from orchestrator import plan
from orchestrator.load import load_experiment
from orchestrator.policy.behavior import behavior_at

EXPERIMENTS = Path(__file__).resolve().parent.parent / "experiments"
SETUPS = ("qwen3-1.7b", "qwen3-0.6b")
GIB = 2**30
COUNTS = {
    "vanilla": 1,
    "trust_region": 15,
    "fixed_epsilon": 5,
    "veto": 4,
    "skd": 9,
    "temperature_warmup": 6,
    "sft_warmup": 3,
}
# Parameters as the model cards and checkpoints have them.
PARAMETERS = {
    ("qwen3-0.6b", "student"): 596_049_920,
    ("qwen3-1.7b", "student"): 1_720_574_976,
    ("qwen3-0.6b", "teacher"): 4_022_468_096,
    ("qwen3-1.7b", "teacher"): 8_190_735_360,
}
# Generations of one checkpoint: problems × n.
SETUP_A = 500 * 64 + 674 * 64 + 40 * 512 + 30 * 512 + 30 * 512
SETUP_B = 1319 * 32 + 500 * 64 + 674 * 64 + 40 * 512


def planned(name: str = "paper", *overrides: str) -> plan.Plan:
    return plan.make_plan(load_experiment(EXPERIMENTS / f"{name}.yaml", overrides))


def units(made: plan.Plan, setup: str, method: str | None, kind: str = "trial") -> list[plan.PlannedUnit]:
    return [u for u in made.units if (u.unit.setup, u.unit.method, u.unit.kind) == (setup, method, kind)]


def vanilla(made: plan.Plan, setup: str = "qwen3-1.7b") -> plan.Resources:
    return units(made, setup, "vanilla")[0].resources


def shown(made: plan.Plan, width: int = 100) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(plan.render(made))
    return capture.get()


def test_counts_of_the_papers_sweep() -> None:
    made = planned()
    total = plan.totals(made)
    assert total["units"] == 90
    assert total["by_kind"] == {"base_eval": 2, "sft": 2, "trial": 86}
    assert total["by_setup"] == {setup: {"base_eval": 1, "sft": 1, "trial": 43} for setup in SETUPS}
    assert total["by_method"] == {method: 2 * count for method, count in COUNTS.items()}
    assert total["waves"] == [84, 6]
    assert total["gpus_per_trial"] == 1
    counted = Counter((u.unit.setup, u.unit.method) for u in made.units if u.unit.kind == "trial")
    assert counted == {(setup, method): count for setup in SETUPS for method, count in COUNTS.items()}


def test_waves_follow_the_dependencies() -> None:
    made = planned()
    wave = {u.unit.id: u.wave for u in made.units}
    assert {u.wave for u in made.units if u.unit.method == "sft_warmup"} == {2}
    assert all(wave[needed] < u.wave for u in made.units for needed in u.unit.depends_on)


@pytest.mark.parametrize(("setup", "role"), PARAMETERS)
def test_parameter_counts_are_those_of_the_checkpoints(setup: str, role: str) -> None:
    whole = load_experiment(EXPERIMENTS / "paper.yaml").setups[setup]
    counted = plan.parameters(getattr(whole, role).shape, whole.vocabulary.size)
    assert counted == PARAMETERS[setup, role]


def test_memory_of_a_trial() -> None:
    found = vanilla(planned("paper", "runtime.rollout_batch=8")).memory
    assert found is not None
    student, teacher = PARAMETERS["qwen3-1.7b", "student"], PARAMETERS["qwen3-1.7b", "teacher"]
    kv_student = 2 * 28 * 8 * 128 * 2 * (1024 + 7168) / GIB
    kv_teacher = 2 * 36 * 8 * 128 * 2 * (1024 + 7168) / GIB
    assert (kv_student, kv_teacher) == (0.875, 1.125)
    w_s, w_q, learner = 2 * student / GIB, 2 * teacher / GIB, (4 + 4 + 4 + 4 + 2) * student / GIB
    resident = w_s + w_q + learner + plan.WORKSPACE_GIB
    assert found.student_weights == pytest.approx(w_s)
    assert found.teacher_weights == pytest.approx(w_q)
    assert found.learner_state == pytest.approx(learner)
    assert (found.kv_student, found.kv_teacher, found.sequences_decoded) == (kv_student, kv_teacher, 8)
    assert found.generation_vanilla == pytest.approx(w_s + 8 * 0.875)
    assert found.generation_blending == pytest.approx(w_s + w_q + 8 * 2.0)
    assert found.peak_vanilla == pytest.approx(resident + 8 * 0.875)
    assert found.peak_blending == pytest.approx(resident + 8 * 2.0)
    assert found.sequences_at_once_vanilla == int((80 - resident) / 0.875) == 30
    assert found.sequences_at_once_blending == int((80 - resident) / 2.0) == 13


def test_what_blending_adds_to_generation_is_the_teacher() -> None:
    """The paper's overhead W_Q + KV_Q."""
    for setup in SETUPS:
        found = vanilla(planned(), setup).memory
        assert found is not None
        added = found.teacher_weights + found.sequences_decoded * found.kv_teacher
        assert found.generation_blending - found.generation_vanilla == pytest.approx(added)


def test_a_model_too_large_for_the_gpu_fits_no_sequence() -> None:
    found = vanilla(planned("paper", "engine.dtype=float32", "training.max_response_tokens=200000")).memory
    assert found is not None
    assert (found.sequences_at_once_vanilla, found.sequences_at_once_blending) == (0, 0)
    assert "Not even one sequence" in shown(planned("paper", "training.max_response_tokens=2000000"))


def test_no_more_sequences_are_decoded_than_a_step_has() -> None:
    found = vanilla(planned("paper", "runtime.rollout_batch=100000")).memory
    assert found is not None
    assert found.sequences_decoded == 64 * 4


def test_training_tokens() -> None:
    made = planned()
    assert vanilla(made).training_generations == 400 * 64 * 4 == 102_400
    assert vanilla(made).training_tokens == 102_400 * 7168 == 734_003_200
    [stage] = units(made, "qwen3-1.7b", None, "sft")
    assert stage.resources.training_tokens == 50 * 64 * 4 * 7168
    assert stage.resources.evaluation_generations == 0
    total = plan.totals(made)["training"]
    assert total["generations"] == 86 * 102_400 + 2 * 12_800
    assert total["tokens"]["most"] == total["generations"] * 7168
    assert total["tokens"]["expected"]["low"] == round(total["tokens"]["most"] * plan.LOW.mean_response)


@pytest.mark.parametrize(("setup", "once"), [("qwen3-1.7b", SETUP_A), ("qwen3-0.6b", SETUP_B)])
def test_evaluation_generations(setup: str, once: int) -> None:
    assert (SETUP_A, SETUP_B) == (126_336, 137_824)
    made = planned()
    assert vanilla(made, setup).evaluation_generations == 20 * once
    assert vanilla(made, setup).evaluation_tokens == 20 * once * 8192
    [base] = units(made, setup, None, "base_eval")
    assert (base.resources.evaluation_generations, base.resources.training_generations) == (once, 0)
    whole = plan.totals(made)["evaluation"]["generations"]
    assert whole == (43 * 20 + 1) * (SETUP_A + SETUP_B)


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
        needing = [behavior_at(u.unit.method, u.unit.knobs, k).needs_teacher for k in range(u.unit.steps)]
        assert u.resources.teacher_online_steps == sum(needing), u.unit.id


def test_gpu_hours_of_vanilla_by_hand() -> None:
    """Low scenario: kernel launches bound decoding, arithmetic bounds the rest."""
    hours = vanilla(planned()).gpu_hours
    assert hours is not None
    assert hours["rollout"].low == pytest.approx(400 * 2 * 0.7 * 7168 * 0.025 / 3600)
    tokens = 256 * (0.1 * 1024 + 0.15 * 7168)
    assert hours["score"].low == pytest.approx(400 * 2 * 8_190_735_360 * tokens / (0.4 * 990e12) / 3600)
    assert hours["learn"].low == pytest.approx(400 * 6 * 1_720_574_976 * tokens / (0.4 * 990e12) / 3600)
    batches = 250 + 337 + 160 + 120 + 120  # of 128 sequences, benchmark after benchmark
    assert hours["evaluate"].low == pytest.approx(20 * batches * 0.7 * 8192 * 0.025 / 3600)


def test_long_caches_bound_decoding_by_bandwidth() -> None:
    student = plan.Decoder(layers=28, parameters=10**9, value_bytes=2, kv_bytes=114_688, head_groups=2)
    training = load_experiment(EXPERIMENTS / "paper.yaml").setups["qwen3-1.7b"].training
    seconds = plan.decode_seconds(student, 128, 128, 7168, training, plan.HIGH)
    mean = 0.4 * 7168
    moved = 7168 * 2e9 + (3 + 2 * 2) * 114_688 * 128 * mean * (0.5 * 1024 + mean / 2)
    assert seconds == pytest.approx(moved / (0.5 * 3.35e12))
    assert seconds > 7168 * 0.040


def test_blending_adds_the_teachers_decoding_and_saves_its_scoring() -> None:
    made = planned()
    plain = vanilla(made).gpu_hours
    skd = units(made, "qwen3-1.7b", "skd")[0].resources.gpu_hours
    assert plain is not None
    assert skd is not None
    assert skd["rollout"].low == pytest.approx(plain["rollout"].low * (1 + 36 / 28))  # launches ∝ layers
    assert (skd["score"].low, skd["score"].high) == (0, 0)
    assert (skd["learn"], skd["evaluate"]) == (plain["learn"], plain["evaluate"])
    warm = next(u for u in units(made, "qwen3-1.7b", "trust_region") if u.unit.knobs["K"] == 50).resources.gpu_hours
    assert warm is not None
    assert warm["score"].low == pytest.approx(plain["score"].low * 350 / 400)
    assert warm["rollout"].low == pytest.approx(plain["rollout"].low * (1 + 50 / 400 * 36 / 28))


def test_the_low_estimate_is_the_lower_one_and_phases_add_up() -> None:
    made = planned()
    hours = plan.totals(made)["gpu_hours"]
    assert list(hours) == [*plan.PHASES, "total"]
    assert all(0 < part["low"] < part["high"] for part in hours.values())
    for bound in ("low", "high"):
        assert hours["total"][bound] == pytest.approx(sum(hours[phase][bound] for phase in plan.PHASES), abs=0.01)
    assert hours["total"]["low"] == pytest.approx(
        sum(u["resources"]["gpu_hours"]["total"]["low"] for u in plan.to_json(made)["units"]), abs=0.1
    )


def test_json_is_stable_and_complete() -> None:
    made = plan.to_json(planned())
    assert json.dumps(made) == json.dumps(plan.to_json(planned()))
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert set(made) == {"units", "totals", "assumptions"}
    assert [unit["id"] for unit in made["units"]] == [u.unit.id for u in planned().units]
    assert set(made["units"][0]) == {
        "id", "kind", "setup", "method", "knobs", "seed", "depends_on", "wave", "steps", "resources",
    }  # fmt: skip
    assert all(set(a) == {"name", "unit", "low", "high", "why"} for a in made["assumptions"])


def test_without_a_gpu_nothing_is_made_up() -> None:
    made = planned("quickstart")
    total = plan.totals(made)
    assert total["gpu_hours"] is None
    assert total["longest_unit_hours"] is None
    assert total["training"]["tokens"]["expected"] is None
    assert made.assumptions == ()
    assert all(u.resources.gpu_hours is None and u.resources.memory is None for u in made.units)
    assert "GPU-hours: —" in shown(made)


@pytest.mark.parametrize("name", ["paper", "quickstart", "arithmetic-seeds"])
@pytest.mark.parametrize("width", [80, 100])
def test_what_the_terminal_shows_fits_and_is_whole(name: str, width: int) -> None:
    text = shown(planned(name), width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    assert text.startswith(f"{name} · ")


def test_the_terminal_shows_what_matters() -> None:
    text = shown(planned())
    for part in ("86 trials", "43 trials", "→ 3 trials", "8,832,000", "25.8 responses", "GPU-hours", "assumed"):
        assert part in text
    assert "runtime.rollout_batch: 128 sequences fit in 80 GiB only while they are short" in text
    assert "runtime.rollout_batch" not in shown(planned("paper", "runtime.rollout_batch=13"))


def test_planning_is_instant() -> None:
    experiment = load_experiment(EXPERIMENTS / "paper.yaml")
    started = time.process_time()
    plan.make_plan(experiment)
    assert time.process_time() - started < 0.2


def test_planning_imports_nothing_heavy() -> None:
    heavy = ("torch", "ray", "transformers", "pandas", "rich")
    code = f"import sys, orchestrator.plan; print([m for m in {heavy!r} if m in sys.modules])"
    result: Any = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"
