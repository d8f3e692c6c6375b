"""OpenThoughts3-1.2M: training prompts of the paper, from the hub or a local parquet or JSON Lines file.

Rows hold `difficulty`, `source`, `domain` and `conversations` ({from, value} turns); the math rows' first human
turn is the bare problem. There is no gold column, so these prompts carry no reward.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from orchestrator.config import Data
from orchestrator.errors import UserError
from orchestrator.tasks.benchmarks import read_jsonl, verify_sha256
from orchestrator.tasks.problem import Problem

MATH_SOURCE = "ai2-adapt-dev/openmath-2-math"


def openthoughts_problems(data: Data) -> list[Problem]:
    """The math problems in row order, repeats included. UserError if the data cannot be had."""
    if not data.path:
        raise UserError("data.path: not set — a hub id such as open-thoughts/OpenThoughts3-1.2M, or a local file")
    problems = []
    for index, row in enumerate(_rows(data.path, data.revision)):
        if row.get("domain") == "math" or row.get("source") == MATH_SOURCE:
            problems.append(Problem(f"openthoughts/{index}", _human_turn(data.path, index, row), None))
    return problems


def _rows(path: str, revision: str | None) -> Iterable[dict[str, Any]]:
    local = Path(path)
    if local.is_file():
        verify_sha256(local, revision)
        if local.suffix == ".parquet":
            import pyarrow.parquet

            return pyarrow.parquet.read_table(local).to_pylist()
        return read_jsonl(local)
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(f"data.path: {path!r} is no local file — for hub data: pip install 'trb[hub]'") from None
    return datasets.load_dataset(path, revision=revision, split="train")


def _human_turn(path: str, index: int, row: dict[str, Any]) -> str:
    turns = row.get("conversations")
    first = turns[0] if isinstance(turns, list) and turns else None
    if not isinstance(first, dict) or first.get("from") != "human" or not isinstance(first.get("value"), str):
        raise UserError(f"{path} row {index}: conversations does not open with a human turn {{from, value}}")
    return first["value"]
