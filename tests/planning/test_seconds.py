"""Seconds and lengths that runs measured take the place of what a plan assumes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.experiment.units import Unit
from orchestrator.monitor.status import seconds_left_on
from orchestrator.planning.costs import OTHER, SetupCosts
from orchestrator.planning.lengths import TRAINING_LENGTHS
from orchestrator.planning.numbers import Range
from orchestrator.planning.plan import Plan, make_plan
from orchestrator.planning.rates import GPUS
from orchestrator.planning.seconds import (
    Measured,
    StudySeconds,
    UnitSeconds,
    measure,
    measured_factor,
    on_the_clock,
    study_seconds,
)
from orchestrator.planning.work import teacher_online_steps
from orchestrator.records.clock import BLENDED, PLAIN
from orchestrator.records.writer import RunWriter
from orchestrator.selection.study import Study
from tests.fake_runs import quickstart, units_of, write_run
from tests.planning.plans import Loaded, known, paper, shown

PARTS = {"rollout": 3.0, "score": 0.5, "reward": 0.25, "learn": 1.0}  # seconds of a plain step
LENGTH, TRUNCATED = 1000.0, 0.1  # of training responses
NAME = "qwen3-0.6b"


def first(loaded: Loaded, method: str) -> Unit:
    return units_of(loaded[1], method)[0]


def finish(
    runs: Path, loaded: Loaded, method: str, factor: float = 1.0, gpus: Sequence[str] = ()
) -> Unit:
    """All steps of a method's first unit clocked at `factor` times PARTS, blended ones at twice
    that; 0.02 s a response.
    """
    unit = first(loaded, method)
    benchmarks = loaded[0].setups[unit.setup].evaluation.benchmarks
    with closing(RunWriter(runs, unit.id)) as run:
        run.describe({}, lambda: {"host": {"gpus": list(gpus)}})
        lengths = {"response_length": LENGTH, "truncated": TRUNCATED}
        run.append("metrics.jsonl", [{"step": step, **lengths} for step in range(unit.steps)])
        run.new_checkpoint(unit.steps, lambda folder: (folder / "model.safetensors").touch())
        run.commit(unit.steps)
        for step in range(unit.steps):
            slower = factor * (2 if step < teacher_online_steps(unit) else 1)
            late = 100.0 if step == 0 else 0.0  # what starts with the first step is not of it
            parts = {name: late + seconds * slower for name, seconds in PARTS.items()}
            run.append_timing({"step": step, "phase": "train", **parts})
        for benchmark in benchmarks:
            clock_slice(run, unit, benchmark, 100, 2.0 * factor)
    write_run(runs, loaded[0], unit, {unit.steps: [1] * len(benchmarks)}, steps=unit.steps)
    return unit


def clock_slice(run: RunWriter, unit: Unit, benchmark: str, responses: int, seconds: float) -> None:
    row = {"benchmark": benchmark, "responses": responses, "seconds": seconds}
    run.append_timing({"step": unit.steps, "phase": "evaluate", **row})


def planned(loaded: Loaded, runs: Path) -> Plan:
    return make_plan(*loaded, measured=measure(Study(*loaded, runs)))


def costs_of(loaded: Loaded, runs: Path) -> SetupCosts:
    return planned(loaded, runs).costs[NAME]


# --- for a plan ---


def test_a_finished_unit_sets_the_rates_of_its_setup(tmp_path: Path) -> None:
    loaded = paper()
    finish(tmp_path, loaded, "vanilla")
    veto = first(loaded, "veto").id
    [unit] = [each for each in planned(loaded, tmp_path).units if each.unit.id == veto]
    hours = known(unit.resources.gpu_hours)
    for phase, seconds in (("rollout", 3.0), ("score", 0.5), ("learn", 1.0)):
        measured = pytest.approx((400 * seconds / 3600,) * 2)
        assert (hours[phase].low, hours[phase].high) == measured, phase
    # Starting a unit, which no row of a step holds, is still charged as assumed.
    assert hours["other"].low == pytest.approx((400 * 0.25 + 60) / 3600)
    responses = 20 * (1319 * 32 + 500 * 64 + 40 * 512)
    assert hours["evaluate"].mid == pytest.approx(responses * 0.02 / 3600, rel=1e-3)


def test_blended_steps_keep_the_planned_ratio_until_one_is_measured(tmp_path: Path) -> None:
    loaded = paper("engine.sampler=torch")  # whose teacher decodes every token
    finish(tmp_path, loaded, "vanilla")
    assumed, found = make_plan(*loaded).costs[NAME], costs_of(loaded, tmp_path)
    assert found.tokens_under(None).mid < assumed.tokens_under(None).mid
    assert found.step(PLAIN)["rollout"].mid == pytest.approx(3.0)
    in_proportion = found.step(BLENDED)["rollout"]
    assert in_proportion.mid > 2 * 3.0
    finish(tmp_path, loaded, "skd")
    measured = costs_of(loaded, tmp_path).step(BLENDED)["rollout"]
    assert measured.low < in_proportion.low, "6 s were measured"


def test_the_spread_is_that_between_directories(tmp_path: Path) -> None:
    loaded = paper()
    for method, factor in (("vanilla", 1.0), ("veto", 3.0)):
        finish(tmp_path, loaded, method, factor)
    rollout = costs_of(loaded, tmp_path).step(PLAIN)["rollout"]
    assert (rollout.low, rollout.mid, rollout.high) == pytest.approx((3.0, 6.0, 9.0))


def test_rates_of_another_kind_of_gpu_say_nothing_and_its_lengths_do(tmp_path: Path) -> None:
    loaded = paper()
    finish(tmp_path, loaded, "vanilla", gpus=["NVIDIA A100-SXM4-40GB"])
    found, costs = measure(Study(*loaded, tmp_path)), {}
    for gpu in GPUS.values():
        costs[gpu.name] = make_plan(*loaded, measured=found, gpu=gpu).costs[NAME]
    assert [name for name, of_gpu in costs.items() if of_gpu.factors] == ["A100-40GB"]
    assert costs["A100-40GB"].step(PLAIN)["rollout"].mid == pytest.approx(3.0)
    assert costs["H100-80GB"].tokens_under(None).low == pytest.approx(LENGTH)


@pytest.mark.parametrize(
    ("noted", "kinds"),
    [
        ("NVIDIA H100 80GB HBM3", ["H100-80GB"]),
        ("NVIDIA H100 PCIe", ["H100-80GB"]),  # as near as any, since its name gives no size
        ("NVIDIA A100-SXM4-80GB", ["A100-80GB"]),
        ("NVIDIA A100-PCIE-40GB", ["A100-40GB"]),
        ("NVIDIA H200", ["H200"]),
        ("NVIDIA GH200 480GB", []),
        ("NVIDIA L40S", ["L40S"]),
        ("NVIDIA L40", []),
    ],
)
def test_kinds_of_gpus_by_the_names_of_drivers(noted: str, kinds: list[str]) -> None:
    ran = UnitSeconds(paper()[1][1], {}, "sglang", (noted,))
    assert [name for name, gpu in GPUS.items() if ran.ran_on(gpu)] == kinds


def test_factors_compare_directories_and_all_of_them_together() -> None:
    assert measured_factor([(10.0, 5.0), (10.0, 20.0)]) == Range(0.5, 0.8, 2.0)
    assert measured_factor([]) is None
    assert measured_factor([(1.0, 0.0)]) is None


def test_lengths_are_taken_over_for_all_engines_and_rates_for_the_one_that_ran(
    tmp_path: Path,
) -> None:
    loaded = paper()
    finish(tmp_path, loaded, "vanilla")
    measured, sglang = measure(Study(*loaded, tmp_path)), costs_of(loaded, tmp_path)
    # Of torch nothing but lengths was measured, though the units are the same.
    other = paper("engine.sampler=torch")[0]
    torch = make_plan(other, loaded[1], measured=measured).costs[NAME]
    assert sglang.factors
    assert not torch.factors
    for costs in (torch, sglang):
        training = costs.training_lengths("high")
        assert training.tokens == pytest.approx(LENGTH)
        assert (training.truncated, training.limit) == (pytest.approx(TRUNCATED), 7168)
        # Records of `write_run`: ten tokens a response, none of them cut.
        assert costs.evaluation_lengths("gsm8k", "low").tokens == 10
        assert set(costs.lengths) == {TRAINING_LENGTHS, "gsm8k", "math500", "amc23"}


def test_the_terminal_says_what_the_hours_rest_on(tmp_path: Path) -> None:
    loaded = paper()
    before = shown(planned(loaded, tmp_path))
    finish(tmp_path, loaded, "vanilla")
    after = shown(planned(loaded, tmp_path))
    assert "No run measured" in before
    assert "No run measured" not in after
    assert "Finished runs gave" in after


def test_unfinished_and_damaged_runs_say_nothing(tmp_path: Path) -> None:
    loaded = paper()
    with closing(RunWriter(tmp_path, first(loaded, "vanilla").id)) as run:
        run.describe({}, dict)
        run.append_timing({"step": 0, "phase": "train", **PARTS})
    assert measure(Study(*loaded, tmp_path)) == Measured([], {})
    veto = tmp_path / finish(tmp_path, loaded, "veto").id
    (veto / "timing.jsonl").write_text("{}\n")
    (veto / "metrics.jsonl").write_text("gone")
    found = measure(Study(*loaded, tmp_path))
    assert not found.units
    assert TRAINING_LENGTHS not in found.lengths[NAME], "only its evaluations can be read"
    assert measure(Study(*loaded, tmp_path / "gone")) == Measured()


@pytest.mark.parametrize("place", ["cores", "GPUs"])
def test_benchmarks_of_other_experiments_say_nothing(tmp_path: Path, place: str) -> None:
    """Another experiment's evaluation of the same unit is a thousand times slower than ours."""
    loaded = quickstart("setups=[arithmetic]") if place == "cores" else paper()
    vanilla, estimates = finish(tmp_path, loaded, "vanilla"), []
    for _ in range(2):
        study = Study(*loaded, tmp_path)
        seconds = seconds_left_on(study, {"CPU": 2})
        estimates.append((seconds, planned(loaded, tmp_path).units[-1].resources.gpu_hours))
        with closing(RunWriter(tmp_path, vanilla.id)) as run:
            clock_slice(run, vanilla, "theirs", 1, 1000.0)
    assert estimates[0] == estimates[1]


