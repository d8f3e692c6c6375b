"""Rows of files and of hub datasets, and results in the cache."""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.config import BenchmarkRun, Data
from orchestrator.data.benchmarks import BENCHMARKS, load_benchmark
from orchestrator.data.files import (
    cached,
    folder_sha256,
    is_cached,
    iterate_hub,
    iterate_rows,
    numbered_rows,
    text_field,
    verify_sha256,
)
from orchestrator.data.openthoughts import COLUMNS, load_thoughts, needs_scan
from orchestrator.errors import UserError


def test_blank_lines_and_line_separators(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": "x\u2028y"}\n\n  \n{"a": 2}', encoding="utf-8")
    assert list(numbered_rows(path)) == [(1, {"a": "x\u2028y"}), (4, {"a": 2})]


def test_sha256_is_compared_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    right = hashlib.sha256(b"abc").hexdigest()
    verify_sha256(path, right)
    for wrong in (right[:-1] + "0", right[:12], "", None):
        with pytest.raises(UserError, match="declared"):
            verify_sha256(path, wrong)


def test_text_fields_are_not_empty() -> None:
    assert text_field(Path("f"), 1, {"a": " x "}, "a") == " x "
    for value in ("", " \n", None, 3):
        with pytest.raises(UserError, match="f line 1: a is"):
            text_field(Path("f"), 1, {"a": value}, "a")


def test_lines_are_read_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a":\n')
    rows = iterate_rows(path)
    assert next(rows) == {"a": 1}
    with pytest.raises(UserError, match=r"rows\.jsonl line 2: not valid JSON"):
        next(rows)


ROWS = [{"id": 1, "text": "é"}, {"id": 2, "text": "b"}]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()
BOM = b"\xef\xbb\xbf"
FORMS = {
    "rows.jsonl": LINES,
    "mark.jsonl": BOM + LINES.replace(b"\n", b"\r\n"),
    "joined.jsonl": BOM + LINES.replace(b"\n", b"\n\n" + BOM, 1),
    "rows.jsonl.gz": gzip.compress(BOM + LINES, mtime=0),
    "other name": gzip.compress(LINES, mtime=0),
    "rows.txt": LINES,
    "list.json": json.dumps(ROWS).encode(),
    "list.json.gz": gzip.compress(BOM + json.dumps(ROWS, indent=2).encode(), mtime=0),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_content_tells_how_rows_are_written(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(FORMS[name])
    assert list(iterate_rows(tmp_path / name)) == ROWS


def test_parquet_is_read_under_any_name(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    path = tmp_path / "rows.jsonl"
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(ROWS), path)
    assert list(numbered_rows(path)) == list(enumerate(ROWS, 1))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("cut.jsonl.gz", gzip.compress(LINES, mtime=0)[:-9], "not a readable gzip file"),
        ("sum.jsonl.gz", gzip.compress(LINES, mtime=0)[:-5] + b"12345", "not a readable gzip file"),
        ("rows.csv", b"id,text\n1,a\n", "unknown kind of file: expected one of .jsonl, "),
        ("rows.parquet", b"version https://git-lfs", "not a readable parquet file"),
        ("rows.parquet", b"PAR1 and no more", "not a readable parquet file"),
        ("rows.jsonl", LINES.decode().encode("utf-16"), "line 1: not UTF-8 text"),
        ("rows.json", b'[{"a": 1}, 2]', "line 2: int: expected a JSON object"),
        ("rows.json", b'[{"a": 1},', "line 1: not valid JSON"),
        ("rows.jsonl", b'{"a": 1}\n[{"a": 2}]\n', "line 2: list: expected a JSON object"),
        ("deep.jsonl", b'{"a": ' + b"[" * 100_000, "line 1: not valid JSON"),
    ],
)
def test_broken_files_are_one_line(name: str, content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        list(iterate_rows(tmp_path / name))
    assert str(caught.value).startswith(f"{tmp_path / name}")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_half_a_surrogate_pair_and_nul_are_no_text() -> None:
    for value, shown in (("a\ud800b", r"'\\ud800' at character 2"), ("\0", r"'\\x00'")):
        with pytest.raises(UserError, match=f"f line 1: a holds {shown}"):
            text_field(Path("f"), 1, {"a": value}, "a")
    assert text_field("f", 1, json.loads(r'{"a": "\ud83d\ude00"}'), "a") == "\U0001f600"


def test_parquet_rows_hold_what_is_asked_for(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    path = tmp_path / "rows.parquet"
    rows = [{"a": i, "b": {"c": [str(i)]}, "d": None} for i in range(1000)]
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path)
    assert list(iterate_rows(path)) == rows
    assert list(iterate_rows(path, ("b", "absent"))) == [{"b": row["b"]} for row in rows]


def test_files_of_a_folder_by_name(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "README.md"):
        (tmp_path / name).write_text(f'{{"from": "{name}"}}\n')
    assert [row["from"] for row in iterate_rows(tmp_path)] == ["a.jsonl", "b.jsonl"]


def test_a_folder_without_data(tmp_path: Path) -> None:
    (tmp_path / "README.md").touch()
    with pytest.raises(
        UserError, match=r"no data: expected \.jsonl or \.jsonl\.gz or \.parquet files"
    ):
        list(iterate_rows(tmp_path))


def test_a_folders_hash_is_of_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("2")
    whole = folder_sha256(tmp_path)
    verify_sha256(tmp_path, whole)
    (tmp_path / "a").rename(tmp_path / "c")
    assert folder_sha256(tmp_path) != whole
    with pytest.raises(UserError, match=f"{tmp_path}: sha256 .* its files were changed"):
        verify_sha256(tmp_path, whole)


# --- the hub ---


COMMIT = "61bcf9d4eb38b30295efc2021227a63cc5bb34c8"
HUB_ROWS = [
    {"id": f"{i}", "question": f"{i}+1?", "answer": f"{i + 1}.0", "url": "…"} for i in range(40)
]


class Dataset(list[dict[str, Any]]):
    """A streamed data set."""

    def select_columns(self, names: list[str]) -> Iterator[dict[str, Any]]:
        return ({name: row[name] for name in names} for row in self)


class Hub:
    """The part of `datasets` in use, over rows in memory; remembers what it was asked for."""

    def __init__(self, **sets: list[dict[str, Any]]):
        self.sets, self.asked = sets, []

    def load_dataset(self, path: str, **options: Any) -> Dataset:
        self.asked.append((path, options))
        if path not in self.sets:
            raise FileNotFoundError(f"Couldn't find\n{path} on the Hub")
        return Dataset(self.sets[path])


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = Hub(amc=HUB_ROWS)
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=made.load_dataset))  # type: ignore[arg-type]
    return made


