"""The benchmarks by name: which file, how many problems, which content.

Every score names the file it was measured on; a file with other content than declared is refused.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import UserError
from orchestrator.tasks import arithmetic
from orchestrator.tasks.grader import Gold
from orchestrator.tasks.problem import Problem


@dataclass(frozen=True)
class Benchmark:
    """`file` below the data folder and its sha256, or `terms` for the generated arithmetic sets."""

    problems: int
    file: str | None = None
    sha256: str | None = None
    terms: tuple[int, int] | None = None

    def identity(self) -> dict[str, Any]:
        """What fixes the content: part of an evaluation's id."""
        if self.terms is not None:
            return {"world": arithmetic.WORLD_VERSION, "terms": list(self.terms)}
        return {"file": self.file, "sha256": self.sha256}


BENCHMARKS: dict[str, Benchmark] = {
    "arithmetic_short": Benchmark(arithmetic.BENCHMARK_PROBLEMS, terms=arithmetic.SHORT_TERMS),
    "arithmetic_long": Benchmark(arithmetic.BENCHMARK_PROBLEMS, terms=arithmetic.LONG_TERMS),
    "gsm8k": Benchmark(
        1319, "eval/gsm8k_test.jsonl", "ad3b7e9107f117e55b2908fe97fd93271bd198bab200b900da62235e8afddb36"
    ),
    "math500": Benchmark(500, "eval/math500.jsonl", "3e0b9940311eadc524188210609bc444b5b6a9c64f281944abd35a11d188887a"),
    "olympiadbench_674": Benchmark(
        674, "eval/olympiadbench_674.jsonl", "223a7cd166d3f4bb718350e495b94ece6e12b9167aa2e46b7f0be8ee110f3979"
    ),
    "olympiadbench": Benchmark(
        675, "eval/olympiadbench.jsonl", "958287939da9e3c2fed25e073a451bbfdd05cf266a598643d88df41de0536b54"
    ),
    "amc23": Benchmark(40, "eval/amc23.jsonl", "8d5f13755716f562419ee5006b9140eed286a467a2e54d6f1a44182e2586a5a8"),
    "amc22_23": Benchmark(
        83, "eval/amc22_23.jsonl", "cb7ddf7b48de4768479bd8affa99486f2debf0d35139f8c59cc3b2e23ab4febe"
    ),
    "aime24": Benchmark(30, "eval/aime24.jsonl", "cfd40d16eca1d155f5cfe729a9a5dfe5448ccd906ab4d4e975103df107e2ca44"),
    "aime25": Benchmark(30, "eval/aime25.jsonl", "9c8816522c93701baf05058e3d708d8e763bd2b269ad0b7985e2f825f651b8e9"),
}


def load_benchmark(key: str, data_dir: str | None) -> list[Problem]:
    """All problems of a benchmark, in file order. UserError if its file is absent, altered or broken."""
    benchmark = BENCHMARKS[key]
    if benchmark.terms is not None:
        return arithmetic.benchmark_problems(benchmark.terms)
    assert benchmark.file is not None
    path = data_file(benchmark.file, data_dir)
    rows = read_jsonl(path)
    verify_sha256(path, benchmark.sha256)
    if len(rows) != benchmark.problems:
        raise UserError(f"{path}: {len(rows)} rows — {benchmark.problems} expected")
    return [_problem(path, line, row) for line, row in enumerate(rows, 1)]


def data_file(file: str, data_dir: str | None) -> Path:
    """The path of `file` below `data_dir`; UserError if either is missing."""
    if not data_dir:
        raise UserError(f"data_dir: not set, but {file} is needed — data_dir=FOLDER or TRB_DATA_DIR=FOLDER")
    path = Path(data_dir) / file
    if not path.is_file():
        raise UserError(f"{path}: no such file — data_dir={data_dir} should hold {file}")
    return path


def verify_sha256(path: Path, expected: str | None) -> None:
    """UserError unless the file's content is the declared one."""
    actual = hashlib.sha256(path.read_bytes()).hexdigest()
    if actual != expected:
        raise UserError(f"{path}: sha256 {actual[:12]}… — {(expected or 'none')[:12]}… declared; the file was changed")


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Objects of a JSON Lines file; UserError names the first broken line."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path} line {number}: not valid JSON ({error})") from None
        if not isinstance(row, dict):
            raise UserError(f"{path} line {number}: {type(row).__name__} — a JSON object")
        rows.append(row)
    return rows


def _problem(path: Path, line: int, row: dict[str, Any]) -> Problem:
    return Problem(text_field(path, line, row, "id"), text_field(path, line, row, "problem"), _gold(path, line, row))


def text_field(path: Path, line: int, row: dict[str, Any], key: str) -> str:
    """`row[key]` if it is a non-empty string, else UserError."""
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{path} line {line}: {key} is {value!r} — a non-empty string")
    return value


def _gold(path: Path, line: int, row: dict[str, Any]) -> Gold:
    """The published answer with OlympiadBench's extra fields where a row has them."""
    tolerance = str(row.get("error") or "").strip()
    try:
        absolute = float(tolerance) if tolerance else None
    except ValueError:
        raise UserError(f"{path} line {line}: error is {tolerance!r} — a number") from None
    return Gold(
        answer=text_field(path, line, row, "answer"),
        multiple=bool(row.get("is_multiple_answer", False)),
        unit=row.get("unit") or None,
        tolerance=absolute,
    )
