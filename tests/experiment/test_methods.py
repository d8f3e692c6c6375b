"""The rows of methods: their names in every spelling, and what samples and trains at each step."""

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis.labels import setup_title
from orchestrator.config import Experiment
from orchestrator.engines.interface import Lora
from orchestrator.errors import UserError
from orchestrator.experiment.load import load_experiment, load_setup
from orchestrator.experiment.methods import (
    BASE,
    METHODS,
    annealed,
    annealed_temperature,
    annealed_veto,
    behavior_at,
    check_grid,
    known_method,
    method_key,
    method_label,
    method_title,
    needs_teacher,
    response_limit,
)
from orchestrator.experiment.units import expand
from orchestrator.policy.spec import (
    BatchBudget,
    Bridge,
    FallingWithDiscrepancy,
    ForwardKL,
    Fusion,
    JensenShannon,
    Mixture,
    Objective,
    Proximal,
    ReverseKL,
    SampledToken,
    Student,
    TeacherInjection,
    TeacherKeeps,
    TeacherPrefers,
    TeacherSequences,
    TeacherUncertain,
    Tempered,
    Term,
    TrustRegion,
)
from orchestrator.workers.members import lora_of
from tests.fake_runs import QUICKSTART
from tests.policy.reference import PAPER_BUDGETS
from tests.sweeps import ROOT

RIVALS = load_experiment(ROOT / "experiments" / "rivals.yaml")

# --- names ---


def test_labels_tell_methods_apart() -> None:
    assert len({method_label(key) for key in (*METHODS, BASE)}) == len(METHODS) + 1
    assert len({method_title(key) for key in (*METHODS, BASE)}) == len(METHODS) + 1


@pytest.mark.parametrize("key", [*METHODS, BASE])
def test_key_title_and_label_all_give_the_key(key: str) -> None:
    title, label = method_title(key), method_label(key)
    for name in (key, key.upper(), title, title.lower(), label, label.upper(), f" {key} "):
        assert method_key(name) == key


def test_a_variant_is_found_by_the_name_of_its_source() -> None:
    assert method_label("tr_opd") == "After TrOPD"
    for name, key in (("TrOPD", "tr_opd"), ("TOP-D", "top_d"), ("AOPD", "aopd")):
        assert method_key(name) == key


@pytest.mark.parametrize("name", ["trust-region", "Trust Region", "trb"])
def test_blanks_and_hyphens_stand_for_each_other(name: str) -> None:
    assert method_key(name) == "trust_region"


@pytest.mark.parametrize("name", ["Fixed ε", "fixed eps", "Fixed epsilon", "fixed_eps", "FIXED Ε"])
def test_a_greek_letter_may_be_spelled(name: str) -> None:
    assert method_key(name) == "fixed_epsilon"


def test_an_unknown_method_is_its_own_name() -> None:
    assert method_key("Mine") == method_label("Mine") == method_title("Mine") == "Mine"


def test_a_method_that_is_not_asked_for_is_refused_with_a_suggestion() -> None:
    assert known_method("--methods", "TRB", ["vanilla", "trust_region"]) == "trust_region"
    for name, near in (("TRBB", "TRB"), ("vanila", "vanilla"), ("trust_regon", "trust_region")):
        with pytest.raises(UserError) as error:
            known_method("--methods", name, ["vanilla", "trust_region"])
        assert (
            str(error.value)
            == f"--methods: '{name}': expected one of Vanilla, TRB, did you mean {near}?"
        )
    with pytest.raises(UserError, match=r"'skd': expected one of Vanilla, TRB$"):
        known_method("--methods", "skd", ["vanilla", "trust_region"])


def test_a_setups_own_title_is_its_heading() -> None:
    setups = {
        "mine": load_setup("arithmetic", overrides=["title=My pair"]),
        "shipped": load_setup("arithmetic"),
    }
    assert setup_title("mine", setups) == "My pair"
    assert setup_title("arithmetic") == "Arithmetic"
    assert setup_title("other") == "other"
    assert (
        setup_title("one", {"one": setups["shipped"], "two": setups["shipped"]})
        == "Arithmetic (one)"
    )
    assert setup_title("bare", {"bare": load_setup("arithmetic", overrides=["title=''"])}) == "bare"


# --- schedules ---


@pytest.mark.parametrize("epsilon0", PAPER_BUDGETS)
@pytest.mark.parametrize("horizon", [15, 25, 50])
def test_budget_schedule(epsilon0: float, horizon: int) -> None:
    """ε_k = ε0(1 − k/K), then exactly zero (paper, Section "Annealed Warmup")."""
    assert annealed(epsilon0, horizon, 0) == epsilon0
    for step in range(horizon):
        expected = epsilon0 * (horizon - step) / horizon
        assert annealed(epsilon0, horizon, step) == pytest.approx(expected, rel=1e-12)
    assert annealed(epsilon0, horizon, horizon - 1) > 0
    assert [annealed(epsilon0, horizon, step) for step in (horizon, horizon + 1, 399)] == [
        0,
        0,
        0,
    ]


