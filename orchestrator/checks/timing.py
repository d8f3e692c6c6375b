"""Times pieces of the plan's work in the engines of a sweep, for `trb calibrate`.

Each phase runs in a process of its own and writes a row as soon as it has one. It begins with
little work, and increases the work until two more pieces of the same size fill its time: their
difference is the spread. Its time begins once its engine is up and has done a first piece, since an
engine may load and compile for minutes.

Contexts have the mean length that a plan expects. Here they are prompts of made-up ids, since
decoding them would take all of the time. The time of reading them is subtracted, so the seconds of
a row cover only the tokens in between.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from orchestrator.checks.bench import Bench
from orchestrator.checks.check import Found
from orchestrator.checks.measures import requests, rollouts, seconds_of
from orchestrator.engines.budget import Situation
from orchestrator.engines.catalog import ENGINES, open_engine, sampler_of
from orchestrator.engines.interface import Engine, Job, Limits, Sampler
from orchestrator.engines.memory import GIB, sequences_per_step
from orchestrator.planning.calibrated import (
    SHORTEST_S,
    CalibrationRow,
    Card,
    read_calibrations,
    shapes_of,
    write_rows,
)
from orchestrator.planning.costs import BLENDED, PASSING, PLAIN, SetupCosts
from orchestrator.planning.rates import RATES
from orchestrator.policy.spec import Behavior, Objective, Student, Tempered
from orchestrator.records.log import EVALUATE, LEARN, SCORE
from orchestrator.rollouts import Rollouts, TeacherScores
from orchestrator.workers.canary import canary_ids
from orchestrator.workers.members import support_size

# Of each response: their time contains all earlier work, above all reading the prompts.
FIRST_TOKENS = 8
FIRST_SIZES = {"tokens": 32, "responses": 8}
GROWTH = 4
TWICE = 2.2  # times the seconds of a measurement, to do it twice
OF_DECODING = 0.75  # share of its time; the rest is for the change of weights
CHANGES = 3
PREFIX_TOKENS = 2**17  # of all prompts, for an engine that reads them in one pass


SITUATIONS: dict[str, Situation] = {
    PLAIN: "decoding",
    BLENDED: "blending",
    EVALUATE: "evaluating",
}


@dataclass(frozen=True)
class Measuring:
    """Plain data for the process of one phase, which may measure for `seconds`.

    The planned `costs` give the length of contexts and the number of responses that fit.
    `behaviors` are the ones that ask the teacher, one for each method. Rows of the `card` go to the
    file `path`.
    """

    bench: Bench
    costs: SetupCosts
    behaviors: tuple[Behavior, ...]
    card: Card
    path: Path
    day: str
    seconds: float = 0.0

    @property
    def job(self) -> Job:
        """The job for which a trial opens its engines."""
        return replace(self.bench.job(), takes_turns=self.bench.runtime.placement.takes_turns)


def card(_: None) -> Found:
    """Name and memory of the GPU that a trial would use. Never run on a GPU."""
    if not torch.cuda.is_available():
        return Found("fail", "no GPU is visible here")
    gpu = torch.cuda.get_device_properties(0)
    return Found("ok", gpu.name, numbers={"gib": gpu.total_memory / GIB})


# --- decoding ---


def decoding(asked: Measuring) -> Found:
    """Time the student alone, as in a trial's steps, then the passing of weights to it."""
    engines, notes = asked.bench.setup.engine, Notes(asked)
    engine = open_engine(engines.sampler, asked.job)
    sampler = engine.sampler()
    sampler.start(teacher=False)
    _sample(notes, sampler, PLAIN, Student(), OF_DECODING * asked.seconds)
    if engines.trainer != engines.sampler:  # else both roles share the engine's models
        engine = open_engine(engines.trainer, asked.job)
    _change_weights(notes, sampler, engine)
    return notes.found()


def blending(asked: Measuring) -> Found:
    """Time student and teacher, as in the steps of each method that blends."""
    notes = Notes(asked)
    name = sampler_of(asked.bench.setup.engine.sampler, teacher_decodes=True)
    sampler = open_engine(name, asked.job).sampler()
    sampler.start(teacher=True)
    for behavior in asked.behaviors:
        _sample(notes, sampler, BLENDED, behavior, asked.seconds / len(asked.behaviors))
    return notes.found()


def evaluating(asked: Measuring) -> Found:
    """Time the student in an evaluator, with as many responses as its own GPU holds."""
    setup, notes = asked.bench.setup, Notes(asked)
    job = Job(setup, asked.job.runtime, asked.job.initial, trains=False)
    sampler = open_engine(setup.engine.sampler, job).sampler()
    sampler.start(teacher=False)
    temperature = setup.evaluation.temperature
    behavior = Student() if temperature == 1 else Tempered(temperature)
    _sample(notes, sampler, EVALUATE, behavior, asked.seconds)
    return notes.found()


