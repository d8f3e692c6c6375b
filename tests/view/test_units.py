"""The tab of units: how the rows fit, which of them a search finds, and the processes below them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from threading import Lock

import pytest

from orchestrator.commands.unit_rows import (
    BAR,
    LOSS,
    SEED,
    STATE,
    STEP,
    UNIT,
    fitted,
    taken,
    unit_columns,
    unit_rows,
)
from orchestrator.monitor import status
from orchestrator.records.writer import RunWriter
from orchestrator.view.panes import holds_words
from orchestrator.view.reading import Progress
from orchestrator.view.units import process_lines
from tests.fake_runs import units_of
from tests.view.sweeps import small_sweep


def test_a_row_has_state_steps_and_score(tmp_path: Path) -> None:
    study = small_sweep(tmp_path)
    overview = status.overview(study)
    rows = {s.method: unit_rows(overview)[s.id] for s in overview.units}
    cells = rows["trust_region"]
    assert cells[UNIT].text == "TRB epsilon0=0.05 K=12"
    assert (cells[STATE].text, cells[STEP].text) == ("interrupted", "40/60")
    assert cells[LOSS].text == "0.0250"
    assert rows[None][STEP].text == rows[None][BAR].text == ""


def test_narrow_screens_have_fewer_columns_and_all_names(tmp_path: Path) -> None:
    rows = unit_rows(status.overview(small_sweep(tmp_path)))
    assert SEED not in unit_columns(rows, 120), "one seed needs no column"
    for width in range(60, 120, 5):
        columns = unit_columns(rows, width)
        assert taken(columns) <= width
        assert columns[UNIT] == len("TRB epsilon0=0.05 K=12") or width < 80
        assert (LOSS in columns, BAR in columns) == (width >= 90, width >= 80)


def test_columns_go_in_their_order_and_then_the_widest_text_breaks() -> None:
    columns = {"a": 10, "b": 6, "c": 4, "d": 4}
    assert fitted(columns, 30, ["d", "c"], ["a", "b"]) == columns
    assert fitted(columns, 29, ["d", "c"], ["a", "b"]) == {"a": 10, "b": 6, "c": 4}
    assert fitted(columns, 14, ["d", "c"], ["a", "b"]) == {"a": 6, "b": 6}


@pytest.mark.parametrize(
    ("words", "found"),
    [("", True), ("trb k=12", True), ("K=12  TRB", True), ("trust", False), ("trb k=13", False)],
)
def test_every_word_of_a_search_must_stand_in_the_text(words: str, found: bool) -> None:
    assert holds_words("TRB epsilon0=0.05 K=12", words) is found


def test_the_process_that_trains_a_unit_is_named(tmp_path: Path) -> None:
    study = small_sweep(tmp_path)
    assert status.overview(study).processes == []
    unit = units_of(study.units, "vanilla")[0]
    with closing(RunWriter(tmp_path, unit.id)) as run:
        holder = run.holder
        assert holder is not None
        overview = status.overview(study)
    (process,) = overview.processes
    assert (process.holder, process.devices, process.unit_id) == (holder, 1.0, unit.id)
    lines = str(process_lines(Progress(study, overview, 0.0, Lock())))
    assert f"{holder.host} process {holder.pid}, 1 core: " in lines
    assert lines.endswith("Vanilla")
