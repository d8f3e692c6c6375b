"""Parameters, memory of a trial and sequences decoded at once, against figures worked out here by hand."""

from __future__ import annotations

import pytest

from orchestrator.config import Placement, RoleGpus, Runtime, Setup
from orchestrator.engines.memory import (
    WORKSPACE_GIB,
    Gpus,
    Memory,
    blending_gib,
    check_roles,
    cpu_cache_tokens,
    decode_batch,
    learning_gib,
    memory,
    parameters,
    resident_gib,
    scoring_gib,
    static_gib,
)
from orchestrator.errors import UserError
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
DERIVED = Runtime()
# qwen3-1.7b: weights 2 bytes, learner 4 + 8 + 4 + 2 bytes for each parameter; KV of a token 2 × layers × 8 × 128 × 2.
W_S, W_Q = 2 * 1_720_574_976 / GIB, 2 * 8_190_735_360 / GIB
LEARNER = 18 * 1_720_574_976 / GIB
RESIDENT = W_S + W_Q + 6
LEARNING = RESIDENT + LEARNER


def setup(*overrides: str, name: str = "qwen3-1.7b") -> Setup:
    return load_experiment(PAPER, overrides).setups[name]


def of_trial(rollout_batch: int | None = None, name: str = "qwen3-1.7b", *overrides: str) -> Memory:
    return memory(setup(*overrides, name=name), Runtime(rollout_batch=rollout_batch), 80.0)


@pytest.mark.parametrize(("name", "role"), PARAMETERS)
def test_parameter_counts_are_those_of_the_checkpoints(name: str, role: str) -> None:
    whole = setup(name=name)
    assert parameters(getattr(whole, role).shape, whole.vocabulary.size) == PARAMETERS[name, role]


def test_memory_of_a_trial() -> None:
    found = of_trial(rollout_batch=8)
    assert WORKSPACE_GIB == 6
    assert found.student_weights == pytest.approx(W_S)
    assert found.teacher_weights == pytest.approx(W_Q)
    assert found.learner_state == pytest.approx(LEARNER)
    assert (found.kv_student, found.kv_teacher) == (0.875, 1.125)  # GiB for 1024 + 7168 tokens of 28 and 36 layers
    assert (found.sequences_decoded_vanilla, found.sequences_decoded_blending) == (8, 8)
    assert found.generation_vanilla == pytest.approx(W_S + 8 * 0.875)
    assert found.generation_blending == pytest.approx(W_S + W_Q + 8 * 2.0)
    assert found.learning == found.peak_vanilla == found.peak_blending == pytest.approx(LEARNING)
    assert (found.sequences_at_once_vanilla, found.sequences_at_once_blending) == (63, 27)
    many = of_trial(rollout_batch=40)
    assert many.peak_vanilla == pytest.approx(RESIDENT + 40 * 0.875)
    assert many.peak_blending == pytest.approx(RESIDENT + 40 * 2.0)


@pytest.mark.parametrize("name", ["qwen3-1.7b", "qwen3-0.6b"])
def test_what_blending_adds_to_generation_is_the_teacher(name: str) -> None:
    """The paper's overhead W_Q + KV_Q, at the same n."""
    found = of_trial(13, name)
    added = found.teacher_weights + 13 * found.kv_teacher
    assert found.generation_blending - found.generation_vanilla == pytest.approx(added)


@pytest.mark.parametrize("name", ["qwen3-1.7b", "qwen3-0.6b"])
def test_derived_batches_fill_the_gpu_and_no_more(name: str) -> None:
    found = of_trial(None, name)
    assert 80 - found.kv_student < found.peak_vanilla <= 80
    assert 80 - found.kv_student - found.kv_teacher < found.peak_blending <= 80


def test_no_more_sequences_are_decoded_than_a_step_has() -> None:
    assert of_trial(rollout_batch=100_000).sequences_decoded_vanilla == 64 * 4
    short = of_trial(None, "qwen3-1.7b", "training.max_prompt_tokens=64", "training.max_response_tokens=64")
    assert (short.sequences_decoded_vanilla, short.sequences_decoded_blending) == (256, 256)


