"""Halving searches over made-up runs: who goes on from a rung, who is stopped, and what that means."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.experiment.evaluation_protocol import evaluation_ids
from orchestrator.experiment.units import Unit
from orchestrator.monitor import status
from orchestrator.records.log import HELD_OUT, HeldOut
from orchestrator.records.writer import RunWriter, note_evaluation_error
from orchestrator.selection import retention, scores
from orchestrator.selection.confirmation import with_confirmation
from orchestrator.selection.samples_wanted import family_state
from orchestrator.selection.study import Halved, Study
from tests.fake_runs import (
    TRUST_REGION_ALONE,
    quickstart_study,
    record,
    units_of,
    write_evaluation,
    write_run,
)

BUDGETS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
WORDS = [
    *TRUST_REGION_ALONE,
    "methods.trust_region={epsilon0: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], K: [20]}",
    "seeds=[0]",
    "search={kind: halving, reduction: 2}",
    "training.steps=60",
    "training.checkpoint_every=10",
]  # six settings at rungs 10, 20 and 40 of 60 steps


def searched(runs: Path, *words: str) -> Study:
    return quickstart_study(runs, *WORDS, *words)


def trials(study: Study) -> dict[float, list[Unit]]:
    """The units of each setting, by ε₀."""
    found: dict[float, list[Unit]] = {}
    for unit in units_of(study.units, "trust_region"):
        found.setdefault(unit.knobs["epsilon0"], []).append(unit)
    return found


def arrive(study: Study, unit: Unit, at: Mapping[int, int | None], steps: int) -> None:
    """Commit checkpoints with so many right answers of four on each benchmark."""
    row = {step: [right] * 3 for step, right in at.items()}
    count = len(study.evaluation_ids(unit.setup))
    cut = {step: values[:count] for step, values in row.items()}
    write_run(study.runs, study.experiment, unit, cut, steps=steps, done=steps == unit.steps)


def known(study: Study) -> dict[float, Halved]:
    """How far each setting goes by now, by ε₀; the first seed stands for all."""
    halved = with_confirmation(study).halved
    return {budget: halved[units[0].id] for budget, units in trials(study).items()}


def test_nothing_is_decided_before_all_are_at_the_rung(tmp_path: Path) -> None:
    study = searched(tmp_path)
    of = trials(study)
    for budget in BUDGETS[:-1]:
        arrive(study, of[budget][0], {10: 2}, 10)
    assert {halved.goal for halved in known(study).values()} == {10}
    arrive(study, of[0.6][0], {10: None}, 10)  # there, and not evaluated yet
    assert not any(halved.stopped for halved in known(study).values())
    assert sorted(halved.expected for halved in known(study).values()) == [10, 10, 10, 20, 40, 60]


def test_the_best_of_a_rung_go_on_and_ties_go_to_the_earlier_setting(tmp_path: Path) -> None:
    study = searched(tmp_path)
    right = dict(zip(BUDGETS, (1, 3, 2, 2, 0, 4), strict=True))
    for budget, units in trials(study).items():
        arrive(study, units[0], {10: right[budget]}, 10)
    assert {b for b, halved in known(study).items() if not halved.stopped} == {0.2, 0.3, 0.6}
    assert known(study)[0.6] == Halved(goal=20, passed=10, expected=20)
    assert known(study)[0.4] == Halved(goal=10, passed=0, expected=10, stopped=True)


def finished(runs: Path, *words: str) -> Study:
    """A search at its end: 0.6 leads everywhere, a stopped setting had one lucky checkpoint."""
    study = searched(runs, *words)
    scores_of = {
        0.1: {10: 1},
        0.2: {10: 3, 20: 1},
        0.3: {10: 2, 20: 2, 30: 2, 40: 1},
        0.4: {10: 0},
        0.5: {10: 0},
        0.6: {10: 3, 20: 3, 30: 2, 40: 3, 50: 3, 60: 2},
    }
    scores_of[0.2] = {10: 4, 20: 1}
    for budget, units in trials(study).items():
        for unit in units:
            arrive(study, unit, scores_of[budget], max(scores_of[budget]))
    [base] = units_of(study.units, "base_eval")
    arrive(study, base, {0: 1}, 0)
    return study


def test_a_stopped_setting_is_not_chosen_and_its_family_is_settled(tmp_path: Path) -> None:
    study = with_confirmation(finished(tmp_path))
    [family] = [each for each in study.families() if each[0][0].is_trial]
    found = scores.scored_checkpoints(study, family)
    best = scores.best_of(found)
    assert best is not None
    assert (best.setting[0].knobs["epsilon0"], best.step) == (0.6, 10)
    assert max(found, key=lambda each: each.mean).setting[0].knobs["epsilon0"] == 0.2
    assert family_state(study, family).settled
    states = {each.label: each.state for each in status.collect(study) if each.is_trial}
    assert sorted(states.values()) == ["done", *["stopped"] * 5]
    assert status.overview(study).is_done


def test_the_search_is_a_grid_again_without_its_key(tmp_path: Path) -> None:
    """A stopped unit is unfinished work of an experiment that tries every point."""
    finished(tmp_path)
    study = with_confirmation(
        quickstart_study(tmp_path, *(word for word in WORDS if "search" not in word))
    )
    assert not study.halved
    states = [each.state for each in status.collect(study) if each.is_trial]
    assert states.count("interrupted") == 5


def test_stopped_units_keep_the_checkpoint_at_which_they_can_go_on(tmp_path: Path) -> None:
    study = finished(tmp_path, "runtime.keep=best")
    retention.prune(study)
    kept = {b: sorted(study.reader(units[0]).checkpoints()) for b, units in trials(study).items()}
    assert kept == {0.1: [10], 0.2: [20], 0.3: [40], 0.4: [10], 0.5: [10], 0.6: [10]}


def test_later_samples_of_a_race_change_no_decision(tmp_path: Path) -> None:
    """Under `adaptive` a rung counts the samples that every checkpoint got at once."""
    words = ("evaluation.budget=adaptive", "evaluation.rescore=true")
    n = "evaluation.benchmarks={arithmetic_short: {n: 8, limit: 1}}"
    study = searched(tmp_path, *words, n)
    first = study.setup_of(study.units[-1]).evaluation
    for budget, units in trials(study).items():
        arrive(study, units[0], {10: None}, 10)
        for evaluation_id in evaluation_ids(study.experiment.setups[units[0].setup]).values():
            right = 2 if budget in (0.1, 0.2, 0.3) else 1
            write_evaluation(study.reader(units[0]), evaluation_id, 10, [record(right, 2)])
    assert first.budget == "adaptive"
    before = known(study)
    assert {b for b, halved in before.items() if not halved.stopped} == {0.1, 0.2, 0.3}
    [stopped] = trials(study)[0.6]
    for evaluation_id in study.evaluation_ids(stopped.setup).values():
        write_evaluation(study.reader(stopped), evaluation_id, 10, [record(6, 6)], sample=2)
    assert known(study) == before


def test_seeds_of_a_setting_count_together(tmp_path: Path) -> None:
    study = searched(tmp_path, "seeds=[0,1]")
    right = dict(zip(BUDGETS, ((4, 0), (3, 3), (2, 2), (1, 4), (0, 0), (3, 2)), strict=True))
    for budget, units in trials(study).items():
        for unit, correct in zip(units, right[budget], strict=True):
            arrive(study, unit, {10: correct}, 10)
    assert {b for b, halved in known(study).items() if not halved.stopped} == {0.2, 0.4, 0.6}


@pytest.mark.parametrize("how", ["training", "evaluation"])
def test_a_failed_setting_comes_last_and_holds_nobody_up(tmp_path: Path, how: str) -> None:
    study = searched(tmp_path)
    for budget, units in trials(study).items():
        if budget != 0.1:
            arrive(study, units[0], {10: 2}, 10)
    [failed] = trials(study)[0.1]
    if how == "training":
        with closing(RunWriter(study.runs, failed.id)) as run:
            run.fail("loss is not finite", "")
    else:
        arrive(study, failed, {10: None}, 10)
        for evaluation_id in study.evaluation_ids(failed.setup).values():
            note_evaluation_error(study.reader(failed), evaluation_id, 10, "wrong weights", "")
    assert {b for b, halved in known(study).items() if not halved.stopped} == {0.2, 0.3, 0.4}


def test_the_distance_on_held_out_prompts_can_decide(tmp_path: Path) -> None:
    study = searched(tmp_path, "search={kind: halving, reduction: 2, by: held_out_kl}")
    for budget, units in trials(study).items():
        with closing(RunWriter(study.runs, units[0].id)) as run:
            run.describe({}, dict)
            run.append(HELD_OUT, [vars(measured(10, budget))])
            run.new_checkpoint(10, lambda folder: (folder / "model.safetensors").touch())
            run.commit(10)
    assert {b for b, halved in known(study).items() if not halved.stopped} == {0.1, 0.2, 0.3}


def measured(step: int, kl: float) -> HeldOut:
    return HeldOut(step, kl, 0.1, kl, 0.0, 0.0, 1.0, 1.0, 4.0, 0.0, [0], [4], [4 * kl], [])
