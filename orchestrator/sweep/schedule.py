"""Decides what runs next: units whose needs are met, then evaluators, then the next family's units.

A family that has begun is trained to its end before anything else. Then what is there is evaluated, and only where no
samples are wanted does the next family begin: so families are decided one after the other, the first of them early,
and the checkpoints of few families lie on the disk at once. A GPU stays without work only where a unit that
has begun its turn waits for more room than is free.

`tuner` asks for these decisions. Which slice an evaluator takes is its own (`selection.pending_slices.preference`).

No clock, no Ray and no run directory in here: the simulated cluster of the benchmarks runs the same decisions.
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
    """How many slices are wanted, those at work included, and how many of them evaluators of other sweeps work on."""

    wanted: int
    elsewhere: int


Work = TrainUnit | Evaluating
Decision = Work | Literal["wait", "finished"]


@dataclass
class Schedule:
    """The decisions of one sweep.

    `needs(work)` is what it takes, CPU and GPU; `slices_left()` looks at what is still to be sampled.
    `trained` are the ids of units that need no training any more. `affordable(work, beside)` says whether work may do
    its next piece beside other work. `has_place(work)` says whether single nodes have now what it needs of them: four
    GPUs that are free one by one on four nodes are no place for a trial on four.
    """

    units: Sequence[Unit]
    trained: set[str]
    needs: Callable[[Work], Resources]
    slices_left: Callable[[], SlicesLeft]
    affordable: Callable[[Work, Sequence[Work]], bool] = lambda work, beside: True
    has_place: Callable[[Work], bool] = lambda work: True
    running: dict[str, Work] = field(default_factory=dict)  # by Tune's name for it
    failed: set[str] = field(default_factory=set)
    evaluators: int = 0  # started so far
    fruitless: int = 0

    def __post_init__(self) -> None:
        self.units = in_order(self.units)

    def decide(self, capacity: Resources) -> Decision:
        """Choose the work to start now on a cluster of this capacity."""
        decision = self._next(capacity)
        # What others sample is waited for only by those who could still do something with it.
        begun = Evaluating(0) if decision == "wait" and not self.running else decision
        if isinstance(begun, TrainUnit | Evaluating) and not self.affordable(begun, list(self.running.values())):
            return "wait" if self.running else "finished"
        return decision

    def _next(self, capacity: Resources) -> Decision:
        free = self._free(capacity)
        ready = self._ready()
        begun = self._of_begun_families(ready)
        for unit in begun:
            if self._has_room(TrainUnit(unit), free):
                return TrainUnit(unit)
        if begun:
            return "wait"
        evaluating = self._evaluating()
        left = self.slices_left() if self.fruitless < FRUITLESS else SlicesLeft(0, 0)
        if left.wanted - left.elsewhere > evaluating and _fits(self.needs(Evaluating(0)), free):
            return Evaluating(self.evaluators + 1)
        for unit in ready:
            if self._has_room(TrainUnit(unit), free):
                return TrainUnit(unit)
        return "wait" if self.running or ready or left.wanted else "finished"

    def start(self, name: str, work: Work) -> None:
        """`work` was begun."""
        self.running[name] = work
        if isinstance(work, Evaluating):
            self.evaluators = max(self.evaluators, work.number)

    def end(self, name: str, good: bool) -> None:
        """Note that the work under a name has ended: a unit is trained or not, an evaluator ran out of work or not."""
        work = self.running.pop(name)
        if isinstance(work, TrainUnit):
            (self.trained if good else self.failed).add(work.unit.id)
        elif not good:
            self.fruitless += 1

    def give_back(self, name: str) -> None:
        """Let the work under a name wait again, since its node did not do it."""
        del self.running[name]

    def sampled(self) -> None:
        """An evaluator has sampled a slice."""
        self.fruitless = 0

    def must_yield(self, name: str, capacity: Resources) -> bool:
        """Whether work should end at this commit: it may not go on, or is an evaluator while a unit waits for room."""
        work = self.running.get(name)
        if work is None:
            return False
        if not self.affordable(work, [other for other in self.running.values() if other is not work]):
            return True
        if isinstance(work, TrainUnit):
            return False
        free = self._free(capacity)
        waiting = self._of_begun_families(self._ready())
        return any(not self._has_room(TrainUnit(unit), free) for unit in waiting[:1])

    def _ready(self) -> list[Unit]:
        """Units that can be trained now, in their order."""
        busy = {work.unit.id for work in self.running.values() if isinstance(work, TrainUnit)}
        out = self.trained | self.failed | busy
        return [unit for unit in self.units if unit.id not in out and self.trained.issuperset(unit.depends_on)]

    def _of_begun_families(self, ready: list[Unit]) -> list[Unit]:
        """Waiting units of families of which some are trained or in training, and supervised stages."""
        busy = {work.unit.id for work in self.running.values() if isinstance(work, TrainUnit)}
        begun = {(unit.setup, unit.method) for unit in self.units if unit.id in self.trained | busy}
        return [unit for unit in ready if unit.is_supervised or (unit.setup, unit.method) in begun]

    def _has_room(self, work: Work, free: Resources) -> bool:
        """Whether work can begin: by count, and on single nodes as long as evaluators could make room on them.

        Without running evaluators nothing frees space. Tune keeps an idle process for a while, and releases it only
        once new work is queued.
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
    """Supervised stages first, since trials wait for them; then family by family, the one with fewest steps first.

    Small families are decided soon, and with them the baseline that all others are compared with. The largest comes
    last because it has work for many GPUs up to its end: the other way round, most GPUs of a large cluster would wait
    for a last family of one trial (`benchmarks/cluster.py` compares).
    """
    units = list(units)
    ordered = [unit for unit in units if unit.is_supervised]
    trials = [list(itertools.chain.from_iterable(family)) for family in families(units)]
    for family in sorted(trials, key=lambda family: sum(unit.steps for unit in family)):
        ordered += [unit for unit in family if unit.trains]
    return ordered


def places(bundles: Iterable[Resources], nodes: Iterable[Resources]) -> bool:
    """Whether each bundle fits whole on one of the nodes, by what is free on each; the largest is placed first."""
    free = [dict(node) for node in nodes]
    for bundle in sorted(bundles, key=lambda bundle: bundle.get("GPU", 0.0), reverse=True):
        node = next((node for node in free if _fits(bundle, node)), None)
        if node is None:
            return False
        for kind, amount in bundle.items():
            node[kind] = node.get(kind, 0.0) - amount
    return True


def _fits(needs: Resources, free: Resources) -> bool:
    return all(free.get(kind, 0.0) >= amount - 1e-9 for kind, amount in needs.items())
