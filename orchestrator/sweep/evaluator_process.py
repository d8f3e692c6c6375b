"""Runs an evaluator (`trial.evaluation_loop`) in a process of the sweep.

Gives signs of life, and decides the response to a slice that cannot be sampled.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import ray

from orchestrator.liveness.pulse import Pulse, pulse_path
from orchestrator.records.log import RunLog
from orchestrator.records.writer import note_evaluation_error
from orchestrator.start_up import quick_imports
from orchestrator.sweep.failures import DISK_FULL, failure_of
from orchestrator.sweep.schedule import Evaluating
from orchestrator.sweep.spec import SAMPLED, Sweep

if TYPE_CHECKING:
    from orchestrator.selection.pending_slices import PendingSlice
    from orchestrator.trial.evaluation_loop import EvaluationFailed, EvaluationLoop


class EvaluatorProcess:
    """Samples slices; each step is one of them."""

    def __init__(self, sweep: Sweep, work: Evaluating):
        self._sweep = sweep
        self._name = sweep.name_of(work)
        self._pulse: Pulse | None = None
        self._evaluator: EvaluationLoop | None = None
        self._slices: Iterator[PendingSlice] | None = None

    def step(self) -> dict[str, Any]:
        """Return Tune's result; raise errors that another attempt in a new process may not meet."""
        # Imported here because the driver imports this file and needs neither torch nor
        # transformers.
        with quick_imports():
            from orchestrator.trial.evaluation_loop import EvaluationFailed, study_evaluator

        sweep = self._sweep
        if self._evaluator is None:
            self._pulse = Pulse(
                pulse_path(sweep.study.runs, self._name), ray.get_runtime_context().get_node_id()
            )
            self._evaluator = study_evaluator(sweep.study, sweep.pairs, sweep.attempts)
        try:
            self._slices = self._slices or self._evaluator.slices()
            sampled = next(self._slices, None)
        except EvaluationFailed as failed:
            self._slices = None
            if self._note(failed):
                self.end("")
                raise
            return {SAMPLED: False}
        except BaseException:
            self.end("")
            raise
        if sampled is None:
            self.end("")
            return {"done": True}
        return {SAMPLED: True}

    def end(self, last_line: str) -> None:
        """Release the models and stop the pulse; an evaluator has no log for `last_line`."""
        if self._evaluator is not None:
            self._evaluator.close()
        if self._pulse is not None:
            self._pulse.stop()
        self._evaluator = self._pulse = self._slices = None

    def _note(self, failed: EvaluationFailed) -> bool:
        """Write the failure to the unit's log; return whether it should be raised."""
        cause = failed.__cause__
        assert isinstance(cause, Exception)
        failure = failure_of(cause)
        wanted = failed.wanted
        run = self._sweep.study.reader(wanted.unit_id)
        story = "".join(traceback.format_exception(cause)).rstrip()
        attempt = failed.claim.attempt
        attempts = self._sweep.attempts
        RunLog(run.path).line(
            f"evaluating step {wanted.sampling.step} failed: {failure.text}\n{story}"
        )
        if failure.kind == DISK_FULL:  # no fault of the checkpoint, and no disk for a note
            failed.claim.release(remove=True)
            return True
        # The error stands on disk before the claim goes: no evaluator takes the slice between them.
        if not failure.passes or attempt >= attempts:
            tried = f" (attempt {attempt} of {attempts})" if failure.passes else ""
            note_evaluation_error(
                run, wanted.evaluation_id, wanted.sampling.step, failure.text + tried, story
            )
            failed.claim.release(remove=True)
        return failure.passes
