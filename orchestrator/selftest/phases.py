"""The phases of `trb calibrate`: pieces of the plan's work, in the engines of a sweep.

Each function runs in a process of its own (`runner`) and writes a row as soon as it has one. It
begins with little work, and increases the work until two more pieces of the same size fill its
time: their difference is the spread. Its time begins once its engine is up and has done a first
piece, since an engine may load and compile for minutes.

Contexts have the mean length that a plan expects. Here they are prompts of made-up ids, since
decoding them would take all of the time. The time of reading them is subtracted, so the seconds of
a row cover only the tokens in between.
"""

from __future__ import annotations

import importlib.metadata
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from orchestrator.engines.catalog import ENGINES, open_engine, sampler_of
from orchestrator.engines.interface import Engine, Job, Limits, Sampler
from orchestrator.engines.memory import GIB, sequences_per_step
from orchestrator.planning.calibrated import SHORTEST_S, CalibrationRow, shapes_of
from orchestrator.planning.costs import BLENDED, PASSING, PLAIN
from orchestrator.planning.lengths import Lengths
from orchestrator.planning.rates import RATES
from orchestrator.policy.randomness import Purpose, SequenceKey
from orchestrator.policy.spec import Behavior, Objective, Student, Tempered
from orchestrator.records.log import EVALUATE, LEARN, SCORE
from orchestrator.rollouts import Request, Rollouts, TeacherScores
from orchestrator.selftest.measuring import Measuring, add_row
from orchestrator.selftest.runner import Found
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


def card(_: None) -> Found:
    """Name and memory of the GPU that a trial would use. Never run on a GPU."""
    if not torch.cuda.is_available():
        return Found("fail", "no GPU is visible here")
    gpu = torch.cuda.get_device_properties(0)
    return Found("ok", gpu.name, numbers={"gib": gpu.total_memory / GIB})


# --- decoding ---


def decoding(asked: Measuring) -> Found:
    """Time the student alone, as in a trial's steps, then the passing of weights to it."""
    setup, costs, notes = asked.bench.setup, asked.costs, Notes(asked)
    engine = open_engine(setup.engine.sampler, asked.job)
    sampler = engine.sampler()
    sampler.start(teacher=False)
    lengths = costs.training_lengths("mid")
    rows = min(costs.rows(lengths, "decoding"), sequences_per_step(setup.training))
    work = DecodingPhase(asked, notes, PLAIN, sampler, rows, lengths)
    work.measure(Student(), support_size(setup), OF_DECODING * asked.seconds)
    if setup.engine.trainer != setup.engine.sampler:  # else both roles share the engine's models
        engine = open_engine(setup.engine.trainer, asked.job)
    _change_weights(asked, notes, sampler, engine)
    return notes.found()


def blending(asked: Measuring) -> Found:
    """Time student and teacher, as in the steps of each method that blends."""
    setup, costs, notes = asked.bench.setup, asked.costs, Notes(asked)
    name = sampler_of(setup.engine.sampler, teacher_decodes=True)
    sampler = open_engine(name, asked.job).sampler()
    sampler.start(teacher=True)
    lengths = costs.training_lengths("mid")
    rows = min(costs.rows(lengths, "blending"), sequences_per_step(setup.training))
    work = DecodingPhase(asked, notes, BLENDED, sampler, rows, lengths)
    for behavior in asked.behaviors:
        work.measure(behavior, support_size(setup), asked.seconds / len(asked.behaviors))
    return notes.found()


def evaluating(asked: Measuring) -> Found:
    """Time the student in an evaluator, with as many responses as its own GPU holds."""
    setup, costs, notes = asked.bench.setup, asked.costs, Notes(asked)
    job = Job(setup, asked.job.runtime, asked.job.initial, trains=False)
    sampler = open_engine(setup.engine.sampler, job).sampler()
    sampler.start(teacher=False)
    lengths = costs.evaluation_lengths(next(iter(setup.evaluation.benchmarks)), "mid")
    rows = min(costs.rows(lengths, "evaluating"), job.runtime.slice_responses)
    temperature = setup.evaluation.temperature
    work = DecodingPhase(asked, notes, EVALUATE, sampler, rows, lengths)
    work.measure(Student() if temperature == 1 else Tempered(temperature), 0, asked.seconds)
    return notes.found()


