"""Texts of responses: read as written, verified, and never those of another slice."""

from __future__ import annotations

import gzip
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.records import writer
from orchestrator.records.files import Damaged
from orchestrator.records.rundir import RunReader
from orchestrator.records.slices import ResponseText, Slice, read_texts, write_texts
from orchestrator.records.snapshot import RunSnapshot
from orchestrator.records.writer import write_slice
from tests.fake_runs import record

UNIT, BENCH, STEP = "unit-0", "bench-1", 20
PART = Slice(0, 4, 0, 2, 2)


def response(problem: str, sample: int, text: str = "so \\boxed{4}\n\u2028ü") -> ResponseText:
    return ResponseText(problem, sample, "<|user|>2+2=?\n", "4", text, "4", True, False, False, 9)


def texts_of(part: Slice, kept: int) -> list[ResponseText]:
    """The first `kept` responses of each problem of a slice."""
    return [
        response(f"p{problem}", part.sample + number)
        for problem in range(part.problem, part.problem_end)
        for number in range(kept)
    ]


def write(run: RunReader, part: Slice, kept: int) -> None:
    records = [record(1, part.samples, f"p{i}") for i in range(part.problem, part.problem_end)]
    assert write_slice(run, BENCH, STEP, part, records, texts_of(part, kept))


@pytest.mark.parametrize("kept", [0, 1, 3, 4])
def test_texts_are_read_as_written(kept: int, tmp_path: Path) -> None:
    run = RunReader(tmp_path, UNIT)
    write(run, PART, kept)
    assert read_texts(run.evaluation_path(BENCH, STEP), PART) == texts_of(PART, kept)
    assert run.texts(BENCH, STEP) == texts_of(PART, kept)
    names = {path.name for path in run.evaluation_path(BENCH, STEP).iterdir()}
    assert names == ({PART.name, PART.texts_name} if kept else {PART.name})


def test_texts_change_no_byte_of_their_slice_and_no_reader_of_counts(tmp_path: Path) -> None:
    without, kept = RunReader(tmp_path / "a", UNIT), RunReader(tmp_path / "b", UNIT)
    write(without, PART, 0)
    write(kept, PART, 4)
    files = [run.evaluation_path(BENCH, STEP) / PART.name for run in (without, kept)]
    assert files[0].read_bytes() == files[1].read_bytes()
    for run in (kept, RunSnapshot(tmp_path / "b", UNIT)):
        assert run.slices(BENCH, STEP) == [PART]
        assert run.evaluation(BENCH, STEP) == without.evaluation(BENCH, STEP)


def test_the_bytes_are_those_of_the_texts_alone(tmp_path: Path) -> None:
    files = []
    for name in ("a", "b"):
        folder = tmp_path / name / UNIT / "evals" / BENCH / "step_000020"
        folder.mkdir(parents=True)
        write_texts(folder, PART, texts_of(PART, 4))
        files.append((folder / PART.texts_name).read_bytes())
    assert files[0] == files[1]


def test_texts_of_several_slices_come_by_problem_and_sample(tmp_path: Path) -> None:
    run = RunReader(tmp_path, UNIT)
    # Numbers of problems sort otherwise than their names do, and the third slice does not count:
    # one problem lacks its samples.
    write(run, Slice(0, 2, 10, 12, 12), 2)
    write(run, Slice(0, 2, 0, 10, 12), 2)
    write(run, Slice(2, 5, 0, 12, 12), 1)
    write(run, Slice(5, 6, 0, 11, 12), 1)
    found = [(text.problem, text.sample) for text in run.texts(BENCH, STEP)]
    assert found == [(f"p{index}", sample) for index in range(12) for sample in (0, 1, 2)]


def test_a_kill_between_the_files_leaves_texts_that_the_next_writer_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunReader(tmp_path, UNIT)
    folder = run.evaluation_path(BENCH, STEP)

    def killed(path: Path, content: str) -> bool:
        raise KeyboardInterrupt

    for kept in (2, 0):
        with monkeypatch.context() as patch:
            patch.setattr(writer, "write_once", killed)
            with pytest.raises(KeyboardInterrupt):
                write(run, PART, 4)
        assert [path.name for path in folder.iterdir()] == [PART.texts_name]
        assert run.texts(BENCH, STEP) == []
        write(run, PART, kept)
        assert run.texts(BENCH, STEP) == texts_of(PART, kept)
        shutil.rmtree(folder)


def test_the_first_to_write_a_slice_keeps_its_texts(tmp_path: Path) -> None:
    run = RunReader(tmp_path, UNIT)
    write(run, PART, 1)
    others = [replace(text, text="another response") for text in texts_of(PART, 1)]
    assert not write_slice(run, BENCH, STEP, PART, [record(2), record(3)], others)
    assert run.texts(BENCH, STEP) == texts_of(PART, 1)


def test_a_file_that_was_changed_is_damaged(tmp_path: Path) -> None:
    run = RunReader(tmp_path, UNIT)
    write(run, PART, 4)
    path = run.evaluation_path(BENCH, STEP) / PART.texts_name
    written = path.read_bytes()
    lines = gzip.decompress(written)
    flipped = bytearray(written)
    flipped[len(written) // 2] ^= 1
    for edited in (
        b"",
        b"no gzip",
        written[:-9],
        bytes(flipped),
        written + b"more",
        gzip.compress(lines.replace(b"p1", b"p2")),
        gzip.compress(lines[: lines.rindex(b"{")]),
    ):
        path.write_bytes(edited)
        with pytest.raises(Damaged, match=r"texts\.gz: is not what was written; remove it"):
            run.texts(BENCH, STEP)
        assert run.evaluation(BENCH, STEP) is not None
    path.unlink()
    path.mkdir()
    with pytest.raises(Damaged, match="cannot be read"):
        run.texts(BENCH, STEP)


def test_texts_in_the_place_of_others_are_damaged(tmp_path: Path) -> None:
    here, there = RunReader(tmp_path, UNIT), RunReader(tmp_path, "unit-1")
    for run in (here, there):
        write(run, PART, 1)
    path = there.evaluation_path(BENCH, STEP) / PART.texts_name
    shutil.copy(here.evaluation_path(BENCH, STEP) / PART.texts_name, path)
    with pytest.raises(Damaged, match=r"was written in another place \(unit unit-0, "):
        there.texts(BENCH, STEP)


@pytest.mark.parametrize(
    "texts",
    [
        texts_of(PART, 4)[:-1],
        texts_of(PART, 4)[1:],
        [response("p0", 0), response("p1", 1)],
        [response("p0", 0), response("p1", 1), response("p0", 0), response("p1", 1)],
        texts_of(replace(PART, sample_end=5), 5),
    ],
)
def test_texts_of_other_responses_than_the_name_says_are_damaged(
    texts: list[ResponseText], tmp_path: Path
) -> None:
    folder = tmp_path / UNIT / "evals" / BENCH / "step_000020"
    folder.mkdir(parents=True)
    write_texts(folder, PART, texts)
    with pytest.raises(Damaged, match="does not hold what its name says"):
        read_texts(folder, PART)
