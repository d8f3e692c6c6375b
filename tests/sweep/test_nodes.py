"""Sweeps over several nodes: they lack a model, some are lost, others join, and at last the head
is.

The nodes are raylets of this machine (`tests.nodes`), so they have the same folders, except for a
cache of models of their own. The tests use one cluster, in their order.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import constants

from orchestrator.experiment.load import load_experiment
from orchestrator.liveness.heartbeat import Beat, read_beat
from orchestrator.records.rundir import RunReader
from tests.nodes import Node, Nodes, start_nodes
from tests.sweep.test_recovery import wait_for, worker_midway
from tests.sweeps import TINY_SETUP, TINY_SHAPE, contents, start, trb, write_experiment
from tests.without_ray import made_here, run_without_ray

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("nodes"), pytest.mark.timeout(1800)]

METHODS = {"vanilla": {}, "trust_region": {"epsilon0": [0.1, 0.2], "K": [5]}}
ANOTHER = ["methods.vanilla=null", "methods.trust_region.epsilon0=[0.3]"]
LONG = {"steps": 30, "checkpoint_every": 5}  # so that there is a middle on a fast machine, too
COMMIT, ANOTHER_COMMIT = "0f3a" * 10, "1b2c" * 10
NO_HUB = "http://127.0.0.1:9"  # nobody listens there


@dataclass(frozen=True)
class World:
    """A cluster of two nodes, and an experiment with what comes of it without Ray.

    Its models are those of a hub that nobody can reach: in the cache of this process and its
    commands, and in another one of the nodes.
    """

    nodes: Nodes
    experiment: Path
    undisturbed: Path
    runs: Path
    cache: Path

    def trials(self) -> list[Path]:
        """Where the cluster's sweep keeps its trials."""
        return [self.runs / unit.name for unit in self.undisturbed.glob("tiny-[tv]*")]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("nodes")
    keys = {
        "training": LONG,
        "evaluation": {"rescore": False},
        "runtime": {"keep": "all", "slice_responses": 3},
    }
    experiment = write_experiment(folder, METHODS, **keys)
    cache, theirs = folder / "cache", folder / "cache of the nodes"
    setup = from_a_hub(experiment, folder / "made", [cache, theirs])
    (folder / "setups" / "tiny.yaml").write_text(yaml.safe_dump(setup))
    undisturbed = folder / "undisturbed"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", NO_HUB)
        patch.setenv("HF_HUB_CACHE", str(cache))
        patch.setattr(constants, "ENDPOINT", NO_HUB)
        patch.setattr(constants, "HF_HUB_CACHE", str(cache))
        run_without_ray(experiment, undisturbed)
        with start_nodes(2, HF_ENDPOINT=NO_HUB, HF_HUB_CACHE=str(theirs)) as nodes:
            yield World(nodes, experiment, undisturbed, folder / "runs", cache)


def from_a_hub(experiment: Path, made: Path, caches: list[Path]) -> dict[str, Any]:
    """The tiny setup with its models as models of a hub, which are then in the caches."""
    (student, teacher) = made_here(load_experiment(experiment, []), made)["tiny"]
    setup = TINY_SETUP | {"tokenizer": None}
    for role, model in (("student", student), ("teacher", teacher)):
        setup[role] = {
            "path": f"tiny/{role}",
            "revision": COMMIT,
            "eos": TINY_SETUP[role]["eos"],
            "shape": TINY_SHAPE,
        }
        for cache in caches:
            shutil.copytree(model.path, snapshot(cache, role, COMMIT))
    return setup


def snapshot(cache: Path, role: str, commit: str) -> Path:
    """Where a model lies in a cache of the hub."""
    return cache / f"models--tiny--{role}" / "snapshots" / commit


def test_a_model_that_nodes_lack_is_named_before_anything_starts(
    world: World, tmp_path: Path
) -> None:
    """Another version of the student is in the cache of the command, and not in that of the nodes."""
    shutil.copytree(
        snapshot(world.cache, "student", COMMIT), snapshot(world.cache, "student", ANOTHER_COMMIT)
    )
    setup = yaml.safe_load((world.experiment.parent / "setups" / "tiny.yaml").read_text())
    setup["student"]["revision"] = ANOTHER_COMMIT
    experiment = write_experiment(tmp_path, {"vanilla": {}})
    (tmp_path / "setups" / "tiny.yaml").write_text(yaml.safe_dump(setup))
    done = trb("submit", experiment, "--runs", tmp_path / "runs", "--address", world.nodes.address)
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith(
        f"trb: tiny.student.path: 'tiny/student@{ANOTHER_COMMIT}': expected the same on every node; "
    )
    assert "(127.0.0.1): tiny/student@" in line
    assert not list((tmp_path / "runs").glob("tiny-*"))


def test_nodes_are_lost_and_others_join(world: World, tmp_path: Path) -> None:
    """First one joins that lacks the models: it gets no work. All that is left is then done on the
    last one.
    """
    runs, nodes = world.runs, world.nodes
    process = start("submit", world.experiment, "--runs", runs, "--address", nodes.address)
    left = {node.id: node for node in nodes.all}
    kill_a_busy_one(world, process, left)
    unable = nodes.add(HF_HUB_CACHE=str(tmp_path / "empty"))
    kill_a_busy_one(world, process, left)
    able = nodes.add()
    wait_for(process, lambda: any(beat.node == able.id for beat in beats(runs)))
    out, err = process.communicate()
    nodes.kill(unable.raylet)
    assert process.returncode == 0, out + err
    assert out.count("no work for a node: tiny.student.path: 'tiny/student@") == 1
    assert contents(runs) == contents(world.undisturbed)


def kill_a_busy_one(world: World, process: subprocess.Popen[str], left: dict[str, Node]) -> None:
    """SIGKILL the raylet of one of the nodes `left` as soon as a trial is midway on it, and take it
    from them.
    """
    busy = set[str]()

    def found() -> bool:
        busy.update(left.keys() & {node_of(unit) for unit in world.trials() if worker_midway(unit)})
        return bool(busy)

    wait_for(process, found)
    world.nodes.kill(left.pop(busy.pop()).raylet)


def test_the_head_is_lost(world: World) -> None:
    """The command says so in a line and ends, and so does what it has started; then it goes on
    without the cluster.
    """
    runs, nodes = world.runs, world.nodes
    process = start(
        "submit", world.experiment, *ANOTHER, "--runs", runs, "--address", nodes.address
    )
    wait_for(
        process,
        lambda: [
            unit for unit in runs.glob("tiny-trust_region-epsilon0=0.3-*") if worker_midway(unit)
        ],
    )
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
