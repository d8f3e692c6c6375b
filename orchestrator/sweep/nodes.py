"""Finds the nodes that may be given work, on a cluster that the sweep did not start.

The driver asks every node for the `requirements` before anything starts, and asks a node that joins
later as soon as it sees it. A node gets work once it has answered. A node that lacks something is
asked again now and then, since a file system may be mounted late.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray._private.state import available_resources_per_node
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import NODE_ID_LABEL_KEY
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.config import Setup
from orchestrator.cores import cores_here
from orchestrator.data.benchmarks import declared_files
from orchestrator.engines.interface import ModelFolder
from orchestrator.errors import UserError, refuse
from orchestrator.liveness.leases import Lease, holder_of
from orchestrator.models.locate import on_this_machine
from orchestrator.selection.study import Study
from orchestrator.sweep.cluster import capacity
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
            lack = self._answer(node, None if fetches else ANSWERS_WITHIN_S)
            if lack is None:
                self._note(node, None)
            elif node_id in self._alive():
                raise lack.on(node.name)

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
            node.asked_at = time.monotonic()
            self._note(node, lack)

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
                    self._note(node, self._answer(node, 0))
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

    def _answer(self, node: _Node, timeout: float | None) -> Lack | None:
        """The answer of a node, or the error of a node that is gone or lacks this program."""
        try:
            lack, cores = ray.get(node.question, timeout=timeout)
        except GetTimeoutError:
            return Lack(None, f"no answer within {ANSWERS_WITHIN_S:.0f} s")
        except RayError as error:
            return Lack(None, str(error).strip().splitlines()[-1])
        self._compare(node, cores)
        return lack

    def _note(self, node: _Node, lack: Lack | None) -> None:
        """Note what a node lacks, and tell the user of each lack once."""
        if lack is not None and lack != node.lack:
            self._say(f"no work for a node: {lack.on(node.name)}")
        node.lack, node.fit, node.question = lack, lack is None, None

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


# --- requirements of every machine of a cluster: the runs folder itself, models and data ---
#
# The driver lists the requirements, which its own machine meets; `lacking` checks them on each
# machine.


SIGN = ".sweep"  # suffix of the file that identifies a runs folder


@dataclass(frozen=True)
class Requirement:
    """A file or folder that every machine needs because `key` is `value`.

    `size` is the size in bytes of a model's file on the driver's machine. `hub` is the id of a
    model that each machine keeps in its own cache.
    """

    key: str
    value: str
    path: Path = Path()
    size: int | None = None
    hub: str = ""


@dataclass(frozen=True)
class Lack:
    """A requirement that a machine does not meet, and why; None if the machine cannot be asked."""

    requirement: Requirement | None
    reason: str

    def on(self, node: str) -> UserError:
        """The UserError about a node: `data_dir: '/data' — the same on every node; gpu-3: …`."""
        if self.requirement is None:
            return refuse(
                "--address", node, f"a node with this program and its packages ({self.reason})"
            )
        return refuse(
            self.requirement.key,
            self.requirement.value,
            f"the same on every node; {node}: {self.reason}",
        )


@contextmanager
def signed(runs: Path) -> Iterator[Path]:
    """Keep a file in the runs folder while the body runs, by which other machines recognise it.

    The file has a new name each time, so no copy of the folder has it. Files left by killed sweeps
    are removed.
    """
    locks = runs / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    for sign in locks.glob(f"*{SIGN}"):
        if holder_of(sign) is None:
            sign.unlink(missing_ok=True)
    lease = Lease(locks / f"{uuid.uuid4().hex}{SIGN}")
    try:
        yield lease.path
    finally:
        lease.release(remove=True)


def requirements(study: Study, pairs: Pairs, sign: Path) -> list[Requirement]:
    """List the requirements of a study; this machine meets them all."""
    needed = [Requirement("--runs", str(study.runs), sign)]
    for name, setup in study.experiment.setups.items():
        for role, model in zip(("student", "teacher"), pairs[name], strict=True):
            if not Path(model.path).is_relative_to(study.runs.resolve()):
                needed += _of_model(f"{name}.{role}.path", model)
        needed += _of_data(name, setup, study.experiment.data_dir)
    return needed


def answer_of_node(needed: Sequence[Requirement]) -> tuple[Lack | None, int]:
    """Return what this machine lacks, and the cores that its processes may use."""
    return lacking(needed), cores_here()


def lacking(needed: Sequence[Requirement]) -> Lack | None:
    """Return the first requirement that this machine lacks, or None. Fetches models of a hub."""
    for requirement in needed:
        path = requirement.path
        if requirement.hub:
            try:
                on_this_machine(ModelFolder("", hub=requirement.hub))
            except UserError as error:
                return Lack(requirement, str(error))
        elif not path.exists():
            if path.suffix == SIGN:
                return Lack(requirement, "another folder, or none")
            return Lack(requirement, f"no {path.name} there")
        elif requirement.size is not None:
            size = path.stat().st_size
            if size != requirement.size:
                return Lack(requirement, f"{path.name} has {size} bytes, not {requirement.size}")
    return None


def _of_model(key: str, model: ModelFolder) -> list[Requirement]:
    """Require the files of a folder, by size.

    Hashing gigabytes on every node would load the network for minutes.
    """
    if model.hub:
        return [Requirement(key, model.hub, hub=model.hub)]
    files = sorted(path for path in Path(model.path).rglob("*") if path.is_file())
    return [Requirement(key, model.path, path, path.stat().st_size) for path in files]


def _of_data(name: str, setup: Setup, data_dir: str | None) -> list[Requirement]:
    """Require the files that the setup names; their readers compare content and declaration."""
    needed: list[Requirement] = []
    folder = data_dir or ""  # always set if files are needed
    for file in declared_files(setup):
        needed.append(Requirement("data_dir", folder, Path(folder).absolute() / file))
    path = setup.data.path
    if setup.data.source != "jsonl" and path and Path(path).exists():
        needed.append(Requirement(f"{name}.data.path", path, Path(path).absolute()))
    for benchmark, run in setup.evaluation.benchmarks.items():
        if run.path is not None and Path(run.path).exists():
            key = f"{name}.evaluation.benchmarks.{benchmark}.path"
            needed.append(Requirement(key, run.path, Path(run.path).absolute()))
    return needed
