"""Sweeps that several tests look at, run once."""

from __future__ import annotations

import pytest

from tests.sweeps import Sweep, run_sweep


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """Roles inline, and one trial whose roles are actors of their own; one sample for each problem."""
    methods = {"vanilla": {}, "sft_warmup": {"K": [4]}, "skd": {"K": [5], "tau_T": [0.6], "placement": "split"}}
    return run_sweep(tmp_path_factory.mktemp("finished"), methods, evaluation={"rescore": False})


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """What the sweep that is killed must come out as; vanilla colocated, three samples for each problem."""
    methods = {
        "vanilla": {"placement": "colocated"},
        "trust_region": {"epsilon0": [0.05], "K": [5]},
        "sft_warmup": {"K": [4]},
    }
    three = {"benchmarks": {"arithmetic_short": {"n": 3}}}
    return run_sweep(tmp_path_factory.mktemp("undisturbed"), methods, evaluation=three)
