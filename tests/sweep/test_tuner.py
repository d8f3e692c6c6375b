"""Answers to Tune's question for more work, on a cluster that changes."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from ray.tune.search import Searcher

from orchestrator.selection.study import Study
from orchestrator.sweep.nodes import AnyNode
from orchestrator.sweep.processes import WorkTrainable
from orchestrator.sweep.spec import FULL_DISK, Sweep
from orchestrator.sweep.tuner import SweepSearcher
from tests.fake_runs import quickstart


class LosingNodes(AnyNode):
    """A cluster with another number of cores at each count."""

    def __init__(self, *cores: float):
        self._cores = list(cores)

    def capacity(self) -> dict[str, float]:
        return {"CPU": self._cores.pop(0)}

    def labels(self) -> dict[str, str]:
        return {}


def searcher(runs: Path, *cores: float) -> SweepSearcher:
    experiment, units = quickstart()
    return SweepSearcher(
        Sweep(Study(experiment, units, runs), {}, "sweep", 3, ()), LosingNodes(*cores)
    )


def test_no_work_begins_on_a_node_that_was_lost_since_the_last_count(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    assert searcher(runs, 2.0, 2.0).suggest("a") is not None
    assert searcher(runs, 2.0, 0.0).suggest("a") is None


class FailingWork:
    """Work whose step raises an error."""

    def __init__(self, error: Exception):
        self._error = error

    def step(self) -> None:
        raise self._error


def result_of(error: Exception) -> dict[str, object]:
    """The result with which a process reports its work to Tune."""
    trainable = WorkTrainable.__new__(WorkTrainable)
    trainable._process = FailingWork(error)  # pyright: ignore[reportAttributeAccessIssue]
    return trainable.step()


def test_a_full_disk_ends_the_sweep_and_is_not_tried_again(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    works = searcher(runs, *[2.0] * 4)
    assert works.suggest("a") is not None
    assert works.suggest("b") is not None
    full = OSError(errno.ENOSPC, "No space left on device", str(runs / "x"))
    caused = RuntimeError("a slice could not be sampled")
    caused.__cause__ = full
    for error in (full, caused):
        result = result_of(error)
        assert result == {"done": True, FULL_DISK: [full.errno, full.strerror, full.filename]}
        assert works("a", result), "this work ends"
    assert works("b", {}), "other work ends at its next commit"
    works.on_trial_complete("a", result_of(full))
    works.on_trial_complete("b", {"done": True})
    assert works.suggest("c") == Searcher.FINISHED
    assert works.full_disk == [full.errno, full.strerror, full.filename]


def test_other_errors_reach_tune() -> None:
    with pytest.raises(OSError, match="Stale"):
        result_of(OSError(errno.ESTALE, "Stale file handle"))
