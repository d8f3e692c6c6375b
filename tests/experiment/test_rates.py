"""The learning rate as a knob of every method: its units, their ids, and where it counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config import Experiment
from orchestrator.engines.interface import ModelFolder
from orchestrator.experiment.load import load_experiment, resolved_text
from orchestrator.experiment.methods import METHODS
from orchestrator.experiment.units import Unit, expand, setup_of, with_seed
from orchestrator.selection.study import Study
from orchestrator.sweep.prepare import worker_spec
from orchestrator.workers.members import lora_of
from tests.sweeps import ROOT

RIVALS = ROOT / "experiments" / "rivals.yaml"
RATE, OTHER = 0.0008, 0.0004  # that of the setup, and its half


def rivals(*overrides: str) -> tuple[Experiment, list[Unit]]:
    """The experiment with every rival, on one seed."""
    seeds = [] if any(word.startswith("seeds=") for word in overrides) else ["seeds=[0]"]
    experiment = load_experiment(RIVALS, ["confirm=null", *seeds, *overrides])
    return experiment, expand(experiment)


def at(*rates: float) -> list[str]:
    """Overrides that give rates to all methods but the one whose `lr` is that of its adapters."""
    methods = [name for name in rivals()[0].methods if name != "simple_opd"]
    return [f"methods.{name}.lr={list(rates)}" for name in methods]


def ids(units: list[Unit]) -> list[str]:
    return [unit.id for unit in units]


def test_every_method_takes_a_rate_and_none_needs_one() -> None:
    experiment, units = rivals()
    assert all(
        "lr" not in grid for name, grid in experiment.methods.items() if name != "simple_opd"
    )
    assert all(list(method.knobs)[-1] == "lr" for method in METHODS.values())
    assert {unit.method for unit in rivals(*at(RATE))[1]} - {None} == set(experiment.methods)
    assert rivals("methods.gkd.lr=null")[0].methods == experiment.methods
    assert ids(rivals("methods.gkd.lr=null")[1]) == ids(units)


def test_the_rate_of_the_setup_is_the_same_unit() -> None:
    _, units = rivals()
    experiment, given = rivals(*at(RATE))
    assert experiment.setups["arithmetic"].training.optimizer.lr == RATE
    assert ids(given) == ids(units)
    assert [unit.identity for unit in given] == [unit.identity for unit in units]


def test_another_rate_is_the_unit_of_a_setup_with_that_rate() -> None:
    """Supervised stages, too. The readable part of an id does not name the rate."""
    without = "methods.simple_opd=null"
    plain, given = rivals(without)[1], rivals(without, *at(OTHER))[1]
    assert ids(given) == ids(rivals(without, f"training.optimizer.lr={OTHER}")[1])
    shared = {unit.kind for unit in given if unit.id in ids(plain)}
    assert shared == {"base_eval"}


def test_rates_multiply_a_grid_and_have_a_stage_each() -> None:
    _, units = rivals("methods.gkd.teacher_share=[0.2,0.5]", *at(OTHER, RATE))
    gkd = [unit.label for unit in units if unit.method == "gkd"]
    assert gkd == [
        f"GKD teacher_share={share} beta=0.5 lr={rate}"
        for share in (0.2, 0.5)
        for rate in (OTHER, RATE)
    ]
    warm = {unit.knobs["lr"]: unit for unit in units if unit.method == "sft_warmup"}
    stages = {unit.id: unit for unit in units if unit.is_supervised and "rank" not in unit.knobs}
    assert len(stages) == 2
    for rate in (OTHER, RATE):
        [stage] = warm[rate].depends_on
        assert stages[stage].label == f"Supervised stage lr={rate}"
        assert lora_of(stages[stage]) is None


def test_adapters_keep_a_rate_of_their_own() -> None:
    experiment, units = rivals("methods.simple_opd.lr=[0.01]")
    [trial] = [unit for unit in units if unit.method == "simple_opd"]
    [stage] = [unit for unit in units if unit.id in trial.depends_on]
    lora = lora_of(stage)
    assert lora is not None
    assert lora.lr == trial.knobs["lr"] == 0.01
    for unit in (trial, stage):
        assert setup_of(unit, experiment).training.optimizer.lr == RATE


def test_a_unit_trains_at_its_rate(tmp_path: Path) -> None:
    """What a process gets, and the setup of everything that shows or exports the unit."""
    experiment, units = rivals(*at(OTHER, RATE))
    pair = (ModelFolder("student"), ModelFolder("teacher"))
    study = Study(experiment, units, tmp_path)
    seen = set()
    for unit in units:
        if not unit.trains or unit.method in ("simple_opd", "sft_warmup"):
            continue  # these start from a checkpoint of their stage
        rate = unit.knobs["lr"] if "rank" not in unit.knobs else RATE
        spec = worker_spec(unit, experiment, tmp_path, pair)
        assert (
            spec.setup.training.optimizer.lr == rate == unit.identity["training"]["optimizer"]["lr"]
        )
        assert spec.setup == study.setup_of(unit)
        seen.add((unit.kind, rate))
    assert seen == {(kind, rate) for kind in ("trial", "sft") for rate in (OTHER, RATE)}


@pytest.mark.parametrize("method", ["trust_region", "sft_warmup"])
def test_a_setting_keeps_its_rate_on_other_seeds_and_in_its_results_folder(
    tmp_path: Path, method: str
) -> None:
    experiment, units = rivals(*at(OTHER))
    [unit] = [unit for unit in units if unit.method == method]
    later = with_seed(unit, 1, experiment)
    assert later == [each for each in rivals("seeds=[1]", *at(OTHER))[1] if each in later]
    assert {setup_of(each, experiment).training.optimizer.lr for each in later} == {OTHER}
    record = tmp_path / "experiment.yaml"
    record.write_text(resolved_text(experiment, {}))
    assert ids(expand(load_experiment(record))) == ids(units)
