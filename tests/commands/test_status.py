"""A sweep that is watched: from its run directories alone, in a pipe, while it starts, and a line
for each event.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from analysis.table.model import results_table
from orchestrator.commands import status, waiting
from orchestrator.commands.status import (
    REFRESH_S,
    STARTING,
    Events,
    Watch,
    event,
    follow,
    pause_after,
)
from orchestrator.commands.waiting import taking
from orchestrator.experiment.units import Unit
from orchestrator.liveness.leases import Driving
from orchestrator.monitor.status import Overview, Session
from orchestrator.monitor.unit_status import UnitStatus, tokens_a_second
from orchestrator.planning.numbers import Range
from orchestrator.records.log import EVALUATING, RESCORING, TRAINING
from orchestrator.records.rundir import RunReader
from orchestrator.records.writer import RunWriter
from orchestrator.selection.study import Study
from tests.commands.test_display import unit as status_of
from tests.fake_runs import QUICKSTART, metrics, quickstart, units_of, write_run
from tests.sweeps import trb_here

WATCH = ("status", "--watch", QUICKSTART)
NO_RESCORING = "evaluation.rescore=false"
ONLY = [
    f"methods.{name}=null"
    for name in ("fixed_epsilon", "veto", "skd", "temperature_warmup", "sft_warmup")
]


def lines_of(console: Console) -> list[str]:
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def finish(study: Study, unit: Unit) -> None:
    """Write a whole unit, with scores that differ between methods."""
    correct = (
        {0: [1, 1]} if unit.is_untrained else {60: [4, 3] if unit.method == "vanilla" else [3, 2]}
    )
    write_run(study.runs, study.experiment, unit, correct, steps=unit.steps)


def finished(tmp_path: Path) -> Study:
    study = Study(*quickstart(*ONLY), tmp_path)
    for unit in study.units:
        finish(study, unit)
    return study


def test_watching_a_finished_sweep_ends_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = finished(tmp_path)
    code, out, _ = trb_here(capsys, *WATCH, *ONLY, NO_RESCORING, "--runs", tmp_path)
    assert code == 0
    first, second, *rest = out.splitlines()
    assert first.startswith("quickstart")
    assert ONLY[0] in first
    assert second == f"runs: {tmp_path}"
    assert f"{len(study.units)} of {len(study.units)} done" in rest[0]


@pytest.mark.parametrize("there", [False, True])
def test_watching_what_nobody_works_on_ends_in_a_pipe(
    there: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    if there:
        runs.mkdir()
    code, out, _ = trb_here(capsys, *WATCH, "--runs", runs)
    assert code == (0 if there else 1)
    lines = out.splitlines()
    assert lines[-1].endswith(f"trb submit {QUICKSTART} --runs {runs}")
    assert any("does not exist" in line for line in lines) is not there


def test_watching_ends_at_a_damaged_unit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = finished(tmp_path)
    (study.runs / study.units[0].id / "state.json").write_text("{")
    code, out, _ = trb_here(capsys, *WATCH, *ONLY, NO_RESCORING, "--runs", tmp_path)
    assert code == 1
    assert study.units[0].id in out.splitlines()[-1]


def test_watching_goes_on_until_the_last_unit_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "REFRESH_S", 0.02)
    study = Study(*quickstart(*ONLY), tmp_path)
    console = Console(file=io.StringIO(), width=400)
    thread = threading.Thread(
        target=follow, args=(Watch(study, ()), console, threading.Event()), daemon=True
    )
    [vanilla] = units_of(list(study.units), "vanilla")
    driving = Driving(tmp_path, study.experiment.name, lambda: None)
    run = RunWriter(tmp_path, vanilla.id)
    thread.start()
    until(lambda: any("Vanilla: starting" in line for line in lines_of(console)))
    run.close()
    for unit in study.units:
        assert thread.is_alive()
        finish(study, unit)
    thread.join(60)
    driving.end()
    assert not thread.is_alive()
    assert any(line.endswith("Untrained student: done, 25.0") for line in lines_of(console))
    done = f"{len(study.units)} of {len(study.units)} done"
    assert sum(done in line for line in lines_of(console)) == 1


def test_the_start_is_spoken_of_until_a_worker_is_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the driver itself holds the untrained student, to describe it."""
    for name in ("REFRESH_S", "SILENCE_S"):
        monkeypatch.setattr(status, name, 0.02)
    study = Study(*quickstart(*ONLY), tmp_path)
    session = Session(time.monotonic(), 0, {"CPU": 2.0, "GPU": 0.0})
    watch, console, ended = (
        Watch(study, ("Ctrl-C stops",), session),
        Console(file=io.StringIO(), width=400),
        threading.Event(),
    )
    [vanilla] = units_of(list(study.units), "vanilla")
    thread = threading.Thread(target=follow, args=(watch, console, ended), daemon=True)
    thread.start()
    until(lambda: sum(STARTING in line for line in lines_of(console)) >= 2)
    run = RunWriter(tmp_path, vanilla.id)
    watch.look()
    assert watch.starting
    run.log.begin("sweep", 3)
    run.log.enter("loading PyTorch")
    until(lambda: not watch.starting)
    run.close()
    ended.set()
    thread.join(60)
    assert not thread.is_alive()


def test_intervals_are_those_of_the_table_once_a_method_is_finished(tmp_path: Path) -> None:
    study = Study(*quickstart(*ONLY), tmp_path)
    watch = Watch(study, ())
    *most, last = [unit for unit in study.units if unit.is_trial]
    for unit in most:
        finish(study, unit)
    watch.look()
    assert watch.gaps == {}, "one unit of TRB is not done"
    finish(study, last)
    watch.look()
    evidence = results_table(study).facts
    row = evidence.find("arithmetic", "trust_region") if evidence else None
    gap = row.columns["avg"].difference if row else None
    assert gap is not None
    assert list(watch.gaps) == [("arithmetic", "TRB")]
    assert watch.gaps["arithmetic", "TRB"].startswith(f"−{abs(float(gap.estimate.value)):.1f} [")
    assert watch.gaps["arithmetic", "TRB"].endswith("]*")
    before = watch.gaps
    watch.look()
    assert watch.gaps is before, "nothing more is done"


