"""Sizes of a setup's models, against figures worked out here by hand."""

from __future__ import annotations

import pytest

from orchestrator.config import Setup
from orchestrator.engines.memory import cpu_cache_tokens, kv_gib, learner_parts, parameters
from orchestrator.experiment.load import load_experiment
from tests.sweeps import ROOT

PAPER = ROOT / "experiments" / "paper.yaml"
GIB = 2**30
# Parameters as the model cards and checkpoints have them.
PARAMETERS = {
    ("qwen3-0.6b", "student"): 596_049_920,
    ("qwen3-1.7b", "student"): 1_720_574_976,
    ("qwen3-0.6b", "teacher"): 4_022_468_096,
    ("qwen3-1.7b", "teacher"): 8_190_735_360,
}


def setup(*overrides: str, name: str = "qwen3-1.7b") -> Setup:
    return load_experiment(PAPER, overrides).setups[name]


@pytest.mark.parametrize(("name", "role"), PARAMETERS)
def test_parameter_counts_are_those_of_the_checkpoints(name: str, role: str) -> None:
    whole = setup(name=name)
    assert parameters(getattr(whole, role).shape, whole.vocabulary.size) == PARAMETERS[name, role]


def test_a_learner_has_sixteen_bytes_for_each_parameter() -> None:
    parts = learner_parts(setup())
    assert parts == {
        "learner": pytest.approx(12 * 1_720_574_976 / GIB),
        "gradient": pytest.approx(4 * 1_720_574_976 / GIB),
    }


def test_a_learner_of_adapters_keeps_the_weights_and_trains_the_adapters() -> None:
    """Rank 32 beside the seven linear layers of 28 layers: 2048 wide, KV 1024, MLP 6144."""
    inputs_and_outputs = 2 * (2048 + 2048) + 2 * (2048 + 1024) + 3 * (2048 + 6144)
    adapters = 28 * 32 * inputs_and_outputs
    assert adapters == 34_865_152
    assert learner_parts(setup(), rank=32) == {
        "learner": pytest.approx((4 * 1_720_574_976 + 12 * adapters) / GIB),
        "gradient": pytest.approx(4 * adapters / GIB),
    }


def test_caches_of_full_length() -> None:
    assert (
        kv_gib(setup(), blending=False) == 0.875
    )  # 1024 + 7168 tokens of 28 layers × 8 heads × 128 × 2 × 2 bytes
    assert kv_gib(setup(), blending=True) == 0.875 + 1.125  # and of 36 layers
    assert kv_gib(setup(), blending=False, max_tokens=8192) == 0.984375


def test_a_serving_engine_on_cpus_holds_a_batch_within_its_limit() -> None:
    assert cpu_cache_tokens(setup(), 1000) == GIB // (112 * 1024)
    assert cpu_cache_tokens(setup(), 8000) == 16_000, "two sequences at least"
    small = load_experiment(ROOT / "experiments" / "arithmetic-seeds.yaml").setups["arithmetic"]
    assert cpu_cache_tokens(small, 10) == 512 * 10
