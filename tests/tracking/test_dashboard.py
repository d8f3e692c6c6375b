"""The W&B workspace: its panels name what runs really log, and saving it twice leaves one."""

from __future__ import annotations

import itertools
import json
import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from analysis.facts.units import unit_scores
from orchestrator.experiment.evaluation_protocol import evaluation_ids
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import expand
from orchestrator.grading.grader import Grade
from orchestrator.models import locate
from orchestrator.models.identity import model_identity
from orchestrator.models.recipes import build_embedded
from orchestrator.monitor.status import Overview
from orchestrator.planning.numbers import Range
from orchestrator.records.log import COLUMNS, STEP_PARTS
from orchestrator.records.machines import note_machine
from orchestrator.records.slices import ProblemRecord
from orchestrator.records.writer import RunWriter
from orchestrator.selection.study import Study
from orchestrator.sweep import prepare
from orchestrator.tracking.dashboard import SECONDS, dashboard, logged_columns, panels
from orchestrator.tracking.projection import progress_of, projected_rows, results_id
from orchestrator.tracking.wandb_tracker import machine_id
from orchestrator.trial.training_loop import run_unit
from orchestrator.workers.roles import Inline
from tests.fake_runs import QUICKSTART, quickstart, units_of, write_evaluation
from tests.sweeps import trb_here, trb_refuses, trb_shows, write_experiment
from tests.tracking.sweep import Sweep
from tests.tracking.test_online import server  # noqa: F401  a fixture
from tests.wandb_server import WandbServer

KNOBS: dict[str, dict[str, list[float]]] = {
    "vanilla": {},
    "trust_region": {"epsilon0": [0.05], "K": [5]},
    "fixed_epsilon": {"epsilon": [0.05]},
    "skd": {"K": [5], "tau_T": [0.6]},
}
NOT_PER_STEP = {"best_score"}  # of the summary


