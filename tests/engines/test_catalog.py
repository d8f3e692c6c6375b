"""The catalog of engines: what it says of each is so."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from orchestrator import config
from orchestrator.engines.catalog import ENGINES, able, open_engine
from orchestrator.rules import choices
from orchestrator.workers.engines import job_of
from tests import tiny


def test_the_words_of_the_configuration_are_the_engines() -> None:
    assert list(choices(config.EngineName)) == list(ENGINES)
    assert set(able("sampler")) == set(able("trainer")) == set(ENGINES)


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_opens_and_gives_its_roles(name: str, tmp_path: Path) -> None:
    assert callable(importlib.import_module(ENGINES[name].module).open_engine)
    engine = open_engine(name, job_of(tiny.worker_spec(tmp_path)))
    roles = {"sampler": engine.sampler, "scorer": engine.scorer, "trainer": engine.trainer}
    for role in ENGINES[name].roles:
        assert roles[role]() is not None
