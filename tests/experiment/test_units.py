"""The paper's sweep: how many units of which kind, with which knobs, and what their ids depend on."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config import Experiment, Setup
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import Unit, expand
from orchestrator.pair import Model
from orchestrator.selection.scores import decided_by_family
from tests.sweeps import ROOT

PAPER = ROOT / "experiments" / "paper.yaml"
SETUPS = ("qwen3-1.7b", "qwen3-0.6b")
BUDGETS = [0.001, 0.005, 0.01, 0.02, 0.05]
# Hyperparameters of the sweeps (paper, Appendix "Baseline Setup Details").
SWEEPS: dict[str, dict[str, list[Any]]] = {
    "vanilla": {},
    "trust_region": {"epsilon0": BUDGETS, "K": [15, 25, 50]},
    "fixed_epsilon": {"epsilon": BUDGETS},
    "veto": {"beta_start": [0.2, 0.4, 0.6, 0.8]},
    "skd": {"K": [15, 25, 50], "tau_T": [0.2, 0.6, 1.0]},
    "temperature_warmup": {"tau0": [0.8, 0.9, 0.95], "E": [15, 25]},
    "sft_warmup": {"K": [15, 25, 50]},
}
COUNTS = {
    "vanilla": 1,
    "trust_region": 15,
    "fixed_epsilon": 5,
    "veto": 4,
    "skd": 9,
    "temperature_warmup": 6,
    "sft_warmup": 3,
}


def paper_units(*overrides: str) -> list[Unit]:
    return expand(load_experiment(PAPER, overrides))


def ids(units: list[Unit], *kinds: str) -> list[str]:
    return [unit.id for unit in units if not kinds or unit.kind in kinds]


def test_forty_three_trials_for_each_setup() -> None:
    counted = Counter((unit.setup, unit.method) for unit in paper_units() if unit.kind == "trial")
    assert counted == {
        (setup, method): count for setup in SETUPS for method, count in COUNTS.items()
    }
    assert sum(COUNTS.values()) == 43


def test_every_unit_is_counted_once() -> None:
    units = paper_units()
    assert Counter(unit.kind for unit in units) == {"trial": 86, "base_eval": 2, "sft": 2}
    assert len(set(ids(units))) == len(units) == 90
    assert {unit.seed for unit in units} == {0}


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("method", SWEEPS)
def test_knobs_are_the_papers(method: str, setup: str) -> None:
    sweep = SWEEPS[method]
    expected = [
        dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())
    ]
    found = [unit.knobs for unit in paper_units() if (unit.setup, unit.method) == (setup, method)]
    assert sorted(map(str, found)) == sorted(map(str, expected))


def test_only_sft_warmup_waits_and_for_its_own_setup() -> None:
    units = paper_units()
    stage = {unit.setup: unit.id for unit in units if unit.kind == "sft"}
    for unit in units:
        assert unit.depends_on == ((stage[unit.setup],) if unit.method == "sft_warmup" else ())
    order = ids(units)
    assert all(
        order.index(needed) < order.index(unit.id) for unit in units for needed in unit.depends_on
    )


def test_lengths_of_the_runs() -> None:
    for unit in paper_units():
        assert unit.steps == {"trial": 400, "sft": 50, "base_eval": 0}[unit.kind]
        assert unit.first_batch == 0


def test_continuing_after_sft_uses_the_remaining_prompts() -> None:
    units = [
        unit for unit in paper_units("training.sft.after=continue") if unit.method == "sft_warmup"
    ]
    assert {(unit.knobs["K"], unit.first_batch, unit.steps) for unit in units} == {
        (15, 15, 385),
        (25, 25, 375),
        (50, 50, 350),
    }


def test_ids_are_stable() -> None:
    assert ids(paper_units()) == ids(paper_units())


@pytest.mark.parametrize(
    "override",
    [
        "runtime.rollout_batch=7",
        "runtime.micro_batch_tokens=4096",
        "runtime.keep=all",
        "runtime.placement.mode=colocated",
        "runtime.placement.cpus=9",
        "runtime.wandb=disabled",
        "runtime.rollout_texts=0",
        "methods.trust_region.placement=colocated",
        "methods.sft_warmup.placement=colocated",
        "data_dir=/elsewhere",
        "name=other",
        "evaluation.seed=3",
        "evaluation.keep_texts=0",
        "evaluation.held_out=0",
        "evaluation.held_out=64",
        "evaluation.benchmarks.math500.n=1",
        "evaluation.benchmarks.amc23.limit=3",
        "evaluation.benchmarks.aime24=null",
    ],
)
def test_ids_do_not_depend_on_how_or_where_it_runs(override: str) -> None:
    assert ids(paper_units(override)) == ids(paper_units())


@pytest.mark.parametrize(
    "override",
    [
        "seeds=[1]",
        "training.optimizer.lr=2e-5",
        "training.optimizer.weight_decay=0",
        "training.optimizer.decay=linear",
        "training.prompts_per_step=32",
        "training.samples_per_prompt=8",
        "training.max_response_tokens=1024",
        "engine.dtype=float32",
        "engine.head_dtype=bfloat16",
    ],
)
def test_every_training_depends_on(override: str) -> None:
    kinds = ("trial", "sft")
    assert not set(ids(paper_units(override), *kinds)) & set(ids(paper_units(), *kinds))


@pytest.mark.parametrize(
    "override", ["training.steps=200", "training.objective=surrogate", "training.top_k=32"]
)
def test_trials_depend_on_the_objective_and_the_sft_stage_does_not(override: str) -> None:
    changed, units = paper_units(override), paper_units()
    assert not set(ids(changed, "trial")) & set(ids(units, "trial"))
    assert ids(changed, "sft", "base_eval") == ids(units, "sft", "base_eval")


@pytest.mark.parametrize("override", ["training.sft.after=continue", "training.sft.updates=60"])
def test_settings_of_the_sft_stage_touch_only_what_starts_from_it(override: str) -> None:
    changed, units = set(ids(paper_units(override))), paper_units()
    for unit in units:
        assert (unit.id in changed) == (
            unit.method != "sft_warmup" and (unit.kind != "sft" or "after" in override)
        )


def test_one_knob_changes_one_id() -> None:
    before = {unit.id for unit in paper_units()}
    after = {
        unit.id
        for unit in paper_units("methods.fixed_epsilon.epsilon=[0.001,0.005,0.01,0.02,0.06]")
    }
    assert len(before - after) == len(after - before) == len(SETUPS)
    assert all("fixed_epsilon-epsilon=0.06" in unit_id for unit_id in after - before)


def test_close_knobs_have_different_ids() -> None:
    units = paper_units("methods.fixed_epsilon.epsilon=[0.01,0.01000001]")
    assert len({unit.id for unit in units}) == len(units)


def test_a_second_seed_doubles_what_is_trained() -> None:
    units = paper_units("seeds=[0,1]")
    assert Counter(unit.kind for unit in units) == {"trial": 172, "base_eval": 2, "sft": 4}
    assert set(ids(paper_units())) < set(ids(units))
    stages = {(unit.setup, unit.seed): unit.id for unit in units if unit.kind == "sft"}
    for unit in units:
        if unit.method == "sft_warmup":
            assert unit.depends_on == (stages[unit.setup, unit.seed],)


def with_model(experiment: Experiment, role: str, **changes: Any) -> Experiment:
    """`experiment` with fields of each setup's student or teacher replaced."""

    def changed(setup: Setup) -> Setup:
        model: Model = dataclasses.replace(getattr(setup, role), **changes)
        return dataclasses.replace(setup, **{role: model})

    setups = {name: changed(setup) for name, setup in experiment.setups.items()}
    return dataclasses.replace(experiment, setups=setups)


