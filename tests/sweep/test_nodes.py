"""A sweep over several nodes: some are lost, another joins, and every file equals those of the sweep without Ray.

The nodes are raylets of this machine (`tests.nodes`), so a folder that one of them has, all of them have.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.records.pulse import Beat, read_beat
from tests.nodes import start_nodes
from tests.sweep.test_recovery import wait_for, worker_midway
from tests.sweeps import contents, start, write_experiment
from tests.without_ray import run_without_ray

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("recovery"), pytest.mark.timeout(1800)]

METHODS = {"vanilla": {}, "trust_region": {"epsilon0": [0.1, 0.2], "K": [5]}}
LONG = {"steps": 30, "checkpoint_every": 5}  # so that there is a middle on a fast machine, too


def test_nodes_are_lost_and_another_one_joins(tmp_path: Path) -> None:
    keys = {"training": LONG, "evaluation": {"rescore": False}, "runtime": {"keep": "all", "slice_responses": 3}}
    experiment, undisturbed, runs = write_experiment(tmp_path, METHODS, **keys), tmp_path / "alone", tmp_path / "runs"
    run_without_ray(experiment, undisturbed)
    shutil.copytree(undisturbed / ".models", runs / ".models")
    trials = [runs / unit.name for unit in undisturbed.glob("tiny-t*")]
    with start_nodes(2) as nodes:
        process = start("submit", experiment, "--runs", runs, "--address", nodes.address)
        for node in list(nodes.all):
            wait_for(process, lambda node=node: node.id in {node_of(unit) for unit in trials if worker_midway(unit)})
            nodes.kill(node.raylet)
        added = nodes.add()  # all that is left to do is done here
        wait_for(process, lambda: any(beat.node == added.id for beat in beats(runs)))
        out, err = process.communicate()
    assert process.returncode == 0, out + err
    assert contents(runs) == contents(undisturbed)


def node_of(unit: Path) -> str | None:
    """Ray's id of the node on which a unit is trained."""
    beat = read_beat(unit.parent / ".locks" / f"{unit.name}.pulse")
    return beat.node if beat else None


def beats(runs: Path) -> list[Beat]:
    """The signs of life of all that runs."""
    return [beat for path in (runs / ".locks").glob("*.pulse") if (beat := read_beat(path))]
