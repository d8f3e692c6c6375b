"""Rows from the hub: what the library is asked for, and a user's mistakes. A folder stands in for
the hub.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.config import BenchmarkRun, Data
from orchestrator.data.benchmarks import BENCHMARKS, load_benchmark
from orchestrator.data.hub import iterate_hub
from orchestrator.data.openthoughts import COLUMNS, load_thoughts, needs_scan
from orchestrator.errors import UserError

COMMIT = "61bcf9d4eb38b30295efc2021227a63cc5bb34c8"
ROWS = [
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
    made = Hub(amc=ROWS)
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
    assert [problem.text for problem in problems] == [row["question"] for row in ROWS]
    assert [problem.gold.answer for problem in problems if problem.gold] == [
        row["answer"] for row in ROWS
    ]
    asked = {"name": "amc", "revision": COMMIT, "split": "train", "streaming": True}
    assert hub.asked == [("amc", asked)]


def test_another_number_of_rows(hub: Hub) -> None:
    hub.sets["amc"] = ROWS[:-1]
    assert refusal().startswith(f"amc@{COMMIT}: 39 rows: expected 40 of amc23")


def test_rows_that_are_none(hub: Hub) -> None:
    hub.sets["amc"] = [*ROWS[:4], {"id": "4", "text": "?"}, *ROWS[5:]]
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


@pytest.mark.parametrize("revision", [None, "main", COMMIT[:-1], COMMIT.upper()])
def test_a_revision_that_is_no_commit(revision: str | None, hub: Hub) -> None:
    assert "evaluation.benchmarks.amc23.revision:" in refusal(revision=revision)
    assert hub.asked == []


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
