"""States that a unit saves between two checkpoints: what a kill leaves, and what ends there."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from orchestrator.records.files import Damaged
from orchestrator.records.rundir import LEARNER_STATE, RunReader
from orchestrator.records.writer import RunWriter
from orchestrator.trial.training_loop import run_unit
from orchestrator.workers.members import LearnerWorker
from orchestrator.workers.roles import Here, Inline
from orchestrator.workers.spec import RoleName, WorkerSpec
from tests.sweeps import NOT_COMPARED
from tests.trial.test_training_loop import worker_spec

STEPS, EVERY = 5, 3  # so that checkpoints are those of the steps 3 and 5
ROWS = [{"id": f"{i}", "problem": f"{i}+2=?", "answer": f"{i + 2}"} for i in range(1, 25)]
AT_ONCE = "0.001s"  # no step is that short: each is followed by a save or a checkpoint
ALL = [1, 2, 3, 4, 5]


def spec_of(folder: Path) -> WorkerSpec:
    """A trial of five steps, which measures itself on four prompts that it does not take."""
    folder.mkdir(exist_ok=True)
    spec = worker_spec(folder, ROWS)
    training = replace(spec.setup.training, steps=STEPS, checkpoint_every=EVERY)
    setup = replace(
        spec.setup, training=training, evaluation=replace(spec.setup.evaluation, held_out=4)
    )
    runtime = replace(spec.runtime, save_every=AT_ONCE)
    return replace(spec, unit=replace(spec.unit, steps=STEPS), setup=setup, runtime=runtime)


def stage_of(folder: Path) -> WorkerSpec:
    """The supervised stage of such a trial: its checkpoints are those of the steps 3 and 5, too."""
    spec = spec_of(folder)
    sft = replace(spec.setup.training.sft, updates=STEPS, checkpoints=[EVERY, STEPS])
    setup = replace(spec.setup, training=replace(spec.setup.training, sft=sft))
    return replace(spec, unit=replace(spec.unit, kind="sft", method=None, knobs={}), setup=setup)


def without_saves(spec: WorkerSpec) -> WorkerSpec:
    return replace(spec, runtime=replace(spec.runtime, save_every=None))


class Stops(Inline):
    """Roles that say so and wait, when the learner is called for something the n-th time."""

    def __init__(self, spec: WorkerSpec, method: str, times: int, midway: Connection):
        super().__init__(spec)
        self.method, self.times, self.midway = method, times, midway

    def call(self, role: RoleName, method: Callable[..., Any], *arguments: Any) -> Here[Any]:
        if method is getattr(LearnerWorker, self.method):
            self.times -= 1
            if self.times == 0:
                if self.method != "step":  # in the middle of writing
                    Path(arguments[0], LEARNER_STATE).write_text("a part")
                self.midway.send("midway")
                time.sleep(300)
        return super().call(role, method, *arguments)


def attempt(spec: WorkerSpec, runs: Path, roles: Inline | None = None) -> list[int]:
    """Train as far as the roles go; returns the steps after which the unit committed."""
    roles = roles or Inline(spec)
    with closing(RunWriter(runs, spec.unit.id)) as run:
        try:
            return list(run_unit(spec, run, roles))
        finally:
            roles.close()


def stop(spec: WorkerSpec, runs: Path, method: str, times: int, midway: Connection) -> None:
    """Train up to the n-th call of a method of the learner."""
    attempt(spec, runs, Stops(spec, method, times, midway))


def kill(spec: WorkerSpec, runs: Path, method: str, times: int) -> RunReader:
    """SIGKILL a process that trains the unit, there."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=stop, args=(spec, runs, method, times, there))
    process.start()
    there.close()  # so that a process that ends too early is seen here
    assert here.recv() == "midway"
    process.kill()
    process.join()
    return RunReader(runs, spec.unit.id)


def contents(run: RunReader) -> dict[str, bytes]:
    """Every file of the unit that must not depend on saves and kills."""
    files = (path for path in run.path.rglob("*") if path.is_file())
    return {
        str(path.relative_to(run.path)): path.read_bytes()
        for path in files
        if path.name not in NOT_COMPARED
    }


