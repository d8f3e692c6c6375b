"""The leaderboard has the numbers of `trb table`, in an order of its own."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from analysis.facts.evidence import Difference, Estimate, GapAxis
from analysis.facts.intervals import Interval
from analysis.table import evidence_formats
from analysis.table.model import results_table
from orchestrator.view.leaderboard import IntervalAxis, Placing, benchmark_texts, placings
from tests.view.sweeps import small_sweep


def difference(value: float, low: float, high: float) -> Difference:
    return Difference(Estimate(Fraction(value), Interval(low, high), "seeds"), (3, 3))


def texts_of(placing: Placing) -> dict[str, str]:
    return {heading: cell.text for heading, cell in placing.row().items()}


def test_rows_have_the_texts_of_the_results_table(tmp_path: Path) -> None:
    table = results_table(small_sweep(tmp_path))
    assert table.facts is not None
    (block,) = [b for b in evidence_formats.blocks(table.facts) if b.kind == "selected"]
    printed = {}
    for cells in block.sheet.rows:
        row = dict(zip(block.sheet.headings, (cell.text for cell in cells), strict=True))
        printed[row["Method"]] = row
    found = placings(table)
    assert [placing.method for placing in found] == ["trust_region", "vanilla", "base"]
    for placing in found:
        shown, row = texts_of(placing), printed[placing.label]
        assert (shown["Avg"], shown["Step"]) == (row["Avg"], row["Step"])
        assert row["− Vanilla"].startswith(shown["− Vanilla"])
        assert row["95 % interval"].startswith(shown["Interval"].rstrip("*"))


def test_a_table_without_intervals_has_the_same_scores(tmp_path: Path) -> None:
    study = small_sweep(tmp_path)
    early = {p.key: texts_of(p) for p in placings(results_table(study, depth="scores"))}
    late = {p.key: texts_of(p) for p in placings(results_table(study, depth="intervals"))}
    assert list(early) == list(late)
    for key, cells in early.items():
        assert late[key]["Avg"].split(" ±")[0] == cells["Avg"] != ""
        assert late[key]["− Vanilla"] == cells["− Vanilla"]
        assert cells["Interval"] == ""


def test_methods_without_scores_come_last_and_empty(tmp_path: Path) -> None:
    study = small_sweep(tmp_path / "runs")
    nothing = placings(results_table(study.with_units([]), depth="intervals"))
    assert {texts_of(placing)["Avg"] for placing in nothing} == {""}
    assert all(placing.lead is None and placing.difference is None for placing in nothing)


def test_each_benchmark_is_named_once(tmp_path: Path) -> None:
    table = results_table(small_sweep(tmp_path), depth="intervals")
    first, *_ = placings(table)
    texts = benchmark_texts(table, first)
    labels = [column.label for column in table.columns if column.benchmark != "avg"]
    assert [text.startswith(label) for text, label in zip(texts, labels, strict=True)] == [True] * 2


def test_an_axis_shows_interval_point_and_zero() -> None:
    axis = IntervalAxis(GapAxis(-2.0, 2.0), 9)
    assert axis.draw(None) == "    │    "
    assert axis.draw(difference(1.0, 0.5, 1.5)) == "    │─●─ "
    assert axis.draw(difference(-1.0, -2.0, 0.5)) == "──●─┼─   "


def test_an_axis_ends_at_twenty_points_and_points_beyond() -> None:
    collapsed = difference(-80.0, -82.0, -78.0)
    axis = IntervalAxis(GapAxis.around([collapsed, difference(1.0, -1.0, 3.0)]), 27)
    assert (axis.axis.low, axis.axis.high) == (-20.0, 3.0)
    assert axis.draw(collapsed)[0] == "◀"
    assert IntervalAxis(GapAxis(-1.0, 1.0), 9).draw(difference(7.0, 6.0, 8.0))[-1] == "▶"
    assert axis.heading().split() == ["−20.0", "+3.0"]
    assert len(axis.heading()) == len(axis.draw(None)) == 27
