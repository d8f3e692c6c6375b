"""Lengths, rates of engines and what they make of the paper's sweep, against the published figures,
worked out here.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from orchestrator.config import Placement, Runtime
from orchestrator.engines import catalog
from orchestrator.engines.memory import decoder, sequences_per_step
from orchestrator.errors import UserError
from orchestrator.experiment.load import load_experiment
from orchestrator.planning import work
from orchestrator.planning.costs import GRADE, Design, SetupCosts
from orchestrator.planning.lengths import LAWS, LengthLaw, Lengths
from orchestrator.planning.numbers import SCENARIOS, Range, Scenario
from orchestrator.planning.rates import GPUS, LEARNING, RATES, SCORING, Gpu, gpu_of
from orchestrator.records.clock import BLENDED, PLAIN
from orchestrator.records.log import LEARN, ROLLOUT, SCORE
from tests.planning.by_hand import PROMPT, by_hand
from tests.planning.plans import (
    EXPERIMENTS,
    FROM_RATES,
    PAPER,
    document,
    planned,
    shown,
    totals_of,
)
from tests.sweeps import trb_here

BANDWIDTH, PEAK = 3.35e12, 990e12  # of an H100
KV = {"0.6b": 112 * 1024, "1.7b": 112 * 1024, "4b": 144 * 1024, "8b": 144 * 1024}  # bytes a token
STUDENTS = {"qwen3-1.7b": 1_720_574_976, "qwen3-0.6b": 596_049_920}  # parameters
TEACHERS = {"qwen3-1.7b": 8_190_735_360, "qwen3-0.6b": 4_022_468_096}
# GPU-hours on H100s of the paper's sweep with SGLang, one GPU for each trial: low, middle, high.
# Published figures, with the statistics of sampler, scorer and verdict, and rounds without graphs.
SWEEP = {
    "rollout": (365, 852, 1994),
    "score": (64, 115, 215),
    "learn": (74, 157, 447),
    "other": (45, 77, 128),
}
FULL, ADAPTIVE, TOTAL = (5950, 13440, 31310), (630, 2140, 6870), (1100, 3100, 9500)
ADAPTIVE_BUDGET = "evaluation.budget=adaptive"
# Checkpoints of a family → share of the generations, where they differ much and hardly at all; 9.7
# to 21 % in all.
RACES = {
    1: (1.0, 1.0), 2: (0.52, 0.56), 3: (0.38, 0.43), 10: (0.28, 0.33), 20: (0.28, 0.37),
    60: (0.14, 0.25), 120: (0.10, 0.21), 180: (0.08, 0.19), 300: (0.07, 0.18),
}  # fmt: skip
BEFORE = Design()
ALL = Design(**{field.name: True for field in fields(Design)})
DAYS_ON_8 = (6, 16, 49)
NOT_INSTALLED = (
    "engine.sampler: 'sglang': expected torch, or `make setup-engines` first "
    "(not_a_package is not installed here)"
)


def costs_of(setup: str, engine: str = "sglang") -> SetupCosts:
    experiment = load_experiment(PAPER, FROM_RATES)
    return SetupCosts(experiment.setups[setup], experiment.runtime, engine)


def rate(costs: SetupCosts, kind: str, scenario: Scenario) -> float:
    """Tokens of training responses per second."""
    tokens = sequences_per_step(costs.setup.training) * costs.tokens_under(None).at(scenario)
    return tokens / costs.step(kind)[ROLLOUT].at(scenario)


@pytest.fixture
def sglang_blends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The published figures are those of an engine that also samples blended responses."""
    blends = replace(catalog.ENGINES["sglang"], blends=True)
    monkeypatch.setattr(catalog, "ENGINES", {**catalog.ENGINES, "sglang": blends})


@pytest.fixture
def sglang_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = replace(catalog.ENGINES["sglang"], packages=("not_a_package",))
    monkeypatch.setattr(catalog, "ENGINES", {**catalog.ENGINES, "sglang": absent})


def near(expected: tuple[int, int, int], found: dict[str, float]) -> bool:
    return [found[s] for s in SCENARIOS] == pytest.approx(list(expected), rel=0.15)


