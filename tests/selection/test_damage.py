"""Damaged files of a finished sweep: each is named in one line, and no number changes without a
word.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from analysis.table.formats import FORMATS
from analysis.table.model import results_table
from orchestrator.checks.experiment import check_models
from orchestrator.config import Experiment
from orchestrator.experiment.units import Unit, expand
from orchestrator.models import locate
from orchestrator.records.files import Damaged
from orchestrator.records.rundir import LEARNER_STATE
from orchestrator.records.writer import RunWriter
from orchestrator.selection.study import Study
from tests.fake_runs import QUICKSTART, fake_models, quickstart, units_of, write_run
from tests.sweeps import trb_here, trb_refuses

OVERRIDES = ("evaluation.rescore=false", "runtime.wandb=disabled")
ROLLOUT = {
    "reward": 1.0,
    "log_ratio": 0.25,
    "teacher_log_prob": -0.5,
    "length": 7,
    "truncated": False,
}
EVALUATED = "evals/arithmetic_short-*/step_000004/*.jsonl"


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs folder in which everything is done: checkpoints of steps 2, 4 and 6, all evaluated."""
    runs = tmp_path_factory.mktemp("sweep") / "runs"
    experiment, units = experiment_of(runs)
    for unit in units:
        steps = [] if unit.kind == "base_eval" else [2, 4, unit.steps]
        scores = {
            step: (None, None) if unit.kind == "sft" else (step % 5, 2) for step in steps
        } or {0: (1, 1)}
        write_run(runs, experiment, unit, scores, steps=unit.steps)
        with_clocks(runs, unit)
    return runs


def experiment_of(runs: Path) -> tuple[Experiment, list[Unit]]:
    experiment, _ = quickstart("runtime.wandb=disabled")
    fake_models(experiment, runs)
    return experiment, expand(experiment, runs)


def with_clocks(runs: Path, unit: Unit) -> None:
    run = RunWriter(runs, unit.id)
    run.append_timing(
        {"phase": "train", "step": 0, "rollout": 1.0, "score": 1.0, "reward": 0.0, "learn": 1.0}
    )
    run.describe_data({"rows": 8})
    rows = [
        ROLLOUT | {"step": step, "sample": sample}
        for step in range(unit.steps)
        for sample in range(2)
    ]
    run.append("rollouts.jsonl", rows)
    run.commit(run.next_step)
    run.close()


@pytest.fixture
def runs(sweep: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(sweep, tmp_path / "runs", symlinks=True))


