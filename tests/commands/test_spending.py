"""`trb submit` asks before it spends more than a thousand GPU-hours, and does not without an
answer.
"""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from orchestrator.commands import plan as plan_command
from orchestrator.commands.submit import ASKED_ABOVE, confirm
from orchestrator.errors import UserError
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import expand
from orchestrator.planning import plan
from orchestrator.planning.numbers import NOTHING, clock_time, hours_text
from orchestrator.selection.loading import load_study
from orchestrator.selection.study import Study
from tests.sweeps import ROOT, trb_here

PAPER, SMALL, QUICKSTART = (
    ROOT / "experiments" / f"{name}.yaml" for name in ("paper", "paper-small", "quickstart")
)


class Keyboard(io.StringIO):
    """A terminal's input."""

    def isatty(self) -> bool:
        return True


def ask(path: Path, runs: Path, yes: bool = False) -> None:
    experiment = load_experiment(path)
    confirm(Study(experiment, expand(experiment), runs), yes)


def test_in_a_pipe_only_yes_spends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    planned = plan.total_gpu_hours(plan.make_plan(load_experiment(PAPER)))
    assert planned is not None
    assert planned["total"].high > ASKED_ABOVE
    with pytest.raises(UserError, match=rf"submit: {hours_text(planned['total'])} .* --yes"):
        ask(PAPER, tmp_path)
    ask(PAPER, tmp_path, yes=True)


@pytest.mark.parametrize(
    ("answer", "starts"), [("y\n", True), ("YES\n", True), ("\n", False), ("", False)]
)
def test_in_a_terminal_the_user_is_asked(
    answer: str,
    starts: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", Keyboard(answer))
    if starts:
        ask(PAPER, tmp_path)
    else:
        with pytest.raises(UserError, match="not started"):
            ask(PAPER, tmp_path)
    assert capsys.readouterr().err.endswith("Start? [y/N] ")


@pytest.mark.parametrize("path", [SMALL, QUICKSTART], ids=lambda path: path.stem)
def test_what_costs_little_is_not_asked_about(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    ask(path, tmp_path)


def test_a_refused_submit_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    code, _, err = trb_here(capsys, "submit", PAPER, "--runs", tmp_path / "runs")
    assert (code, err.count("\n")) == (2, 1)
    assert list(tmp_path.iterdir()) == []


def test_what_is_done_is_not_asked_about(tmp_path: Path) -> None:
    experiment = load_experiment(PAPER)
    units = expand(experiment)
    assert plan_command.gpu_hours_left(Study(experiment, units, tmp_path)).high > ASKED_ABOVE
    done = {unit.id: plan.Done(unit.steps, 10**9, True, True, True) for unit in units}
    left = plan.total_gpu_hours(plan.make_plan(experiment, units, done), left=True)
    assert left is not None
    assert left["total"] == NOTHING


def test_one_node_finishes_the_small_sweep_as_its_head_says(tmp_path: Path) -> None:
    made = plan_command.planned(load_study(SMALL, runs=tmp_path))
    hours, total = plan.hours_on_gpus(made, 8), plan.total_gpu_hours(made)
    assert hours is not None
    assert total is not None
    head = " ".join(
        line.lstrip("# ") for line in SMALL.read_text().splitlines() if line.startswith("#")
    )
    whole = plan.hours_on_gpus(plan.make_plan(load_experiment(PAPER)), 8)
    assert whole is not None
    assert f"says {clock_time(hours)} (" in head
    assert f"where paper.yaml takes {clock_time(whole)}." in head
    assert f"({total['total'].low:.0f} – {total['total'].high:.0f} GPU-hours on H100)" in head
    assert hours.high / 24 < 7
