"""Finds the nodes that may be given work, on a cluster that the sweep did not start.

The driver asks every node for the `requirements` before anything starts, and asks a node that joins
later as soon as it sees it. A node gets work once it has answered. A node that lacks something is
asked again now and then, since a file system may be mounted late.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray._private.state import available_resources_per_node
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import NODE_ID_LABEL_KEY
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.selection.study import Study
from orchestrator.sweep.cluster import capacity
from orchestrator.sweep.requirements import Lack, Requirement, answer_of_node, requirements, signed
from orchestrator.workers.spec import Pairs

ANSWERS_WITHIN_S = 120.0  # the node's process may have to start on a slow file system
ASKED_AGAIN_AFTER_S = 60.0


@dataclass
class _Node:
    """A node, and the requirement that it lacks; `question` is Ray's reference to a coming answer.

    Ray gives work to `cpus` CPUs of it.
    """

    name: str
    cpus: float
    asked_at: float
    question: Any = None
    lack: Lack | None = None
    fit: bool = False


class AnyNode:
    """The nodes of a private cluster: this machine, which has everything."""

    requirements: Sequence[Requirement] = ()

    def capacity(self) -> dict[str, float]:
        """CPUs and GPUs of the nodes that can be given work."""
        return capacity()

    def free(self) -> list[dict[str, float]]:
        """Unreserved resources at this moment, on each node that can be given work."""
        return list(available_resources_per_node().values())

    def labels(self) -> dict[str, str]:
        """Labels that Ray must find on a node for it to be given work."""
        return {}

    def reject(self, node_id: str, lack: Lack) -> None:
        """Give the node no work for now, since a process on it reported a lack."""


class FitNodes(AnyNode):
    """Nodes of a cluster that the sweep did not start; `say` tells the user of an unusable node."""

    def __init__(self, needed: Sequence[Requirement], say: Callable[[str], None]):
        self.requirements = needed
        self._say = say
        self._nodes: dict[str, _Node] = {}
        self._told: set[str] = set()  # names of nodes whose few cores the user knows of

    def __getstate__(self) -> dict[str, Any]:
        """Keep nothing: Tune copies its arguments for a restart that never happens."""
        return {}

    def check(self) -> None:
        """Ask all nodes. UserError names the first node that lacks something."""
        for node_id, node in self._alive().items():
            self._ask(node_id, node)
        # Fetching models of a hub has no limit; the user ends a fetch that hangs with Ctrl-C.
        fetches = any(requirement.hub for requirement in self.requirements)
        for node_id, node in self._nodes.items():
            self._hear(node, None if fetches else ANSWERS_WITHIN_S)
            if node.lack is not None and node_id in self._alive():
                raise node.lack.on(node.name)

    def capacity(self) -> dict[str, float]:
        total = {"CPU": 0.0, "GPU": 0.0}
        for node_id, node in self._look().items():
            if self._nodes[node_id].fit:
                for kind in total:
                    total[kind] += node["Resources"].get(kind, 0.0)
        return total

    def free(self) -> list[dict[str, float]]:
        available = available_resources_per_node()
        free: list[dict[str, float]] = []
        for node_id in self._look():
            if self._nodes[node_id].fit and node_id in available:
                free.append(available[node_id])
        return free

    def labels(self) -> dict[str, str]:
        unfit = [node_id for node_id in self._look() if not self._nodes[node_id].fit]
        return {NODE_ID_LABEL_KEY: f"!in({','.join(unfit)})"} if unfit else {}

    def reject(self, node_id: str, lack: Lack) -> None:
        node = self._nodes.get(node_id)
        if node is not None:
            before = node.lack
            node.lack = lack
            node.fit = False
            node.question = None
            node.asked_at = time.monotonic()
            self._tell(node, before)

    def _look(self) -> dict[str, Any]:
        """Nodes that are alive, by id; asks new and failed nodes, and collects answers.

        Does not wait: Tune calls it between two results.
        """
        alive = self._alive()
        for node_id, row in alive.items():
            node = self._nodes.get(node_id)
            if node is None:
                self._ask(node_id, row)
            elif node.question is not None:
                if ray.wait([node.question], timeout=0)[0] or self._is_silent(node):
                    before = node.lack
                    self._hear(node, 0)
                    self._tell(node, before)
            elif node.lack and time.monotonic() > node.asked_at + ASKED_AGAIN_AFTER_S:
                self._ask(node_id, row)
        return alive

    def _is_silent(self, node: _Node) -> bool:
        """Whether a node should have answered by now; fetching models of a hub has no limit."""
        fetches = any(each.hub for each in self.requirements)
        return not fetches and time.monotonic() > node.asked_at + ANSWERS_WITHIN_S

    def _alive(self) -> dict[str, Any]:
        """Ray's rows of the nodes that are alive and could be given work."""
        alive: dict[str, Any] = {}
        for node in ray.nodes():
            if node["Alive"] and node["Resources"].get("CPU"):
                alive[node["NodeID"]] = node
        return alive

    def _ask(self, node_id: str, row: Any) -> None:
        before = self._nodes.get(node_id)
        where = NodeAffinitySchedulingStrategy(node_id, soft=False)
        # It asks for no CPU, so that a fully reserved node answers as well.
        asked = ray.remote(answer_of_node).options(scheduling_strategy=where, num_cpus=0)
        question = asked.remote(self.requirements)
        # An earlier lack is kept until the answer, so that the user is told of each lack once.
        lack = before.lack if before else None
        cpus = row["Resources"]["CPU"]
        self._nodes[node_id] = _Node(name_of(row), cpus, time.monotonic(), question, lack)

    def _hear(self, node: _Node, timeout: float | None) -> None:
        """Note the answer of a node, or the error of a node that is gone or lacks this program."""
        question = node.question
        node.question = None
        try:
            node.lack, cores = ray.get(question, timeout=timeout)
            self._compare(node, cores)
        except GetTimeoutError:
            node.lack = Lack(None, f"no answer within {ANSWERS_WITHIN_S:.0f} s")
        except RayError as error:
            node.lack = Lack(None, str(error).strip().splitlines()[-1])
        node.fit = node.lack is None

    def _compare(self, node: _Node, cores: int) -> None:
        """Tell the user, once, of a node where Ray counts more CPUs than its processes may use.

        `ray start` counts those of the whole machine, also if a job is bound to some of them, and
        trials that share too few cores take many times as long.
        """
        if cores < node.cpus and node.name not in self._told:
            self._told.add(node.name)
            self._say(
                f"{node.name}: Ray counts {node.cpus:g} CPUs, and its processes may use {cores}: "
                f"expected ray start --num-cpus={cores} there"
            )

    def _tell(self, node: _Node, before: Lack | None) -> None:
        if node.lack is not None and node.lack != before:
            self._say(f"no work for a node: {node.lack.on(node.name)}")


def name_of(node: Any) -> str:
    """Name a node for people, from Ray's row of it: `gpu-3 (10.0.0.7)`."""
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


@contextmanager
def nodes_of(
    address: str | None, study: Study, pairs: Pairs, say: Callable[[str], None]
) -> Iterator[AnyNode]:
    """Nodes that the sweep can use. UserError, before anything starts, if one lacks a requirement."""
    if address is None:
        yield AnyNode()
        return
    with signed(study.runs) as sign:
        nodes = FitNodes(requirements(study, pairs, sign), say)
        nodes.check()
        yield nodes
