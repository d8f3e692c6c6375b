"""W&B offline: after any interruption every committed row is there once, and nothing else is. No
network.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from wandb.util import get_core_path

from analysis.results import tracked_tables
from analysis.table import build
from analysis.table.model import Score, make_table
from orchestrator.config import Experiment
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import Unit, expand
from orchestrator.records.rundir import RunReader
from orchestrator.records.writer import RunWriter
from orchestrator.selection.study import Study
from orchestrator.tracking import upload
from orchestrator.tracking.follow import projections
from orchestrator.tracking.login import chosen_mode, logged_in, mirror_folder, server_url
from orchestrator.tracking.projection import Projection, Results, project, results_id
from orchestrator.tracking.upload import mirror_results
from orchestrator.tracking.wandb_tracker import WandbTracker
from tests.fake_runs import metrics, quickstart, units_of, write_run
from tests.sweeps import ROOT, TINY_SETUP, environment

Loaded = tuple[Experiment, list[Unit]]

KEY = "0123456789abcdef" * 2 + "01234567"
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


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return quickstart()


def mirror(
    experiment: Experiment,
    units: list[Unit],
    runs: Path,
    mode: str,
    state: str | None = None,
    goes_on: bool = False,
) -> None:
    """Send units, stale or not; those that are not trained as what they are within a sweep."""
    for unit in units:
        run = RunReader(runs, unit.id)
        stands = state or ("done" if run.trained else "interrupted")
        shown = project(experiment.setups[unit.setup], unit, run, stands, goes_on)
        upload.mirror(experiment, shown, runs, mode)


def stale_projections(study: Study, mode: str, goes_on: bool = False) -> list[Projection]:
    """Projections that W&B shows out of date."""
    tracker = WandbTracker(study, mode)
    return [shown for shown in projections(study, goes_on) if tracker.is_stale(shown)]


def stale_units(experiment: Experiment, units: list[Unit], runs: Path, mode: str) -> list[Unit]:
    """Units that W&B shows out of date after a sweep."""
    return [shown.unit for shown in stale_projections(Study(experiment, units, runs), mode)]


def fragments(runs: Path, unit: Unit) -> list[Path]:
    """Offline files of a unit."""
    return sorted(mirror_folder(runs).rglob(f"run-{unit.id}.wandb"))


def history(runs: Path, unit: Unit) -> list[dict[str, Any]]:
    """Rows W&B would receive, from every fragment: their steps, and none of W&B's other own fields."""
    return [
        own(record["history"]["item"])
        for fragment in fragments(runs, unit)
        for record in records(fragment)
        if record["type"] == "history"
    ]


def own(row: dict[str, Any]) -> dict[str, Any]:
    """A row with its step."""
    return {"step": row["_step"]} | {
        key: value for key, value in row.items() if not key.startswith("_")
    }


def records(fragment: Path) -> list[dict[str, Any]]:
    """What the file of a run that was given to W&B has, to its end."""
    # What `wandb leet inspect --json` starts after importing for half a second.
    command = [
        get_core_path(),
        "leet",
        "inspect",
        "--no-observability",
        "--json",
        "--run-file",
        str(fragment),
    ]
    command.append(str(fragment.parent.parent))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert "exit" in {record["type"] for record in found}, (
        "the file is closed when the run is noted as given"
    )
    return found


def train_rows(steps: int) -> list[dict[str, Any]]:
    rows = map(metrics, range(steps))
    return [
        {"step": row["step"], "train/loss": row["loss"], "train/tokens": row["tokens"]}
        for row in rows
    ]


def scores(short: float, long: float) -> dict[str, float]:
    return {
        "eval/arithmetic_short": short,
        "eval/arithmetic_long": long,
        "eval/mean": (short + long) / 2,
    }


# --- what is sent ---


def test_every_committed_row_is_there_once(runs: Path, loaded: Loaded) -> None:
    experiment, units = loaded
    unit = units_of(units, "trust_region")[0]
    write_run(runs, experiment, unit, {20: [1, 2], 40: [3, 4]}, steps=45, done=False)
    with closing(RunWriter(runs, unit.id)) as run:
        run.append("metrics.jsonl", [metrics(45), metrics(46)])
        mirror(experiment, [unit], runs, "offline")
    expected = train_rows(45)
    expected[20] |= scores(0.25, 0.5)
    expected[40] |= scores(0.75, 1.0)
    assert history(runs, unit) == expected


