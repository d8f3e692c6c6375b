"""Types and rules of keys: what `config` says beside a key is what values are held to."""

from __future__ import annotations

import typing
from typing import Any

import pytest

from orchestrator import config
from orchestrator.errors import UserError
from orchestrator.experiment.strict import build, check
from orchestrator.rules import AtLeast, Between, Rule, choices, entries

WITH_DEFAULTS = (config.Recipe, config.Optimizer, config.Sft, config.Training, config.BenchmarkRun, config.Probe,
                 config.Placement, config.Runtime, config.PromptTemplate, config.EngineConfig, config.Data)  # fmt: skip
NUMBERS = [
    (schema, key, rule)
    for schema in (*WITH_DEFAULTS, config.Vocabulary, config.Evaluation)
    for key, entry in entries(schema).items()
    for rule in entry.rules
    if isinstance(rule, AtLeast | Between)
]


@pytest.mark.parametrize("schema", WITH_DEFAULTS, ids=lambda schema: schema.__name__)
def test_defaults_keep_the_rules(schema: type) -> None:
    check(schema())


@pytest.mark.parametrize(("schema", "key", "rule"), NUMBERS)
def test_a_number_outside_its_interval_is_refused(
    schema: type, key: str, rule: AtLeast | Between
) -> None:
    with pytest.raises(UserError) as refused:
        check(build(schema, {key: int(rule.low) - 1}, "part"), "part")
    assert str(refused.value).startswith(f"part.{key}: ")
    assert refused.value.key == f"part.{key}"


@pytest.mark.parametrize(
    ("rule", "value", "expected"),
    [
        (AtLeast(1), 0, "≥ 1"),
        (AtLeast(1), float("nan"), "≥ 1"),
        (AtLeast(1), 10**9 + 1, "≤ 1,000,000,000"),
        (AtLeast(0, 10**6), 10**6 + 1, "≤ 1,000,000"),
        (Between(0, 1, high_open=True), 1, "≥ 0 and < 1"),
        (Between(0, 1, low_open=True), 0, "> 0 and ≤ 1"),
        (config.POSITIVE, float("inf"), "> 0 and finite"),
        (config.LENGTHS, [0.5, 1.5], "whole numbers of tokens, or shares between 0 and 1"),
        (config.SEEDS[1], [1, 1], "every seed once"),
    ],
)
def test_a_rule_says_what_would_be_right(rule: Rule, value: Any, expected: str) -> None:
    assert rule.refusal(value) == expected


@pytest.mark.parametrize(
    ("rule", "value"), [(AtLeast(1), 1), (Between(0, 1), 1), (config.LENGTHS, [0.5, 2.0])]
)
def test_a_rule_has_nothing_to_say_of_what_is_right(rule: Rule, value: Any) -> None:
    assert rule.refusal(value) is None


def test_a_closed_choice_is_what_the_type_checker_reads() -> None:
    words = [typing.get_args(typing.get_args(word)[0])[0] for word in typing.get_args(config.Kept)]
    assert words == list(choices(config.Kept)) == ["best", "all"]
    sampler, trainer = (entries(config.EngineConfig)[key] for key in ("sampler", "trainer"))
    assert (list(sampler.choices), sampler.meaning) == (["torch", "sglang"], "Engine that samples.")
    assert (list(trainer.choices), trainer.meaning) == (
        ["torch", "verl"],
        "Engine that trains; the teacher scores on it too.",
    )
    assert list(entries(config.Setup)["tokenizer"].choices) == ["characters", "bytes"]


def test_a_word_that_is_none_of_a_choice_keeps_its_type_and_breaks_its_rule() -> None:
    built = build(config.Runtime, {"keep": "bst"}, "runtime")
    with pytest.raises(
        UserError, match=r"runtime\.keep: 'bst': expected one of best, all, did you mean best\?"
    ):
        check(built, "runtime")


@pytest.mark.parametrize(
    ("value", "expected"), [(None, "no value: expected text"), (3, "3: expected text, in quotes")]
)
def test_a_choice_is_text_and_null_only_where_it_says_so(value: Any, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        build(config.Runtime, {"keep": value}, "runtime")
    assert build(config.Setup, {"tokenizer": None}).tokenizer is None


def test_keys_inside_a_mapping_are_held_to_their_rules() -> None:
    evaluation = build(config.Evaluation, {"benchmarks": {"mine": {"n": 0}}}, "evaluation")
    with pytest.raises(UserError, match=r"evaluation\.benchmarks\.mine\.n: 0: expected ≥ 1"):
        check(evaluation, "evaluation")


@pytest.mark.parametrize(("old", "new"), [("rollout", "sampler"), ("learner", "trainer")])
def test_a_key_of_an_earlier_version_says_what_it_is_called_now(old: str, new: str) -> None:
    with pytest.raises(UserError) as refused:
        build(config.Setup, {"engine": {old: "torch"}})
    assert (
        str(refused.value)
        == f"engine.{old}: unknown key: expected engine.{new}, as it is called now"
    )