def test_budget_halves_in_the_middle() -> None:
    assert annealed(0.05, 50, 25) == 0.025


@pytest.mark.parametrize("tau0", [0.8, 0.9, 0.95])
@pytest.mark.parametrize("horizon", [15, 25])
def test_temperature_schedule(tau0: float, horizon: int) -> None:
    assert annealed_temperature(tau0, horizon, 0) == tau0
    for step in range(horizon):
        left = (horizon - step) / horizon
        assert annealed_temperature(tau0, horizon, step) == pytest.approx(
            left * tau0 + (1 - left), rel=1e-12
        )
    assert annealed_temperature(tau0, horizon, horizon - 1) < 1
    assert [annealed_temperature(tau0, horizon, step) for step in (horizon, horizon + 1, 399)] == [
        1,
        1,
        1,
    ]


@pytest.mark.parametrize("beta_start", [0.2, 0.4, 0.6, 0.8])
def test_veto_schedule(beta_start: float) -> None:
    """β_k = β_start(1 − k/N) over the whole run, never longer than it."""
    assert annealed_veto(beta_start, 400, 0) == beta_start
    assert annealed_veto(beta_start, 400, 200) == beta_start / 2
    assert annealed_veto(beta_start, 400, 399) == pytest.approx(beta_start / 400, rel=1e-12)
    assert annealed_veto(beta_start, 400, 400) == 0


@pytest.mark.parametrize("method", [None, "vanilla", "veto", "sft_warmup"])
@pytest.mark.parametrize("step", [0, 1, 15, 399])
def test_methods_that_roll_out_the_student(method: str | None, step: int) -> None:
    knobs: dict[str | None, dict[str, Any]] = {"veto": {"beta_start": 0.8}, "sft_warmup": {"K": 25}}
    behavior = behavior_at(method, knobs.get(method, {}), step)
    assert behavior == Student()
    assert not behavior.needs_teacher


def test_trust_region_by_step() -> None:
    knobs = {"epsilon0": 0.02, "K": 25}
    assert behavior_at("trust_region", knobs, 0) == TrustRegion(0.02)
    for step in range(25):
        behavior = behavior_at("trust_region", knobs, step)
        assert isinstance(behavior, TrustRegion)
        assert behavior.epsilon == pytest.approx(0.02 * (25 - step) / 25, rel=1e-12)
        assert behavior.needs_teacher
    assert [behavior_at("trust_region", knobs, step) for step in (25, 26, 399)] == [Student()] * 3
    assert behavior_at("trust_region", {"epsilon0": 0.0, "K": 25}, 0) == Student()


def test_fixed_epsilon_by_step() -> None:
    assert [behavior_at("fixed_epsilon", {"epsilon": 0.01}, k) for k in (0, 24, 25, 399)] == [
        TrustRegion(0.01)
    ] * 4
    assert behavior_at("fixed_epsilon", {"epsilon": 0.0}, 0) == Student()


def test_the_budget_of_a_batch_falls_as_that_of_a_prefix_does() -> None:
    knobs = {"epsilon0": 0.02, "K": 25}
    for step in range(25):
        batch, prefix = (
            behavior_at(method, knobs, step) for method in ("batch_budget", "trust_region")
        )
        assert isinstance(batch, BatchBudget)
        assert isinstance(prefix, TrustRegion)
        assert batch.epsilon == prefix.epsilon
        assert batch.needs_teacher
    assert [behavior_at("batch_budget", knobs, step) for step in (25, 26, 399)] == [Student()] * 3
    assert behavior_at("batch_budget", {"epsilon0": 0.0, "K": 25}, 0) == Student()


def test_skd_by_step() -> None:
    knobs = {"K": 15, "tau_T": 0.2}
    assert [behavior_at("skd", knobs, k) for k in (0, 14, 15, 399)] == [
        TeacherInjection(15, 0.2)
    ] * 4
    assert behavior_at("skd", knobs, 0).needs_teacher


def test_temperature_by_step() -> None:
    knobs = {"tau0": 0.8, "E": 15}
    assert behavior_at("temperature_warmup", knobs, 0) == Tempered(0.8)
    behavior = behavior_at("temperature_warmup", knobs, 14)
    assert isinstance(behavior, Tempered)
    assert behavior.tau == pytest.approx(0.8 + 0.2 * 14 / 15, rel=1e-12)
    assert not behavior.needs_teacher
    assert [behavior_at("temperature_warmup", knobs, k) for k in (15, 16, 399)] == [Student()] * 3


