"""What a private cluster shows of itself, and where a cluster with GPUs places roles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from orchestrator.errors import ClusterDied
from orchestrator.sweep import cluster, nodes
from tests.sweeps import ROOT

# A driver that Ray's servers tell something, as their agent does once a raylet has died; it ends
# when that has arrived.
TOLD = """
import logging, threading
from orchestrator.sweep.prepare import prepare_environment

arrived = threading.Event()

class Notes(logging.Handler):
    def emit(self, record):
        if "Last lines of the raylet's log" in record.getMessage():
            arrived.set()

noted = logging.getLogger("orchestrator.sweep.cluster")
noted.addHandler(Notes())
noted.setLevel(logging.INFO)
prepare_environment(None)
from orchestrator.sweep.cluster import cluster
with cluster(None):
    from ray._private.utils import publish_error_to_driver
    from ray._private.worker import global_worker

    while not arrived.wait(0.2):  # who listens may still be coming up
        publish_error_to_driver("raylet_died", "Last lines of the raylet's log", global_worker.gcs_client)
print("over")
"""

# A driver bound to one core that says where its cluster's server is, with which token, and how many
# cores the cluster has. It lives until its standard input ends.
LISTENING = """
import os, sys
from orchestrator.sweep.prepare import prepare_environment

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # as Slurm and taskset do
prepare_environment(None)
from orchestrator.sweep.cluster import capacity, cluster
with cluster(None):
    import ray

    print(ray.get_runtime_context().gcs_address, os.environ["RAY_AUTH_TOKEN"], capacity()["CPU"], flush=True)
    sys.stdin.read()
"""
ASK = "import sys; from ray._raylet import GcsClient; print(len(GcsClient(sys.argv[1]).get_all_node_info(timeout=60)))"


@pytest.mark.ray
def test_a_private_cluster_has_its_drivers_cores_and_answers_who_has_its_token(
    tmp_path: Path,
) -> None:
    home = {"HOME": str(tmp_path)}
    pipe = subprocess.PIPE
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")
    }
    with subprocess.Popen(
        [sys.executable, "-c", LISTENING],
        cwd=ROOT,
        stdin=pipe,
        stdout=pipe,
        text=True,
        env=environment | home,
    ) as driver:
        assert driver.stdout is not None
        address, token, cores = driver.stdout.readline().split()
        answers = []
        for known in (
            {"RAY_AUTH_TOKEN": token},
            {"RAY_AUTH_TOKEN": "a" * 64},
            {"RAY_AUTH_MODE": "disabled"},
        ):
            asked = subprocess.run(
                [sys.executable, "-c", ASK, address],
                env=environment | home | {"RAY_AUTH_MODE": "token"} | known,
                capture_output=True,
                text=True,
                check=False,
            )
            answers.append(
                (asked.returncode, asked.stdout.strip(), "AuthenticationError" in asked.stderr)
            )
        driver.communicate()
    assert float(cores) == 1
    assert answers[0] == (0, "1", False)
    assert answers[1:] == [(1, "", True)] * 2
    assert list(tmp_path.rglob("auth_token")) == []


@pytest.mark.ray
def test_what_servers_tell_a_driver_does_not_reach_the_terminal() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TOLD],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout + done.stderr == "over\n"


def test_servers_that_die_while_ray_starts_end_the_sweep_and_not_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def init(**_: object) -> None:  # as Ray does, half a minute after its raylet was killed
        raise Exception(
            "The current node timed out during startup. This could happen because some of the raylet …"
        )

    monkeypatch.setattr(cluster.ray, "init", init)
    said = r"^Ray did not start \(The current node timed out during startup\); what was committed is safe$"
    with pytest.raises(ClusterDied, match=said), cluster._ray(None, {}):
        pytest.fail("there is no cluster")


# A driver on a cluster that declares four GPUs, and a trial in its placement group that starts its
# roles there.
PLACED = """
import json, sys
from dataclasses import replace
from pathlib import Path
from orchestrator.sweep.prepare import prepare_environment

prepare_environment(None)
import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from orchestrator.config import Placement, RoleGpus
from orchestrator.sweep.nodes import AnyNode
from orchestrator.sweep.tuner import placement
from orchestrator.workers.spec import bundles
from tests import tiny

class Trial:
    def gpus(self, spec):
        from orchestrator.workers.actors import start_roles

        actors = start_roles(spec)._actors
        return {role: ray.get(actor.__ray_call__.remote(own)) for role, actor in actors.items()}

def own(host):
    import os

    return [str(gpu) for gpu in ray.get_gpu_ids()], os.environ["CUDA_VISIBLE_DEVICES"].split(",")

split = Placement("split", 4, RoleGpus(2, 1, 1), 1)
spec = tiny.worker_spec(Path(sys.argv[1]))
spec = replace(spec, unit=replace(spec.unit, placement=split))
ray.init(num_cpus=2, num_gpus=4, include_dashboard=False, log_to_driver=False, _temp_dir=sys.argv[2])
group = placement(bundles(split), {}).to_placement_group()
ray.get(group.ready())
where = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=True)
trial = ray.remote(num_cpus=0.25, scheduling_strategy=where)(Trial).remote()
gpus = ray.get(trial.gpus.remote(spec))
print(json.dumps({"gpus": gpus, "free": AnyNode().free()}))
"""


@pytest.mark.ray
def test_roles_of_a_split_trial_have_gpus_of_their_own(tmp_path: Path) -> None:
    """The cluster only says that it has GPUs, which is all that placing takes."""
    with tempfile.TemporaryDirectory(
        prefix="trb-", dir="/tmp"
    ) as short:  # sockets have short names
        done = subprocess.run(
            [sys.executable, "-c", PLACED, tmp_path, short],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    found = answer["gpus"]
    assert [node.get("GPU", 0.0) for node in answer["free"]] == [0.0], "of four GPUs all are taken"
    assert {role: len(ids) for role, (ids, _) in found.items()} == {
        "rollout": 2,
        "teacher": 1,
        "learner": 1,
    }
    assert all(ids == visible for ids, visible in found.values()), (
        "libraries see the role's own GPUs alone"
    )
    assert sorted(gpu for ids, _ in found.values() for gpu in ids) == ["0", "1", "2", "3"]


def test_only_what_is_free_on_nodes_that_can_be_given_work_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of three nodes lacks something, and one is gone between the two questions."""
    rows = [
        {"NodeID": name, "Alive": True, "Resources": {"CPU": 8.0, "GPU": 4.0}}
        for name in ("fit", "unfit", "gone")
    ]
    monkeypatch.setattr(nodes.ray, "nodes", lambda: rows)
    monkeypatch.setattr(
        nodes, "available_resources_per_node", lambda: {"fit": {"GPU": 2.0}, "unfit": {"GPU": 4.0}}
    )
    found = nodes.FitNodes([], print)
    found._nodes = {
        row["NodeID"]: nodes._Node(row["NodeID"], 0.0, 0.0, fit=row["NodeID"] != "unfit")
        for row in rows
    }
    assert found.free() == [{"GPU": 2.0}]
