"""The results folder of an experiment: the table in all formats, its trials, and its figures.

`orchestrator.selection.results_folder` says which folder that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.facts.curves import WantedSetting
from analysis.facts.facts import facts
from analysis.table import formats
from analysis.table.model import Table
from orchestrator.records.files import write_atomically
from orchestrator.selection.results_folder import claim
from orchestrator.selection.study import Study

if TYPE_CHECKING:
    from analysis.figures.picture import Picture


@dataclass(frozen=True)
class Written:
    """Files of figures, and a line for each figure that could not be drawn."""

    paths: list[Path]
    missing: list[str]


def write_results(study: Study, table: Table) -> Path:
    """Write table, trials and trajectories to the experiment's results folder, which is returned."""
    from analysis import frames  # pandas takes half a second to import
    from analysis.figures.catalog import trajectory_pictures  # matplotlib takes a second to import

    study = study.snapshot()
    folder = claim(study)
    for suffix, text in formats.FORMATS.items():
        write_atomically(folder / f"table.{suffix}", text(table))
    write_atomically(folder / "trials.csv", frames.trials_csv(frames.trials(study)))
    assert table.facts is not None, "the table of a study rests on facts"
    _save(trajectory_pictures(table.facts), lambda: folder)
    return folder


def tracked_tables(table: Table) -> dict[str, tuple[list[Any], list[Any]]]:
    """Headings and rows for a tracker: `results` as printed, `scores` with a row for each cell.

    `confirmed` has a row for each cell of the confirmed checkpoints, and is missing before any is
    confirmed; `leaderboard` has a row for each method with its difference to vanilla. A table
    without any score gives no tables.
    """
    from analysis import frames

    scores = frames.evidence(table)
    if scores.dropna(subset=[table.metric.column]).empty:
        return {}
    shown = {"results": frames.as_printed(table), "scores": scores}
    shown["leaderboard"] = frames.leaderboard(table)
    confirmed = frames.confirmed(table)
    if not confirmed.empty:
        shown["confirmed"] = confirmed
    return {name: frames.plain_rows(frame) for name, frame in shown.items()}


def write_figures(
    study: Study,
    folder: Path | None,
    width: float | None = None,
    wanted: Sequence[WantedSetting] = (),
) -> Written:
    """`<figure>-<setup>.png` and `.pdf` of all figures that the run directories can fill.

    They are `width` inches wide. Without a `folder` they go to the experiment's results. The
    trajectories show the `wanted` settings of a method instead of its best one.
    """
    from analysis.figures.catalog import MAPPED, pictures
    from analysis.figures.panels import WIDTH

    study = study.snapshot()
    depth = "intervals" if len(study.experiment.setups) >= MAPPED else "scores"
    drawn = pictures(facts(study, depth=depth), width or WIDTH, wanted)
    written = _save(drawn, lambda: folder or claim(study))
    study.remember()
    return written


def _save(drawn: Iterable[Picture], where: Callable[[], Path]) -> Written:
    """Write the figures that could be drawn.

    `where` gives the folder, and is called only once a figure is drawn: it may claim a results
    folder, which nothing should do for no figure.
    """
    from analysis.figures.picture import save

    paths, missing, folder = [], [], None
    for picture in drawn:
        if picture.figure is None:
            missing.append(f"{picture.name}: {picture.missing}")
            continue
        if folder is None:
            folder = where()
            folder.mkdir(parents=True, exist_ok=True)
        paths += save(picture.figure, folder, picture.name)
    return Written(paths, missing)
