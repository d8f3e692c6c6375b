"""Sweeps over several nodes: they lack a model, some are lost, another joins, and at last the head is.

The nodes are raylets of this machine (`tests.nodes`), so they have the same folders, except for a cache of models of
their own. The tests use one cluster, in their order.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from orchestrator.records.pulse import Beat, read_beat
from orchestrator.records.rundir import RunReader
from tests.nodes import Node, Nodes, start_nodes
from tests.sweep.test_recovery import wait_for, worker_midway
from tests.sweeps import TINY_SETUP, TINY_SHAPE, contents, start, trb, write_experiment
from tests.without_ray import run_without_ray

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("nodes"), pytest.mark.timeout(1800)]

METHODS = {"vanilla": {}, "trust_region": {"epsilon0": [0.1, 0.2], "K": [5]}}
ANOTHER = ["methods.vanilla=null", "methods.trust_region.epsilon0=[0.3]"]
LONG = {"steps": 30, "checkpoint_every": 5}  # so that there is a middle on a fast machine, too
COMMIT = "0f3a" * 10
NO_HUB = "http://127.0.0.1:9"  # nobody listens there


@dataclass(frozen=True)
class World:
    """A cluster of two nodes with a `cache` of models, and an experiment with what comes of it without Ray."""

    nodes: Nodes
    cache: Path
    experiment: Path
    undisturbed: Path
    runs: Path

    def trials(self) -> list[Path]:
        """Where the cluster's sweep keeps its trials."""
        return [self.runs / unit.name for unit in self.undisturbed.glob("tiny-[tv]*")]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("nodes")
    keys = {"training": LONG, "evaluation": {"rescore": False}, "runtime": {"keep": "all", "slice_responses": 3}}
    experiment = write_experiment(folder, METHODS, **keys)
    undisturbed, runs = folder / "undisturbed", folder / "runs"
    run_without_ray(experiment, undisturbed)
    shutil.copytree(undisturbed / ".models", runs / ".models")
    cache = folder / "cache"
    with start_nodes(2, HF_ENDPOINT=NO_HUB, HF_HUB_CACHE=str(cache)) as nodes:
        yield World(nodes, cache, experiment, undisturbed, runs)


def test_a_model_that_nodes_lack_is_named_before_anything_starts(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are models of a hub; the command finds both in its cache, the nodes have one of them in theirs."""
    made = [folder for folder in (world.undisturbed / ".models").iterdir() if folder.is_dir()]
    setup = TINY_SETUP | {"tokenizer": None}
    for role, folder in zip(("student", "teacher"), made, strict=True):
        setup[role] = {"path": f"tiny/{role}", "revision": COMMIT, "eos": TINY_SETUP[role]["eos"], "shape": TINY_SHAPE}
        for cache in [tmp_path / "hub"] if role == "student" else [tmp_path / "hub", world.cache]:
            shutil.copytree(folder, cache / f"models--tiny--{role}" / "snapshots" / COMMIT)
    experiment, runs = write_experiment(tmp_path, {"vanilla": {}}), tmp_path / "runs"
    (tmp_path / "setups" / "tiny.yaml").write_text(yaml.safe_dump(setup))
    monkeypatch.setenv("HF_ENDPOINT", NO_HUB)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    done = trb("submit", experiment, "--runs", runs, "--address", world.nodes.address)
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith(f"trb: tiny.student.path: 'tiny/student@{COMMIT}' — the same on every node; ")
    assert "(127.0.0.1): tiny/student@" in line
    assert not list(runs.glob("tiny-*"))


def test_nodes_are_lost_and_another_one_joins(world: World) -> None:
    runs, nodes = world.runs, world.nodes
    process = start("submit", world.experiment, "--runs", runs, "--address", nodes.address)
    left = {node.id: node for node in nodes.all}
    while left:
        busy = set[str]()

        def found(left: dict[str, Node] = left, busy: set[str] = busy) -> bool:
            busy.update(left.keys() & {node_of(unit) for unit in world.trials() if worker_midway(unit)})
            return bool(busy)

        wait_for(process, found)
        nodes.kill(left.pop(busy.pop()).raylet)
    added = nodes.add()  # all that is left to do is done here
    wait_for(process, lambda: any(beat.node == added.id for beat in beats(runs)))
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    assert contents(runs) == contents(world.undisturbed)


def test_the_head_is_lost(world: World) -> None:
    """The command says so in a line and ends, and so does what it has started; then it goes on without the cluster."""
    runs, nodes = world.runs, world.nodes
    process = start("submit", world.experiment, *ANOTHER, "--runs", runs, "--address", nodes.address)
    wait_for(process, lambda: [unit for unit in runs.glob("tiny-trust_region-epsilon0=0.3-*") if worker_midway(unit)])
    (unit,) = runs.glob("tiny-trust_region-epsilon0=0.3-*")
    nodes.kill(nodes.gcs)
    out, err = process.communicate()
    assert process.returncode == 1, out + err
    assert (out + err).count(f"the head of the cluster at {nodes.address} ") == 1
    assert "what was committed is safe" in out + err
    assert "Traceback" not in out + err
    while RunReader(runs, unit.name).holder:
        time.sleep(0.1)
    for folder in (runs, world.undisturbed):
        run_without_ray(world.experiment, folder, *ANOTHER)
    assert contents(runs) == contents(world.undisturbed)


def node_of(unit: Path) -> str | None:
    """Ray's id of the node on which a unit is trained."""
    beat = read_beat(unit.parent / ".locks" / f"{unit.name}.pulse")
    return beat.node if beat else None


def beats(runs: Path) -> list[Beat]:
    """The signs of life of all that runs."""
    return [beat for path in (runs / ".locks").glob("*.pulse") if (beat := read_beat(path))]
