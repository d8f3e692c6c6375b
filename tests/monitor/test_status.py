"""Where units stand, what they do, and how long the rest takes: from made-up run directories."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.config import Experiment
from orchestrator.experiment.evaluation_protocol import evaluation_ids, fresh_evaluation_ids
from orchestrator.experiment.units import Unit
from orchestrator.liveness.claims import Claims
from orchestrator.monitor import status
from orchestrator.monitor.status import Session, overview
from orchestrator.monitor.time_left import (
    Left,
    device_hours,
    sweep_seconds,
    work_once_trained,
)
from orchestrator.monitor.unit_status import UnitStatus
from orchestrator.planning.ranges import Range
from orchestrator.records.columns import EVALUATING, RESCORING, TRAINING
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

Loaded = tuple[Experiment, list[Unit]]
SHORT, LONG = "arithmetic_short", "arithmetic_long"


@pytest.fixture(scope="module")
def plain() -> Loaded:
    return quickstart()


@pytest.fixture(scope="module")
def rescored() -> Loaded:
    return quickstart("evaluation.rescore=true")


def of(found: list[UnitStatus], unit: Unit) -> UnitStatus:
    return next(s for s in found if s.id == unit.id)


@contextmanager
def writing(runs: Path, *units: Unit) -> Iterator[list[RunWriter]]:
    """Units that a process works on."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(RunWriter(runs, unit.id))) for unit in units]


def train_row(step: int, seconds: float) -> dict[str, object]:
    return {"step": step, "phase": "train", "rollout": seconds}


def evaluation_row(step: int, benchmark: str, responses: int, seconds: float) -> dict[str, object]:
    what = {"step": step, "phase": "evaluate", "benchmark": benchmark}
    return {**what, "draw": 0, "responses": responses, "seconds": seconds}


# --- states and phases ---


def test_a_running_unit_says_what_it_does(tmp_path: Path, plain: Loaded) -> None:
    [vanilla] = units_of(plain[1], "vanilla")
    with writing(tmp_path, vanilla) as [run]:
        run.describe({}, dict)
        assert of(status.collect(Study(*plain, tmp_path)), vanilla).doing == "starting"
        run.log.begin("sweep", 3)
        run.log.enter(TRAINING)
        run.append("metrics.jsonl", [metrics(0)])
        found = of(status.collect(Study(*plain, tmp_path)), vanilla)
        assert (found.state, found.phase, found.doing, found.step) == (
            "running",
            TRAINING,
            "training",
            1,
        )


@contextmanager
def claimed(runs: Path, unit: Unit, evaluation_id: str, step: int) -> Iterator[None]:
    """While an evaluator samples a slice of a checkpoint."""
    lease = Claims(runs).take(unit.id, evaluation_id, step, Slice(0, 4, 0, 200, 200).name)
    assert lease is not None
    yield
    lease.release(remove=True)


def test_a_unit_whose_checkpoints_are_evaluated_says_how_far_that_is(
    tmp_path: Path, plain: Loaded
) -> None:
    [vanilla] = units_of(plain[1], "vanilla")
    write_run(tmp_path, plain[0], vanilla, {60: [None, None]}, steps=60)
    run, ids = RunReader(tmp_path, vanilla.id), evaluation_ids(plain[0].setups["arithmetic"])
    part = Slice(0, 4, 0, 50, 200)
    write_slice(run, ids[SHORT], 60, part, [record(1, problem=f"p{i}") for i in range(50)])
    found = of(status.collect(Study(*plain, tmp_path)), vanilla)
    assert (found.state, found.phase, found.doing) == (
        "queued",
        EVALUATING,
        "queued for evaluation",
    )
    with claimed(tmp_path, vanilla, ids[SHORT], 60):
        found = of(status.collect(Study(*plain, tmp_path)), vanilla)
        assert (found.state, found.phase, found.doing) == (
            "running",
            EVALUATING,
            "evaluating 1400 left",
        )


def test_an_evaluation_that_failed_is_told(tmp_path: Path, plain: Loaded) -> None:
    [vanilla] = units_of(plain[1], "vanilla")
    write_run(tmp_path, plain[0], vanilla, {60: [None, None]}, steps=60)
    run, ids = RunReader(tmp_path, vanilla.id), evaluation_ids(plain[0].setups["arithmetic"])
    note_evaluation_error(run, ids[SHORT], 60, "lost: its process died in each of 3 attempts")
    found = of(status.collect(Study(*plain, tmp_path)), vanilla)
    assert (found.state, found.error) == ("failed", "lost: its process died in each of 3 attempts")
    forget_evaluation_errors(run)
    assert of(status.collect(Study(*plain, tmp_path)), vanilla).state == "queued"


