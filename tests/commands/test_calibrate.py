"""`trb calibrate` as it is typed, with tiny models on CPUs that stand for a card; and what it makes
of failures.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checks.check import Check, Checked, CheckVerdict, run_checks
from orchestrator.checks.timing import Measuring
from orchestrator.commands import calibrate
from orchestrator.planning.calibrated import Card, calibration_path, read_calibrations
from orchestrator.planning.costs import BLENDED, PASSING, PLAIN
from orchestrator.records.log import EVALUATE, LEARN, SCORE
from tests.engines.installed import skip_without
from tests.sweeps import trb_here, write_experiment

CARD = Card("NVIDIA H100 80GB HBM3", 79.2)
METHODS = {"vanilla": {}, "trust_region": {"epsilon0": [0.05], "K": [3]}}
PHASES = ["evaluating", "decoding", "blending", "learning", "scoring"]
IN_A_PROCESS = "decoding"
KEYS = {PLAIN, BLENDED, PASSING, EVALUATE, LEARN, SCORE}


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPUs of this machine are the card: processes measure on whatever device they have."""
    monkeypatch.setattr(calibrate, "card_here", lambda: CARD)


def experiment(
    folder: Path, methods: dict[str, Any] = METHODS, tokens: int = 24, **engine: str
) -> Path:
    """On a GPU, with responses of at most so many `tokens`."""
    runtime = {"placement": {"gpus": 1}, "slice_responses": 8, "micro_batch_tokens": 512}
    limit = {"max_response_tokens": tokens}
    return write_experiment(
        folder, methods, runtime=runtime, engine=engine, training=limit, evaluation=limit
    )


def trb(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[object, str]:
    """Exit code, and all that was printed."""
    code, out, err = trb_here(capsys, *arguments)
    return code, out + err


def check_everything(path: Path, capsys: pytest.CaptureFixture[str], minutes: str) -> None:
    """All phases are measured, the plan says so and costs what they took, and no model stays
    behind.
    """
    runs = path.parent / "runs"
    code, shown = trb(capsys, "calibrate", path, "--runs", runs, "--minutes", minutes)
    assert code == 0, shown
    [calibration] = read_calibrations(runs)
    assert {row.key for row in calibration.rows} == KEYS
    assert all(row.random for row in calibration.rows), "no submit has made the models yet"
    shown = " ".join(trb(capsys, "plan", path, "--runs", runs)[1].split())
    source = f"on this card, {calibration.rows[0].day}, {CARD.name}, random weights (tiny: "
    assert f"easured {source}" in shown
    hours = []
    for known in (runs, path.parent / "none"):
        plan = json.loads(trb(capsys, "plan", path, "--runs", known, "--json")[1])
        hours.append(plan["totals"]["gpu_hours"]["learn"]["low"])
    assert hours[0] > 100 * hours[1], "a CPU is no H100"
    assert not list(runs.glob(".calibration/*/*/models"))


def logs_of(runs: Path) -> set[str]:
    """Models and phases that had a process of their own."""
    return {log.stem for log in runs.glob(".calibration/*/*/*.log")}


def mostly_here(checks: Sequence[Check], subject: Any, folder: Path) -> Iterator[Checked]:
    """A process for one of them; the others, which would import torch again there, are called in
    this one.
    """
    for check in checks:
        if check.name == IN_A_PROCESS:
            yield from run_checks([check], subject, folder)
        else:
            yield from run_checks([check], subject)


@pytest.mark.usefixtures("pretended")
def test_every_phase_is_measured_with_the_torch_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibrate, "run_checks", mostly_here)
    path = experiment(tmp_path, sampler="torch", trainer="torch")
    check_everything(path, capsys, "15")
    assert logs_of(tmp_path / "runs") == {IN_A_PROCESS}
    for command in ("plan", "status"):
        shown = trb(capsys, command, path, "--runs", tmp_path / "runs")[1]
        assert "measured on this card" in " ".join(shown.lower().split())


@pytest.mark.engines
@pytest.mark.timeout(1800)  # SGLang starts three times
@pytest.mark.xdist_group("sglang")
@pytest.mark.usefixtures("pretended")
def test_every_phase_is_measured_with_sglang_and_verl(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    skip_without("sglang")
    skip_without("verl")
    check_everything(
        experiment(tmp_path, tokens=96, sampler="sglang", trainer="verl"), capsys, "30"
    )
    assert logs_of(tmp_path / "runs") == {"models", *PHASES}


# --- what is refused, and what fails ---


def test_cpus_are_not_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_experiment(tmp_path, METHODS)
    code, shown = trb(capsys, "calibrate", path, "--runs", tmp_path / "runs")
    assert (code, shown.count("\n")) == (2, 1)
    assert shown.startswith("trb: runtime.placement.gpus: 0: ")
    assert not (tmp_path / "runs").exists()


def test_without_a_gpu_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibrate, "has_driver", lambda: False)
    code, shown = trb(capsys, "calibrate", experiment(tmp_path), "--runs", tmp_path / "runs")
    assert (code, shown.count("\n")) == (2, 1)
    assert shown.startswith("trb: calibrate: no NVIDIA driver")
    assert not (tmp_path / "runs").exists()


def test_the_card_is_what_its_process_says(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Checked] = []
    monkeypatch.setattr(calibrate, "has_driver", lambda: True)
    monkeypatch.setattr(calibrate, "run_checks", lambda *_: iter(said))
    said[:] = [Checked("ok", CARD.name, numbers={"gib": CARD.gib}, name="card")]
    assert calibrate.card_here() == CARD
    said[:] = [Checked("fail", "no GPU is visible here", name="card")]
    with pytest.raises(calibrate.UserError, match="calibrate: no GPU is visible here"):
        calibrate.card_here()


class Runner:
    """Stands for the processes: keeps what each phase was told, and ends it as `verdicts` say."""

    def __init__(self, verdicts: dict[str, CheckVerdict]):
        self.verdicts = verdicts
        self.told: dict[str, float] = {}  # phase → seconds

    def __call__(self, checks: Sequence[Check], subject: Any, folder: Path) -> Iterator[Checked]:
        assert folder.is_dir()
        for check in checks:
            if isinstance(subject, Measuring):
                self.told[check.name] = subject.seconds
                assert check.limit_s > subject.seconds
            yield Checked(self.verdicts.get(check.name, "ok"), "in a word", name=check.name)


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize(
    ("methods", "verdicts", "expected"),
    [
        (METHODS, {}, [138, 185, 138, 92, 46]),
        ({"vanilla": {}}, {}, [180, 240, 0, 120, 60]),
        (METHODS, {"models": "fail"}, [0, 0, 0, 0, 0]),
        (METHODS, {"decoding": "fail"}, [138, 185, 138, 92, 46]),
    ],
)
def test_phases_share_the_time_and_a_failure_leaves_the_others(
    methods: dict[str, Any],
    verdicts: dict[str, CheckVerdict],
    expected: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runner = Runner(verdicts)
    monkeypatch.setattr(calibrate, "run_checks", runner)
    code, shown = trb(
        capsys, "calibrate", experiment(tmp_path, methods), "--runs", tmp_path / "runs"
    )
    assert code == int(bool(verdicts))
    assert [runner.told.get(phase, 0.0) for phase in PHASES] == pytest.approx(expected, abs=0.6)
    assert shown.count("in a word") == len(runner.told) + 1
    assert not calibration_path(tmp_path / "runs", CARD).exists()
    assert "written to" not in shown
