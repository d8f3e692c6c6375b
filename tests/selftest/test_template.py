"""The sweep's prompt beside the teacher's own template: foreign words are measured and refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.config import PromptTemplate
from orchestrator.errors import UserError
from orchestrator.experiment.load import load_setup
from orchestrator.selftest import template
from orchestrator.sweep import prepare
from tests.fake_runs import quickstart


def test_a_foreign_system_message_is_refused_and_the_own_template_is_not(tmp_path: Path) -> None:
    """The quickstart's teacher was trained on plain sums, and is shipped."""
    experiment, _ = quickstart()
    setup = experiment.setups["arithmetic"]
    prepare.prepare({"arithmetic": setup}, tmp_path, lambda *_: None)
    assert template.nats_apart(setup, experiment, tmp_path) == pytest.approx(0, abs=1e-4)
    foreign = replace(setup, prompt=PromptTemplate(kind="plain", system="9+9+9=1"))
    with pytest.raises(UserError, match=r"arithmetic\.prompt"):
        template.check_template("arithmetic", foreign, experiment, tmp_path)


def test_models_that_are_not_there_are_not_tried(tmp_path: Path) -> None:
    experiment, _ = quickstart()
    setup = experiment.setups["arithmetic"]
    assert "own" in template.check_template("arithmetic", setup, experiment, tmp_path)
    foreign = replace(setup, prompt=PromptTemplate(kind="plain", system="9+9+9=1"))
    found = template.check_template("arithmetic", foreign, experiment, tmp_path)
    assert found.startswith("not tried")


def test_a_chat_template_is_found_in_either_place(tmp_path: Path) -> None:
    assert not template.has_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": null}')
    assert not template.has_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    assert template.has_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert template.has_chat_template(tmp_path)


def test_the_setups_system_message_in_the_teachers_template_is_no_mismatch() -> None:
    for name in ("qwen3-1.7b", "qwen3-0.6b"):
        setup = load_setup(name)
        assert setup.prompt.system
        assert template.asks_as_its_own(setup)
        plain = replace(setup, prompt=replace(setup.prompt, kind="plain"))
        assert not template.asks_as_its_own(plain)
