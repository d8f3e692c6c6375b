"""Benchmarks have the declared content, and training problems that stand in one are found."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checks import experiment as checks
from orchestrator.config import BenchmarkRun, Data, Setup
from orchestrator.data import benchmarks
from orchestrator.data.benchmarks import (
    BENCHMARKS,
    check_source,
    find_overlap,
    load_benchmark,
    normalised,
    overlap_lines,
)
from orchestrator.data.files import file_sha256
from orchestrator.data.problems import Problem
from orchestrator.errors import UserError
from orchestrator.experiment.load import load_setup
from orchestrator.grading.gold import Gold

DATA_DIR = os.environ.get("TRB_DATA_DIR")
needs_data = pytest.mark.skipif(
    not DATA_DIR, reason="TRB_DATA_DIR is not set: no benchmark files to read"
)

FILES = {key: benchmark for key, benchmark in BENCHMARKS.items() if benchmark.file is not None}
# Published sizes of the benchmarks.
COUNTS = {
    "gsm8k": 1319,
    "math500": 500,
    "olympiadbench_674": 674,
    "olympiadbench": 675,
    "amc23": 40,
    "amc22_23": 83,
    "aime24": 30,
    "aime25": 30,
    "arithmetic_short": 200,
    "arithmetic_long": 200,
    "arithmetic_longest": 200,
    "word_problems": 200,
}


# --- the declared files ---


def test_every_benchmark_has_its_published_size() -> None:
    assert {key: benchmark.problems for key, benchmark in BENCHMARKS.items()} == COUNTS


def test_what_identifies_a_benchmark_is_its_own() -> None:
    identities = [
        json.dumps(benchmark.identity(), sort_keys=True) for benchmark in BENCHMARKS.values()
    ]
    assert len(set(identities)) == len(BENCHMARKS)
    for benchmark in FILES.values():
        assert len(benchmark.sha256 or "") == 64


@needs_data
@pytest.mark.parametrize("key", FILES)
def test_files_hold_what_is_declared(key: str) -> None:
    assert DATA_DIR is not None
    path = Path(DATA_DIR) / str(BENCHMARKS[key].file)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == BENCHMARKS[key].sha256
    assert path.read_bytes().count(b"\n") == COUNTS[key]


@needs_data
@pytest.mark.parametrize("key", FILES)
def test_files_load_whole_and_in_order(key: str) -> None:
    assert DATA_DIR is not None
    problems = load_benchmark(key, DATA_DIR)
    rows = [
        json.loads(line)
        for line in (Path(DATA_DIR) / str(BENCHMARKS[key].file)).read_text().splitlines()
    ]
    assert [problem.text for problem in problems] == [row["problem"] for row in rows]
    assert len({problem.id for problem in problems}) == len(problems) == COUNTS[key]
    assert all(problem.gold is not None and problem.gold.answer.strip() for problem in problems)


@needs_data
def test_olympiad_problems_keep_their_extra_fields() -> None:
    golds = [problem.gold for problem in load_benchmark("olympiadbench_674", DATA_DIR)]
    assert any(gold is not None and gold.multiple for gold in golds)
    assert any(gold is not None and gold.unit for gold in golds)
    assert any(gold is not None and gold.tolerance is not None for gold in golds)


@needs_data
@pytest.mark.parametrize("name", ["math-smoke", "qwen3-1.7b", "qwen3-0.6b"])
def test_files_of_the_shipped_setups_are_there(name: str) -> None:
    of = checks.CheckedSetup(name, load_setup(name), Path(), data_dir=DATA_DIR)
    assert checks.training_files(of).verdict == checks.benchmarks(of).verdict == "ok"


# --- files that are not what is declared ---


def write_amc(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch, problems: int = 1) -> Path:
    """`text` as the file of amc23, declared by its true sha256 with `problems` rows."""
    path = folder / "eval" / "amc23.jsonl"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    declared = benchmarks.Benchmark(
        problems, "eval/amc23.jsonl", hashlib.sha256(path.read_bytes()).hexdigest()
    )
    monkeypatch.setitem(BENCHMARKS, "amc23", declared)
    return path


def row(**changes: Any) -> str:
    return json.dumps({"id": "1", "problem": "1+1", "answer": "2"} | changes) + "\n"


def refusal(data_dir: Path | None) -> str:
    with pytest.raises(UserError) as caught:
        load_benchmark("amc23", str(data_dir) if data_dir else None)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_a_data_folder() -> None:
    assert "data_dir: not set, but eval/amc23.jsonl is needed" in refusal(None)


def test_without_the_file(tmp_path: Path) -> None:
    assert f"{tmp_path / 'eval' / 'amc23.jsonl'}: no such file" in refusal(tmp_path)


def test_an_altered_file(tmp_path: Path) -> None:
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "amc23.jsonl").write_text(row())
    assert "the file was changed" in refusal(tmp_path)


def test_fewer_rows_than_declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_amc(tmp_path, row(), monkeypatch, problems=2)
    assert (
        refusal(tmp_path)
        == f"{path}: 1 rows: expected 2 of amc23; for another benchmark take a key of your own"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (row(problem=""), "line 1: problem is ''"),
        (row() + row(answer=None), "line 2: no field answer, final_answer, "),
        (row() + row(answer=[2]), "line 2: answer is [2]"),
        (row() + row(id=[1]), "line 2: id is [1]"),
        (row() + row(error="about 1"), "line 2: error is 'about 1'"),
        (row() + '{"id": \n', "line 2: not valid JSON"),
        (row() + "[1]\n", "line 2: list"),
    ],
)
def test_broken_rows_are_named(
    text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_amc(tmp_path, text, monkeypatch, problems=text.count("\n"))
    assert f"{path} {words}" in refusal(tmp_path)


def test_extra_fields_of_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (
        row()
        + row(id="2", is_multiple_answer=True, unit="m", error="1e-2")
        + row(id="3", unit="", error="")
    )
    write_amc(tmp_path, rows, monkeypatch, problems=3)
    golds = [problem.gold for problem in load_benchmark("amc23", str(tmp_path))]
    assert golds == [Gold("2"), Gold("2", multiple=True, unit="m", tolerance=0.01), Gold("2")]


def test_every_id_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_amc(tmp_path, row() + row(id="2") + row(), monkeypatch, problems=3)
    assert (
        refusal(tmp_path) == f"{path} line 3: id '1' stands in line 1 too: expected every id once"
    )


# --- other field names and answers ---


@pytest.mark.parametrize(
    ("fields", "gold"),
    [
        ({"ID": "I-1", "Problem": "1+1", "Answer": 2}, "2"),
        (
            {
                "unique_id": "test/1",
                "question": "1+1",
                "answer": "They have 1+1=<<1+1=2>>2.\n#### 2",
            },
            "2",
        ),
        (
            {"id": 7, "question": "1+1", "final_answer": ["2", "3"], "is_multiple_answer": True},
            "2,3",
        ),
        ({"id": 7, "problem": "1+1", "solution": r"It is $1$ and then \boxed{2}."}, "2"),
        ({"id": 7, "problem": "1+1", "answer": 142.0}, "142.0"),
    ],
)
def test_files_in_use_elsewhere(
    fields: dict[str, Any], gold: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_amc(tmp_path, json.dumps(fields) + "\n", monkeypatch)
    (problem,) = load_benchmark("amc23", str(tmp_path))
    assert (problem.text, problem.gold and problem.gold.answer) == ("1+1", gold)
    assert problem.id == str(fields.get("ID", fields.get("unique_id", fields.get("id"))))


def test_rows_without_an_id_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.dumps({"question": f"{i}+1", "answer": "2"}) + "\n" for i in range(3)]
    write_amc(tmp_path, "".join(lines), monkeypatch, problems=3)
    assert [problem.id for problem in load_benchmark("amc23", str(tmp_path))] == ["1", "2", "3"]


def test_a_solution_without_a_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_amc(tmp_path, json.dumps({"problem": "1+1", "solution": "2"}) + "\n", monkeypatch)
    assert f"{path} line 1: no field answer" in refusal(tmp_path)
    assert refusal(tmp_path).endswith("expected one beside 'problem', 'solution'")


# --- a file named in the experiment ---

AMC = "".join(row(id=str(i), problem=f"{i}+1", answer=str(i + 1)) for i in range(40))


def local(folder: Path, suffix: str = ".jsonl") -> BenchmarkRun:
    path = folder / f"amc{suffix}"
    if suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        table = pyarrow.Table.from_pylist([json.loads(line) for line in AMC.splitlines()])
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    else:
        path.write_text(AMC)
    return BenchmarkRun(path=str(path), revision=hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_local_file_in_place_of_the_declared_one(suffix: str, tmp_path: Path) -> None:
    run = local(tmp_path, suffix)
    problems = load_benchmark("amc23", None, run)
    assert [(p.text, p.gold) for p in problems] == [(f"{i}+1", Gold(str(i + 1))) for i in range(40)]
    with pytest.raises(UserError, match=r"amc\..*: 40 rows: expected 30"):
        load_benchmark("aime24", None, run)
    with pytest.raises(UserError, match=r"amc\..*: sha256 .* the file was changed"):
        load_benchmark("amc23", None, dataclasses.replace(run, revision="0" * 64))


def test_scores_are_told_by_content_not_by_place(tmp_path: Path) -> None:
    run, declared = local(tmp_path), BENCHMARKS["amc23"]
    assert declared.identity(run) == declared.identity(
        dataclasses.replace(run, path="elsewhere.jsonl")
    )
    assert declared.identity(run) != declared.identity()
    assert (
        declared.identity(dataclasses.replace(run, revision=declared.sha256)) == declared.identity()
    )


@pytest.mark.parametrize(
    ("key", "run", "words"),
    [
        (
            "amc23",
            BenchmarkRun(path="math-ai/amc23"),
            "amc23.revision: None: expected the commit (40 hex digits)",
        ),
        (
            "amc23",
            BenchmarkRun(path="math-ai/amc23", revision="main"),
            "amc23.revision: 'main': expected the commit",
        ),
        (
            "amc23",
            BenchmarkRun(path="./amc.jsonl", revision="0" * 40),
            "amc23.path: './amc.jsonl': expected a file or folder",
        ),
        (
            "amc23",
            BenchmarkRun(revision="0" * 40),
            "amc23.path: not set, but revision, subset or problems is",
        ),
        (
            "arithmetic_short",
            BenchmarkRun(path="a/b"),
            "arithmetic_short.path: 'a/b': expected null, since these problems are gen",
        ),
    ],
)
def test_sources_that_pin_nothing(key: str, run: BenchmarkRun, words: str) -> None:
    with pytest.raises(UserError) as caught:
        check_source(key, run)
    assert str(caught.value).startswith(f"evaluation.benchmarks.{words}")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    run = BenchmarkRun(path=str(tmp_path / "amc.jsonl"), revision="0" * 64)
    with pytest.raises(
        UserError,
        match=r"evaluation\.benchmarks\.amc23\.path: '/.*amc\.jsonl': expected a file or folder",
    ):
        load_benchmark("amc23", None, run)


# --- overlap ---


BALLS = [f"A box holds {i} red and {i + 1} blue balls. How many are in it?" for i in range(5)]


def problems(*texts: str) -> list[Problem]:
    return [Problem(str(number), text, None) for number, text in enumerate(texts)]


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    """A setup that trains on files, with the benchmark `balls` and one of a hub."""
    path = tmp_path / "balls.jsonl"
    path.write_text("".join(json.dumps({"problem": text, "answer": 1}) + "\n" for text in BALLS))
    balls = BenchmarkRun(path=str(path), revision=file_sha256(path), problems=5, title="Balls")
    far = BenchmarkRun(path="owner/far", revision="0" * 40, problems=5)
    loaded = load_setup("arithmetic")
    evaluation = dataclasses.replace(loaded.evaluation, benchmarks={"balls": balls, "far": far})
    return dataclasses.replace(loaded, data=Data(), evaluation=evaluation)


def test_copies_are_counted_and_named(setup: Setup) -> None:
    copies = [BALLS[0], BALLS[1].replace(" ", "  "), f"{BALLS[2].lower()} "]
    found = find_overlap(setup, None, problems("1+1", *copies, "2+2"), ["1+1", copies[1]])
    assert found == {
        "balls": {"problems": 3, "of": 5, "used": 1, "example": BALLS[1]},
    }
    assert overlap_lines(setup, found, used=2) == [
        '3 of 5 training problems (1 of the 2 used) stand in Balls, e.g. "' + BALLS[1] + '"',
        "training problems were not compared with far",
    ]


def test_none_is_said_as_well(setup: Setup) -> None:
    found = find_overlap(setup, None, problems("1+1", "1+2"), [])
    assert overlap_lines(setup, found, used=1)[0] == "none of 2 training problems stands in Balls"


def test_instructions_around_all_problems_hide_no_copy(setup: Setup) -> None:
    asked = [f"Solve this. {text}\nRemember to box it." for text in ("1+1?", BALLS[3], "4?")]
    assert find_overlap(setup, None, problems(*asked), [])["balls"]["problems"] == 1


def test_generated_sums_leave_out_generated_benchmarks() -> None:
    setup = load_setup("arithmetic")
    assert find_overlap(setup, None, problems("1+1=?"), []) == {}
    assert overlap_lines(setup, {}, used=1) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [("Find $x^2$.", "find  x^2"), ("\\(x\\) is 3.5", "x is $3.5$"), ("ＡＢ “c”", "ab c")],
)
def test_spellings_of_one_text(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


@pytest.mark.parametrize(("one", "other"), [("3.5", "35"), ("1+2", "1-2"), ("5!", "5"), ("x", "y")])
def test_texts_that_stay_apart(one: str, other: str) -> None:
    assert normalised(one) != normalised(other)