class EverySecond:
    """A grader to whom every second response is right: a model this small never is."""

    def __init__(self, deadline_s: float):
        self._verdicts = itertools.cycle([True, False])

    def grade_many(self, pairs: Iterable[tuple[str, str]]) -> list[Grade]:
        return [Grade(next(self._verdicts), None) for _ in pairs]


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, set[str]]]:
    """Method → W&B names of a unit that really took two steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("orchestrator.trial.training_loop.shared_grader", EverySecond)
        yield names_of(tmp_path_factory.mktemp("logged"))


def names_of(folder: Path) -> dict[str, set[str]]:
    runs = folder / "runs"
    training = {"steps": 2, "checkpoint_every": 2}
    experiment = load_experiment(write_experiment(folder, KNOBS, training=training))
    (setup,) = experiment.setups.values()
    for model in (setup.student, setup.teacher):
        build_embedded(
            model_identity(model, setup), Path(locate.checkpoint_of(model, setup, runs).path)
        )
    pair = (
        locate.checkpoint_of(setup.student, setup, runs),
        locate.checkpoint_of(setup.teacher, setup, runs),
    )
    names: dict[str, set[str]] = {}
    for unit in expand(experiment):
        if unit.method is None:
            continue
        spec = prepare.worker_spec(unit, experiment, runs, pair)
        roles = Inline(spec)
        with closing(RunWriter(runs, unit.id)) as run:
            for _ in run_unit(spec, run, roles):
                pass
            for evaluation_id in evaluation_ids(setup).values():
                write_evaluation(
                    run, evaluation_id, 2, [ProblemRecord("p", 1, 1, 0, 0, 0, 3, {"1": 1})]
                )
            rows = projected_rows(run, unit_scores(run, evaluation_ids(setup)), unit)
        roles.close()
        names[unit.method] = {name for row in rows.values() for name in row}
    return names


def panels_of(view: dict[str, Any]) -> dict[str, list[str]]:
    """Section → metrics of its panels, from the specification that is sent."""
    sections = view["spec"]["section"]["panelBankConfig"]["sections"]
    return {
        section["name"]: [
            name for panel in section["panels"] for name in panel["config"].get("metrics", [])
        ]
        for section in sections
    }


def sections_of(view: dict[str, Any], name: str) -> list[dict[str, Any]]:
    sections = view["spec"]["section"]["panelBankConfig"]["sections"]
    return [section for section in sections if section["name"] == name]


def specification(*overrides: str) -> dict[str, Any]:
    experiment, units = quickstart(*overrides)
    return json.loads(dashboard(Study(experiment, units, Path("runs")), None, None, dry_run=True))


# --- panels ---


@pytest.mark.parametrize("method", KNOBS)
def test_panels_show_what_a_method_logs_and_nothing_else(
    method: str, logged: dict[str, set[str]], tmp_path: Path
) -> None:
    trials = units_of(
        expand(load_experiment(write_experiment(tmp_path, {method: KNOBS[method]}))), method
    )
    shown = {name for panel in panels(logged_columns(trials)) for name in panel.metrics}
    with_panel = {f"train/{key}" for key, column in COLUMNS.items() if column.panel}
    assert shown == logged[method] & with_panel


def test_steps_without_a_budget_have_no_panel_of_blending() -> None:
    blended = ["methods.skd=null", "methods.fixed_epsilon=null"]
    _, some = quickstart(*blended)
    _, none = quickstart(*blended, "methods.trust_region.epsilon0=[0]")
    assert {"beta", "acceptance"} <= logged_columns(some)
    assert not {"beta", "acceptance"} & logged_columns(none)


def test_columns_of_one_title_share_a_panel() -> None:
    shown = panels(["teacher_log_prob", "loss", "student_log_prob"])
    assert [panel.metrics for panel in shown] == [
        ("train/teacher_log_prob", "train/student_log_prob"),
        ("train/loss",),
    ]


def test_every_second_of_a_step_that_is_shown_is_logged(logged: dict[str, set[str]]) -> None:
    for names in logged.values():
        assert {name for name in names if name.startswith("time/")} == {
            "time/tokens_per_s",
            *(f"time/{part}" for part in STEP_PARTS),
        }
    assert set(SECONDS) <= set(STEP_PARTS)


def test_every_metric_of_the_specification_is_logged(
    logged: dict[str, set[str]], tmp_path: Path
) -> None:
    experiment = load_experiment(write_experiment(tmp_path, KNOBS))
    view = json.loads(
        dashboard(Study(experiment, expand(experiment), tmp_path), None, None, dry_run=True)
    )
    named = {name for metrics in panels_of(view).values() for name in metrics}
    assert {
        "eval/mean",
        "eval/arithmetic_short",
        "train/reward",
        "train/beta",
        "train/replaced",
    } <= named
    assert named - set().union(*logged.values()) - names_of_progress() == NOT_PER_STEP


def names_of_progress() -> set[str]:
    """Names of all numbers of the results run, on GPUs and without."""
    names: set[str] = set()
    for device in ("GPU", "core"):
        known = Overview(
            units=[],
            seconds_left_range=Range(1.0, 2.0, 3.0),
            device=device,
            device_hours_left=Range(1.0, 2.0, 3.0),
            tokens_a_second=5.0,
        )
        names |= progress_of(known).keys()
    return names


def test_what_varies_has_a_plot_of_settings_and_their_importance() -> None:
    """W&B has a knob or an axis under its dotted name, which is one key."""
    axes = "axes={training.optimizer.lr: [1e-5, 1e-4], training.steps: [20, 40]}"
    (found,) = sections_of(specification(axes), "settings")
    plot, importance = (panel["config"] for panel in found["panels"])
    assert importance["targetKey"] == "best_score"
    keys = ["method", "training.optimizer.lr", "training.steps", "epsilon0", "K"]
    shown = [column["accessor"] for column in plot["columns"]]
    assert sorted(shown[:-1]) == sorted(f"config:{key}.value" for key in keys)
    assert shown[-1] == "summary:best_score"
    one = specification(
        "methods.skd=null", "methods.sft_warmup=null", "methods.trust_region.epsilon0=[0.05]"
    )
    assert sections_of(one, "settings") == []


def test_machines_that_worked_are_among_the_runs(tmp_path: Path) -> None:
    experiment, units = quickstart()
    note_machine(tmp_path, experiment.name, lambda query: "")
    view = json.loads(dashboard(Study(experiment, units, tmp_path), None, None, dry_run=True))
    (only,) = view["spec"]["section"]["runSets"][0]["filters"]["filters"]
    assert machine_id(experiment.name, socket.gethostname()) in only["value"]
    (found,) = sections_of(view, "machines")
    patterns = [panel["config"].get("metricRegex") for panel in found["panels"]]
    known = ["system/tokens_per_s", "system/cpu", "system/memory_gib"]
    known += ["system/gpu.0.use", "system/gpu.11.memory_gib"]
    assert [
        name for pattern in patterns if pattern for name in known if re.search(pattern, name)
    ] == known


def test_a_panel_that_no_method_fills_is_left_out() -> None:
    assert "train/replaced" in panels_of(specification())["trust region"]
    without = panels_of(specification("methods.skd=null"))["trust region"]
    assert "train/replaced" not in without
    assert "train/beta" in without
    alone = {
        f"methods.{method}=null"
        for method in load_experiment(QUICKSTART).methods
        if method != "vanilla"
    }
    shown = {name for metrics in panels_of(specification(*alone)).values() for name in metrics}
    assert {"train/loss", "time/rollout"} <= shown
    assert not {"train/beta", "train/behavior_kl", "train/draft_length"} & shown


def test_runs_of_the_experiment_grouped_by_method_and_setup() -> None:
    experiment, units = quickstart()
    (runset,) = specification()["spec"]["section"]["runSets"]
    assert [key["name"] for key in runset["grouping"]] == ["method.value", "setup.value"]
    (only,) = runset["filters"]["filters"]
    assert (only["key"], only["op"]) == ({"section": "run", "name": "name"}, "IN")
    assert only["value"] == [*(unit.id for unit in units), results_id(experiment)]


# --- the command ---


@pytest.fixture(autouse=True)
def _own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that a sweep has left in the working directory are not these tests'."""
    monkeypatch.setenv("TRB_RUNS", str(tmp_path / "runs"))


