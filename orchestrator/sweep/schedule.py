"""Decides what runs next: units whose needs are met, then evaluators, then the next family's units.

The schedule first trains a family that has begun to its end. Then it starts evaluators, and begins
the next family only when no samples are wanted. Families are therefore decided one after the other,
the first one early, and the disk holds checkpoints of few families at once. A GPU stays idle only
while the next unit of a begun family waits for more room than is free.

`tuner` asks for these decisions. An evaluator chooses its slice itself
(`selection.pending_slices.preference`).

Uses no clock, no Ray and no run directory: the simulated cluster of the benchmarks runs the same
decisions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from orchestrator.experiment.units import Unit, families

FRUITLESS = 3  # evaluators in a row that die before they have sampled anything
Resources = Mapping[str, float]  # CPU, GPU → how many


@dataclass(frozen=True)
class TrainUnit:
    """A unit to be trained."""

    unit: Unit


@dataclass(frozen=True)
class Evaluating:
    """An evaluator, by its number in this sweep."""

    number: int


class SlicesLeft(NamedTuple):
    """Number of wanted slices, claimed ones included, and of them the ones of other sweeps."""

    wanted: int
    elsewhere: int


Work = TrainUnit | Evaluating
Decision = Work | Literal["wait", "finished"]


@dataclass
class Schedule:
    """The decisions of one sweep.

    - `needs(work)` gives the CPUs and GPUs of work.
    - `slices_left()` counts the slices still to be sampled.
    - `trained` holds the ids of units that need no more training.
    - `affordable(work, beside)` says whether work may do its next piece beside other work.
    - `has_place(work)` says whether single nodes have room for it now: four free GPUs on four nodes
      are no place for a trial that wants four GPUs of one node.
    - `at_goal(unit)` says whether a unit has trained as far as its search lets it by now.
    - `confirming` units become known as families are settled. They begin after all others.
    """

    units: Sequence[Unit]
    trained: set[str]
    needs: Callable[[Work], Resources]
    slices_left: Callable[[], SlicesLeft]
    affordable: Callable[[Work, Sequence[Work]], bool] = lambda work, beside: True
    has_place: Callable[[Work], bool] = lambda work: True
    at_goal: Callable[[Unit], bool] = lambda unit: False
    confirming: Sequence[Unit] = ()
    running: dict[str, Work] = field(default_factory=dict)  # by Tune's name for it
    failed: set[str] = field(default_factory=set)
    evaluators: int = 0  # started so far
    fruitless: int = 0

    def __post_init__(self) -> None:
        self.units = in_order(self.units)

    def decide(self, capacity: Resources) -> Decision:
        """Choose the work to start now on a cluster of this capacity."""
        decision = self._next(capacity)
        # Waiting for samples of other sweeps is useful only if this sweep can afford work
        # afterwards.
        begun = Evaluating(0) if decision == "wait" and not self.running else decision
        if begun == "wait" or begun == "finished":
            return decision
        if self.affordable(begun, list(self.running.values())):
            return decision
        return "wait" if self.running else "finished"

    def _next(self, capacity: Resources) -> Decision:
        free = self._free(capacity)
        begun = self._of_begun_families(self._ready(self.units))
        for unit in begun:
            if self._has_room(TrainUnit(unit), free):
                return TrainUnit(unit)
        if begun:
            return "wait"
        evaluating = self._evaluating()
        left = self.slices_left() if self.fruitless < FRUITLESS else SlicesLeft(0, 0)
        if left.wanted - left.elsewhere > evaluating and _fits(self.needs(Evaluating(0)), free):
            return Evaluating(self.evaluators + 1)
        # `slices_left` has just looked at the run directories, and found rungs and confirming units.
        ready = self._ready([*self.units, *self.confirming])
        for unit in ready:
            if self._has_room(TrainUnit(unit), free):
                return TrainUnit(unit)
        return "wait" if self.running or ready or left.wanted else "finished"

    def start(self, name: str, work: Work) -> None:
        """Note that `work` has begun under `name`."""
        self.running[name] = work
        if isinstance(work, Evaluating):
            self.evaluators = max(self.evaluators, work.number)

    def end(self, name: str, good: bool) -> None:
        """Note that work has ended, and whether it is `good`: a trained unit, or no error."""
        work = self.running.pop(name)
        if isinstance(work, TrainUnit):
            (self.trained if good else self.failed).add(work.unit.id)
        elif not good:
            self.fruitless += 1

    def give_back(self, name: str) -> None:
        """Let the work wait again: its node could not do it, or its search holds it."""
        del self.running[name]

    def sampled(self) -> None:
        """Note that an evaluator has sampled a slice."""
        self.fruitless = 0

    def must_yield(self, name: str, capacity: Resources) -> bool:
        """Whether work should end at this commit.

            Work that the budget refuses must end, and so must a unit at its goal, and an evaluator while a
        unit waits for its room.
        """
        work = self.running.get(name)
        if work is None:
            return False
        others = [other for other in self.running.values() if other is not work]
        if not self.affordable(work, others):
            return True
        if isinstance(work, TrainUnit):
            return self.at_goal(work.unit)
        free = self._free(capacity)
        waiting = self._of_begun_families(self._ready(self.units))
        return bool(waiting) and not self._has_room(TrainUnit(waiting[0]), free)

    def _in_training(self) -> set[str]:
        return {work.unit.id for work in self.running.values() if isinstance(work, TrainUnit)}

    def _ready(self, units: Iterable[Unit]) -> list[Unit]:
        """The units that can be trained now, in their order."""
        out = self.trained | self.failed | self._in_training()
        ready: list[Unit] = []
        for unit in units:
            free = unit.id not in out and self.trained.issuperset(unit.depends_on)
            if free and not self.at_goal(unit):
                ready.append(unit)
        return ready

    def _of_begun_families(self, ready: list[Unit]) -> list[Unit]:
        """Ready supervised stages, and ready units of families with a unit trained or in training."""
        ids = self.trained | self._in_training()
        begun = {(unit.setup, unit.method) for unit in self.units if unit.id in ids}
        return [unit for unit in ready if unit.is_supervised or (unit.setup, unit.method) in begun]

    def _has_room(self, work: Work, free: Resources) -> bool:
        """Whether work can begin: by total counts, and while evaluators run also on single nodes.

        Without running evaluators nothing frees room. Tune keeps an ended process and its place for
        a while, and releases it only once new work is queued.
        """
        return _fits(self.needs(work), free) and (not self._evaluating() or self.has_place(work))

    def _evaluating(self) -> int:
        return sum(isinstance(work, Evaluating) for work in self.running.values())

    def _free(self, capacity: Resources) -> Resources:
        free = dict(capacity)
        for work in self.running.values():
            for kind, amount in self.needs(work).items():
                free[kind] = free.get(kind, 0.0) - amount
        return free


def in_order(units: Iterable[Unit]) -> list[Unit]:
    """Order supervised stages first, then families from the fewest steps to the most.

    Trials wait for their supervised stages. Small families are decided soon, and with them the
    baseline of all comparisons. The largest family comes last because it has work for many GPUs
    until its end. In the reverse order most GPUs of a large cluster would wait for a last family of
    one trial (seen in `benchmarks/cluster.py`).
    """
    units = list(units)
    ordered = [unit for unit in units if unit.is_supervised]
    by_steps: list[tuple[int, list[Unit]]] = []
    for family in families(units):
        trials = list(itertools.chain.from_iterable(family))
        by_steps.append((sum(unit.steps for unit in trials), trials))
    for _, trials in sorted(by_steps, key=lambda pair: pair[0]):
        ordered += [unit for unit in trials if unit.trains]
    return ordered


def places(bundles: Iterable[Resources], nodes: Iterable[Resources]) -> bool:
    """Whether each bundle fits on one node, given the free resources of the `nodes`."""
    free = [dict(node) for node in nodes]
    # The largest first, or small bundles could take the only node that has room for it.
    for bundle in sorted(bundles, key=lambda bundle: bundle.get("GPU", 0.0), reverse=True):
        for node in free:
            if _fits(bundle, node):
                for kind, amount in bundle.items():
                    node[kind] = node.get(kind, 0.0) - amount
                break
        else:
            return False
    return True


def _fits(needs: Resources, free: Resources) -> bool:
    # Shares of a GPU, such as a third, do not sum to 1 exactly.
    return all(free.get(kind, 0.0) >= amount - 1e-9 for kind, amount in needs.items())
