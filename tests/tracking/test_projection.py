"""W&B offline: after any interruption every committed row is there once, and nothing else is. No
network.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis.results import tracked_tables
from analysis.table.model import Score, make_table, results_table
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import Unit, expand
from orchestrator.records.writer import RunWriter
from orchestrator.tracking.wandb_tracker import chosen_mode, logged_in, server_url
from tests.fake_runs import metrics, quickstart, units_of
from tests.sweeps import ROOT, TINY_SETUP, environment
from tests.tracking.sweep import KEY, Sweep, records, scores, train_rows

MANY = 4000  # rows: enough that a mirror of them can be killed on the way


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user with a key, a home of their own, and no server that could be reached by mistake."""
    for name in ("WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT", "WANDB_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


# --- what is sent ---


def test_every_committed_row_is_there_once(sweep: Sweep) -> None:
    unit = sweep.unit("trust_region")
    sweep.write(unit, 45, {20: [1, 2], 40: [3, 4]})
    with closing(RunWriter(sweep.runs, unit.id)) as run:
        run.append("metrics.jsonl", [metrics(45), metrics(46)])
        sweep.send(unit)
    expected = train_rows(45)
    expected[20] |= scores(0.25, 0.5)
    expected[40] |= scores(0.75, 1.0)
    assert sweep.history(unit) == expected


def test_a_last_score_is_sent_when_the_run_is_done(sweep: Sweep) -> None:
    unit = sweep.unit()
    for done in (False, True):
        sweep.write(unit, 60, {60: [2, 2]}, done=done)
        sweep.send(unit)
        last = [{"step": 60} | scores(0.5, 0.5)] if done else []
        assert sweep.history(unit) == train_rows(60) + last


def shown_as(sweep: Sweep, unit: Unit) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Run record, summary and exit code of a unit's only fragment."""
    (fragment,) = sweep.fragments(unit)
    found = records(fragment)
    summary: dict[str, Any] = {}
    for record in found:
        summary |= record["summary"].get("update", {}) if record["type"] == "summary" else {}
    (code,) = [record["exit"]["exit_code"] for record in found if record["type"] == "exit"]
    return next(record["run"] for record in found if record["type"] == "run"), summary, code


def test_a_unit_is_one_run_with_its_configuration_and_its_best_checkpoint(sweep: Sweep) -> None:
    unit = sweep.unit("trust_region", 1)
    sweep.write(unit, 60, {20: [1, 2], 40: [4, 4], 60: [3, 3]}, done=True)
    sweep.send(unit)
    run, summary, code = shown_as(sweep, unit)
    assert (run["run_id"], run["project"], run["run_group"]) == (unit.id, "trb", "quickstart")
    tags = ["TRB", "arithmetic", "exploring"]
    assert (run["display_name"], run["tags"]) == (f"{unit.label} s0 · arithmetic", tags)
    setup = sweep.experiment.setups["arithmetic"]
    assert setup.student.recipe is not None
    expected = {"method": "trust_region", "setup": "arithmetic", "seed": 0} | unit.knobs
    expected["training.steps"] = setup.training.steps
    expected["training.optimizer.lr"] = setup.training.optimizer.lr
    expected["training.objective"] = setup.training.objective
    expected["student.recipe.updates"] = setup.student.recipe.updates
    assert expected.items() <= run["config"]["update"].items()
    best = {"best_step": 40, "best_score": 1.0, "candidates": 3, "state": "done"}
    each = {"best/arithmetic_short": 1.0, "best/arithmetic_long": 1.0}
    assert (best | each).items() <= summary.items()
    assert code == 0


def test_a_run_with_axes_has_their_values_and_says_whether_its_setting_is_selected(
    tmp_path: Path,
) -> None:
    axes = "axes={training.optimizer.lr: [1e-4, 4e-4], training.steps: [40, 60]}"
    sweep = Sweep(tmp_path / "runs", *quickstart(axes, "methods.veto=null"))
    vanilla = units_of(sweep.units, "vanilla")
    for number, unit in enumerate(vanilla):
        sweep.write(
            unit,
            unit.steps,
            {20: [number, 2], 40: [1, 1]} | ({60: [0, 0]} if unit.steps == 60 else {}),
            done=True,
        )
    found = {}
    for unit in vanilla:
        shown = sweep.projection(unit)
        point = shown.config["training.optimizer.lr"], shown.config["training.steps"]
        assert point == (unit.knobs["training.optimizer.lr"], unit.knobs["training.steps"])
        chosen = {key: value for key, value in shown.summary.items() if key.startswith("selected")}
        found[point] = chosen, shown.summary["best_score"]
    best = {"selected": True, "selected_step": 20, "selected_score": 0.625}
    assert found == {
        (1e-4, 40): ({"selected": False}, 0.25),
        (1e-4, 60): ({"selected": False}, 0.375),
        (4e-4, 40): ({"selected": False}, 0.5),
        (4e-4, 60): (best, 0.625),
    }
    stage = units_of(sweep.units, "sft")[0]
    sweep.write(stage, stage.steps, done=True)
    assert sweep.projection(stage).tags == ["Supervised stage", "arithmetic"]


def test_the_configuration_is_that_of_the_run_directory(sweep: Sweep) -> None:
    unit = sweep.unit()
    training = {"steps": 7, "optimizer": {"lr": 0.5}}
    config = {"setup": {"training": training}, "runtime": {"keep": "best"}}
    versions, host = {"torch": "2.13.0"}, {"cpu": "Z80"}
    made_with = {"commit": "c0ffee", "dirty_diff": "", "versions": versions, "host": host}
    with closing(RunWriter(sweep.runs, unit.id)) as run:
        run.describe(config, lambda: made_with)
    shown = sweep.projection(unit)
    about = {"method": "vanilla", "kind": "trial", "setup": "arithmetic", "seed": 0}
    assert shown.config == about | {
        "training.steps": 7,
        "training.optimizer.lr": 0.5,
        "runtime.keep": "best",
        "commit": "c0ffee",
        "uncommitted_changes": False,
        "versions.torch": "2.13.0",
        "cpu": "Z80",
    }


@pytest.mark.parametrize(
    ("state", "code"),
    [("done", 0), ("failed", 1), ("interrupted", 1), ("queued", 1), ("waiting", 1)],
)
def test_only_what_is_done_is_finished(state: str, code: int, sweep: Sweep) -> None:
    unit = sweep.unit()
    sweep.write(unit, 3, done=state == "done")
    sweep.send(unit, state=state)
    _, summary, ended = shown_as(sweep, unit)
    assert (summary["state"], ended) == (state, code)


def test_within_a_sweep_offline_runs_appear_when_they_end(sweep: Sweep) -> None:
    midway, done, failed = (sweep.unit(name) for name in ("vanilla", "veto", "skd"))
    sweep.write(midway, 3)
    sweep.write(done, 60, {20: [1, 1], 40: [1, 1], 60: [1, 1]}, done=True)
    with closing(RunWriter(sweep.runs, failed.id)) as run:
        run.describe({}, dict)
        run.fail("out of memory", "")
    ended = {done.id: "finished", failed.id: "failed"}
    stale = sweep.stale_projections("offline", goes_on=True)
    assert {shown.unit.id: shown.outcome for shown in stale} == ended
    stale = sweep.stale_projections("offline")
    assert {shown.unit.id: shown.outcome for shown in stale} == ended | {midway.id: "failed"}


def test_missing_numbers_are_left_out(sweep: Sweep) -> None:
    unit = sweep.unit()
    with closing(RunWriter(sweep.runs, unit.id)) as run:
        run.append("metrics.jsonl", [{"step": 0, "loss": float("nan"), "reward": 1.0}])
        run.commit(1)
    sweep.send(unit)
    assert sweep.history(unit) == [{"step": 0, "train/reward": 1.0}]


def test_seconds_of_a_step_are_those_of_its_last_time(sweep: Sweep) -> None:
    unit = sweep.unit()
    sweep.write(unit, 2)
    with closing(RunWriter(sweep.runs, unit.id)) as run:
        for step, seconds in ((0, 1.5), (1, 9.0), (1, 2.5), (2, 3.5)):  # step 2 is not committed
            run.append_timing({"step": step, "phase": "train", "rollout": seconds, "learn": 0.5})
        run.append_timing(
            {"step": 1, "phase": "evaluate", "benchmark": "arithmetic_short", "seconds": 7.0}
        )
    sweep.send(unit)
    timed = [{"time/rollout": 1.5, "time/learn": 0.5}, {"time/rollout": 2.5, "time/learn": 0.5}]
    assert sweep.history(unit) == [
        row | seconds for row, seconds in zip(train_rows(2), timed, strict=True)
    ]


def test_a_renamed_project_or_another_entity_gets_the_run(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder holds one offline run of a unit: that of the last destination."""
    unit = sweep.unit()
    sweep.write(unit, 60, {20: [1, 2]}, done=True)
    sweep.send(unit, "offline")
    renamed = replace(sweep.experiment.runtime, wandb_project="renamed-42")
    other = Sweep(sweep.runs, replace(sweep.experiment, runtime=renamed))
    assert (sweep.stale("offline"), other.stale("offline")) == ([], [unit])
    other.send(unit, "offline")
    (fragment,) = sweep.folder.rglob(f"run-{unit.id}.wandb")
    assert b"renamed-42" in fragment.read_bytes()
    assert (sweep.stale("offline"), other.stale("offline")) == ([unit], [])
    monkeypatch.setenv("WANDB_ENTITY", "others")
    assert other.stale("offline") == [unit]


# --- results ---


def table_files(sweep: Sweep) -> dict[str, Any]:
    """Name → content of every table in the offline fragments of the results run."""
    folders = sweep.folder.rglob(f"offline-run-*-{sweep.results_id}")
    files = [file for folder in folders for file in folder.rglob("*.table.json")]
    return {file.name.split("_summary_")[0]: json.loads(file.read_text()) for file in files}


def test_the_results_table_is_a_run_of_its_own(sweep: Sweep) -> None:
    for name, correct in (("vanilla", [1, 2]), ("veto", [4, 3])):
        sweep.write(sweep.unit(name), 60, {20: correct}, done=True)
    made = results_table(sweep.study)
    tables = tracked_tables(made)
    for _ in range(2):
        sweep.send_results(tables, [], "offline")
        assert len(list(sweep.folder.rglob("*.wandb"))) == 1
        shown = table_files(sweep)
        assert set(shown) == {"results", "scores", "leaderboard"}
        assert shown["results"]["columns"] == ["Method", "Avg", "Short sums", "Long sums"]
        rows = {row[0]: row[1:] for row in shown["results"]["data"]}
        assert (rows["Vanilla"], rows["Veto"]) == ([37.5, 25.0, 50.0], [87.5, 100.0, 75.0])
        assert rows["Untrained student"] == [None, None, None]
        cells = {}
        for row in shown["scores"]["data"]:
            cell = dict(zip(shown["scores"]["columns"], row, strict=True))
            cells[cell["method"], cell["benchmark"]] = cell["setup"], cell["pass_at_1"]
        assert cells["veto", "arithmetic_long"] == ("arithmetic", 75.0)


def test_columns_of_several_setups_name_theirs() -> None:
    scores = [Score("veto", "a", "one", Fraction(3, 2)), Score("veto", "b", "one", None)]
    tables = tracked_tables(make_table(scores))
    headings, rows = tables["results"]
    assert headings == ["Method", "a Avg", "a one", "b Avg", "b one"]
    assert rows == [["Veto", 1.5, 1.5, None, None]]
    headings, rows = tables["scores"]
    cells = [dict(zip(headings, row, strict=True)) for row in rows]
    assert [(cell["setup"], cell["pass_at_1"], cell["n"]) for cell in cells][::2] == [
        ("a", 1.5, None),
        ("b", None, None),
    ]


# --- again ---


def test_more_rows_replace_the_fragment(sweep: Sweep) -> None:
    unit, other = sweep.unit(), sweep.unit("veto")
    sweep.write(other, 3)
    for steps in (10, 25):
        sweep.write(unit, steps)
        for shown in (unit, other):
            sweep.send(shown)
        assert len(sweep.fragments(unit)) == len(sweep.fragments(other)) == 1
        assert sweep.history(unit) == train_rows(steps)
    assert sweep.history(other) == train_rows(3)


def test_units_without_anything_new_are_not_written_again(sweep: Sweep) -> None:
    unit = sweep.unit()
    assert sweep.stale() == []
    sweep.write(unit, 25, {20: [1, 2]})
    assert sweep.stale() == [unit]
    sweep.send(unit)
    assert sweep.stale() == []
    assert sweep.stale("online") == [unit]


@pytest.mark.parametrize("scored", [True, False])
def test_a_unit_is_stale_when_it_has_more_to_show(scored: bool, sweep: Sweep) -> None:
    unit = sweep.unit()
    sweep.write(unit, 25)
    sweep.send(unit)
    sweep.write(unit, 25 if scored else 26, {20: [1, 2]} if scored else {})
    assert sweep.stale() == [unit]


def test_rows_that_are_not_committed_make_no_unit_stale(sweep: Sweep) -> None:
    unit = sweep.unit()
    sweep.write(unit, 25)
    sweep.send(unit)
    with closing(RunWriter(sweep.runs, unit.id)) as run:
        run.append("metrics.jsonl", [metrics(25)])
        assert sweep.stale() == []


# --- kills ---


def send_vanilla(runs: str) -> None:
    """The work of the process that is killed."""
    sweep = Sweep(Path(runs))
    sweep.send(sweep.unit())


def test_a_kill_on_the_way_neither_loses_nor_doubles_a_row(sweep: Sweep) -> None:
    unit = sweep.unit()
    sweep.write(unit, MANY)
    command = f"from {__name__} import send_vanilla; send_vanilla({str(sweep.runs)!r})"
    # An environment without this process's W&B service, which would outlive the kill.
    with subprocess.Popen([sys.executable, "-c", command], cwd=ROOT, env=environment()) as process:
        while not sweep.fragments(unit):
            assert process.poll() is None
            time.sleep(0.005)
        process.kill()
    assert sweep.stale() == [unit]
    sweep.send(unit)
    assert len(sweep.fragments(unit)) == 1
    assert sweep.history(unit) == train_rows(MANY)


@pytest.mark.parametrize("torn", ["", '{"mode": "off'])
def test_a_torn_note_of_what_was_sent_is_no_note(torn: str, sweep: Sweep) -> None:
    unit = sweep.unit()
    sweep.write(unit, 2)
    sweep.send(unit)
    (note,) = sweep.folder.glob("*.json")
    note.write_text(torn)
    assert sweep.stale() == [unit]


def test_a_unit_whose_name_ends_like_another_keeps_its_rows(tmp_path: Path) -> None:
    (tmp_path / "setups").mkdir()
    for name in ("tiny", "my-tiny"):
        (tmp_path / "setups" / f"{name}.yaml").write_text(yaml.safe_dump(TINY_SETUP))
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump({"setups": ["my-tiny", "tiny"], "methods": {"vanilla": {}}}))
    experiment = load_experiment(path)
    sweep = Sweep(tmp_path / "runs", experiment, expand(experiment))
    units = [sweep.unit(position=0), sweep.unit(position=1)]
    for unit in units:
        sweep.write(unit, 2)
    for unit in units:
        sweep.send(unit)
    assert [sweep.history(unit) for unit in units] == [train_rows(2), train_rows(2)]


# --- mode and key ---


def test_the_key_is_written_nowhere(sweep: Sweep) -> None:
    unit = sweep.unit()
    sweep.write(unit, 25, {20: [1, 2]}, done=True)
    sweep.send(unit)
    files = [file for file in sweep.runs.parent.rglob("*") if file.is_file()]
    assert any(file.suffix == ".wandb" for file in files)
    assert [file for file in files if KEY.encode() in file.read_bytes()] == []


@pytest.mark.parametrize("wish", ["online", "offline", "disabled"])
def test_a_wish_is_followed(wish: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    assert chosen_mode(wish) == wish


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("online", "online"),
        ("offline", "offline"),
        ("disabled", "disabled"),
        ("dryrun", "offline"),
        ("", "online"),
    ],
)
def test_wandbs_own_variable_decides_before_the_login(
    variable: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", variable)
    assert chosen_mode("auto") == expected


@pytest.mark.parametrize(
    ("netrc", "expected"),
    [
        (None, "offline"),
        ("", "offline"),
        (f"machine api.wandb.ai login user password {KEY}\n", "online"),
        (f"machine api.forge.coreweave.com login user password {KEY}\n", "online"),
        (f"machine example.org login user password {KEY}\n", "offline"),
        ("no netrc at all\n", "offline"),
    ],
)
def test_without_a_key_the_netrc_decides(
    netrc: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.delenv("WANDB_BASE_URL")
    write_netrc(tmp_path / "home", netrc)
    assert chosen_mode("auto") == expected


@pytest.mark.parametrize(
    ("machine", "expected"), [("wandb.firm:8080", True), ("api.wandb.ai", False)]
)
@pytest.mark.parametrize("noted", [True, False])
def test_a_server_of_ones_own_needs_its_own_login(
    noted: bool, machine: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("WANDB_BASE_URL", "" if noted else "http://wandb.firm:8080/")
    if noted:  # as `wandb login --host` leaves it
        (tmp_path / "home" / ".config" / "wandb").mkdir(parents=True)
        settings = "[default]\nbase_url = http://wandb.firm:8080\n"
        (tmp_path / "home" / ".config" / "wandb" / "settings").write_text(settings)
    write_netrc(tmp_path / "home", f"machine {machine} login user password {KEY}\n")
    assert server_url() == "http://wandb.firm:8080"
    assert logged_in() is expected


def write_netrc(home: Path, text: str | None) -> None:
    home.mkdir(exist_ok=True)
    if text is not None:
        (home / ".netrc").write_text(text)
        (home / ".netrc").chmod(0o600)


def test_no_results_no_tables(sweep: Sweep) -> None:
    made = results_table(sweep.study)
    assert tracked_tables(made) == {}