# --- for the units at hand ---


def test_minutes_on_cpus_rest_on_what_was_clocked(tmp_path: Path) -> None:
    """Vanilla is done, and was clocked; more cores take less."""
    loaded = quickstart("setups=[arithmetic]")
    assert seconds_left_on(Study(*loaded, tmp_path), {"CPU": 2}) is None
    finish(tmp_path, loaded, "vanilla", factor=0.1)
    two, four = (seconds_left_on(Study(*loaded, tmp_path), {"CPU": cores}) for cores in (2, 4))
    assert known(four).mid < known(two).mid


def clocked(runs: Path, loaded: Loaded, steps: dict[str, Sequence[float]]) -> StudySeconds:
    """After units, by id, took these seconds for their first steps."""
    for unit_id, seconds in steps.items():
        with closing(RunWriter(runs, unit_id)) as run:
            for step, of_step in enumerate(seconds):
                run.append_timing({"step": step, "phase": "train", "rollout": of_step})
    return study_seconds(Study(*loaded, runs))


def test_blended_and_plain_steps_cost_what_each_was_measured_at(tmp_path: Path) -> None:
    loaded = quickstart()
    one, other = units_of(loaded[1], "trust_region")
    assert teacher_online_steps(one) == 12
    found = clocked(tmp_path, loaded, {one.id: [3.0] * 12 + [1.0] * 8})
    assert [known(found.of(other, kind)).mid for kind in (BLENDED, PLAIN)] == [3.0, 1.0]


