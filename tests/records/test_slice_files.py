"""Files of slices: there whole or not at all, written once, and summed as far as all problems have
them.
"""

from __future__ import annotations

import shutil
import threading
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.records.files import Damaged
from orchestrator.records.rundir import RunReader
from orchestrator.records.slices import Slice
from orchestrator.records.writer import RunWriter, write_slice
from tests.fake_runs import record, write_evaluation

UNIT = "unit-0"


def test_evaluations_are_read_as_written(tmp_path: Path) -> None:
    records = [record(3, problem="α/1"), record(0, problem="α/2")]
    with closing(RunWriter(tmp_path, UNIT)) as run:
        assert run.evaluation("bench-1", 2) is None
        write_evaluation(run, "bench-1", 2, [record(1)])
        write_evaluation(run, "bench-1", 2, records)
        write_evaluation(run, "bench-1", 10, records)
    reader = RunReader(tmp_path, UNIT)
    assert reader.evaluation("bench-1", 2) == records
    assert reader.evaluated_steps("bench-1") == [2, 10]
    assert reader.evaluated_steps("bench-2") == []


def test_a_slice_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    versions = [[record(correct, problem=f"{i}" * 50) for i in range(100)] for correct in (1, 2)]
    part = Slice(0, 4, 0, 100, 100)
    with closing(RunWriter(tmp_path, UNIT)) as run:
        write = [
            lambda i=i: write_slice(run, "bench", 2, part, versions[i % 2], replace=True)
            for i in range(40)
        ]
        thread = threading.Thread(target=lambda: [each() for each in write])
        thread.start()
        seen = []
        while thread.is_alive():
            seen.append(RunReader(tmp_path, UNIT).evaluation("bench", 2))
        thread.join()
    assert all(found in (None, *versions) for found in seen)


def test_the_first_to_write_a_slice_wins(tmp_path: Path) -> None:
    run, part = RunReader(tmp_path, UNIT), Slice(0, 4, 0, 1, 1)
    assert write_slice(run, "bench", 2, part, [record(1)])
    assert not write_slice(run, "bench", 2, part, [record(2)])
    assert run.evaluation("bench", 2) == [record(1)]
    assert [path.name for path in run.evaluation_path("bench", 2).iterdir()] == [part.name]


def test_what_a_kill_left_of_a_slice_is_not_read(tmp_path: Path) -> None:
    with closing(RunWriter(tmp_path, UNIT)) as run:
        write_evaluation(run, "bench", 2, [record(1)])
        left = run.evaluation_path("bench", 4) / f".{Slice(0, 4, 0, 1, 1).name}.host.7.tmp"
        left.parent.mkdir()
        left.write_text('{"problem": ')
        assert run.evaluated_steps("bench") == [2]
        assert run.evaluation("bench", 4) is None


def test_an_evaluation_is_the_sum_of_its_slices_as_far_as_all_problems_have_them(
    tmp_path: Path,
) -> None:
    run = RunReader(tmp_path, UNIT)
    first, second, more = Slice(0, 4, 0, 1, 3), Slice(0, 4, 1, 3, 3), Slice(4, 6, 0, 2, 3)
    write_slice(run, "bench", 2, second, [record(2, problem="p1"), record(3, problem="p2")])
    assert run.evaluated_steps("bench") == []
    assert run.evaluation("bench", 2) is None
    write_slice(run, "bench", 2, first, [record(1, problem="p0")])
    complete = [record(correct, problem=f"p{index}") for index, correct in enumerate((1, 2, 3))]
    assert run.evaluation("bench", 2) == complete
    write_slice(run, "bench", 2, more, [record(2, 2, "p0"), record(0, 2, "p1")])
    assert run.evaluation("bench", 2) == complete
    write_slice(run, "bench", 2, Slice(4, 6, 2, 3, 3), [record(1, 2, "p2")])
    found = run.evaluation("bench", 2)
    assert found is not None
    assert [(each.problem, each.n, each.correct) for each in found] == [
        ("p0", 6, 3),
        ("p1", 6, 2),
        ("p2", 6, 4),
    ]


@pytest.mark.parametrize("names", [["p0", "p1"], ['quoted "p"', "back\\slash"], ["x²", '{"n": 9}']])
def test_counts_are_those_of_the_records(names: list[str], tmp_path: Path) -> None:
    records = [record(correct, 4, name) for correct, name in enumerate(names)]
    run, part = RunReader(tmp_path, UNIT), Slice(0, 4, 0, len(names), len(names))
    write_slice(run, "math500-0", 20, part, records)
    counts = run.slice_counts("math500-0", 20, part)
    assert (counts.problems, counts.correct.tolist()) == (
        tuple(names),
        [each.correct for each in records],
    )
    assert (
        counts.tokens
        == run.evaluation_tokens("math500-0", 20)
        == sum(each.tokens for each in records)
    )
    assert run.slice_records("math500-0", 20, part) == records


def test_a_slice_under_another_name_is_damaged(tmp_path: Path) -> None:
    run, part, other = RunReader(tmp_path, UNIT), Slice(0, 4, 0, 1, 1), Slice(0, 8, 0, 1, 1)
    write_slice(run, "math500-0", 20, part, [record(1)])
    folder = run.evaluation_path("math500-0", 20)
    (folder / part.name).rename(folder / other.name)
    for read in (run.slice_counts, run.slice_records):
        with pytest.raises(Damaged, match=r"was written in another place \(.*samples 0-4\)"):
            read("math500-0", 20, other)


@pytest.mark.parametrize(
    ("unit", "evaluation_id", "step"),
    [("unit-1", "math500-0", 20), (UNIT, "math500-1", 20), (UNIT, "math500-0", 4)],
)
def test_a_slice_in_the_place_of_another_is_damaged(
    unit: str, evaluation_id: str, step: int, tmp_path: Path
) -> None:
    here, part = RunReader(tmp_path, UNIT), Slice(0, 4, 0, 1, 1)
    write_slice(here, "math500-0", 20, part, [record(1)])
    there = RunReader(tmp_path, unit)
    folder = there.evaluation_path(evaluation_id, step)
    folder.mkdir(parents=True)
    shutil.copy(here.evaluation_path("math500-0", 20) / part.name, folder)
    for read in (there.slice_counts, there.slice_records):
        with pytest.raises(
            Damaged,
            match=r"another place \(unit unit-0, evaluation math500-0, step 20, .*; remove it",
        ):
            read(evaluation_id, step, part)
    assert here.slice_records("math500-0", 20, part) == [record(1)]


def test_an_edited_last_line_is_damaged(tmp_path: Path) -> None:
    run, part = RunReader(tmp_path, UNIT), Slice(0, 4, 0, 1, 1)
    write_slice(run, "math500-0", 20, part, [record(1)])
    path = run.evaluation_path("math500-0", 20) / part.name
    written = path.read_bytes()
    for edited in (
        written[:-2],
        written[:-3] + b'0"}\n',
        written + b"\n",
        written[: written.index(b"\n") + 1],
    ):
        path.write_bytes(edited)
        with pytest.raises(Damaged, match="is not what was written"):
            run.slice_records("math500-0", 20, part)
