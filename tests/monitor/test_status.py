"""How far units are, what they do, and how long the rest takes: from made-up run directories."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.experiment.evaluation_protocol import evaluation_ids, fresh_evaluation_ids
from orchestrator.experiment.units import Unit
from orchestrator.liveness.leases import Claims
from orchestrator.monitor import status
from orchestrator.monitor.status import Session, overview
from orchestrator.monitor.unit_status import (
    Left,
    UnitStatus,
    device_hours,
    sweep_seconds,
    work_left,
    work_once_trained,
)
from orchestrator.planning.numbers import Range
from orchestrator.records.clock import BLENDED, PLAIN
from orchestrator.records.log import EVALUATING, RESCORING, TRAINING
from orchestrator.records.rundir import RunReader
from orchestrator.records.slices import Slice
from orchestrator.records.writer import (
    RunWriter,
    append_timing,
    forget_evaluation_errors,
    note_evaluation_error,
    write_slice,
)
from orchestrator.selection.study import Study
from tests.fake_runs import (
    QUICKSTART,
    metrics,
    quickstart,
    record,
    units_of,
    write_evaluation,
    write_run,
)
from tests.sweeps import trb_here

SHORT, LONG = "arithmetic_short", "arithmetic_long"


class World:
    """The tests' quickstart over a runs folder that is made up."""

    def __init__(self, runs: Path, *overrides: str):
        self.experiment, self.units = quickstart(*overrides)
        self.study = Study(self.experiment, self.units, runs)
        self.ids = evaluation_ids(self.experiment.setups["arithmetic"])
        self.fresh_ids = fresh_evaluation_ids(self.experiment.setups["arithmetic"])

    def units_of(self, name: str) -> list[Unit]:
        return units_of(self.units, name)

    def status(self, unit: Unit) -> UnitStatus:
        return next(s for s in status.overview(self.study).units if s.id == unit.id)

    def doing(self, unit: Unit) -> tuple[str, str | None, str]:
        found = self.status(unit)
        return found.state, found.phase, found.doing

    def write(self, unit: Unit, scores: dict[int, list[int | None]], **how: Any) -> RunReader:
        """A unit after as many steps as its last checkpoint has; trained unless said otherwise."""
        write_run(self.study.runs, self.experiment, unit, scores, steps=max(scores), **how)
        return RunReader(self.study.runs, unit.id)

    @contextmanager
    def writing(self, unit: Unit) -> Iterator[RunWriter]:
        """While a process works on a unit."""
        with closing(RunWriter(self.study.runs, unit.id)) as run:
            yield run

    @contextmanager
    def claimed(self, unit: Unit, evaluation_id: str, step: int) -> Iterator[None]:
        """While an evaluator samples a slice of a checkpoint."""
        part = Slice(0, 4, 0, 200, 200).name
        lease = Claims(self.study.runs).take(unit.id, evaluation_id, step, part)
        assert lease is not None
        yield
        lease.release(remove=True)


