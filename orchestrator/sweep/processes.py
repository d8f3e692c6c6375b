"""Trains a unit in a process of the sweep, and the `Sweep` that all processes share."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import tune

from orchestrator.engines.device import nvidia_smi
from orchestrator.engines.interface import ModelFolder
from orchestrator.engines.memory import MOST_TOKENS
from orchestrator.errors import LeaseHeld
from orchestrator.liveness.deaths import Head, end_without
from orchestrator.liveness.heartbeat import Pulse, loading, pulse_path
from orchestrator.liveness.leases import LEASE_PATIENCE_S
from orchestrator.liveness.processes import described, place
from orchestrator.models.locate import on_this_machine
from orchestrator.records.log import LOADING, LogHandler, RunLog
from orchestrator.records.machines import note_machine
from orchestrator.records.provenance import provenance
from orchestrator.records.writer import RunWriter, note_evaluation_error
from orchestrator.selection.confirmation import with_confirmation
from orchestrator.selection.study import Study
from orchestrator.start_up import quick_imports
from orchestrator.sweep.failures import DISK_FULL, OUT_OF_MEMORY, Failure, failure_of, full_disk
from orchestrator.sweep.nodes import Requirement, lacking
from orchestrator.sweep.prepare import worker_spec
from orchestrator.sweep.schedule import Evaluating, TrainUnit, Work
from orchestrator.workers.spec import Pairs, WorkerSpec, resolved

if TYPE_CHECKING:
    from orchestrator.selection.pending_slices import PendingSlice
    from orchestrator.trial.evaluation_loop import EvaluationFailed, EvaluationLoop
    from orchestrator.workers.roles import Roles


STOPPED = "stopped"  # the last line of an attempt that the sweep or the user ended


class TrainingProcess:
    """One attempt at a unit; each step runs it to its next commit."""

    def __init__(self, sweep: Sweep, work: TrainUnit):
        self._sweep = sweep
        self._unit = work.unit
        self._run: RunWriter | None = None
        self._roles: Roles | None = None
        self._pulse: Pulse | None = None
        self._progress: Iterator[int] | None = None
        self._attempt = 1
        self._warnings: logging.Handler = logging.NullHandler()

    def step(self) -> dict[str, Any]:
        """Return Tune's result; raise errors that another attempt in a new process may not meet."""
        try:
            self._progress = self._progress or self._begin()
            committed = next(self._progress, None)
        except Exception as error:
            if self._fail(failure_of(error)):
                raise
            return {"done": True, "failed": True}
        except BaseException:
            self.end(STOPPED)
            raise
        if committed is None:
            self.end("trained")
            return {"done": True}
        return {"unit_step": committed}

    def end(self, last_line: str, error: str | None = None) -> None:
        """Release the roles, the run directory and the pulse; `last_line` goes to the log."""
        roles, run, pulse = self._roles, self._run, self._pulse
        # Forgotten before they are closed, so that a failure below does not close them twice.
        self._roles = self._run = self._progress = self._pulse = None
        try:
            if roles is not None:
                roles.close()
        finally:
            if pulse is not None:
                pulse.stop()
            if run is not None:
                logging.getLogger().removeHandler(self._warnings)
                run.log.line(last_line)
                if last_line == STOPPED:
                    run.log.give_back()
                if error is not None:
                    with suppress(OSError):  # a full disk takes no note, and the log has it or not
                        run.fail(error, traceback.format_exc())
                run.close()

    def _begin(self) -> Iterator[int]:
        study, unit = self._sweep.study, self._unit
        spec = worker_spec(unit, study.experiment, study.runs, self._sweep.pairs[unit.setup])
        self._run = _open(study.runs, unit.id)
        if self._run.trained:  # by the process of another sweep, whose lease this one waited for
            return iter(())
        self._pulse = self._sweep.pulse(unit.id)
        self._open_log(self._run, spec)
        self._run.log.enter(LOADING)
        # Imported here because the driver imports this file and needs neither torch nor
        # transformers.
        with loading(), quick_imports():
            from orchestrator.trial.training_loop import run_unit
            from orchestrator.workers.actors import start_roles

        self._run.describe(resolved(spec), provenance, spec.trained_from)
        spec = leaner(spec, self._run.log.out_of_memory)
        self._roles = start_roles(spec)
        return run_unit(spec, self._run, self._roles)

    def _open_log(self, run: RunWriter, spec: WorkerSpec) -> None:
        self._attempt = run.log.begin(self._sweep.name, self._sweep.attempts)
        where = f"{described(place())}, placement {spec.unit.placement.mode}"
        run.log.line(f"attempt {self._attempt} of {self._sweep.attempts}: {where}")
        self._warnings = LogHandler(run.log)
        logging.captureWarnings(True)
        logging.getLogger().addHandler(self._warnings)

    def _fail(self, failure: Failure) -> bool:
        """End the attempt; return whether its error should be raised."""
        story = f"{failure.text}\n{traceback.format_exc().rstrip()}"
        attempt = f"attempt {self._attempt} of {self._sweep.attempts}"
        if failure.kind == OUT_OF_MEMORY and self._run is not None:
            self._run.log.note_out_of_memory()
        if failure.passes and self._attempt < self._sweep.attempts:
            self.end(f"{attempt} failed and is made again: {story}")
            return True
        tried = f" ({attempt})" if failure.passes else ""
        self.end(f"failed: {story}", failure.text + tried)
        # After the last attempt, too: the process may not be fit for another unit. `WorkTrainable`
        # turns the error of a full disk into the end of the sweep.
        return failure.passes or failure.kind == DISK_FULL


