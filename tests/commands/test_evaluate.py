"""`trb eval`: a sweep's own numbers for a model in a folder, by any number of evaluators, and on
from a kill.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.commands import evaluate
from orchestrator.experiment.load import load_experiment, load_setup
from orchestrator.experiment.units import expand
from orchestrator.liveness.leases import Claims
from orchestrator.models.locate import folder_of
from orchestrator.records.files import file_sha256
from orchestrator.selection.scores import pass_at_1
from orchestrator.selection.study import Study
from tests.fake_runs import record
from tests.sweeps import start, trb_here, write_experiment
from tests.without_ray import run_without_ray

SAMPLES = {"arithmetic_short": 2, "arithmetic_long": 1}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment file, beside the runs folder in which its untrained student was evaluated."""
    folder = tmp_path_factory.mktemp("swept")
    benchmarks = {name: {"n": n, "limit": 30} for name, n in SAMPLES.items()}
    evaluation = {"benchmarks": benchmarks, "rescore": False}
    path = write_experiment(folder, {"vanilla": {}}, training={"steps": 1}, evaluation=evaluation)
    run_without_ray(path, folder / "runs")
    return path


def asked(swept: Path, runs: Path) -> list[str]:
    """The command for the sweep's untrained student."""
    setup = load_experiment(swept).setups["tiny"]
    model = folder_of(setup.student, setup, swept.parent / "runs")
    benchmarks = ",".join(f"{name}:{n}" for name, n in SAMPLES.items())
    options = f"--setup tiny --setups-from {swept} --benchmarks {benchmarks} --limit 30"
    return ["eval", str(model), *options.split(), "--runs", str(runs)]


def written(runs: Path) -> dict[str, Any]:
    (path,) = (runs / "results" / "eval").glob("*.json")
    return json.loads(path.read_text())


def slices(runs: Path) -> dict[str, str]:
    """Path → sha256 of the file of every slice."""
    folder = runs / "results" / "eval"
    files = folder.rglob("problems_*.jsonl")
    return {str(file.relative_to(folder)): file_sha256(file) for file in files}


def evaluate_here(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0


def test_the_numbers_are_those_of_the_sweep(
    swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = asked(swept, tmp_path)
    evaluate_here(arguments)
    experiment = load_experiment(swept)
    study = Study(experiment, expand(experiment, swept.parent / "runs"), swept.parent / "runs")
    (untrained,) = (unit for unit in study.units if unit.is_untrained)
    for benchmark, evaluation_id in study.evaluation_ids("tiny").items():
        records = study.reader(untrained).evaluation(evaluation_id, 0)
        found = written(tmp_path)["benchmarks"][benchmark]
        assert records is not None
        assert found["evaluation_id"] == evaluation_id
        assert found["pass_at_1"] == pytest.approx(float(pass_at_1(records)))
        assert found["tokens"] == sum(record.tokens for record in records)
    assert "trb: 90 of 90 responses" in capsys.readouterr().err
    before = slices(tmp_path)
    evaluate_here([*arguments, "--json"])
    captured = capsys.readouterr()
    assert json.loads(captured.out)["benchmarks"] == written(tmp_path)["benchmarks"]
    assert "responses" not in captured.err, "nothing was sampled again"
    assert slices(tmp_path) == before


def test_another_seed_and_other_weights_in_the_folder_are_other_evaluations(
    swept: Path, tmp_path: Path
) -> None:
    command, student, *options = asked(swept, tmp_path / "runs")
    setup = load_experiment(swept).setups["tiny"]
    model = shutil.copytree(student, tmp_path / "model")
    evaluate_here([command, str(model), *options])
    evaluate_here([command, str(model), *options, "--seed", "1"])
    shutil.copy(folder_of(setup.teacher, setup, swept.parent / "runs") / "model.safetensors", model)
    evaluate_here([command, str(model), *options])
    assert len(slices(tmp_path / "runs")) == 3 * len(SAMPLES)
    short = {
        sha256 for path, sha256 in slices(tmp_path / "runs").items() if "arithmetic_short" in path
    }
    assert len(short) == 3
    assert len(list((tmp_path / "runs" / "results" / "eval").glob("model-*.json"))) == 3


def test_evaluators_side_by_side_one_of_which_dies(swept: Path, tmp_path: Path) -> None:
    """Whether the other one took its slice or the command is called again, the samples are the
    same.
    """
    alone, together = tmp_path / "alone", tmp_path / "together"
    evaluate_here(asked(swept, alone))
    process = start(*asked(swept, together), "--evaluators", "2")
    claims, killed = Claims(together / "results" / "eval"), False
    while not killed and process.poll() is None:
        for unit in (together / "results" / "eval").glob("*/"):
            for held in claims.held(unit.name)[:1]:
                os.kill(held.holder.pid, signal.SIGKILL)
                killed = True
        time.sleep(0.01)
    out, err = process.communicate()
    assert killed, out + err
    assert "Traceback" not in out + err
    if process.returncode != 0:
        assert "an evaluator died; the same command goes on" in err
    evaluate_here(asked(swept, together))
    assert slices(together) == slices(alone)
    assert written(together)["benchmarks"] == written(alone)["benchmarks"]


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("config.json", b"{}", "model_type: None"),
        ("config.json", b'{"model_type": "frobnicator"}', "model_type: 'frobnicator'"),
        ("config.json", b"{", "{}/config.json"),
        ("model.safetensors", b"cut", "{}/model.safetensors"),
    ],
)
def test_a_broken_model_folder_is_one_line(
    file: str,
    content: bytes,
    named: str,
    swept: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command, student, *options = asked(swept, tmp_path / "runs")
    monkeypatch.chdir(tmp_path)  # a long path would be shortened in the line
    model = Path(shutil.copytree(student, "model"))
    (model / file).write_bytes(content)
    code, out, err = trb_here(capsys, command, model, *options)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith(f"trb: {model}: {named.format(model.resolve())}")


def test_an_evaluation_has_an_interval_over_its_problems() -> None:
    rows = [record(correct, problem=str(i)) for i, correct in enumerate([0, 4, 2, 3] * 10)]
    found, mean = evaluate.scores({"mine": rows})
    assert found["mine"].pass_at_1 == mean.pass_at_1 == 9 / 16
    assert 0.4 < found["mine"].low < 9 / 16 < found["mine"].high < 0.7


def test_a_file_may_be_named_where_benchmarks_are() -> None:
    setup = load_setup("arithmetic")
    key, run = evaluate._benchmark("folder/my.jsonl:4", setup, 7)
    assert (key, run.path, run.n, run.limit) == ("my", "folder/my.jsonl", 4, 7)
    assert evaluate._benchmark("arithmetic_short", setup, None)[1].n == 4


def test_a_folder_that_takes_no_file_is_refused_before_anything_is_sampled(
    swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = trb_here(capsys, *asked(swept, tmp_path), "--out", "/sys/score.json")
    assert (code, out) == (2, "")
    assert "folder: '/sys': expected a folder that can be written to" in err
    assert "responses" not in err
    assert slices(tmp_path) == {}


def test_the_scores_are_shown_though_the_disk_fills_before_they_are_written(
    swept: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(evaluate, "write_atomically", full)
    code, out, err = trb_here(capsys, *asked(swept, tmp_path))
    assert code == 2
    assert "arithmetic_short" in out
    assert "trb: folder: '" in err
    assert "expected a folder that can be written to (No space left on device" in err
