"""The table of a trial's memory, against figures worked out here by hand."""

from __future__ import annotations

import pytest

from orchestrator.config import Placement, RoleGpus, Runtime
from orchestrator.experiment.load import load_experiment
from orchestrator.planning.memory import Memory, memory
from tests.planning.plans import PAPER

GIB = 2**30
W_S, W_Q = 2 * 1_720_574_976 / GIB, 2 * 8_190_735_360 / GIB


def of_trial(
    gib: float, placement: Placement | None = None, engine: str = "sglang", batch: int | None = None
) -> Memory:
    experiment = load_experiment(PAPER, [f"engine.sampler={engine}"])
    return memory(experiment.setups["qwen3-1.7b"], Runtime(rollout_batch=batch), gib, placement)


def test_memory_of_a_trial() -> None:
    found = of_trial(79.1)
    assert (found.student_weights, found.teacher_weights) == pytest.approx((W_S, W_Q))
    assert found.learner_state == pytest.approx(16 * 1_720_574_976 / GIB)
    assert (found.kv_student, found.kv_teacher) == (0.875, 1.125)
    assert (found.sequences_at_once_vanilla, found.sequences_at_once_blending) == (63, 26)
    assert found.generation_vanilla == pytest.approx(W_S + 63 * 0.875)
    assert found.generation_blending == pytest.approx(W_S + W_Q + 26 * 2.0)
    assert found.learning_tokens == 8192
    assert max(found.peak_vanilla, found.peak_blending) <= 79.1


def test_scoring_and_learning_by_hand() -> None:
    """Contexts, margin and what others keep; then the head and activations, or state, loss and
    activations.
    """
    state, loss = 16 * 1_720_574_976 / GIB, 5.9571
    # Of 8,192 tokens in 28 layers that keep what they computed, with their weights in bfloat16.
    of_token = 28 * 2 * (4 * 2048 + 3 * 24 * 128 + 4 * 6144) + 32 * 2048
    activations, weights = 8192 * of_token / GIB, 2 * 1_720_574_976 / GIB
    kept = 3 * 0.5 + 0.03 * 79.1 + W_Q + W_S + 0.7173  # the student's engine keeps its CUDA graphs
    found = of_trial(79.1)
    assert found.scoring == pytest.approx(kept + 0.75 + 1.875, abs=1e-3)
    learning = state + loss + activations + weights
    assert found.learning == pytest.approx(kept + learning, abs=1e-3)
    apart = of_trial(79.1, Placement("split", 4, RoleGpus(2, 1, 1)))
    assert apart.scoring == pytest.approx(2 * 0.5 + 0.03 * 79.1 + W_Q + 0.75 + 1.875, abs=1e-3)
    twice_as_many = 2 * 0.5 + 0.03 * 79.1 + learning + activations
    assert apart.learning == pytest.approx(twice_as_many, abs=1e-3)


def test_the_torch_engine_holds_other_batches() -> None:
    found = of_trial(79.1, engine="torch")
    assert (found.sequences_at_once_vanilla, found.sequences_at_once_blending) == (60, 23)


def test_no_more_sequences_are_decoded_than_a_step_has() -> None:
    assert of_trial(79.1, batch=100_000).sequences_decoded_vanilla == 64 * 4


def test_what_does_not_fit_has_no_sequences() -> None:
    found = of_trial(39.3)
    assert found.sequences_at_once_vanilla == found.sequences_at_once_blending == 0
    assert found.learning_tokens == 0
    assert found.learning > 39.3


def test_roles_apart_hold_what_they_need_themselves() -> None:
    found = of_trial(79.1, Placement("split", 4, RoleGpus(2, 1, 1)))
    assert found.student_weights == pytest.approx(W_S / 2)
    assert found.teacher_weights == pytest.approx(W_Q)
    whole = of_trial(79.1)
    assert (found.learning_tokens, whole.learning_tokens) == (16_384, 8192)
    assert found.scoring < whole.scoring - W_S
    assert found.sequences_at_once_blending > 2 * whole.sequences_at_once_blending
