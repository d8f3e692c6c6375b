"""The thread that reads: what it hands on, and how much of a core it may take."""

from __future__ import annotations

import threading
from pathlib import Path

from analysis.table.model import Table
from orchestrator.view.reading import Progress, SweepReader, pause_after
from tests.fake_runs import units_of
from tests.view.sweeps import small_sweep, write_unit


class Heard:
    """What a reader handed on."""

    def __init__(self, runs: Path):
        self.progress: list[Progress] = []
        self.tables: list[Table] = []
        self.problems: list[str] = []
        self.reader = SweepReader(small_sweep(runs), self.progress.append, self._take)

    def _take(self, table: Table | None, problem: str) -> None:
        self.tables += [table] if table is not None else []
        self.problems += [problem] if problem else []


def test_intervals_follow_the_first_scores(tmp_path: Path) -> None:
    heard = Heard(tmp_path)
    assert heard.reader.read() is False
    assert [table.facts is None for table in heard.tables] == [True, False]
    assert len(heard.progress) == 1


def test_a_table_is_made_again_only_after_a_change(tmp_path: Path) -> None:
    heard = Heard(tmp_path)
    heard.reader.read()
    heard.reader.read()
    assert (len(heard.progress), len(heard.tables)) == (2, 2)
    study = heard.reader.study
    unit = units_of(study.units, "vanilla")[0]
    write_unit(study, unit, {60: (4, 4, 4, 4)}, 60, done=True)
    heard.reader.read()
    vanilla = [row for row in heard.tables[-1].rows if row.method == "vanilla"]
    assert (len(heard.tables), vanilla[0].cells[0].text) == (3, "100.0")


def test_a_damaged_unit_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    heard = Heard(tmp_path)
    unit = units_of(heard.reader.study.units, "vanilla")[0]
    (tmp_path / unit.id / "state.json").write_text("{}", encoding="utf-8")
    heard.reader.read()
    assert any(unit.id in problem for problem in heard.problems)
    assert "damaged" in {s.state for s in heard.progress[0].overview.units}


def test_reading_ends_when_asked(tmp_path: Path) -> None:
    heard = Heard(tmp_path)
    thread = threading.Thread(target=heard.reader.run)
    thread.start()
    heard.reader.end()
    thread.join(60)
    assert not thread.is_alive()


def test_pauses_grow_with_the_time_that_reading_takes() -> None:
    for driven, share in ((True, 0.1), (False, 0.015)):
        for spent in (0.0, 0.01, 0.4, 3.0):
            pause = pause_after(spent, driven)
            assert pause >= 1.0
            assert spent <= share * (spent + pause) * 1.001