OTHER_OBJECTIVES: dict[str, tuple[dict[str, float], Objective]] = {  # at step 30 of 60
    "veto": ({"beta_start": 0.8}, Objective("renormalized", Bridge(0.4))),
    "gkd": (
        {"teacher_share": 0.5, "beta": 0.1},
        Objective("renormalized", terms=(Term(JensenShannon(0.1)),)),
    ),
    "top_d": ({"alpha": 0.7}, Objective("renormalized", Proximal(0.7))),
    "tr_opd": (
        {},
        Objective(
            "renormalized",
            terms=(
                Term(ReverseKL(), TeacherKeeps()),
                Term(ForwardKL(), TeacherKeeps(inverted=True)),
            ),
        ),
    ),
    "aopd": (
        {},
        Objective(
            "renormalized",
            terms=(
                Term(ReverseKL(), TeacherPrefers()),
                Term(ForwardKL(), TeacherPrefers(inverted=True)),
            ),
        ),
    ),
    "eopd": (
        {"entropy": 0.8},
        Objective(
            "renormalized", terms=(Term(ReverseKL()), Term(ForwardKL(), TeacherUncertain(0.8)))
        ),
    ),
    "iw_opd": (
        {"most": 1.5},
        Objective("renormalized", terms=(Term(ReverseKL(), FallingWithDiscrepancy(1.5)),)),
    ),
    "forward_kl": ({}, Objective("renormalized", terms=(Term(ForwardKL()),))),
    "sampled_token": ({"clip": 5.0}, Objective("renormalized", terms=(Term(SampledToken(5.0)),))),
    "sft_only": ({}, Objective("nll")),
}


UNFIT_OBJECTIVES = {"veto": "tail"} | dict.fromkeys(
    ("gkd", "top_d", "tr_opd", "aopd", "eopd", "forward_kl"), "surrogate"
)
UNFIT_KNOBS: list[tuple[str, str, tuple[Any, ...]]] = [
    ("logit_fusion", "alpha0", (-0.1, 1.1, "high")),
    ("logit_fusion", "K", (0, 2.5)),
    ("batch_budget", "epsilon0", (-0.1, math.inf, math.nan, "high")),
    ("batch_budget", "K", (0, 2.5)),
    ("teacher_mixture", "w0", (-0.1, 1)),
    ("teacher_mixture", "K", (0, 2.5)),
    ("gkd", "teacher_share", (-0.1, 1.1)),
    ("gkd", "beta", (0, 1)),
    ("top_d", "alpha", (0, 1.1)),
    ("eopd", "entropy", (-0.1, math.nan)),
    ("iw_opd", "most", (0.9, math.inf)),
    ("sampled_token", "clip", (0, math.inf)),
    ("simple_opd", "K", (0, 7)),  # the stage has a checkpoint after 15 updates alone
    ("simple_opd", "rank", (0, 65, 100_000)),  # the student's hidden size is 64
    ("simple_opd", "lr", (0, -0.1)),
    ("prefix_horizon", "tokens", (0, 49)),  # responses have 48 tokens at most
    ("growing_horizon", "tokens", (0, 49)),
    ("growing_horizon", "K", (0, 2.5)),
]


def test_objectives() -> None:
    """Every other method minimises the training's objective against the teacher at every token."""
    training = load_setup("arithmetic").training
    for key, method in METHODS.items():
        knobs, expected = OTHER_OBJECTIVES.get(key, ({}, Objective("renormalized")))
        assert method.objective(knobs, training, 30, 60) == expected


def test_every_method_is_in_a_shipped_experiment() -> None:
    seen = set()
    for name in ("quickstart", "rivals"):
        for unit in expand(load_experiment(ROOT / "experiments" / f"{name}.yaml")):
            seen.add(unit.method)
    assert seen - {None} == METHODS.keys()


def test_the_weight_of_the_teacher_falls_to_nothing() -> None:
    fusion, mixture = {"alpha0": 0.5, "K": 10}, {"w0": 0.5, "K": 10}
    for step, weight in ((0, 0.5), (5, 0.25), (9, 0.05)):
        fused, mixed = (
            behavior_at(method, knobs, step)
            for method, knobs in (("logit_fusion", fusion), ("teacher_mixture", mixture))
        )
        assert isinstance(fused, Fusion)
        assert isinstance(mixed, Mixture)
        assert fused.alpha == pytest.approx(weight, rel=1e-12)
        assert mixed.weight == pytest.approx(weight, rel=1e-12)
    for step in (10, 11, 400):
        assert behavior_at("logit_fusion", fusion, step) == Student()
        assert behavior_at("teacher_mixture", mixture, step) == Student()
    assert behavior_at("gkd", {"teacher_share": 0.25}, 100) == TeacherSequences(0.25)
    assert behavior_at("gkd", {"teacher_share": 0.0}, 100) == Student()
    assert behavior_at("sft_only", {}, 100) == Fusion(1.0)


