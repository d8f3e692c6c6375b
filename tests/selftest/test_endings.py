"""Whether the teacher's answers end with the stop token that a setup names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.config import Recipe
from orchestrator.errors import UserError
from orchestrator.models import locate, make
from orchestrator.selftest import endings
from orchestrator.sweep import prepare
from tests.fake_runs import quickstart


def test_the_right_stop_token_is_accepted_and_another_id_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment, _ = quickstart()
    setup = experiment.setups["arithmetic"]
    prepare.prepare({"arithmetic": setup}, tmp_path, lambda *_: None)
    assert "answers end" in endings.check_endings("arithmetic", setup, experiment, tmp_path)
    # The same folders under a setup whose teacher's id is one that it never emits.
    folders = {
        model.eos: locate.checkpoint_of(model, setup, tmp_path)
        for model in (setup.student, setup.teacher)
    }
    wrong = replace(setup, teacher=replace(setup.teacher, eos=setup.student.eos))
    found = [folders[setup.student.eos], folders[setup.teacher.eos]]
    monkeypatch.setattr(locate, "checkpoint_of", lambda *_: found.pop(0))
    monkeypatch.setattr(make, "are_there", lambda *_: True)
    with pytest.raises(UserError, match=r"arithmetic\.teacher\.eos: 45: "):
        endings.check_endings("arithmetic", wrong, experiment, tmp_path)


def test_a_student_that_never_ends_is_refused_by_its_own_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A teacher's answers end, and the student's do with an id that the setup does not name."""
    experiment, _ = quickstart()
    setup = experiment.setups["arithmetic"]
    prepare.prepare({"arithmetic": setup}, tmp_path, lambda *_: None)
    folders = [locate.checkpoint_of(setup.teacher, setup, tmp_path)] * 2
    folders[0] = locate.checkpoint_of(setup.student, setup, tmp_path)
    other = setup.vocabulary.valid - 3  # an id with which none of both ends
    one = replace(setup, student=replace(setup.student, eos=other))
    all_of_them = replace(
        one, student=replace(setup.student, eos=[other, setup.student.closing_id])
    )
    monkeypatch.setattr(make, "are_there", lambda *_: True)
    for case, refused in ((one, True), (all_of_them, False)):
        given = list(folders)
        monkeypatch.setattr(locate, "checkpoint_of", lambda *_, given=given: given.pop(0))
        if refused:
            with pytest.raises(UserError, match=r"arithmetic\.student\.eos: 44: .*none of its 16"):
                endings.check_endings("arithmetic", case, experiment, tmp_path)
        else:
            found = endings.check_endings("arithmetic", case, experiment, tmp_path)
            assert "of the untrained student's" in found


def test_random_weights_and_models_that_are_not_there_are_not_tried(tmp_path: Path) -> None:
    experiment, _ = quickstart()
    setup = experiment.setups["arithmetic"]
    assert endings.check_endings("arithmetic", setup, experiment, tmp_path).startswith("not tried")
    random = replace(setup, teacher=replace(setup.teacher, recipe=Recipe(updates=0)))
    assert "random" in endings.check_endings("arithmetic", random, experiment, tmp_path)
