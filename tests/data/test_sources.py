"""The data files and their sources: what is declared agrees, and each conversion makes the rows
that are declared.

`TRB_DATA_MIRROR` may name a folder with the files upstream as owner/name/commit/path; then all are
converted in full.
"""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.config import Data, DataFile, Experiment
from orchestrator.data import sources
from orchestrator.data.benchmarks import BENCHMARKS
from orchestrator.data.sources import SOURCES, Source, Upstream, to_bytes
from orchestrator.errors import UserError
from orchestrator.experiment.load import load_experiment
from orchestrator.sweep import prepare
from tests.sweeps import NO_MIRROR, ROOT, trb_here, trb_refuses, trb_shows, write_experiment

MIRROR = os.environ.get("TRB_DATA_MIRROR")
COMMIT = "0" * 40
ROWS = [{"id": 7, "problem": "1+1", "answer": 2.0, "url": "u", "more": "dropped"}]
MADE = [
    {"id": "amc23/7", "problem": "1+1", "answer": "2.0", "url": "u", "source": "AMC12 2023 (40)"}
]


def lines(*rows: dict[str, Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def convert(key: str, *files: bytes) -> list[dict[str, Any]]:
    return SOURCES[key].convert(files)


# --- what is declared ---


def test_every_benchmark_file_and_training_file_of_the_setups_has_a_source() -> None:
    files = {
        (benchmark.file, benchmark.sha256) for benchmark in BENCHMARKS.values() if benchmark.file
    }
    setup = yaml.safe_load((ROOT / "experiments" / "setups" / "math-smoke.yaml").read_text())
    files |= {(entry["file"], entry["sha256"]) for entry in setup["data"]["files"]}
    assert {(source.file, source.sha256) for source in SOURCES.values()} == files


@pytest.mark.parametrize("key", SOURCES)
def test_sources_are_pinned(key: str) -> None:
    for upstream in SOURCES[key].upstream:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+/[0-9a-f]{40}/\S+", upstream.place)
    assert SOURCES[key].licence


# --- conversions ---


def test_a_contest_keeps_its_numbers_as_text() -> None:
    assert convert("amc23", lines(*ROWS)) == MADE


def test_gsm8k_answers_stand_after_the_last_mark() -> None:
    [row] = convert("gsm8k", lines({"question": "?", "answer": "1 #### 2\n#### 1,000"}))
    assert (row["id"], row["answer"], row["solution"]) == (
        "gsm8k/test/0",
        "1,000",
        "1 #### 2\n#### 1,000",
    )


def test_the_sample_of_gsm8k_has_its_size() -> None:
    rows = convert(
        "gsm8k_train", lines(*({"question": str(i), "answer": f"#### {i}"} for i in range(7473)))
    )
    assert len(rows) == SOURCES["gsm8k_train"].rows
    assert [row["id"] for row in rows[:4]] == [
        "gsm8k/train/0",
        "gsm8k/train/1",
        "gsm8k/train/2",
        "gsm8k/train/9",
    ]


def test_math_training_rows_that_are_left_out() -> None:
    rows = [{"prompt": "p", "answer": "1", "level": 3, "id": f"{split}/algebra/{n}.json"}
            for split, n in (("train", 0), ("train", 27), ("test", 1))]  # fmt: skip
    made = convert("math_train", json.dumps(rows).encode())
    assert [(row["id"], row["subject"]) for row in made] == [
        ("math/train/algebra/0.json", "algebra")
    ]
    assert sum(map(len, sources.MATH_LEFT_OUT.values())) == 7499 - SOURCES["math_train"].rows


def test_the_later_olympiad_edition_is_joined_by_order() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    fields = dict.fromkeys((*sources.OLYMPIAD_FIELDS, "context"))
    older = [
        fields | {"id": i, "question": f"q{i}", "final_answer": [str(i)]} for i in (1, 1965, 2)
    ]
    edition = [
        {"prompt": [{"content": text}], "reward_model": {"ground_truth": "9"}}
        for text in ("q1", "other")
    ]
    file = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(edition), file)
    made = convert("olympiadbench_674", file.getvalue(), lines(*older))
    assert [(row["id"], row["text_vs_675"], row["answer"], row["answer_675"]) for row in made] == [
        ("olympiadbench/1", "verbatim", "9", "1"),
        ("olympiadbench/2", "T value filled in", "9", "2"),
    ]


@pytest.mark.skipif(not MIRROR, reason="TRB_DATA_MIRROR names no folder")
@pytest.mark.parametrize("key", SOURCES)
def test_each_file_is_reproduced_byte_for_byte(key: str, tmp_path: Path) -> None:
    [line] = sources.fetch(tmp_path, [key], str(MIRROR))
    assert f"{SOURCES[key].rows:,} rows" in line


# --- fetching ---


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Source:
    """AMC with one row; the number of its problems stays."""
    upstream = Upstream("a/b", COMMIT, "c/test.jsonl")
    sha256 = hashlib.sha256(to_bytes(MADE)).hexdigest()
    source = Source("eval/amc23.jsonl", sha256, 1, (upstream,), "MIT", SOURCES["amc23"].convert)
    monkeypatch.setitem(SOURCES, "amc23", source)
    monkeypatch.setitem(BENCHMARKS, "amc23", replace(BENCHMARKS["amc23"], sha256=sha256))
    return source


def write_mirror(folder: Path, content: bytes) -> Path:
    path = folder / "a" / "b" / COMMIT / "c" / "test.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return folder


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A server of raw files on this machine."""
    write_mirror(tmp_path / "mirror", lines(*ROWS))
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "mirror"))
    ) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_address[1]}"
        serving.shutdown()


def test_a_file_comes_over_the_network_once(small: Source, server: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    line = f"{data / small.file}: 1 rows of a/b at 000000000000 (licence: MIT), sha256 as declared"
    assert list(sources.fetch(data, ["amc23"], server)) == [line]
    assert (data / small.file).read_bytes() == to_bytes(MADE)
    assert list(sources.fetch(data, ["amc23"], "http://127.0.0.1:1")) == [
        f"{data / small.file}: there already"
    ]
    assert [path.name for path in data.rglob("*") if path.is_file()] == ["amc23.jsonl"]


def test_what_is_not_there_is_one_line(small: Source, server: str, tmp_path: Path) -> None:
    for mirror in (f"{server}/elsewhere", "http://127.0.0.1:1", "http://nowhere.invalid:x"):
        with pytest.raises(
            UserError, match=r"c/test.jsonl: cannot be had \(.*\); `trb data fetch FOLDER` where"
        ):
            list(sources.fetch(tmp_path / "data", ["amc23"], mirror))
    with pytest.raises(
        UserError,
        match=f"--from or TRB_DATA_MIRROR: '.*gone': expected a folder with a/b/{COMMIT}/c/test.jsonl",
    ):
        list(sources.fetch(tmp_path / "data", ["amc23"], str(tmp_path / "gone")))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            lines(*ROWS, *ROWS),
            "amc23: 2 rows with sha256 [0-9a-f]{64} came: expected 1 with [0-9a-f]{64}",
        ),
        (
            b"<html>not found</html>",
            r"amc23: 22 bytes that are no rows as expected \(JSONDecodeError\): expected what a/b/",
        ),
        (lines({"question": "?"}), r"amc23: 18 bytes that are no rows as expected \(KeyError\)"),
    ],
)
def test_other_content_is_refused_and_not_kept(
    small: Source, content: bytes, words: str, tmp_path: Path
) -> None:
    mirror = write_mirror(tmp_path / "mirror", content)
    with pytest.raises(UserError, match=words):
        list(sources.fetch(tmp_path / "data", ["amc23"], str(mirror)))
    assert not (tmp_path / "data").exists()


def test_a_file_of_ones_own_is_never_replaced(small: Source, server: str, tmp_path: Path) -> None:
    path = tmp_path / small.file
    path.parent.mkdir()
    path.write_text("mine\n")
    with pytest.raises(
        UserError,
        match=rf"{path}: another file is there already: expected another folder, or this file moved away",
    ):
        list(sources.fetch(tmp_path, ["amc23"], server))
    assert path.read_text() == "mine\n"


# --- what an experiment declares ---


def declaring(folder: Path, **keys: Any) -> Experiment:
    loaded = load_experiment(write_experiment(folder, {"vanilla": {}}, **keys))
    return replace(loaded, data_dir=str(folder / "data"))


def test_an_experiment_gets_the_files_that_it_declares_and_lacks(
    small: Source, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRB_DATA_MIRROR", server)
    said: list[str] = []
    prepare.fetch_data(declaring(tmp_path), said.append)
    assert (said, (tmp_path / "data").exists()) == ([], False), "generated benchmarks have no file"
    experiment = declaring(tmp_path, evaluation={"benchmarks": {"amc23": {"n": 1}}})
    prepare.fetch_data(experiment, said.append)
    [line] = said
    assert line.startswith(f"{tmp_path / 'data' / small.file}: 1 rows of a/b at ")
    assert [path.name for path in (tmp_path / "data").rglob("*.jsonl")] == ["amc23.jsonl"]
    monkeypatch.setenv("TRB_DATA_MIRROR", NO_MIRROR)
    prepare.fetch_data(experiment, said.append)
    assert said == [line], "what is there is neither asked for again nor mentioned"


@pytest.mark.parametrize("content", ["mine\n", ""])
def test_what_lies_there_is_left_to_the_check_of_its_content(
    small: Source, server: str, content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRB_DATA_MIRROR", server)
    path = tmp_path / "data" / small.file
    path.parent.mkdir(parents=True)
    path.write_text(content)
    said: list[str] = []
    prepare.fetch_data(
        declaring(tmp_path, evaluation={"benchmarks": {"amc23": {"n": 1}}}), said.append
    )
    assert (said, path.read_text()) == ([], content)


def test_other_content_under_a_known_name_is_not_fetched(
    small: Source, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setup may call its own prompts as ours are called; their sha256 says that they are others."""
    monkeypatch.setenv("TRB_DATA_MIRROR", server)
    experiment = declaring(tmp_path)
    [setup] = experiment.setups.values()
    own = Data(source="jsonl", files=[DataFile(small.file, "0" * 64)])
    said: list[str] = []
    prepare.fetch_data(replace(experiment, setups={"tiny": replace(setup, data=own)}), said.append)
    assert (said, (tmp_path / "data").exists()) == ([], False)


def test_submit_fetches_into_the_folder_of_the_command_before_anything_starts(
    small: Source,
    server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`trb submit` and `trb data fetch` share a folder, `data` here. Too few problems stop the
    sweep.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRB_DATA_DIR", raising=False)
    monkeypatch.setenv("TRB_DATA_MIRROR", server)
    sweep = write_experiment(
        tmp_path, {"vanilla": {}}, evaluation={"benchmarks": {"amc23": {"n": 1}}}
    )
    path = Path("data") / small.file
    code, out, err = trb_here(capsys, "submit", sweep)
    assert code == 2
    assert out.startswith(f"{tmp_path / path}: 1 rows of a/b at 000000000000 (licence: MIT), sha")
    assert err.startswith(f"trb: {tmp_path / path}: 1 rows: expected 40 of amc23")
    assert not (tmp_path / "runs").exists()
    _, out, _ = trb_here(capsys, "data", "fetch", "--only", "amc23")
    assert out.startswith(f"{path}: there already\n")


def test_the_command(small: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mirror = write_mirror(tmp_path / "mirror", lines(*ROWS))
    asked = ["data", "fetch", tmp_path / "data", "--only", "amc23", "--from", mirror]
    last = trb_shows(capsys, *asked).splitlines()[-1]
    assert last.startswith(f"use them with data_dir={tmp_path / 'data'}")
    for arguments, words in ((["--only", "amc24"], "did you mean amc23?"), (["fetsh"], "fetsh")):
        assert words in trb_refuses(capsys, "data", *arguments)


def test_the_table_names_every_file_with_its_commit(capsys: pytest.CaptureFixture[str]) -> None:
    out = trb_shows(capsys, "data")
    for source in SOURCES.values():
        for upstream in source.upstream:
            assert upstream.repository in out
            assert upstream.commit in out
        assert source.sha256 in out
