"""The benchmarks by key, with the label, problem count and content hash of each.

The number n of samples of each problem stands in the setup (`evaluation.benchmarks`).
Every score names the content it was measured on: `Benchmark.identity` is part of an evaluation's
id. A file with other content than declared is refused. docs/add-a-benchmark.md explains how to add
one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.config import BenchmarkRun, Setup
from orchestrator.data import arithmetic, word_problems
from orchestrator.data.files import (
    SUFFIXES,
    check_hub_id,
    data_file,
    iterate_hub,
    numbered_rows,
    verify_sha256,
)
from orchestrator.data.problems import Problem, benchmark_problem
from orchestrator.errors import LONGEST_VALUE, UserError, did_you_mean, refuse, shortened
from orchestrator.grading.gold import MATH, version_of


@dataclass(frozen=True)
class Benchmark:
    """A benchmark that comes with the program, or one that an experiment adds.

    Its problems are read from `file`, a path below the data folder, with the content hash `sha256`.
    The arithmetic sets are generated instead, as sums with `terms` terms, and so are word problems
    (`stories`). An added benchmark has none of these: its `BenchmarkRun` names the source. `label`
    heads the benchmark's column in tables, and is not part of its identity.
    """

    problems: int
    file: str | None = None
    sha256: str | None = None
    terms: tuple[int, int] | None = None
    stories: bool = False
    label: str = ""

    @property
    def is_generated(self) -> bool:
        """Whether the problems come from this program and not from a file."""
        return self.terms is not None or self.stories

    def identity(self, run: BenchmarkRun | None = None) -> dict[str, Any]:
        """The identity of the content, independent of its location; a part of an evaluation's id.

        For example `{"file": "eval/amc23.jsonl", "sha256": "8d5f…"}`. A file that `run` names
        counts by its content alone; with the declared hash, it is the declared file.
        """
        if self.terms is not None:
            return {"world": arithmetic.WORLD_VERSION, "terms": list(self.terms)}
        if self.stories:
            return {"word_problems": word_problems.WORLD_VERSION}
        if run is None or run.path is None:
            return {"file": self.file, "sha256": self.sha256}
        if self.file is not None and run.revision == self.sha256:
            return {"file": self.file, "sha256": self.sha256}
        if _is_sha256(run.revision):
            return {"sha256": run.revision}
        return {"hub": run.path, "revision": run.revision, "subset": run.subset, "split": run.split}


# One row per benchmark. A label that two keys share means the first of them when read back.
BENCHMARKS: dict[str, Benchmark] = {
    "arithmetic_short": Benchmark(
        label="Short sums",
        problems=arithmetic.BENCHMARK_PROBLEMS,
        terms=arithmetic.SHORT_TERMS,
    ),
    "arithmetic_long": Benchmark(
        label="Long sums",
        problems=arithmetic.BENCHMARK_PROBLEMS,
        terms=arithmetic.LONG_TERMS,
    ),
    "arithmetic_longest": Benchmark(
        label="Longest sums",
        problems=arithmetic.BENCHMARK_PROBLEMS,
        terms=arithmetic.LONGEST_TERMS,
    ),
    "word_problems": Benchmark(
        label="Word problems",
        problems=word_problems.BENCHMARK_PROBLEMS,
        stories=True,
    ),
    "gsm8k": Benchmark(
        label="GSM8K",
        problems=1319,
        file="eval/gsm8k_test.jsonl",
        sha256="ad3b7e9107f117e55b2908fe97fd93271bd198bab200b900da62235e8afddb36",
    ),
    "math500": Benchmark(
        label="MATH500",
        problems=500,
        file="eval/math500.jsonl",
        sha256="3e0b9940311eadc524188210609bc444b5b6a9c64f281944abd35a11d188887a",
    ),
    "olympiadbench_674": Benchmark(
        label="Olympiad",
        problems=674,
        file="eval/olympiadbench_674.jsonl",
        sha256="223a7cd166d3f4bb718350e495b94ece6e12b9167aa2e46b7f0be8ee110f3979",
    ),
    "olympiadbench": Benchmark(
        label="Olympiad",
        problems=675,
        file="eval/olympiadbench.jsonl",
        sha256="958287939da9e3c2fed25e073a451bbfdd05cf266a598643d88df41de0536b54",
    ),
    "amc23": Benchmark(
        label="AMC",
        problems=40,
        file="eval/amc23.jsonl",
        sha256="8d5f13755716f562419ee5006b9140eed286a467a2e54d6f1a44182e2586a5a8",
    ),
    "amc22_23": Benchmark(
        label="AMC",
        problems=83,
        file="eval/amc22_23.jsonl",
        sha256="cb7ddf7b48de4768479bd8affa99486f2debf0d35139f8c59cc3b2e23ab4febe",
    ),
    "aime24": Benchmark(
        label="AIME24",
        problems=30,
        file="eval/aime24.jsonl",
        sha256="cfd40d16eca1d155f5cfe729a9a5dfe5448ccd906ab4d4e975103df107e2ca44",
    ),
    "aime25": Benchmark(
        label="AIME25",
        problems=30,
        file="eval/aime25.jsonl",
        sha256="9c8816522c93701baf05058e3d708d8e763bd2b269ad0b7985e2f825f651b8e9",
    ),
}


def benchmark_of(key: str, run: BenchmarkRun | None = None) -> Benchmark:
    """The declared benchmark of this key, else one from `run.path`; UserError if it is neither."""
    if key in BENCHMARKS:
        return BENCHMARKS[key]
    if run is None or run.path is None:
        known = f"one of {', '.join(BENCHMARKS)}, or any other name with a path=FILE.jsonl"
        raise UserError(
            f"evaluation.benchmarks.{key}: unknown benchmark: "
            f"expected {known}{did_you_mean(key, BENCHMARKS)}"
        )
    return Benchmark(run.problems or 0)


def load_benchmark(
    key: str, data_dir: str | None, run: BenchmarkRun | None = None
) -> list[Problem]:
    """All problems of a benchmark, in order: from `run.path` if set, else its declared file.

    Their golds name the judge that `run` names. Raises UserError if the problems are unavailable or
    broken, or differ in number or content from the declared ones.
    """
    problems = _problems(key, data_dir, run)
    if run is None or run.grader == MATH:
        return problems
    judged: list[Problem] = []
    for problem in problems:
        gold = problem.gold and replace(problem.gold, judge=run.grader)
        judged.append(replace(problem, gold=gold))
    return judged


def _problems(key: str, data_dir: str | None, run: BenchmarkRun | None) -> list[Problem]:
    benchmark = benchmark_of(key, run)
    if benchmark.terms is not None:
        return arithmetic.benchmark_problems(benchmark.terms)
    if benchmark.stories:
        return word_problems.benchmark_problems()
    where, rows = _rows(key, data_dir, run or BenchmarkRun())
    if len(rows) != benchmark.problems:
        advice = ""
        if key in BENCHMARKS:
            advice = f" of {key}; for another benchmark take a key of your own"
        raise UserError(f"{where}: {len(rows)} rows: expected {benchmark.problems}{advice}")
    problems: list[Problem] = []
    lines: dict[str, int] = {}  # id → the line of its first problem
    for number, (line, row) in enumerate(rows, 1):
        problem = benchmark_problem(where, line, row, number)
        first = lines.setdefault(problem.id, line)
        if first != line:
            raise UserError(
                f"{where} line {line}: id {problem.id!r} stands in line {first} too: "
                "expected every id once"
            )
        problems.append(problem)
    return problems


def check_source(key: str, run: BenchmarkRun) -> None:
    """Raise UserError unless `evaluation.benchmarks.<key>` pins the source of its problems."""
    where = f"evaluation.benchmarks.{key}"
    declared = benchmark_of(key, run)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", key) or key == "avg":
        raise refuse("evaluation.benchmarks", key, "letters, digits, '_', '.' and '-', and not avg")
    version_of(run.grader, f"{where}.grader")
    if run.path is None and (run.revision or run.subset or run.problems):
        raise UserError(
            f"{where}.path: not set, but revision, subset or problems is: "
            "expected a hub id or a local file"
        )
    if run.path is None:
        return
    if declared.is_generated:
        raise UserError(
            f"{where}.path: {run.path!r}: expected null, since these problems are generated"
        )
    if not _is_sha256(run.revision):
        if Path(run.path).is_file():
            raise refuse(
                f"{where}.revision", run.revision, f"the sha256 of {run.path}, or left out"
            )
        if run.path.endswith((*SUFFIXES, ".csv", ".tsv")):  # a missing file
            raise _not_there(where, run.path)
        check_hub_id(where, run.path, run.revision)
    if key not in BENCHMARKS and not run.problems:
        expected = "the number of its rows"
        if Path(run.path).exists():
            expected += ", 1 or more"
        raise refuse(f"{where}.problems", run.problems, f"{expected} ({run.path})")
    if key in BENCHMARKS and run.problems not in (None, declared.problems):
        raise refuse(
            f"{where}.problems", run.problems, f"{declared.problems}, or a key of your own"
        )


def _not_there(where: str, path: str) -> UserError:
    here = "" if Path(path).is_absolute() else f" (not in {Path.cwd()})"
    return refuse(
        f"{where}.path", path, f"a file or folder that is there, .jsonl or .parquet{here}"
    )


def _is_sha256(revision: str | None) -> bool:
    return len(revision or "") == 64


def _rows(
    key: str, data_dir: str | None, run: BenchmarkRun
) -> tuple[str, list[tuple[int, dict[str, Any]]]]:
    """The source of the problems, as messages name it, and their rows with their lines."""
    if run.path is None:
        declared = benchmark_of(key)
        assert declared.file is not None
        path, sha256 = data_file(declared.file, data_dir), declared.sha256
    elif Path(run.path).exists():
        path, sha256 = Path(run.path), run.revision
    elif _is_sha256(run.revision):
        raise _not_there(f"evaluation.benchmarks.{key}", run.path)
    else:
        rows = iterate_hub(
            f"evaluation.benchmarks.{key}", run.path, run.revision, None, run.split, run.subset
        )
        return f"{run.path}@{run.revision}", list(enumerate(rows, 1))
    rows = list(numbered_rows(path))
    verify_sha256(path, sha256)
    return str(path), rows


# --- the data files that setups declare ---


def declared_files(setup: Setup) -> dict[str, str | None]:
    """The files that a setup reads below the data folder: relative path → sha256."""
    files: dict[str, str | None] = {}
    if setup.data.source == "jsonl":
        for entry in setup.data.files:
            files[entry.file] = entry.sha256
    for key, run in setup.evaluation.benchmarks.items():
        declared = benchmark_of(key, run)
        if declared.file is not None and run.path is None:
            files[declared.file] = declared.sha256
    return files


def lacking(setups: Iterable[Setup], folder: Path) -> dict[str, str | None]:
    """The declared files of `setups` that are missing below `folder`."""
    missing: dict[str, str | None] = {}
    for setup in setups:
        for file, sha256 in declared_files(setup).items():
            if not (folder / file).is_file():
                missing[file] = sha256
    return missing


# --- training problems that stand in a benchmark ---


# A point before a digit stays: 3.5 is not 35.
UNIMPORTANT = re.compile(
    r"[\s$]|\\[()\[\]]|\\(?:left|right|displaystyle)(?![a-z])|\\[,;:! ]|[.,;:?\"'`“”‘’](?!\d)"
)


def find_overlap(
    setup: Setup, data_dir: str | None, problems: Sequence[Problem], used: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Count the problems that stand in each benchmark of the setup, and those of the texts `used`.

    For example `{"gsm8k": {"problems": 6, "of": 20, "used": 3, "example": "A box holds …"}}`.
    Benchmarks of a hub are not compared, since a training process should not depend on the hub.
    The generated training sums leave out all sums of the generated benchmarks.
    """
    found: dict[str, dict[str, Any]] = {}
    texts: list[tuple[str, str]] = []
    for key, run in setup.evaluation.benchmarks.items():
        if _is_held_out(setup, key, run) or (run.path is not None and not Path(run.path).exists()):
            continue
        try:
            benchmark = load_benchmark(key, data_dir, run)
        except UserError:  # the checks of benchmarks report it
            continue
        texts = texts or _comparable(problems)
        known = {normalised(problem.text) for problem in benchmark} - {""}
        in_both: dict[str, None] = {}  # a dict for an ordered set
        for problem, forms in zip(problems, texts, strict=True):
            if not known.isdisjoint(forms):
                in_both[problem.text] = None
        trained_on = [text for text in used if text in in_both]
        found[key] = {"problems": len(in_both), "of": len(problems), "used": len(trained_on)}
        if in_both:
            example = (trained_on or list(in_both))[0]
            found[key]["example"] = shortened(" ".join(example.split()), LONGEST_VALUE)
    return found


