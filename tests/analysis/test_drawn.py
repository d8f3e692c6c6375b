"""Figures that are kept: drawn once as long as nothing changes, and never shown where something has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest

from analysis.figures import drawn, output
from analysis.figures.catalog import pictures
from analysis.figures.picture import Picture
from orchestrator.selection.study import Study
from tests.fake_runs import quickstart, units_of, write_run


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """One run with scores."""
    loaded = quickstart()
    write_run(tmp_path, loaded[0], units_of(loaded[1], "vanilla")[0], {20: [1, 2]})
    return Study(*loaded, tmp_path)


def trajectories(study: Study) -> Picture:
    return next(picture for picture in pictures(study) if picture.name.startswith("trajectories"))


def no_drawing(*_: object) -> bytes:
    raise AssertionError("it was drawn again")


def test_what_is_kept_is_what_would_be_drawn(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = trajectories(study).figure
    assert figure is not None
    fresh = output.to_bytes(figure, "svg")
    assert drawn.svg(study, trajectories(study)) == fresh
    monkeypatch.setattr(drawn, "to_bytes", no_drawing)
    assert drawn.svg(study, trajectories(study)) == fresh
    with pytest.raises(AssertionError, match="drawn again"):
        drawn.svg(study, replace(trajectories(study), width=3.6))


def test_other_numbers_code_or_settings_are_drawn_anew(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    before = drawn.svg(study, trajectories(study))
    loaded = study.experiment, list(study.units)
    write_run(study.runs, loaded[0], units_of(loaded[1], "veto")[0], {20: [2, 2]})
    after = drawn.svg(study, trajectories(study))
    assert after != before
    monkeypatch.setattr(drawn, "to_bytes", no_drawing)
    assert drawn.svg(study, trajectories(study)) == after
    drawn._made_with.cache_clear()
    with matplotlib.rc_context({"xtick.major.size": 9.0}), pytest.raises(AssertionError, match="drawn again"):
        drawn.svg(study, trajectories(study))
    drawn._made_with.cache_clear()


@pytest.mark.parametrize("damage", [b"", b"\n", b"\xff\xfe", b"nothing of ours\n"])
def test_a_damaged_file_is_drawn_over(study: Study, damage: bytes) -> None:
    fresh = drawn.svg(study, trajectories(study))
    (path,) = (study.runs / ".index" / "figures").rglob("*.svg")
    path.write_bytes(damage)
    assert drawn.svg(study, trajectories(study)) == fresh
    path.write_bytes(path.read_bytes().replace(b"<path", b"<nath", 1))
    assert drawn.svg(study, trajectories(study)) == fresh
