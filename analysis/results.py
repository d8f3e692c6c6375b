"""The results folder of an experiment: the table in all formats, the trajectories, and all figures when asked for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from analysis import table_formats
from analysis.table import Table
from orchestrator.config import Experiment
from orchestrator.grid import Unit

if TYPE_CHECKING:
    from analysis.pictures import Picture


@dataclass(frozen=True)
class Written:
    """Files of figures, and a line for each figure that could not be drawn."""

    paths: list[Path]
    missing: list[str]


def write_results(experiment: Experiment, units: list[Unit], runs: Path, table: Table) -> Path:
    """Write table and trajectories to `runs/results/<experiment>/` and return that folder."""
    from analysis.pictures import trajectory_pictures  # matplotlib takes a second to import

    folder = runs / "results" / experiment.name
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, text in table_formats.FORMATS.items():
        _replace(folder / f"table.{suffix}", text(table))
    _save(trajectory_pictures(experiment, units, runs), folder)
    return folder


def write_figures(
    experiment: Experiment, units: list[Unit], runs: Path, folder: Path, width: float | None = None
) -> Written:
    """`<figure>-<setup>.png` and `.pdf` of all figures that the run directories can fill, `width` inches wide."""
    from analysis.figures.style import WIDTH
    from analysis.pictures import pictures

    return _save(pictures(experiment, units, runs, width or WIDTH), folder)


def _save(drawn: Iterable[Picture], folder: Path) -> Written:
    from analysis.figures import output

    written = Written([], [])
    for picture in drawn:
        if picture.figure is None:
            written.missing.append(f"{picture.name}: {picture.missing}")
        else:
            folder.mkdir(parents=True, exist_ok=True)
            written.paths.extend(output.save(picture.figure, folder, picture.name))
    return written


def _replace(path: Path, text: str) -> None:
    scratch = path.with_name(f".{path.name}.tmp")
    scratch.write_text(text, encoding="utf-8")
    os.replace(scratch, path)
