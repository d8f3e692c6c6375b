"""What the page of the first hour on GPUs quotes is what the program says: output, names of checks,
error messages.

Its links and commands are looked at with those of the other pages in `test_docs`, the output of its
sweep in `sweep/test_gpu_smoke`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from orchestrator import cli
from orchestrator.checks.catalog import GPU_CHECKS
from orchestrator.commands.doctor import looks
from tests.checks.benches import small_bench
from tests.sweeps import ROOT
from tests.test_docs import FIRST_HOUR

TEXT = FIRST_HOUR.read_text(encoding="utf-8")


def blocks() -> dict[str, list[str]]:
    """Command → the lines that the page says it prints."""
    found = re.findall(
        r"^<!-- prints: ([^\n]+) -->\n```\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL
    )
    return {command: lines.splitlines() for command, lines in found}


def matches(quoted: str, printed: str) -> bool:
    """Whether `printed` holds a quotation, in which … stands for anything but the end of a line."""
    return re.search(".*".join(map(re.escape, quoted.split("…"))), printed) is not None


# --- output ---


@pytest.mark.parametrize(
    "command", [command for command in blocks() if not command.startswith("trb submit")]
)
def test_commands_print_what_the_page_shows(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("TRB_DATA_DIR", "TRB_RUNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setattr(
        torch.cuda, "is_available", lambda: False
    )  # the page shows the plan's card, not this one's
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    with pytest.raises(SystemExit):  # `trb doctor` ends with 1 where SGLang is not installed
        cli.main(command.split()[1:])
    printed = capsys.readouterr().out
    assert [line for line in blocks()[command] if not matches(line, printed)] == [], printed


def test_the_checks_on_the_page_are_those_that_are_made() -> None:
    [listed] = re.findall(r"In their order\s+they\s+are (.*?)\. ", TEXT, flags=re.DOTALL)
    assert re.findall(r"`([a-z]+)`", listed) == [check.name for check in GPU_CHECKS]
    assert f"`{len(GPU_CHECKS)} checks: " in TEXT


def test_the_numbers_to_look_at_first_are_those_of_the_doctors_table(tmp_path: Path) -> None:
    table = TEXT[TEXT.index("| look first at |") :].partition("\n\n")[0]
    rows = re.findall(r"^\| (.+) \| (.+) \| (.+) \|$", table, re.MULTILINE)
    found = looks(small_bench(tmp_path), [])
    assert [row[0] for row in rows[1:]] == [look.subject for look in found]
    for row, look in zip(rows[1:], found, strict=True):
        assert row[2] == "the same" or row[2].replace("`", "") == look.change


@pytest.mark.parametrize("page", ["README.md", "docs/first-hour-on-gpus.md"])
def test_the_first_sweeps_limit_is_not_below_its_plan(
    page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sweep that stops at its limit is what a first user would not expect."""
    text = (ROOT / page).read_text(encoding="utf-8")
    [limit] = re.findall(r"trb submit experiments/paper-small.yaml .*--max-gpu-hours (\d+)", text)
    small = str(ROOT / "experiments" / "paper-small.yaml")
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", small, "--gpus", "8", "--json", "--runs", str(tmp_path / "runs")])
    assert ended.value.code in (0, None)
    hours = json.loads(capsys.readouterr().out)["totals"]["gpu_hours"]["total"]
    assert float(limit) >= hours["high"]


def test_what_make_is_asked_for_is_there() -> None:
    targets = set(re.findall(r"\bmake ([a-z-]+)", TEXT))
    assert targets == {"setup", "setup-engines"}
    made = re.findall(
        r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert targets <= set(made)


def test_quoted_errors_are_sentences_of_the_program() -> None:
    """A quarter of the words of each message, in a row, stand in a string of the program."""
    program = "\n".join(strings())
    rows = re.findall(r"^\| (`.*?`) \|", TEXT, flags=re.MULTILINE)
    quoted = [quotation.strip("`") for row in rows for quotation in row.split("<br>")]
    assert len(quoted) > 20
    for message in quoted:
        words = message.split()
        length = max(2, len(words) // 4)
        runs = [" ".join(words[i : i + length]) for i in range(len(words) - length + 1)]
        assert any(run in program for run in runs), message


def strings() -> Iterator[str]:
    for folder in ("orchestrator", "docker"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value