def run(**changes: Any) -> BenchmarkRun:
    return replace(BenchmarkRun(path="amc", revision=COMMIT), **changes)


def refusal(**changes: Any) -> str:
    with pytest.raises(UserError) as caught:
        load_benchmark("amc23", None, run(**changes))
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- benchmarks ---


def test_a_benchmark_of_the_hub(hub: Hub) -> None:
    problems = load_benchmark("amc23", None, run(subset="amc", split="train"))
    assert [problem.text for problem in problems] == [row["question"] for row in HUB_ROWS]
    assert [problem.gold.answer for problem in problems if problem.gold] == [
        row["answer"] for row in HUB_ROWS
    ]
    asked = {"name": "amc", "revision": COMMIT, "split": "train", "streaming": True}
    assert hub.asked == [("amc", asked)]


def test_another_number_of_rows(hub: Hub) -> None:
    hub.sets["amc"] = HUB_ROWS[:-1]
    assert refusal().startswith(f"amc@{COMMIT}: 39 rows: expected 40 of amc23")


def test_rows_that_are_none(hub: Hub) -> None:
    hub.sets["amc"] = [*HUB_ROWS[:4], {"id": "4", "text": "?"}, *HUB_ROWS[5:]]
    assert (
        refusal()
        == f"amc@{COMMIT} line 5: no field problem, question, prompt, messages or conversations: "
        "expected one beside 'id', 'text'"
    )


def test_a_data_set_that_is_not_there(hub: Hub) -> None:
    line = refusal(path="someone/amc")
    assert line.startswith(
        f"evaluation.benchmarks.amc23.path: someone/amc@{COMMIT} cannot be had from the hub ("
    )
    assert "Couldn't find someone/amc on the Hub" in line