def test_another_attempt_is_counted(tmp_path: Path, plain: Loaded) -> None:
    [vanilla] = units_of(plain[1], "vanilla")
    with writing(tmp_path, vanilla) as [run]:
        run.log.begin("sweep", 3)
        run.log.begin("sweep", 3)
        run.log.enter(TRAINING)
        assert of(status.collect(Study(*plain, tmp_path)), vanilla).doing == "training, try 2"


def test_the_best_trial_of_an_open_family_waits_for_rescoring(
    tmp_path: Path, rescored: Loaded
) -> None:
    """While its rival trains, only the trial that is ahead is not done; once all are trained it is
    its turn.
    """
    experiment, units = rescored
    better, worse = units_of(units, "trust_region")
    write_run(tmp_path, experiment, better, {60: [4, 3]}, steps=60)
    found = of(status.collect(Study(*rescored, tmp_path)), better)
    assert (found.state, found.phase, found.doing) == (
        "waiting",
        RESCORING,
        "waiting for rescoring",
    )
    write_run(tmp_path, experiment, worse, {60: [1, 1]}, steps=60)
    states = {
        unit.id: of(status.collect(Study(*rescored, tmp_path)), unit).doing
        for unit in (better, worse)
    }
    assert states == {better.id: "waiting for rescoring", worse.id: "done"}
    run, ids = RunReader(tmp_path, better.id), fresh_evaluation_ids(experiment.setups["arithmetic"])
    with claimed(tmp_path, better, ids[SHORT], 60):
        found = of(status.collect(Study(*rescored, tmp_path)), better)
        assert (found.state, found.phase, found.doing) == (
            "running",
            RESCORING,
            "rescoring 1600 left",
        )
    for evaluation_id in ids.values():
        write_evaluation(run, evaluation_id, 60, [record(2)])
    assert of(status.collect(Study(*rescored, tmp_path)), better).state == "done"


def test_a_seed_is_not_done_before_the_others_are_evaluated(tmp_path: Path) -> None:
    """Which setting is sampled again is known only then: what is done would otherwise come to wait
    again.
    """
    loaded = quickstart("evaluation.rescore=true", "methods.vanilla={seeds: [0, 1]}")
    first, second = units_of(loaded[1], "vanilla")
    write_run(tmp_path, loaded[0], first, {60: [4, 3]}, steps=60)

    def doing() -> list[str]:
        found = status.collect(Study(*loaded, tmp_path))
        return [of(found, unit).doing for unit in (first, second)]

    assert doing() == ["waiting for rescoring", "queued"]
    write_run(tmp_path, loaded[0], second, {60: [None, None]}, steps=60)
    assert doing() == ["waiting for rescoring", "queued for evaluation"]
    for evaluation_id in evaluation_ids(loaded[0].setups["arithmetic"]).values():
        write_evaluation(RunReader(tmp_path, second.id), evaluation_id, 60, [record(1)])
    assert doing() == ["waiting for rescoring"] * 2


def test_trained_units_of_a_race_that_has_not_begun_wait_for_it(tmp_path: Path) -> None:
    loaded = quickstart("evaluation.budget=adaptive")
    first, _ = units_of(loaded[1], "trust_region")
    write_run(tmp_path, loaded[0], first, {60: [4, 3]}, steps=60)
    assert of(status.collect(Study(*loaded, tmp_path)), first).doing == "waiting for its race"


def test_what_waits_for_the_supervised_stage_says_so(tmp_path: Path, plain: Loaded) -> None:
    [trial] = units_of(plain[1], "sft_warmup")
    assert of(status.collect(Study(*plain, tmp_path)), trial).doing == "waiting for its stage"
    assert {s.label for s in status.collect(Study(*plain, tmp_path)) if s.is_supervised} == {
        "Supervised stage"
    }


def test_the_latest_score_stands_beside_the_best(tmp_path: Path, plain: Loaded) -> None:
    [vanilla] = units_of(plain[1], "vanilla")
    write_run(tmp_path, plain[0], vanilla, {20: [4, 3], 40: [2, 2]}, steps=40, done=False)
    found = of(status.collect(Study(*plain, tmp_path)), vanilla)
    assert (found.state, found.best_step, found.score) == ("interrupted", 20, 7 / 8)
    assert (found.latest_step, found.latest_score) == (40, 1 / 2)