@pytest.fixture
def trb(runs: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Runs one command on the copy, in this process."""

    def run(command: str, *arguments: str) -> Outcome:
        asked = [command, QUICKSTART, *OVERRIDES, "--runs", runs, *arguments]
        return Outcome(*trb_here(capsys, *asked))

    return run


# --- what is done to a unit's files ---


def flip(path: Path, at: float = 0.4) -> None:
    """Another digit where there is one near, else another letter: a file that still looks like one
    of ours.
    """
    data = bytearray(path.read_bytes())
    start = int(len(data) * at)
    place = next((i for i in range(start, len(data)) if chr(data[i]).isdigit()), start)
    data[place] = data[place] ^ 1
    path.write_bytes(bytes(data))


def shorten(path: Path) -> None:
    """Without its last line."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def as_list(path: Path) -> None:
    path.write_text("[1, 2]\n")


def no_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\xfa" + path.read_bytes())


def as_folder(path: Path) -> None:
    remove(path)
    path.mkdir()


def as_file(path: Path) -> None:
    remove(path)
    path.write_text("a file")


def as_loop(path: Path) -> None:
    remove(path)
    path.symlink_to(path.name)


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def other_step(path: Path) -> None:
    """`state.json` with another next step, and nothing else changed."""
    state = json.loads(path.read_text())
    path.write_text(
        json.dumps(state | {"next_step": state["next_step"] - 2}, indent=2, sort_keys=True) + "\n"
    )


def negative_step(path: Path) -> None:
    path.write_text(path.read_text().replace('"next_step": ', '"next_step": -'))


def foreign_rows(path: Path) -> None:
    path.write_text('{"a": 1}\n')


# Each fault with the commands that refuse: all of them, but for the texts of rollouts that only the
# report reads.
ALL = ("plan", "table", "figures", "report", "submit")
FAULTS: list[tuple[str, Callable[[Path], None], tuple[str, ...]]] = [
    *(
        ("metrics.jsonl", fault, ALL)
        for fault in (flip, shorten, tear, as_list, no_text, as_folder, as_loop, remove)
    ),
    *(("rollouts.jsonl", fault, ("report",)) for fault in (flip, shorten, as_folder, remove)),
    *(
        ("state.json", fault, ALL)
        for fault in (flip, tear, as_list, no_text, as_folder, as_loop, other_step)
    ),
    ("state.json", negative_step, ALL),
    *(
        (EVALUATED, fault, ALL)
        for fault in (flip, shorten, tear, as_list, no_text, as_folder, as_loop)
    ),
    *(("evals/arithmetic_short-*", fault, ALL) for fault in (as_file, as_loop)),
    *(("evals", fault, ALL) for fault in (as_file, as_loop)),
    *((".", fault, ALL) for fault in (as_file, as_loop)),
    *(("provenance.json", fault, ALL) for fault in (tear, as_list, no_text, as_folder)),
    *(("config.json", fault, ALL) for fault in (tear, as_list)),
    *(("data.json", fault, ALL) for fault in (flip, tear, as_list)),
    *(("timing.jsonl", fault, ALL) for fault in (as_list, foreign_rows, no_text, as_folder)),
    *(("attempts.jsonl", fault, ALL) for fault in (as_list, foreign_rows)),
    *(("checkpoints", fault, ALL) for fault in (as_file, as_loop)),
]


def names(fault: tuple[str, Callable[[Path], None], tuple[str, ...]]) -> str:
    return f"{fault[0]}-{fault[1].__name__}"


@pytest.fixture(scope="module")
def sound(sweep: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The table as it is without a fault."""
    experiment, units = experiment_of(sweep)
    return FORMATS["csv"](results_table(Study(experiment, units, sweep)))


@pytest.mark.parametrize("fault", FAULTS, ids=names)
def test_a_damaged_file_is_named_and_gives_no_other_number(
    fault: tuple[str, Callable[[Path], None], tuple[str, ...]],
    runs: Path,
    trb: Callable[..., Outcome],
    sound: str,
) -> None:
    pattern, damage, refusing = fault
    unit = runs / units_of(experiment_of(runs)[1], "vanilla")[0].id
    (path,) = unit.glob(pattern) if pattern != "." else [unit]
    damage(path)
    for command, arguments in (
        ("plan", ()),
        ("table", ("--format", "csv")),
        ("figures", ("--out", str(runs / "figures"))),
        ("report", ("--out", str(runs / "page.html"))),
        ("submit", ()),
    ):
        if command in refusing:
            assert_refused(trb(command, *arguments), path)
        elif command != "figures":  # which takes seconds to draw, and reads no texts
            shown = trb(command, *arguments)
            assert shown.code in (0, 1), shown
            assert command != "table" or shown.out == sound


@pytest.mark.parametrize(
    ("pattern", "damage"),
    [
        ("state.json", as_list),
        ("metrics.jsonl", flip),
        (EVALUATED, flip),
        (".", as_file),
        (".", as_loop),
    ],
)
def test_status_shows_which_unit_is_damaged(
    pattern: str, damage: Callable[[Path], None], runs: Path, trb: Callable[..., Outcome]
) -> None:
    unit = runs / units_of(experiment_of(runs)[1], "vanilla")[0].id
    (path,) = unit.glob(pattern) if pattern != "." else [unit]
    damage(path)
    shown = trb("status", "--json")
    states = {
        found["id"]: (found["state"], found["score"], found["error"])
        for found in json.loads(shown.out)["units"]
    }
    state, score, error = states.pop(unit.name)
    assert (shown.code, state, score) == (1, "damaged", None)
    assert error.startswith(str(path))
    assert {state for state, _, _ in states.values()} == {"done"}
    assert f"{unit.name}: {path}" in trb("status").out


@pytest.mark.parametrize(
    ("text", "damage"),
    [
        ("a list", lambda path: path.write_text("[1]")),
        ("half a record", lambda path: path.write_text('{"host": "elsewhere"}')),
        ("rubbish", lambda path: path.write_bytes(b"\xff\x00")),
        ("a folder", as_folder),
        ("nothing", remove),
    ],
)
def test_a_damaged_lock_does_not_keep_anybody_from_looking(
    text: str, damage: Callable[[Path], None], runs: Path, trb: Callable[..., Outcome], sound: str
) -> None:
    damage(runs / ".locks" / f"{units_of(experiment_of(runs)[1], 'vanilla')[0].id}.lock")
    assert trb("table", "--format", "csv")[:2] == (0, sound), text
    assert {unit["state"] for unit in json.loads(trb("status", "--json").out)["units"]} == {"done"}


def test_looking_writes_nothing_but_its_index(
    runs: Path, trb: Callable[..., Outcome], tmp_path: Path
) -> None:
    def stamps() -> dict[Path, int]:
        return {
            path: path.lstat().st_mtime_ns for path in runs.rglob("*") if ".index" not in path.parts
        }

    before = stamps()
    assert (
        trb("status").code
        == trb("table").code
        == trb("report", "--out", str(tmp_path / "page.html")).code
        == 0
    )
    assert stamps() == before


@pytest.mark.parametrize("early", ["", "2\n", "99\n"])
def test_a_unit_is_not_done_before_its_last_step(
    early: str, runs: Path, trb: Callable[..., Outcome]
) -> None:
    unit = units_of(experiment_of(runs)[1], "vanilla")[0].id
    (runs / unit / "DONE").write_text(early)
    states = {
        found["id"]: found["state"] for found in json.loads(trb("status", "--json").out)["units"]
    }
    assert states.pop(unit) != "done"
    assert set(states.values()) == {"done"}


def test_a_lost_checkpoint_matters_while_samples_of_it_are_wanted(
    runs: Path, trb: Callable[..., Outcome]
) -> None:
    unit = runs / units_of(experiment_of(runs)[1], "vanilla")[0].id
    shutil.rmtree(unit / "checkpoints" / "step_000004")
    assert {found["state"] for found in json.loads(trb("status", "--json").out)["units"]} == {
        "done"
    }
    (evaluated,) = unit.glob(EVALUATED)
    evaluated.unlink()
    states = {
        found["id"]: found["state"] for found in json.loads(trb("status", "--json").out)["units"]
    }
    assert states[unit.name] == "damaged"
    assert_refused(trb("submit"), unit / "checkpoints" / "step_000004")


# --- checkpoints and models ---


@pytest.mark.parametrize("damage", [flip, tear, as_folder, remove])
@pytest.mark.parametrize("file", ["model.safetensors", LEARNER_STATE])
def test_a_damaged_checkpoint_is_never_gone_on_from(
    file: str, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    def save(folder: Path) -> None:
        (folder / "model.safetensors").write_text("weights 1 2 3")
        (folder / LEARNER_STATE).write_text("moments 4 5 6")

    with closing(RunWriter(tmp_path, "unit")) as run:
        run.new_checkpoint(2, save)
        run.commit(2)
        run.verify_checkpoint(2, learner=True)
        damage(run.checkpoint_path(2) / file)
        with pytest.raises(
            Damaged, match=f"{file}: .*; remove the folder {tmp_path / 'unit'}; trb submit"
        ):
            run.verify_checkpoint(2, learner=True)
        if file == LEARNER_STATE:
            run.verify_checkpoint(2)


@pytest.mark.parametrize("damage", [flip, tear, as_folder, remove])
@pytest.mark.parametrize("name", locate.NEEDED)
def test_a_damaged_embedded_model_is_named(
    name: str, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    experiment, _ = experiment_of(tmp_path)
    setup = experiment.setups["arithmetic"]
    folder = locate.folder_of(setup.student, setup, tmp_path)
    (folder / name).write_text("0123456789")
    folder.with_name(f"{folder.name}.made.json").unlink()
    locate.record(folder)
    damage(folder / name)
    with pytest.raises(
        Damaged, match=f"{folder / name}: .*; remove the folder {folder}; trb submit makes"
    ):
        check_models("arithmetic", setup, tmp_path)


@pytest.mark.parametrize("damage", [flip, tear, as_list, as_folder])
def test_a_damaged_record_of_a_model_is_named(
    damage: Callable[[Path], None], runs: Path, trb: Callable[..., Outcome]
) -> None:
    experiment, _ = experiment_of(runs)
    setup = experiment.setups["arithmetic"]
    folder = locate.folder_of(setup.student, setup, runs)
    damage(folder.with_name(f"{folder.name}.made.json"))
    for command in ("status", "table", "submit"):
        assert_refused(trb(command), folder.with_name(f"{folder.name}.made.json"))


@pytest.mark.parametrize(
    "name", ["../evil", "/tmp/evil", "a/b", ".hidden", "", "a b", "a\\b", "x" * 81]
)
def test_names_are_names(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = tmp_path / "sweep.yaml"
    experiment.write_text(json.dumps({"setups": [name], "methods": {"vanilla": {}}}))
    assert "setups" in trb_refuses(capsys, "plan", experiment, "--runs", tmp_path / "runs")
    assert list(tmp_path.iterdir()) == [experiment]


def assert_refused(shown: Outcome, path: Path) -> None:
    """One line that names the file or what lies in it, and says what to do; nothing else."""
    assert (shown.code, shown.out) == (2, "")
    assert shown.err.count("\n") == 1
    assert shown.err.startswith(f"trb: {path}")
    assert re.search(r"; (remove|bring) ", shown.err)
