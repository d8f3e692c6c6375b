"""Limits the device-hours of an experiment (`trb submit --max-gpu-hours`): may another piece of
work begin?

A piece is the work of one commit: the training of a unit up to its next checkpoint, or a slice of
an evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from orchestrator.experiment.units import Unit, checkpoint_steps
from orchestrator.monitor.device_hours import device_of, devices_of, hours_spent
from orchestrator.planning.seconds import StudySeconds, study_seconds
from orchestrator.planning.steps import teacher_online_steps
from orchestrator.records.clock import BLENDED, PLAIN
from orchestrator.selection.confirmation import with_confirmation
from orchestrator.selection.study import Study
from orchestrator.sweep.schedule import TrainUnit, Work


@dataclass(frozen=True)
class Spending:
    """A study's clocks at one moment: device-hours `spent`, and the seconds of steps and responses."""

    study: Study
    spent: float
    seconds: StudySeconds

    def next_piece(self, work: Work) -> float:
        """Device-hours that the current piece of `work` is still expected to take; 0 while unknown."""
        if isinstance(work, TrainUnit):
            placement, seconds = work.unit.placement, self._to_next_checkpoint(work.unit)
        else:
            placement, seconds = (
                self.study.experiment.runtime.placement.of_evaluator,
                self._of_a_slice(),
            )
        return seconds * devices_of(placement, device_of(self.study)) / 3600

    def _to_next_checkpoint(self, unit: Unit) -> float:
        run = self.study.reader(unit)
        logged, _ = run.last_metrics()
        later = [
            step
            for step in checkpoint_steps(unit, self.study.setup_of(unit))
            if step > run.next_step
        ]
        if not later:
            return 0.0
        steps = range(max(logged, run.next_step), later[0])
        blended = len(range(steps.start, min(steps.stop, teacher_online_steps(unit))))
        return self._seconds(unit, BLENDED, blended) + self._seconds(
            unit, PLAIN, len(steps) - blended
        )

    def _of_a_slice(self) -> float:
        """Seconds of a slice of the dearest benchmark, since an evaluator chooses its slice itself."""
        responses, dearest = self.study.experiment.runtime.slice_responses, 0.0
        for name, setup in self.study.experiment.setups.items():
            for unit in self.study.units_of(name)[:1]:
                costs = [
                    self._seconds(unit, benchmark, responses)
                    for benchmark in setup.evaluation.benchmarks
                ]
                dearest = max([dearest, *costs])
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
    """At most `limit` device-hours; `look` reads the hours spent. Once it has refused a piece it
    stays closed.

    Earlier hours count: the limit is the experiment's, not that of one call of `trb submit`.
    """

    limit: float
    look: Callable[[], Spending]
    closed: bool = False

    def allows(self, work: Work, beside: Iterable[Work]) -> bool:
        """Whether `work` may do its next piece while the work `beside` it ends its own pieces."""
        now = self.look()
        own = now.next_piece(work)
        if isinstance(work, TrainUnit) and now.study.reader(work.unit).next_step >= work.unit.steps:
            return True  # only the end of the training is left to be recorded
        if not self.closed:
            expected = own + sum(now.next_piece(other) for other in beside)
            self.closed = now.spent + expected > self.limit
        return not self.closed
