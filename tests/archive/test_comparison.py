from __future__ import annotations

import json

import pytest

from orchestrator.archive.comparison import RunComparison


def lines(*rows: dict[str, object]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


STEPS: list[dict[str, object]] = [{"step": 0, "loss": 1.5}, {"step": 1, "loss": 1.25}]


def compared(before: bytes, now: bytes) -> RunComparison:
    comparison = RunComparison()
    comparison.add_rows("metrics.jsonl", before, now)
    return comparison


def test_the_same_bytes() -> None:
    assert compared(lines(*STEPS), lines(*STEPS)) == RunComparison()


@pytest.mark.parametrize(
    "now",
    [
        lines(STEPS[0], {"step": 1, "loss": 1.26}),
        lines(STEPS[0]),
        lines(STEPS[0], {}),
        lines(STEPS[0]) + b"no json\n",
    ],
)
def test_the_first_line_that_differs_is_named(now: bytes) -> None:
    assert compared(lines(*STEPS), now).difference == "metrics.jsonl, line 2"
    assert compared(now, lines(*STEPS)).difference == "metrics.jsonl, line 2"


def test_columns_of_one_version_are_named_and_no_difference() -> None:
    newer = [row | {"entropy": 0.5} for row in STEPS]
    assert compared(lines(*STEPS), lines(*newer)) == RunComparison(None, {"entropy"})


def test_the_first_of_several_files_counts() -> None:
    comparison = RunComparison()
    comparison.add_rows("first", lines(STEPS[0]), lines(STEPS[1]))
    comparison.add_rows("second", lines(STEPS[0]), lines(STEPS[1]))
    assert comparison.difference == "first, line 1"
