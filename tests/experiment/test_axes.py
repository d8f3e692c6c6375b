"""Axes: their values, units and ids, and where a point counts; first of all the learning rate."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config import Experiment
from orchestrator.engines.interface import ModelFolder
from orchestrator.experiment.axes import axes_of, setting_text, short_names
from orchestrator.experiment.load import load_experiment, resolved_text
from orchestrator.experiment.units import (
    Unit,
    checkpoint_steps,
    expand,
    setup_of,
    widest_setup,
    with_seed,
)
from orchestrator.selection.study import Study
from orchestrator.sweep.prepare import worker_spec
from orchestrator.workers.members import lora_of
from tests.sweeps import ROOT

RIVALS = ROOT / "experiments" / "rivals.yaml"
AXIS = "training.optimizer.lr"
RATE, OTHER = 0.0008, 0.0004  # that of the setup, and its half


def rivals(*overrides: str) -> tuple[Experiment, list[Unit]]:
    """The experiment with every rival, on one seed."""
    seeds = [] if any(word.startswith("seeds=") for word in overrides) else ["seeds=[0]"]
    experiment = load_experiment(RIVALS, ["confirm=null", *seeds, *overrides])
    return experiment, expand(experiment)


def at(*rates: float) -> list[str]:
    """An override that gives rates to all methods."""
    return [f"axes={{{AXIS}: {list(rates)}}}"]


def ids(units: list[Unit]) -> list[str]:
    return [unit.id for unit in units]


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
    warm = {unit.knobs[AXIS]: unit for unit in units if unit.method == "sft_warmup"}
    stages = {unit.id: unit for unit in units if unit.is_supervised and "rank" not in unit.knobs}
    assert len(stages) == 2
    for rate in (OTHER, RATE):
        [stage] = warm[rate].depends_on
        assert stages[stage].label == f"Supervised stage lr={rate}"
        assert lora_of(stages[stage]) is None


def test_adapters_keep_a_rate_of_their_own() -> None:
    experiment, units = rivals("methods.simple_opd.lr=[0.01]", *at(OTHER))
    [trial] = [unit for unit in units if unit.method == "simple_opd"]
    [stage] = [unit for unit in units if unit.id in trial.depends_on]
    lora = lora_of(stage)
    assert lora is not None
    assert lora.lr == trial.knobs["lr"] == 0.01
    assert trial.label == "Simple-OPD K=15 rank=8 lr=0.01 optimizer.lr=0.0004"
    for unit in (trial, stage):
        assert setup_of(unit, experiment).training.optimizer.lr == OTHER


def test_a_unit_trains_at_its_rate(tmp_path: Path) -> None:
    """What a process gets, and the setup of everything that shows or exports the unit."""
    experiment, units = rivals(*at(OTHER, RATE))
    pair = (ModelFolder("student"), ModelFolder("teacher"))
    study = Study(experiment, units, tmp_path)
    seen = set()
    for unit in units:
        if not unit.trains or unit.method in ("simple_opd", "sft_warmup"):
            continue  # these start from a checkpoint of their stage
        rate = unit.knobs[AXIS]
        spec = worker_spec(unit, experiment, tmp_path, pair)
        assert (
            spec.setup.training.optimizer.lr == rate == unit.identity["training"]["optimizer"]["lr"]
        )
        assert spec.setup == study.setup_of(unit)
        seen.add((unit.kind, rate))
    assert seen == {(kind, rate) for kind in ("trial", "sft") for rate in (OTHER, RATE)}


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("[1e-4, 4e-4]", [1e-4, 4e-4]),
        ("3e-4", [3e-4]),
        ("{choice: [4e-4, 1e-4]}", [4e-4, 1e-4]),
        ("{log: [1e-6, 1e-4], points: 5}", [1e-6, 3.16e-6, 1e-5, 3.16e-5, 1e-4]),
        ("{uniform: [1e-4, 3e-4], points: 3}", [1e-4, 2e-4, 3e-4]),
    ],
)
def test_values_of_an_axis(written: str, values: list[float]) -> None:
    experiment, _ = rivals(f"axes={{{AXIS}: {written}}}")
    assert all(grid[AXIS] == values for grid in experiment.methods.values())


def test_a_range_of_whole_numbers_has_whole_numbers() -> None:
    experiment, units = rivals("axes={training.steps: {log: [8, 60], points: 3}}")
    assert experiment.methods["vanilla"]["training.steps"] == [8, 22, 60]
    assert [unit.steps for unit in units if unit.method == "vanilla"] == [8, 22, 60]
    for unit in units:
        if unit.is_trial:
            assert checkpoint_steps(unit, setup_of(unit, experiment))[-1] == unit.steps
    assert widest_setup(experiment, "arithmetic").training.steps == 60


def test_a_block_has_axes_of_its_own_and_leaves_shared_ones_out() -> None:
    experiment, _ = rivals(
        *at(OTHER, RATE),
        "methods.gkd.axes={training.objective: [tail, renormalized]}",
        f"methods.vanilla.axes={{{AXIS}: null}}",
        "methods.trust_region.axes.training.optimizer.lr=[1e-4]",
    )
    axes = {name: axes_of(grid) for name, grid in experiment.methods.items()}
    assert axes["gkd"] == {"training.objective": ["tail", "renormalized"], AXIS: [OTHER, RATE]}
    assert axes["vanilla"] == {}
    assert axes["trust_region"] == {AXIS: [1e-4]}
    assert axes["sft_warmup"] == {AXIS: [OTHER, RATE]}


def test_an_axis_of_the_loss_shares_the_supervised_stage() -> None:
    _, units = rivals("axes={training.objective: [tail, renormalized]}")
    warm = [unit for unit in units if unit.method == "sft_warmup"]
    assert [unit.label for unit in warm] == [
        "SFT warmup K=15 objective=tail",
        "SFT warmup K=15 objective=renormalized",
    ]
    assert len({unit.id for unit in warm}) == 2
    assert len({unit.depends_on for unit in warm}) == 1


def test_names_are_the_shortest_ends_that_differ() -> None:
    keys = ("lr", "training.optimizer.lr", "training.steps", "training.sft.steps", "K")
    assert short_names(keys) == {
        "lr": "lr",
        "training.optimizer.lr": "optimizer.lr",
        "training.steps": "training.steps",
        "training.sft.steps": "sft.steps",
        "K": "K",
    }
    assert setting_text({"K": 12, "training.optimizer.lr": 1e-4}) == "K=12 lr=0.0001"


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
