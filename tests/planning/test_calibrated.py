"""What was calibrated on a card takes the place of what a plan assumes, and gives way to what
finished runs say.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.cli import main
from orchestrator.commands.display import hours_line
from orchestrator.commands.plan import planned
from orchestrator.config import Experiment
from orchestrator.experiment.units import Unit
from orchestrator.monitor.status import overview
from orchestrator.planning import view
from orchestrator.planning.calibrated import (
    CalibrationRow,
    Card,
    calibration_path,
    gpu_here,
    read_calibrations,
    shapes_of,
    write_rows,
)
from orchestrator.planning.costs import (
    BLENDED,
    OTHER,
    PASSING,
    PHASES,
    PLAIN,
    SUPERVISED,
    SetupCosts,
)
from orchestrator.planning.lengths import Lengths
from orchestrator.planning.plan import Plan, make_plan
from orchestrator.planning.ranges import SCENARIOS
from orchestrator.planning.rates import GPUS, PASSING_S, RATES
from orchestrator.records.columns import EVALUATE, LEARN, ROLLOUT, SCORE
from orchestrator.records.writer import RunWriter
from orchestrator.selection.study import Study
from orchestrator.sweep.budget import spending
from orchestrator.sweep.schedule import TrainUnit
from tests.fake_runs import units_of
from tests.planning.test_seconds import finish, paper

H100, A100 = Card("NVIDIA H100 80GB HBM3", 79.2), Card("NVIDIA A100-SXM4-40GB", 39.4)
NAME = "qwen3-0.6b"
Loaded = tuple[Experiment, list[Unit]]


def made_up(loaded: Loaded, key: str, factor: float) -> CalibrationRow:
    """A row of a full batch after a long context that took `factor` times what is planned for the
    same work.
    """
    setup = loaded[0].setups[NAME]
    engine, costs = setup.engine, SetupCosts(setup, loaded[0].runtime, setup.engine.sampler)
    row = CalibrationRow(
        NAME, shapes_of(setup), engine.sampler, engine.trainer, False, key, 0.0, "2026-11-23"
    )
    if key != PASSING:
        row = replace(row, responses=64, prompt=2000.0, tokens=256.0)
    return replace(row, seconds=factor * row.planned_seconds(costs))


def calibrate(runs: Path, *rows: CalibrationRow, card: Card = H100) -> None:
    write_rows(calibration_path(runs, card), card, rows)


def study(loaded: Loaded, runs: Path) -> Study:
    return Study(*loaded, runs)


def shown(made: Plan) -> str:
    console = Console(width=400, color_system=None)
    with console.capture() as text:
        console.print(view.render(made, reasons=[]))
    return text.get()


def test_the_planned_seconds_of_a_row_are_those_of_its_work_by_hand() -> None:
    """64 responses of 256 tokens after 2,000: caches read from 2,000 to 2,256 tokens, weights once
    a token.
    """
    loaded = paper()
    costs = SetupCosts(loaded[0].setups[NAME], loaded[0].runtime, "sglang")
    student = costs.student
    row = made_up(loaded, PLAIN, 1.0)
    moved = 64 * student.kv_bytes * (2000 * 256 + 256**2 / 2) + 256 * student.weight_bytes
    assert row.planned_seconds(costs) == pytest.approx(moved / (0.55 * 3.35e12))
    evaluated = made_up(loaded, EVALUATE, 1.0)
    assert evaluated.planned_seconds(costs) == pytest.approx(moved / (0.78 * 3.35e12))
    learned = made_up(loaded, LEARN, 1.0).planned_seconds(costs)
    assert learned == pytest.approx(
        costs.phase_seconds(LEARN, PLAIN, 1, Lengths(256, 0, 256, 2000), "mid") * 64
    )


def test_each_phase_costs_what_was_measured_and_lengths_stay_uncertain(tmp_path: Path) -> None:
    loaded = paper()
    factors = {PLAIN: 2.0, BLENDED: 3.0, EVALUATE: 1.5, SCORE: 0.5, LEARN: 4.0}
    calibrate(tmp_path, *(made_up(loaded, key, factor) for key, factor in factors.items()))
    assumed, found = make_plan(*loaded).costs[NAME], planned(study(loaded, tmp_path)).costs[NAME]
    for kind, factor in ((PLAIN, 2.0), (BLENDED, 3.0)):
        assert found.step(kind)[ROLLOUT].mid == pytest.approx(
            factor * assumed.step(kind)[ROLLOUT].mid
        )
        assert found.step(kind)[LEARN].mid == pytest.approx(4 * assumed.step(kind)[LEARN].mid)
    assert found.step(PLAIN)[SCORE].mid == pytest.approx(0.5 * assumed.step(PLAIN)[SCORE].mid)
    assert found.evaluation.mid == pytest.approx(1.5 * assumed.evaluation.mid)
    assert (
        2.0 < found.step(SUPERVISED)[ROLLOUT].mid / assumed.step(SUPERVISED)[ROLLOUT].mid < 3.0
    ), "of both together"
    # Rates do not differ any more between the estimates. Lengths do: longer responses are learned
    # from for longer.
    tokens = [
        found.training_lengths(s).prompt + found.training_lengths(s).tokens for s in SCENARIOS
    ]
    seconds = [found.step(PLAIN)[LEARN].at(s) for s in SCENARIOS]
    assert [each / seconds[1] for each in seconds] == pytest.approx(
        [each / tokens[1] for each in tokens]
    )
    assert found.step(PLAIN)[OTHER] == assumed.step(PLAIN)[OTHER]


def test_passing_on_is_a_part_of_what_keeps_a_trials_gpu_waiting(tmp_path: Path) -> None:
    loaded = paper()
    calibrate(tmp_path, made_up(loaded, PASSING, 0.5), made_up(loaded, PASSING, 0.75))
    other, step_s = (
        planned(study(loaded, tmp_path)).costs[NAME].step(PLAIN)[OTHER],
        RATES["sglang"].step_s,
    )
    for scenario, factor in zip(SCENARIOS, (0.5, 0.625, 0.75), strict=True):
        rest = step_s.at(scenario) - PASSING_S.at(scenario)
        assert other.at(scenario) == pytest.approx(rest + factor * PASSING_S.mid)


def test_finished_runs_say_more_than_a_calibration(tmp_path: Path) -> None:
    loaded = paper()
    calibrate(
        tmp_path,
        made_up(loaded, PLAIN, 50.0),
        made_up(loaded, BLENDED, 50.0),
        made_up(loaded, EVALUATE, 50.0),
    )
    finish(tmp_path, loaded, units_of(loaded[1], "vanilla")[0])
    (tmp_path / "without").mkdir()
    finish(tmp_path / "without", loaded, units_of(loaded[1], "vanilla")[0])
    both, alone = (
        planned(study(loaded, runs)).costs[NAME] for runs in (tmp_path, tmp_path / "without")
    )
    assert both.step(PLAIN)[ROLLOUT].mid == pytest.approx(3.0)
    assert both.factors == alone.factors
    assert not both.sources


def test_what_no_finished_run_has_measured_is_taken_from_the_calibration(tmp_path: Path) -> None:
    """A run that was never evaluated, and a calibration of training and evaluating."""
    loaded = paper()
    vanilla = units_of(loaded[1], "vanilla")[0]
    with closing(RunWriter(tmp_path, vanilla.id)) as run:
        run.describe({}, dict)
        run.new_checkpoint(vanilla.steps, lambda folder: (folder / "model.safetensors").touch())
        run.commit(vanilla.steps)
        for step in range(3):
            run.append_timing({"step": step, "phase": "train", "rollout": 7.0, "learn": 1.0})
        run.finish()
    calibrate(tmp_path, made_up(loaded, LEARN, 2.0), made_up(loaded, EVALUATE, 2.0))
    costs = planned(study(loaded, tmp_path)).costs[NAME]
    assert costs.step(PLAIN)[ROLLOUT].mid == pytest.approx(7.0)
    assert costs.step(PLAIN)[LEARN].mid == pytest.approx(1.0)
    assert set(costs.sources) == {EVALUATE}
    text = shown(planned(study(loaded, tmp_path)))
    assert "Finished runs gave lengths of responses" in text
    assert f"Measured on this card, 2026-11-23, {H100.name} ({NAME}: evaluating)" in text


@pytest.mark.parametrize(
    ("card", "kind", "is_one"),
    [
        (H100, "H100-80GB", True),
        (A100, "A100-40GB", True),
        (A100, "H100-80GB", False),
        (Card("NVIDIA A100-SXM4-80GB", 79.2), "A100-40GB", False),
        (Card("NVIDIA GH200 480GB", 79.2), "H100-80GB", False),
        (Card("NVIDIA H100 NVL", 93.1), "H100-80GB", False),
    ],
)
def test_a_card_is_of_a_kind_by_name_and_memory(card: Card, kind: str, is_one: bool) -> None:
    assert card.is_a(GPUS[kind]) == is_one
    assert not card.is_a(GPUS[kind].part(0.5)), "half a GPU beside another trial was not measured"


@pytest.mark.parametrize(
    ("override", "holds"),
    [
        ("evaluation.max_response_tokens=4096", {PLAIN, LEARN, PASSING}),
        ("engine.sampler=torch", {LEARN}),
        ("engine.trainer=verl", {PLAIN}),
        ("engine.dtype=float32", set()),
    ],
)
def test_a_row_holds_for_its_engines_and_shapes(
    override: str, holds: set[str], tmp_path: Path
) -> None:
    loaded = paper()
    calibrate(tmp_path, *(made_up(loaded, key, 2.0) for key in (PLAIN, LEARN, PASSING)))
    costs = planned(study(paper(override), tmp_path)).costs[NAME]
    assert set(costs.sources) - {ROLLOUT} == holds


def test_short_measurements_count_only_where_there_are_no_longer_ones(tmp_path: Path) -> None:
    loaded = paper()
    long = made_up(loaded, LEARN, 2.0)
    short = replace(made_up(loaded, LEARN, 9.0), responses=1)
    short = replace(short, seconds=short.seconds / 64)
    again = replace(long, seconds=1.5 * long.seconds)
    calibrate(tmp_path, short, long, again)
    factor = planned(study(loaded, tmp_path)).costs[NAME].factors[LEARN]
    assert (factor.low, factor.mid, factor.high) == pytest.approx((2.0, 2.5, 3.0))
    calibrate(tmp_path, short)
    assert planned(study(loaded, tmp_path)).costs[NAME].factors[LEARN].mid == pytest.approx(9.0)


def test_another_gpu_is_planned_without_the_calibration_and_the_plan_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = paper()
    calibrate(tmp_path, made_up(loaded, LEARN, 2.0))
    own, other = (
        planned(study(loaded, tmp_path), GPUS[kind]) for kind in ("H100-80GB", "A100-40GB")
    )
    assert "measured on this card, 2026-11-23, NVIDIA H100 80GB HBM3)" in shown(own)
    assert "left out" not in shown(own)
    assert not other.costs[NAME].sources
    assert (
        f"What was calibrated on {H100.name} says nothing of A100-40GB and is left out."
        in shown(other)
    )
    with pytest.raises(SystemExit) as ended:
        main(
            ["plan", "paper", "setups=[qwen3-0.6b]", "--gpu", "A100-40GB", "--runs", str(tmp_path)]
        )
    assert ended.value.code == 0
    assert "is left out" in " ".join(capsys.readouterr().out.split())


def test_the_plan_is_for_the_card_that_was_calibrated_unless_another_is_named(
    tmp_path: Path,
) -> None:
    loaded = paper()
    assert gpu_here(()) == GPUS["H100-80GB"]
    calibrate(tmp_path, made_up(loaded, LEARN, 2.0), card=A100)
    assert planned(study(loaded, tmp_path)).gpu == GPUS["A100-40GB"]
    calibrate(tmp_path, made_up(loaded, LEARN, 2.0))
    assert [each.card for each in read_calibrations(tmp_path)] == [A100, H100]
    assert planned(study(loaded, tmp_path)).gpu == GPUS["H100-80GB"]


def test_why_names_the_source_of_each_factor_and_random_weights(tmp_path: Path) -> None:
    loaded = paper()
    calibrate(
        tmp_path, made_up(loaded, LEARN, 2.0), replace(made_up(loaded, PLAIN, 3.0), random=True)
    )
    text = shown(planned(study(loaded, tmp_path)))
    source = f"measured on this card, 2026-11-23, {H100.name}"
    assert f"{NAME}, learn: measured ÷ assumed seconds: 2  ({source})" in text
    assert f"{NAME}, plain step: measured ÷ assumed seconds: 3  ({source}, random weights)" in text


def test_a_file_that_is_not_what_was_written_says_nothing(tmp_path: Path) -> None:
    loaded = paper()
    calibrate(tmp_path, made_up(loaded, LEARN, 2.0))
    path = calibration_path(tmp_path, H100)
    assert path.name == "nvidia-h100-80gb-hbm3.json"
    path.write_text(path.read_text().replace('"responses": 64', '"responses": 32'))
    assert read_calibrations(tmp_path) == ()
    assert "No run measured an engine on this GPU yet" in shown(planned(study(loaded, tmp_path)))


# --- while a sweep runs ---


@contextmanager
def running(runs: Path, unit: Unit) -> Iterator[RunWriter]:
    with closing(RunWriter(runs, unit.id)) as run:
        run.log.enter("training")
        yield run


def test_status_and_limits_use_the_calibration_until_a_run_has_measured(tmp_path: Path) -> None:
    loaded = paper()
    unit = units_of(loaded[1], "vanilla")[0]
    of_piece = {}
    for factor in (1.0, 2.0):
        calibrate(
            tmp_path,
            *(made_up(loaded, key, factor) for key in (PLAIN, BLENDED, SCORE, LEARN, EVALUATE)),
        )
        of_piece[factor] = spending(study(loaded, tmp_path)).next_piece(TrainUnit(unit))
    phases = make_plan(*loaded).costs[NAME].step(PLAIN)
    a_step = sum(phases[phase].mid for phase in PHASES if phase in (ROLLOUT, SCORE, LEARN))
    assert (
        of_piece[2.0] == pytest.approx(2 * of_piece[1.0]) == pytest.approx(2 * 20 * a_step / 3600)
    )
    with running(tmp_path, unit) as run:
        before = overview(study(loaded, tmp_path))
        assert before.calibrated
        assert hours_line(before).endswith(" · rates measured on this card")
        for step in range(3):
            run.append_timing({"step": step, "phase": "train", "rollout": 2.0})
        after = overview(study(loaded, tmp_path))
    assert not after.calibrated
    assert "this card" not in hours_line(after)


def test_lengths_that_stand_for_all_are_quantiles_of_their_law() -> None:
    lengths = Lengths(800.0, 0.25, 4096, 150.0)
    spread = lengths.spread(4000)
    assert spread == sorted(spread)
    assert sum(length == 4096 for length in spread) / 4000 == pytest.approx(0.25, abs=0.01)
    finished = [length for length in spread if length < 4096]
    assert sum(finished) / len(finished) == pytest.approx(800, rel=0.03)
    assert Lengths(10.0, 1.0, 24, 5.0).spread(3) == [24, 24, 24]
