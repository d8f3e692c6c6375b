"""Answers to Tune's question for more work, on a cluster that changes."""

from __future__ import annotations

import errno
from contextlib import closing
from pathlib import Path

import pytest
from ray.tune.search import Searcher

from orchestrator.experiment.units import Unit
from orchestrator.records.writer import RunWriter, append_timing
from orchestrator.selection.study import Study
from orchestrator.sweep.nodes import AnyNode
from orchestrator.sweep.processes import FULL_DISK, Sweep, WorkTrainable
from orchestrator.sweep.schedule import Evaluating, TrainUnit
from orchestrator.sweep.tuner import HoursLimit, Spending, SweepSearcher, spending
from tests.fake_runs import metrics, quickstart, units_of


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


# --- A limit on device-hours: what a next piece costs, and when nothing begins any more ---


HOUR = 3600


def at_work(runs: Path, unit: Unit, steps: int, seconds: float, committed: int = 0) -> None:
    """A unit that has logged so many steps."""
    with closing(RunWriter(runs, unit.id)) as run:
        run.append("metrics.jsonl", [metrics(step) for step in range(committed)])
        for step in range(steps):
            run.append_timing({"step": step, "phase": "train", "rollout": seconds})
        if committed:
            run.new_checkpoint(committed, lambda folder: (folder / "model.safetensors").touch())
            run.commit(committed)
        run.append("metrics.jsonl", [metrics(step) for step in range(committed, steps)])


def study(runs: Path, *overrides: str) -> Study:
    return Study(*quickstart(*overrides), runs)


def test_a_next_piece_is_what_is_left_up_to_the_next_checkpoint_or_a_slice(tmp_path: Path) -> None:
    """Checkpoints every 20 steps, 2 s a step on two cores, and a slice of 100 responses of the
    dearer benchmark.
    """
    made = study(tmp_path, "runtime.slice_responses=100", "runtime.placement.cpus=2")
    [vanilla], [other] = (units_of(list(made.units), name) for name in ("vanilla", "veto"))
    at_work(tmp_path, vanilla, 10, 2.0)
    now = spending(made)
    assert now.next_piece(TrainUnit(vanilla)) == pytest.approx(2 * 10 * 2.0 / HOUR)
    assert now.next_piece(TrainUnit(other)) == pytest.approx(2 * 20 * 2.0 / HOUR)
    at_work(tmp_path, vanilla, 27, 2.0, committed=20)
    row = {"step": 20, "phase": "evaluate", "draw": 0, "responses": 50}
    append_timing(made.reader(vanilla), row | {"benchmark": "arithmetic_short", "seconds": 10.0})
    append_timing(made.reader(vanilla), row | {"benchmark": "arithmetic_long", "seconds": 25.0})
    now = spending(made)
    assert now.next_piece(TrainUnit(vanilla)) == pytest.approx(2 * 13 * 2.0 / HOUR)
    assert now.next_piece(Evaluating(1)) == pytest.approx(2 * 100 * 0.5 / HOUR)


def test_a_piece_ends_with_the_step_after_which_a_state_is_saved(tmp_path: Path) -> None:
    """Checkpoints every 20 steps of 2 s; 10 s after a commit come after the sixth step at most."""
    for save_every, seconds in (("10s", 12.0), ("10min", 40.0), ("null", 40.0)):
        made = study(tmp_path / save_every, f"runtime.save_every={save_every}")
        [vanilla] = units_of(list(made.units), "vanilla")
        at_work(tmp_path / save_every, vanilla, 20, 2.0, committed=20)
        piece = spending(made).next_piece(TrainUnit(vanilla))
        assert piece == pytest.approx(seconds / HOUR)


def test_before_anything_was_measured_a_piece_on_cores_is_unknown_and_may_begin(
    tmp_path: Path,
) -> None:
    made = study(tmp_path)
    [vanilla] = units_of(list(made.units), "vanilla")
    assert (spending(made).spent, spending(made).next_piece(TrainUnit(vanilla))) == (0.0, 0.0)
    assert HoursLimit(1e-9, lambda: spending(made)).allows(TrainUnit(vanilla), [])


def test_a_piece_that_would_pass_the_limit_closes_the_budget_for_good(tmp_path: Path) -> None:
    made = study(tmp_path)
    first, second = (TrainUnit(unit) for unit in units_of(list(made.units), "trust_region"))
    [vanilla] = units_of(list(made.units), "vanilla")
    at_work(tmp_path, vanilla, 10, 2.0)
    piece = spending(made).next_piece(first)
    spent = [1.0]

    def look() -> Spending:
        return Spending(made, spent[0], spending(made).seconds)

    budget = HoursLimit(1.0 + 2.5 * piece, look)
    assert budget.allows(first, [second])
    assert not budget.allows(first, [second, second])
    spent[0] = 0.0
    assert not budget.allows(first, []), "what was refused once is never begun beside what ends now"


def test_what_is_trained_may_always_say_so(tmp_path: Path) -> None:
    made = study(tmp_path)
    [vanilla] = units_of(list(made.units), "vanilla")
    at_work(tmp_path, vanilla, 60, 2.0, committed=60)
    budget = HoursLimit(1e-9, lambda: Spending(made, 1.0, spending(made).seconds))
    assert not budget.allows(Evaluating(1), [])
    assert budget.allows(TrainUnit(vanilla), [])