def test_a_last_score_is_sent_when_the_run_is_done(runs: Path, loaded: Loaded) -> None:
    experiment, units = loaded
    unit = units_of(units, "vanilla")[0]
    for done in (False, True):
        write_run(runs, experiment, unit, {60: [2, 2]}, steps=60, done=done)
        mirror(experiment, [unit], runs, "offline")
        last = [{"step": 60} | scores(0.5, 0.5)] if done else []
        assert history(runs, unit) == train_rows(60) + last


def shown_as(runs: Path, unit: Unit) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Run record, summary and exit code of a unit's only fragment."""
    (fragment,) = fragments(runs, unit)
    found = records(fragment)
    summary: dict[str, Any] = {}
    for record in found:
        summary |= record["summary"].get("update", {}) if record["type"] == "summary" else {}
    (code,) = [record["exit"]["exit_code"] for record in found if record["type"] == "exit"]
    return next(record["run"] for record in found if record["type"] == "run"), summary, code


def test_a_unit_is_one_run_with_its_configuration_and_its_best_checkpoint(
    runs: Path, loaded: Loaded
) -> None:
    experiment, units = loaded
    unit = units_of(units, "trust_region")[1]
    write_run(runs, experiment, unit, {20: [1, 2], 40: [4, 4], 60: [3, 3]}, steps=60)
    mirror(experiment, [unit], runs, "offline")
    run, summary, code = shown_as(runs, unit)
    assert (run["run_id"], run["project"], run["run_group"]) == (unit.id, "trb", "quickstart")
    assert (run["display_name"], run["tags"]) == (f"{unit.label} s0 · arithmetic", ["arithmetic"])
    config = {key: value for key, value in run["config"]["update"].items() if key != "_wandb"}
    training = experiment.setups["arithmetic"].training
    expected = {
        "method": "trust_region",
        "setup": "arithmetic",
        "seed": 0,
        "epsilon0": 0.05,
        "K": 12,
    } | {
        "training.steps": training.steps,
        "training.optimizer.lr": training.optimizer.lr,
        "training.objective": training.objective,
        "student.recipe.updates": experiment.setups["arithmetic"].student.recipe.updates,  # pyright: ignore[reportOptionalMemberAccess]
    }
    assert {key: config[key] for key in expected} == expected
    assert {key: summary[key] for key in ("best_step", "best_score", "candidates", "state")} == {
        "best_step": 40,
        "best_score": 1.0,
        "candidates": 3,
        "state": "done",
    }
    assert {"best/arithmetic_short": 1.0, "best/arithmetic_long": 1.0}.items() <= summary.items()
    assert code == 0


