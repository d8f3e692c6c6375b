"""Training problems from JSON Lines files with declared contents."""

from __future__ import annotations

from orchestrator.config import Data
from orchestrator.data.files import data_file, read_jsonl, text_field, verify_sha256
from orchestrator.data.problem import Problem
from orchestrator.grading.grader import Gold


def read_problems(data: Data, data_dir: str | None) -> list[Problem]:
    """Rows {id, problem, answer} of all files, in order; a row without an answer has no gold. Raises UserError."""
    problems = []
    for entry in data.files:
        path = data_file(entry.file, data_dir)
        rows = read_jsonl(path)
        verify_sha256(path, entry.sha256)
        for line, row in enumerate(rows, 1):
            gold = Gold(text_field(path, line, row, "answer")) if row.get("answer") is not None else None
            text = text_field(path, line, row, "problem")
            problems.append(Problem(text_field(path, line, row, "id"), text, gold))
    return problems