def test_families_are_counted_with_their_best_checkpoint(tmp_path: Path, plain: Loaded) -> None:
    first, second = units_of(plain[1], "trust_region")
    write_run(tmp_path, plain[0], first, {20: [1, 1], 60: [2, 2]}, steps=60)
    write_run(tmp_path, plain[0], second, {20: [3, 2]}, steps=20, done=False)
    [family] = [f for f in overview(Study(*plain, tmp_path)).families if f.label == "TRB"]
    assert family.states == {"done": 1, "interrupted": 1}
    assert (family.score, family.setting, family.step) == (5 / 8, "epsilon0=0.05 K=12", 20)


# --- time left ---


def test_nothing_is_said_before_anything_was_measured(tmp_path: Path, plain: Loaded) -> None:
    [vanilla] = units_of(plain[1], "vanilla")
    with writing(tmp_path, vanilla) as [run]:
        run.log.enter(TRAINING)
        found = overview(Study(*plain, tmp_path))
    assert of(found.units, vanilla).seconds_left is None
    assert found.seconds_left is None


def test_time_left_counts_steps_and_the_evaluations_to_come(tmp_path: Path, plain: Loaded) -> None:
    """20 of 60 steps at 2 s; two checkpoints to come, 1,600 responses each at 0.01 s."""
    [vanilla] = units_of(plain[1], "vanilla")
    with writing(tmp_path, vanilla) as [run]:
        run.append("metrics.jsonl", [metrics(step) for step in range(20)])
        run.new_checkpoint(20, lambda folder: (folder / "model.safetensors").touch())
        run.commit(20)
        for step in range(20):
            run.append_timing(train_row(step, 9.0 if step == 0 else 2.0))
        for benchmark, evaluation_id in evaluation_ids(plain[0].setups["arithmetic"]).items():
            write_evaluation(run, evaluation_id, 20, [record(1)])
            run.append_timing(evaluation_row(20, benchmark, 800, 8.0))
        found = of(status.collect(Study(*plain, tmp_path)), vanilla)
    assert found.seconds_left == pytest.approx(40 * 2.0 + 2 * 1600 * 0.01)


def test_responses_that_are_sampled_are_not_left(tmp_path: Path, plain: Loaded) -> None:
    """600 of 1,600 responses of the last checkpoint are there, so 1,000 at 0.01 s are left."""
    [vanilla] = units_of(plain[1], "vanilla")
    write_run(tmp_path, plain[0], vanilla, {60: [None, None]}, steps=60)
    run, ids = RunReader(tmp_path, vanilla.id), evaluation_ids(plain[0].setups["arithmetic"])
    append_timing(run, evaluation_row(20, SHORT, 800, 8.0))
    append_timing(run, evaluation_row(20, LONG, 800, 8.0))
    write_slice(
        run,
        ids[LONG],
        60,
        Slice(0, 4, 0, 150, 200),
        [record(1, problem=f"p{i}") for i in range(150)],
    )
    found = of(status.collect(Study(*plain, tmp_path)), vanilla)
    assert found.seconds_needed == pytest.approx(1000 * 0.01)


def test_once_trained_a_family_is_sampled_again_for_each_seed() -> None:
    experiment, units = quickstart("evaluation.rescore=true", "seeds=[0,1]")
    seeds = units_of(units, "vanilla")
    assert work_once_trained(experiment, [seeds]) == {SHORT: 1600, LONG: 1600}


def test_a_race_expects_more_rungs() -> None:
    experiment, units = quickstart(
        "evaluation.budget=adaptive", f"evaluation.benchmarks.{SHORT}.n=64"
    )
    settings = [[unit] for unit in units_of(units, "trust_region")]
    assert work_once_trained(experiment, settings)[SHORT] > 0


