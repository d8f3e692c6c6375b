"""W&B online, against a stand-in server on 127.0.0.1: rows once, the results table, no key, no
waiting for ever.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import wandb

from orchestrator.experiment.units import Unit, expand
from orchestrator.records.writer import RunWriter
from orchestrator.tracking import wandb_tracker
from orchestrator.tracking.projection import Projection, TrackedTable
from orchestrator.tracking.tracker import Mirror
from orchestrator.tracking.wandb_tracker import WandbTracker, sync_command
from tests.fake_runs import QUICKSTART, fake_models, metrics, quickstart
from tests.sweeps import trb_shows
from tests.tracking.sweep import KEY, Sweep, scores, train_rows
from tests.wandb_server import WandbServer, serving

Hasty = Callable[..., AbstractContextManager[None]]

AGAIN = "trb submit sweep.yaml"
CLOSED = "http://127.0.0.1:9"  # nothing listens there
TABLES: dict[str, TrackedTable] = {
    "results": (["Method", "Avg"], [["Veto", 50.0], ["Vanilla", None]])
}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    """A user who is logged in to a server of the test's own; wandb forgets all others."""
    for name in ("WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT", "WANDB_ENTITY", "WANDB_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    wandb.teardown()
    with serving() as running:
        monkeypatch.setenv("WANDB_BASE_URL", running.url)
        yield running
    wandb.teardown()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Hasty:
    """A context in which nobody waits for a server longer than a second: for its answer, or for its
    having all rows.
    """

    @contextmanager
    def waiting(*limits: str) -> Iterator[None]:
        with monkeypatch.context() as shorter:
            for limit in limits or ("INIT_TIMEOUT_S", "FINISH_TIMEOUT_S"):
                shorter.setattr(wandb_tracker, limit, 1.0)
            yield

    return waiting


# --- rows ---


def test_each_committed_step_arrives_once(
    server: WandbServer, sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = sweep.unit("trust_region")
    sweep.write(unit, 25, {20: [1, 2]})
    sweep.send(unit, "online")
    expected = train_rows(45)
    expected[20] |= scores(0.25, 0.5)
    assert server.runs[unit.id].rows == expected[:25]
    sweep.write(unit, 45, {40: [3, 4]})
    assert sweep.stale("online") == [unit]
    sweep.send(unit, "online")
    expected[40] |= scores(0.75, 1.0)
    assert server.runs[unit.id].rows == expected
    sweep.forget()
    sweep.send(unit, "online")
    assert server.runs[unit.id].rows == expected
    assert sweep.stale("online") == []
    monkeypatch.setenv("WANDB_BASE_URL", CLOSED)  # another server has nothing yet
    assert sweep.stale("online") == [unit]


def logging(sweep: Sweep, unit: Unit, steps: Iterable[int], loss: float | None = None) -> None:
    """A process logs more steps of a unit, and is killed before it commits them.

    Its tracker shows them until then. They have the loss of `metrics`, or another one.
    """
    with closing(RunWriter(sweep.runs, unit.id)) as run:
        for step in steps:
            other = {} if loss is None else {"loss": loss}
            run.append("metrics.jsonl", [metrics(step) | other])
        sweep.send(unit, "online", "running", goes_on=True)


@pytest.mark.parametrize("loss", [None, 0.5])
def test_a_point_per_step_and_each_once_after_kills_between_commits(
    loss: float | None, server: WandbServer, sweep: Sweep
) -> None:
    """After a kill the same steps have other numbers if the engine is not keyed."""
    unit = sweep.unit()
    sweep.write(unit, 20)
    logging(sweep, unit, range(20, 28))
    run = server.runs[unit.id]
    assert run.rows == train_rows(28)
    assert run.exit_codes == []
    expected = train_rows(40)
    if loss is not None:
        for row in expected[20:40]:
            row["train/loss"] = loss
    logging(sweep, unit, range(20, 23), loss)
    assert run.rows[:23] == expected[:23]
    logging(sweep, unit, range(20, 25), loss)
    assert run.rows[:25] == expected[:25]
    with closing(RunWriter(sweep.runs, unit.id)) as writer:
        rows = [{"step": row["step"], "loss": row["train/loss"], "tokens": row["train/tokens"]}
                for row in expected[20:]]  # fmt: skip
        writer.append("metrics.jsonl", rows)
        writer.commit(40)
    sweep.send(unit, "online")
    assert run.rows == expected
    sweep.send(unit)
    assert sweep.history(unit) == expected  # as the undisturbed run would be, offline too


def test_a_score_comes_late_and_changes_and_its_row_is_there_once(
    server: WandbServer, sweep: Sweep
) -> None:
    unit = sweep.unit()
    sweep.write(unit, 45)
    sweep.send(unit, "online", "running", goes_on=True)
    expected = train_rows(45)
    for correct in ([1, 2], [3, 4]):
        sweep.write(unit, 45, {20: correct})
        sweep.send(unit, "online", "running", goes_on=True)
        expected[20] |= scores(correct[0] / 4, correct[1] / 4)
        assert server.runs[unit.id].rows == expected


def test_rows_alone_that_are_new_are_sent(server: WandbServer, sweep: Sweep) -> None:
    unit = sweep.unit()
    for steps in (200, 201):
        sweep.write(unit, steps)
        before = len(server.seen)
        sweep.send(unit, "online", "running", goes_on=True)
        sent = [request for request in server.seen[before:] if "file_stream" in request]
        rows = sum(request.count('train/loss\\":') for request in sent)
    assert len(server.runs[unit.id].rows) == 201
    assert 0 < rows < 10  # one, and its summary


def test_two_projects_do_not_send_a_shared_unit_in_turns(server: WandbServer, sweep: Sweep) -> None:
    unit = sweep.unit()
    sweep.write(unit, 20, done=True)
    renamed = replace(sweep.experiment.runtime, wandb_project="renamed")
    other = Sweep(sweep.runs, replace(sweep.experiment, runtime=renamed))
    for each in (sweep, other):
        assert each.stale("online") == [unit]
        each.send(unit, "online")
    assert (sweep.stale("online"), other.stale("online")) == ([], [])


def test_a_run_goes_on_where_the_server_has_it(server: WandbServer, sweep: Sweep) -> None:
    unit = sweep.unit()
    sweep.write(unit, 20)
    sweep.send(unit, "online")
    run = server.runs[unit.id]
    for line in range(7, 20):  # the connection broke on the way
        del run.history[line]
    run.summary["_step"] = 6
    sweep.write(unit, 30)
    sweep.send(unit, "online")
    assert run.rows == train_rows(30)


# --- results ---


def test_the_results_table_arrives_and_is_replaced(server: WandbServer, sweep: Sweep) -> None:
    run_id = sweep.results_id
    notes = ["one note", "another"]
    sweep.send_results(TABLES, notes, "online")
    for value in (50.0, 62.5):
        headings, rows = ["Method", "Avg"], [["Veto", value], ["Vanilla", None]]
        sweep.send_results({"results": (headings, rows)}, notes, "online")
        run = server.runs[run_id]
        shown = json.loads(server.files[f"{run_id}/{run.summary['results']['path']}"])
        assert shown == {"columns": headings, "data": rows}
    assert list(server.runs) == [run_id]
    assert run.rows == []
    assert (run.inputs["jobType"], run.inputs["notes"]) == ("results", "one note\nanother")


# --- how runs stand, and where they are ---


def test_a_unit_that_goes_on_stays_open_until_it_is_done(server: WandbServer, sweep: Sweep) -> None:
    unit = sweep.unit()
    for state, codes in (("running", []), ("failed", [1]), ("running", [1]), ("done", [1, 0])):
        sweep.write(unit, 10)
        sweep.send(unit, "online", state, goes_on=True)
        assert server.runs[unit.id].exit_codes == codes
        assert server.runs[unit.id].summary["state"] == state


def test_an_open_run_is_sent_now_and_then_without_anything_new(
    server: WandbServer, sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = sweep.unit()
    sweep.write(unit, 10)
    sweep.send(unit, "online", "interrupted", goes_on=True)
    assert sweep.stale_projections("online", goes_on=True) == []
    monkeypatch.setattr(wandb_tracker, "HEARTBEAT_S", 0.0)
    assert len(sweep.stale_projections("online", goes_on=True)) == 1


def test_a_configuration_that_changed_reaches_a_run_that_is_there(
    server: WandbServer, sweep: Sweep, unit: Unit
) -> None:
    sweep.send(unit, "online")
    inputs = server.runs[unit.id].inputs
    config = json.loads(inputs["config"])
    old = {"training.steps": {"value": 7}, "_wandb": config["_wandb"]}
    inputs["config"] = json.dumps(old)
    sweep.send(unit, "online")
    assert json.loads(inputs["config"])["training.steps"] == config["training.steps"]


def test_the_projects_page_is_said_before_anything_was_sent(
    server: WandbServer, sweep: Sweep, unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    Mirror(sweep.study, AGAIN, lines.append).announce()
    assert lines == [f"W&B: {server.url}/team/trb"]
    Mirror(sweep.study, AGAIN, lines.append).catch_up({}, [])
    before = len(server.seen)
    Mirror(sweep.study, AGAIN, lines.append).announce()  # as noted: nobody is asked again
    assert lines == [f"W&B: {server.url}/team/trb"] * 3
    assert len(server.seen) == before
    monkeypatch.setenv("WANDB_MODE", "offline")
    Mirror(sweep.study, AGAIN, lines.append).announce()
    assert "wandb leet" in lines[-1]
    assert str(sweep.runs / ".wandb" / "wandb") in lines[-1]


def test_the_command_that_is_said_sends_offline_runs(
    server: WandbServer, sweep: Sweep, unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep.send(unit)
    assert server.seen == []
    monkeypatch.chdir(sweep.runs.parent)  # it leaves a log in the working directory
    done = subprocess.run(
        ["bash", "-c", sync_command(sweep.runs)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(server.runs[unit.id].rows) == 25
    assert server.runs[unit.id].exit_codes == [1]


# --- the key ---


def test_the_key_leaves_only_in_headers(
    server: WandbServer, sweep: Sweep, capfd: pytest.CaptureFixture[str]
) -> None:
    unit = sweep.unit()
    sweep.write(unit, 25, {20: [1, 2]}, done=True)
    sweep.send(unit, "online")
    sweep.send_results(TABLES, [], "online")
    assert list((sweep.folder / "wandb").iterdir()) == []  # what the server has needs no folder
    server.refusals["UpsertBucket"] = "closed"
    sweep.write(unit, 30, done=True)
    with pytest.raises(wandb.Error):
        sweep.send(unit, "online")
    assert len(server.seen) > 5
    assert [request for request in server.seen if KEY in request] == []
    files = [file for file in sweep.runs.parent.rglob("*") if file.is_file()]
    assert any(file.name == "debug-internal.log" for file in files)
    assert [file for file in files if KEY.encode() in file.read_bytes()] == []
    assert capfd.readouterr() == ("", "")  # nothing between the lines of a live table either


# --- beside a sweep ---


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def unit(sweep: Sweep) -> Unit:
    """A unit with a few rows."""
    unit = sweep.unit()
    sweep.write(unit, 25, {20: [1, 2]})
    return unit


def mirror_of(
    sweep: Sweep, said: list[str], every: float = 0.05, patience: float = 600.0
) -> Mirror:
    """A mirror whose complaints go to `said`; lines that say where runs are shown are left out."""

    def say(line: str) -> None:
        if not line.startswith("W&B: "):
            said.append(line)

    return Mirror(sweep.study, AGAIN, say, every, patience)


def wait_until(true: Callable[[], object]) -> None:
    """Until something is so, however long a busy machine takes; what hangs is ended by the limit of
    all tests.
    """
    while not true():
        time.sleep(0.02)


def test_rows_arrive_while_units_run_and_the_table_at_the_end(
    server: WandbServer, sweep: Sweep, unit: Unit, said: list[str]
) -> None:
    job = mirror_of(sweep, said)
    with job.following():
        wait_until(lambda: unit.id in server.runs and len(server.runs[unit.id].rows) == 25)
        sweep.write(unit, 30)
        wait_until(lambda: len(server.runs[unit.id].rows) == 30)
        assert server.runs[unit.id].exit_codes == []
    job.catch_up(TABLES, [])
    assert set(server.runs) == {unit.id, sweep.results_id}
    # The sweep ended, the unit did not; and its run was open all the time.
    assert server.runs[unit.id].exit_codes == [1]
    assert server.runs[unit.id].summary["state"] == "interrupted"
    assert said == []


def table_of(server: WandbServer, sweep: Sweep, name: str) -> list[dict[str, Any]]:
    """The rows of a table in the results run, each with its columns."""
    about = server.runs[sweep.results_id].summary.get(name)
    if about is None:
        return []
    shown = json.loads(server.files[f"{sweep.results_id}/{about['path']}"])
    return [dict(zip(shown["columns"], row, strict=True)) for row in shown["data"]]


def test_progress_and_leaderboard_follow_the_sweep(
    server: WandbServer, sweep: Sweep, unit: Unit, said: list[str]
) -> None:
    done = {20: [1, 2], 40: [1, 2], 60: [2, 2]}
    job = mirror_of(sweep, said)

    def progress(name: str) -> list[float]:
        run = server.runs.get(sweep.results_id)
        return [row[f"progress/{name}"] for row in run.rows] if run else []

    with job.following():
        wait_until(lambda: progress("units_done"))
        assert table_of(server, sweep, "leaderboard") == []
        sweep.write(unit, 60, done, done=True)
        wait_until(lambda: len(table_of(server, sweep, "leaderboard")) == 1)
        sweep.write(sweep.unit("veto"), 60, {20: [4, 2]} | done, done=True)
        wait_until(lambda: len(table_of(server, sweep, "leaderboard")) == 2)
        assert server.runs[sweep.results_id].exit_codes == []
    job.catch_up(TABLES, [])
    assert server.runs[sweep.results_id].exit_codes == [0]
    units = len(sweep.units)
    assert (progress("units_done")[0], progress("units_done")[-1]) == (0, 2)
    assert progress("units") == [units] * len(progress("units"))
    assert server.runs[unit.id].summary["selected"] is True
    assert said == []


def test_a_second_submission_has_nothing_to_send(
    server: WandbServer, sweep: Sweep, unit: Unit, said: list[str]
) -> None:
    mirror_of(sweep, said).catch_up(TABLES, ["note"])
    requests = len(server.seen)
    mirror_of(sweep, said).catch_up(TABLES, ["note"])
    assert (len(server.seen), said) == (requests, [])
    sweep.forget()
    mirror_of(sweep, said).catch_up(TABLES, ["note"])
    assert len(server.seen) > requests
    assert server.runs[unit.id].rows[20] == train_rows(21)[20] | scores(0.25, 0.5)
    assert len(server.runs[unit.id].rows) == 25


def test_submitting_a_finished_experiment_catches_up(
    server: WandbServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    hasty: Hasty,
) -> None:
    names = []
    for name in quickstart()[0].methods:
        if name not in ("vanilla", "sft_warmup"):
            names.append(f"methods.{name}=null")
    experiment, runs = quickstart(*names)[0], tmp_path / "runs"
    fake_models(experiment, runs)
    units = expand(experiment, runs)
    sweep = Sweep(runs, experiment, units)
    trial = {20: [1, 1], 40: [3, 2], 60: [2, 2]}
    evaluated = {"base_eval": {0: [1, 1]}, "sft": {}, "trial": trial}
    for unit in units:
        sweep.write(unit, unit.steps, evaluated[unit.kind], done=True)
    again = ["submit", str(QUICKSTART), "evaluation.rescore=false", *names, "--runs", str(runs)]
    shown = []
    with hasty(), monkeypatch.context() as broken:
        broken.setenv("WANDB_BASE_URL", CLOSED)
        shown.append(trb_shows(capsys, *again))
    shown.append(trb_shows(capsys, *again))
    first, second = [
        [line for line in text.splitlines() if line.startswith("W&B")] for text in shown
    ]
    assert first[0] == f"W&B: online at {CLOSED}"
    assert first[1].startswith("W&B lags behind")
    assert first[1].endswith(f"; catch up with: trb {' '.join(again)}")
    assert second == [f"W&B: {server.url}/team/trb"] * 2
    assert {server.runs[unit.id].exit_codes[-1] for unit in units} == {0}
    results = [run_id for run_id in server.runs if run_id.startswith("results-quickstart-")]
    assert set(server.runs) == {*(unit.id for unit in units), *results}
    assert len(results) == 1


@pytest.mark.usefixtures("unit")
def test_an_unreachable_server_is_said_once_and_stops_nothing(
    server: WandbServer,
    sweep: Sweep,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    hasty: Hasty,
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", CLOSED)
    attempts: list[Projection] = []

    def counted(tracker: WandbTracker, projection: Projection) -> None:
        attempts.append(projection)
        send(tracker, projection)

    send = WandbTracker.send
    monkeypatch.setattr(WandbTracker, "send", counted)
    job = mirror_of(sweep, said)
    with hasty():
        with job.following():
            wait_until(lambda: len(attempts) == 3)  # two have failed
        job.catch_up(TABLES, [])
    first, last = said
    assert first.startswith(f"W&B is behind ({CLOSED}: ")
    assert first.endswith("; the sweep goes on")
    assert last.startswith(f"W&B lags behind ({CLOSED}: ")
    assert last.endswith(f"; catch up with: {AGAIN}")
    assert "\n" not in first + last
    assert server.seen == []


def test_what_a_refusing_server_missed_is_sent_by_the_next_attempt(
    server: WandbServer, sweep: Sweep, unit: Unit, said: list[str]
) -> None:
    server.refusals["UpsertBucket"] = "this project is closed"
    mirror_of(sweep, said).catch_up(TABLES, [])
    assert len(said) == 1
    assert "this project is closed" in said[0]
    server.refusals.clear()
    mirror_of(sweep, said).catch_up(TABLES, [])
    assert len(said) == 1
    assert len(server.runs[unit.id].rows) == 25
    assert sweep.results_id in server.runs


@pytest.mark.usefixtures("unit")
def test_a_server_that_never_answers_is_left_to_itself(
    server: WandbServer,
    sweep: Sweep,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wandb_tracker, "INIT_TIMEOUT_S", 600.0)
    server.hold = True
    job = mirror_of(sweep, said, patience=0.5)
    with job.following():
        wait_until(lambda: server.seen)
    job.catch_up(TABLES, [])
    assert said == [f"W&B lags behind ({server.url} does not answer); catch up with: {AGAIN}"]
    (left,) = [
        thread for thread in threading.enumerate() if thread.name == "mirror"
    ]  # nobody has waited for it
    server.recover()
    left.join()


def test_rows_of_a_connection_that_broke_are_sent_again(
    server: WandbServer, sweep: Sweep, unit: Unit, said: list[str], hasty: Hasty
) -> None:
    server.hold_after("UpsertBucket")
    with hasty("FINISH_TIMEOUT_S"):
        mirror_of(sweep, said).catch_up({}, [])
    assert len(said) == 1
    assert server.runs[unit.id].rows == []
    server.recover()
    mirror_of(sweep, said).catch_up({}, [])
    assert len(said) == 1
    assert len(server.runs[unit.id].rows) == 25


def test_a_crash_of_wandbs_own_service_is_overcome(
    server: WandbServer,
    sweep: Sweep,
    unit: Unit,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = wandb.setup().ensure_service()._proc
    assert service
    with monkeypatch.context() as nonsense:
        nonsense.setattr(
            server, "_CreateRunFiles", lambda _: {}
        )  # it has no word for such an answer
        mirror_of(sweep, said).catch_up({}, [])
        service.join()  # wandb itself does not wait for a process that crashed
    assert said == [f"W&B lags behind ({server.url}: HandleAbandonedError); catch up with: {AGAIN}"]
    mirror_of(sweep, said).catch_up({}, [])
    assert len(said) == 1
    expected = train_rows(25)
    expected[20] |= scores(0.25, 0.5)
    assert server.runs[unit.id].rows == expected


@pytest.mark.usefixtures("unit")
def test_online_without_a_login_is_said(
    server: WandbServer,
    sweep: Sweep,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("WANDB_MODE", "online")
    mirror_of(sweep, said).catch_up(TABLES, [])
    assert len(said) == 1
    assert f"{server.url}: no key: `wandb login`, or WANDB_API_KEY" in said[0]
    assert server.seen == []


@pytest.mark.usefixtures("unit")
def test_disabled_sends_and_writes_nothing(
    server: WandbServer,
    sweep: Sweep,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    job = mirror_of(sweep, said)
    with job.following():
        assert "mirror" not in {thread.name for thread in threading.enumerate()}
    job.catch_up(TABLES, [])
    assert (server.seen, said, sweep.folder.exists()) == ([], [], False)
