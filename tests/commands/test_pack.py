"""`trb pack` and `trb open` as users type them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.commands import pack as pack_command
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import expand
from tests.commands.packs import NAME, finished, members_of
from tests.experiment.test_local_files import own_setup, write_model, write_rows
from tests.fake_runs import write_run
from tests.sweeps import trb_here

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words that name a finished sweep, seen from an empty folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("TRB_RUNS", raising=False)
    return finished(tmp_path)


def packed(capsys: Capture, *words: str) -> Path:
    code, out, err = trb_here(capsys, "pack", *words)
    assert code == 0, err
    return Path(out.strip())


def test_an_opened_pack_answers_as_the_runs_do(
    capsys: Capture, words: list[str], tmp_path: Path
) -> None:
    """Every look at results gives the same, on a machine without the runs and the experiment."""
    looks = {
        "table": ["--format", "json"],
        "compare": ["--compare", "TRB,Vanilla", "--format", "json"],
        "status": ["--json"],
    }

    def look(name: str, words: list[str]) -> str:
        command = "table" if name == "compare" else name
        code, out, err = trb_here(capsys, command, *words, *looks[name])
        assert code == 0, err
        return out

    before = {name: look(name, words) for name in looks}
    pack = packed(capsys, *words)
    assert pack == Path(f"{NAME}.tar.gz")
    shutil.rmtree(tmp_path / "runs")
    code, out, err = trb_here(capsys, "open", pack)
    assert code == 0, err
    assert "Vanilla" in out
    opened = [f"{NAME}/results/{NAME}"]
    for name in looks:
        own = json.loads(look(name, opened)), json.loads(before[name])
        for document in own:
            document.pop("advice", None)  # a command that names the runs folder
            document.pop("runs", None)
        assert own[0] == own[1]
    code, out, err = trb_here(capsys, "report", *opened)
    assert code == 0, err


def test_models_and_problems_of_the_author_need_not_be_there(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model folder and a file of problems keep their ids on a machine that lacks both."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    author = tmp_path / "author"
    author.mkdir()
    monkeypatch.chdir(author)
    write_model(author / "student")
    write_model(author / "teacher", 61, num_hidden_layers=5)
    problems = write_rows(author / "mine.jsonl")
    benchmarks = {"arithmetic_short": None, "mine": {"path": str(problems), "n": 4}}
    path = own_setup(
        author, {"path": "./student"}, {"path": "./teacher"}, evaluation={"benchmarks": benchmarks}
    )
    experiment = load_experiment(path)
    for unit in expand(experiment):
        steps = [0] if unit.is_untrained else [2, 4, 6, 8, 10]
        write_run(author / "runs", experiment, unit, {step: [2] for step in steps}, unit.steps)
    packed(
        capsys, str(path), "evaluation.rescore=false", "--output", str(tmp_path / "sweep.tar.gz")
    )
    shutil.rmtree(author)
    (tmp_path / "reader").mkdir()
    monkeypatch.chdir(tmp_path / "reader")
    code, out, err = trb_here(capsys, "open", tmp_path / "sweep.tar.gz")
    assert code == 0, err
    assert "50.0" in out


def test_what_is_in_it(capsys: Capture, words: list[str]) -> None:
    """No weights and no clock, a manifest, and sums as other tools read them."""
    first = packed(capsys, *words)
    assert first.read_bytes() == packed(capsys, *words, "--output", "again.tar.gz").read_bytes()
    members = members_of(first)
    assert not [name for name in members if "checkpoints" in name or "safetensors" in name]
    manifest = json.loads(members["manifest.json"])
    assert manifest["experiment"]["name"] == NAME
    assert set(manifest["models"]["arithmetic"]) == {"student", "teacher"}
    assert manifest["table"]["rows"]
    assert manifest["left_out"]["weights"]["files"] > 0
    subprocess.run(["tar", "-xzf", first], check=True)
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=NAME, check=True)


def test_the_readme_of_a_pack_counts_the_table_again(
    capsys: Capture, words: list[str], tmp_path: Path
) -> None:
    """Its lines run in the unpacked folder by Python alone, and find each score of the table."""
    subprocess.run(["tar", "-xzf", packed(capsys, *words)], check=True)
    text = Path(NAME, "README.md").read_text("utf-8")
    lines = text.partition("```python\n")[2].partition("```")[0]
    found = subprocess.run(
        [sys.executable, "-I", "-c", lines], cwd=NAME, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    table = json.loads(Path(NAME, "manifest.json").read_text("utf-8"))["table"]
    rows = [row for row in table["evidence"]["selected"] if row["benchmark"] != "avg"]
    assert len(found) == len(rows) > 3
    for line, row in zip(found, rows, strict=True):
        method, benchmark, counted, _, printed = line.split()
        assert (method, benchmark) == (row["method"], row["benchmark"])
        assert counted == printed == f"{row['score']:.2f}"
    for source in table["benchmarks"]:
        assert f"`{source['evaluation_id']}`" in text
    assert len(lines.splitlines()) <= 15


def test_texts_can_be_left_out(capsys: Capture, words: list[str], tmp_path: Path) -> None:
    slice_file = next((tmp_path / "runs").glob("*/evals/*/step_000060/*.jsonl"))
    texts = slice_file.with_name(slice_file.name.removesuffix(".jsonl") + ".texts.gz")
    texts.write_bytes(b"texts")
    name = str(texts.relative_to(tmp_path / "runs"))
    assert members_of(packed(capsys, *words))[name] == b"texts"
    assert name not in members_of(packed(capsys, *words, "--no-texts"))


def test_an_unfinished_or_damaged_sweep_is_refused(
    capsys: Capture, words: list[str], tmp_path: Path
) -> None:
    unit = next((tmp_path / "runs").glob("*-vanilla-*"))
    (unit / "DONE").unlink()
    code, _, err = trb_here(capsys, "pack", *words)
    assert code == 2
    assert err.startswith(f"trb: {NAME}: 1 of ")
    assert list(Path().iterdir()) == []
    packed(capsys, *words, "--methods", "TRB")
    slice_file = next((tmp_path / "runs").glob("*/evals/*/step_000060/*.jsonl"))
    slice_file.write_bytes(slice_file.read_bytes().replace(b"right", b"wrong"))
    code, _, err = trb_here(capsys, "pack", *words)
    assert code == 2
    assert slice_file.name in err


def test_another_table_is_said(capsys: Capture, words: list[str]) -> None:
    """A version of the program that computes another table says so by its exit code."""
    write = pack_command.write_pack
    pack = Path("sweep.tar.gz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            pack_command,
            "write_pack",
            lambda study, output, tables, texts: write(
                study, output, tables | {"table.md": "another"}, texts
            ),
        )
        packed(capsys, *words, "--output", str(pack))
    code, _, err = trb_here(capsys, "open", pack)
    assert code == 1
    assert "table.md" in err
