"""The paper's sweep on a simulated cluster: `python -m benchmarks.cluster [GPUS …]`; part of `make
bench-scale`.

`python -m benchmarks.cluster packed` has the trials and evaluators of the smaller pair alone, one
or two on a GPU: the pace of each is then what a plan makes of its share of memory, bandwidth and
arithmetic.

The decisions are the program's own (`sweep.schedule`, and the evaluators' choice of a slice); only
time is made up. Every unit trains at the pace of the middle estimate for SGLang on H100s, and a
slice takes as long as its responses do on average, each with some spread.
"""

from __future__ import annotations

import heapq
import itertools
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.paper_sweep import PAPER, SUCCESS
from orchestrator.experiment import evaluation_protocol
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import Family, Unit, checkpoint_steps, expand, families
from orchestrator.planning.plan import make_plan
from orchestrator.planning.seconds import on_the_clock
from orchestrator.planning.view import totals
from orchestrator.selection.pending_slices import preference
from orchestrator.sweep.schedule import Evaluating, Schedule, SlicesLeft, TrainUnit
from tests.race_world import WORLDS, Suite, race_of

# Hours on one GPU. Training: 989 in all, the middle estimate's rollouts, scoring, learning and the
# rest, for 86 trials and 2 supervised stages of about the same length. Evaluation: 13,440 for the
# 227,441,760 responses of the protocol.
TRAINING_H = 989 / 88
RESPONSE_H = 13_440 / 227_441_760
LOAD_H, OPEN_H = 20 / 3600, 120 / 3600  # to load a checkpoint, to open another setup's models
SPREAD = 0.1  # standard deviation of the logarithm of a duration

Checkpoint = tuple[str, int]


@dataclass(frozen=True)
class Piece:
    """A slice: whose samples, and how many hours they take."""

    unit: Unit
    step: int
    hours: float
    decides: bool

    @property
    def setup(self) -> str:
        return self.unit.setup

    @property
    def checkpoint(self) -> Checkpoint:
        return self.unit.id, self.step


@dataclass
class FamilyRace:
    """Samples that one family wants: its first rung, the next one for checkpoints still in the
    race, then fresh samples.
    """

    members: Family
    rungs: list[
        list[tuple[Unit, int, int]]
    ]  # (unit, step, responses) rung by rung; the first as checkpoints come
    untrained: set[str] = field(default_factory=set)
    open: int = 0  # slices of this rung that are not done
    rung: int = 0


