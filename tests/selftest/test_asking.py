"""Template and stop token as `trb doctor --gpu` checks them, on the experiment's own models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import UserError
from orchestrator.selftest import asking
from orchestrator.selftest.bench import Bench, bench_of
from orchestrator.sweep import prepare
from tests.fake_runs import quickstart_study
from tests.selftest.benches import small_bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """The quickstart's own models, made."""
    study = quickstart_study(tmp_path)
    prepare.prepare(study.experiment.setups, tmp_path, lambda *_: None)
    return bench_of(study, tmp_path, gpu=False, small=False)


def test_the_experiments_own_models_are_asked(bench: Bench) -> None:
    for check in (asking.template, asking.endings):
        found = check(bench)
        assert found.verdict == "ok", found


def test_a_prompt_in_foreign_words_fails(bench: Bench) -> None:
    prompt = replace(bench.declared.prompt, system="9+9+9=1")
    foreign = replace(bench, declared=replace(bench.declared, prompt=prompt))
    with pytest.raises(UserError, match=r"arithmetic\.prompt: "):
        asking.template(foreign)


def test_random_weights_are_not_asked(tmp_path: Path) -> None:
    for check in (asking.template, asking.endings):
        assert check(small_bench(tmp_path)).verdict == "skipped"