@pytest.fixture
def plain(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def rescored(tmp_path: Path) -> World:
    return World(tmp_path, "evaluation.rescore=true")


@pytest.fixture
def vanilla(plain: World) -> Unit:
    return plain.units_of("vanilla")[0]


def evaluation_row(benchmark: str, responses: int, seconds: float) -> dict[str, object]:
    numbers = {"draw": 0, "responses": responses, "seconds": seconds}
    return {"step": 20, "phase": "evaluate", "benchmark": benchmark, **numbers}


# --- states and phases ---


def test_a_running_unit_says_what_it_does(plain: World, vanilla: Unit) -> None:
    with plain.writing(vanilla) as run:
        run.describe({}, dict)
        assert plain.status(vanilla).doing == "starting"
        run.log.begin("sweep", 3)
        run.log.enter(TRAINING)
        run.append("metrics.jsonl", [metrics(0)])
        assert plain.doing(vanilla) == ("running", TRAINING, "training")
        assert plain.status(vanilla).step == 1
        run.log.begin("sweep", 3)
        run.log.enter(TRAINING)
        assert plain.status(vanilla).doing == "training, try 2"


def test_a_unit_whose_checkpoints_are_evaluated_says_how_far_that_is(
    plain: World, vanilla: Unit
) -> None:
    run = plain.write(vanilla, {60: [None, None]})
    part = Slice(0, 4, 0, 50, 200)
    write_slice(run, plain.ids[SHORT], 60, part, [record(1, problem=f"p{i}") for i in range(50)])
    assert plain.doing(vanilla) == ("queued", EVALUATING, "queued for evaluation")
    with plain.claimed(vanilla, plain.ids[SHORT], 60):
        assert plain.doing(vanilla) == ("running", EVALUATING, "evaluating 1400 left")


def test_a_unit_without_work_to_do_is_done_whoever_holds_it(plain: World, vanilla: Unit) -> None:
    """A process of another sweep may take the lease or a slice that it waited for."""
    run = plain.write(vanilla, {60: [4, 3]})
    for evaluation_id in plain.ids.values():
        write_evaluation(run, evaluation_id, 60, [record(1)])
    with plain.writing(vanilla), plain.claimed(vanilla, plain.ids[SHORT], 60):
        assert plain.status(vanilla).state == "done"


def test_an_evaluation_that_failed_says_why(plain: World, vanilla: Unit) -> None:
    run = plain.write(vanilla, {60: [None, None]})
    note_evaluation_error(run, plain.ids[SHORT], 60, "lost")
    found = plain.status(vanilla)
    assert (found.state, found.error) == ("failed", "lost")
    forget_evaluation_errors(run)
    assert plain.status(vanilla).state == "queued"


def test_the_best_trial_of_an_open_family_waits_for_rescoring(rescored: World) -> None:
    """While its rival trains, only the trial that is ahead is not done; once all are trained it is
    its turn.
    """
    better, worse = rescored.units_of("trust_region")
    run = rescored.write(better, {60: [4, 3]})
    assert rescored.doing(better) == ("waiting", RESCORING, "waiting for rescoring")
    rescored.write(worse, {60: [1, 1]})
    assert rescored.status(better).doing == "waiting for rescoring"
    assert rescored.status(worse).doing == "done"
    with rescored.claimed(better, rescored.fresh_ids[SHORT], 60):
        assert rescored.doing(better) == ("running", RESCORING, "rescoring 1600 left")
    for evaluation_id in rescored.fresh_ids.values():
        write_evaluation(run, evaluation_id, 60, [record(2)])
    assert rescored.status(better).state == "done"


def test_a_seed_is_not_done_before_the_others_are_evaluated(tmp_path: Path) -> None:
    """Which setting is sampled again is known only then: a unit that is done would otherwise come
    to wait again.
    """
    world = World(tmp_path, "evaluation.rescore=true", "methods.vanilla={seeds: [0, 1]}")
    first, second = world.units_of("vanilla")

    def doing() -> list[str]:
        return [world.status(unit).doing for unit in (first, second)]

    world.write(first, {60: [4, 3]})
    assert doing() == ["waiting for rescoring", "queued"]
    run = world.write(second, {60: [None, None]})
    assert doing() == ["waiting for rescoring", "queued for evaluation"]
    for evaluation_id in world.ids.values():
        write_evaluation(run, evaluation_id, 60, [record(1)])
    assert doing() == ["waiting for rescoring"] * 2


def test_units_wait_for_the_race_of_their_family_and_for_the_supervised_stage(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, "evaluation.budget=adaptive")
    first, _ = world.units_of("trust_region")
    [trial] = world.units_of("sft_warmup")
    world.write(first, {60: [4, 3]})
    assert world.status(first).doing == "waiting for its race"
    assert world.status(trial).doing == "waiting for its stage"


def test_the_latest_score_stands_beside_the_best(plain: World, vanilla: Unit) -> None:
    plain.write(vanilla, {20: [4, 3], 40: [2, 2]}, done=False)
    found = plain.status(vanilla)
    assert (found.state, found.best_step, found.score) == ("interrupted", 20, 7 / 8)
    assert (found.latest_step, found.latest_score) == (40, 1 / 2)


def test_families_are_counted_with_their_best_checkpoint(plain: World) -> None:
    first, second = plain.units_of("trust_region")
    plain.write(first, {20: [1, 1], 60: [2, 2]})
    plain.write(second, {20: [3, 2]}, done=False)
    [family] = [f for f in overview(plain.study).families if f.label == "TRB"]
    assert family.states == {"done": 1, "interrupted": 1}
    assert (family.score, family.setting, family.step) == (5 / 8, "epsilon0=0.05 K=12", 20)


def test_the_best_of_a_family_with_a_damaged_unit_is_unknown(plain: World) -> None:
    first, second = plain.units_of("trust_region")
    for unit in (first, second):
        plain.write(unit, {60: [2, 2]})
    (plain.study.runs / first.id / "state.json").write_text("{")
    found = overview(plain.study)
    [family] = [f for f in found.families if f.label == "TRB"]
    assert family.score is family.setting is family.step is None
    assert plain.status(first).state == "damaged"
    assert plain.status(second).score == 1 / 2
    assert found.seconds_left is found.device_hours_left is None


# --- time left ---


def test_nothing_is_said_before_anything_was_measured(plain: World, vanilla: Unit) -> None:
    with plain.writing(vanilla) as run:
        run.log.enter(TRAINING)
        found = overview(plain.study)
        assert plain.status(vanilla).seconds_left is found.seconds_left is None


def test_time_left_counts_steps_and_the_evaluations_to_come(plain: World, vanilla: Unit) -> None:
    """20 of 60 steps at 2 s; two checkpoints to come, 1,600 responses each at 0.01 s."""
    with plain.writing(vanilla) as run:
        run.append("metrics.jsonl", [metrics(step) for step in range(20)])
        run.new_checkpoint(20, lambda folder: (folder / "model.safetensors").touch())
        run.commit(20)
        for step in range(20):
            seconds = 9.0 if step == 0 else 2.0
            run.append_timing({"step": step, "phase": "train", "rollout": seconds})
        for benchmark, evaluation_id in plain.ids.items():
            write_evaluation(run, evaluation_id, 20, [record(1)])
            run.append_timing(evaluation_row(benchmark, 800, 8.0))
        found = plain.status(vanilla)
    assert found.seconds_left == pytest.approx(40 * 2.0 + 2 * 1600 * 0.01)


def test_responses_that_are_sampled_are_not_left(plain: World, vanilla: Unit) -> None:
    """600 of 1,600 responses of the last checkpoint are there, so 1,000 at 0.01 s are left."""
    run = plain.write(vanilla, {60: [None, None]})
    for benchmark in (SHORT, LONG):
        append_timing(run, evaluation_row(benchmark, 800, 8.0))
    part, records = Slice(0, 4, 0, 150, 200), [record(1, problem=f"p{i}") for i in range(150)]
    write_slice(run, plain.ids[LONG], 60, part, records)
    assert plain.status(vanilla).seconds_needed == pytest.approx(1000 * 0.01)


def test_blended_steps_are_left_apart_from_plain_ones(plain: World) -> None:
    unit, _ = plain.units_of("trust_region")
    run = plain.study.reader(unit)
    for step, left in ((0, (12, 48)), (20, (0, 40))):
        work = work_left(plain.experiment, unit, run, step, {})
        assert (work[BLENDED], work[PLAIN]) == left


def test_once_trained_a_family_is_sampled_again_for_each_seed() -> None:
    experiment, units = quickstart("evaluation.rescore=true", "seeds=[0,1]")
    seeds = units_of(units, "vanilla")
    assert work_once_trained(experiment, [seeds]) == {SHORT: 1600, LONG: 1600}


def test_a_race_expects_more_rungs() -> None:
    more = f"evaluation.benchmarks.{SHORT}.n=64"
    experiment, units = quickstart("evaluation.budget=adaptive", more)
    settings = [[unit] for unit in units_of(units, "trust_region")]
    assert work_once_trained(experiment, settings)[SHORT] > 0


def test_a_sweep_takes_all_of_its_work_on_all_cores_or_its_longest_chain(
    plain: World, vanilla: Unit
) -> None:
    """Two cores: trials of 10 s each, and a supervised stage of 30 s that one of them waits for."""
    [stage], [waiting] = plain.units_of("sft"), plain.units_of("sft_warmup")
    own, two = plain.experiment.runtime.placement, {"CPU": 2, "GPU": 0}

    def job(unit: Unit, training: float, sampling: float = 0.0) -> Left:
        span = Range(training / 2, training, 2 * training)
        return Left(unit, span, Range.exactly(sampling))

    four = [job(vanilla, 0.0, 10.0)] * 4
    assert sweep_seconds(four, own, two) == Range.exactly(20.0)
    assert sweep_seconds(four, own, {"CPU": 4.0}) == Range.exactly(10.0)
    chain = [job(stage, 30.0), job(waiting, 10.0)]
    assert sweep_seconds(chain, own, two) == Range(20.0, 40.0, 80.0)
    assert sweep_seconds([*four, *chain], own, two) == Range(30.0, 40.0, 80.0)
    assert sweep_seconds(four, own, {}) is None
    assert device_hours([*four, *chain], own, "core") == Range(60 / 3600, 80 / 3600, 120 / 3600)


def test_the_process_that_submits_knows_its_cluster_and_its_pace(
    plain: World, vanilla: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain.write(vanilla, {60: [1, 2]})
    monkeypatch.setattr(status.time, "monotonic", lambda: 130.0)
    with plain.writing(plain.units_of("veto")[0]):
        found = overview(plain.study, Session(100.0, 0, {"CPU": 2.0, "GPU": 0.0}))
    assert (found.elapsed, found.trials_an_hour, found.used["CPU"]) == (30.0, 120.0, 1.0)


# --- the command ---


def trb_status(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    found, out, err = trb_here(capsys, "status", QUICKSTART, *words)
    assert found == code, err
    return out


def test_json_keeps_its_keys_and_names_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = json.loads(trb_status(capsys, "--json", "--runs", str(tmp_path)))
    sweep, unit = shown["sweep"], shown["units"][0]
    assert shown["runs"] == str(tmp_path)
    assert {"seconds_left", "elapsed", "seconds_left_range"} <= set(sweep)
    assert {"units", "families"}.isdisjoint(sweep)
    assert (sweep["device"], sweep["device_hours_spent"]) == ("core", 0.0)
    assert sweep["device_hours_left"] is None, "nothing was measured"
    assert set(unit) >= {
        "id", "setup", "label", "kind", "seed", "state", "step", "steps", "loss", "score",
        "best_step", "seconds_left", "error", "phase", "doing",
    }  # fmt: skip


def test_the_runs_folder_is_named_first_wherever_it_comes_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "nowhere"
    out = trb_status(capsys, "--runs", str(gone), code=1)
    assert out.splitlines()[0] == f"runs: {gone} (does not exist)"
    monkeypatch.setenv("TRB_RUNS", str(tmp_path))
    assert trb_status(capsys).startswith(f"runs: {tmp_path} (0 of ")


def test_a_failed_unit_names_its_traceback_and_its_log(
    plain: World, vanilla: Unit, capsys: pytest.CaptureFixture[str]
) -> None:
    with plain.writing(vanilla) as run:
        run.describe({}, dict)
        run.fail("RuntimeError: lr 1e30?", "Traceback …")
    runs = plain.study.runs
    out = trb_status(capsys, "--runs", str(runs))
    assert f"{vanilla.id}: RuntimeError: lr 1e30?" in out
    assert str(runs / vanilla.id / "traceback.txt") in out
    assert f"trb logs {vanilla.id}" in out


def test_a_folder_that_cannot_be_written_can_be_looked_at() -> None:
    """As somebody else than its owner, who may only read."""
    with tempfile.TemporaryDirectory() as name:
        world = World(Path(name))
        [vanilla] = world.units_of("vanilla")
        world.write(vanilla, {60: [1, 2]})
        folders = [Path(name), *(path for path in Path(name).rglob("*") if path.is_dir())]
        with read_only(folders):
            assert world.status(vanilla).state == "done"


@contextmanager
def read_only(folders: Sequence[Path]) -> Iterator[None]:
    """Without the rights of root, who may write everywhere."""
    root = os.geteuid() == 0
    for folder in folders:
        folder.chmod(0o555)
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        for folder in folders:
            folder.chmod(0o755)
