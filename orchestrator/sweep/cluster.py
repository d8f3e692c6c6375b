"""The Ray cluster of a sweep: a private one that ends with it, or one that is there; and what can be placed on it.

`environment.prepare_environment` must have been called before this module is imported.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import signal
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
import ray._private.worker as ray_worker
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.errors import ClusterDied, UserError
from orchestrator.experiment.units import Unit
from orchestrator.sweep.guard import guarded
from orchestrator.sweep.scratch import scratch_folder
from orchestrator.workers.placement import bundles

OBJECT_STORE_BYTES = 512 * 2**20
VITAL = ("gcs_server", "raylet")  # of a private cluster
LOOK_S = 1.0  # between two looks at them
UNWINDS_WITHIN_S = 8.0  # a driver that is told of their death; else it is ended where it stands
WORKER_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "RAY_AIR_NEW_OUTPUT": "0"}


@contextmanager
def cluster(address: str | None, runs: Path) -> Iterator[None]:
    """A Ray cluster for the sweep: a private local one, or the one at `address`. SIGTERM ends it like Ctrl-C.

    A private one ends with this process, however that ends. Raises ClusterDied where it is the cluster that ends.
    """
    options: dict[str, Any] = {}
    with scratch_folder() as scratch:
        if address is None:
            os.environ |= WORKER_ENVIRONMENT  # which its processes inherit
            options |= {
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
                "_temp_dir": str(scratch),
            }
            with guarded(scratch), _ray(None, options), _vital_processes():
                yield
        else:
            options |= {"runtime_env": {"env_vars": WORKER_ENVIRONMENT}}
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
        # Tune's placement groups call the servers as they are collected, and wait a minute for ones that are gone.
        gc.freeze()
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
