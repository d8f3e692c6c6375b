"""One engine for all tests of a process: it takes half a minute to start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.engines.interface import Job
from orchestrator.workers.members import job_of
from tests import tiny
from tests.engines.installed import skip_without


@pytest.fixture(scope="session")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The tiny pair, on an engine that gives its cache back after each call as it does on a GPU."""
    folder: Path = tmp_path_factory.mktemp("pair")
    return replace(job_of(tiny.worker_spec(folder)), takes_turns=True)


@pytest.fixture(scope="session")
def sglang(job: Job) -> Iterator[object]:
    """The engine of the tiny pair."""
    skip_without("sglang")
    from orchestrator.engines.sglang.engine import open_engine

    engine = open_engine(job)
    yield engine
    engine.close()
