"""Rows of units: what they say, how they fit, and which of them a search finds."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from orchestrator.monitor import status
from orchestrator.records.writer import RunWriter
from orchestrator.sheet import Sheet
from orchestrator.view.processes import working_processes
from orchestrator.view.units import HEADINGS, LEFT, LOSS, STATE, STEPS, UNIT, fitted, unit_rows
from tests.fake_runs import units_of
from tests.view.sweeps import small_sweep


def test_a_row_has_state_steps_and_score(tmp_path: Path) -> None:
    study = small_sweep(tmp_path)
    rows = {row.status.method: row for row in unit_rows(status.overview(study))}
    cells = rows["trust_region"].cells
    assert cells[UNIT].text == "TRB epsilon0=0.05 K=12"
    assert (cells[STATE].text, cells[STEPS].text) == ("interrupted", "40/60")
    assert cells[LOSS].text == "0.0250"
    assert rows[None].cells[STEPS].text == ""


def test_narrow_screens_have_fewer_columns_and_all_names(tmp_path: Path) -> None:
    rows = unit_rows(status.overview(small_sweep(tmp_path)))
    wide, _ = fitted(rows, 120, 2)
    assert wide == list(HEADINGS)
    for width in range(60, 120, 5):
        headings, cells = fitted(rows, width, 2)
        assert sum(Sheet(headings, list(cells.values())).widths()) + 2 * len(headings) <= width
        assert headings[0] == UNIT
    left_out = {}
    for width in (70, 60):
        left_out[width] = set(HEADINGS) - set(fitted(rows, width, 2)[0])
    assert left_out == {70: {LOSS}, 60: {LOSS, LEFT}}


def test_a_search_finds_names_ids_and_states(tmp_path: Path) -> None:
    rows = unit_rows(status.overview(small_sweep(tmp_path)))
    found = {words: {row.status.method for row in rows if row.matches(words)} for words in WORDS}
    assert found == WORDS


WORDS = {
    "": {None, "vanilla", "trust_region"},
    "trb k=12": {"trust_region"},
    "VANILLA": {"vanilla"},
    "done": {None},
    "interrupted vanilla": {"vanilla"},
    "nothing of the kind": set(),
}


def test_the_process_that_trains_a_unit_is_named(tmp_path: Path) -> None:
    study = small_sweep(tmp_path)
    assert working_processes(study, status.overview(study)) == []
    unit = units_of(study.units, "vanilla")[0]
    with closing(RunWriter(tmp_path, unit.id)) as run:
        holder = run.holder
        assert holder is not None
        (process,) = working_processes(study, status.overview(study))
    assert (process.pid, process.host, process.devices) == (holder.pid, holder.host, 1.0)
    assert process.work.endswith("Vanilla")
