"""A real language model through the torch engine, beside transformers alone (`make test-real`)."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from orchestrator.config import Dtype
from orchestrator.engines.torch.engine import TorchEngine
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import expand
from orchestrator.selection.pending_slices import pending_slices
from orchestrator.selection.study import Study
from tests.real_pair import EPSILON, check_blended, check_updates, job, make_sweep, quick_job
from tests.without_ray import run_without_ray

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("real")]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sweep(tmp_path_factory.mktemp("real"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blended_positions_are_those_of_transformers(sweep: Path, dtype: Dtype) -> None:
    given = job(sweep, dtype)
    engine = TorchEngine(given)
    sampler = engine.sampler()
    sampler.start(teacher=True)
    check_blended(given, sampler, engine.scorer(), dtype)
    engine.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_updates_lower_the_loss_and_survive_a_checkpoint(
    sweep: Path, tmp_path: Path, dtype: Dtype
) -> None:
    given = quick_job(sweep, dtype)
    engine = TorchEngine(given)
    check_updates(given, engine.sampler(), engine, dtype, tmp_path)
    engine.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sweep_trains_keeps_and_evaluates_it(sweep: Path, dtype: Dtype) -> None:
    runs = sweep / "runs"
    run_without_ray(sweep / "sweep.yaml", runs, f"engine.dtype={dtype}")
    experiment = load_experiment(sweep / "sweep.yaml", [f"engine.dtype={dtype}"])
    study = Study(experiment, expand(experiment, runs), runs)
    (trial,) = (unit for unit in study.units if unit.is_trial)
    reader = study.reader(trial)
    rows = [json.loads(line) for line in (reader.path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0]
    assert math.isfinite(rows[0]["loss"])
    assert rows[0]["loss"] > 0
    assert 0.5 * EPSILON < rows[0]["behavior_kl"] < 1.01 * EPSILON
    assert not list(pending_slices(study))
    folder = reader.checkpoint_path(1)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.num_hidden_layers == experiment.setups["few"].student.shape.layers
    assert model.generation_config.eos_token_id == 2
    assert AutoTokenizer.from_pretrained(folder).eos_token_id == 2