def test_the_configuration_is_that_of_the_run_directory(runs: Path, loaded: Loaded) -> None:
    experiment, units = loaded
    unit = units_of(units, "vanilla")[0]
    config = {
        "setup": {"training": {"steps": 7, "optimizer": {"lr": 0.5}}},
        "runtime": {"keep": "best"},
    }
    made_with = {
        "commit": "c0ffee",
        "dirty_diff": "",
        "versions": {"torch": "2.13.0"},
        "host": {"cpu": "Z80"},
    }
    with closing(RunWriter(runs, unit.id)) as run:
        run.describe(config, lambda: made_with)
    shown = project(
        experiment.setups["arithmetic"], unit, RunReader(runs, unit.id), "interrupted", False
    )
    assert shown.config == {
        "method": "vanilla",
        "kind": "trial",
        "setup": "arithmetic",
        "seed": 0,
    } | {
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
def test_only_what_is_done_is_finished(state: str, code: int, runs: Path, loaded: Loaded) -> None:
    experiment, units = loaded
    unit = units_of(units, "vanilla")[0]
    write_run(runs, experiment, unit, {}, steps=3, done=state == "done")
    mirror(experiment, [unit], runs, "offline", state)
    _, summary, ended = shown_as(runs, unit)
    assert (summary["state"], ended) == (state, code)


def test_within_a_sweep_offline_runs_appear_when_they_end(runs: Path, loaded: Loaded) -> None:
    experiment, units = loaded
    midway, done, failed = (units_of(units, name)[0] for name in ("vanilla", "veto", "skd"))
    write_run(runs, experiment, midway, {}, steps=3, done=False)
    write_run(runs, experiment, done, {20: [1, 1], 40: [1, 1], 60: [1, 1]}, steps=60)
    with closing(RunWriter(runs, failed.id)) as run:
        run.describe({}, dict)
        run.fail("out of memory", "")
    ended = {done.id: "finished", failed.id: "failed"}
    stale = stale_projections(Study(experiment, units, runs), "offline", goes_on=True)
    assert {shown.unit.id: shown.outcome for shown in stale} == ended
    stale = stale_projections(Study(experiment, units, runs), "offline")
    assert {shown.unit.id: shown.outcome for shown in stale} == ended | {midway.id: "failed"}


def test_missing_numbers_are_left_out(runs: Path, loaded: Loaded) -> None:
    experiment, units = loaded
    unit = units_of(units, "vanilla")[0]
    with closing(RunWriter(runs, unit.id)) as run:
        run.append("metrics.jsonl", [{"step": 0, "loss": float("nan"), "reward": 1.0}])
        run.commit(1)
    mirror(experiment, [unit], runs, "offline")
    assert history(runs, unit) == [{"step": 0, "train/reward": 1.0}]


def test_seconds_of_a_step_are_those_of_its_last_time(runs: Path, loaded: Loaded) -> None:
    experiment, units = loaded
    unit = units_of(units, "vanilla")[0]
    write_run(runs, experiment, unit, {}, steps=2, done=False)
    with closing(RunWriter(runs, unit.id)) as run:
        for step, seconds in ((0, 1.5), (1, 9.0), (1, 2.5), (2, 3.5)):  # step 2 is not committed
            run.append_timing({"step": step, "phase": "train", "rollout": seconds, "learn": 0.5})
        run.append_timing(
            {"step": 1, "phase": "evaluate", "benchmark": "arithmetic_short", "seconds": 7.0}
        )
    mirror(experiment, [unit], runs, "offline")
    timed = [{"time/rollout": 1.5, "time/learn": 0.5}, {"time/rollout": 2.5, "time/learn": 0.5}]
    assert history(runs, unit) == [
        row | seconds for row, seconds in zip(train_rows(2), timed, strict=True)
    ]


# --- results ---


def table_files(runs: Path, experiment: Experiment) -> dict[str, Any]:
    """Name → content of every table in the offline fragments of the results run."""
    folders = mirror_folder(runs).rglob(f"offline-run-*-{results_id(experiment)}")
    files = [file for folder in folders for file in folder.rglob("*.table.json")]
    return {file.name.split("_summary_")[0]: json.loads(file.read_text()) for file in files}


def test_the_results_table_is_a_run_of_its_own(runs: Path, loaded: Loaded) -> None:
    experiment, units = loaded
    for name, correct in (("vanilla", [1, 2]), ("veto", [4, 3])):
        write_run(runs, experiment, units_of(units, name)[0], {20: correct}, steps=60)
    made = build.results_table(Study(experiment, units, runs))
    tables = tracked_tables(made)
    for _ in range(2):
        mirror_results(experiment, Results(experiment, tables, []), runs, "offline")
        assert len(list(mirror_folder(runs).rglob("*.wandb"))) == 1
        shown = table_files(runs, experiment)
        assert set(shown) == {"results", "scores"}
        assert shown["results"]["columns"] == ["Method", "Avg", "Short sums", "Long sums"]
        rows = {row[0]: row[1:] for row in shown["results"]["data"]}
        assert (rows["Vanilla"], rows["Veto"]) == ([37.5, 25.0, 50.0], [87.5, 100.0, 75.0])
        assert rows["Untrained student"] == [None, None, None]
        scored = [
            dict(zip(shown["scores"]["columns"], row, strict=True))
            for row in shown["scores"]["data"]
        ]
        (cell,) = [
            row
            for row in scored
            if (row["method"], row["benchmark"]) == ("veto", "arithmetic_long")
        ]
        assert (cell["setup"], cell["pass_at_1"]) == ("arithmetic", 75.0)


def test_no_results_no_tables(runs: Path, loaded: Loaded) -> None:
    made = build.results_table(Study(*loaded, runs))
    assert tracked_tables(made) == {}


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


def test_more_rows_replace_the_fragment(runs: Path, loaded: Loaded) -> None:
    experiment, units = loaded
    unit, other = units_of(units, "vanilla")[0], units_of(units, "veto")[0]
    write_run(runs, experiment, other, {}, steps=3, done=False)
    for steps in (10, 25):
        write_run(runs, experiment, unit, {}, steps=steps, done=False)
        mirror(experiment, [unit, other], runs, "offline")
        assert len(fragments(runs, unit)) == len(fragments(runs, other)) == 1
        assert history(runs, unit) == train_rows(steps)
    assert history(runs, other) == train_rows(3)


def test_units_without_anything_new_are_not_written_again(runs: Path, loaded: Loaded) -> None:
    experiment, units = loaded
    unit = units_of(units, "vanilla")[0]
    assert stale_units(experiment, units, runs, "offline") == []
    write_run(runs, experiment, unit, {20: [1, 2]}, steps=25, done=False)
    assert stale_units(experiment, units, runs, "offline") == [unit]
    mirror(experiment, [unit], runs, "offline")
    assert stale_units(experiment, units, runs, "offline") == []
    assert stale_units(experiment, units, runs, "online") == [unit]


@pytest.mark.parametrize("scored", [True, False])
def test_a_unit_is_stale_when_it_has_more_to_show(scored: bool, runs: Path, loaded: Loaded) -> None:
    experiment, units = loaded
    unit = units_of(units, "vanilla")[0]
    write_run(runs, experiment, unit, {}, steps=25, done=False)
    mirror(experiment, [unit], runs, "offline")
    write_run(
        runs,
        experiment,
        unit,
        {20: [1, 2]} if scored else {},
        steps=25 if scored else 26,
        done=False,
    )
    assert stale_units(experiment, units, runs, "offline") == [unit]


def test_rows_that_are_not_committed_make_no_unit_stale(runs: Path, loaded: Loaded) -> None:
    experiment, units = loaded
    unit = units_of(units, "vanilla")[0]
    write_run(runs, experiment, unit, {}, steps=25, done=False)
    mirror(experiment, [unit], runs, "offline")
    with closing(RunWriter(runs, unit.id)) as run:
        run.append("metrics.jsonl", [metrics(25)])
        assert stale_units(experiment, units, runs, "offline") == []


# --- kills ---


def mirror_quickstart(runs: str) -> None:
    """What the process that is killed does."""
    experiment, units = quickstart()
    mirror(experiment, units_of(units, "vanilla"), Path(runs), "offline")


def test_a_kill_on_the_way_neither_loses_nor_doubles_a_row(runs: Path, loaded: Loaded) -> None:
    experiment, units = loaded
    unit = units_of(units, "vanilla")[0]
    write_run(runs, experiment, unit, {}, steps=MANY, done=False)
    command = f"from tests.tracking.test_projection import mirror_quickstart; mirror_quickstart({str(runs)!r})"
    # An environment without this process's W&B service, which would outlive the kill.
    with subprocess.Popen([sys.executable, "-c", command], cwd=ROOT, env=environment()) as process:
        while not fragments(runs, unit):
            assert process.poll() is None
            time.sleep(0.005)
        process.kill()
    assert stale_units(experiment, units, runs, "offline") == [unit]
    mirror(experiment, [unit], runs, "offline")
    assert len(fragments(runs, unit)) == 1
    assert history(runs, unit) == train_rows(MANY)


@pytest.mark.parametrize("torn", ["", '{"mode": "off'])
def test_a_torn_note_of_what_was_sent_is_no_note(torn: str, runs: Path, loaded: Loaded) -> None:
    experiment, units = loaded
    unit = units_of(units, "vanilla")[0]
    write_run(runs, experiment, unit, {}, steps=2, done=False)
    mirror(experiment, [unit], runs, "offline")
    (note,) = mirror_folder(runs).glob("*.json")
    note.write_text(torn)
    assert stale_units(experiment, units, runs, "offline") == [unit]


def test_a_unit_whose_name_ends_like_another_keeps_its_rows(tmp_path: Path, runs: Path) -> None:
    (tmp_path / "setups").mkdir()
    for name in ("tiny", "my-tiny"):
        (tmp_path / "setups" / f"{name}.yaml").write_text(yaml.safe_dump(TINY_SETUP))
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump({"setups": ["my-tiny", "tiny"], "methods": {"vanilla": {}}}))
    experiment = load_experiment(path)
    units = units_of(expand(experiment), "vanilla")
    for unit in units:
        write_run(runs, experiment, unit, {}, steps=2, done=False)
    mirror(experiment, units, runs, "offline")
    assert [history(runs, unit) for unit in units] == [train_rows(2), train_rows(2)]


# --- mode and key ---


def test_the_key_is_written_nowhere(runs: Path, loaded: Loaded) -> None:
    experiment, units = loaded
    unit = units_of(units, "vanilla")[0]
    write_run(runs, experiment, unit, {20: [1, 2]}, steps=25)
    mirror(experiment, [unit], runs, "offline")
    files = [file for file in runs.parent.rglob("*") if file.is_file()]
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
