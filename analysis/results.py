"""The results folder of an experiment: table in three formats and the trajectory plot of each setup."""

from __future__ import annotations

import os
from pathlib import Path

from analysis import load, table_formats
from orchestrator.config import Experiment
from orchestrator.grid import Unit


def write_results(experiment: Experiment, units: list[Unit], runs: Path) -> Path:
    """Write everything to `runs/results/<experiment>/` and return that folder."""
    folder = runs / "results" / experiment.name
    folder.mkdir(parents=True, exist_ok=True)
    results = load.results_table(experiment, units, runs)
    for suffix in ("md", "tex", "csv"):
        _replace(folder / f"table.{suffix}", table_formats.FORMATS[suffix](results))
    write_trajectories(experiment, units, runs, folder)
    return folder


def write_trajectories(experiment: Experiment, units: list[Unit], runs: Path, folder: Path) -> list[Path]:
    """`trajectories-<setup>.png` and `.pdf` for each setup that has scores."""
    from analysis import figures  # matplotlib takes a second to import

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, setup in experiment.setups.items():
        curves = load.trajectories(experiment, [unit for unit in units if unit.setup == name], runs)
        if any(curves.values()):
            figure = figures.draw_trajectories(curves, setup.title)
            written += figures.save(figure, folder, f"trajectories-{name}")
    return written


def _replace(path: Path, text: str) -> None:
    scratch = path.with_name(f".{path.name}.tmp")
    scratch.write_text(text, encoding="utf-8")
    os.replace(scratch, path)
