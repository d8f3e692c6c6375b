"""Explore, then confirm: which runs confirm what, when they become known, and what is sampled of
them.
"""

from __future__ import annotations

from pathlib import Path

from orchestrator.experiment.evaluation_protocol import FRESH, Sampling
from orchestrator.monitor import status
from orchestrator.records.rundir import RunReader
from orchestrator.selection import retention
from orchestrator.selection.confirmation import (
    confirmations,
    missing_units,
    unconfirmed_units,
    with_confirmation,
)
from orchestrator.selection.samples_wanted import wants
from orchestrator.selection.study import Study
from tests.fake_runs import write_run
from tests.selection.test_samples_wanted import LONG, SHORT, STEPS, World, chosen, world

CONFIRM = "confirm.seeds=[7,8]"
N = 64


def trained(world: World, runs: Path) -> Study:
    """All units of the grid are trained and sampled to the end, and nothing else."""
    world.train(runs, "base_eval", "vanilla", "trust_region")
    world.finish(runs)
    return world.study(runs)


def test_a_settled_family_is_confirmed_with_its_chosen_setting_on_other_seeds(
    tmp_path: Path,
) -> None:
    told = world(CONFIRM)
    study = trained(told, tmp_path)
    label, step = chosen(told, tmp_path)
    by_method = {found.chosen[0].method: found for found in confirmations(study)}
    assert set(by_method) == {"vanilla", "trust_region"}
    confirmation = by_method["trust_region"]
    assert (confirmation.chosen[0].label, confirmation.step) == (label, step)
    assert [unit.seed for unit in confirmation.units] == [7, 8]
    assert {unit.label for unit in confirmation.units} == {label}
    assert not {unit.id for unit in confirmation.units} & {unit.id for unit in told.units}


def test_nothing_is_confirmed_before_its_family_is_settled(tmp_path: Path) -> None:
    told = world(CONFIRM)
    told.train(tmp_path, "vanilla", "base_eval")
    told.finish(tmp_path)
    study = with_confirmation(told.study(tmp_path))
    confirming = [unit for unit in study.units if unit.id in study.confirming]
    assert {unit.method for unit in confirming} == {"vanilla"}
    assert {unit.method for unit in unconfirmed_units(study)} == {"trust_region"}
    assert len(unconfirmed_units(study)) == 2


def test_only_the_chosen_step_is_sampled_and_only_freshly(tmp_path: Path) -> None:
    told = world(CONFIRM)
    study = with_confirmation(trained(told, tmp_path))
    assert all(unit.id not in wants(study) for unit in study.units)
    assert {unit.id for unit in missing_units(study)} == set(study.confirming)
    unit = next(
        unit
        for unit in study.units
        if unit.id in study.confirming and unit.method == "trust_region"
    )
    step = study.confirming[unit.id]
    write_run(
        tmp_path, told.experiment, unit, {each: [None, None] for each in STEPS}, steps=unit.steps
    )
    assert wants(study)[unit.id] == {Sampling(name, step, FRESH): N for name in (SHORT, LONG)}
    told.log.clear()
    told.finish(tmp_path)
    assert {(unit_id, sampling.step, sampling.repetition) for unit_id, sampling in told.log} == {
        (unit.id, step, FRESH)
    }
    [known] = [each for each in status.collect(study) if each.id == unit.id]
    assert known.state == "done"
    assert known.best_step == known.confirms == step


def test_a_confirming_unit_keeps_the_step_that_it_confirms(tmp_path: Path) -> None:
    told = world(CONFIRM, "runtime.keep=best")
    study = with_confirmation(trained(told, tmp_path))
    for unit in study.units:
        if unit.id in study.confirming:
            write_run(
                tmp_path,
                told.experiment,
                unit,
                {step: [None, None] for step in STEPS},
                steps=unit.steps,
            )
    retention.prune(study)
    for unit_id, step in study.confirming.items():
        assert set(RunReader(tmp_path, unit_id).checkpoints()) == {step}


def test_confirming_runs_change_nothing_of_what_was_chosen(tmp_path: Path) -> None:
    told = world(CONFIRM)
    study = with_confirmation(trained(told, tmp_path))
    before = chosen(told, tmp_path)
    for unit in study.units:
        if unit.id in study.confirming:
            write_run(
                tmp_path,
                told.experiment,
                unit,
                {step: [None, None] for step in STEPS},
                steps=unit.steps,
            )
    told.finish(tmp_path)
    assert chosen(told, tmp_path) == before
    assert with_confirmation(study).confirming == study.confirming
    assert study.exploring().units == told.units
    assert not missing_units(study)


def test_a_trial_after_its_last_step_waits_for_evaluation_and_is_never_interrupted(
    tmp_path: Path,
) -> None:
    told = world()
    [vanilla] = told.family("vanilla")
    write_run(
        tmp_path,
        told.experiment,
        vanilla,
        {step: [None, None] for step in STEPS},
        vanilla.steps,
        done=False,
    )
    [known] = [each for each in status.collect(told.study(tmp_path)) if each.id == vanilla.id]
    assert (known.state, known.doing) == ("queued", "queued for evaluation")
