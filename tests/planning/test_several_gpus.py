"""Trials on several GPUs: their time worked out here by hand."""

from __future__ import annotations

import pytest

from orchestrator.config import Placement, RoleGpus
from orchestrator.experiment.load import load_experiment
from orchestrator.planning import plan
from orchestrator.planning.costs import OTHER, SetupCosts
from orchestrator.planning.numbers import SCENARIOS, Scenario
from orchestrator.planning.plan import (
    hours_on_gpus,
    longest_unit_hours,
    total_gpu_hours,
)
from orchestrator.planning.work import SUPERVISED
from orchestrator.records.clock import BLENDED, PLAIN
from orchestrator.records.log import EVALUATE, LEARN, ROLLOUT, SCORE
from tests.planning.plans import FROM_RATES, PAPER, known, planned

ENGINES = ("engine.sampler=sglang", "engine.trainer=verl")
SPLIT = Placement("split", 4, RoleGpus(2, 1, 1))
SPLIT_GIVEN = ("runtime.placement.mode=split", "runtime.placement.role_gpus.rollout=2")


def costs(placement: Placement, setup: str = "qwen3-1.7b") -> SetupCosts:
    experiment = load_experiment(PAPER, (*ENGINES, *FROM_RATES))
    return SetupCosts(experiment.setups[setup], experiment.runtime, "sglang").on(placement)


# --- time ---


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_decoding_on_two_gpus_is_half_the_reading_and_all_the_waiting(scenario: Scenario) -> None:
    """A step of 256 responses: weights and caches over twice the bandwidth, then 2 × 28 all-reduces
    a decode step, and the sampler on each of the two.
    """
    made = costs(Placement(gpus=2))
    lengths = made.training_lengths(scenario)
    steps = lengths.tokens  # two such GPUs hold all 256 rows at once
    reads = steps * 2 * 1_720_574_976 + 112 * 1024 * 256 * lengths.reads
    eta = {"low": 0.6, "mid": 0.55, "high": 0.5}[scenario]
    all_reduce = {"low": 10e-6, "mid": 20e-6, "high": 40e-6}[scenario]
    expected = reads / (2 * eta * 3.35e12) + steps * 2 * 28 * all_reduce
    moved = {"low": 0.85, "mid": 0.75, "high": 0.6}[scenario] * 3.35e12
    expected += 256 * steps * 151_936 * 128 / moved
    assert made.step(PLAIN)[ROLLOUT].at(scenario) == pytest.approx(expected, rel=1e-9)


def test_scoring_and_learning_keep_a_part_of_their_speed() -> None:
    one, four = costs(Placement(gpus=1)).step(PLAIN), costs(Placement(gpus=4)).step(PLAIN)
    for phase in (SCORE, LEARN):
        for scenario, kept in zip(SCENARIOS, (0.95, 0.90, 0.80), strict=True):
            assert four[phase].at(scenario) == pytest.approx(one[phase].at(scenario) / (4 * kept))
    assert four[OTHER] == one[OTHER], "nothing of it is shared out"


def test_roles_apart_take_the_time_of_their_own_gpus() -> None:
    one, two = (costs(Placement(gpus=count)).step(PLAIN) for count in (1, 2))
    apart = costs(SPLIT)
    two_blended = costs(Placement(gpus=2)).step(BLENDED)[ROLLOUT].mid
    assert apart.step(PLAIN)[SCORE] == one[SCORE]
    assert apart.step(PLAIN)[LEARN] == one[LEARN]
    assert apart.step(PLAIN)[ROLLOUT].mid <= two[ROLLOUT].mid, "no teacher lies beside the caches"
    assert apart.step(BLENDED)[ROLLOUT].mid <= two_blended, "and no second process"
    answering = costs(Placement("split", 4, RoleGpus(1, 2, 1))).step(SUPERVISED)[ROLLOUT]
    assert answering.mid < apart.step(SUPERVISED)[ROLLOUT].mid, (
        "the teacher answers on its own GPUs"
    )


def test_gpu_hours_are_all_gpus_times_the_clock_and_evaluators_have_one() -> None:
    made, one = planned(*ENGINES, *SPLIT_GIVEN), planned(*ENGINES)
    unit, alone = made.units[2], one.units[2]
    hours = known(unit.resources.gpu_hours)
    assert unit.resources.gpus == 4
    clock = plan.training_seconds(unit.unit, made.costs[unit.unit.setup])
    for phase, seconds in clock.items():
        if phase != EVALUATE:
            assert hours[phase].mid == pytest.approx(4 * seconds.mid / 3600)
    assert hours[EVALUATE] == known(alone.resources.gpu_hours)[EVALUATE]
    total = known(total_gpu_hours(made))["total"]
    assert known(longest_unit_hours(made)).mid < total.mid
    assert hours_on_gpus(made, 8) == total / 8


def test_methods_may_have_other_gpus_than_the_rest() -> None:
    own = ("methods.vanilla.placement.mode=split", "methods.vanilla.placement.role_gpus.rollout=2")
    mixed, one, split = planned(*ENGINES, *own), planned(*ENGINES), planned(*ENGINES, *SPLIT_GIVEN)
    for found, plain, four in zip(mixed.units, one.units, split.units, strict=True):
        as_planned = four if found.unit.method == "vanilla" else plain
        assert found.resources == as_planned.resources
    assert mixed.units != one.units