def test_the_estimates_are_those_of_the_fastest_and_the_slowest_unit(tmp_path: Path) -> None:
    loaded = quickstart()
    fast, slow = units_of(loaded[1], "trust_region")
    found = clocked(tmp_path, loaded, {fast.id: [1.0] * 40, slow.id: [3.0] * 40})
    assert found.of(first(loaded, "vanilla"), PLAIN) == Range(1.0, 2.0, 3.0)
    assert found.of(slow, PLAIN) == Range(1.5, 3.0, 4.5)
    assert found.of(fast, PLAIN) == Range(0.5, 1.0, 1.5)


def test_one_unit_alone_is_as_uncertain_as_the_plan_and_other_work_is_scaled(
    tmp_path: Path,
) -> None:
    """Training takes twice as long as planned, and so would an evaluation."""
    loaded = quickstart()
    vanilla = first(loaded, "vanilla")
    costs = SetupCosts(loaded[0].setups["arithmetic"], loaded[0].runtime, "torch")
    step = Range.total(of for phase, of in costs.step(PLAIN).items() if phase != OTHER)
    found = clocked(tmp_path, loaded, {vanilla.id: [2 * step.mid] * 3})
    twice, benchmark = known(found.of(vanilla, PLAIN)), "arithmetic_short"
    assert (twice.low, twice.mid, twice.high) == pytest.approx(
        (2 * step.low, 2 * step.mid, 2 * step.high)
    )
    response = known(found.of(vanilla, benchmark))
    assert response.mid == pytest.approx(2 * costs.response(benchmark).mid)


def test_no_room_is_faster_than_the_longest_chain() -> None:
    assert on_the_clock(40.0, [10.0, 30.0], room=2) == 30.0
    assert on_the_clock(80.0, [10.0, 30.0], room=2) == 40.0
    assert on_the_clock(8.0, [], room=2) == 4.0
