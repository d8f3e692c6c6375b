"""Finds training problems that stand in a benchmark, whose score then says less.

Texts are compared without what two copies of a problem may not share: capitals, blanks, math mode
and most points. `data.json` of a unit keeps the counts; `trb doctor` and the report say them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.config import BenchmarkRun, Setup
from orchestrator.data.benchmarks import benchmark_of, load_benchmark
from orchestrator.data.problems import Problem
from orchestrator.errors import LONGEST_VALUE, UserError, shortened

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