def overlap_lines(setup: Setup, overlap: Mapping[str, Mapping[str, Any]], used: int) -> list[str]:
    """Say what `find_overlap` found, for `used` prompts: a line for each benchmark with a problem.

    One line lists the benchmarks without any, and one those that were not compared.
    """
    lines: list[str] = []
    clean: list[str] = []
    unknown: list[str] = []
    total = 0
    for key, run in setup.evaluation.benchmarks.items():
        label = run.title or benchmark_of(key, run).label or key
        if key not in overlap:
            if not _is_held_out(setup, key, run):
                unknown.append(label)
            continue
        counts = overlap[key]
        total = counts["of"]
        if not counts["problems"]:
            clean.append(label)
            continue
        verb = "stands" if counts["problems"] == 1 else "stand"
        lines.append(
            f"{counts['problems']:,} of {total:,} training problems ({counts['used']:,} of the "
            f'{used:,} used) {verb} in {label}, e.g. "{counts["example"]}"'
        )
    if clean:
        lines.append(f"none of {total:,} training problems stands in {', '.join(clean)}")
    if unknown:
        lines.append(f"training problems were not compared with {', '.join(unknown)}")
    return lines


def normalised(text: str) -> str:
    """A problem's text without capitals, blanks, math mode and most points, for comparisons."""
    return UNIMPORTANT.sub("", unicodedata.normalize("NFKC", text).casefold())


def _is_held_out(setup: Setup, key: str, run: BenchmarkRun) -> bool:
    return setup.data.source == "arithmetic" and benchmark_of(key, run).terms is not None


def _comparable(problems: Sequence[Problem]) -> list[tuple[str, str]]:
    """The normalised text of each problem, and the same without the words that all have around it.

    Rows for reinforcement learning often repeat an instruction: `… Remember to box your answer.`
    """
    texts = [normalised(problem.text) for problem in problems]
    before = _common_start(texts)
    after = _common_start([text[before:][::-1] for text in texts])
    return [(text, text[before : len(text) - after]) for text in texts]


def _common_start(texts: Sequence[str]) -> int:
    """How many characters all texts begin with; 0 if all are the same text."""
    first, last = min(texts, default=""), max(texts, default="")
    if first == last:
        return 0
    for position, (one, other) in enumerate(zip(first, last, strict=False)):
        if one != other:
            return position
    return min(len(first), len(last))
