"""The Tune layer: waves of missing units over a laptop or a cluster.

`environment.prepare_environment` must have been called before this module is imported.
"""

from __future__ import annotations

import logging
import socket
import uuid
from contextlib import closing, suppress
from pathlib import Path

import ray
from ray import tune
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.engines.interface import ModelFolder
from orchestrator.experiment.units import Unit
from orchestrator.records.lease import LeaseHeld
from orchestrator.records.pulse import Beat
from orchestrator.records.rundir import RunReader
from orchestrator.records.writer import RunWriter
from orchestrator.selection.retention import prune
from orchestrator.selection.samples_wanted import Wants, wants
from orchestrator.selection.scores import decided_by_family
from orchestrator.selection.study import Study
from orchestrator.sweep.prepare import worker_spec
from orchestrator.sweep.scratch import scratch_folder
from orchestrator.sweep.trainable import UnitTrainable
from orchestrator.sweep.watchdog import Watchdog, end_process, watching
from orchestrator.trial.assignment import Assignment
from orchestrator.workers.placement import bundles

ATTEMPTS = 3  # of a unit whose processes die


def run_waves(study: Study, pairs: dict[str, tuple[ModelFolder, ModelFolder]]) -> None:
    """Run what is missing, wave by wave: training, then the samples that each wave's results make wanted.

    A unit that did not come to what its wave asked of it is left out of the next ones, and so is what needs it.
    """
    failed: set[str] = set()
    while True:
        prune(study)
        asked = wants(study)
        ready = [unit for unit in study.units if unit.id not in failed and _is_ready(study, unit, asked)]
        if not ready:
            return
        _run_wave(study.with_units(ready), pairs, asked)
        left = wants(study)
        failed |= {unit.id for unit in ready if not _did(study, unit, asked, left)}


def _is_ready(study: Study, unit: Unit, asked: Wants) -> bool:
    """Whether a unit has something to do and everything it needs."""
    missing = unit.id in asked or not study.reader(unit).trained
    return missing and all(study.reader(needed).trained for needed in unit.depends_on)


def _did(study: Study, unit: Unit, asked: Wants, left: Wants) -> bool:
    """Whether a unit is trained and has the samples that its wave asked of it; it may want others by now."""
    still = left.get(unit.id, {}).items() & asked.get(unit.id, {}).items()
    return study.reader(unit).trained and not still


def _run_wave(study: Study, pairs: dict[str, tuple[ModelFolder, ModelFolder]], asked: Wants) -> None:
    # Failures are told from the run directories; Tune's own reports of them would bury that.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    assignments = {}
    for unit in study.units:
        spec = worker_spec(unit, study.experiment, study.runs, pairs[unit.setup])
        prunes = not decided_by_family(study.experiment, unit)
        assignments[unit.id] = Assignment(spec, asked.get(unit.id, {}), prunes)
    placements = {unit.id: unit.placement for unit in study.units}
    trainable = tune.with_resources(
        tune.with_parameters(
            UnitTrainable, assignments=assignments, runs=str(study.runs), sweep=uuid.uuid4().hex, attempts=ATTEMPTS
        ),
        lambda config: tune.PlacementGroupFactory(bundles(placements[config["unit"]])),
    )
    watchdog = Watchdog(study.runs, assignments, _end_frozen)
    with scratch_folder() as storage, watching(watchdog):
        ended = tune.Tuner(
            trainable,
            param_space={"unit": tune.grid_search(list(assignments))},
            tune_config=tune.TuneConfig(reuse_actors=True),
            run_config=tune.RunConfig(
                name="wave",
                storage_path=str(storage),
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=ATTEMPTS - 1),
                checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
            ),
        ).fit()
    for result in ended:
        if result.error is not None and result.config is not None:
            _note_loss(study.runs, result.config["unit"])


def _note_loss(runs: Path, unit_id: str) -> None:
    """Say why a unit failed where its processes could not: they were killed."""
    if RunReader(runs, unit_id).error is None:
        with suppress(LeaseHeld), closing(RunWriter(runs, unit_id)) as run:
            run.fail(f"lost: its process died in each of {ATTEMPTS} attempts", "")


def _end_frozen(beat: Beat) -> None:
    """Kill the process of a beat, on whatever node of the cluster it is."""
    if beat.host == socket.gethostname():
        end_process(beat.pid, beat.born)
        return
    strategy = NodeAffinitySchedulingStrategy(beat.node, soft=False)
    ray.remote(end_process).options(scheduling_strategy=strategy, num_cpus=0).remote(beat.pid, beat.born)