def test_tokens_of_rollouts_are_those_of_the_clocked_steps(tmp_path: Path) -> None:
    study = Study(*quickstart(), tmp_path)
    [vanilla] = units_of(list(study.units), "vanilla")
    assert tokens_a_second(RunReader(tmp_path, vanilla.id)) is None
    run = RunWriter(tmp_path, vanilla.id)
    for step, (seconds, tokens) in enumerate([(0.5, 100), (1.5, 500)]):
        run.append("metrics.jsonl", [metrics(step) | {"response_tokens": tokens}])
        run.append_timing({"step": step, "phase": "train", "rollout": seconds})
    run.append_timing(
        {"step": 2, "phase": "train", "rollout": 9.0}
    )  # its row of metrics is not there yet
    assert tokens_a_second(RunReader(tmp_path, vanilla.id)) == 300.0
    run.close()


def test_in_a_pipe_what_takes_long_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SILENCE_S", 0.02)
    console = Console(file=io.StringIO(), width=80)
    with taking(console, "starting Ray"):
        until(lambda: len(lines_of(console)) >= 3)
    told = lines_of(console)
    assert told[0] == "starting Ray…"
    assert told[1].startswith("starting Ray… ")
    with taking(console, "short"):
        pass
    assert lines_of(console)[len(told) :] == ["short…"]


@pytest.mark.parametrize(("width", "height", "lines"), [(80, 24, 24), (120, 40, 40), (80, 14, 16)])
def test_the_live_view_keeps_to_its_screen(
    width: int, height: int, lines: int, tmp_path: Path
) -> None:
    study = Study(*quickstart(), tmp_path)
    console = Console(file=io.StringIO(), width=width, height=height)
    watch = Watch(study, ("Ctrl-C stops", "the same command goes on"))
    console.print(watch.view(watch.look(), console, watch.keys))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert len(text.splitlines()) <= lines, "at least a line for each method, and the sweep"
    assert text.startswith("quickstart")
    assert "Ctrl-C stops" in text
    assert max(map(len, text.splitlines())) <= width
    assert ("SFT warmup K=15" in text) == (height >= 24 and width >= 80)


def test_a_sweep_whose_looks_are_costly_is_looked_at_less_often() -> None:
    assert pause_after(0.0) == pause_after(0.05) == REFRESH_S
    assert pause_after(0.9) == pytest.approx(9.0)


# --- events, where output is no terminal ---


def looks(*stages: UnitStatus) -> list[tuple[list[str], list[str]]]:
    """Lines at each look at one unit beside another one that is done."""
    other = status_of("Vanilla")
    events = Events(Overview([other, replace(stages[0], state="queued")]))
    return [
        events.since_then(Overview([other, stage], seconds_left_range=Range.exactly(61.0)))
        for stage in stages
    ]


def test_a_trial_from_start_to_end_has_a_line_for_each_event() -> None:
    nothing = {"score": None, "best_step": None, "latest_step": None, "latest_score": None}
    start = status_of("TRB K=5", "running", step=0, phase=TRAINING, **nothing)
    scored = {"score": 0.4, "best_step": 20, "latest_step": 20, "latest_score": 0.4}
    events = [
        (start, "training"),
        (replace(start, step=7), ""),
        (replace(start, phase=EVALUATING, step=20), ""),
        (replace(start, step=25, **scored), "step 20/60, 40.0"),
        (
            status_of("TRB K=5", "waiting", doing="waiting for rescoring"),
            "trained, best 45.5 at step 40; waiting for rescoring",
        ),
        (status_of("TRB K=5", "running", phase=RESCORING), "rescoring step 40 on fresh samples"),
    ]
    end = status_of("TRB K=5")
    *before, last = looks(*[stage for stage, _ in events], end)
    for (ended, going_on), (_, words) in zip(before, events, strict=True):
        assert ended == []
        assert going_on == ([f"[1/2, 1m01s left] TRB K=5: {words}"] if words else [])
    assert last == (["[2/2, 1m01s left] TRB K=5: done, best 45.5 at step 40"], [])


def test_what_is_done_already_is_no_event() -> None:
    overview = Overview([status_of("Vanilla"), status_of("TRB K=5", "failed", error="before")])
    assert Events(overview).since_then(overview) == ([], [])


def test_failures_and_attempts_are_told() -> None:
    failed = status_of("TRB K=5", "failed", step=3, error="RuntimeError: no")
    tried = {"attempt": 2, "attempts": 3, "latest_step": None}
    again = status_of("TRB K=5", "running", step=2, phase=TRAINING, **tried)
    assert looks(failed, again) == [
        (["[1/2, 1m01s left] TRB K=5: failed at step 3/60: RuntimeError: no"], []),
        ([], ["[1/2, 1m01s left] TRB K=5: attempt 2 of 3, training"]),
    ]


def test_a_supervised_stage_and_the_untrained_student_end_in_few_words() -> None:
    assert (
        event(status_of("sft", kind="sft", score=None, best_step=None, latest_score=None)) == "done"
    )
    untrained = status_of("Untrained student", kind="base_eval", best_step=0, latest_score=0.176)
    assert event(untrained) == "done, 17.6"


def test_a_confirming_run_has_no_best_checkpoint() -> None:
    assert event(status_of("TRB K=5", confirms=40)) == "done, 45.5 at step 40"