def leaner(spec: WorkerSpec, out_of_memory: int) -> WorkerSpec:
    """Halve the micro-batch once for each attempt that ran `out_of_memory`.

    The learner also computes its layers again instead of keeping them, and takes turns on its GPU.
    A serving engine takes a smaller cache, too (`sglang.process.leaner`).
    """
    if not out_of_memory:
        return spec
    tokens = max(1, (spec.runtime.micro_batch_tokens or MOST_TOKENS) >> out_of_memory)
    runtime = replace(spec.runtime, micro_batch_tokens=tokens, checkpointing=True, resident=False)
    return replace(spec, runtime=runtime, shortages=out_of_memory)


def _open(runs: Path, unit_id: str) -> RunWriter:
    """Open a run directory; wait for the lease of a process that is still being ended."""
    deadline = time.monotonic() + LEASE_PATIENCE_S
    while True:
        try:
            return RunWriter(runs, unit_id)
        except LeaseHeld:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


# --- runs an evaluator (`trial.evaluation_loop`) in a process of the sweep ---
#
# Gives signs of life, and decides the response to a slice that cannot be sampled.


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
            self._pulse = sweep.pulse(self._name)
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


# --- the Tune trainable: one reusable process that trains a unit or runs an evaluator ---
#
# Tune schedules and restarts; the run directories resume. A machine that lacks the requirements gives
# its work back.


class WorkTrainable(tune.Trainable):
    """Each Tune step trains to the next commit or samples a slice."""

    _process: TrainingProcess | EvaluatorProcess | None = None

    def setup(self, config: dict[str, Any], sweep: Sweep) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Set up the process for Tune, which passes the `sweep` of `tune.with_parameters`."""
        self._sweep = sweep
        self._config = config
        # A cluster that the user started outlives its driver, and this process would outlive the
        # cluster's head.
        if sweep.requirements:
            end_without(Head(ray.get_runtime_context().gcs_address))

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.cleanup()
        self._config = new_config
        return True

    def step(self) -> dict[str, Any]:
        if self._process is None:
            lack = lacking(self._sweep.requirements)
            if lack is not None:
                return {"done": True, UNFIT: ray.get_runtime_context().get_node_id(), LACK: lack}
            work = self._sweep.work_of(self._config)
            sweep = _on_this_machine(self._sweep)
            if isinstance(work, Evaluating):
                self._process = EvaluatorProcess(sweep, work)
            else:
                self._process = TrainingProcess(sweep, work)
        try:
            return self._process.step()
        except Exception as error:
            full = full_disk(error)
            if full is None:
                raise
            return {"done": True, FULL_DISK: [full.errno, full.strerror, full.filename]}

    def cleanup(self) -> None:
        if self._process is not None:
            self._process.end(STOPPED)
            self._process = None


def _on_this_machine(sweep: Sweep) -> Sweep:
    """The sweep with the paths of its models on this machine."""
    pairs: dict[str, tuple[ModelFolder, ModelFolder]] = {}
    for name, (student, teacher) in sweep.pairs.items():
        pairs[name] = (on_this_machine(student), on_this_machine(teacher))
    return replace(sweep, pairs=pairs)


# --- the specification of one sweep, which all its processes share, and the names of its work ---


SAMPLED = "sampled"  # key of a result: an evaluator has sampled a slice
UNFIT = "unfit"  # key of a result: Ray's id of a node that cannot do the work
LACK = "lack"  # key of the same result: the requirement that the node lacks
FULL_DISK = "full_disk"  # key of a result: number, text and file of the error that ended the work
LABELS = "labels"  # key of a configuration: labels that Ray must find on a node


@dataclass(frozen=True)
class Sweep:
    """One call of `trb submit`, identified by `name`.

    It makes at most `attempts` at a unit or a slice. `requirements` apply to the machines of a
    cluster that the sweep did not start.
    """

    study: Study
    pairs: Pairs
    name: str
    attempts: int
    requirements: Sequence[Requirement] = ()

    def name_of(self, work: Work) -> str:
        """Name under which work gives signs of life: a unit's id, or `evaluator-3f9a0c-2`."""
        if isinstance(work, TrainUnit):
            return work.unit.id
        return f"evaluator-{self.name[:6]}-{work.number}"

    def pulse(self, name: str) -> Pulse:
        """The signs of life of work by its name, with measurements of this machine beside them."""
        study, node = self.study, ray.get_runtime_context().get_node_id()
        measure = partial(note_machine, study.runs, study.experiment.name, nvidia_smi)
        return Pulse(pulse_path(study.runs, name), node, measure)

    def work_of(self, config: dict[str, Any]) -> Work:
        """Return the work that Tune's configuration of a trial describes; see `config_of`."""
        if "evaluator" in config:
            return Evaluating(config["evaluator"])
        for unit in self.study.units:
            if unit.id == config["unit"]:
                return TrainUnit(unit)
        # A confirming unit: the sweep found it after it had made this study.
        study = with_confirmation(self.study.snapshot())
        return TrainUnit(next(unit for unit in study.units if unit.id == config["unit"]))


def config_of(work: Work, labels: Mapping[str, str]) -> dict[str, Any]:
    """Tune's configuration of a trial that does this work on nodes with these labels."""
    named = {"unit": work.unit.id} if isinstance(work, TrainUnit) else {"evaluator": work.number}
    return named | {LABELS: dict(labels)}