# --- lengths ---


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("limit", [512, 2048, 7168, 8192])
def test_lengths_under_a_limit_are_those_of_the_law(scenario: Scenario, limit: int) -> None:
    law = LAWS[scenario]
    found, hand = law.under(limit, PROMPT), by_hand(law.finished, law.endless, limit)
    assert found.tokens == pytest.approx(hand.tokens, rel=2e-3)
    assert found.truncated == pytest.approx(hand.truncated, abs=2e-3)
    # Lengths know the mean and the share that is cut, and no more of the law: where a low limit
    # cuts much of it, its shape is another.
    exact = 4e-3 if limit > 7000 else 0.1
    assert found.reads == pytest.approx(hand.reads, rel=exact)
    for rows in (1, 13, 71, 256):
        assert found.longest(rows) == pytest.approx(hand.longest(rows), rel=exact)


def test_responses_that_run_to_the_limit_cost_what_was_observed() -> None:
    """32 to 53 % of the tokens and 73 to 78 % of what is read of the caches, under a limit of
    8,192.
    """
    of_tokens, of_reads = [], []
    for scenario in SCENARIOS:
        lengths = LAWS[scenario].under(8192, PROMPT)
        of_tokens.append(lengths.truncated * 8192 / lengths.tokens)
        of_reads.append(lengths.truncated * (PROMPT * 8192 + 8192**2 / 2) / lengths.reads)
    assert of_tokens == pytest.approx([0.32, 0.43, 0.53], abs=0.01)
    assert of_reads == pytest.approx([0.73, 0.755, 0.78], abs=0.005)


def test_the_mean_context_is_the_published_form() -> None:
    m, q, limit, p = 1000.0, 0.1, 8192, 150.0
    lengths = Lengths(m, q, limit, p)
    reads = (1 - q) * (p * m + 0.75 * m * m) + q * (p * limit + limit**2 / 2)
    assert lengths.context == pytest.approx(reads / ((1 - q) * m + q * limit))


def test_longer_limits_and_more_runaways_cost_more() -> None:
    for rising in (
        [LAWS["mid"].under(limit, PROMPT) for limit in (48, 512, 2048, 8192, 16384)],
        [LengthLaw(1200, endless).under(8192, PROMPT) for endless in (0.0, 0.05, 0.1, 0.5, 1.0)],
        [LengthLaw(finished, 0.1).under(8192, PROMPT) for finished in (200, 800, 1600, 4000)],
        [LAWS[scenario].under(8192, PROMPT) for scenario in SCENARIOS],
    ):
        tokens = [lengths.tokens for lengths in rising]
        reads = [lengths.reads for lengths in rising]
        assert tokens == sorted(set(tokens))
        assert reads == sorted(set(reads))
        assert all(lengths.tokens <= lengths.limit for lengths in rising)


# --- rates ---


def test_every_engine_that_samples_has_a_row_of_rates() -> None:
    assert set(RATES) == set(catalog.able("sampler"))


def test_scoring_and_learning_on_verl_are_the_same_whatever_samples() -> None:
    torch, sglang = costs_of("qwen3-1.7b", "torch"), costs_of("qwen3-1.7b")
    on_verl = replace(torch.setup, engine=replace(torch.setup.engine, trainer="verl"))
    with_verl = replace(torch, setup=on_verl).step(PLAIN)
    for phase in (SCORE, LEARN):
        assert with_verl[phase] == replace(sglang, setup=on_verl).step(PLAIN)[phase]
    assert with_verl[ROLLOUT] == torch.step(PLAIN)[ROLLOUT]


@pytest.mark.parametrize("engine", RATES)
def test_the_high_estimate_is_that_of_the_slower_engine(engine: str) -> None:
    rates = RATES[engine]
    for share in (rates.decoding, rates.evaluating, SCORING, LEARNING):
        assert 1 >= share.low >= share.mid >= share.high > 0
    launches = (rates.launch_ms, rates.blended_launch_ms)
    for cost in (*launches, rates.head_passes, rates.teacher_passes, rates.start_s):
        assert 0 <= cost.low <= cost.mid <= cost.high