@pytest.mark.parametrize("change", [{"revision": "0" * 40}, {"eos": 7}])
@pytest.mark.parametrize("role", ["student", "teacher"])
def test_every_training_depends_on_its_models(role: str, change: dict[str, Any]) -> None:
    experiment = load_experiment(PAPER)
    before, after = expand(experiment), expand(with_model(experiment, role, **change))
    assert not set(ids(before, "trial", "sft")) & set(ids(after, "trial", "sft"))


def test_the_base_evaluation_depends_on_the_student_alone() -> None:
    experiment = load_experiment(PAPER)
    before = ids(expand(experiment), "base_eval")
    assert ids(expand(with_model(experiment, "teacher", revision="0" * 40)), "base_eval") == before
    assert not set(
        ids(expand(with_model(experiment, "student", revision="0" * 40)), "base_eval")
    ) & set(before)


def test_a_mirror_of_a_model_is_the_same_model() -> None:
    experiment = load_experiment(PAPER)
    assert ids(expand(with_model(experiment, "teacher", path="/mirror/model"))) == ids(
        expand(experiment)
    )


def test_a_method_can_be_left_out() -> None:
    units = paper_units("methods.sft_warmup=null")
    assert Counter(unit.kind for unit in units) == {"trial": 80, "base_eval": 2}


OWN_SEEDS = """
setups: [arithmetic]
methods:
  vanilla: {seeds: [3, 1, 2]}
  veto: {beta_start: [0.2, 0.4]}
  sft_warmup: {K: [15], seeds: [1, 4]}
seeds: [0]
"""


def seeds_of(path: Path, *overrides: str) -> dict[str, list[int]]:
    """Method, or kind of the units that have none, → the seeds of its units."""
    found: dict[str, list[int]] = {}
    for unit in expand(load_experiment(path, overrides)):
        found.setdefault(unit.method or unit.kind, []).append(unit.seed)
    return found


@pytest.mark.parametrize(
    ("overrides", "vanilla", "veto", "sft"),
    [
        ((), [3, 1, 2], [0, 0], [1, 4]),
        (("seeds=[5,6]",), [5, 6], [5, 6, 5, 6], [5, 6]),
        (("methods.vanilla.seeds=[7]",), [7], [0, 0], [1, 4]),
        (("seeds=[5,6]", "methods.vanilla.seeds=[7]"), [7], [5, 6, 5, 6], [5, 6]),
    ],
)
def test_seeds_of_one_method(
    tmp_path: Path, overrides: tuple[str, ...], vanilla: list[int], veto: list[int], sft: list[int]
) -> None:
    """A file's seeds for a method win over the file's seeds for all; typed on the command line,
    these win over both.
    """
    (tmp_path / "own.yaml").write_text(OWN_SEEDS)
    expected = {"base_eval": [0], "sft": sft, "vanilla": vanilla, "veto": veto, "sft_warmup": sft}
    assert seeds_of(tmp_path / "own.yaml", *overrides) == expected


def test_a_method_with_one_seed_may_drop_checkpoints_while_another_averages_over_seeds(
    tmp_path: Path,
) -> None:
    (tmp_path / "own.yaml").write_text(OWN_SEEDS)
    experiment = load_experiment(tmp_path / "own.yaml")
    decided = {
        unit.method: decided_by_family(experiment, unit)
        for unit in expand(experiment)
        if unit.method
    }
    assert decided == {"vanilla": True, "veto": False, "sft_warmup": True}