@dataclass(frozen=True)
class DecodingPhase:
    """A started sampler and its work: `rows` responses, whose `lengths` a plan expects."""

    asked: Measuring
    notes: Notes
    key: str
    sampler: Sampler
    rows: int
    lengths: Lengths

    def measure(self, behavior: Behavior, support: int, seconds: float) -> None:
        """Write rows for more and more tokens after contexts of the expected length."""
        setup = self.asked.bench.setup
        limit = self.lengths.limit
        context = setup.training.max_prompt_tokens + limit
        prompt = max(1, min(round(self.lengths.context), context // 2))
        if not RATES[setup.engine.sampler].continuous:
            prompt = min(prompt, max(1, PREFIX_TOKENS // self.rows))
        first = min(FIRST_TOKENS, max(1, limit // 4))
        most = max(1, min(limit, context - prompt) - first)
        asked_for = requests(self.asked, [prompt] * self.rows)

        def sampled(tokens: int) -> tuple[float, int]:
            count = 0
            began = time.monotonic()
            for part in self.sampler.sample(asked_for, behavior, Limits(tokens, support)):
                count += int(part.lengths_B.sum())
            return time.monotonic() - began, count

        sampled(first)  # compiles, captures graphs, fills caches
        self.notes.ready()
        deadline = time.monotonic() + seconds
        before, tokens_before = sampled(first)
        for size in sizes(min(FIRST_SIZES["tokens"], most), most, deadline):
            taken, tokens = sampled(first + size)
            if taken <= before:  # another program took time while the prompts were read
                before = min(before, sampled(first)[0])
            if taken > before and tokens > tokens_before:
                between = (tokens - tokens_before) / self.rows
                self.notes.add(
                    self.key,
                    taken - before,
                    self.rows,
                    prompt + first,
                    between,
                    whole=size == most,
                    behavior=str(behavior),
                )


def _change_weights(asked: Measuring, notes: Notes, sampler: Sampler, engine: Engine) -> None:
    """Time weights from learner to sampler.

    If roles take turns, also time the learner's state to the GPU and back.
    """
    trainer = engine.trainer()
    setup = asked.bench.setup
    rollouts, scores = made_up(asked, 1)
    # The first update creates the optimizer's moments, which are moved with the weights.
    trainer.step(rollouts, scores, Objective(setup.training.objective), 0)
    ids = canary_ids(setup)
    for step in range(CHANGES + 1):
        parts: dict[str, Any] = {}
        if asked.job.takes_turns:
            parts["offload"] = seconds_of(lambda: trainer.log_probs(ids))
        began = time.monotonic()
        weights = trainer.publish(step)
        parts["publish"] = time.monotonic() - began
        parts["load"] = seconds_of(lambda: sampler.load(weights))  # noqa: B023 (called at once)
        if step:  # the first sets up buffers
            notes.add(PASSING, sum(parts.values()), **parts)


# --- scoring and learning ---


def scoring(asked: Measuring) -> Found:
    """Time the teacher on responses of the lengths that a plan expects."""
    notes = Notes(asked)
    engine = open_engine(asked.bench.setup.engine.trainer, replace(asked.job, takes_turns=False))
    scorer = engine.scorer()
    scorer.start()
    return _batches(asked, notes, SCORE, lambda rollouts, _, step: scorer.score(rollouts))


def learning(asked: Measuring) -> Found:
    """Time updates of the student on responses of the planned lengths, its state on the GPU."""
    setup, notes = asked.bench.setup, Notes(asked)
    trainer = open_engine(setup.engine.trainer, replace(asked.job, takes_turns=False)).trainer()
    goal = Objective(setup.training.objective)

    def update(rollouts: Rollouts, scores: TeacherScores, step: int) -> object:
        return trainer.step(rollouts, scores, goal, step)

    return _batches(asked, notes, LEARN, update)


def _batches(
    asked: Measuring,
    notes: Notes,
    key: str,
    work: Callable[[Rollouts, TeacherScores, int], object],
) -> Found:
    """Write rows for `work` on more and more responses, up to as many as a training step has."""
    most = sequences_per_step(asked.bench.setup.training)
    first = min(FIRST_SIZES["responses"], most)
    work(*made_up(asked, first), 0)  # sets up buffers and kernels for the later calls
    notes.ready()
    deadline = time.monotonic() + asked.seconds
    for step, size in enumerate(sizes(first, most, deadline), 1):
        rollouts, scores = made_up(asked, size)
        seconds = seconds_of(lambda: work(rollouts, scores, step))  # noqa: B023 (called at once)
        prompt = len(rollouts.requests[0].prompt_ids)
        tokens = float(rollouts.lengths_B.float().mean())
        notes.add(key, seconds, size, prompt, tokens, whole=size == most)
    return notes.found()


# --- sizes and data ---


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


def requests(asked: Measuring, prompts: list[int]) -> list[Request]:
    """Make a request for each length, with a prompt of made-up ids that end no response."""
    setup = asked.bench.setup
    rng = random.Random(0)
    ends = {*setup.student.stop_ids, *setup.teacher.stop_ids}
    ordinary = [token for token in range(setup.vocabulary.valid) if token not in ends]
    made: list[Request] = []
    for row, length in enumerate(prompts):
        key = SequenceKey(Purpose.EVALUATION, 0, 0, row, 0)
        made.append(Request(tuple(rng.choices(ordinary, k=length)), key))
    return made


def made_up(asked: Measuring, responses: int) -> tuple[Rollouts, TeacherScores]:
    """Make up finished rollouts of the lengths that a plan expects, with a teacher's scores."""
    setup = asked.bench.setup
    generator = torch.Generator().manual_seed(0)
    lengths = asked.costs.training_lengths("mid")
    spread = lengths.spread(responses)
    shape = (responses, max(spread))
    size = support_size(setup)
    # Ids of a support differ, so each support is a range of ids, which wraps around at the end.
    place = torch.randint(setup.vocabulary.valid, (*shape, 1), generator=generator)
    support = (place + torch.arange(size)) % setup.vocabulary.valid
    nothing = torch.zeros(shape)
    rollouts = Rollouts(
        requests=requests(asked, [max(1, round(lengths.prompt))] * responses),
        tokens_BT=support[..., 0],
        lengths_B=torch.tensor(spread),
        truncated_B=torch.tensor(spread) == lengths.limit,
        student_BT=nothing,
        behavior_BT=nothing,
        support_ids_BTK=support,
    )
    log_q = torch.randn(*shape, size, generator=generator).log_softmax(-1)
    return rollouts, TeacherScores(
        support_BTK=log_q, token_BT=nothing, entropy_BT=nothing, overlap_BT=nothing
    )


def seconds_of(call: Callable[[], object]) -> float:
    """Seconds of a call, including the device's queue."""
    began = time.monotonic()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.monotonic() - began


# --- rows ---


class Notes:
    """The rows of one process, each written to the card's file as soon as it is measured."""

    def __init__(self, asked: Measuring):
        self._asked = asked
        self._rows: list[CalibrationRow] = []
        self._began = time.monotonic()
        self._start_s = 0.0

    def ready(self) -> None:
        """The phase's engine is up, and its measurements begin; later calls change nothing."""
        self._start_s = self._start_s or time.monotonic() - self._began

    def add(
        self,
        key: str,
        seconds: float,
        responses: int = 0,
        prompt: float = 0.0,
        tokens: float = 0.0,
        whole: bool = False,
        **about: object,
    ) -> None:
        """Write a row of the setup's models and engines; the first replaces earlier calibrations."""
        bench = self._asked.bench
        engine = bench.setup.engine
        row = CalibrationRow(
            setup=bench.name,
            shapes=shapes_of(bench.setup),
            sampler=engine.sampler,
            trainer=engine.trainer,
            random=bool(bench.made),
            key=key,
            seconds=seconds,
            day=self._asked.day,
            responses=responses,
            prompt=prompt,
            tokens=tokens,
            whole=whole,
            about=about | {"versions": _versions(engine.sampler, engine.trainer)},
        )
        add_row(self._asked.path, self._asked.card, row, self._rows)
        self._rows.append(row)
        print(row, flush=True)

    def found(self) -> Found:
        """Tokens per second of the longest measurement, and its seconds beside the planned ones.

        A warning if no measurement is long enough for a plan.
        """
        rows = [row for row in self._rows if row.key != PASSING]
        if not rows:
            return Found(
                "fail", "nothing was clocked: all of it took less time than reading the prompts"
            )
        longest = max(rows, key=lambda row: row.seconds)
        rate = longest.responses * longest.tokens / longest.seconds
        ratio = longest.seconds / longest.planned_seconds(self._asked.costs)
        words = (
            f"{rate:,.0f} tokens/s over {longest.seconds:.2g} s, {ratio:.2g} × the assumed seconds"
        )
        passing = [row.seconds for row in self._rows if row.key == PASSING]
        if passing:
            words += (
                f"; weights and learner's state passed on in {min(passing):.2g} to "
                f"{max(passing):.2g} s"
            )
        numbers = {"tokens_per_s": rate, "measured_to_assumed": ratio, "start_s": self._start_s}
        if any(row.counts for row in rows):
            return Found("ok", words, numbers=numbers)
        words += f"; shorter than {SHORTEST_S:g} s, so that plans do not use it: more --minutes"
        return Found("warn", words, numbers=numbers)


def _versions(*engines: str) -> dict[str, str]:
    versions = {"torch": importlib.metadata.version("torch")}
    for engine in engines:
        for package in ENGINES[engine].packages:
            versions[package] = importlib.metadata.version(package)
    return versions
