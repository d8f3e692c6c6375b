"""`trb rerun`: real trainings of a tiny cell, which come out as the same bytes or do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.records.rundir import RunReader
from orchestrator.records.slices import ProblemRecord
from orchestrator.selection.study import Study
from tests.fake_runs import write_evaluation
from tests.sweeps import trb, trb_here, write_experiment
from tests.without_ray import run_without_ray

Capture = pytest.CaptureFixture[str]
METHODS = {"vanilla": {}, "trust_region": {"epsilon0": [0.1, 0.2], "K": [5]}}


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep of real trainings, packed."""
    folder = tmp_path_factory.mktemp("packed")
    experiment = write_experiment(folder, METHODS, seeds=[0, 1])
    run_without_ray(experiment, folder / "runs")
    done = trb("pack", experiment, "--runs", folder / "runs", "--output", folder / "sweep.tar.gz")
    assert done.returncode == 0, done.stderr
    return folder / "sweep.tar.gz"


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Lets `trb rerun` train in this process. The function that it gives sets how many samples of
    each problem then count as right in every run, for runs that came out otherwise.
    """
    monkeypatch.chdir(tmp_path)
    right: list[int] = []

    def run_here(study: Study, address: str | None, again: str) -> int:
        run_without_ray(study.runs / "rerun.yaml", study.runs)
        for unit in study.units:
            run = study.reader(unit)
            for evaluation_id in study.evaluation_ids(unit.setup).values():
                for step in run.evaluated_steps(evaluation_id) if right else ():
                    count_otherwise(run, evaluation_id, step, right[0])
        return 0

    monkeypatch.setattr("orchestrator.commands.rerun.submit", run_here)
    return lambda count: right.append(count) if count is not None else None


def count_otherwise(run: RunReader, evaluation_id: str, step: int, right: int) -> None:
    records = []
    for old in run.evaluation(evaluation_id, step) or ():
        answers = {"again": old.n}
        records.append(ProblemRecord(old.problem, old.n, right, 0, 0, 0, old.tokens, answers))
    write_evaluation(run, evaluation_id, step, records)


def test_a_cell_comes_out_as_the_same_bytes(
    capsys: Capture, pack: Path, submit: Callable[[int | None], None]
) -> None:
    code, out, err = trb_here(capsys, "rerun", pack, "--cell", "TRB,Short sums")
    assert code == 0, out + err
    assert out.splitlines()[-1].startswith("same bytes: 2 training runs")
    trained = [path.name for path in Path("sweep-rerun").glob("tiny-trust_region-*")]
    assert len(trained) == 2  # of the chosen setting alone
    code, out, err = trb_here(capsys, "rerun", pack, "--cell", "trust_region,avg")
    assert code == 0, out + err  # in the same folder, where all is done


@pytest.mark.parametrize(("right", "code", "words"), [(0, 4, "within"), (1, 1, "outside")])
def test_other_bytes_are_named_and_judged_by_the_interval(
    capsys: Capture,
    pack: Path,
    submit: Callable[[int | None], None],
    right: int,
    code: int,
    words: str,
) -> None:
    """The packed runs have no right answer; n is 1."""
    submit(right)
    exit_code, out, err = trb_here(capsys, "rerun", pack, "--cell", "Vanilla,Short sums")
    assert exit_code == code, out + err
    other, *_, verdict = out.splitlines()[1:]
    assert other.startswith("other bytes: tiny-vanilla-")
    assert ".jsonl, line " in other
    assert verdict.startswith(f"{words} its interval: {100 * right}.0")


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        ("TRBB,Short sums", ["--cell: 'TRBB'", "did you mean TRB?"]),
        ("TRB,Short sum", ["--cell: 'Short sum'", "did you mean Short sums?"]),
        ("TRB", ["--cell: ''", "Short sums"]),
        ("TRB,Short sums,Sums", ["--cell: 'Sums'", "Tiny"]),
        ("Untrained student,Avg", ["--cell: 'Untrained student,Avg'", "method"]),
    ],
)
def test_an_unknown_cell_is_refused_with_the_names(
    capsys: Capture,
    pack: Path,
    submit: Callable[[int | None], None],
    cell: str,
    names: list[str],
) -> None:
    code, out, err = trb_here(capsys, "rerun", pack, "--cell", cell)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"trb: {names[0]}")
    assert names[1] in err
    assert list(Path().iterdir()) == []


def test_overrides_may_not_change_what_is_trained(
    capsys: Capture, pack: Path, submit: Callable[[int | None], None]
) -> None:
    words = ["rerun", pack, "--cell", "TRB,Avg"]
    code, _, err = trb_here(capsys, *words, "training.steps=4")
    assert code == 2
    assert err.startswith("trb: rerun: 'training.steps=4'")
    code, out, err = trb_here(capsys, *words, "runtime.keep=best")
    assert code == 0, out + err


def test_a_folder_of_something_else_is_left_alone(
    capsys: Capture, pack: Path, submit: Callable[[int | None], None]
) -> None:
    Path("mine").mkdir()
    code, _, err = trb_here(capsys, "rerun", pack, "--cell", "TRB,Avg", "--runs", "mine")
    assert code == 2
    assert err.startswith("trb: --runs: 'mine'")
    assert list(Path("mine").iterdir()) == []


@pytest.mark.ray
@pytest.mark.xdist_group("ray")
def test_the_command_trains_by_the_usual_sweep(pack: Path, tmp_path: Path) -> None:
    done = trb("rerun", pack, "--cell", "Vanilla,Short sums", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "same bytes: 2 training runs" in done.stdout
