"""SGLang and verl with models that are not Qwen3: a real one, and tiny ones of other architectures,
beside transformers alone.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from orchestrator.engines.catalog import open_engine
from orchestrator.engines.torch.engine import TorchEngine
from orchestrator.rules import Dtype
from orchestrator.workers.members import job_of
from tests import tiny
from tests.engines.common.test_vocabulary_kernels import found
from tests.engines.installed import skip_without
from tests.engines.torch.test_architecture import EXACT, check_pair, save_pair
from tests.real_pair import alone, check_blended, check_updates, make_sweep, quick_job, requests

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sweep(tmp_path_factory.mktemp("real"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sglang_samples_and_blends_a_real_pair(sweep: Path, tmp_path: Path, dtype: Dtype) -> None:
    """And takes over the weights of a trainer."""
    skip_without("sglang")
    given = quick_job(sweep, dtype)
    engine, scoring = open_engine("sglang", given), TorchEngine(given)
    sampler = engine.sampler()
    try:
        sampler.start(teacher=True)
        check_blended(given, sampler, scoring.scorer(), dtype)
        check_updates(given, sampler, scoring, dtype, tmp_path)
    finally:
        engine.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_verl_scores_and_trains_a_real_pair(sweep: Path, tmp_path: Path, dtype: Dtype) -> None:
    skip_without("verl")
    given = quick_job(sweep, dtype)
    engine = open_engine("verl", given)
    try:
        check_updates(given, TorchEngine(given).sampler(), engine, dtype, tmp_path)
    finally:
        engine.close()


def test_kernels_draw_from_the_logits_of_a_real_model(sweep: Path, tmp_path: Path) -> None:
    """Next to a token's border another order of sums may draw its neighbour, for 0.005 %.

    In float32, as heads give them: rounded to bfloat16 many logits are equal, and torch's top k
    has no order for those.
    """
    skip_without("triton")
    given = quick_job(sweep, "float32")
    ids = torch.tensor([requests(given)[0].prompt_ids])
    with torch.no_grad():
        logits = alone(given.initial.path, "float32")(input_ids=ids).logits[0, -24:]
    save_file({"logits": logits.contiguous()}, tmp_path / "logits.safetensors")
    for case in found(tmp_path / "logits.safetensors").values():
        same = [
            drawn == expected
            for drawn, expected in zip(case["tokens"], case["expected"], strict=True)
        ]
        assert sum(same) >= len(same) - 1
        assert case["support"] == case["expected_support"]
        for law in ("student", "behavior"):
            expected = case[f"expected_{law}"]
            for right, ours, theirs in zip(same, case[law], expected, strict=True):
                assert not right or ours == pytest.approx(theirs, abs=2e-5)


@pytest.mark.parametrize("sampled_by", ["sglang", "torch"])
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_a_pair_of_another_architecture(name: str, sampled_by: str, tmp_path: Path) -> None:
    """On verl where torch samples, and on torch where SGLang does."""
    skip_without("sglang" if sampled_by == "sglang" else "verl")
    save_pair(tmp_path, name)
    job = job_of(tiny.worker_spec(tmp_path, draft_length=3))
    # SGLang's cache is as large as the longest sequences ask.
    training = replace(job.setup.training, max_prompt_tokens=32)
    evaluation = replace(job.setup.evaluation, max_response_tokens=32)
    job = replace(job, setup=replace(job.setup, training=training, evaluation=evaluation))
    sampling = open_engine(sampled_by, job)
    training = open_engine("torch" if sampled_by == "sglang" else "verl", replace(job, steps=2))
    try:
        check_pair(sampling.sampler(), training, tmp_path, 10 * EXACT)
    finally:
        sampling.close()
        training.close()
