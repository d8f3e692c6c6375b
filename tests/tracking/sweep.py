"""A made-up sweep and the tracker that shows it: units are written and shown a few steps at a time."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from wandb.util import get_core_path

from orchestrator.config import Experiment
from orchestrator.experiment.units import Unit
from orchestrator.monitor import status
from orchestrator.records.rundir import RunReader
from orchestrator.selection.study import Study
from orchestrator.tracking.projection import Projection, Results, TrackedTable, project, results_id
from orchestrator.tracking.tracker import projections
from orchestrator.tracking.wandb_tracker import WandbTracker, mirror_folder
from tests.fake_runs import Scores, metrics, quickstart, units_of, write_run

KEY = "0123456789abcdef" * 2 + "01234567"  # of a user of W&B


@dataclass
class Sweep:
    """The quickstart, or another experiment, over a runs folder."""

    runs: Path
    experiment: Experiment = field(default_factory=lambda: quickstart()[0])
    units: list[Unit] = field(default_factory=lambda: quickstart()[1])

    @cached_property
    def study(self) -> Study:
        return Study(self.experiment, self.units, self.runs)

    @property
    def folder(self) -> Path:
        """The folder of W&B's files."""
        return mirror_folder(self.runs)

    @property
    def results_id(self) -> str:
        return results_id(self.experiment)

    def unit(self, method: str = "vanilla", position: int = 0) -> Unit:
        return units_of(self.units, method)[position]

    def write(
        self, unit: Unit, steps: int, scores: Scores | None = None, done: bool = False
    ) -> None:
        write_run(self.runs, self.experiment, unit, scores or {}, steps, done)

    def projection(self, unit: Unit, state: str | None = None, goes_on: bool = False) -> Projection:
        """A unit in a state, or in the one that its directory shows after a sweep."""
        run = RunReader(self.runs, unit.id)
        state = state or ("done" if run.trained else "interrupted")
        overview = status.overview(self.study)
        (known,) = (each for each in overview.units if each.id == unit.id)
        family = next(
            (each for each in overview.families if each.key == (known.setup, known.family)), None
        )
        return project(self.study, unit, replace(known, state=state), family, goes_on)

    # --- W&B ---

    def send(
        self, unit: Unit, mode: str = "offline", state: str | None = None, goes_on: bool = False
    ) -> None:
        """Send a unit, stale or not."""
        shown = self.projection(unit, state, goes_on)
        WandbTracker(self.study, mode).send(shown)

    def send_results(
        self, tables: dict[str, TrackedTable], notes: list[str], mode: str, **more: Any
    ) -> None:
        results = Results(self.experiment, tables, notes, **more)
        WandbTracker(self.study, mode).send_results(results)

    def stale_projections(self, mode: str = "offline", goes_on: bool = False) -> list[Projection]:
        """Projections that W&B shows out of date."""
        tracker, stale = WandbTracker(self.study, mode), []
        for shown in projections(self.study, status.overview(self.study), goes_on):
            if tracker.is_stale(shown):
                stale.append(shown)
        return stale

    def stale(self, mode: str = "offline") -> list[Unit]:
        """Units that W&B shows out of date after the sweep."""
        return [shown.unit for shown in self.stale_projections(mode)]

    def forget(self) -> None:
        """Remove the notes of what W&B was given."""
        for note in self.folder.glob("*.json"):
            note.unlink()

    def fragments(self, unit: Unit) -> list[Path]:
        """Offline files of a unit."""
        return sorted(self.folder.rglob(f"run-{unit.id}.wandb"))

    def history(self, unit: Unit) -> list[dict[str, Any]]:
        """Rows that W&B would receive from all offline files of a unit."""
        rows = []
        for fragment in self.fragments(unit):
            for record in records(fragment):
                if record["type"] == "history":
                    rows.append(own(record["history"]["item"]))
        return rows


def own(row: dict[str, Any]) -> dict[str, Any]:
    """A row of W&B's with its step, and without W&B's other own fields."""
    names = [name for name in row if not name.startswith("_")]
    return {"step": row["_step"]} | {name: row[name] for name in names}


def records(fragment: Path) -> list[dict[str, Any]]:
    """All records of an offline file, which is closed once the run is noted as given."""
    # `wandb leet inspect --json` starts the same after importing for half a second.
    command = [get_core_path(), "leet", "inspect", "--no-observability", "--json", "--run-file"]
    command += [str(fragment), str(fragment.parent.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert "exit" in {record["type"] for record in found}
    return found


def train_rows(steps: int) -> list[dict[str, Any]]:
    """The rows of a run that was written with so many steps."""
    rows = []
    for row in map(metrics, range(steps)):
        rows.append({"step": row["step"], "train/loss": row["loss"], "train/tokens": row["tokens"]})
    return rows


def scores(short: float, long: float) -> dict[str, float]:
    """The scores of a checkpoint in its row."""
    each = {"eval/arithmetic_short": short, "eval/arithmetic_long": long}
    return each | {"eval/mean": (short + long) / 2}
