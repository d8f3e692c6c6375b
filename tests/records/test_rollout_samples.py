"""Rollouts that are kept token by token: read as written, vouched for by commits, taken back by none."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.records.files import Damaged
from orchestrator.records.log import RolloutSample, samples_name
from orchestrator.records.rundir import RunReader
from orchestrator.records.writer import RunWriter

UNIT = "unit-0"


def sample(number: int) -> RolloutSample:
    return RolloutSample(
        index=3,
        sample=number,
        prompt="1+1=?\n",
        gold=None,
        reward=None,
        truncated=True,
        tokens=["2", "", "é"],
        student=[-0.1, -2.0, 0.0],
        behavior=[-0.1, -1.0, 0.0],
        teacher=[-0.5, -0.25, -3.0],
        survived=[True, False, True],
        measured={"beta": [1.0, 0.25, 0.5]},
        ids=[7, 300, 4],
    )


def test_samples_are_read_as_written_once_they_are_committed(tmp_path: Path) -> None:
    reader = RunReader(tmp_path, UNIT)
    with closing(RunWriter(tmp_path, UNIT)) as run:
        run.write_samples(0, [sample(0), sample(1)])
        assert reader.sampled_steps() == []
        run.write_samples(19, [sample(2)])
        run.commit(20)
    assert reader.sampled_steps() == [0, 19]
    assert reader.rollout_samples(0) == [sample(0), sample(1)]
    assert reader.rollout_samples(19) == [sample(2)]
    assert reader.rollout_samples(7) == []


def test_the_next_attempt_replaces_what_a_kill_left(tmp_path: Path) -> None:
    with closing(RunWriter(tmp_path, UNIT)) as run:
        run.write_samples(0, [sample(0)])
        run.commit(20)
        run.write_samples(39, [sample(1)])
    with closing(RunWriter(tmp_path, UNIT)) as run:
        assert run.sampled_steps() == [0]
        run.write_samples(39, [sample(2)])
        run.commit(40)
    assert RunReader(tmp_path, UNIT).rollout_samples(39) == [sample(2)]
    assert RunReader(tmp_path, UNIT).rollout_samples(0) == [sample(0)]


def test_samples_that_were_changed_are_damaged(tmp_path: Path) -> None:
    with closing(RunWriter(tmp_path, UNIT)) as run:
        run.write_samples(0, [sample(0)])
        written = (run.path / samples_name(0)).read_bytes()
        run.write_samples(0, [sample(1)])
        run.commit(20)
    path = run.path / samples_name(0)
    for edited in (b"", written, path.read_bytes()[:-1]):
        path.write_bytes(edited)
        with pytest.raises(Damaged, match="is not what was written"):
            run.rollout_samples(0)
    path.unlink()
    with pytest.raises(Damaged, match="is not what was written"):
        run.rollout_samples(0)
