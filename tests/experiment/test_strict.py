"""Types and limits of keys: `config` declares them, and pydantic holds values to them."""

from __future__ import annotations

import dataclasses
import math
import typing
from typing import Annotated, Any

import pytest
from pydantic import Field

from orchestrator import config, pair, rules
from orchestrator.errors import UserError
from orchestrator.experiment.methods import METHODS
from orchestrator.experiment.reading import build
from orchestrator.rules import Choices, Count, Number, Section, entries, entry

SCHEMAS = [
    thing
    for thing in (vars(config) | vars(pair)).values()
    if isinstance(thing, type) and issubclass(thing, Section) and thing is not Section
]
NEEDING_VALUES = (pair.Shape, pair.Vocabulary, config.ExperimentFile, config.Setup)


def refusal(kind: Any, value: Any) -> UserError:
    with pytest.raises(UserError) as refused:
        build(kind, value, "part")
    return refused.value


@pytest.mark.parametrize(
    "schema", [s for s in SCHEMAS if s not in NEEDING_VALUES], ids=lambda schema: schema.__name__
)
def test_defaults_keep_the_rules(schema: type) -> None:
    default = schema()
    if schema is pair.Model:
        default = dataclasses.replace(default, shape=pair.Shape(1, 1, 1, 1, 1, 1))
    assert build(schema, dataclasses.asdict(default)) == default


def limits() -> list[tuple[type, str, Any]]:
    """Each numeric key that has a limit, with a value beyond the limit."""
    beyond: list[tuple[type, str, Any]] = []
    for schema in SCHEMAS:
        for name, declared in entries(schema).items():
            if declared.kind in (int, float) and declared.rule.startswith((">", "≥")):
                for limit in declared.rule.split(";")[0].split(" and "):
                    sign, bound = limit.split()
                    step = 1 if sign in "<≤" else -1
                    number = declared.kind(float(bound.replace(",", "")) + step)
                    beyond.append((schema, name, number))
    return beyond


@pytest.mark.parametrize(("schema", "key", "value"), limits())
def test_a_number_beyond_its_limit_is_refused(schema: type, key: str, value: float) -> None:
    refused = refusal(schema, {key: value})
    assert str(refused).startswith(f"part.{key}: {value}: ")
    assert refused.key == f"part.{key}"


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (Count, 0, "a whole number ≥ 1"),
        (Count, 10**9 + 1, "≤ 1,000,000,000"),
        (Count, 1.0, "a whole number ≥ 1"),
        (Count, True, "a whole number ≥ 1"),
        (Annotated[Count, Field(le=10**6)], 10**6 + 1, "a whole number ≥ 1 and ≤ 1,000,000"),
        (Annotated[Number, Field(ge=0, lt=1)], 1, "a number ≥ 0 and < 1"),
        (Number, float("nan"), "a finite number"),
        (Number, "1", "a number"),
        (rules.Name, "..", "a name of at most 80"),
        (rules.Seeds, [1, 1], "every seed once"),
    ],
)
def test_an_error_says_what_would_be_right(kind: Any, value: Any, expected: str) -> None:
    line = str(refusal(kind, value))
    assert line.startswith("part")
    assert f"expected {expected}" in line


@pytest.mark.parametrize(
    ("kind", "value"), [(Count, 1), (Number, 1), (METHODS["skd"].knobs["tau_T"].type, 0.6)]
)
def test_a_right_value_keeps_its_number(kind: Any, value: Any) -> None:
    assert build(kind, value) == value
    assert type(build(kind, value)) is entry(kind).kind


def test_every_word_of_a_closed_choice_is_explained() -> None:
    explained = [
        kind
        for kind in vars(config).values()
        if any(isinstance(marker, Choices) for marker in typing.get_args(kind)[1:])
    ]
    assert len(explained) > 10
    for kind in explained:
        declared = entry(kind)
        assert list(declared.choices) == list(typing.get_args(declared.kind))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("bst", "part.keep: 'bst': expected one of best, all, did you mean best?"),
        (None, "part.keep: no value: expected one of best, all"),
        (3, "part.keep: 3: expected one of best, all"),
    ],
)
def test_a_choice_is_one_of_its_words(value: Any, words: str) -> None:
    assert str(refusal(config.Runtime, {"keep": value})) == words


def test_null_is_allowed_where_a_key_says_so() -> None:
    assert build(config.Setup, {"tokenizer": None}).tokenizer is None
    assert entries(config.Setup)["tokenizer"].nullable


def test_keys_inside_a_mapping_are_held_to_their_rules() -> None:
    refused = refusal(config.Evaluation, {"benchmarks": {"mine": {"n": 0}}})
    assert refused.key == "part.benchmarks.mine.n"


@pytest.mark.parametrize(
    ("schema", "raw", "key", "near"),
    [
        (config.Training, {"stepz": 1}, "part.stepz", "did you mean steps?"),
        (config.Training, {"lr": 1}, "part.lr", "did you mean part.optimizer.lr?"),
        (config.Training, {"optimizer": {1: 1}}, "part.optimizer.1", "lr, beta1"),
        (config.ExperimentFile, {"dtype": "x"}, "part.dtype", "did you mean part.engine.dtype?"),
        (config.Setup, {"data": {"files": [{"name": ""}]}}, "part.data.files[0].name", "sha256"),
    ],
)
def test_an_unknown_key_names_the_nearest(
    schema: type, raw: dict[Any, Any], key: str, near: str
) -> None:
    line = str(refusal(schema, raw))
    assert line.startswith(f"{key}: unknown key")
    assert near in line


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("90s", 90.0), ("10min", 600.0), ("1.5h", 5400.0), ("2 h", 7200.0), (None, math.inf)],
)
def test_a_duration_is_a_number_with_its_unit(written: str | None, seconds: float) -> None:
    assert build(config.Runtime, {"save_every": written}).save_every_s == seconds


@pytest.mark.parametrize("written", [600, 0.5, True, "600", "0s", "-1h", "10m", "ten min", ["1h"]])
def test_another_duration_is_refused_with_an_example(written: Any) -> None:
    right = "expected text, a duration in s, min or h, such as 10min"
    assert str(refusal(config.Runtime, {"save_every": written})).endswith(f"{written!r}: {right}")
