"""Budgets of a GPU: against figures worked out here by hand, and never more than the card has."""

from __future__ import annotations

from typing import get_args

import pytest

from orchestrator.config import Runtime, Setup
from orchestrator.engines.budget import (
    OTHERS,
    Situation,
    TooSmall,
    blending_requests,
    budget,
    longest_round,
    slots_of,
)
from orchestrator.engines.memory import Gpus, decoder
from orchestrator.errors import UserError
from orchestrator.experiment.load import load_experiment
from orchestrator.planning.rates import GPUS
from tests.sweeps import ROOT

PAPER = ROOT / "experiments" / "paper.yaml"
GIB, V, H100, A100 = 2**30, 151_936, 79.1, 39.3
DERIVED = Runtime()
SGLANG, TORCH = "engine.sampler=sglang", "engine.sampler=torch"
# qwen3-1.7b: 2 bytes a weight; KV of a token 2 × layers × 8 × 128 × 2 bytes.
W_S, W_Q = 2 * 1_720_574_976 / GIB, 2 * 8_190_735_360 / GIB
KV_S, KV_Q = 2 * 28 * 8 * 128 * 2, 2 * 36 * 8 * 128 * 2
GRAPHS = 256 * (2**21 + 6 * V) / GIB
SITUATIONS = get_args(Situation)


def setup(*overrides: str, name: str = "qwen3-1.7b") -> Setup:
    return load_experiment(PAPER, overrides).setups[name]


# --- a pool of tokens ---


