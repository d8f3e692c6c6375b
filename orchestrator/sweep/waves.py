"""The Tune layer: waves of missing units over a laptop or a cluster.

`ray_environment.prepare_environment` must have been called before this module is imported.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
import ray._private.worker as ray_worker
from ray import tune
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.engines.interface import ModelFolder
from orchestrator.errors import ClusterDied, UserError
from orchestrator.experiment.units import Unit
from orchestrator.records.lease import LeaseHeld
from orchestrator.records.pulse import Beat
from orchestrator.records.rundir import RunReader
from orchestrator.records.writer import RunWriter
from orchestrator.selection.retention import prune
from orchestrator.selection.study import Study
from orchestrator.selection.wants import Wants, wants
from orchestrator.sweep.guard import guarded
from orchestrator.sweep.prepare import worker_spec
from orchestrator.sweep.scratch import scratch_folder
from orchestrator.sweep.trainable import UnitTrainable
from orchestrator.sweep.watchdog import Watchdog, end_process, watching
from orchestrator.workers.placement import bundles

OBJECT_STORE_BYTES = 512 * 2**20
VITAL = ("gcs_server", "raylet")  # of a private cluster
LOOK_S = 1.0
UNWINDS_WITHIN_S = 8.0
ATTEMPTS = 3  # of a unit whose processes die
WORKER_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "RAY_AIR_NEW_OUTPUT": "0"}


@contextmanager
def cluster(address: str | None, runs: Path) -> Iterator[None]:
    """A Ray cluster for the sweep: a private local one, or the one at `address`. SIGTERM ends it like Ctrl-C.

    A private one ends with this process, however that ends. Raises ClusterDied where it is the cluster that ends.
    """
    options: dict[str, Any] = {"runtime_env": {"env_vars": WORKER_ENVIRONMENT}}
    with scratch_folder() as scratch:
        if address is None:
            options |= {
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
                "_temp_dir": str(scratch),
            }
            with guarded(scratch), _ray(None, options), _vital_processes():
                yield
        else:
            with _ray(address, options):
                _probe(runs)
                yield


@contextmanager
def _ray(address: str | None, options: dict[str, Any]) -> Iterator[None]:
    try:
        ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"--address: {address!r} — Ray could not be reached ({reason})") from None
    signal.signal(signal.SIGTERM, _interrupt)  # Ray has put a handler of its own there
    try:
        yield
    except ClusterDied:
        atexit.register(_exit_at_once)  # before Ray's own handler, which would wait for what is gone
        raise
    except BaseException:
        ray.shutdown()
        raise
    else:
        ray.shutdown()


@contextmanager
def _vital_processes() -> Iterator[None]:
    """Turn the death of the private cluster's servers into ClusterDied, within seconds."""
    node: Any = ray_worker._global_node  # Ray tells of its servers nowhere else
    ended, died = threading.Event(), list[str]()

    def dead() -> list[str]:
        return [kind for kind, _ in node.dead_processes() if kind in VITAL]

    def look() -> None:
        while not ended.wait(LOOK_S):
            died.extend(dead())
            if died and not ended.is_set():
                signal.pthread_kill(main, signal.SIGTERM)
                if not ended.wait(UNWINDS_WITHIN_S):  # it waits for an answer that will not come
                    print(f"\ntrb: {_death(died)}; run the same command again", file=sys.stderr)
                    _exit_at_once()
                return

    def hush(unraisable: Any) -> None:
        """Ray's objects complain as they are collected after their server is gone: that is no news."""
        if not (getattr(unraisable.object, "__module__", "").startswith("ray") and (died or dead())):
            sys.__unraisablehook__(unraisable)

    main = threading.get_ident()
    sys.unraisablehook = hush
    threading.Thread(target=look, daemon=True, name="cluster").start()
    try:
        yield
    except BaseException:
        ended.set()
        if died or dead():
            raise ClusterDied(_death(died or dead())) from None
        raise
    finally:
        ended.set()


def _death(died: list[str]) -> str:
    return f"Ray's {' and '.join(sorted(set(died)))} died; what was committed is safe"


def _exit_at_once() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


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


def capacity() -> dict[str, float]:
    """CPUs and GPUs of the cluster."""
    found = ray.cluster_resources()
    return {kind: found.get(kind, 0.0) for kind in ("CPU", "GPU")}


def check_placement(units: list[Unit]) -> None:
    """UserError if a unit's placement group can never be placed on this cluster (it would wait for ever)."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for unit in units:
        for bundle in bundles(unit.placement):
            if not any(all(node.get(kind, 0) >= amount for kind, amount in bundle.items()) for node in nodes):
                raise UserError(_impossible(unit, bundle, nodes))
        for kind in ("CPU", "GPU"):
            asked = sum(bundle.get(kind, 0) for bundle in bundles(unit.placement))
            if asked > sum(node.get(kind, 0) for node in nodes):
                raise UserError(_impossible(unit, {kind: asked}, nodes))


def _impossible(unit: Unit, wanted: dict[str, float], nodes: list[dict[str, float]]) -> str:
    asked = ", ".join(f"{amount:g} {kind}" for kind, amount in wanted.items())
    have = "; ".join(f"{node.get('CPU', 0):g} CPU, {node.get('GPU', 0):g} GPU" for node in nodes)
    return f"runtime.placement: {unit.id} asks for {asked} — this cluster has nodes of {have}"


def _run_wave(
    study: Study,
    pairs: dict[str, tuple[ModelFolder, ModelFolder]],
    asked: Wants,
) -> None:
    # Failures are told from the run directories; Tune's own reports of them would bury that.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    specs = {
        unit.id: worker_spec(unit, study.experiment, study.runs, pairs[unit.setup], asked.get(unit.id, {}))
        for unit in study.units
    }
    placements = {unit.id: unit.placement for unit in study.units}
    trainable = tune.with_resources(
        tune.with_parameters(
            UnitTrainable, specs=specs, runs=str(study.runs), sweep=uuid.uuid4().hex, attempts=ATTEMPTS
        ),
        lambda config: tune.PlacementGroupFactory(bundles(placements[config["unit"]])),
    )
    watchdog = Watchdog(study.runs, specs, _end_frozen)
    with scratch_folder() as storage, watching(watchdog):
        ended = tune.Tuner(
            trainable,
            param_space={"unit": tune.grid_search(list(specs))},
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


def _probe(runs: Path) -> None:
    """Every node must see `runs`: a file written here is read there."""
    token = uuid.uuid4().hex
    file = runs / f".probe-{token}"
    file.write_text(token)
    try:
        for node in ray.nodes():
            if node["Alive"]:
                strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                seen = ray.remote(_reads).options(scheduling_strategy=strategy, num_cpus=0).remote(str(file), token)
                if not ray.get(seen, timeout=60):
                    raise UserError(
                        f"--runs: {runs} is not visible on node {node['NodeManagerHostname']} — a shared folder"
                    )
    finally:
        file.unlink()


def _reads(path: str, token: str) -> bool:
    file = Path(path)
    return file.exists() and file.read_text() == token