def test_a_dry_run_is_json_always_the_same_and_needs_no_network(
    server: WandbServer,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["dashboard", QUICKSTART, "--dry-run", "--entity", "me", "--project", "elsewhere"]
    shown = [trb_shows(capsys, *asked) for _ in range(2)]
    assert shown[0] == shown[1]
    view = json.loads(shown[0])
    assert (view["entity"], view["project"], view["displayName"]) == (
        "me",
        "elsewhere",
        "trb quickstart",
    )
    assert server.seen == []


def test_saving_twice_leaves_one_workspace(
    server: WandbServer,  # noqa: F811
    sweep: Sweep,
    capsys: pytest.CaptureFixture[str],
) -> None:
    unit = sweep.unit()
    sweep.write(unit, 2)
    sweep.send(unit, "online")
    shown = [trb_here(capsys, "dashboard", QUICKSTART) for _ in range(2)]
    (view,) = server.views.values()
    identity = view["name"].removeprefix("nw-").removesuffix("-v")
    assert shown == [(0, f"{server.url}/team/trb?nw={identity}\n", "")] * 2
    assert (view["entityName"], view["projectName"], view["type"]) == (
        "team",
        "trb",
        "project-view",
    )
    assert json.loads(view["spec"]) == specification()["spec"]


def test_without_a_login_it_says_how_to_log_in(
    server: WandbServer,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    line = trb_refuses(capsys, "dashboard", QUICKSTART, "--runs", tmp_path)
    assert f"no key for {server.url}; `wandb login`, or WANDB_API_KEY in the environment" in line
    assert f"wandb leet {tmp_path}/.wandb/wandb" in line
    assert server.seen == []


def test_a_project_that_is_not_there(
    server: WandbServer,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "--project: team/nowhere is not there; `trb submit`" in trb_refuses(
        capsys, "dashboard", QUICKSTART, "--project", "nowhere"
    )
    assert server.views == {}


def test_a_server_that_refuses(
    server: WandbServer,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.refusals["View"] = "permission denied"
    line = trb_refuses(capsys, "dashboard", QUICKSTART, "--entity", "others")
    assert server.url in line
    assert "permission denied" in line


# --- import ---
