"""Records merge exactly; lengths keep their resolution; what was never kept stays missing."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction

from orchestrator.records.slices import ProblemRecord, length_histogram, merge
from tests.fake_runs import record

LENGTHS = [1, 7, 7, 40, 41, 300, 8192]


def with_lengths(lengths: list[int], problem: str = "p") -> ProblemRecord:
    return replace(record(0, n=len(lengths), problem=problem), lengths=length_histogram(lengths))


def edge_of(length: int) -> int:
    (edge,) = length_histogram([length])
    return edge


def test_bins_start_at_powers_of_the_eighth_root_of_two() -> None:
    for length in range(1, 10_000):
        j = max(j for j in range(120) if 2**j <= length**8)
        assert edge_of(length) == math.ceil(2 ** Fraction(j, 8) - 1e-9)


def test_a_length_is_less_than_a_bin_above_its_edge() -> None:
    for length in range(1, 10_000):
        edge = edge_of(length)
        assert edge <= length
        assert length**8 < 2 * edge**8
        assert edge_of(edge) == edge


def test_short_lengths_are_exact() -> None:
    assert [edge_of(length) for length in range(17)] == list(range(17))
    assert edge_of(17) == 16


def test_merged_lengths_are_those_of_all_samples() -> None:
    merged = merge([with_lengths(LENGTHS[:3]), with_lengths(LENGTHS[3:])])
    assert merged.lengths == length_histogram(LENGTHS)
    assert list(merged.lengths) == sorted(merged.lengths)
    assert merged.n == len(LENGTHS)


def test_counts_and_answers_merge() -> None:
    merged = merge([record(3), record(1, n=2)])
    assert (merged.n, merged.correct, merged.tokens) == (6, 4, 60)
    assert merged.answers == {"right": 4, "wrong": 2}


def test_lengths_that_one_side_lacks_are_missing() -> None:
    known, unknown = with_lengths(LENGTHS), record(1)
    for pair in ((known, unknown), (unknown, known)):
        merged = merge(pair)
        assert merged.lengths == {}


def test_rows_of_older_versions_are_read_without_lengths() -> None:
    row = record(1).to_row()
    del row["lengths"]
    assert ProblemRecord.from_row(row) == record(1)


def test_rows_come_back_as_written_with_sorted_edges() -> None:
    shuffled = replace(record(0, n=3), lengths={280: 1, 9: 1, 40: 1})
    text = json.dumps(shuffled.to_row())
    assert json.loads(text)["lengths"] == {"9": 1, "40": 1, "280": 1}
    assert text.index('"9"') < text.index('"40"') < text.index('"280"')
    assert ProblemRecord.from_row(json.loads(text)) == shuffled


def test_right_answers_and_their_tokens_merge() -> None:
    one = replace(record(3), right_answers={"2": 1, "2.0": 2}, tokens_right=31)
    other = replace(record(1), right_answers={"02": 1, "2": 0}, tokens_right=9)
    merged = merge([one, other])
    assert merged.right_answers == {"02": 1, "2": 1, "2.0": 2}
    assert list(merged.right_answers or {}) == ["02", "2", "2.0"]
    assert merged.tokens_right == 40


def test_right_answers_that_one_side_lacks_are_missing() -> None:
    known = replace(record(3), right_answers={"right": 3}, tokens_right=31)
    regraded = replace(known, tokens_right=None)
    merged = merge([known, record(1)])
    assert (merged.right_answers, merged.tokens_right) == (None, None)
    merged = merge([regraded, known])
    assert (merged.right_answers, merged.tokens_right) == ({"right": 6}, None)


def test_rows_of_older_versions_come_back_with_the_same_keys() -> None:
    assert "right_answers" not in record(1).to_row()
    known = replace(record(1), right_answers={"right": 1}, tokens_right=10)
    assert ProblemRecord.from_row(json.loads(json.dumps(known.to_row()))) == known