def test_caches_have_the_published_sizes() -> None:
    found = {}
    for setup in load_experiment(PAPER).setups.values():
        for model in (setup.student, setup.teacher):
            found[str(model.path).split("-")[1].lower()] = decoder(model, setup).kv_bytes
    assert found == KV


@pytest.mark.parametrize("setup", ["qwen3-1.7b", "qwen3-0.6b"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_decoding_is_bound_by_reading_the_caches(setup: str, scenario: Scenario) -> None:
    """η · bandwidth ÷ (KV of a token · mean context + weights ÷ rows) tokens a second."""
    made, weights = costs_of(setup), 2 * STUDENTS[setup]
    lengths = by_hand(LAWS[scenario].finished, LAWS[scenario].endless, 7168)
    context = lengths.reads / lengths.tokens
    # The learner's state is elsewhere meanwhile.
    room = 79.1 * 2**30 - weights - 2 * TEACHERS[setup] - 6 * 2**30
    rows = min(256, int(room / (112 * 1024 * context)))
    eta = {"low": 0.6, "mid": 0.55, "high": 0.5}[scenario]
    bytes_of_token = (112 * 1024 * context + weights / rows) / eta
    # The sampler's own passes over the vocabulary, 128 bytes a value.
    bytes_of_token += 151_936 * 128 / {"low": 0.85, "mid": 0.75, "high": 0.6}[scenario]
    expected = BANDWIDTH / bytes_of_token
    assert rate(made, PLAIN, scenario) == pytest.approx(expected, rel=0.01)
    assert rate(made, BLENDED, scenario) < expected


def test_scoring_is_arithmetic_and_statistics_and_learning_is_arithmetic() -> None:
    made = costs_of("qwen3-0.6b")
    tokens = 256 * (150 + by_hand(1600, 0.18, 7168).tokens)
    step = made.step(PLAIN)
    scored = 2 * 4_022_468_096 * tokens / (0.30 * PEAK)
    # Statistics over the vocabulary, 114 bytes a value: the teacher's normaliser, entropy and top k.
    scored += (tokens - 256 * 150) * 151_936 * 114 / (0.60 * BANDWIDTH)
    assert step["score"].high == pytest.approx(scored, rel=1e-3)
    assert step["learn"].high == pytest.approx(6 * 596_049_920 * tokens / (0.11 * PEAK), rel=1e-3)
    assert made.step(BLENDED)["score"] == Range.exactly(0.0)


# --- one step, part by part ---


def small(placement: Placement | None = None, designed: Design | None = None) -> SetupCosts:
    """Costs of the small sweep: 256 responses of at most 1,024 tokens, Qwen3-0.6B and 4B."""
    experiment = load_experiment(EXPERIMENTS / "paper-small.yaml")
    runtime = replace(experiment.runtime, placement=placement or Placement(gpus=1))
    return SetupCosts(experiment.setups["qwen3-0.6b"], runtime, "sglang", designed=designed)


@pytest.mark.parametrize("setup", ["qwen3-1.7b", "qwen3-0.6b"])
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("rows", [16, 64, 110])
def test_blending_is_never_planned_faster_than_decoding(
    setup: str, scenario: Scenario, rows: int
) -> None:
    """At equal rows, also where CUDA graphs would hide the launches of a blended round."""
    for designed in (BEFORE, None, ALL):
        made = costs_of(setup)
        made = replace(made, runtime=Runtime(rollout_batch=rows), designed=designed)
        blended, plain = (rate(made, kind, scenario) for kind in (BLENDED, PLAIN))
        assert blended < plain


@pytest.mark.parametrize("rows", [8, 32, 110])
def test_a_blended_round_waits_for_the_launches_of_its_passes(rows: int) -> None:
    """γ = 5 student passes and one of a teacher with 36 layers, 4 tokens a round."""
    made = small(designed=BEFORE)
    made = replace(made, runtime=replace(made.runtime, rollout_batch=rows))
    bound = rows * 4 / (5 * 6.5e-3 + 6.5e-3 * 36 / 28)
    assert bound / 2 < rate(made, BLENDED, "mid") < bound


def test_a_blended_round_has_the_rows_of_its_own_drafts() -> None:
    """256 instead of 110 rows read weights, and wait for launches, less often."""
    of_all = small().step(BLENDED)[ROLLOUT].mid
    assert of_all < small(designed=BEFORE).step(BLENDED)[ROLLOUT].mid
    assert small(designed=BEFORE)._rows_of_round("mid") == 110
    assert small()._rows_of_round("mid") > 256


def test_grading_costs_the_time_that_nothing_hides() -> None:
    before, now = small(designed=BEFORE), small()
    for kind in (PLAIN, BLENDED):
        assert before.step_parts(kind)[GRADE].mid == pytest.approx(2.56)
        for scenario in SCENARIOS:
            parts = now.step_parts(kind)
            beside = parts[SCORE].at(scenario) + parts[LEARN].at(scenario)
            left = before.step_parts(kind)[GRADE].at(scenario) - beside
            assert parts[GRADE].at(scenario) == pytest.approx(max(0.0, left))
    # Few responses of a slow grader: 0.9 s of scoring and learning hide a part.
    training = replace(now.setup.training, max_response_tokens=16)
    short = replace(now, setup=replace(now.setup, training=training)).step_parts(PLAIN)
    assert 0 < short[GRADE].mid < 2.56


def test_a_switch_changes_the_planned_step(monkeypatch: pytest.MonkeyPatch) -> None:
    made = small()
    off = replace(made, runtime=replace(made.runtime, grade_beside=False))
    assert off.step_parts(PLAIN)[GRADE].mid > made.step_parts(PLAIN)[GRADE].mid == 0


@pytest.mark.parametrize("part", [field.name for field in fields(Design)])
def test_each_part_of_the_design_saves_time(part: str) -> None:
    on = small(designed=replace(BEFORE, **{part: True}))
    totals = []
    for made in (on, small(designed=BEFORE)):
        both = [Range.total(made.step(kind).values()).mid for kind in (PLAIN, BLENDED)]
        totals.append(sum(both))
    assert totals[0] < totals[1]


def test_the_document_has_the_seconds_of_a_step_before_and_now() -> None:
    made = document(planned(name="paper-small"))
    steps = made["step_seconds"]["qwen3-0.6b"]
    assert set(steps) == {"now", "before"}
    names = ["rollout", "score", "learn", "weights", "state", "grade", "data", "total"]
    for step in ("vanilla", "blended"):
        for of in steps.values():
            assert list(of[step]) == names
            parts = sum(of[step][name]["mid"] for name in names[:-1])
            assert of[step]["total"]["mid"] == pytest.approx(parts, abs=0.01)
        assert steps["now"][step]["total"]["mid"] < steps["before"][step]["total"]["mid"]
    # Two desk checks of the former design have 26 to 30.5 s, and 38 to 42.
    assert 26 < steps["before"]["vanilla"]["total"]["mid"] < 30.5
    assert 38 < steps["before"]["blended"]["total"]["mid"] < 42
    assert document(planned(name="quickstart"))["step_seconds"] == {}


# --- advice ---


def test_a_limit_of_gpu_hours_has_room_for_the_high_estimate() -> None:
    made = planned(name="paper-small")
    high = document(made)["totals"]["gpu_hours"]["total"]["high"]
    limit = document(made)["max_gpu_hours"]
    assert high <= limit < 1.1 * high
    assert f"trb submit --max-gpu-hours {limit:g}` has room" in shown(made)
    assert "--max-gpu-hours" not in shown(planned(name="quickstart"))


def test_two_trials_on_a_gpu_are_recommended_for_what_they_gain() -> None:
    """The host's work of one trial hides behind the GPU's work of the other."""
    serial = planned("runtime.grade_beside=false", *FROM_RATES, name="paper-small")
    now = planned(*FROM_RATES, name="paper-small")
    gains = [document(made)["packing_gains"]["qwen3-0.6b"] for made in (serial, now)]
    assert gains[0] > 0.1 > gains[1] > 0
    told = "Two trials of qwen3-0.6b on each GPU (runtime.placement.gpus=0.5) would take about"
    assert f"{told} {100 * gains[0]:.0f} % fewer GPU-hours" in shown(serial)
    assert told not in shown(now), "a few per cent are not worth the memory"


@pytest.mark.parametrize(
    ("switch", "parts"),
    [
        ("runtime.logits_kernel=torch", {"rollout", "score"}),
        ("runtime.weights=host", {"weights"}),
        ("runtime.checkpointing=true", {"learn"}),
        ("runtime.resident=false", {"state"}),
        ("runtime.grade_beside=false", {"grade"}),
    ],
)
def test_each_part_of_a_step_that_is_switched_off_costs_its_seconds(
    switch: str, parts: set[str]
) -> None:
    now, off = (
        document(planned(*given, name="paper-small"))["step_seconds"]["qwen3-0.6b"]["now"]
        for given in ((), (switch,))
    )
    dearer = {
        name
        for name, seconds in off["vanilla"].items()
        if seconds["mid"] > 1.02 * now["vanilla"][name]["mid"]
    }
    assert dearer == parts | {"total"}


def test_two_trials_are_not_recommended_where_they_do_not_fit() -> None:
    tight = planned("runtime.grade_beside=false", name="paper-small", gpu=GPUS["L40S"])
    assert document(tight)["packing_gains"] == {}
    shared = planned("runtime.placement.gpus=0.5", name="paper-small")
    assert document(shared)["packing_gains"] == {}


def test_a_gpu_of_less_bandwidth_takes_longer_and_one_too_small_is_refused() -> None:
    hours = []
    for gpu in (GPUS["H100-80GB"], GPUS["A100-40GB"]):
        made = planned("setups=[qwen3-0.6b]", gpu=gpu)
        hours.append(document(made)["totals"]["gpu_hours"]["evaluate"]["mid"])
    assert hours[1] / hours[0] > GPUS["H100-80GB"].bytes_per_s / GPUS["A100-40GB"].bytes_per_s
    with pytest.raises(UserError, match=r"GPU memory: 39.3 GiB: expected at least"):
        planned("training.max_response_tokens=300000", gpu=GPUS["A100-40GB"])


# --- GPUs ---


def test_gpus_are_called_by_name_or_described() -> None:
    for name, gpu in GPUS.items():
        assert gpu_of(name) is gpu
        assert gpu.name == name
    assert gpu_of("MI=190,5.3,1300") == Gpu("MI", 190.0, 5.3e12, 1.3e15)
    assert gpu_of("H100-80GB=79.1,3.35,990") == GPUS["H100-80GB"]


def test_memory_is_below_the_number_in_the_name_and_newer_gpus_are_faster() -> None:
    for gpu in GPUS.values():
        _, _, size = gpu.name.removesuffix("GB").partition("-")
        assert not size or 0.98 * float(size) < gpu.gib < float(size), (
            "a GB is less than a GiB, and some is reserved"
        )
    assert GPUS["B200"].bytes_per_s > GPUS["H200"].bytes_per_s > GPUS["H100-80GB"].bytes_per_s
    assert GPUS["H200"].flops == GPUS["H100-80GB"].flops, "the same chip with more memory"


@pytest.mark.parametrize(("text", "near"), [("H100", "H100-80GB"), ("h200", "H200")])
def test_an_unknown_gpu_is_one_line_with_the_nearest(
    text: str, near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, error = trb_here(capsys, "plan", str(PAPER), f"--gpu={text}")
    assert code == 2
    assert error.startswith(f"trb: --gpu: {text!r}: expected ")
    assert error.endswith(f"did you mean {near}?\n")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "text",
    [
        "MI=190,5.3",
        "MI=190,5.3,1300,4",
        "MI=190,fast,1300",
        "MI=190,-5.3,1300",
        "MI=0,5.3,1300",
        "MI=nan,5.3,1300",
        "MI=190,inf,1300",
        "=190,5.3,1300",
        "",
    ],
)
def test_a_gpu_is_described_by_three_positive_numbers(text: str) -> None:
    with pytest.raises(UserError, match=f"--gpu: {re.escape(repr(text))}"):
        gpu_of(text)


def test_a_plan_for_a_gpu_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Twice the bandwidth and arithmetic of an H100 with its memory: half the hours of phases that
    wait for nothing else.
    """
    documents = []
    for gpu in ("H100-80GB", "Twice=79.1,6.7,1980"):
        _, out, _ = trb_here(
            capsys, "plan", str(PAPER), "--json", "--gpu", gpu, "--runs", str(tmp_path)
        )
        documents.append(json.loads(out))
    one, twice = (document["totals"]["gpu_hours"] for document in documents)
    for phase in ("rollout", "score", "learn", "evaluate"):
        assert twice[phase]["mid"] == pytest.approx(one[phase]["mid"] / 2, rel=1e-4)
    assert twice["other"] == one["other"]
    assert documents[1]["clock"]["gpu"] == "Twice"


# --- the paper's sweep with SGLang ---


@pytest.mark.usefixtures("sglang_blends")
def test_the_papers_sweep_lands_where_published_figures_put_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reference figures are those of races that take RACES of the samples; ours take less."""
    ours = totals_of(ADAPTIVE_BUDGET, *FROM_RATES)["gpu_hours"]
    full = totals_of(*FROM_RATES)["gpu_hours"]
    monkeypatch.setattr(work, "SIMULATED", RACES)
    made = planned(ADAPTIVE_BUDGET, *FROM_RATES)
    hours = document(made)["totals"]["gpu_hours"]
    assert all(ours["total"][s] < hours["total"][s] for s in SCENARIOS)
    for phase, expected in SWEEP.items():
        assert near(expected, hours[phase]), phase
    assert near(TOTAL, hours["total"])
    assert near(FULL, full["evaluate"])
    assert near(ADAPTIVE, {s: hours["evaluate"][s] + hours["rescore"][s] for s in SCENARIOS})
    days = {s: hours["total"][s] / 8 / 24 for s in SCENARIOS}
    assert near(DAYS_ON_8, days)


def test_blended_responses_are_charged_to_the_engine_that_samples_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {}
    for blends in (True, False):
        info = replace(catalog.ENGINES["sglang"], blends=blends)
        monkeypatch.setattr(catalog, "ENGINES", {**catalog.ENGINES, "sglang": info})
        costs = costs_of("qwen3-1.7b")
        found[blends] = {kind: costs.step(kind)[ROLLOUT] for kind in (BLENDED, PLAIN)}
    torch = costs_of("qwen3-1.7b", "torch").step(BLENDED)[ROLLOUT]
    assert found[False] == {BLENDED: torch, PLAIN: found[True][PLAIN]}
    assert found[True][BLENDED].high < torch.low


# --- engines that are not installed ---


@pytest.mark.parametrize(
    "command",
    [
        ["submit", str(PAPER), "--runs", "{}/runs"],
        ["probe", "continuation", str(PAPER), "--runs", "{}/runs"],
        ["eval", "{}", "--setup", "qwen3-0.6b", "--benchmarks", "arithmetic_short:1"],
    ],
    ids=lambda words: words[0],
)
@pytest.mark.usefixtures("sglang_is_absent")
def test_nothing_runs_on_an_engine_that_is_not_installed(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = trb_here(capsys, *(word.format(tmp_path) for word in command))
    assert found == (2, "", f"trb: {NOT_INSTALLED}\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("override", "lacks"), [((), True), (("engine.sampler=torch",), False)])
@pytest.mark.usefixtures("sglang_is_absent")
def test_a_plan_says_once_which_engine_is_not_installed(
    override: tuple[str, ...], lacks: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = trb_here(capsys, "plan", str(PAPER), *override, "--runs", str(tmp_path))
    assert code == 0
    assert " ".join(out.split()).count(NOT_INSTALLED) == lacks


@pytest.mark.usefixtures("sglang_is_absent")
def test_the_plan_of_an_engine_that_is_not_installed_is_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = trb_here(capsys, "plan", str(PAPER), "--json", "--runs", str(tmp_path))
    found = json.loads(out)
    assert code == 0
    assert found["totals"]["gpu_hours"]["total"]["high"] < 40_000
    assert found["clock"]["gpu"] == "H100-80GB"
