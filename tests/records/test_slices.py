"""Slices against a plain grid of problems by samples."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from orchestrator.records.files import Damaged, sealed_lines
from orchestrator.records.rundir import RunReader
from orchestrator.records.slices import Slice, complete_samples, disjoint, identity, missing, parse
from orchestrator.records.writer import RunWriter, write_slice
from tests.fake_runs import record, write_evaluation


def grid(slices: list[Slice], problems: int, samples: int) -> np.ndarray:
    """How many of the slices hold each (problem, sample)."""
    counts = np.zeros((problems, samples), dtype=int)
    for each in slices:
        counts[each.problem : each.problem_end, each.sample : each.sample_end] += 1
    return counts


def some(rng: random.Random, problems: int, samples: int) -> Slice:
    a, b = sorted(rng.sample(range(problems + 1), 2))
    c, d = sorted(rng.sample(range(samples + 1), 2))
    return Slice(c, d, a, b, problems)


def test_a_name_is_read_back() -> None:
    part = Slice(0, 4, 0, 250, 500)
    assert part.name == "problems_0-250_of_500.samples_0-4.jsonl"
    assert parse(part.name) == part
    assert (part.width, part.samples, part.responses) == (250, 4, 1000)


@pytest.mark.parametrize(
    "name",
    [
        "problems_0-250_of_500.samples_0-4.jsonl.tmp",
        ".problems_0-250_of_500.samples_0-4.jsonl",
        "problems_250-0_of_500.samples_0-4.jsonl",
        "problems_0-501_of_500.samples_0-4.jsonl",
        "problems_0-250_of_500.samples_4-4.jsonl",
        "error.txt",
    ],
)
def test_other_names_are_no_slices(name: str) -> None:
    assert parse(name) is None


@pytest.mark.parametrize("seed", range(200))
def test_what_is_missing_fills_the_grid_and_nothing_twice(seed: int) -> None:
    rng = random.Random(seed)
    problems, samples = rng.randint(1, 12), rng.randint(1, 9)
    there = disjoint(some(rng, problems, samples + 3) for _ in range(rng.randint(0, 5)))
    cuts, most = rng.sample(range(samples + 2), 2), rng.randint(1, 40)
    lacking = missing(there, problems, samples, cuts, most)
    counts = grid([*there, *lacking], problems, samples + 3)
    assert (counts <= 1).all()
    assert (counts[:, :samples] == 1).all()
    for part, cut in itertools.product(lacking, cuts):
        assert not part.sample < cut < part.sample_end
    assert all(part.responses <= max(most, part.samples) for part in lacking)


@pytest.mark.parametrize("seed", range(50))
def test_any_order_of_work_makes_the_same_slices(seed: int) -> None:
    rng = random.Random(seed)
    problems, samples, cuts = rng.randint(1, 30), rng.randint(1, 9), [2, 4]
    whole = missing([], problems, samples, cuts, 7)
    done = rng.sample(whole, rng.randint(0, len(whole)))
    assert sorted([*done, *missing(done, problems, samples, cuts, 7)], key=str) == sorted(
        whole, key=str
    )


def test_parts_are_about_equal() -> None:
    widths = [part.width for part in missing([], 500, 64, [], 2000)]
    assert sum(widths) == 500
    assert max(widths) * 64 <= 2000
    assert max(widths) - min(widths) <= max(widths) / 2


@pytest.mark.parametrize("seed", range(200))
def test_complete_samples_are_those_that_all_problems_have(seed: int) -> None:
    rng = random.Random(seed)
    problems, samples = rng.randint(1, 4), 6
    slices = disjoint(some(rng, problems, samples) for _ in range(rng.randint(0, 12)))
    full = grid(slices, problems, samples).all(axis=0)
    prefix = samples if full.all() else int(full.argmin())
    inner = {n for part in slices for n in range(part.sample + 1, part.sample_end)}
    assert complete_samples(slices) == [
        n for n in range(1, prefix + 1) if n not in inner and _is_edge(n, slices)
    ]


def _is_edge(n: int, slices: list[Slice]) -> bool:
    return any(n in (part.sample, part.sample_end) for part in slices)


def test_of_slices_that_overlap_one_counts() -> None:
    small, large, other = Slice(0, 2, 0, 5, 5), Slice(0, 4, 0, 5, 5), Slice(2, 4, 0, 5, 5)
    assert disjoint([other, small, large]) == [large]
    assert disjoint([other, small]) == [small, other]


# --- files of slices: there whole or not at all, written once, and summed as far as all
# problems have them ---


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


def test_counts_of_rows_in_another_layout_are_read_all_the_same(tmp_path: Path) -> None:
    run, part = RunReader(tmp_path, UNIT), Slice(0, 4, 0, 2, 2)
    write_slice(run, "math500-0", 20, part, [record(1, 4, "p0"), record(2, 4, "p1")])
    path = run.evaluation_path("math500-0", 20) / part.name
    rows = [json.loads(line) for line in path.read_text().splitlines()[:-1]]
    lines = "".join(json.dumps(dict(sorted(row.items()))) + "\n" for row in rows)
    path.write_text(sealed_lines(lines, identity(path.parent, part)))
    counts = run.slice_counts("math500-0", 20, part)
    assert (counts.problems, counts.correct.tolist(), counts.tokens) == (("p0", "p1"), [1, 2], 80)


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