def test_a_sweep_takes_all_of_its_work_on_all_cores_or_its_longest_chain(plain: Loaded) -> None:
    """Two cores: trials of 10 s each, and a supervised stage of 30 s that one of them waits for."""
    [vanilla], [stage], [waiting] = (
        units_of(plain[1], name) for name in ("vanilla", "sft", "sft_warmup")
    )
    own, two = plain[0].runtime.placement, {"CPU": 2, "GPU": 0}

    def job(unit: Unit, training: float, sampling: float = 0.0) -> Left:
        return Left(unit, Range(training / 2, training, 2 * training), Range.exactly(sampling))

    four = [job(vanilla, 0.0, 10.0)] * 4
    assert sweep_seconds(four, own, two) == Range.exactly(20.0)
    assert sweep_seconds(four, own, {"CPU": 4.0}) == Range.exactly(10.0)
    chain = [job(stage, 30.0), job(waiting, 10.0)]
    assert sweep_seconds(chain, own, two) == Range(20.0, 40.0, 80.0)
    assert sweep_seconds([*four, *chain], own, two) == Range(30.0, 40.0, 80.0)
    assert sweep_seconds(four, own, {}) is None
    assert device_hours([*four, *chain], own, "core") == Range(60 / 3600, 80 / 3600, 120 / 3600)


def test_the_process_that_submits_knows_its_cluster_and_its_pace(
    tmp_path: Path, plain: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    [vanilla] = units_of(plain[1], "vanilla")
    write_run(tmp_path, plain[0], vanilla, {60: [1, 2]}, steps=60)
    monkeypatch.setattr(status.time, "monotonic", lambda: 130.0)
    with writing(tmp_path, *units_of(plain[1], "veto")):
        found = overview(Study(*plain, tmp_path), Session(100.0, 0, {"CPU": 2.0, "GPU": 0.0}))
    assert (found.elapsed, found.trials_an_hour, found.used["CPU"]) == (30.0, 120.0, 1.0)


# --- the command ---


def test_json_keeps_its_keys_and_names_the_folder(
    tmp_path: Path, plain: Loaded, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["status", str(QUICKSTART), "--json", "--runs", str(tmp_path)])
    assert ended.value.code == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["runs"] == str(tmp_path)
    assert {"seconds_left", "elapsed", "seconds_left_range"} <= set(shown["sweep"])
    assert (shown["sweep"]["device"], shown["sweep"]["device_hours_spent"]) == ("core", 0.0)
    assert shown["sweep"]["device_hours_left"] is None, "nothing was measured"
    old = {
        "id",
        "setup",
        "label",
        "kind",
        "seed",
        "state",
        "step",
        "steps",
        "loss",
        "score",
        "best_step",
    }
    assert old | {"seconds_left", "error", "phase", "doing"} <= set(shown["units"][0])


def test_a_runs_folder_that_is_not_there_is_said_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["status", str(QUICKSTART), "--runs", str(tmp_path / "nowhere")])
    assert ended.value.code == 1
    assert (
        capsys.readouterr().out.splitlines()[0] == f"runs: {tmp_path / 'nowhere'} (does not exist)"
    )


def test_the_runs_folder_can_come_from_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRB_RUNS", str(tmp_path))
    with pytest.raises(SystemExit):
        main(["status", str(QUICKSTART)])
    assert capsys.readouterr().out.startswith(f"runs: {tmp_path} (0 of ")


def test_a_failed_unit_names_its_traceback_and_its_log(
    tmp_path: Path, plain: Loaded, capsys: pytest.CaptureFixture[str]
) -> None:
    [vanilla] = units_of(plain[1], "vanilla")
    with writing(tmp_path, vanilla) as [run]:
        run.describe({}, dict)
        run.fail("RuntimeError: lr 1e30?", "Traceback …")
    with pytest.raises(SystemExit):
        main(["status", str(QUICKSTART), "--runs", str(tmp_path)])
    shown = capsys.readouterr().out
    assert f"{vanilla.id}: RuntimeError: lr 1e30?" in shown
    assert str(tmp_path / vanilla.id / "traceback.txt") in shown
    assert f"trb logs {vanilla.id}" in shown


def test_a_folder_that_cannot_be_written_can_be_looked_at(plain: Loaded) -> None:
    """As somebody else than its owner, who may only read."""
    [vanilla] = units_of(plain[1], "vanilla")
    with tempfile.TemporaryDirectory() as name:
        runs = Path(name)
        write_run(runs, plain[0], vanilla, {60: [1, 2]}, steps=60)
        folders = [runs, *(path for path in runs.rglob("*") if path.is_dir())]
        for folder in folders:
            folder.chmod(0o555)
        try:
            with somebody_else():
                assert of(status.collect(Study(*plain, runs)), vanilla).state == "done"
        finally:
            for folder in folders:
                folder.chmod(0o755)


@contextmanager
def somebody_else() -> Iterator[None]:
    """Without the rights of root, who may write everywhere."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
