"""The sweep's prompt beside the teacher's own template, and answers that end with the stop tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.checks import engines, experiment
from orchestrator.checks.bench import bench_of
from orchestrator.checks.experiment import CheckedSetup, checked_setup
from orchestrator.config import PromptTemplate
from orchestrator.errors import UserError
from orchestrator.experiment.load import load_setup
from orchestrator.models import make
from orchestrator.pair import Recipe
from orchestrator.sweep import prepare
from tests.checks.benches import small_bench
from tests.fake_runs import quickstart_study

FOREIGN = PromptTemplate(kind="plain", system="9+9+9=1")


@pytest.fixture
def absent(tmp_path: Path) -> CheckedSetup:
    """The quickstart's setup, whose models are not made."""
    return checked_setup(quickstart_study(tmp_path), "arithmetic")


@pytest.fixture
def shipped(absent: CheckedSetup) -> CheckedSetup:
    """The same with its models, of which the teacher was trained on plain sums."""
    prepare.prepare({"arithmetic": absent.setup}, absent.runs, lambda *_: None)
    return absent


def changed(of: CheckedSetup, **changes: object) -> CheckedSetup:
    return replace(of, setup=replace(of.setup, **changes))  # pyright: ignore[reportArgumentType]


# --- the template ---


def test_a_foreign_system_message_is_refused_and_the_own_template_is_not(
    shipped: CheckedSetup,
) -> None:
    assert experiment.nats_apart(shipped) == pytest.approx(0, abs=1e-4)
    with pytest.raises(UserError, match=r"arithmetic\.prompt"):
        experiment.template(changed(shipped, prompt=FOREIGN))


def test_models_that_are_not_there_are_not_tried(absent: CheckedSetup) -> None:
    assert experiment.template(absent).verdict == "ok"
    assert experiment.template(changed(absent, prompt=FOREIGN)).verdict == "skipped"
    assert experiment.endings(absent).verdict == "skipped"
    random = replace(absent.setup.teacher, recipe=Recipe(updates=0))
    assert "random" in experiment.endings(changed(absent, teacher=random)).detail


def test_a_chat_template_is_found_in_either_place(tmp_path: Path) -> None:
    assert not experiment.has_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": null}')
    assert not experiment.has_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    assert experiment.has_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert experiment.has_chat_template(tmp_path)


def test_the_setups_system_message_in_the_teachers_template_is_no_mismatch() -> None:
    for name in ("qwen3-1.7b", "qwen3-0.6b"):
        setup = load_setup(name)
        assert setup.prompt.system
        assert experiment.asks_as_its_own(setup)
        plain = replace(setup, prompt=replace(setup.prompt, kind="plain"))
        assert not experiment.asks_as_its_own(plain)


# --- answers that end ---


def with_folders(
    of: CheckedSetup, monkeypatch: pytest.MonkeyPatch, student: str = "student"
) -> None:
    """The folders of the setup as they are now, whatever becomes of it; the student's of a role."""
    folders = {"teacher": of.checkpoint("teacher"), "student": of.checkpoint("student")}
    folders["student"] = folders[student]
    monkeypatch.setattr(CheckedSetup, "checkpoint", lambda self, owner: folders[owner])
    monkeypatch.setattr(make, "are_there", lambda *_: True)


def test_the_right_stop_token_is_accepted_and_another_id_is_refused(
    shipped: CheckedSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "answers end" in experiment.endings(shipped).detail
    with_folders(shipped, monkeypatch)
    # An id that this teacher never emits.
    wrong = replace(shipped.setup.teacher, eos=shipped.setup.student.eos)
    with pytest.raises(UserError, match=r"arithmetic\.teacher\.eos: 45: "):
        experiment.endings(changed(shipped, teacher=wrong))


def test_a_student_that_never_ends_is_refused_by_its_own_key(
    shipped: CheckedSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A teacher's answers end, and the student's do with an id that the setup does not name."""
    with_folders(shipped, monkeypatch)
    setup = shipped.setup
    other = setup.vocabulary.valid - 3  # an id with which none of both ends
    one = replace(setup.student, eos=other)
    both = replace(setup.student, eos=[other, setup.student.closing_id])
    with pytest.raises(UserError, match=r"arithmetic\.student\.eos: 44: .*none of its 16"):
        experiment.endings(changed(shipped, student=one))
    found = experiment.endings(changed(shipped, student=both))
    assert "of the untrained student's" in found.detail


# --- the same on a GPU's bench ---


def test_a_bench_asks_the_experiments_own_models(tmp_path: Path, shipped: CheckedSetup) -> None:
    bench = bench_of(quickstart_study(tmp_path), "arithmetic", tmp_path)
    assert not bench.made
    for check in (engines.template, engines.endings):
        assert check(bench).verdict == "ok"
    with pytest.raises(UserError, match=r"arithmetic\.prompt: "):
        engines.template(replace(bench, of=changed(shipped, prompt=FOREIGN)))


def test_random_weights_are_not_asked(tmp_path: Path) -> None:
    for check in (engines.template, engines.endings):
        assert check(small_bench(tmp_path)).verdict == "skipped"
