"""Calibrations of a card take the place of what a plan assumes, and give way to finished runs."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.commands.display import hours_line
from orchestrator.commands.plan import planned
from orchestrator.monitor.status import overview
from orchestrator.planning.calibrated import (
    SHORTEST_S,
    CalibrationRow,
    Card,
    calibration_path,
    gpu_here,
    read_calibrations,
    shapes_of,
    write_rows,
)
from orchestrator.planning.costs import OTHER, PASSING, PHASES, SetupCosts
from orchestrator.planning.lengths import Lengths
from orchestrator.planning.numbers import SCENARIOS
from orchestrator.planning.plan import make_plan
from orchestrator.planning.rates import GPUS
from orchestrator.planning.work import SUPERVISED, StepWork
from orchestrator.records.clock import BLENDED, PLAIN
from orchestrator.records.log import EVALUATE, LEARN, ROLLOUT, SCORE
from orchestrator.records.writer import RunWriter
from orchestrator.selection.study import Study
from orchestrator.sweep.schedule import TrainUnit
from orchestrator.sweep.tuner import spending
from tests.planning.plans import Loaded, paper, shown
from tests.planning.plans import planned as whole_plan
from tests.planning.test_seconds import finish, first
from tests.sweeps import trb_shows

H100, A100 = Card("NVIDIA H100 80GB HBM3", 79.2), Card("NVIDIA A100-SXM4-40GB", 39.4)
NAME = "qwen3-0.6b"


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
        row = replace(row, responses=64, prompt=2000.0, tokens=256.0, whole=True)
    return replace(row, seconds=factor * row.planned_seconds(costs))


def calibrate(runs: Path, *rows: CalibrationRow, card: Card = H100) -> None:
    write_rows(calibration_path(runs, card), card, rows)


def calibrated(runs: Path, loaded: Loaded, factors: dict[str, float]) -> SetupCosts:
    """Costs after a calibration in which each key took so many times what is planned."""
    calibrate(runs, *(made_up(loaded, key, factor) for key, factor in factors.items()))
    return costs_of(loaded, runs)


def costs_of(loaded: Loaded, runs: Path) -> SetupCosts:
    return planned(Study(*loaded, runs)).costs[NAME]


def test_a_short_measurement_replaces_no_rate(tmp_path: Path) -> None:
    """Half a second of decoding says little, unless a whole step takes no longer."""
    loaded = paper()
    costs = SetupCosts(loaded[0].setups[NAME], loaded[0].runtime, "sglang")
    row = replace(made_up(loaded, PLAIN, 3.0), whole=False, responses=8, tokens=32.0)
    short = replace(row, seconds=3 * row.planned_seconds(costs))
    assert short.seconds < SHORTEST_S
    longer = replace(short, responses=256, tokens=512.0)
    longer = replace(longer, seconds=2 * longer.planned_seconds(costs))
    assert longer.seconds > SHORTEST_S
    for rows, expected in (((short,), {}), ((replace(short, whole=True),), {PLAIN, ROLLOUT})):
        calibrate(tmp_path, *rows)
        assert set(costs_of(loaded, tmp_path).factors) == set(expected)
    calibrate(tmp_path, short, longer)
    assert costs_of(loaded, tmp_path).factors[PLAIN].mid == pytest.approx(2.0)


def test_the_planned_seconds_of_a_row_are_those_of_its_work_by_hand() -> None:
    """64 responses of 256 tokens after 2,000: caches read from 2,000 to 2,256 tokens, weights once
    a token.
    """
    loaded = paper()
    costs = SetupCosts(loaded[0].setups[NAME], loaded[0].runtime, "sglang")
    student = costs.student
    moved = 64 * student.kv_bytes * (2000 * 256 + 256**2 / 2) + 256 * student.weight_bytes
    sampled = 64 * 256 * 151_936 * 12  # bytes that the sampler moves in one pass
    for key, reached, more in ((PLAIN, 0.55, sampled), (EVALUATE, 0.78, 0)):
        seconds = made_up(loaded, key, 1.0).planned_seconds(costs)
        assert seconds == pytest.approx((moved / reached + more / 0.75) / 3.35e12)
    learned = costs.phase_seconds(LEARN, StepWork(PLAIN), 1, Lengths(256, 0, 256, 2000), "mid")
    assert made_up(loaded, LEARN, 1.0).planned_seconds(costs) == pytest.approx(64 * learned)


def test_each_phase_costs_what_was_measured_and_lengths_stay_uncertain(tmp_path: Path) -> None:
    loaded, assumed = paper(), make_plan(*paper()).costs[NAME]
    factors = {PLAIN: 2.0, BLENDED: 3.0, EVALUATE: 1.5, SCORE: 0.5, LEARN: 4.0}
    found = calibrated(tmp_path, loaded, factors)

    def ratio(kind: str, phase: str) -> float:
        return found.step(kind)[phase].mid / assumed.step(kind)[phase].mid

    for kind in (PLAIN, BLENDED):
        assert ratio(kind, ROLLOUT) == pytest.approx(factors[kind])
        assert ratio(kind, LEARN) == pytest.approx(4)
    assert ratio(PLAIN, SCORE) == pytest.approx(0.5)
    assert found.evaluation.mid == pytest.approx(1.5 * assumed.evaluation.mid)
    assert 2.0 < ratio(SUPERVISED, ROLLOUT) < 3.0, "of both together"
    # Rates do not differ any more between the estimates. Lengths do: longer responses are learned
    # from for longer.
    tokens, prompt = found.tokens_under(None), found.training_lengths("mid").prompt
    seconds = found.step(PLAIN)[LEARN]
    for scenario in SCENARIOS:
        longer = (prompt + tokens.at(scenario)) / (prompt + tokens.mid)
        assert seconds.at(scenario) / seconds.mid == pytest.approx(longer)
    assert found.step(PLAIN)[OTHER] == assumed.step(PLAIN)[OTHER]


def test_passing_on_is_a_part_of_what_keeps_a_trials_gpu_waiting(tmp_path: Path) -> None:
    loaded = paper()
    calibrate(tmp_path, made_up(loaded, PASSING, 0.5), made_up(loaded, PASSING, 0.75))
    other, assumed = costs_of(loaded, tmp_path).step(PLAIN)[OTHER], make_plan(*loaded).costs[NAME]
    passing, whole = assumed.passing, assumed.step(PLAIN)[OTHER]
    for scenario, factor in zip(SCENARIOS, (0.5, 0.625, 0.75), strict=True):
        rest = whole.at(scenario) - passing.at(scenario)
        assert other.at(scenario) == pytest.approx(rest + factor * passing.mid)


def test_finished_runs_say_more_than_a_calibration(tmp_path: Path) -> None:
    loaded = paper()
    finish(tmp_path, loaded, "vanilla")
    alone = costs_of(loaded, tmp_path)
    both = calibrated(tmp_path, loaded, {PLAIN: 50.0, BLENDED: 50.0, EVALUATE: 50.0})
    assert both.step(PLAIN)[ROLLOUT].mid == pytest.approx(3.0)
    assert both.factors == alone.factors
    assert not both.sources


def test_phases_that_no_finished_run_has_are_taken_from_the_calibration(tmp_path: Path) -> None:
    """A run that was never evaluated, and a calibration of training and evaluating."""
    loaded = paper()
    vanilla = first(loaded, "vanilla")
    with closing(RunWriter(tmp_path, vanilla.id)) as run:
        run.describe({}, dict)
        run.new_checkpoint(vanilla.steps, lambda folder: (folder / "model.safetensors").touch())
        run.commit(vanilla.steps)
        for step in range(3):
            run.append_timing({"step": step, "phase": "train", "rollout": 7.0, "learn": 1.0})
        run.finish()
    costs = calibrated(tmp_path, loaded, {LEARN: 2.0, EVALUATE: 2.0})
    assert costs.step(PLAIN)[ROLLOUT].mid == pytest.approx(7.0)
    assert costs.step(PLAIN)[LEARN].mid == pytest.approx(1.0)
    assert set(costs.sources) == {EVALUATE}
    assert f"{H100.name} ({NAME}: evaluating)" in shown(planned(Study(*loaded, tmp_path)))


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
    calibrated(tmp_path, paper(), dict.fromkeys((PLAIN, LEARN, PASSING), 2.0))
    assert set(costs_of(paper(override), tmp_path).sources) - {ROLLOUT} == holds


def test_short_measurements_count_only_where_there_are_no_longer_ones(tmp_path: Path) -> None:
    loaded = paper()
    long, nine = made_up(loaded, LEARN, 2.0), made_up(loaded, LEARN, 9.0)
    short = replace(nine, responses=1, seconds=nine.seconds / 64)
    again = replace(long, seconds=1.5 * long.seconds)
    calibrate(tmp_path, short, long, again)
    factor = costs_of(loaded, tmp_path).factors[LEARN]
    assert (factor.low, factor.mid, factor.high) == pytest.approx((2.0, 2.5, 3.0))
    calibrate(tmp_path, short)
    assert costs_of(loaded, tmp_path).factors[LEARN].mid == pytest.approx(9.0)


def test_another_gpu_is_planned_without_the_calibration_and_the_plan_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = paper()
    calibrated(tmp_path, loaded, {LEARN: 2.0})
    study = Study(*loaded, tmp_path)
    own, other = planned(study, GPUS["H100-80GB"]), planned(study, GPUS["A100-40GB"])
    assert f"easured on this card, 2026-11-23, {H100.name} ({NAME}: learning)" in shown(own)
    assert "left out" not in shown(own)
    assert not other.costs[NAME].sources
    overrides = ["setups=[qwen3-0.6b]", "--gpu", "A100-40GB", "--runs", str(tmp_path)]
    for text in (shown(other), trb_shows(capsys, "plan", "paper", *overrides)):
        assert f"{H100.name} says nothing of A100-40GB" in " ".join(text.split())


def test_the_plan_is_for_the_card_that_was_calibrated_unless_another_is_named(
    tmp_path: Path,
) -> None:
    loaded = paper()
    assert gpu_here(()) == GPUS["H100-80GB"]
    calibrate(tmp_path, made_up(loaded, LEARN, 2.0), card=A100)
    assert planned(Study(*loaded, tmp_path)).gpu == GPUS["A100-40GB"]
    calibrate(tmp_path, made_up(loaded, LEARN, 2.0))
    assert [each.card for each in read_calibrations(tmp_path)] == [A100, H100]
    assert planned(Study(*loaded, tmp_path)).gpu == GPUS["H100-80GB"]


def test_the_plan_names_the_source_of_each_factor_and_random_weights(tmp_path: Path) -> None:
    loaded = paper()
    random = replace(made_up(loaded, PLAIN, 3.0), random=True)
    calibrate(tmp_path, made_up(loaded, LEARN, 2.0), random)
    made = planned(Study(*loaded, tmp_path))
    costs, source = made.costs[NAME], f"measured on this card, 2026-11-23, {H100.name}"
    for phase, factor, why in ((LEARN, 2.0, source), (PLAIN, 3.0, f"{source}, random weights")):
        assert costs.factors[phase].mid == pytest.approx(factor)
        assert costs.sources[phase] == why
        assert why.removeprefix("measured") in shown(made)


def test_what_a_card_measured_is_said_once_for_all_setups() -> None:
    made = whole_plan()
    one, other = made.costs
    card, made_up_models = "measured on this card", "measured on this card, random weights"
    sources = {
        one: {LEARN: card, ROLLOUT: made_up_models, PLAIN: made_up_models, SCORE: card},
        other: {ROLLOUT: card, PASSING: made_up_models, LEARN: made_up_models},
    }
    costs = {name: replace(made.costs[name], sources=sources[name]) for name in made.costs}
    lines = shown(replace(made, costs=costs)).splitlines()
    assert [line.rstrip() for line in lines if line.startswith("Measured")] == [
        f"Measured on this card ({one}: learning, scoring). All else is published or assumed.",
        f"Measured on this card, random weights ({one}: decoding; {other}: weight change and "
        "offload, learning). All else is published or assumed.",
    ]


def test_a_file_in_another_state_than_written_says_nothing(tmp_path: Path) -> None:
    calibrated(tmp_path, paper(), {LEARN: 2.0})
    path = calibration_path(tmp_path, H100)
    assert path.name == "nvidia-h100-80gb-hbm3.json"
    path.write_text(path.read_text().replace('"responses": 64', '"responses": 32'))
    assert read_calibrations(tmp_path) == ()


def test_status_and_limits_use_the_calibration_until_a_run_has_measured(tmp_path: Path) -> None:
    loaded = paper("runtime.save_every=null")  # so that a piece ends at a checkpoint
    unit, study = first(loaded, "vanilla"), Study(*loaded, tmp_path)
    of_piece = []
    for factor in (1.0, 2.0):
        keys = (PLAIN, BLENDED, SCORE, LEARN, EVALUATE)
        calibrated(tmp_path, loaded, dict.fromkeys(keys, factor))
        of_piece.append(spending(study).next_piece(TrainUnit(unit)))
    phases = make_plan(*loaded).costs[NAME].step(PLAIN)
    a_step = sum(phases[phase].mid for phase in PHASES if phase in (ROLLOUT, SCORE, LEARN))
    assert of_piece[1] == pytest.approx(2 * of_piece[0]) == pytest.approx(2 * 20 * a_step / 3600)
    with closing(RunWriter(tmp_path, unit.id)) as run:
        run.log.enter("training")
        before = overview(study)
        assert before.calibrated
        assert hours_line(before) != hours_line(replace(before, calibrated=False))
        for step in range(3):
            run.append_timing({"step": step, "phase": "train", "rollout": 2.0})
        assert not overview(study).calibrated


def test_lengths_that_stand_for_all_are_quantiles_of_their_law() -> None:
    lengths = Lengths(800.0, 0.25, 4096, 150.0)
    spread = lengths.spread(4000)
    assert spread == sorted(spread)
    assert sum(length == 4096 for length in spread) / 4000 == pytest.approx(0.25, abs=0.01)
    finished = [length for length in spread if length < 4096]
    assert sum(finished) / len(finished) == pytest.approx(800, rel=0.03)
    assert Lengths(10.0, 1.0, 24, 5.0).spread(3) == [24, 24, 24]
