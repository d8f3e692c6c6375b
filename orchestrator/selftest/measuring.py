"""The tasks of `trb calibrate`'s processes, and the file of their measurements. Loads no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.engines.interface import Job
from orchestrator.planning.calibrated import CalibrationRow, Card, read_calibrations, write_rows
from orchestrator.planning.costs import SetupCosts
from orchestrator.policy.spec import Behavior
from orchestrator.selftest.bench import Bench


@dataclass(frozen=True)
class Measuring:
    """Plain data for the process of one phase, which may measure for `seconds`.

    The planned `costs` give the length of contexts and the number of responses that fit.
    `behaviors` are the ones that ask the teacher, one for each method. Rows of the `card` go to the
    file `path`.
    """

    bench: Bench
    costs: SetupCosts
    behaviors: tuple[Behavior, ...]
    card: Card
    path: Path
    day: str
    seconds: float

    @property
    def job(self) -> Job:
        """The job for which a trial opens its engines."""
        return replace(self.bench.job(), takes_turns=self.bench.runtime.placement.takes_turns)


def add_row(path: Path, card: Card, row: CalibrationRow, before: Sequence[CalibrationRow]) -> None:
    """Add a row to a card's file.

    Earlier rows of its kind stay only if this process wrote them (`before`): a new calibration
    replaces an old one.
    """
    kept: list[CalibrationRow] = []
    for calibration in read_calibrations(path.parent.parent):
        if calibration.card != card:
            continue
        for earlier in calibration.rows:
            if earlier in before or not _same_kind(earlier, row):
                kept.append(earlier)
    write_rows(path, card, [*kept, row])


def _same_kind(one: CalibrationRow, other: CalibrationRow) -> bool:
    """Whether two rows measured the same thing."""
    names = ("key", "sampler", "trainer", "shapes")
    return all(getattr(one, name) == getattr(other, name) for name in names)
