"""Budgets of a GPU: against figures worked out here by hand, and never more than the card has."""

from __future__ import annotations

from typing import get_args

import pytest

from orchestrator.config import Placement, RoleGpus, Runtime, Setup
from orchestrator.engines.budget import OTHERS, Situation, TooSmall, budget, scores_beside
from orchestrator.engines.memory import (
    Gpus,
    blending_requests,
    cpu_cache_tokens,
    decoder,
    fitting_round,
    learner_parts,
    longest_round,
    parameters,
    slots_of,
)
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
        "sampler": 256 * 39 * 8 * (3 + 16) / GIB,  # blocks of 4,096 logits, and the record
    }
    assert {name: gib for name, gib in found.parts.items() if name != "KV cache"} == pytest.approx(
        by_hand
    )
    assert found.kv_tokens == int((H100 - sum(by_hand.values())) * GIB // KV_S)
    assert found.requests == 256
    assert H100 - KV_S / GIB < found.total_gib <= H100


def test_torch_reads_the_teachers_logits_with_more_memory_than_the_kernel() -> None:
    heads = {}
    for name in ("triton", "torch", None):
        runtime = Runtime(logits_kernel=name)
        heads[name] = budget(setup(TORCH), runtime, H100, "scoring").parts["head"]
    assert heads[None] == heads["triton"] == pytest.approx(2**27 * 6 / GIB)
    assert heads["torch"] == pytest.approx(2**27 * 20 / GIB)


def test_torch_draws_with_more_memory_than_the_kernel() -> None:
    by_torch = Runtime(logits_kernel="torch")
    for given, runtime, on in (
        (setup(SGLANG), by_torch, Gpus(1)),
        (setup(SGLANG, "training.top_k=33"), DERIVED, Gpus(1)),
        (setup(SGLANG, "training.objective=full"), DERIVED, Gpus(1)),
        (setup(SGLANG), DERIVED, Gpus(2)),
    ):
        found = budget(given, runtime, H100, "decoding", on)
        assert found.parts["sampler"] == pytest.approx(2**25 * 26 / GIB)


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
    assert found.requests == blending_requests(setup()) == 256
    assert found.parts["weights"] == pytest.approx(W_S + W_Q)
    assert "graphs" not in found.parts
    assert "teacher" not in found.parts
    # The student's distributions of a largest round, and 64 bytes of each value of the rows that are
    # judged at once.
    most = 2**28 * 4 + 2**25 * 64 + 256 * V * 18 + 2 * 3 * 8 * 256 * 7168
    assert found.parts["round"] == pytest.approx(most / GIB)
    assert found.parts["KV cache"] == pytest.approx(found.kv_tokens * (KV_S + KV_Q) / GIB)


def test_short_rounds_have_more_requests_than_long_ones() -> None:
    assert {drafted: fitting_round(V, drafted) for drafted in (4, 6, 8, 16)} == {
        4: 441,
        6: 294,
        8: 220,
        16: 110,
    }
    assert fitting_round(V, 256) == 6
    assert fitting_round(2**30, 5) == 1


def test_a_few_requests_take_the_memory_of_their_longest_rounds_alone() -> None:
    found = budget(setup(SGLANG), Runtime(rollout_batch=8), H100, "blending")
    values = 8 * 16 * V
    most = values * 4 + values * 64 + 8 * V * 18 + 2 * 3 * 8 * 8 * 7168
    assert found.parts["round"] == pytest.approx(most / GIB)


def test_a_teacher_that_scores_beside_the_sampler_takes_room_from_the_cache() -> None:
    beside = Runtime(score_beside=True)
    alone, both = (budget(setup(SGLANG), r, H100, "decoding") for r in (DERIVED, beside))
    scoring = budget(setup(SGLANG), DERIVED, H100, "scoring")
    assert both.parts["scoring"] == scoring.parts["head"] + scoring.parts["activations"]
    lost = (alone.kv_tokens - both.kv_tokens) * KV_S / GIB
    assert lost == pytest.approx(both.parts["scoring"], abs=1e-3)
    assert both.own_gib == pytest.approx(alone.own_gib - both.parts["scoring"], abs=1e-3)
    for other in (setup(TORCH), setup(SGLANG, "engine.trainer=verl")):
        assert "scoring" not in budget(other, beside, H100, "decoding").parts
    assert "scoring" not in budget(setup(SGLANG), beside, H100, "evaluating").parts
    assert not scores_beside(setup(SGLANG), beside, Placement("split", 3, RoleGpus()))


def test_a_pool_is_no_larger_than_its_requests_can_use() -> None:
    short = setup(SGLANG, "training.max_prompt_tokens=64", "training.max_response_tokens=64")
    assert budget(short, Runtime(resident=False), H100, "decoding").kv_tokens == 256 * 128
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
    found = budget(setup(SGLANG), Runtime(checkpointing=True), H100, "learning")
    of_token = 4 * 28 * 2048 + 24 * (16 + 2 * 8) * 128 + 48 * 2048 + 36 * 6144
    assert (found.tokens, found.checkpointing) == (16_384, True)
    by_hand = {
        "contexts": 1.5,
        "margin": 0.03 * H100,
        "teacher": W_Q,
        "student": W_S + GRAPHS,
        "learner": 12 * 1_720_574_976 / GIB,
        "gradient": 4 * 1_720_574_976 / GIB,
        "loss": 14 * V * 2048 / GIB + 1.9,
        "activations": 16_384 * of_token / GIB,
    }
    assert found.parts == pytest.approx(by_hand)
    # Layers keep norms' inputs and outputs, queries and keys twice and the attention's output with
    # values, and four tensors of the MLP, in 16 bits; and the weights in 16 bits once.
    kept = 28 * 2 * (4 * 2048 + 3 * (16 + 8) * 128 + 4 * 6144) + 32 * 2048
    by_hand["activations"] = (8192 * kept + 2 * 1_720_574_976) / GIB
    found = budget(setup(SGLANG), DERIVED, H100, "learning")
    assert (found.tokens, found.checkpointing) == (8192, False)
    assert found.parts == pytest.approx(by_hand)


def test_layers_are_kept_where_that_is_faster_by_the_model() -> None:
    """Recomputing takes a third more arithmetic; passes of fewer tokens launch more kernels."""
    small = setup(SGLANG, name="qwen3-0.6b")
    ways = []
    for card in (79.1, 39.3, 36.0):
        found = budget(small, DERIVED, card, "learning")
        ways.append((found.tokens, found.checkpointing))
    assert ways == [(16_384, False), (8192, False), (16_384, True)]
    # Rows of 512 tokens: passes of 1,024 without checkpointing would fit, and launch for longer
    # than recomputing takes.
    short = setup(
        SGLANG,
        "training.max_prompt_tokens=256",
        "training.max_response_tokens=256",
        name="qwen3-0.6b",
    )
    found = budget(short, Runtime(resident=False), 29.0, "learning")
    assert (found.tokens, found.checkpointing) == (8192, True)
    kept = budget(short, Runtime(checkpointing=False, resident=False), 29.0, "learning")
    assert (kept.tokens, kept.checkpointing) == (2048, False)


@pytest.mark.parametrize("changed", ["engine.trainer=verl", "engine.dtype=float32"])
def test_layers_are_kept_only_where_that_was_counted(changed: str) -> None:
    found = budget(setup(SGLANG, changed, name="qwen3-0.6b"), DERIVED, 1000.0, "learning")
    assert found.checkpointing
    forced = setup(SGLANG, changed, name="qwen3-0.6b")
    assert not budget(forced, Runtime(checkpointing=False), 1000.0, "learning").checkpointing


def test_a_smaller_card_learns_in_smaller_passes_or_not_at_all() -> None:
    small = setup(SGLANG, name="qwen3-0.6b")
    again = Runtime(checkpointing=True)
    assert budget(small, again, A100, "learning").tokens == 16_384
    with pytest.raises(TooSmall) as refused:
        budget(small, DERIVED, 20.0, "learning")
    tight = budget(small, DERIVED, refused.value.needed_gib + 1.0, "learning")
    assert (tight.tokens, tight.checkpointing) == (8192, True)
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


# --- a learner that stays ---

SHORT = ("training.max_response_tokens=1024", SGLANG)  # of paper-small
TRIALS: list[tuple[Situation, ...]] = [
    ("decoding",),
    ("blending",),
    ("blending", "decoding"),
    ("answering",),
]


@pytest.mark.parametrize("sampling", TRIALS)
def test_a_learner_stays_where_everything_fits_side_by_side(
    sampling: tuple[Situation, ...],
) -> None:
    small = setup(*SHORT, name="qwen3-0.6b")
    learning = budget(small, DERIVED, H100, "learning", sampling=sampling)
    assert learning.resident
    assert learning.total_gib <= H100
    assert budget(small, DERIVED, H100, "scoring", sampling=sampling).resident
    state = 16 * 596_049_920 / GIB
    own = sum(learning.parts[name] for name in ("loss", "activations"))
    for each in sampling:
        engine = budget(small, DERIVED, H100, each, sampling=sampling)
        assert engine.resident
        assert engine.total_gib <= H100
        # State and gradient, and what one pass takes beside them, in the same process.
        assert engine.parts["trainer"] == pytest.approx(state + own)
        context = 2048 + (32 if each == "blending" else 0)
        requests = 110 if each == "blending" else engine.requests
        assert engine.kv_tokens >= requests / 2 * context
        assert engine.own_gib < H100 - engine.parts["trainer"]


def test_in_a_process_of_its_own_a_learner_keeps_what_scoring_could_reuse() -> None:
    small = setup(*SHORT, name="qwen3-0.6b")
    inline = budget(small, DERIVED, H100, "decoding")
    apart = budget(small, Runtime(placement=Placement("colocated", 1)), H100, "decoding")
    assert apart.resident
    scoring = budget(small, Runtime(resident=False), H100, "scoring")
    reused = scoring.parts["head"] + scoring.parts["activations"]
    learning = budget(
        small,
        Runtime(placement=Placement("colocated", 1)),
        H100,
        "learning",
        sampling=("decoding",),
    )
    own = [learning.parts[name] for name in ("learner", "gradient", "loss", "activations")]
    assert apart.parts["trainer"] == pytest.approx(sum(own) + reused)
    assert inline.parts["trainer"] > 0


def test_a_learner_moves_where_the_cache_would_be_less_than_half() -> None:
    for found in (setup(SGLANG), setup(SGLANG, name="qwen3-0.6b")):  # responses of 7,168 tokens
        for situation in SITUATIONS:
            assert not budget(found, DERIVED, H100, situation).resident
    small = setup(*SHORT, name="qwen3-0.6b")
    assert not budget(small, DERIVED, A100, "decoding").resident
    # Smaller passes make room for the cache, unless they cost more than moving.
    passes = []
    for card in (79.1, 74.0, 66.0):
        learning = budget(small, DERIVED, card, "learning")
        passes.append((learning.tokens, learning.checkpointing, learning.resident))
    assert passes == [(16_384, False, True), (8192, False, True), (16_384, False, False)]
    # All of a configured batch has to fit.
    assert budget(small, Runtime(rollout_batch=128), H100, "decoding").kv_tokens == 128 * 2048
    assert not budget(small, Runtime(rollout_batch=256), H100, "decoding").resident


def test_a_learner_never_stays_on_gpus_of_its_own_or_with_other_engines() -> None:
    small = setup(*SHORT, name="qwen3-0.6b")
    for situation in SITUATIONS:
        for on in (Gpus(1, apart=True), Gpus(2)):
            assert not budget(small, DERIVED, H100, situation, on).resident
        for engine in ((TORCH,), (SGLANG, "engine.trainer=verl")):
            other = setup(*SHORT[:-1], *engine, name="qwen3-0.6b")
            assert not budget(other, DERIVED, H100, situation).resident
    assert not budget(small, DERIVED, H100, "evaluating").resident


def test_a_learner_stays_or_moves_as_configured() -> None:
    small = setup(*SHORT, name="qwen3-0.6b")
    moved = budget(small, Runtime(resident=False), H100, "decoding")
    assert not moved.resident
    assert moved.kv_tokens == 256 * 2048
    forced = budget(small, Runtime(resident=True), A100, "decoding")
    assert forced.resident
    assert 2048 <= forced.kv_tokens < 128 * 2048
    with pytest.raises(
        TooSmall, match=r"^runtime\.resident: True: expected null or false on a GPU"
    ):
        budget(small, Runtime(resident=True), 23.5, "learning")


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


# --- sizes of a setup's models, against figures worked out here by hand ---


# Parameters as the model cards and checkpoints have them.
PARAMETERS = {
    ("qwen3-0.6b", "student"): 596_049_920,
    ("qwen3-1.7b", "student"): 1_720_574_976,
    ("qwen3-0.6b", "teacher"): 4_022_468_096,
    ("qwen3-1.7b", "teacher"): 8_190_735_360,
}


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
    pair = setup()
    student, teacher = decoder(pair.student, pair).kv_bytes, decoder(pair.teacher, pair).kv_bytes
    # 1024 + 7168 tokens of 28 layers × 8 heads × 128 × 2 × 2 bytes
    assert 8192 * student / GIB == 0.875
    assert 8192 * teacher / GIB == 1.125  # of 36 layers


def test_a_serving_engine_on_cpus_holds_a_batch_within_its_limit() -> None:
    assert cpu_cache_tokens(setup(), 1000) == GIB // (112 * 1024)
    assert cpu_cache_tokens(setup(), 8000) == 16_000, "two sequences at least"
    small = load_experiment(ROOT / "experiments" / "arithmetic-seeds.yaml").setups["arithmetic"]
    assert cpu_cache_tokens(small, 10) == 512 * 10


def test_a_batch_below_one_is_no_batch() -> None:
    with pytest.raises(UserError, match=r"runtime\.rollout_batch: 0: expected .* ≥ 1"):
        load_experiment(PAPER, ("runtime.rollout_batch=0",))
    assert load_experiment(PAPER, ("runtime.rollout_batch=null",)).runtime.rollout_batch is None