@pytest.mark.parametrize(
    ("gpu_gib", "blending", "max_tokens", "trains", "sequences"),
    [
        (80.0, False, None, True, 63),  # (80 − 24.46) ÷ 0.875 = 63.5
        (80.0, True, None, True, 27),  # (80 − 24.46) ÷ 2 = 27.8
        (80.0, False, 8192, True, 56),  # evaluation: 1024 + 8192 tokens, 55.54 ÷ 0.984 = 56.4
        (80.0, False, 8192, False, 71),  # base evaluation: (80 − 3.20 − 6) ÷ 0.984 = 71.9
        (53.4, False, None, True, 33),  # (53.4 − 24.46) ÷ 0.875 = 33.1: room for the learner, and so for many sequences
        (24.0, False, 8192, False, 15),  # a model alone fits a small GPU: 14.8 ÷ 0.984 = 15.03
    ],
)
def test_derived_batch_by_hand(
    gpu_gib: float, blending: bool, max_tokens: int | None, trains: bool, sequences: int
) -> None:
    assert (pytest.approx(24.46, abs=0.005), pytest.approx(53.30, abs=0.005)) == (RESIDENT, LEARNING)
    assert decode_batch(setup(), DERIVED, gpu_gib, blending, max_tokens, trains) == sequences


def test_cpus_decode_512_at_once() -> None:
    assert decode_batch(setup(), DERIVED, None, blending=True) == 512


@pytest.mark.parametrize("gpu_gib", [None, 80.0, 1.0])
def test_a_configured_batch_wins(gpu_gib: float | None) -> None:
    assert decode_batch(setup(), Runtime(rollout_batch=7), gpu_gib, blending=True) == 7


def test_a_gpu_too_small_is_refused_with_what_is_needed() -> None:
    with pytest.raises(
        UserError, match=r"^GPU memory: 53\.2 GiB — at least 53\.3 GiB while the student learns \(Qwen3-"
    ):
        decode_batch(setup(), DERIVED, 53.2, blending=False)
    alone = (
        r"^GPU memory: 10\.0 GiB — at least 10\.1 GiB for one sequence of full length \(Qwen3-1\.7B-Base ← Qwen3-8B\)"
    )
    with pytest.raises(UserError, match=alone):
        decode_batch(setup(), DERIVED, 10.0, blending=False, trains=False)
    long = "training.max_response_tokens=400000"
    with pytest.raises(UserError, match=r"at least 122\.4 GiB for one sequence of full length while blending"):
        decode_batch(setup(long), DERIVED, 80.0, blending=True)


def test_a_batch_below_one_is_no_batch() -> None:
    with pytest.raises(UserError, match=r"runtime\.rollout_batch: 0 — must be ≥ 1"):
        load_experiment(PAPER, ("runtime.rollout_batch=0",))
    assert load_experiment(PAPER, ("runtime.rollout_batch=null",)).runtime.rollout_batch is None


def test_a_serving_engine_takes_what_weights_and_workspace_leave() -> None:
    """The learner's state is not on the GPU while it decodes, and its cache not while others work."""
    assert static_gib(setup(), 80.0) == pytest.approx(80.0 - W_Q - 6)
    assert static_gib(setup(), 80.0, owner="teacher") == static_gib(setup(), 80.0, trains=False) == 80.0 - 6
    taken, tokens = blending_gib(setup(), 80.0)
    assert taken == 80.0 - 6
    assert tokens == int((80 - RESIDENT) * GIB / (2 * (28 + 36) * 8 * 128 * 2))
    for of_engine in (static_gib, blending_gib):
        with pytest.raises(UserError, match=r"GPU memory: 48\.0 GiB — at least 53\.3 GiB while the student learns"):
            of_engine(setup(), 48.0)
    with pytest.raises(UserError, match="while blending"):
        blending_gib(setup("training.max_response_tokens=300000"), 80.0)


def test_a_serving_engine_on_cpus_holds_a_batch_within_its_limit() -> None:
    assert cpu_cache_tokens(setup(), 1000) == GIB // (112 * 1024)
    assert cpu_cache_tokens(setup(), 8000) == 16_000, "two sequences at least"
    small = load_experiment(ROOT / "experiments" / "quickstart.yaml").setups["arithmetic"]
    assert cpu_cache_tokens(small, 10) == 512 * 10


def test_a_teacher_is_there_once_whichever_engine_has_it() -> None:
    """A scorer on another engine comes up when blending is over, and the teacher that blended has gone by then."""
    apart = setup("engine.trainer=verl")
    assert learning_gib(apart) == learning_gib(setup()) == pytest.approx(LEARNING)
    assert [decode_batch(apart, DERIVED, 80.0, blending) for blending in (False, True)] == [63, 27]


# --- several GPUs ---


