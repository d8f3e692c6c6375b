"""Who worked when: rows, bars, attempts that ended and pauses, from clocks that are written here."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.figures import gantt
from analysis.figures.gantt import LOST, Bar, Chart, read_chart
from orchestrator.records.columns import EVALUATE, TRAIN
from orchestrator.selection.study import Study
from tests.fake_clocks import slice_row, step_row, write_clocks
from tests.fake_runs import quickstart, units_of


def study(runs: Path) -> tuple[Study, str, str]:
    """The quickstart, and two of its units."""
    experiment, units = quickstart()
    first, second = units_of(units, "trust_region")
    return Study(experiment, units, runs), first.id, second.id


def test_rows_are_gpus_by_machine_whichever_process_used_them(tmp_path: Path) -> None:
    made, first, second = study(tmp_path)
    write_clocks(
        tmp_path,
        first,
        [0],
        [
            step_row(0, 10, host="b", process=1, gpu="10"),
            slice_row(30, host="a", process=2, gpu="0"),
        ],
    )
    write_clocks(
        tmp_path,
        second,
        [5],
        [
            step_row(0, 25, host="b", process=3, gpu="10"),
            slice_row(30, host="b", process=4, gpu="9"),
        ],
    )
    chart = read_chart(made)
    assert chart.rows == (("a", "GPU 0"), ("b", "GPU 9"), ("b", "GPU 10"))
    assert [(bar.row, bar.kind, bar.start, bar.end) for bar in chart.bars] == [
        (0, EVALUATE, 20, 30), (1, EVALUATE, 20, 30), (2, TRAIN, 0, 10), (2, TRAIN, 15, 25),
    ]  # fmt: skip


def test_without_gpus_a_process_takes_the_row_of_one_that_has_ended(tmp_path: Path) -> None:
    made, first, second = study(tmp_path)
    write_clocks(
        tmp_path,
        first,
        [0],
        [step_row(0, 10, host="a", process=1), slice_row(40, host="a", process=3)],
    )
    write_clocks(tmp_path, second, [5], [step_row(0, 15, host="a", process=2)])
    chart = read_chart(made)
    assert chart.rows == (("a", "process 1"), ("a", "process 2"))
    assert [(bar.row, bar.end) for bar in chart.bars] == [(0, 40), (0, 10), (1, 15)]


def test_a_killed_attempt_ends_in_a_cross_and_its_lost_steps_are_told_apart(tmp_path: Path) -> None:
    made, first, _ = study(tmp_path)
    here = {"host": "a", "process": 1}
    rows = [
        step_row(0, 10, **here),
        step_row(1, 20, **here),
        step_row(2, 30, **here),
        step_row(1, 60, host="a", process=2),
    ]
    write_clocks(tmp_path, first, [0, 50], rows)
    chart = read_chart(made)
    assert [(bar.kind, bar.start, bar.end) for bar in chart.bars] == [
        (LOST, 10, 30),
        (TRAIN, 0, 10),
        (TRAIN, 50, 60),
    ]
    assert chart.ended == ((0, 30.0), (0, 60.0)), "nobody works at it now, and it is not trained"
    picture = gantt.picture(made)
    assert "Attempts that died or were stopped: 2." in picture.basis
    assert picture.figure is not None
    assert "training that was taken again" in [
        text.get_text() for text in picture.figure.legends[0].get_texts()
    ]


def test_nothing_clocked_is_not_drawn(tmp_path: Path) -> None:
    assert gantt.picture(study(tmp_path)[0]).missing == "nothing was clocked yet"


def chart_of(rows: int, bars: int) -> Chart:
    """So many GPUs of machines of eight, each with as many bars of a minute."""
    places = tuple((f"node-{row // 8:02d}", f"GPU {row % 8}") for row in range(rows))
    of_rows = (
        Bar(row, TRAIN, 60.0 * bar, 60.0 * bar + 50) for row in range(rows) for bar in range(bars)
    )
    return Chart(places, tuple(of_rows), ())


@pytest.mark.parametrize("width", [7.2, 3.6])
def test_many_rows_keep_the_height_of_a_page_and_are_named_by_machine(width: float) -> None:
    small, large = (gantt.draw(chart_of(rows, 4), "sweep", width) for rows in (8, 86))
    assert [label.get_text() for label in small.axes[0].get_yticklabels()] == [
        f"GPU {row}" for row in range(8)
    ]  # of one machine
    assert large.get_figheight() < 9
    names = [label.get_text() for label in large.axes[0].get_yticklabels()]
    assert (names[0], names[-1], len(names)) == ("node-00 (8)", "node-10 (6)", 11)


def test_bars_too_thin_to_be_seen_run_into_their_neighbours(tmp_path: Path) -> None:
    made, first, _ = study(tmp_path)
    rows = [slice_row(10 * at, host="a", process=1) for at in range(1, 5000)]
    write_clocks(tmp_path, first, [0], rows)
    assert len(read_chart(made).bars) < 2000