def test_horizons() -> None:
    growing = {"tokens": 8, "K": 10}
    limits = [response_limit("growing_horizon", growing, step, 48) for step in (0, 5, 9, 10, 400)]
    assert limits == [8, 28, 44, 48, 48]
    assert response_limit("prefix_horizon", {"tokens": 8}, 400, 48) == 8
    assert response_limit("vanilla", {}, 0, 48) == 48
    assert response_limit(None, {}, 0, 48) == 48


def test_a_horizon_beyond_the_limit_is_refused() -> None:
    setup = load_setup("arithmetic")
    longest = setup.training.max_response_tokens
    check_grid("prefix_horizon", {"tokens": [longest]}, "arithmetic", setup)
    with pytest.raises(UserError, match=rf"methods\.prefix_horizon\.tokens: {longest + 1}"):
        check_grid("prefix_horizon", {"tokens": [longest + 1]}, "arithmetic", setup)


def test_a_unit_without_a_method_needs_no_teacher_to_sample() -> None:
    assert not needs_teacher(None, {}, 0)


def test_adapters_have_stages_of_their_own_beside_the_shared_one() -> None:
    """A stage of adapters has rank and rate in its id; the stage of all weights keeps its id."""
    whole = "methods.sft_warmup={K: [15]}"
    adapted = "methods.simple_opd={K: [15], rank: [4, 8], lr: [0.01]}"
    plain, both = (
        expand(load_experiment(QUICKSTART, [whole, *more, "seeds=[0]", "confirm=null"]))
        for more in ([], [adapted])
    )
    stages = {unit.id: unit for unit in both if unit.is_supervised}
    [shared] = [unit.id for unit in plain if unit.is_supervised]
    assert stages.pop(shared).knobs == {}
    assert [unit.knobs for unit in stages.values()] == [
        {"rank": 4, "lr": 0.01},
        {"rank": 8, "lr": 0.01},
    ]
    for unit in both:
        if unit.method == "simple_opd":
            [stage] = unit.depends_on
            assert stages[stage].knobs == {"rank": unit.knobs["rank"], "lr": 0.01}
            assert lora_of(stages[stage]) == Lora(unit.knobs["rank"], unit.knobs["rank"], 0.01, 0)
            assert lora_of(unit) is None
        if unit.method == "sft_warmup":
            assert unit.depends_on == (shared,)


def test_an_engine_without_adapters_is_refused_by_its_key() -> None:
    path = ROOT / "experiments" / "rivals.yaml"
    with pytest.raises(UserError, match=r"^engine.trainer \(with method simple_opd\): 'verl'"):
        load_experiment(path, ["engine.trainer=verl"])
    load_experiment(path, ["engine.trainer=verl", "methods.simple_opd=null"])


def load_alone(folder: Path, method: str, knobs: dict[str, Any], *overrides: str) -> Experiment:
    """An experiment of one method on the embedded world."""
    file = folder / "one.yaml"
    file.write_text(yaml.safe_dump({"setups": ["arithmetic"], "methods": {method: knobs}}))
    return load_experiment(file, overrides)


@pytest.mark.parametrize(("method", "objective"), UNFIT_OBJECTIVES.items())
def test_an_objective_that_a_method_cannot_train_by_is_refused(
    tmp_path: Path, method: str, objective: str
) -> None:
    knobs, _ = OTHER_OBJECTIVES[method]
    with pytest.raises(UserError) as error:
        load_alone(tmp_path, method, knobs, f"training.objective={objective}")
    key = f"training.objective (with method {method})"
    assert str(error.value).startswith(f"{key}: '{objective}': expected one of renormalized, ")
    load_alone(tmp_path, method, knobs, "training.objective=truncated")


@pytest.mark.parametrize("method", ["iw_opd", "sampled_token", "sft_only"])
def test_the_estimator_serves_reverse_kls_and_losses_without_any(
    tmp_path: Path, method: str
) -> None:
    load_alone(tmp_path, method, OTHER_OBJECTIVES[method][0], "training.objective=surrogate")


@pytest.mark.parametrize(("method", "knob", "values"), UNFIT_KNOBS)
def test_a_value_that_a_knob_cannot_have_is_refused(
    tmp_path: Path, method: str, knob: str, values: tuple[Any, ...]
) -> None:
    knobs = RIVALS.methods[method]
    for value in values:
        with pytest.raises(UserError) as error:
            load_alone(tmp_path, method, {**knobs, knob: [value]})
        line = str(error.value)
        assert line.startswith(f"methods.{method}.{knob}: {value!r}: expected "), line
        assert "\n" not in line
    load_alone(tmp_path, method, dict(knobs))
