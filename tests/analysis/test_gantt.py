"""Who worked when: rows, bars, attempts that ended and pauses, from clocks that are written here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.figures import gantt
from analysis.figures.gantt import LOST, Bar, Chart, read_chart
from orchestrator.records.columns import EVALUATE, TRAIN
from orchestrator.selection.study import Study
from tests.fake_clocks import slice_row, step_row, write_clocks
from tests.fake_runs import quickstart, units_of

EXPERIMENT, UNITS = quickstart()
FIRST, SECOND = (unit.id for unit in units_of(UNITS, "trust_region"))


def place(host: str, process: int, gpu: str = "") -> dict[str, Any]:
    return {"host": host, "process": process, "gpu": gpu}


def chart_of(runs: Path) -> Chart:
    return read_chart(Study(EXPERIMENT, UNITS, runs))


def test_rows_are_gpus_by_machine_whichever_process_used_them(tmp_path: Path) -> None:
    write_clocks(
        tmp_path,
        FIRST,
        [0],
        [step_row(0, 10, **place("b", 1, "10")), slice_row(30, **place("a", 2, "0"))],
    )
    write_clocks(
        tmp_path,
        SECOND,
        [5],
        [step_row(0, 25, **place("b", 3, "10")), slice_row(30, **place("b", 4, "9"))],
    )
    chart = chart_of(tmp_path)
    assert chart.rows == (("a", "GPU 0"), ("b", "GPU 9"), ("b", "GPU 10"))
    assert chart.bars == (
        Bar(0, EVALUATE, 20, 30),
        Bar(1, EVALUATE, 20, 30),
        Bar(2, TRAIN, 0, 10),
        Bar(2, TRAIN, 15, 25),
    )


def test_without_gpus_a_process_takes_the_row_of_one_that_has_ended(tmp_path: Path) -> None:
    write_clocks(
        tmp_path, FIRST, [0], [step_row(0, 10, **place("a", 1)), slice_row(40, **place("a", 3))]
    )
    write_clocks(tmp_path, SECOND, [5], [step_row(0, 15, **place("a", 2))])
    chart = chart_of(tmp_path)
    assert chart.rows == (("a", "process 1"), ("a", "process 2"))
    assert [(bar.row, bar.end) for bar in chart.bars] == [(0, 40), (0, 10), (1, 15)]


def test_a_killed_attempt_ends_in_a_cross_and_its_lost_steps_are_told_apart(tmp_path: Path) -> None:
    rows = [step_row(step, 10 * step + 10, **place("a", 1)) for step in range(3)]
    write_clocks(tmp_path, FIRST, [0, 50], [*rows, step_row(1, 60, **place("a", 2))])
    chart = chart_of(tmp_path)
    assert chart.bars == (Bar(0, LOST, 10, 30), Bar(0, TRAIN, 0, 10), Bar(0, TRAIN, 50, 60))
    assert chart.ended == ((0, 30.0), (0, 60.0)), "no process works at it now, and it is untrained"
    picture = gantt.picture(Study(EXPERIMENT, UNITS, tmp_path))
    assert "2" in picture.basis
    assert picture.figure is not None
    words = [text.get_text() for text in picture.figure.legends[0].get_texts()]
    assert words == [gantt.KINDS[TRAIN][0], gantt.KINDS[LOST][0], gantt.ENDED]


def test_nothing_clocked_is_not_drawn(tmp_path: Path) -> None:
    picture = gantt.picture(Study(EXPERIMENT, UNITS, tmp_path))
    assert (picture.figure, picture.missing) == (None, "nothing was clocked yet")


@pytest.mark.parametrize("width", [7.2, 3.6])
@pytest.mark.parametrize(("gpus", "every"), [(8, 1), (86, 2)])
def test_rows_keep_the_height_of_a_page_and_thin_ones_leave_out_names(
    gpus: int, every: int, width: float
) -> None:
    rows, bars = [], []
    for row in range(gpus):
        rows.append((f"node-{row // 8:02d}", f"GPU {row % 8}"))
        bars += [Bar(row, TRAIN, 60.0 * minute, 60.0 * minute + 50) for minute in range(4)]
    figure = gantt.draw(Chart(tuple(rows), tuple(bars), ()), "sweep", width)
    assert figure.get_figheight() < 9
    axes = figure.axes[0]
    assert list(axes.get_yticks()) == list(range(0, gpus, every))
    names = [label.get_text() for label in axes.get_yticklabels()]
    several = [" ".join(row) for row in rows]
    assert names == (several[::every] if gpus > 8 else [name for _, name in rows])


def test_bars_too_thin_to_be_seen_run_into_their_neighbours(tmp_path: Path) -> None:
    write_clocks(
        tmp_path, FIRST, [0], [slice_row(10 * at, **place("a", 1)) for at in range(1, 5000)]
    )
    assert len(chart_of(tmp_path).bars) < 2000
