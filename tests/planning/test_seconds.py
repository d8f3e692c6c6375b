"""What finished run directories measured takes the place of what a plan assumes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.config import Experiment
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import Unit, expand
from orchestrator.monitor.status import seconds_left_on
from orchestrator.planning import as_json, view
from orchestrator.planning.costs import OTHER, SetupCosts
from orchestrator.planning.lengths import TRAINING_LENGTHS
from orchestrator.planning.plan import Plan, make_plan
from orchestrator.planning.ranges import Range
from orchestrator.planning.rates import GPUS
from orchestrator.planning.seconds import (
    Measured,
    UnitSeconds,
    measure,
    measured_factor,
    on_the_clock,
    study_seconds,
)
from orchestrator.planning.steps import teacher_online_steps
from orchestrator.records.clock import BLENDED, PLAIN
from orchestrator.records.writer import RunWriter
from orchestrator.selection.study import Study
from tests.fake_runs import quickstart, units_of, write_run
from tests.sweeps import ROOT

PARTS = {"rollout": 3.0, "score": 0.5, "reward": 0.25, "learn": 1.0}  # seconds of a plain step
LENGTH, TRUNCATED = 1000.0, 0.1  # of training responses


def paper(*overrides: str) -> tuple[Experiment, list[Unit]]:
    lists = ("setups=[qwen3-0.6b]", "evaluation.benchmarks.olympiadbench_674=null", *overrides)
    experiment = load_experiment(ROOT / "experiments" / "paper.yaml", lists)
    return experiment, expand(experiment)


def finish(
    runs: Path,
    loaded: tuple[Experiment, list[Unit]],
    unit: Unit,
    factor: float = 1.0,
    gpus: Sequence[str] = (),
) -> None:
    """All steps of a unit clocked at `factor` times PARTS, blended ones at twice that; 0.02 s a
    response.
    """
    experiment, benchmarks = loaded[0], loaded[0].setups[unit.setup].evaluation.benchmarks
    with closing(RunWriter(runs, unit.id)) as run:
        run.describe({}, lambda: {"host": {"gpus": list(gpus)}})
        rows = [
            {"step": step, "response_length": LENGTH, "truncated": TRUNCATED}
            for step in range(unit.steps)
        ]
        run.append("metrics.jsonl", rows)
        run.new_checkpoint(unit.steps, lambda folder: (folder / "model.safetensors").touch())
        run.commit(unit.steps)
        for step in range(unit.steps):
            slower = factor * (2 if step < teacher_online_steps(unit) else 1)
            late = 100.0 if step == 0 else 0.0  # what starts with the first step is not of it
            parts = {name: late + seconds * slower for name, seconds in PARTS.items()}
            run.append_timing({"step": step, "phase": "train", **parts})
        for benchmark in benchmarks:
            row = {
                "step": unit.steps,
                "phase": "evaluate",
                "benchmark": benchmark,
                "responses": 100,
            }
            run.append_timing(row | {"seconds": 2.0 * factor})
    write_run(runs, experiment, unit, {unit.steps: [1] * len(benchmarks)}, steps=unit.steps)


def planned(
    loaded: tuple[Experiment, Sequence[Unit]], runs: Path, engine: str | None = None
) -> Plan:
    experiment, units = loaded
    return make_plan(
        experiment, units, measured=measure(Study(experiment, units, runs)), engine=engine
    )


def test_a_finished_unit_sets_the_rates_of_its_setup(tmp_path: Path) -> None:
    loaded = paper()
    vanilla, veto = (units_of(loaded[1], method)[0] for method in ("vanilla", "veto"))
    finish(tmp_path, loaded, vanilla)
    made = planned(loaded, tmp_path)
    hours = next(each.resources.gpu_hours for each in made.units if each.unit.id == veto.id)
    assert hours is not None
    for phase, seconds in (("rollout", 3.0), ("score", 0.5), ("learn", 1.0)):
        assert (hours[phase].low, hours[phase].high) == pytest.approx(
            (400 * seconds / 3600,) * 2
        ), phase
    # Starting a unit, which no row of a step holds, is still charged as assumed.
    assert hours["other"].low == pytest.approx((400 * 0.25 + 60) / 3600)
    responses = 20 * (1319 * 32 + 500 * 64 + 40 * 512)
    assert hours["evaluate"].mid == pytest.approx(responses * 0.02 / 3600, rel=1e-3)


def test_blended_steps_keep_the_planned_ratio_until_one_is_measured(tmp_path: Path) -> None:
    loaded = paper("engine.sampler=torch")  # whose teacher decodes every token
    finish(tmp_path, loaded, units_of(loaded[1], "vanilla")[0])
    assumed, found = (
        make_plan(*loaded).costs["qwen3-0.6b"],
        planned(loaded, tmp_path).costs["qwen3-0.6b"],
    )
    lengths = {
        name: costs.training_lengths("mid")
        for name, costs in (("assumed", assumed), ("found", found))
    }
    assert lengths["found"].tokens < lengths["assumed"].tokens
    assert found.step(PLAIN)["rollout"].mid == pytest.approx(3.0)
    assert found.step(BLENDED)["rollout"].mid > 2 * 3.0
    finish(tmp_path, loaded, units_of(loaded[1], "skd")[0])
    both = planned(loaded, tmp_path).costs["qwen3-0.6b"].step(BLENDED)["rollout"]
    assert both.low < found.step(BLENDED)["rollout"].low, "6 s were measured"


def test_the_spread_is_that_between_directories(tmp_path: Path) -> None:
    loaded = paper()
    for method, factor in (("vanilla", 1.0), ("veto", 3.0)):
        finish(tmp_path, loaded, units_of(loaded[1], method)[0], factor)
    rollout = planned(loaded, tmp_path).costs["qwen3-0.6b"].step(PLAIN)["rollout"]
    assert (rollout.low, rollout.mid, rollout.high) == pytest.approx((3.0, 6.0, 9.0))


def test_rates_of_another_kind_of_gpu_say_nothing_and_its_lengths_do(tmp_path: Path) -> None:
    loaded = paper()
    finish(tmp_path, loaded, units_of(loaded[1], "vanilla")[0], gpus=["NVIDIA A100-SXM4-40GB"])
    found = measure(Study(*loaded, tmp_path))
    of = {
        gpu.name: make_plan(*loaded, measured=found, gpu=gpu).costs["qwen3-0.6b"]
        for gpu in GPUS.values()
    }
    assert [name for name, costs in of.items() if costs.factors] == ["A100-40GB"]
    assert of["A100-40GB"].step(PLAIN)["rollout"].mid == pytest.approx(3.0)
    assert of["H100-80GB"].training_lengths("low").tokens == pytest.approx(LENGTH)


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
    [_, unit, *_] = paper()[1]
    ran = UnitSeconds(unit, {}, "sglang", (noted,))
    assert [name for name, gpu in GPUS.items() if ran.ran_on(gpu)] == kinds


def test_factors_compare_directories_and_all_of_them_together() -> None:
    assert measured_factor([(10.0, 5.0), (10.0, 20.0)]) == Range(0.5, 0.8, 2.0)
    assert measured_factor([]) is None
    assert measured_factor([(1.0, 0.0)]) is None


def test_lengths_are_taken_over_for_all_engines_and_rates_for_the_one_that_ran(
    tmp_path: Path,
) -> None:
    loaded = paper()
    finish(tmp_path, loaded, units_of(loaded[1], "vanilla")[0])
    torch, sglang = (
        planned(loaded, tmp_path, engine).costs["qwen3-0.6b"] for engine in ("torch", "sglang")
    )
    assert sglang.factors
    assert not torch.factors
    for costs in (torch, sglang):
        training = costs.training_lengths("high")
        assert training.tokens == pytest.approx(LENGTH)
        assert (training.truncated, training.limit) == (pytest.approx(TRUNCATED), 7168)
        # Records of `write_run`: ten tokens a response, none of them cut.
        assert costs.evaluation_lengths("gsm8k", "low").tokens == 10
        assert set(costs.lengths) == {TRAINING_LENGTHS, "gsm8k", "math500", "amc23"}
    shown = {
        each.name: each.low
        for each in planned(loaded, tmp_path).assumptions
        if each.why.startswith("measured")
    }
    assert shown["qwen3-0.6b, training: mean response"] == pytest.approx(LENGTH)
    assert shown["qwen3-0.6b, rollout: measured ÷ assumed seconds"] == sglang.factors["rollout"].low
    engines = as_json.totals(planned(loaded, tmp_path))["engines"]
    assert (
        engines["torch"]["chosen_gpu_hours"]["low"] < engines["torch"]["chosen_gpu_hours"]["high"]
    )


def test_the_terminal_says_what_the_hours_rest_on(tmp_path: Path) -> None:
    loaded, console = paper(), Console(width=100, color_system=None)
    with console.capture() as before:
        console.print(view.render(planned(loaded, tmp_path)))
    finish(tmp_path, loaded, units_of(loaded[1], "vanilla")[0])
    with console.capture() as after:
        console.print(view.render(planned(loaded, tmp_path)))
    assert "No run measured an engine on this GPU yet" in before.get()
    assert "Finished runs gave lengths of responses and the seconds" in after.get()
    for text in (before.get(), after.get()):
        assert "Engines: SGLang for sampling, torch for scoring and training." in text
        assert "With SGLang (this experiment): " in text
        assert "With torch: " in text


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ((), "SGLang samples because it takes {share} % of torch's GPU-hours."),
        (
            ("engine.sampler=torch",),
            "SGLang would take {share} % of torch's GPU-hours: engine.sampler=sglang.",
        ),
        (("engine.sampler=sglang", "engine.trainer=verl", "runtime.placement.gpus=2"), ""),
    ],
)
def test_the_terminal_says_why_an_engine_samples(override: tuple[str, ...], words: str) -> None:
    made, console = make_plan(*paper(*override)), Console(width=200, color_system=None)
    with console.capture() as shown:
        console.print(view.render(made))
    engines = as_json.totals(made)["engines"]
    if words:
        share = (
            100
            * engines["sglang"]["chosen_gpu_hours"]["mid"]
            / engines["torch"]["chosen_gpu_hours"]["mid"]
        )
        assert share < 50
        assert words.format(share=f"{share:.2g}") in shown.get()
    else:
        assert "% of" not in shown.get().partition("Engines:")[2], (
            "one engine can, and is compared with no other"
        )


def test_what_is_not_finished_or_damaged_says_nothing(tmp_path: Path) -> None:
    loaded = paper()
    vanilla, veto = (units_of(loaded[1], method)[0] for method in ("vanilla", "veto"))
    with closing(RunWriter(tmp_path, vanilla.id)) as run:
        run.describe({}, dict)
        run.append_timing({"step": 0, "phase": "train", **PARTS})
    assert measure(Study(*loaded, tmp_path)) == Measured([], {})
    finish(tmp_path, loaded, veto)
    (tmp_path / veto.id / "timing.jsonl").write_text("{}\n")
    (tmp_path / veto.id / "metrics.jsonl").write_text("gone")
    found = measure(Study(*loaded, tmp_path))
    assert not found.units
    assert TRAINING_LENGTHS not in found.lengths["qwen3-0.6b"], "only its evaluations can be read"
    assert measure(Study(*loaded, tmp_path / "gone")) == Measured()


def test_minutes_on_cpus_rest_on_what_was_clocked(tmp_path: Path) -> None:
    """Vanilla is done, and was clocked; more cores take less."""
    loaded = quickstart("setups=[arithmetic]")
    for unit in units_of(loaded[1], "vanilla"):
        finish(tmp_path, loaded, unit, factor=0.1)
    study = Study(*loaded, tmp_path)
    two, four = (seconds_left_on(study, {"CPU": cores}) for cores in (2, 4))
    assert two is not None
    assert four is not None
    assert four.mid < two.mid
    assert seconds_left_on(Study(*loaded, tmp_path / "empty"), {"CPU": 2}) is None


def clock_a_foreign_benchmark(runs: Path, unit: Unit) -> None:
    """As another experiment's evaluation of the same unit leaves it, a thousand times slower than
    any of ours.
    """
    row = {
        "step": unit.steps,
        "phase": "evaluate",
        "benchmark": "theirs",
        "responses": 1,
        "seconds": 1000.0,
    }
    with closing(RunWriter(runs, unit.id)) as run:
        run.append_timing(row)


@pytest.mark.parametrize("place", ["cores", "GPUs"])
def test_benchmarks_of_other_experiments_say_nothing(tmp_path: Path, place: str) -> None:
    loaded = quickstart("setups=[arithmetic]") if place == "cores" else paper()
    vanilla = units_of(loaded[1], "vanilla")[0]
    finish(tmp_path, loaded, vanilla)
    shown = []
    for _ in range(2):
        made, study = planned(loaded, tmp_path), Study(*loaded, tmp_path)
        seconds = (
            seconds_left_on(study, {"CPU": 2})
            if place == "cores"
            else made.units[-1].resources.gpu_hours
        )
        known = study_seconds(study)
        of_steps = [known.of(unit, kind) for unit in study.units for kind in (BLENDED, PLAIN)]
        shown.append((seconds, of_steps))
        clock_a_foreign_benchmark(tmp_path, vanilla)
    assert shown[0] == shown[1]


# --- for the units at hand ---


def clock_steps(runs: Path, unit: Unit, seconds: Sequence[float]) -> None:
    with closing(RunWriter(runs, unit.id)) as run:
        for step, of_step in enumerate(seconds):
            run.append_timing({"step": step, "phase": "train", "rollout": of_step})


def middle(seconds: Range | None) -> float:
    assert seconds is not None
    return seconds.mid


def test_blended_and_plain_steps_cost_what_each_was_measured_at(tmp_path: Path) -> None:
    loaded = quickstart()
    first, second = units_of(loaded[1], "trust_region")
    assert teacher_online_steps(first) == 12
    clock_steps(tmp_path, first, [3.0] * 12 + [1.0] * 8)
    found = study_seconds(Study(*loaded, tmp_path))
    assert [middle(found.of(second, kind)) for kind in (BLENDED, PLAIN)] == [3.0, 1.0]


def test_unmeasured_work_is_planned_in_proportion(tmp_path: Path) -> None:
    """Training twice as slow as planned: evaluations are expected to be twice as slow, too."""
    experiment, units = quickstart()
    [vanilla] = units_of(units, "vanilla")
    planned = SetupCosts(experiment.setups["arithmetic"], experiment.runtime, "torch")
    a_step = sum(planned.step(PLAIN)[phase].mid for phase in ("rollout", "score", "learn"))
    clock_steps(tmp_path, vanilla, [2 * a_step] * 3)
    found = study_seconds(Study(experiment, units, tmp_path)).of(vanilla, "arithmetic_short")
    assert middle(found) == pytest.approx(2 * planned.response("arithmetic_short").mid)


def test_the_estimates_are_those_of_the_fastest_and_the_slowest_unit(tmp_path: Path) -> None:
    loaded = quickstart()
    first, second = units_of(loaded[1], "trust_region")
    [vanilla] = units_of(loaded[1], "vanilla")
    for unit, seconds in ((first, 1.0), (second, 3.0)):
        clock_steps(tmp_path, unit, [seconds] * 40)
    found = study_seconds(Study(*loaded, tmp_path))
    assert found.of(vanilla, PLAIN) == Range(1.0, 2.0, 3.0)
    assert found.of(second, PLAIN) == Range(1.5, 3.0, 4.5)
    assert found.of(first, PLAIN) == Range(0.5, 1.0, 1.5)


def test_one_unit_alone_is_as_uncertain_as_the_plan(tmp_path: Path) -> None:
    experiment, units = quickstart()
    [vanilla] = units_of(units, "vanilla")
    clock_steps(tmp_path, vanilla, [2.0] * 3)
    found = study_seconds(Study(experiment, units, tmp_path)).of(vanilla, PLAIN)
    phases = SetupCosts(experiment.setups["arithmetic"], experiment.runtime, "torch").step(PLAIN)
    planned = Range.total(seconds for phase, seconds in phases.items() if phase != OTHER)
    assert found is not None
    assert (found.low / 2.0, found.mid, found.high / 2.0) == pytest.approx(
        (planned.low / planned.mid, 2.0, planned.high / planned.mid)
    )


def test_no_room_is_faster_than_the_longest_chain() -> None:
    assert on_the_clock(40.0, [10.0, 30.0], room=2) == 30.0
    assert on_the_clock(80.0, [10.0, 30.0], room=2) == 40.0
    assert on_the_clock(8.0, [], room=2) == 4.0
