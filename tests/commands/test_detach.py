"""`trb submit --detach` and `trb cancel`: a driver in the background, or a job of Ray's job server."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.liveness.leases import drivers_of
from tests.sweeps import TINY_SETUP, trb, trb_here, write_experiment

JOBS: list[dict[str, Any]] = []  # what the fake job server was asked for


def slow_models(folder: Path) -> Path:
    """An experiment whose models take hours to make."""
    path = write_experiment(folder, {"vanilla": {}})
    recipe = TINY_SETUP["student"]["recipe"] | {"updates": 1_000_000}
    setup = TINY_SETUP | {"student": TINY_SETUP["student"] | {"recipe": recipe}}
    (folder / "setups" / "tiny.yaml").write_text(yaml.safe_dump(setup))
    return path


def test_a_detached_submit_goes_on_until_it_is_cancelled(tmp_path: Path) -> None:
    experiment, runs = slow_models(tmp_path), tmp_path / "runs"
    begun = trb("submit", experiment, "--runs", runs, "--detach")
    assert begun.returncode == 0, begun.stdout + begun.stderr
    (driver,) = drivers_of(runs, "sweep")
    assert f"process {driver.holder.pid} goes on in the background" in begun.stdout
    assert f"stop it:     trb cancel {experiment} --runs {runs}" in begun.stdout
    cancelled = trb("cancel", experiment, "--runs", runs)
    assert cancelled.returncode == 0, cancelled.stdout + cancelled.stderr
    assert f"process {driver.holder.pid}" in cancelled.stdout
    assert not driver.runs
    (log,) = (runs / ".submits").iterdir()
    while "go on with: trb submit" not in log.read_text():
        time.sleep(0.1)
    assert "Traceback" not in log.read_text()
    again = trb("cancel", experiment, "--runs", runs)
    assert again.returncode == 2
    assert again.stderr == f"trb: sweep: nothing to cancel; no trb submit of it runs in {runs}\n"


def test_a_detached_submit_that_ends_at_once_says_what_it_said(tmp_path: Path) -> None:
    experiment = write_experiment(tmp_path, {"vanilla": {}})
    done = trb(
        "submit", experiment, "--runs", tmp_path / "runs", "--address", "127.0.0.1:1", "--detach"
    )
    assert done.returncode == 2
    assert "--address: '127.0.0.1:1': expected a Ray cluster; nothing answers there" in done.stderr


class JobServer(BaseHTTPRequestHandler):
    """As much of Ray's job server as a job needs."""

    def do_POST(self) -> None:
        job = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        JOBS.append(job | {"path": self.path, "token": self.headers["Authorization"]})
        body = json.dumps(
            {"job_id": job["submission_id"], "submission_id": job["submission_id"]}
        ).encode()
        self.send_response(200 if self.path == "/api/jobs/" else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def job_server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), JobServer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_job_of_the_job_server_drives_the_sweep_on_the_cluster(
    job_server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "token")
    experiment, runs = write_experiment(tmp_path, {"vanilla": {}}), tmp_path / "runs"
    JOBS.clear()
    words = ("submit", experiment, "--runs", runs, "--address", job_server, "--detach")
    code, out, err = trb_here(capsys, *words)
    assert code == 0, err
    (job,) = JOBS
    assert job["entrypoint"].startswith(f"cd {os.getcwd()} && exec ")
    assert job["entrypoint"].endswith(f"submit {experiment} --runs {runs} --yes --address auto")
    assert job["submission_id"].startswith("trb-sweep-")
    assert job["token"] == "Bearer token"
    assert "secret" not in json.dumps(job)
    assert f"job {job['submission_id']} of {job_server}" in out
    assert f"trb cancel {experiment}" in out


@pytest.mark.parametrize(
    ("address", "more", "words"),
    [
        ("http://127.0.0.1:1", [], "--detach beside the address of a job server"),
        ("http://127.0.0.1:1", ["--detach"], "a server that takes the job"),
        ("http://[", ["--detach"], "a server that takes the job"),
    ],
)
def test_a_job_server_is_for_detached_sweeps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], address: str, more: list[str], words: str
) -> None:
    experiment, runs = write_experiment(tmp_path, {"vanilla": {}}), tmp_path / "runs"
    code, _, err = trb_here(
        capsys, "submit", experiment, "--runs", runs, "--address", address, *more
    )
    assert (code, err.count("\n")) == (2, 1)
    assert words in err
    assert not runs.exists()