@pytest.mark.parametrize(
    ("count", "gpu_gib", "alone", "blending"),
    [
        (2, 80.0, 148, 64),  # 2 × (80 − 18.46 ÷ 2 − 6) = 129.5 GiB; ÷ 0.875 = 148.05, ÷ 2 = 64.8
        (4, 80.0, 317, 138),  # 4 × (80 − 18.46 ÷ 4 − 6) = 277.5; ÷ 0.875 = 317.2, ÷ 2 = 138.8
        (2, 40.0, 56, 24),  # 2 × (40 − 9.23 − 6) = 49.54; ÷ 0.875 = 56.6, ÷ 2 = 24.8
        (1, 40.0, 0, 0),  # learning takes 53.3
    ],
)
def test_roles_in_turns_share_everything_but_the_workspace(
    count: int, gpu_gib: float, alone: int, blending: int
) -> None:
    assert pytest.approx(18.46, abs=0.005) == W_S + W_Q
    found = memory(setup(), DERIVED, gpu_gib, Placement(gpus=count))
    assert (found.sequences_at_once_vanilla, found.sequences_at_once_blending) == (alone, blending)
    assert found.student_weights == pytest.approx(W_S / count)
    assert found.teacher_weights == pytest.approx(W_Q / count)
    assert found.learner_state == pytest.approx(LEARNER / count)
    assert (found.kv_student, found.kv_teacher) == (0.875 / count, 1.125 / count)
    assert found.workspace == 6
    assert found.scoring == pytest.approx((W_S + W_Q) / count + 6)
    assert found.learning == pytest.approx((W_S + W_Q + LEARNER) / count + 6)
    if blending:
        assert found.peak_blending == pytest.approx((W_S + W_Q) / count + 6 + blending * 2 / count)
        assert found.peak_blending <= gpu_gib < found.peak_blending + 2 / count
    assert found.sequences_decoded_evaluation == memory(setup(), DERIVED, gpu_gib).sequences_decoded_evaluation


def test_roles_apart_hold_what_they_need_themselves() -> None:
    """Student (and teacher while blending) where it samples; where they score and learn, teacher and learner alone."""
    found = memory(setup(), DERIVED, 80.0, Placement("split", 4, RoleGpus(2, 1, 1)))
    assert found.student_weights == pytest.approx(W_S / 2)
    assert found.teacher_weights == pytest.approx(W_Q)
    assert found.learner_state == pytest.approx(LEARNER)
    assert found.scoring == pytest.approx(W_Q + 6)
    assert found.learning == pytest.approx(LEARNER + 6)
    assert found.sequences_at_once_vanilla == 165  # 2 × (80 − 3.20 ÷ 2 − 6) = 144.8; ÷ 0.875 = 165.5
    assert found.sequences_at_once_blending == 64  # as in turns: there both models are beside the caches, too
    assert found.peak_vanilla == pytest.approx(W_S / 2 + 6 + 165 * 0.875 / 2)
    assert found.peak_blending == pytest.approx((W_S + W_Q) / 2 + 6 + 64)


def test_a_role_that_does_not_fit_its_own_gpus_is_refused() -> None:
    """The learner of the larger pair: 28.84 GiB and the workspace of 6."""
    placement = Placement("split", 3, RoleGpus())
    check_roles(setup(), 40.0, placement)
    check_roles(setup(), 20.0, Placement(gpus=1))  # of roles in turns `decode_batch` says it
    with pytest.raises(UserError, match=r"^GPU memory: 34\.0 GiB — at least 34\.8 GiB for the learner on its 1 GPU \("):
        check_roles(setup(), 34.0, placement)
    with pytest.raises(UserError, match=r"at least 21\.3 GiB for the teacher on its 1 GPU .*role_gpus\.teacher"):
        check_roles(setup(), 21.0, Placement("split", 4, RoleGpus(1, 1, 2)))
    assert memory(setup(), DERIVED, 34.0, placement).sequences_at_once_vanilla == 0


def test_a_serving_engine_over_several_gpus_takes_its_part_of_each() -> None:
    two = Gpus(2)
    assert static_gib(setup(), 80.0, on=two) == pytest.approx(80.0 - W_Q / 2 - 6)
    taken, tokens = blending_gib(setup(), 80.0, two)
    assert taken == pytest.approx(80.0 - 6)
    assert tokens == int(2 * (80 - (W_S + W_Q) / 2 - 6) * GIB / (2 * (28 + 36) * 8 * 128 * 2))
    apart = Gpus(2, apart=True)
    assert static_gib(setup(), 80.0, on=apart) == 80.0 - 6, "no other role is there"
    assert blending_gib(setup(), 80.0, apart) == (taken, tokens)
    assert static_gib(setup(), 20.0, on=Gpus(1, apart=True)) == 14, "nobody learns there, either"
    with pytest.raises(UserError, match=r"GPU memory: 24\.0 GiB — at least 29\.7 GiB on each of 2 GPUs while the"):
        static_gib(setup(), 24.0, on=two)


def test_the_parts_of_a_trial_add_up_to_what_one_gpu_holds() -> None:
    for count in (2, 4, 8):
        on = Gpus(count)
        for part in (resident_gib, scoring_gib, learning_gib):
            whole = count * (part(setup(), on=on) - WORKSPACE_GIB)
            assert whole == pytest.approx(part(setup()) - WORKSPACE_GIB)
