"""What an engine of student and teacher takes of a GPU, against figures worked out here by hand."""

from __future__ import annotations

import pytest

from orchestrator.engines.memory import blending_gib
from orchestrator.errors import UserError
from orchestrator.experiment.load import load_experiment
from tests.sweeps import ROOT

GIB = 2**30
# qwen3-1.7b: weights 2 bytes, learner 4 + 8 + 4 + 2 bytes for each parameter.
W_S, W_Q = 2 * 1_720_574_976 / GIB, 2 * 8_190_735_360 / GIB
RESIDENT = W_S + W_Q + 9 * W_S + 6


def test_an_engine_of_both_models_by_hand() -> None:
    setup = load_experiment(ROOT / "experiments" / "paper.yaml", ()).setups["qwen3-1.7b"]
    # Half of what both models, the scorer's teacher, the learner and the workspace leave.
    cache = (80 - RESIDENT - W_Q) / 2
    taken, tokens = blending_gib(setup, 80.0)
    assert taken == pytest.approx(W_S + W_Q + cache)
    # KV of a token: 2 × layers × 8 × 128 × 2 bytes; 28 layers of the student and 36 of the teacher.
    assert tokens == int(cache * GIB / (2 * (28 + 36) * 8 * 128 * 2))
    with pytest.raises(UserError, match="while blending"):
        blending_gib(setup, RESIDENT + W_Q + 1)
