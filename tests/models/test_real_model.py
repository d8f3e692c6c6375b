"""A real language model through the torch engine, beside transformers alone (`make test-real`)."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from orchestrator.data.word_problems import training_problems
from orchestrator.engines.common.causal import checked_model
from orchestrator.engines.common.learning import Targets, measure
from orchestrator.engines.sglang import verdict
from orchestrator.engines.sglang.blending_rows import plain_row_type, unpack
from orchestrator.engines.sglang.process import ROWS, Draw
from orchestrator.engines.torch.engine import TorchEngine
from orchestrator.engines.verl.rank import OpenedModel
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import expand
from orchestrator.policy.objective import Recorded
from orchestrator.rules import Dtype
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


@torch.no_grad()
def test_sampler_and_learner_read_the_same_hidden_states_alike(
    sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16 the layers of two engines differ; what follows them must not."""
    given = job(sweep, "bfloat16")
    assert given.teacher is not None
    text = " ".join(
        problem.text for _, problem in zip(range(6), training_problems(0), strict=False)
    )
    ids = AutoTokenizer.from_pretrained(given.teacher.path)(text, return_tensors="pt").input_ids
    model = checked_model(
        given.setup, given.initial, "student", torch.bfloat16, torch.device("cpu")
    )
    hidden = model.hidden(ids, torch.ones_like(ids))[0, :-1]
    tokens, space = ids[0, 1:], model.space
    monkeypatch.setattr(verdict, "_space", [(space, "student")])
    draws = [vars(Draw(0, 1, 1.0, 16, forced=(token,))) for token in tokens.tolist()]
    start = torch.zeros_like(tokens)
    head = model.head_weight.float()  # a learner's own weights are float32
    apart = {}
    for precise in (True, False):
        of_verl = OpenedModel(cast(Any, None), space, torch.bfloat16, False, precise)
        logits = replace(model, precise_head=precise).head(hidden)
        torch.testing.assert_close(of_verl.logits(hidden, model.head_weight), logits)
        _, kept = verdict.draw_tokens(logits, draws, start)
        records = unpack([kept[ROWS][row] for row in range(len(tokens))], plain_row_type(16))
        log_p = torch.from_numpy(records["student"].copy())
        support = torch.from_numpy(records["support_ids"].copy()).long()
        recorded = Recorded(log_p, log_p, log_p, log_p)
        read = Targets(tokens, support, recorded, log_p, torch.zeros(support.shape))
        apart[precise] = max(measure(hidden, head, read, space).gaps)
    assert apart[True] < 1e-4
    assert apart[False] > 1e-2


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
