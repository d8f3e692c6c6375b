"""The results folder of an experiment: table in three formats and the figures."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from analysis import load, table_formats
from orchestrator.config import Experiment
from orchestrator.grid import Unit


@dataclass(frozen=True)
class Written:
    """Files of figures, and a line for each figure that could not be drawn."""

    paths: list[Path]
    missing: list[str]


def write_results(experiment: Experiment, units: list[Unit], runs: Path) -> Path:
    """Write everything to `runs/results/<experiment>/` and return that folder."""
    folder = runs / "results" / experiment.name
    folder.mkdir(parents=True, exist_ok=True)
    results = load.results_table(experiment, units, runs)
    for suffix in ("md", "tex", "csv"):
        _replace(folder / f"table.{suffix}", table_formats.FORMATS[suffix](results))
    write_figures(experiment, units, runs, folder)
    return folder


def write_figures(experiment: Experiment, units: list[Unit], runs: Path, folder: Path) -> Written:
    """`<figure>-<setup>.png` and `.pdf` of all figures that the run directories can fill."""
    from analysis.figures import output  # matplotlib takes a second to import
    from analysis.pictures import pictures

    written = Written([], [])
    for picture in pictures(experiment, units, runs):
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
