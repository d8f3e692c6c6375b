"""The Ray cluster of a sweep: a private one that ends with it, or one that is there; and what can
be placed on it.

`environment.prepare_environment` must have been called before this module is imported.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
import ray._private.node as ray_node
import ray._private.worker as ray_worker

from orchestrator.cores import cores_here
from orchestrator.errors import ClusterDied, UserError
from orchestrator.experiment.units import Unit
from orchestrator.liveness.driver_death import ends_with_driver
from orchestrator.liveness.head_node import Head, OwnServers, exit_at_once, watched
from orchestrator.liveness.scratch import scratch_folder
from orchestrator.workers.placement import bundles

logger = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 512 * 2**20
WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_AIR_NEW_OUTPUT": "0",
}


@contextmanager
def cluster(address: str | None) -> Iterator[None]:
    """A Ray cluster for the sweep: a private local one, or the one at `address`. SIGTERM ends it
    like Ctrl-C.

    A private one ends with this process, however that ends. Raises ClusterDied where it is the
    cluster that ends.
    """
    options: dict[str, Any] = {}
    with scratch_folder() as scratch:
        if address is None:
            os.environ |= WORKER_ENVIRONMENT  # which its processes inherit
            options |= {
                "num_cpus": cores_here(),  # Ray counts the whole machine, also where a job is bound to a part
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
                "_temp_dir": str(scratch),
            }
            with (
                ends_with_driver(scratch),
                few_servers(),
                _ray(None, options),
                watched(_own_servers()),
            ):
                yield
        else:
            options |= {"runtime_env": {"env_vars": WORKER_ENVIRONMENT}}
            with _ray(address, options), watched(Head(_head(address))):
                yield


class SmallNode(ray_node.Node):
    """A node with the servers that a sweep talks to: gcs_server, raylet and their agents."""

    def start_monitor(self) -> None:
        """None: nothing scales a private cluster."""

    def start_log_monitor(self) -> None:
        """None: what workers print stays in their files."""

    def start_api_server(self, *, include_dashboard: bool | None, raise_on_failure: bool) -> None:
        """None: even without a dashboard Ray would start its server, which then counts usage."""
        self._webui_url = None


@contextmanager
def few_servers() -> Iterator[None]:
    """Clusters that are started here have no more than `SmallNode` has: they are up and gone three
    seconds earlier.
    """
    whole = ray_node.Node
    ray_node.Node = SmallNode
    try:
        yield
    finally:
        ray_node.Node = whole


@contextmanager
def _ray(address: str | None, options: dict[str, Any]) -> Iterator[None]:
    ray_worker.print_to_stdstream = _note_of_servers
    try:
        ray.init(
            address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **options
        )
    except (
        Exception
    ) as error:  # of a server that dies on the way Ray tells by errors of many classes
        reason = (str(error).splitlines() or [type(error).__name__])[0].partition(". ")[0]
        if address is None:
            raise ClusterDied(
                f"Ray did not start ({reason}); what was committed is safe"
            ) from error
        if not isinstance(error, ConnectionError | RuntimeError):
            raise
        right = "a Ray cluster that answers; RAY_AUTH_TOKEN must be its token, where it has one"
        raise UserError(f"--address: {address!r}: expected {right} ({reason})") from None
    signal.signal(signal.SIGTERM, _interrupt)  # Ray has put a handler of its own there
    try:
        yield
    except ClusterDied:
        # Tune's placement groups call the servers as they are collected, and wait a minute for ones
        # that are gone.
        gc.freeze()
        atexit.register(exit_at_once)  # before Ray's own handler, which would wait for what is gone
        raise
    except BaseException:
        ray.shutdown()
        raise
    else:
        ray.shutdown()


def _note_of_servers(data: dict[str, Any], **_: Any) -> None:
    """Keep messages of Ray's servers for the log, such as the last lines of a dead raylet.

    Ray would print it in the midst of the live table, and into what a pipe reads. What it means for
    the sweep is said where the sweep notices it, in the `error.txt` of a unit or as the command's
    last line.
    """
    logger.info("Ray says: %s", "\n".join(data["lines"]))


def _own_servers() -> OwnServers:
    return OwnServers(ray_worker._global_node, ray.get_runtime_context().gcs_address)


def _head(address: str) -> str:
    """Host and port of the server that must answer: of Ray's own client the one that it talks
    through.
    """
    return (
        address.removeprefix("ray://")
        if address.startswith("ray://")
        else ray.get_runtime_context().gcs_address
    )


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def capacity() -> dict[str, float]:
    """CPUs and GPUs of the cluster."""
    found = ray.cluster_resources()
    return {kind: found.get(kind, 0.0) for kind in ("CPU", "GPU")}


def check_placement(units: list[Unit]) -> None:
    """UserError if a unit's placement group can never be placed on this cluster (it would wait for
    ever).
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for unit in units:
        for bundle in bundles(unit.placement):
            if not any(
                all(node.get(kind, 0) >= amount for kind, amount in bundle.items())
                for node in nodes
            ):
                raise UserError(_impossible(unit, bundle, nodes))
        for kind in ("CPU", "GPU"):
            asked = sum(bundle.get(kind, 0) for bundle in bundles(unit.placement))
            if asked > sum(node.get(kind, 0) for node in nodes):
                raise UserError(_impossible(unit, {kind: asked}, nodes))


def _impossible(unit: Unit, wanted: dict[str, float], nodes: list[dict[str, float]]) -> str:
    asked = ", ".join(f"{amount:g} {kind}" for kind, amount in wanted.items())
    have = "; ".join(f"{node.get('CPU', 0):g} CPU, {node.get('GPU', 0):g} GPU" for node in nodes)
    return f"runtime.placement: {unit.id} asks for {asked}; this cluster has nodes of {have}"