def test_a_student_that_samples_in_a_trial_leaves_room_for_the_teacher_that_scores() -> None:
    found = budget(setup(SGLANG), DERIVED, H100, "decoding")
    by_hand = {
        "contexts": 1.5,  # trial, a second actor, SGLang
        "margin": 0.03 * H100,
        "teacher": W_Q,
        "weights": W_S,
        "requests": 4 * 257 * (8192 + 32) / GIB,
        "graphs": GRAPHS,
        "prefill": 8192 * (3 * 2048 + 3 * 6144) * 2 / GIB,
        "attention": 0.5,
        "sampler": 2**25 * 26 / GIB,
    }
    assert {name: gib for name, gib in found.parts.items() if name != "KV cache"} == pytest.approx(
        by_hand
    )
    assert found.kv_tokens == int((H100 - sum(by_hand.values())) * GIB // KV_S)
    assert found.requests == 256
    assert H100 - KV_S / GIB < found.total_gib <= H100


@pytest.mark.parametrize("name", ["qwen3-1.7b", "qwen3-0.6b"])
@pytest.mark.parametrize("situation", ["decoding", "blending"])
def test_a_copy_of_the_students_weights_has_room_in_place_of_the_cache(
    situation: Situation, name: str
) -> None:
    chosen = setup(SGLANG, name=name)
    parts = budget(chosen, DERIVED, H100, situation).parts
    copy = decoder(chosen.student, chosen).weight_bytes / GIB
    assert parts["KV cache"] > 2 * copy, "`sglang.process` wants that much to be free"


def test_an_evaluator_has_the_gpu_for_itself() -> None:
    alone, trial = (
        budget(setup(SGLANG), DERIVED, H100, situation) for situation in ("evaluating", "decoding")
    )
    more = W_Q + 0.5  # the teacher, and the context of a second actor
    same = (trial.parts["requests"] - alone.parts["requests"]) + more
    assert alone.kv_tokens == pytest.approx(trial.kv_tokens + same * GIB / KV_S, abs=2)


def test_a_blending_engine_has_both_models_and_no_graphs() -> None:
    found = budget(setup(SGLANG), DERIVED, H100, "blending")
    assert found.requests == blending_requests(setup()) == 2**28 // (16 * V) == 110
    assert found.parts["weights"] == pytest.approx(W_S + W_Q)
    assert "graphs" not in found.parts
    assert "teacher" not in found.parts
    # The student's distributions of a longest round, and 64 bytes of each value of the 13 rows that
    # are judged at once.
    most = 110 * 16 * V * 4 + 2**25 * 64 + 110 * V * 18 + 2 * 3 * 8 * 110 * 7168
    assert found.parts["round"] == pytest.approx(most / GIB)
    assert found.parts["KV cache"] == pytest.approx(found.kv_tokens * (KV_S + KV_Q) / GIB)


def test_a_pool_is_no_larger_than_its_requests_can_use() -> None:
    short = setup(SGLANG, "training.max_prompt_tokens=64", "training.max_response_tokens=64")
    assert budget(short, DERIVED, H100, "decoding").kv_tokens == 256 * 128
    assert budget(short, Runtime(rollout_batch=8), H100, "decoding").kv_tokens == 8 * 128


def test_memory_that_is_the_engines_own_has_to_be_free_before_it_starts() -> None:
    found = budget(setup(SGLANG), DERIVED, H100, "decoding")
    others = sum(found.parts.get(name, 0.0) for name in OTHERS)
    assert found.own_gib == pytest.approx(found.total_gib - others + 0.5)


# --- batches of the torch engine ---


def test_a_batch_of_the_torch_engine_has_full_caches_and_a_layer_of_repeated_heads() -> None:
    found = budget(setup(TORCH), DERIVED, H100, "decoding")
    left = H100 - 1.0 - 0.03 * H100 - W_Q - W_S
    of_row = 8192 * (KV_S + KV_S / 28 * 2) + V * 32
    assert found.requests == int(left * GIB // of_row) == 60
    blending = budget(setup(TORCH), DERIVED, H100, "blending")
    slots = slots_of(8192, 16)
    of_row = slots * (KV_S + KV_Q + KV_Q / 36 * 4)
    assert blending.requests == int((left - 2**25 * 96 / GIB) * GIB // of_row) == 23


def test_slots_of_rejected_drafts_are_counted() -> None:
    assert slots_of(8192, 1) == 8192
    assert slots_of(8192, 16) == 9012 + 16
    assert longest_round(setup(), 23) == 2**25 // (23 * V) == 9
    assert longest_round(setup(), 10_000) == 1


@pytest.mark.parametrize("card", [79.1, 1000.0])
def test_a_configured_batch_wins(card: float) -> None:
    assert budget(setup(TORCH), Runtime(rollout_batch=7), card, "blending").requests == 7


# --- passes ---


def test_learning_counts_the_state_the_loss_and_each_token() -> None:
    found = budget(setup(SGLANG), DERIVED, H100, "learning")
    of_token = 4 * 28 * 2048 + 24 * (16 + 2 * 8) * 128 + 48 * 2048 + 36 * 6144
    assert found.tokens == 16_384
    assert found.parts == pytest.approx(
        {
            "contexts": 1.5,
            "margin": 0.03 * H100,
            "teacher": W_Q,
            "student": W_S + GRAPHS,
            "learner": 12 * 1_720_574_976 / GIB,
            "gradient": 4 * 1_720_574_976 / GIB,
            "loss": 14 * V * 2048 / GIB + 1.9,
            "activations": 16_384 * of_token / GIB,
        }
    )


def test_a_smaller_card_learns_in_smaller_passes_or_not_at_all() -> None:
    small = setup(SGLANG, name="qwen3-0.6b")
    assert budget(small, DERIVED, A100, "learning").tokens == 16_384
    with pytest.raises(TooSmall) as refused:
        budget(small, DERIVED, 20.0, "learning")
    tight = budget(small, DERIVED, refused.value.needed_gib + 1.0, "learning")
    assert 8192 < tight.tokens < 16_384
    with pytest.raises(
        TooSmall, match=r"^GPU memory: 39\.3 GiB: expected at least .* GiB while the student learns"
    ) as large:
        budget(setup(SGLANG), DERIVED, A100, "learning")
    # The margin is a share of the card.
    assert budget(setup(SGLANG), DERIVED, large.value.needed_gib * 1.03, "learning").tokens >= 8192


def test_a_configured_micro_batch_wins_but_a_row_is_never_cut() -> None:
    assert budget(setup(), Runtime(micro_batch_tokens=9000), H100, "learning").tokens == 9000
    assert budget(setup(), Runtime(micro_batch_tokens=1), H100, "scoring").tokens == 8192


def test_on_gpus_of_their_own_roles_hold_nothing_of_others() -> None:
    apart = Gpus(1, apart=True)
    learning, scoring = (budget(setup(), DERIVED, H100, s, apart) for s in ("learning", "scoring"))
    assert not {"teacher", "student"} & set(learning.parts)
    assert scoring.parts["weights"] == pytest.approx(W_Q)
    assert "teacher" not in scoring.parts


# --- every situation ---


@pytest.mark.parametrize("engine", [SGLANG, TORCH])
@pytest.mark.parametrize("name", ["qwen3-1.7b", "qwen3-0.6b"])
@pytest.mark.parametrize("card", GPUS)
def test_no_budget_exceeds_its_card(card: str, name: str, engine: str) -> None:
    for share in (1.0, 0.5):
        for situation in SITUATIONS:
            for count in (1, 2, 4):
                gib = GPUS[card].gib * share
                needed = 0.0
                try:
                    found = budget(setup(engine, name=name), DERIVED, gib, situation, Gpus(count))
                except TooSmall as error:
                    needed = error.needed_gib
                else:
                    assert found.total_gib <= gib + 1e-9
                    assert min(found.parts.values()) >= 0
                assert needed == 0 or needed > gib


@pytest.mark.parametrize("situation", SITUATIONS)
def test_more_gpus_hold_less_each_or_more_together(situation: Situation) -> None:
    one, two = (budget(setup(SGLANG), DERIVED, H100, situation, Gpus(count)) for count in (1, 2))
    assert two.kv_tokens >= one.kv_tokens
    for name in {"weights", "teacher", "learner", "gradient"} & set(one.parts):
        assert two.parts[name] == pytest.approx(one.parts[name] / 2)


def test_a_gpu_too_small_is_refused_with_what_is_needed() -> None:
    long = setup(SGLANG, "training.max_response_tokens=400000")
    with pytest.raises(
        UserError, match=r"at least .* GiB for one sequence of full length while blending \(Qwen3-"
    ):
        budget(long, DERIVED, H100, "blending")
    with pytest.raises(TooSmall) as refused:
        budget(setup(SGLANG), DERIVED, 6.0, "evaluating")
    assert (
        budget(setup(SGLANG), DERIVED, refused.value.needed_gib * 1.05, "evaluating").kv_tokens
        >= 9216
    )


def test_a_batch_below_one_is_no_batch() -> None:
    with pytest.raises(UserError, match=r"runtime\.rollout_batch: 0: expected .* ≥ 1"):
        load_experiment(PAPER, ("runtime.rollout_batch=0",))
    assert load_experiment(PAPER, ("runtime.rollout_batch=null",)).runtime.rollout_batch is None