def test_without_the_library(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert (
        "evaluation.benchmarks.amc23.path: 'amc' is no local file; for hub data: pip install 'trb[hub]'"
        in refusal()
    )


def test_what_identifies_a_benchmark_of_the_hub() -> None:
    identities = [
        BENCHMARKS["amc23"].identity(each)
        for each in (
            run(),
            run(subset="x"),
            run(split="train"),
            run(revision="0" * 40),
            run(path="b"),
            BenchmarkRun(),
        )
    ]
    assert len({json.dumps(identity) for identity in identities}) == len(identities)
    assert identities[-1] == BENCHMARKS["amc23"].identity()


# --- training prompts ---


def thought(text: str, answer: str) -> dict[str, Any]:
    turns = [{"from": "human", "value": text}, {"from": "gpt", "value": f"\\boxed{{{answer}}}"}]
    return {"domain": "math", "source": "s", "difficulty": None, "conversations": turns}


def test_thoughts_are_streamed_once(hub: Hub) -> None:
    hub.sets["thoughts"] = [thought("1+1=?", "2"), thought("1+2=?", "3"), thought("1+1=?", "2")]
    data = Data(source="openthoughts", path="thoughts", revision=COMMIT)
    assert needs_scan(data)
    found = load_thoughts(data)
    assert [(problem.row, problem.answers) for problem in found.problems] == [
        (0, {"2": 2}),
        (1, {"3": 1}),
    ]
    assert load_thoughts(data) == found
    asked = {"name": None, "revision": COMMIT, "split": "train", "streaming": True}
    assert hub.asked == [("thoughts", asked)]


def test_a_download_that_breaks_off_is_not_remembered(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks_off(self: Dataset, names: list[str]) -> Iterator[dict[str, Any]]:
        yield self[0]
        raise ConnectionError("reset by peer")

    hub.sets["thoughts"] = [thought("1+1=?", "2")] * 2
    data = Data(source="openthoughts", path="thoughts", revision=COMMIT)
    with monkeypatch.context() as patch:
        patch.setattr(Dataset, "select_columns", breaks_off)
        with pytest.raises(
            UserError, match=r"data\.path: thoughts@.* cannot be had from the hub \(reset by peer\)"
        ):
            load_thoughts(data)
    assert needs_scan(data)
    assert load_thoughts(data).counts["rows"] == 2


def test_the_library_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets", reason="the extra `hub` is not installed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "thoughts").mkdir()
    lines = [json.dumps(thought(f"{i}", "2")) + "\n" for i in range(5)]
    (tmp_path / "thoughts" / "train.jsonl").write_text("".join(lines))
    rows = list(iterate_hub("data", "thoughts", COMMIT, COLUMNS, "train"))
    assert [sorted(row) for row in rows] == [sorted(COLUMNS)] * 5
    assert [row["conversations"][0]["value"] for row in rows] == [f"{i}" for i in range(5)]


# --- the cache ---


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "trb"


def test_one_makes_it_while_the_others_wait() -> None:
    made = []

    def make() -> str:
        made.append(time.monotonic())
        time.sleep(0.2)
        return "größer\n"

    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda _: cached("result.json", make), range(4)))
    assert texts == ["größer\n"] * 4
    assert len(made) == 1
    assert is_cached("result.json")


def test_what_fails_leaves_nothing_and_is_made_by_the_next(folder: Path) -> None:
    def fail() -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached("result.json", fail)
    assert not is_cached("result.json")
    assert cached("result.json", lambda: "text") == "text"
    assert sorted(path.name for path in folder.iterdir()) == [".result.json.lock", "result.json"]


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'{"a": "\xff"}\n')
    with pytest.raises(UserError, match="UTF-8"):
        list(iterate_rows(tmp_path / "rows.jsonl"))


@pytest.mark.parametrize("revision", [None, "main", COMMIT[:-1], COMMIT.upper()])
def test_a_revision_that_is_no_commit(revision: str | None, hub: Hub) -> None:
    assert "evaluation.benchmarks.amc23.revision:" in refusal(revision=revision)
    assert hub.asked == []
