"""What a private cluster shows of itself."""

from __future__ import annotations

import subprocess
import sys

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


@pytest.mark.ray
def test_what_servers_tell_a_driver_does_not_reach_the_terminal() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TOLD], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout + done.stderr == "over\n"
