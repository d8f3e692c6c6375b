"""A Ray cluster of several nodes on this one machine, for tests: a raylet for each, on loopback, in
its own folder.

`Nodes` talks to a process that keeps the cluster and ends when its standard input does: nothing of
a cluster outlives the process that asked for it, however that ends.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.sweeps import ROOT, environment

OBJECT_STORE_BYTES = 80 * 2**20
KEEPER = {
    # A dead raylet is noticed within a second or two instead of half a minute.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "4",
    # Only processes that a sweep asks for.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
}


@dataclass(frozen=True)
class Node:
    """A node by Ray's id, and the process of its raylet."""

    id: str
    raylet: int


@dataclass
class Nodes:
    """A cluster at `address`: a head without CPUs, through which drivers connect, and nodes of one
    CPU each.

    `gcs` is the process of the head's server.
    """

    process: subprocess.Popen[str]
    folder: Path
    address: str = ""
    gcs: int = 0
    all: list[Node] = field(default_factory=list)

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)

    def add(self, **variables: str) -> Node:
        """Another node, which has joined when this returns, with these variables in its
        environment.
        """
        self.ask(f"add {json.dumps(variables)}")
        self.all.append(Node(**self.read()))
        return self.all[-1]

    def kill(self, pid: int) -> None:
        """SIGKILL a server of the cluster: the head's `gcs`, or a node's raylet."""
        self.ask(f"kill {pid}")
        self.read()

    def ask(self, line: str) -> None:
        """Tell the keeper what to do."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        """What the keeper says next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the keeper of the nodes has ended: {self.process.wait()}"
        return json.loads(line)


def start_nodes(count: int, **variables: str) -> Nodes:
    """A cluster of a head and `count` nodes, all there when this returns, with these variables in
    its environment.
    """
    folder = Path(tempfile.mkdtemp(prefix="trb-", dir="/tmp"))  # sockets have short names
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "tests.nodes", str(count)]
    env = environment() | KEEPER | variables | {"RAY_TMPDIR": str(folder)}
    nodes = Nodes(
        subprocess.Popen(command, cwd=ROOT, env=env, stdin=pipe, stdout=pipe, text=True), folder
    )
    head = nodes.read()
    nodes.address, nodes.gcs = head["address"], head["gcs"]
    nodes.all += [Node(**nodes.read()) for _ in range(count)]
    return nodes


def keep(count: int) -> None:
    """Start the nodes and say what they are, a line each; do what the lines read ask for; at their
    end, end all.
    """
    import ray._private.node as ray_node
    from ray.cluster_utils import Cluster

    from orchestrator.sweep.cluster import (
        SmallNode,
    )  # starts sooner, with all that a sweep talks to

    lines = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Ray writes there, too

    def say(**values: Any) -> None:
        print(json.dumps(values), file=lines, flush=True)

    def add(cpus: int = 1) -> Any:
        return cluster.add_node(
            wait=False,
            num_cpus=cpus,
            node_ip_address="127.0.0.1",
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
        )

    def server(node: Any, kind: str) -> subprocess.Popen[bytes]:
        (info,) = node.all_processes[kind]
        servers[info.process.pid] = info.process
        return info.process

    def tell(node: Any) -> None:
        say(id=node.node_id, raylet=server(node, "raylet").pid)

    cluster = Cluster()
    servers: dict[int, subprocess.Popen[bytes]] = {}
    ray_node.Node = SmallNode
    head = add(cpus=0)
    nodes = [add() for _ in range(count)]
    cluster.wait_for_nodes()
    say(address=cluster.address, gcs=server(head, "gcs_server").pid)
    for node in nodes:
        tell(node)
    for line in sys.stdin:
        what, _, more = line.strip().partition(" ")
        if what == "add":
            usual = dict(os.environ)
            os.environ.update(json.loads(more))
            node = add()
            os.environ.update(usual)
            cluster._wait_for_node(node)
            tell(node)
        else:
            servers[int(more)].kill()
            servers[
                int(more)
            ].wait()  # the workers of a raylet live on as long as its process is not reaped
            say()
    for node in cluster.list_all_nodes():
        node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)


if __name__ == "__main__":
    keep(int(sys.argv[1]))
