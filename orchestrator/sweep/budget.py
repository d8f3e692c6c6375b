"""Limits the device-hours of an experiment (`trb submit --max-gpu-hours`).

A piece is the work of one commit: the training of a unit up to its next checkpoint, or a slice of
an evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from orchestrator.experiment.units import Unit, checkpoint_steps
from orchestrator.monitor.device_hours import device_of, devices_of, hours_spent
from orchestrator.planning.seconds import StudySeconds, study_seconds
from orchestrator.planning.steps import steps_left
from orchestrator.records.clock import BLENDED, PLAIN
from orchestrator.selection.confirmation import with_confirmation
from orchestrator.selection.study import Study
from orchestrator.sweep.schedule import TrainUnit, Work


@dataclass(frozen=True)
class Spending:
    """A study's clocks at one moment: device-hours `spent`, seconds of steps and responses."""

    study: Study
    spent: float
    seconds: StudySeconds

    def next_piece(self, work: Work) -> float:
        """Device-hours that the current piece of `work` is still expected to take; 0 while unknown."""
        if isinstance(work, TrainUnit):
            placement = work.unit.placement
            seconds = self._to_next_checkpoint(work.unit)
        else:
            placement = self.study.experiment.runtime.placement.of_evaluator
            seconds = self._of_a_slice()
        return seconds * devices_of(placement, device_of(self.study)) / 3600

    def _to_next_checkpoint(self, unit: Unit) -> float:
        run = self.study.reader(unit)
        logged, _ = run.last_metrics()
        for checkpoint in checkpoint_steps(unit, self.study.setup_of(unit)):
            if checkpoint > run.next_step:
                first = min(max(logged, run.next_step), checkpoint)
                blended = steps_left(unit, first)[0] - steps_left(unit, checkpoint)[0]
                plain = checkpoint - first - blended
                return self._seconds(unit, BLENDED, blended) + self._seconds(unit, PLAIN, plain)
        return 0.0

    def _of_a_slice(self) -> float:
        """Seconds of a slice of the dearest benchmark, since an evaluator chooses its slice itself."""
        responses = self.study.experiment.runtime.slice_responses
        dearest = 0.0
        for name, setup in self.study.experiment.setups.items():
            for unit in self.study.units_of(name)[:1]:
                for benchmark in setup.evaluation.benchmarks:
                    dearest = max(dearest, self._seconds(unit, benchmark, responses))
        return dearest

    def _seconds(self, unit: Unit, kind: str, amount: int) -> float:
        cost = self.seconds.of(unit, kind) if amount else None
        return 0.0 if cost is None else amount * cost.mid


def spending(study: Study) -> Spending:
    """Read the clocks in the run directories."""
    study = with_confirmation(study.snapshot())
    return Spending(study, hours_spent(study), study_seconds(study))


@dataclass
class HoursLimit:
    """At most `limit` device-hours; once it has refused a piece it stays closed.

    Earlier hours count, since the limit is for the experiment and not for one call of `trb submit`.
    """

    limit: float
    read: Callable[[], Spending]
    closed: bool = False

    def allows(self, work: Work, beside: Iterable[Work]) -> bool:
        """Whether `work` may do its next piece while the work `beside` it ends its own pieces."""
        now = self.read()
        own = now.next_piece(work)
        if isinstance(work, TrainUnit) and now.study.reader(work.unit).next_step >= work.unit.steps:
            return True  # only the end of the training is left to be recorded
        if not self.closed:
            expected = own
            for other in beside:
                expected += now.next_piece(other)
            self.closed = now.spent + expected > self.limit
        return not self.closed
