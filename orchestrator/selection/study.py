"""The noun for "this experiment over these run directories", with look-ups that many rooms need."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.config import Experiment, Setup
from orchestrator.experiment import evaluation_protocol
from orchestrator.experiment.evaluation_protocol import FRESH
from orchestrator.experiment.units import Family, Unit, families, setup_of
from orchestrator.records.rundir import RunReader
from orchestrator.records.snapshot import RunSnapshot


@dataclass(frozen=True)
class Invocation:
    """The words of a command line that name a study: its file, its overrides, shared options."""

    words: tuple[str, ...] = ()

    def command(self, name: str, *more: str) -> str:
        """`trb NAME` for this study, with further overrides or options, quoted for a shell.

        An override of `more` takes the place of a typed one of the same key.
        """
        keys = {word.partition("=")[0] for word in more if "=" in word}
        kept = [word for word in self.words if word.partition("=")[0] not in keys]
        return shlex.join(["trb", name, *kept, *more])


@dataclass(frozen=True)
class Halved:
    """How far a unit of a halving search trains (`selection.halving`).

    Up to step `goal` by now; `passed` is the last rung that let it go on, 0 before the first, and
    `expected` the step at which it will end, as far as one can say. A `stopped` unit has reached its
    last goal.
    """

    goal: int
    passed: int
    expected: int
    stopped: bool = False


@dataclass(frozen=True)
class Study:
    """An experiment, its units and the folder that holds their run directories.

    `units` are all units of the experiment or some of them, in the order of the grid, and after
    them the confirming units (`selection.confirmation`). `confirming` maps the id of each confirming
    unit to the step that it confirms, and `halved` maps units of halving searches to how far they go
    by now; `confirmation.with_confirmation` finds both.

    A study keeps nothing of a run directory: every reader sees the current files. Only the readers
    of a `snapshot` go on with the files of their first look.
    """

    experiment: Experiment
    units: Sequence[Unit]
    runs: Path
    confirming: Mapping[str, int] = field(default_factory=dict)
    halved: Mapping[str, Halved] = field(default_factory=dict)
    invocation: Invocation = Invocation()
    _snapshots: dict[str, RunSnapshot] | None = field(default=None, repr=False, compare=False)
    _ids: dict[tuple[str, int], dict[str, str]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def reader(self, unit: Unit | str) -> RunReader:
        """The run directory of a unit, which may be given by its id."""
        unit_id = unit if isinstance(unit, str) else unit.id
        if self._snapshots is None:
            return RunReader(self.runs, unit_id)
        if unit_id not in self._snapshots:
            self._snapshots[unit_id] = RunSnapshot(self.runs, unit_id)
        return self._snapshots[unit_id]

    def snapshot(self) -> Study:
        """The same study for one look, which reads no file twice and starts from cached results."""
        return self if self._snapshots is not None else replace(self, _snapshots={})

    def remember(self) -> None:
        """Keep the results of a snapshot's readers for the next look, by any process."""
        for run in (self._snapshots or {}).values():
            run.remember()

    def setup_of(self, unit: Unit) -> Setup:
        """The setup that a unit belongs to, at the learning rate of the unit."""
        return setup_of(unit, self.experiment)

    def evaluation_ids(self, setup: str, repetition: int = 0) -> dict[str, str]:
        """Benchmark key → evaluation id of a setup, in the order of the table's columns.

        `repetition` 0 are the samples that select a checkpoint; `FRESH` samples take no part in
        selection. The ids are digests of the whole setup, so they are computed once.
        """
        if (setup, repetition) not in self._ids:
            self._ids[setup, repetition] = evaluation_protocol.repeated_evaluation_ids(
                self.experiment.setups[setup], repetition
            )
        return self._ids[setup, repetition]

    def fresh_evaluation_ids(self, setup: str) -> dict[str, str]:
        """Benchmark key → id of the same evaluation on samples that take no part in selection."""
        return self.evaluation_ids(setup, FRESH)

    def units_of(self, setup: str) -> list[Unit]:
        """The units of one setup."""
        return [unit for unit in self.units if unit.setup == setup]

    def families(self) -> list[Family]:
        """The settings of each setup and method, and of the untrained student (`units.families`).

        Confirming units belong to no family, since they take no part in the choice.
        """
        return families(unit for unit in self.units if unit.id not in self.confirming)

    def exploring(self) -> Study:
        """The same study without its confirming units and their supervised stages."""
        if not self.confirming:
            return self
        # A supervised stage may serve exploring and confirming units alike; then it stays.
        stages_of_exploring: set[str] = set()
        stages_of_confirming: set[str] = set()
        for unit in self.units:
            stages = stages_of_confirming if unit.id in self.confirming else stages_of_exploring
            stages.update(unit.depends_on)
        left_out = (stages_of_confirming - stages_of_exploring) | self.confirming.keys()
        units = [unit for unit in self.units if unit.id not in left_out]
        return replace(self, units=units, confirming={})

    def is_stopped(self, unit: Unit) -> bool:
        """Whether a halving search stopped the unit."""
        return unit.id in self.halved and self.halved[unit.id].stopped

    def is_trained(self, unit: Unit) -> bool:
        """Whether no training is left: all of its steps are taken, or its search stopped it."""
        return self.is_stopped(unit) or self.reader(unit).trained

    def as_expected(self, unit: Unit) -> Unit:
        """The unit with the steps that it is expected to take."""
        halved = self.halved.get(unit.id)
        return unit if halved is None else replace(unit, steps=halved.expected)

    def with_units(self, units: Sequence[Unit]) -> Study:
        """The same experiment and folder with other units."""
        return replace(self, units=units)