def saves(run: RunReader) -> list[str]:
    """What lies in the folder of saved states."""
    return sorted(path.name for path in (run.path / "saved").glob("*"))


def test_kills_between_checkpoints_repeat_no_saved_step_and_change_no_byte(tmp_path: Path) -> None:
    """SIGKILL in the second step after a save, while saving, and while a checkpoint is written."""
    spec, runs = spec_of(tmp_path / "spec"), tmp_path / "runs"
    assert attempt(without_saves(spec), tmp_path / "whole") == [EVERY, STEPS]
    whole = RunReader(tmp_path / "whole", spec.unit.id)
    run = kill(spec, runs, "step", 2)
    assert (run.next_step, run.committed_checkpoints()) == (1, [])
    assert (saves(run), len(run.committed_metrics())) == (["step_000001"], 1)
    assert [row.step for row in run.held_out()] == [0]
    run = kill(spec, runs, "save_state", 1)  # of step 2
    assert (run.next_step, saves(run)) == (1, ["step_000001", "step_000002.tmp"])
    assert len(run.metrics()) == 2
    run = kill(spec, runs, "save", 1)  # of the checkpoint of step 3
    assert (run.next_step, run.checkpoints()) == (2, {})
    assert attempt(spec, runs) == [3, 4, 5]
    assert run.trained
    assert contents(run) == contents(whole)
    assert {"checkpoints/step_000003/model.safetensors", "held_out.jsonl", "state.json"} < {
        *contents(run)
    }
    log = run.log_text() or ""
    assert [log.count(f"training from step {step} of 5") for step in (0, 1, 2)] == [1, 2, 1]


def test_a_supervised_stage_goes_on_from_its_save(tmp_path: Path) -> None:
    spec, runs = stage_of(tmp_path / "spec"), tmp_path / "runs"
    attempt(without_saves(spec), tmp_path / "whole")
    run = kill(spec, runs, "step", 5)
    assert (run.next_step, run.committed_checkpoints(), saves(run)) == (4, [3], ["step_000004"])
    assert attempt(spec, runs) == [5]
    assert contents(run) == contents(RunReader(tmp_path / "whole", spec.unit.id))


def test_saves_change_no_byte_and_leave_nothing(tmp_path: Path) -> None:
    spec = spec_of(tmp_path / "spec")
    for save_every, commits in (("20min", [3, 5]), (AT_ONCE, ALL), (None, [3, 5])):
        spec = replace(spec, runtime=replace(spec.runtime, save_every=save_every))
        assert attempt(spec, tmp_path / str(save_every)) == commits
    found = [contents(RunReader(tmp_path / name, spec.unit.id)) for name in ("None", AT_ONCE)]
    assert found[0] == found[1]
    assert not (tmp_path / AT_ONCE / spec.unit.id / "saved").exists()


def test_one_state_is_kept_to_go_on_from_and_it_is_no_checkpoint(tmp_path: Path) -> None:
    """After each commit it is the state of that step alone, and only checkpoints hold a model."""
    spec, seen = spec_of(tmp_path / "spec"), list[tuple[list[int], list[str]]]()
    roles = Inline(spec)
    with closing(RunWriter(tmp_path / "runs", spec.unit.id)) as run:
        for _ in run_unit(spec, run, roles):
            seen.append((run.committed_checkpoints(), saves(run)))
            states = sorted(path.parent for path in run.path.rglob(LEARNER_STATE))
            assert states == [run.verified_state()]
            assert sorted(run.checkpoints()) == run.committed_checkpoints()
        roles.close()
    assert seen == [
        ([], ["step_000001"]),
        ([], ["step_000002"]),
        ([3], []),
        ([3], ["step_000004"]),
        ([3, 5], []),
    ]


def test_a_damaged_save_is_said_and_never_trained_from(tmp_path: Path) -> None:
    spec, runs = spec_of(tmp_path / "spec"), tmp_path / "runs"
    run = kill(spec, runs, "step", 2)
    (run.path / "saved" / "step_000001" / LEARNER_STATE).write_text("moments 4 5 6")
    with pytest.raises(
        Damaged, match=r"saved/step_000001/learner.safetensors.*trains the unit again"
    ):
        attempt(spec, runs)