class Sweep:
    """The sweep's work: hours of units and slices, drawn once.

    `slower` is by how much training and sampling take longer than the middle estimate.
    """

    def __init__(
        self, budget: str, overrides: Sequence[str] = (), slower: tuple[float, float] = (1.0, 1.0)
    ):
        experiment = load_experiment(PAPER, [f"evaluation.budget={budget}", *overrides])
        self.experiment, self.units = experiment, expand(experiment)
        self.rng = np.random.default_rng(0)
        training, self.sampling = slower
        self.most = experiment.runtime.slice_responses
        spread = self.rng.lognormal(0, SPREAD, len(self.units))
        setups = experiment.setups
        self.hours = {
            unit.id: training * TRAINING_H * unit.steps / setups[unit.setup].training.steps * each
            for unit, each in zip(self.units, spread, strict=True)
        }
        self.races = [
            self._race(family, number) for number, family in enumerate(families(self.units))
        ]

    def _race(self, family: Family, seed: int) -> FamilyRace:
        first, setup = family[0][0], self.experiment.setups[family[0][0].setup]
        benchmarks, evaluation = setup.evaluation.benchmarks, setup.evaluation
        problems = {key: evaluation_protocol.problems_wanted(evaluation, key) for key in benchmarks}
        sizes = [
            sum(problems[key] * n for key, n in rung.items())
            for rung in evaluation_protocol.rungs(evaluation)
        ]
        steps = [0] if first.is_untrained else checkpoint_steps(first, setup)
        everyone = [(unit, step) for setting in family for unit in setting for step in steps]
        alive = [len(everyone)] * len(sizes)
        if len(sizes) > 1 and not first.is_untrained:
            suites = tuple(
                Suite(problems[key], run.n, SUCCESS[key]) for key, run in benchmarks.items()
            )
            alive = list(race_of(seed, suites, WORLDS["middle"], len(family), len(steps)).alive)
        if first.is_untrained:
            sizes, alive = sizes[-1:], [1]
        rungs, before = [], 0
        for size, count in zip(sizes, alive, strict=True):
            rungs.append([(unit, step, size - before) for unit, step in everyone[:count]])
            before = size
        rungs.append([(*everyone[0], sizes[-1])])  # fresh samples of the selected checkpoint
        return FamilyRace(
            family, rungs, {unit.id for setting in family for unit in setting if unit.trains}
        )

    def pieces(self, unit: Unit, step: int, responses: int, decides: bool) -> list[Piece]:
        """The slices of some samples of a checkpoint."""
        count = -(-responses // self.most)
        spread = self.rng.lognormal(0, SPREAD, count)
        return [
            Piece(unit, step, responses / count * self.sampling * RESPONSE_H * each, decides)
            for each in spread
        ]

    @property
    def longest_chain(self) -> float:
        """Hours of the longest training, with the supervised stage that it waits for."""
        return max(
            self.hours[unit.id] + sum(self.hours[each] for each in unit.depends_on)
            for unit in self.units
        )


@dataclass
class Outcome:
    """Hours, and how busy the GPUs were: in all, and until only one family was left.

    `first_family` is when the first family of trials was decided, `checkpoints` the most that were
    there at once.
    """

    makespan: float
    busy: float
    until_last: float
    bound: float
    first_family: float
    checkpoints: int

    @property
    def over_bound(self) -> float:
        return self.makespan / self.bound


class Simulation:
    """One run of the program's schedule."""

    def __init__(self, sweep: Sweep, gpus: int):
        self.sweep, self.gpus, self.now = sweep, gpus, 0.0
        trained = {unit.id for unit in sweep.units if not unit.trains}
        self.schedule = Schedule(sweep.units, trained, lambda _: {"GPU": 1}, self._slices)
        self.waiting: dict[Checkpoint, deque[Piece]] = {}
        self.at_work = 0
        self.events: list[tuple[float, int, str, tuple]] = []
        self.order = itertools.count()
        self.race_of = {
            unit.id: race for race in sweep.races for setting in race.members for unit in setting
        }
        self.families_left = len(sweep.races)
        self.work = 0.0
        self.spans: list[tuple[float, float]] = []  # of every GPU that was busy
        self.first_family = self.last_family = 0.0  # when one was decided, and when one was left
        self.checkpoints = self.most_checkpoints = 0
        self.began: dict[str, float] = {}
        self.loaded: dict[str, tuple[Checkpoint | None, str | None]] = {}

    def run(self) -> Outcome:
        for race in self.sweep.races:
            if race.members[0][0].is_untrained:
                self._open_rung(race)
        self._start()
        while self.events:
            self.now, _, kind, what = heapq.heappop(self.events)
            getattr(self, f"_{kind}")(*what)
            self._start()
        bound = on_the_clock(self.work, [self.sweep.longest_chain], self.gpus)
        until = sum(
            min(end, self.last_family) - start
            for start, end in self.spans
            if start < self.last_family
        )
        busy = self.work / (self.gpus * self.now)
        until_last = until / (self.gpus * self.last_family)
        return Outcome(self.now, busy, until_last, bound, self.first_family, self.most_checkpoints)

    def _slices(self) -> SlicesLeft:
        return SlicesLeft(sum(map(len, self.waiting.values())) + self.at_work, elsewhere=0)

    def _at(self, hours: float, kind: str, *what: object) -> None:
        heapq.heappush(self.events, (self.now + hours, next(self.order), kind, what))

    def _start(self) -> None:
        while isinstance(work := self.schedule.decide({"GPU": self.gpus}), TrainUnit | Evaluating):
            name = f"{next(self.order)}"
            self.schedule.start(name, work)
            self.began[name] = self.now
            if isinstance(work, TrainUnit):
                self._train(name, work.unit)
            else:
                self.loaded[name] = (None, None)
                self._sample(name)

    def _train(self, name: str, unit: Unit) -> None:
        hours, steps = (
            self.sweep.hours[unit.id],
            checkpoint_steps(unit, self.sweep.experiment.setups[unit.setup]),
        )
        if unit.is_trial:
            for step in steps:
                self._at(hours * step / unit.steps, "committed", unit, step)
        self._at(hours, "trained", name, unit)

    def _committed(self, unit: Unit, step: int) -> None:
        self.checkpoints += 1
        self.most_checkpoints = max(self.most_checkpoints, self.checkpoints)
        race = self.race_of[unit.id]
        responses = next(
            count for each, at, count in race.rungs[0] if (each.id, at) == (unit.id, step)
        )
        self._add(race, self.sweep.pieces(unit, step, responses, decides=False))

    def _trained(self, name: str, unit: Unit) -> None:
        self._ended(name)
        race = self.race_of.get(unit.id)
        if race is not None:
            race.untrained.discard(unit.id)
            self._next_rung(race)

    def _sample(self, name: str) -> None:
        """An evaluator takes the slice it prefers, or ends."""
        if not self.waiting:
            self._ended(name)
            return
        checkpoint, setup = self.loaded[name]
        heads = (pieces[0] for pieces in self.waiting.values())
        piece = min(heads, key=lambda each: preference(each, checkpoint, setup))
        self.waiting[piece.checkpoint].popleft()
        if not self.waiting[piece.checkpoint]:
            del self.waiting[piece.checkpoint]
        self.at_work += 1
        hours = (
            piece.hours
            + (piece.checkpoint != checkpoint) * LOAD_H
            + (piece.setup != setup) * OPEN_H
        )
        self.loaded[name] = piece.checkpoint, piece.unit.setup
        self._at(hours, "sampled", name, piece)

    def _sampled(self, name: str, piece: Piece) -> None:
        self.at_work -= 1
        race = self.race_of[piece.unit.id]
        race.open -= 1
        self._next_rung(race)
        if self.schedule.must_yield(name, {"GPU": self.gpus}):
            self._ended(name)
        else:
            self._sample(name)

    def _next_rung(self, race: FamilyRace) -> None:
        if race.open or race.untrained or race.rung >= len(race.rungs):
            return
        race.rung += 1
        if race.rung == len(race.rungs):
            self.families_left -= 1
            if not race.members[0][0].is_untrained:
                self.first_family = self.first_family or self.now
                self.checkpoints -= len(race.rungs[0]) - len(
                    race.members
                )  # the best of each setting stays
            if self.families_left == 1:
                self.last_family = self.now
        else:
            self._open_rung(race)

    def _open_rung(self, race: FamilyRace) -> None:
        for unit, step, responses in race.rungs[race.rung]:
            self._add(race, self.sweep.pieces(unit, step, responses, decides=True))

    def _add(self, race: FamilyRace, pieces: list[Piece]) -> None:
        race.open += len(pieces)
        for piece in pieces:
            self.waiting.setdefault(piece.checkpoint, deque()).append(piece)

    def _ended(self, name: str) -> None:
        self.schedule.end(name, good=True)
        self.work += self.now - self.began[name]
        self.spans.append((self.began.pop(name), self.now))


def numbers() -> dict[str, float]:
    """For `bench-scale.json`: utilisation of so many GPUs, and makespan over its lower bound."""
    found: dict[str, float] = {}
    for gpus in (8, 64):
        outcome = Simulation(Sweep("adaptive"), gpus).run()
        found |= {f"utilisation_{gpus}": outcome.busy, f"makespan_{gpus}": outcome.over_bound}
    return found


def packed() -> None:
    """Print a line for each number of trials on a GPU, on 8 GPUs."""
    hours = {}
    for together in (1, 2):
        only = ["setups=[qwen3-0.6b]", "engine.sampler=sglang"]
        planned = totals(
            make_plan(load_experiment(PAPER, [*only, f"runtime.placement.gpus={1 / together}"]))
        )
        phases = {phase: seconds["mid"] for phase, seconds in planned["gpu_hours"].items()}
        evaluating = phases.pop("evaluate") + phases.pop("rescore")
        hours[together] = sum(phases.values()) * together, evaluating * together
        training, sampling = (
            here / alone for here, alone in zip(hours[together], hours[1], strict=True)
        )
        found = Simulation(Sweep("adaptive", only, (training, sampling)), 8 * together).run()
        print(
            f"{together} on each of 8 GPUs: training × {training:.2f}, sampling × {sampling:.2f} on the clock; "
            f"{found.makespan:.0f} h, ÷ bound {found.over_bound:.3f}, busy {found.busy:.1%}"
        )


def main() -> None:
    """Print a line for each cluster and budget."""
    if sys.argv[1:] == ["packed"]:
        packed()
        return
    for gpus in map(int, sys.argv[1:] or ["8", "64"]):
        for budget in ("adaptive", "full"):
            found = Simulation(Sweep(budget), gpus).run()
            print(
                f"{gpus:3} GPUs, {budget:8}: {found.makespan:7.0f} h, ÷ bound {found.over_bound:.3f}, "
                f"busy {found.busy:.1%}, until the last family {found.until_last:.1%}; "
                f"first family decided after {found.first_family:.0f} h, {found.checkpoints} checkpoints at most"
            )


if __name__ == "__main__":
    main()
