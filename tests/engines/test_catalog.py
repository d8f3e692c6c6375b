"""The catalog of engines: what it says of each is so."""

from __future__ import annotations

import importlib
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from orchestrator import rules
from orchestrator.engines import catalog
from orchestrator.engines.catalog import ENGINES, able, open_engine, require, sampler_of
from orchestrator.errors import UserError
from orchestrator.rules import entry
from orchestrator.workers.members import job_of
from tests import fake_runs, tiny


def test_the_words_of_the_configuration_are_the_engines() -> None:
    assert set(entry(rules.EngineName).choices) == set(able("sampler"))
    assert set(entry(rules.TrainerName).choices) == set(able("trainer", "scorer"))
    assert set(able("sampler")) | set(able("trainer", "scorer")) == set(ENGINES)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"roles": frozenset({"trainer", "scorer"})}, "engine.sampler: 'torch': expected one of "),
        ({"roles": frozenset({"sampler", "trainer"})}, "engine.trainer: 'torch': expected one of "),
    ],
)
def test_an_engine_is_asked_for_what_it_can_do_alone(
    change: dict[str, Any], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "ENGINES", {"torch": replace(ENGINES["torch"], **change)})
    with pytest.raises(UserError) as refused:
        fake_runs.quickstart()
    assert line in str(refused.value)


@pytest.mark.parametrize(
    ("chosen", "decodes", "sampling"), [("eager", True, "torch"), ("eager", False, "eager")]
)
def test_where_the_chosen_engine_cannot_blend_another_one_does(
    chosen: str, decodes: bool, sampling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        catalog, "ENGINES", {"eager": replace(ENGINES["torch"], blends=False), **ENGINES}
    )
    assert sampler_of(chosen, decodes) == sampling
    assert sampler_of("torch", decodes) == "torch"


def test_what_an_engine_lacks_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = replace(ENGINES["torch"], packages=("json", "not_a_package"))
    monkeypatch.setattr(catalog, "ENGINES", {**ENGINES, "lacking": lacking})
    with pytest.raises(UserError) as refused:
        require("engine.trainer", "lacking")
    line = (
        "engine.trainer: 'lacking': expected torch, or `make setup-engines` first "
        "(not_a_package is not installed here)"
    )
    assert str(refused.value) == line


@pytest.mark.parametrize(
    "name", [name for name, info in ENGINES.items() if all(map(find_spec, info.packages))]
)
def test_every_engine_opens_and_gives_its_roles(name: str, tmp_path: Path) -> None:
    assert callable(importlib.import_module(ENGINES[name].module).open_engine)
    engine = open_engine(name, job_of(tiny.worker_spec(tmp_path)))
    roles = {"sampler": engine.sampler, "scorer": engine.scorer, "trainer": engine.trainer}
    for role in ENGINES[name].roles:
        assert roles[role]() is not None


def test_an_engine_that_compiles_says_what_is_missing_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "not-a-compiler")
    assert any("not-a-compiler" in line for line in catalog.missing_tools("sglang"))
    assert catalog.missing_tools("torch") == []
