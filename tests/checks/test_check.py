"""Checks in processes: their order, their logs, and the end of those that do not end by themselves."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from orchestrator.checks.check import Checked, Found, required_apart, run_checks
from orchestrator.errors import UserError
from tests.checks import fakes
from tests.checks.fakes import check
from tests.sweeps import ROOT, environment


def outcome_of(run: Callable[[Path], Found], folder: Path, limit_s: float = 300) -> Checked:
    (outcome,) = run_checks([check(run, limit_s)], folder, folder)
    return outcome


def alive(pid: int) -> bool:
    """Whether a process has not ended; a zombie has."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def pids(folder: Path) -> list[int]:
    """Ids that a check has left in `folder`, once they are there."""
    path = folder / "pids"
    wait_until(lambda: path.is_file() and path.read_text() != "")
    return [int(pid) for pid in path.read_text().split()]


def test_outcomes_come_one_by_one_with_what_the_checks_said(tmp_path: Path) -> None:
    coming = run_checks(
        [check(fakes.well), check(fakes.slow), check(fakes.bad)], tmp_path, tmp_path
    )
    first = next(coming)
    assert not (tmp_path / "slow.log").exists(), "the next check begins once this one was looked at"
    assert (first.name, first.verdict, first.detail) == (
        "well",
        "ok",
        f"looked into {tmp_path.name}",
    )
    assert (first.change, first.numbers, first.log) == (
        "",
        {"gib": 1.5},
        str(tmp_path / "well.log"),
    )
    assert first.seconds > 0
    log = (tmp_path / "well.log").read_text()
    assert "all is well\nand on the other stream\n" in log
    slow, bad = coming
    assert (slow.verdict, slow.change) == ("warn", "the remedy of slow")
    assert (bad.verdict, bad.change) == ("fail", "a remedy of its own")


def test_what_needs_a_failed_check_is_not_begun(tmp_path: Path) -> None:
    checks = [
        check(fakes.bad),
        check(fakes.passed_over),
        check(fakes.well, name="after bad", needs=("bad",)),
        check(fakes.well, name="after that", needs=("passed_over", "after bad")),
        check(fakes.well, name="after skipped", needs=("passed_over",)),
    ]
    outcomes = list(run_checks(checks, tmp_path, tmp_path))
    assert [outcome.verdict for outcome in outcomes] == [
        "fail",
        "skipped",
        "skipped",
        "skipped",
        "ok",
    ]
    assert [outcome.detail for outcome in outcomes[2:4]] == [
        "needs bad, which failed",
        "needs after bad, which was not made",
    ]
    assert [outcome.log is None for outcome in outcomes] == [False, False, True, True, False]


@pytest.mark.parametrize(
    ("function", "detail", "change"),
    [
        ("raises", "ValueError: a sentence of two lines", "the remedy of raises"),
        (
            "refused",
            "engine.sampler: 'sglang': expected torch, or make setup-engines first",
            "the remedy of refused",
        ),
        (
            "exits",
            "its process died with code 3; its last line: what it printed last",
            "the remedy of exits",
        ),
    ],
)
def test_a_check_that_goes_wrong(tmp_path: Path, function: str, detail: str, change: str) -> None:
    outcome = outcome_of(getattr(fakes, function), tmp_path)
    assert (outcome.verdict, outcome.detail, outcome.change) == ("fail", detail, change)
    if function == "raises":
        assert "fakes.py" in (tmp_path / "raises.log").read_text(), "a traceback"


def test_checks_in_this_process_are_found_and_skipped_alike(tmp_path: Path) -> None:
    checks = [check(fakes.raises), check(fakes.well, needs=("raises",)), check(fakes.refused)]
    raised, skipped, refused = run_checks(checks, tmp_path)
    assert (raised.verdict, raised.log) == ("fail", None)
    assert raised.detail == "ValueError: a sentence of two lines"
    assert (skipped.verdict, skipped.detail) == ("skipped", "needs raises, which failed")
    assert refused.detail.startswith("engine.sampler: ")


def test_a_killed_check_says_where_to_look(tmp_path: Path) -> None:
    outcome = outcome_of(fakes.killed, tmp_path)
    assert outcome.verdict == "fail"
    assert outcome.detail.startswith("its process died with SIGKILL")
    assert "dmesg" in outcome.change


def test_a_check_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    outcome = outcome_of(fakes.hangs, tmp_path, limit_s=8)
    assert outcome.verdict == "fail"
    assert outcome.detail.startswith("not done after 8 s, so it was ended")
    assert len(pids(tmp_path)) == 2
    assert not any(map(alive, pids(tmp_path)))
    assert "in hangs" in (tmp_path / "hangs.log").read_text(), "where it stood"


def test_a_check_leaves_no_process_behind(tmp_path: Path) -> None:
    outcome = outcome_of(fakes.leaves, tmp_path)
    assert (outcome.verdict, outcome.detail) == ("ok", "done")
    assert not any(map(alive, pids(tmp_path)))


COMMAND = """
import sys
from pathlib import Path
from orchestrator.checks.check import run_checks
from tests.checks import fakes
from tests.checks.fakes import check
folder = Path(sys.argv[1])
list(run_checks([check(fakes.hangs)], folder, folder))
"""


def test_a_check_ends_with_its_command(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(tmp_path)], cwd=ROOT, env=environment()
    ) as command:
        own, _ = pids(tmp_path)
        assert alive(own)
        command.kill()
        wait_until(lambda: not alive(own))
        for pid in pids(tmp_path)[
            1:
        ]:  # an engine ends itself when its parent is gone; this one does not know how
            subprocess.run(["kill", "-9", str(pid)], check=True)


def test_a_required_check_raises_its_own_error_from_its_process(tmp_path: Path) -> None:
    assert required_apart(check(fakes.well), tmp_path, "no use") == fakes.well(tmp_path)
    with pytest.raises(UserError, match=r"^engine\.sampler: 'sglang': expected torch, or"):
        required_apart(check(fakes.refused), tmp_path, "no use")
    with pytest.raises(ValueError, match="a sentence") as raised:
        required_apart(check(fakes.raises), tmp_path, "no use")
    assert type(raised.value) is ValueError
    assert 'raise ValueError("a sentence' in "".join(raised.value.__notes__)


@pytest.mark.parametrize(
    ("run", "limit_s", "line"),
    [
        (fakes.bad, 300, "no use: this is wrong; a remedy of its own"),
        (fakes.exits, 300, "no use: its process died with code 3; its last line: what it printed"),
        (fakes.hangs, 5, "no use: not done after 5 s, so it was ended; its last line: "),
    ],
)
def test_a_required_check_that_cannot_be_made_is_said_in_a_line(
    run: Callable[[Path], Found], limit_s: float, line: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as raised:
        required_apart(check(run, limit_s), tmp_path, "no use")
    assert str(raised.value).startswith(line)
