"""What runs next, on clusters that are numbers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from orchestrator.experiment.units import Unit
from orchestrator.sweep.schedule import (
    FRUITLESS,
    Evaluating,
    Schedule,
    SlicesLeft,
    TrainUnit,
    Work,
    in_order,
    places,
)
from tests.fake_runs import quickstart, units_of

CAPACITY = {"CPU": 2.0}


class Sweep:
    """A schedule over the quickstart; every unit and every evaluator takes one CPU."""

    def __init__(self, *overrides: str, slices: int = 0, elsewhere: int = 0, cpus: float = 1.0):
        _, units = quickstart(*overrides)
        self.units, self.slices, self.elsewhere, self.cpus = units, slices, elsewhere, cpus
        trained = {unit.id for unit in units if unit.is_untrained}
        self.schedule = Schedule(
            units, trained, self.needs, lambda: SlicesLeft(self.slices, self.elsewhere)
        )

    def needs(self, work: Work) -> Mapping[str, float]:
        return {"CPU": self.cpus}

    def start(self) -> list[Work]:
        """Begin what can be begun now."""
        begun: list[Work] = []
        while isinstance(decision := self.schedule.decide(CAPACITY), TrainUnit | Evaluating):
            self.schedule.start(str(decision), decision)
            begun.append(decision)
        return begun

    def end(self, work: Work, good: bool = True) -> None:
        self.schedule.end(str(work), good)


def trained_by(sweep: Sweep, wrong: frozenset[str] = frozenset()) -> list[Unit]:
    """The order in which everything is trained, one unit after the other; those in `wrong` fail."""
    order = []
    while begun := sweep.start():
        for work in begun:
            assert isinstance(work, TrainUnit)
            order.append(work.unit)
            sweep.end(work, work.unit.id not in wrong)
    return order


def test_stages_come_first_and_small_families_before_large_ones() -> None:
    sweep = Sweep()
    assert {unit.id for unit in trained_by(sweep)} == {
        unit.id for unit in sweep.units if unit.trains
    }
    order = in_order(sweep.units)
    kinds = [unit.kind for unit in order]
    assert kinds == sorted(kinds, key=["sft", "trial"].index)
    steps = [
        sum(unit.steps for unit in units_of(sweep.units, name))
        for name in dict.fromkeys(u.method for u in order if u.method)
    ]
    assert steps == sorted(steps)
    assert steps[0] < steps[-1]
    assert sweep.schedule.decide(CAPACITY) == "finished"


def test_no_more_is_begun_than_fits() -> None:
    sweep = Sweep()
    assert len(sweep.start()) == 2
    assert sweep.schedule.decide(CAPACITY) == "wait"
    assert Sweep(cpus=4).schedule.decide(CAPACITY) == "wait"


def test_a_unit_waits_for_what_it_needs_and_starts_the_moment_that_is_there() -> None:
    others = {unit.method for unit in quickstart()[1] if unit.method} - {"sft_warmup"}
    sweep = Sweep(*(f"methods.{name}=null" for name in others))
    (stage,) = sweep.start()
    assert isinstance(stage, TrainUnit)
    assert stage.unit.is_supervised
    sweep.end(stage)
    assert {work.unit.method for work in sweep.start() if isinstance(work, TrainUnit)} == {
        "sft_warmup"
    }


def test_what_needs_a_failed_unit_is_never_begun() -> None:
    sweep = Sweep()
    stage = next(unit for unit in sweep.units if unit.is_supervised)
    order = trained_by(sweep, wrong=frozenset({stage.id}))
    assert not any(unit.method == "sft_warmup" for unit in order)
    assert sweep.schedule.decide(CAPACITY) == "finished"


def test_evaluators_take_what_no_trial_wants_and_are_no_more_than_the_slices() -> None:
    sweep = Sweep(slices=1)
    for unit in sweep.units:
        sweep.schedule.trained.add(unit.id)
    assert sweep.start() == [Evaluating(1)]
    sweep.slices = 5
    assert sweep.start() == [Evaluating(2)]
    sweep.slices = 0
    assert sweep.schedule.decide(CAPACITY) == "wait"
    sweep.end(Evaluating(1))
    sweep.end(Evaluating(2))
    assert sweep.schedule.decide(CAPACITY) == "finished"


def test_trials_are_packed_on_shares_of_a_gpu() -> None:
    sweep = Sweep()
    sweep.schedule.needs = lambda work: {"CPU": 1.0, "GPU": 1 / 3}
    capacity, begun = {"CPU": 8.0, "GPU": 1.0}, []
    while isinstance(decision := sweep.schedule.decide(capacity), TrainUnit | Evaluating):
        sweep.schedule.start(str(decision), decision)
        begun.append(decision)
    assert len(begun) == 3


def test_what_evaluators_of_another_sweep_have_claimed_is_left_to_them() -> None:
    """No evaluator is begun for it, and the sweep waits until it is there."""
    sweep = Sweep(slices=2, elsewhere=2)
    for unit in sweep.units:
        sweep.schedule.trained.add(unit.id)
    assert sweep.schedule.decide(CAPACITY) == "wait"
    sweep.slices = 3
    assert sweep.start() == [Evaluating(1)]
    assert sweep.schedule.decide(CAPACITY) == "wait"
    sweep.end(Evaluating(1))
    sweep.slices = sweep.elsewhere = 0
    assert sweep.schedule.decide(CAPACITY) == "finished"


def test_a_family_is_begun_only_where_no_samples_are_wanted_of_those_before() -> None:
    """One CPU trains, the other evaluates; when there is nothing to evaluate the next family
    begins.
    """
    sweep = Sweep(slices=9)
    first = next(
        unit.method for unit in in_order(sweep.units) if unit.is_trial and not unit.depends_on
    )
    sweep.schedule.trained |= {
        unit.id for unit in sweep.units if unit.is_supervised or unit.depends_on
    }
    assert sweep.start() == [Evaluating(1), Evaluating(2)]
    sweep.slices = 1
    sweep.end(Evaluating(2))
    (training,) = sweep.start()
    assert isinstance(training, TrainUnit)
    assert training.unit.method == first


def test_what_is_begun_is_trained_before_anything_is_evaluated() -> None:
    sweep = Sweep(slices=9)
    others = [unit for unit in sweep.units if unit.method != "trust_region"]
    sweep.schedule.trained |= {unit.id for unit in others}
    first, second = units_of(sweep.units, "trust_region")
    sweep.slices = 0
    sweep.schedule.start("first", TrainUnit(first))
    sweep.slices = 9
    assert sweep.start() == [TrainUnit(second)]


def test_what_may_not_go_on_ends_at_its_commit_and_nothing_begins() -> None:
    sweep = Sweep(slices=9)
    stage, *_ = sweep.start()
    assert not sweep.schedule.must_yield(str(stage), CAPACITY)
    sweep.schedule.affordable = lambda work, beside: work not in beside and len(beside) < 1
    assert sweep.schedule.must_yield(str(stage), CAPACITY)
    assert sweep.schedule.decide({"CPU": 9.0}) == "wait"
    for work in list(sweep.schedule.running.values()):
        sweep.end(work)
    sweep.schedule.affordable = lambda work, beside: False
    assert sweep.schedule.decide(CAPACITY) == "finished"


def test_what_others_sample_is_not_waited_for_beyond_the_limit() -> None:
    sweep = Sweep(slices=2, elsewhere=2)
    for unit in sweep.units:
        sweep.schedule.trained.add(unit.id)
    assert sweep.schedule.decide(CAPACITY) == "wait"
    sweep.schedule.affordable = lambda work, beside: False
    assert sweep.schedule.decide(CAPACITY) == "finished"


def test_an_evaluator_makes_room_for_a_trial_that_waits() -> None:
    sweep = Sweep(slices=9)
    sweep.schedule.trained |= {unit.id for unit in sweep.units}
    one, other = sweep.start()
    assert not sweep.schedule.must_yield(str(one), CAPACITY)
    _, second = units_of(sweep.units, "trust_region")
    sweep.schedule.trained.discard(second.id)
    assert sweep.schedule.must_yield(str(one), CAPACITY)
    sweep.end(one)
    assert not sweep.schedule.must_yield(str(other), CAPACITY)
    assert sweep.start() == [TrainUnit(second)]
    assert not sweep.schedule.must_yield(str(TrainUnit(second)), CAPACITY)


def test_evaluators_make_room_on_one_node_for_a_trial_on_several_gpus() -> None:
    """Two nodes of two GPUs, with an evaluator on each: two GPUs are free, but not side by side."""
    sweep, capacity = Sweep(slices=9), {"CPU": 8.0, "GPU": 4.0}
    _, second = units_of(sweep.units, "trust_region")
    sweep.schedule.trained |= {unit.id for unit in sweep.units if unit is not second}
    sweep.schedule.needs = lambda work: {
        "CPU": 1.0,
        "GPU": 2.0 if isinstance(work, TrainUnit) else 1.0,
    }
    nodes = [{"CPU": 3.0, "GPU": 1.0}, {"CPU": 3.0, "GPU": 1.0}]
    sweep.schedule.has_place = lambda work: places([sweep.schedule.needs(work)], nodes)
    for number in (1, 2):
        sweep.schedule.start(str(number), Evaluating(number))
    assert sweep.schedule.decide(capacity) == "wait"
    assert sweep.schedule.must_yield("1", capacity)
    sweep.schedule.end("1", good=True)
    nodes[0]["GPU"] = 2.0
    assert not sweep.schedule.must_yield("2", capacity)
    assert sweep.schedule.decide(capacity) == TrainUnit(second)
    sweep.schedule.end("2", good=True)
    nodes[0]["GPU"] = 1.0  # a process that ended, and that Tune keeps for what comes next
    assert sweep.schedule.decide(capacity) == TrainUnit(second)


@pytest.mark.parametrize(
    ("bundles", "fits"),
    [
        ([2.0], True),
        ([1.0, 2.0], True),
        ([1.0, 1.0, 1.0], True),
        ([3.0], False),
        ([2.0, 2.0], False),
        ([0.5, 2.0, 0.5], True),
    ],
)
def test_bundles_are_placed_whole(bundles: list[float], fits: bool) -> None:
    nodes = [{"CPU": 4.0, "GPU": 1.0}, {"CPU": 4.0}, {"CPU": 4.0, "GPU": 2.0}]
    assert places([{"CPU": 1.0, "GPU": gpus} for gpus in bundles], nodes) is fits
    assert nodes[2] == {"CPU": 4.0, "GPU": 2.0}


def test_evaluators_that_die_before_they_sample_are_given_up() -> None:
    sweep = Sweep(slices=9)
    sweep.schedule.trained |= {unit.id for unit in sweep.units}
    for _ in range(FRUITLESS):
        begun = sweep.start()
        assert begun
        for work in begun:
            sweep.end(work, good=False)
        if sweep.schedule.fruitless >= FRUITLESS:
            break
    assert sweep.schedule.decide(CAPACITY) == "finished"
    recovered = Sweep(slices=9)
    recovered.schedule.trained |= {unit.id for unit in recovered.units}
    for number in range(1, 10):
        work = Evaluating(number)
        recovered.schedule.start(str(work), work)
        recovered.schedule.sampled()
        recovered.end(work, good=False)
    assert isinstance(recovered.schedule.decide(CAPACITY), Evaluating)


def test_what_is_given_back_is_begun_again() -> None:
    sweep = Sweep()
    first, *_ = sweep.start()
    sweep.schedule.give_back(str(first))
    assert sweep.schedule.decide(CAPACITY) == first
    assert not sweep.schedule.failed
