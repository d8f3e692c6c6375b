"""One model's pass@1 by both engines."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from orchestrator.config import Runtime
from orchestrator.engines.catalog import open_engine
from orchestrator.engines.interface import Job
from orchestrator.experiment.load import load_experiment
from orchestrator.sweep.prepare import prepare
from orchestrator.workers.graded_sampling import GradedSampler, Samples
from tests.engines.installed import skip_without
from tests.sweeps import ROOT

pytestmark = [pytest.mark.engines, pytest.mark.xdist_group("sglang")]

PROBLEMS, SAMPLES = 80, 8


def test_a_model_scores_the_same_on_both_engines(tmp_path: Path) -> None:
    skip_without("sglang")
    setup = load_experiment(ROOT / "experiments" / "arithmetic-seeds.yaml").setups["arithmetic"]
    assert setup.student.recipe is not None
    assert setup.teacher.recipe is not None
    # Half of the usual training: some answers are right and some are not.
    student = replace(setup.student, recipe=replace(setup.student.recipe, updates=500))
    teacher = replace(setup.teacher, recipe=replace(setup.teacher.recipe, updates=1))
    setup = replace(setup, student=student, teacher=teacher)
    models, tokenizer = prepare({"arithmetic": setup}, tmp_path, lambda *_: None)["arithmetic"]
    shares, tokens = {}, {}
    for name in ("torch", "sglang"):
        sampler = open_engine(name, Job(setup, Runtime(), models, trains=False)).sampler()
        worker = GradedSampler(setup, tokenizer, sampler, None, 5.0)
        worker.start()
        records, _ = worker.evaluate(
            Samples("arithmetic_short", range(PROBLEMS), range(SAMPLES), 0, 0, 0)
        )
        worker.close()
        shares[name] = np.array([record.correct / record.n for record in records])
        tokens[name] = np.array([record.tokens / record.n for record in records])
    for of_engine in (shares, tokens):
        difference = of_engine["sglang"] - of_engine["torch"]
        error = difference.std(ddof=1) / math.sqrt(PROBLEMS)
        assert abs(difference.mean()) < 4 * error
    assert 0.02 < shares["torch"].mean() < 0.98
