"""Sweeps that several tests look at, run once for all test processes. Tests copy what they change."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tests.sweeps import Sweep, run_sweep


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """Roles inline, and one trial whose roles are actors of their own; one sample for each problem."""
    methods = {"vanilla": {}, "sft_warmup": {"K": [4]}, "skd": {"K": [5], "tau_T": [0.6], "placement": "split"}}
    return _shared_sweep(tmp_path_factory, "finished", methods, evaluation={"rescore": False})


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """What the sweep that is killed must come out as; vanilla colocated, three samples for each problem."""
    methods = {
        "vanilla": {"placement": "colocated"},
        "trust_region": {"epsilon0": [0.05], "K": [5]},
        "sft_warmup": {"K": [4]},
    }
    three = {"benchmarks": {"arithmetic_short": {"n": 3}}}
    return _shared_sweep(tmp_path_factory, "undisturbed", methods, evaluation=three)


def _shared_sweep(
    tmp_path_factory: pytest.TempPathFactory, name: str, methods: dict[str, Any], **keys: object
) -> Sweep:
    """The first test process that asks runs the sweep; the others wait for it and read the same folder."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with FileLock(f"{folder}.lock"):
        record = folder / "sweep.json"
        if not record.exists():
            sweep = run_sweep(folder, methods, **keys)
            record.write_text(json.dumps({"experiment": str(sweep.experiment), "shown": sweep.shown}))
        found = json.loads(record.read_text())
    return Sweep(Path(found["experiment"]), folder / "runs", found["shown"])
