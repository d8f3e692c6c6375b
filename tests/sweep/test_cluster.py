"""What a private cluster shows of itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sweeps import ROOT

# A driver that Ray's servers tell something, as their agent does once a raylet has died; it ends when that has arrived.
TOLD = """
import logging, threading
from orchestrator.sweep.environment import prepare_environment

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

# A driver that says where the server of its cluster is, and lives until its standard input ends.
LISTENING = """
import sys
from orchestrator.sweep.environment import prepare_environment

prepare_environment(None)
from orchestrator.sweep.cluster import cluster
with cluster(None):
    import os, ray

    print(ray.get_runtime_context().gcs_address, os.environ["RAY_AUTH_TOKEN"], flush=True)
    sys.stdin.read()
"""
ASK = "import sys; from ray._raylet import GcsClient; print(len(GcsClient(sys.argv[1]).get_all_node_info(timeout=60)))"


@pytest.mark.ray
def test_a_private_cluster_answers_only_those_who_have_its_token(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    pipe = subprocess.PIPE
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")}
    with subprocess.Popen(
        [sys.executable, "-c", LISTENING], cwd=ROOT, stdin=pipe, stdout=pipe, text=True, env=environment | home
    ) as driver:
        assert driver.stdout is not None
        address, token = driver.stdout.readline().split()
        answers = []
        for known in ({"RAY_AUTH_TOKEN": token}, {"RAY_AUTH_TOKEN": "a" * 64}, {"RAY_AUTH_MODE": "disabled"}):
            asked = subprocess.run(
                [sys.executable, "-c", ASK, address],
                env=environment | home | {"RAY_AUTH_MODE": "token"} | known,
                capture_output=True,
                text=True,
                check=False,
            )
            answers.append((asked.returncode, asked.stdout.strip(), "AuthenticationError" in asked.stderr))
        driver.communicate()
    assert answers[0] == (0, "1", False)
    assert answers[1:] == [(1, "", True)] * 2
    assert list(tmp_path.rglob("auth_token")) == []


@pytest.mark.ray
def test_what_servers_tell_a_driver_does_not_reach_the_terminal() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TOLD], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout + done.stderr == "over\n"