def _sample(notes: Notes, sampler: Sampler, key: str, behavior: Behavior, seconds: float) -> None:
    """Write rows of a started sampler for more and more tokens after contexts of the planned length."""
    asked = notes.asked
    setup, costs = asked.bench.setup, asked.costs
    lengths, together = costs.training_lengths("mid"), sequences_per_step(setup.training)
    support = support_size(setup)
    if key == EVALUATE:
        lengths = costs.evaluation_lengths(next(iter(setup.evaluation.benchmarks)), "mid")
        together, support = asked.bench.runtime.slice_responses, 0
    rows = min(costs.rows(lengths, SITUATIONS[key]), together)
    context = setup.training.max_prompt_tokens + lengths.limit
    prompt = max(1, min(round(lengths.context), context // 2))
    if not RATES[setup.engine.sampler].continuous:
        prompt = min(prompt, max(1, PREFIX_TOKENS // rows))
    first = min(FIRST_TOKENS, max(1, lengths.limit // 4))
    most = max(1, min(lengths.limit, context - prompt) - first)
    asked_for = requests(setup, [prompt] * rows)

    def sampled(tokens: int) -> tuple[float, int]:
        count = 0
        began = time.monotonic()
        for part in sampler.sample(asked_for, behavior, Limits(tokens, support)):
            count += int(part.lengths_B.sum())
        return time.monotonic() - began, count

    sampled(first)  # compiles, captures graphs, fills caches
    notes.ready()
    deadline = time.monotonic() + seconds
    before, tokens_before = sampled(first)
    for size in sizes(min(FIRST_SIZES["tokens"], most), most, deadline):
        taken, tokens = sampled(first + size)
        if taken <= before:  # another program took time while the prompts were read
            before = min(before, sampled(first)[0])
        if taken > before and tokens > tokens_before:
            between = (tokens - tokens_before) / rows
            work = {"responses": rows, "prompt": prompt + first, "tokens": between}
            about = {"behavior": str(behavior)}
            notes.add(key, taken - before, about, **work, whole=size == most)


def _change_weights(notes: Notes, sampler: Sampler, engine: Engine) -> None:
    """Time weights from learner to sampler.

    If roles take turns, also time the learner's state to the GPU and back.
    """
    trainer = engine.trainer()
    setup = notes.asked.bench.setup
    # The first update creates the optimizer's moments, which are moved with the weights.
    trainer.step(*_batch(notes.asked, 1), Objective(setup.training.objective), 0)
    ids = canary_ids(setup)
    for step in range(CHANGES + 1):
        parts: dict[str, Any] = {}
        if notes.asked.job.takes_turns:
            parts["offload"] = seconds_of(lambda: trainer.log_probs(ids))
        began = time.perf_counter()
        weights = trainer.publish(step)
        parts["publish"] = time.perf_counter() - began
        parts["load"] = seconds_of(lambda: sampler.load(weights))  # noqa: B023 (called at once)
        if step:  # the first sets up buffers
            notes.add(PASSING, sum(parts.values()), parts)


# --- scoring and learning ---


def scoring(asked: Measuring) -> Found:
    """Time the teacher on responses of the lengths that a plan expects."""
    engine = open_engine(asked.bench.setup.engine.trainer, replace(asked.job, takes_turns=False))
    scorer = engine.scorer()
    scorer.start()
    return _batches(asked, SCORE, lambda finished, _, step: scorer.score(finished))


def learning(asked: Measuring) -> Found:
    """Time updates of the student on responses of the planned lengths, its state on the GPU."""
    setup = asked.bench.setup
    trainer = open_engine(setup.engine.trainer, replace(asked.job, takes_turns=False)).trainer()
    goal = Objective(setup.training.objective)
    return _batches(
        asked, LEARN, lambda finished, scores, step: trainer.step(finished, scores, goal, step)
    )


def _batches(
    asked: Measuring, key: str, work: Callable[[Rollouts, TeacherScores, int], object]
) -> Found:
    """Write rows for `work` on more and more responses, up to as many as a training step has."""
    notes = Notes(asked)
    most = sequences_per_step(asked.bench.setup.training)
    first = min(FIRST_SIZES["responses"], most)
    work(*_batch(asked, first), 0)  # sets up buffers and kernels for the later calls
    notes.ready()
    deadline = time.monotonic() + asked.seconds
    for step, size in enumerate(sizes(first, most, deadline), 1):
        finished, scores = _batch(asked, size)
        seconds = seconds_of(lambda: work(finished, scores, step))  # noqa: B023 (called at once)
        prompt = len(finished.requests[0].prompt_ids)
        tokens = float(finished.lengths_B.float().mean())
        row = {"responses": size, "prompt": prompt, "tokens": tokens}
        notes.add(key, seconds, {}, **row, whole=size == most)
    return notes.found()


def _batch(asked: Measuring, responses: int) -> tuple[Rollouts, TeacherScores]:
    """Made-up rollouts of the lengths that a plan expects."""
    lengths = asked.costs.training_lengths("mid")
    prompt = max(1, round(lengths.prompt))
    return rollouts(asked.bench.setup, prompt, lengths.spread(responses))


def sizes(first: int, most: int, deadline: float) -> Iterator[int]:
    """Yield sizes of work, each done before the next is chosen.

    They grow to a size that fits twice into the time left, and end with that size again.
    """
    size = first
    again = False
    while True:
        began = time.monotonic()
        yield size
        now = time.monotonic()
        taken, left = now - began, deadline - now
        larger = min(GROWTH * size, most, int(size * left / (TWICE * taken)))
        if not again and larger > size:
            size = larger
        elif not again and left > taken:
            again = True
        else:
            return


# --- rows ---


class Notes:
    """The rows of one process, each written to the card's file as soon as it is measured."""

    def __init__(self, asked: Measuring):
        self.asked = asked
        self._rows: list[CalibrationRow] = []
        self._began = time.monotonic()
        self._start_s = 0.0

    def ready(self) -> None:
        """The phase's engine is up, and its measurements begin; later calls change nothing."""
        self._start_s = self._start_s or time.monotonic() - self._began

    def add(self, key: str, seconds: float, about: Mapping[str, object], **work: float) -> None:
        """Write a row of this `work`, as in `CalibrationRow`; the first replaces earlier calibrations."""
        engine = self.asked.bench.setup.engine
        packages = {"torch", *ENGINES[engine.sampler].packages, *ENGINES[engine.trainer].packages}
        versions = {package: importlib.metadata.version(package) for package in sorted(packages)}
        row = row_of(self.asked.bench, key, **work)
        row = replace(
            row, seconds=seconds, day=self.asked.day, about={**about, "versions": versions}
        )
        add_row(self.asked.path, self.asked.card, row, self._rows)
        self._rows.append(row)
        print(row, flush=True)

    def found(self) -> Found:
        """Tokens per second of the longest measurement, and its seconds beside the planned ones.

        A warning if no measurement is long enough for a plan.
        """
        rows = [row for row in self._rows if row.key != PASSING]
        if not rows:
            words = "nothing was clocked: all of it took less time than reading the prompts"
            return Found("fail", words)
        longest = max(rows, key=lambda row: row.seconds)
        rate = longest.responses * longest.tokens / longest.seconds
        ratio = longest.seconds / longest.planned_seconds(self.asked.costs)
        words = (
            f"{rate:,.0f} tokens/s over {longest.seconds:.2g} s, {ratio:.2g} × the assumed seconds"
        )
        passing = [row.seconds for row in self._rows if row.key == PASSING]
        if passing:
            span = f"{min(passing):.2g} to {max(passing):.2g} s"
            words += f"; weights and learner's state passed on in {span}"
        numbers = {"tokens_per_s": rate, "measured_to_assumed": ratio, "start_s": self._start_s}
        if any(row.counts for row in rows):
            return Found("ok", words, numbers=numbers)
        words += f"; shorter than {SHORTEST_S:g} s, so that plans do not use it: more --minutes"
        return Found("warn", words, numbers=numbers)


def row_of(bench: Bench, key: str, **work: Any) -> CalibrationRow:
    """A row of the bench's models and engines, for so much work and no seconds yet."""
    engine = bench.setup.engine
    models: dict[str, Any] = {
        "setup": bench.of.name,
        "shapes": shapes_of(bench.setup),
        "random": bool(bench.made),
    }
    engines = {"sampler": engine.sampler, "trainer": engine.trainer}
    return CalibrationRow(**models, **engines, key=key, seconds=0.0, day="", **work)


def add_row(path: Path, card: Card, row: CalibrationRow, before: Sequence[CalibrationRow]) -> None:
    """Add a row to a card's file.

    Earlier rows of its kind stay only if this process wrote them (`before`): a new calibration
    replaces an old one.
    """
    kept: list[CalibrationRow] = []
    for calibration in read_calibrations(path.parent.parent):
        if calibration.card != card:
            continue
        for earlier in calibration.rows:
            if earlier in before or not _same_kind(earlier, row):
                kept.append(earlier)
    write_rows(path, card, [*kept, row])


def _same_kind(one: CalibrationRow, other: CalibrationRow) -> bool:
    """Whether two rows measured the same thing."""
    names = ("key", "sampler", "trainer", "shapes")
    return all(getattr(one, name) == getattr(other, name) for name in names)
