"""The cache of values of files: with it, without it and with a damaged one every look is the same."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import pytest

from analysis.facts import costs
from analysis.table.formats import FORMATS
from analysis.table.model import results_table
from orchestrator.monitor import status
from orchestrator.records import rundir, snapshot
from orchestrator.records.files import Damaged
from orchestrator.records.log import TRAIN
from orchestrator.records.rundir import METRICS, RunReader
from orchestrator.records.snapshot import RunSnapshot
from orchestrator.records.writer import RunWriter, write_slice
from orchestrator.selection.study import Study
from tests.fake_runs import quickstart, record, units_of, write_evaluation, write_run

EXPERIMENT, UNITS = quickstart()
VANILLA = units_of(UNITS, "vanilla")[0]
PARTS = {"rollout": 1.0, "score": 1.0, "reward": 0.0, "learn": 1.0}
TIMED: dict[str, Any] = {"phase": TRAIN, "step": 0, **PARTS}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Everything evaluated, with clocks, and looked at once."""
    runs = tmp_path / "runs"
    for unit in UNITS:
        scores = {0: (1, 1)} if unit.is_untrained else {20: (2, 1), unit.steps: (3, 2)}
        write_run(runs, EXPERIMENT, unit, {} if unit.is_supervised else scores, steps=unit.steps)
        with closing(RunWriter(runs, unit.id)) as run:
            run.append_timing(TIMED)
    made = Study(EXPERIMENT, UNITS, runs)
    look(made)
    return made


def look(study: Study) -> str:
    """What a new process says of everything."""
    snapshot.forget()
    once = study.snapshot()
    overview = status.overview(once)
    told: dict[str, Any] = {
        "units": [each.to_json() for each in overview.units],
        "table": FORMATS["json"](results_table(once)),
        "costs": [
            repr(costs.unit_cost(once, unit)) for unit in study.units if study.reader(unit).started
        ],
    }
    once.remember()
    return json.dumps(told, indent=1)


def look_without(study: Study) -> str:
    """The same by readers that know no index."""
    shutil.rmtree(study.runs / ".index", ignore_errors=True)
    return look(study)


def short(study: Study) -> tuple[RunReader, str]:
    """The vanilla run, and the id of its first evaluation."""
    return study.reader(VANILLA), study.evaluation_ids("arithmetic")["arithmetic_short"]


def slice_file(study: Study) -> Path:
    """A file of one slice of the vanilla run."""
    run, evaluation_id = short(study)
    (part,) = run.slices(evaluation_id, 20)
    return run.evaluation_path(evaluation_id, 20) / part.name


def never(*_: object) -> NoReturn:
    raise AssertionError("a file that is known was read")


def test_a_later_look_says_the_same_and_reads_no_file_that_it_knows(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the records of selected checkpoints, whose answers and lengths a table shows."""
    expected = look_without(study)
    for name in ("_rows", "_clock"):
        monkeypatch.setattr(RunReader, name, never)
    monkeypatch.setattr(rundir, "read_counts", never)
    assert look(study) == expected


def regrade(study: Study) -> None:
    run, evaluation_id = short(study)
    (part,) = run.slices(evaluation_id, 20)
    write_slice(run, evaluation_id, 20, part, [record(4)], replace=True)


def add_samples(study: Study) -> None:
    run, evaluation_id = short(study)
    write_evaluation(run, evaluation_id, 20, [record(4)], sample=4)


def train_again(study: Study) -> None:
    shutil.rmtree(study.runs / VANILLA.id)
    write_run(
        study.runs, EXPERIMENT, VANILLA, {20: (0, 0), VANILLA.steps: (1, 0)}, steps=VANILLA.steps
    )


def log_time(study: Study) -> None:
    with closing(RunWriter(study.runs, VANILLA.id)) as run:
        run.append_timing(TIMED | {"step": 1, "rollout": 9.0})


@pytest.mark.parametrize(
    "change",
    [regrade, add_samples, lambda study: slice_file(study).unlink(), train_again, log_time],
)
def test_what_changed_is_seen(change: Callable[[Study], None], study: Study) -> None:
    before = look(study)
    change(study)
    with_index = look(study)
    assert with_index != before
    assert with_index == look_without(study)


def test_a_damaged_slice_is_found_whatever_its_times_say(study: Study) -> None:
    path = slice_file(study)
    stat, content = path.stat(), path.read_bytes()
    path.write_bytes(content.replace(b'"correct": 2', b'"correct": 4'))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_size == stat.st_size
    states = {each["id"]: each["state"] for each in json.loads(look_states(study))}
    assert states[VANILLA.id] == "damaged"
    with pytest.raises(Damaged, match=path.name):
        look(study)


def look_states(study: Study) -> str:
    snapshot.forget()
    return json.dumps([each.to_json() for each in status.overview(study).units])


def test_committed_rows_are_verified_until_they_are_known(study: Study) -> None:
    path = study.reader(VANILLA).path / METRICS
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"step": 3', b'"step": 4'))
    snapshot.forget()
    with pytest.raises(Damaged, match="is not what was committed"):
        RunSnapshot(study.runs, VANILLA.id).last_metrics()
    path.write_bytes(content)
    assert RunSnapshot(study.runs, VANILLA.id).last_metrics()[0] == VANILLA.steps


def no_number(text: str) -> str:
    raw = json.loads(text.splitlines()[0])
    for names in raw["entries"].values():
        if "counts" in names:
            names["counts"][2][1] += 1
    return json.dumps(raw) + "\n" + text.splitlines()[1] + "\n"


@pytest.mark.parametrize(
    "damage", [lambda _: "", lambda text: text[:-9], lambda _: "[]\n", no_number]
)
def test_a_damaged_index_counts_for_nothing(damage: Callable[[str], str], study: Study) -> None:
    expected = look(study)
    path = study.runs / ".index" / f"{VANILLA.id}.json"
    sound = path.read_text()
    path.write_text(damage(sound))
    assert look(study) == expected
    assert json.loads(path.read_text().splitlines()[0]) == json.loads(
        sound.splitlines()[0]
    )  # made again


def test_the_index_of_another_unit_counts_for_nothing(study: Study) -> None:
    expected, folder = look(study), study.runs / ".index"
    other = units_of(UNITS, "veto")[0]
    shutil.copy(folder / f"{other.id}.json", folder / f"{VANILLA.id}.json")
    assert look(study) == expected


def test_where_no_index_can_be_written_looks_go_on(study: Study) -> None:
    expected = look(study)
    shutil.rmtree(study.runs / ".index")
    (study.runs / ".index").write_text("in its place")
    assert look(study) == expected
    assert (study.runs / ".index").read_text() == "in its place"


def test_what_is_gone_leaves_the_index(study: Study) -> None:
    path, file = study.runs / ".index" / f"{VANILLA.id}.json", slice_file(study)
    assert file.name in path.read_text()
    file.unlink()
    log_time(study)
    look(study)
    assert str(file.relative_to(study.runs / VANILLA.id)) not in path.read_text()


def test_one_look_is_at_one_moment_and_the_next_sees_more(study: Study) -> None:
    once = study.snapshot()
    before = once.reader(VANILLA).last_metrics(), status.overview(once).units
    regrade(study)
    assert (once.reader(VANILLA).last_metrics(), status.overview(once).units) == before
    assert status.overview(study).units != before[1]
