"""Evaluators keep texts of responses beside the counts of their slices, also over a kill."""

from __future__ import annotations

import gzip
import shutil
from collections import Counter
from pathlib import Path

import pytest

from orchestrator.experiment.evaluation_protocol import FRESH
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import Unit, expand
from orchestrator.records.rundir import RunReader
from orchestrator.selection.study import Study
from tests.sweeps import contents, write_experiment
from tests.without_ray import run_without_ray

BENCHMARK, PROBLEMS, N = "arithmetic_short", 6, 3
EVALUATION = {"benchmarks": {BENCHMARK: {"n": N, "limit": PROBLEMS}}}
TRAINING = {"steps": 4, "checkpoint_every": 2}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A sweep of the untrained student and one trial, sampled by the torch engine."""
    folder = tmp_path_factory.mktemp("sweep")
    path = write_experiment(folder, {"vanilla": {}}, training=TRAINING, evaluation=EVALUATION)
    return swept(path, folder / "runs")


def swept(path: Path, runs: Path, *overrides: str) -> Study:
    run_without_ray(path, runs, *overrides)
    experiment = load_experiment(path, overrides)
    return Study(experiment, expand(experiment, runs), runs)


def trial_of(study: Study) -> tuple[Unit, RunReader]:
    (unit,) = [unit for unit in study.units if unit.is_trial]
    return unit, RunReader(study.runs, unit.id)


def test_every_checkpoint_keeps_one_text_of_each_problem(sweep: Study) -> None:
    for unit in sweep.units:
        run, evaluation_id = RunReader(sweep.runs, unit.id), sweep.evaluation_ids(unit.setup)
        for step in [0] if unit.is_untrained else [2, 4]:
            texts = run.texts(evaluation_id[BENCHMARK], step)
            records = run.evaluation(evaluation_id[BENCHMARK], step)
            assert records is not None
            assert [text.problem for text in texts] == [record.problem for record in records]
            assert {text.sample for text in texts} == {0}
            for text, record in zip(texts, records, strict=True):
                assert text.answer is None or record.answers[text.answer] >= 1


def test_all_fresh_texts_are_kept_and_agree_with_the_counts(sweep: Study) -> None:
    unit, run = trial_of(sweep)
    evaluation_id = sweep.evaluation_ids(unit.setup, FRESH)[BENCHMARK]
    (step,) = run.evaluated_steps(evaluation_id)
    texts, records = run.texts(evaluation_id, step), run.evaluation(evaluation_id, step)
    assert len(texts) == PROBLEMS * N
    assert records is not None
    for index, record in enumerate(records):
        of_problem = texts[index * N : (index + 1) * N]
        assert {text.problem for text in of_problem} == {record.problem}
        answers = Counter(text.answer for text in of_problem if text.answer is not None)
        assert answers == record.answers
        assert sum(text.right for text in of_problem) == record.correct
        assert sum(text.truncated for text in of_problem) == record.truncated
        assert sum(text.tokens for text in of_problem) == record.tokens


def test_texts_change_nothing_else(sweep: Study, tmp_path: Path) -> None:
    path = sweep.runs.parent / "sweep.yaml"
    without = swept(path, tmp_path, "evaluation.keep_texts=0")
    _, run = trial_of(without)
    assert not list(run.path.rglob("*.texts.gz"))
    kept, left = contents(sweep.runs), contents(tmp_path)
    differing = {name for name in kept.keys() | left.keys() if kept.get(name) != left.get(name)}
    others = {name for name in differing if not name.endswith(".texts.gz")}
    # The configuration says which it was.
    assert {name.split("/")[1] for name in others} == {"config.json"}


def test_a_kill_between_texts_and_counts_changes_no_byte(sweep: Study, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(sweep.runs, runs)
    slices = list(runs.glob("*/evals/*/*/*.jsonl"))
    for path in slices:
        path.unlink()
    for path in runs.glob("*/evals/*/*/*.texts.gz"):
        path.write_bytes(gzip.compress(b"of another version"))
    run_without_ray(sweep.runs.parent / "sweep.yaml", runs)
    assert len(slices) == 5  # of three checkpoints, two of them sampled afresh
    assert contents(runs) == contents(sweep.runs)
