"""The Ray cluster of a sweep: a private one that ends with it, or one that the user started.

`prepare.prepare_environment` must have been called before this module is imported.
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

import httpx
import ray
import ray._private.node as ray_node
import ray._private.worker as ray_worker

from orchestrator.cores import cores_here
from orchestrator.errors import ClusterDied, UserError, refuse
from orchestrator.experiment.units import Unit
from orchestrator.liveness.deaths import Head, OwnServers, ends_with_driver, exit_at_once, watched
from orchestrator.liveness.processes import scratch_folder
from orchestrator.workers.spec import bundles

logger = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 512 * 2**20
WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_AIR_NEW_OUTPUT": "0",
}


@contextmanager
def cluster(address: str | None) -> Iterator[None]:
    """A Ray cluster for the sweep: a private local one, or the one at `address`.

    A private one ends with this process, also if the process is killed. SIGTERM ends the sweep like
    Ctrl-C. Raises ClusterDied if the cluster ends before the sweep.
    """
    options: dict[str, Any] = {}
    with scratch_folder() as scratch:
        if address is None:
            os.environ |= WORKER_ENVIRONMENT  # the cluster's processes inherit it
            options |= {
                # Ray would count the whole machine, also if a job is bound to some of its cores.
                "num_cpus": cores_here(),
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
        """Start none: a private cluster is never scaled."""

    def start_log_monitor(self) -> None:
        """Start none: the output of workers stays in their files."""

    def start_api_server(self, *, include_dashboard: bool | None, raise_on_failure: bool) -> None:
        """Start none: even without a dashboard Ray would start its server, which counts usage."""
        self._webui_url = None


@contextmanager
def few_servers() -> Iterator[None]:
    """Start clusters with the servers of `SmallNode` alone, which takes three seconds less."""
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
    except Exception as error:
        # Ray reports a server that died during the start by errors of many classes.
        reason = (str(error).splitlines() or [type(error).__name__])[0].partition(". ")[0]
        if address is None:
            raise ClusterDied(
                f"Ray did not start ({reason}); what was committed is safe"
            ) from error
        if not isinstance(error, ConnectionError | RuntimeError):
            raise
        right = "a Ray cluster that answers; RAY_AUTH_TOKEN must be its token, where it has one"
        raise UserError(f"--address: {address!r}: expected {right} ({reason})") from None
    signal.signal(signal.SIGTERM, _interrupt)  # in place of the handler that Ray has installed
    try:
        yield
    except ClusterDied:
        # Tune's placement groups call Ray's servers when they are collected, and would wait a
        # minute for dead ones. Frozen objects are not collected.
        gc.freeze()
        # Handlers run in reverse order: this one comes before Ray's, which would wait as well.
        atexit.register(exit_at_once)
        raise
    except BaseException:
        ray.shutdown()
        raise
    else:
        ray.shutdown()


def _note_of_servers(data: dict[str, Any], **_: Any) -> None:
    """Keep messages of Ray's servers for the log, such as the last lines of a dead raylet.

    Ray would print them amid the live table, and into the output that a pipe reads. The sweep
    reports their consequences itself, in the `error.txt` of a unit or as the command's last line.
    """
    logger.info("Ray says: %s", "\n".join(data["lines"]))


def _own_servers() -> OwnServers:
    return OwnServers(ray_worker._global_node, ray.get_runtime_context().gcs_address)


def _head(address: str) -> str:
    """Host and port of the server that must answer."""
    if address.startswith("ray://"):  # Ray's client talks to the cluster through this server alone
        return address.removeprefix("ray://")
    return ray.get_runtime_context().gcs_address


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def capacity() -> dict[str, float]:
    """CPUs and GPUs of the cluster."""
    resources = ray.cluster_resources()
    return {"CPU": resources.get("CPU", 0.0), "GPU": resources.get("GPU", 0.0)}


def check_placement(units: list[Unit]) -> None:
    """Raise UserError for a unit that this cluster can never place; it would wait for ever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for unit in units:
        for bundle in bundles(unit.placement):
            if not any(_holds(node, bundle) for node in nodes):
                raise UserError(_impossible(unit, bundle, nodes))
        for kind in ("CPU", "GPU"):
            asked = sum(bundle.get(kind, 0) for bundle in bundles(unit.placement))
            if asked > sum(node.get(kind, 0) for node in nodes):
                raise UserError(_impossible(unit, {kind: asked}, nodes))


def _holds(node: dict[str, float], bundle: dict[str, float]) -> bool:
    return all(node.get(kind, 0) >= amount for kind, amount in bundle.items())


def _impossible(unit: Unit, wanted: dict[str, float], nodes: list[dict[str, float]]) -> str:
    asked = ", ".join(f"{amount:g} {kind}" for kind, amount in wanted.items())
    have = "; ".join(f"{node.get('CPU', 0):g} CPU, {node.get('GPU', 0):g} GPU" for node in nodes)
    return f"runtime.placement: {unit.id} asks for {asked}; this cluster has nodes of {have}"


# --- submits a sweep as a job of a Ray cluster, whose driver outlives the submitting command ---
#
# Speaks the documented REST interface of the job server directly: Ray's own client needs the packages
# of a server.


# A server may take long to make a job; one that is there accepts the connection at once.
ANSWERS_WITHIN_S = httpx.Timeout(30.0, connect=5.0)


def submit_job(address: str, entrypoint: str, name: str) -> str:
    """Make a job of a shell command at the job server `address` (`http://…:8265`); return its id.

    A cluster with token authentication gets the token in `RAY_AUTH_TOKEN`. The job gets no
    variables of this environment, since Ray would store them: keys must be set on the cluster.
    Raises UserError if no job server answers, or if it refuses.
    """
    token = os.environ.get("RAY_AUTH_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    job = {"entrypoint": entrypoint, "submission_id": name}
    try:
        answer = httpx.post(
            f"{address.rstrip('/')}/api/jobs/", json=job, headers=headers, timeout=ANSWERS_WITHIN_S
        )
        answer.raise_for_status()
        return str(answer.json()["submission_id"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise refuse("--address", address, f"a server that takes the job ({reason})") from None
