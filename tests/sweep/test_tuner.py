"""Answers to Tune's question for more work, on a cluster that changes."""

from __future__ import annotations

from pathlib import Path

from orchestrator.selection.study import Study
from orchestrator.sweep.nodes import AnyNode
from orchestrator.sweep.spec import Sweep
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
