"""The SGLang engine behind `engines.interface`: samples from the student or from the teacher.

The student is sampled alone, or beside the teacher where the behavior needs it. `verdict` draws the
tokens, in the engine's own processes.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import NoReturn, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from orchestrator.engines import memory
from orchestrator.engines.budget import Situation
from orchestrator.engines.common.rounds import Record
from orchestrator.engines.device import granted, moves_away
from orchestrator.engines.interface import OWNERS, Job, Limits, Owner, WeightsRef
from orchestrator.engines.memory import LONGEST_ROUND, blending_requests, fitting_round
from orchestrator.engines.sglang.blending_rows import Order, kept_of_records, row_type, unpack
from orchestrator.engines.sglang.process import (
    ROWS,
    Answer,
    Ask,
    Draw,
    Drawing,
    EngineProcess,
    Generate,
    Second,
    Settings,
    leaner,
)
from orchestrator.engines.sglang.toolchain import Capability, attention_backend, draws_by_kernel
from orchestrator.errors import EngineLost, EngineOutOfMemory, NotFinite, UserError
from orchestrator.policy.randomness import Purpose, SequenceKey
from orchestrator.policy.spec import (
    Behavior,
    Student,
    Tempered,
    TrustRegion,
    arithmetic_cost,
    draft_length,
)
from orchestrator.policy.vocabulary import TokenSpace
from orchestrator.records.files import verify_files
from orchestrator.rollouts import Request, Rollouts

logger = logging.getLogger(__name__)

ATTEMPTS = 3  # of a call on an engine that is lost without one more response
PART = 64  # responses that are handed on together
SLOWEST = {"cuda": 200.0, "cpu": 5.0}  # tokens per second over all requests, on slow machines
TELLS_EVERY = 64  # tokens of each request between two reports of the scheduler
PATIENCE_S = 120.0
FORCED_KEY = SequenceKey(Purpose.EVALUATION, 0, 0, 0, 0)  # any: forced ids ignore the uniforms
Result = TypeVar("Result")


class SglangEngine:
    """Samplers in their own processes: a student's and a teacher's, each made on demand."""

    def __init__(self, job: Job):
        self._job = job
        self._samplers: dict[Owner, SglangSampler] = {}

    def sampler(self, owner: Owner = "student") -> SglangSampler:
        """See `Engine.sampler`; each model has only one."""
        if owner not in self._samplers:
            self._samplers[owner] = SglangSampler(self._job, owner)
        return self._samplers[owner]

    def scorer(self) -> NoReturn:
        raise ValueError("SGLang gives no log-probabilities at given ids: it scores nothing here")

    def trainer(self) -> NoReturn:
        raise ValueError("SGLang trains nothing")

    def close(self) -> None:
        """End all processes."""
        for sampler in self._samplers.values():
            sampler.release()


def open_engine(job: Job) -> SglangEngine:
    """Open the engine for a job; its processes start when first needed."""
    return SglangEngine(job)


class SglangSampler:
    """Samples with continuous batching, from the same law as the torch engine.

    A student's behavior that needs the teacher is sampled beside it. Only one of the two engines,
    of the model alone and of both, is up at a time.

    A request's seed depends on its key alone, and beside the teacher the uniforms equal the torch
    engine's. But other requests in the batch change its logits in their last digits, and
    occasionally a token.
    """

    def __init__(self, job: Job, owner: Owner):
        self._job = job
        self._setup = job.setup
        self._owner: Owner = owner
        self._space = TokenSpace.of(job.setup)
        self._process: EngineProcess | None = None
        self._beside_teacher = False  # the engine that is up, or will be
        self._weights: WeightsRef | None = None  # the last loaded

    def start(self, teacher: bool) -> None:
        """Bring up the engine that the next behavior needs.

        If it runs out of memory it is started once more, with less of it.
        Once weights were loaded, another engine comes up with the next load or sample, in the
        weights of that time.
        """
        self._switch(teacher)
        if self._weights is None:
            self._twice(EngineProcess.start, EngineOutOfMemory)

    def load(self, weights: WeightsRef) -> None:
        """Put these weights into the engine that is up, or comes up next."""
        self._weights = weights
        self._twice(lambda process: process.load(weights))

    def release(self) -> None:
        """End the engine's processes, and forget loaded weights."""
        self._end()
        self._weights = None

    def log_probs(self, ids: Sequence[int]) -> list[float]:
        """As `Sampler.log_probs`, by decoding with the ids forced."""
        return self.log_probs_each([ids])[0]

    def log_probs_each(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """`log_probs` of sequences of one length, decoded beside each other."""
        behavior = TrustRegion(0.0) if self._beside_teacher else Student()
        limits = Limits(len(sequences[0]) - 1)
        asks: list[Ask] = []
        for index, ids in enumerate(sequences):
            request = Request((ids[0],), FORCED_KEY)
            drawing = self._drawing(request, behavior, limits, LONGEST_ROUND, tuple(ids[1:]))
            asks.append(Ask(index, request.prompt_ids, drawing))
        answers = self._answers(Generate(asks, limits.max_tokens, (), None))
        log_probs: list[list[float]] = []
        for answer in sorted(answers, key=lambda answer: answer.index):
            records = unpack(answer.kept[ROWS], row_type(behavior, 0))
            log_probs.append(records["student"].tolist())
        return log_probs

    def digests(self) -> dict[str, str]:
        """Digests of the tensors in the engine, its fused ones part by part."""
        return self._twice(EngineProcess.digests)

    def sample(
        self, requests: Sequence[Request], behavior: Behavior, limits: Limits
    ) -> Iterator[Rollouts]:
        """Yield a response to each request as they finish, with the teacher's scores if asked."""
        self._switch(behavior.needs_teacher)
        at_once = limits.at_once or self._job.runtime.rollout_batch
        drafted = 1
        if behavior.needs_teacher:
            running = min(len(requests), self._opened().requests, at_once or len(requests))
            drafted = self._draft_length(behavior, running)
            # A round's distributions limit its requests.
            fitting = fitting_round(self._setup.vocabulary.size, drafted)
            if fitting < running:
                at_once = fitting
        asks: list[Ask] = []
        for index, request in enumerate(requests):
            drawing = self._drawing(request, behavior, limits, drafted)
            asks.append(Ask(index, request.prompt_ids, drawing))
        call = Generate(asks, limits.max_tokens, (self._setup.student.closing_id,), at_once)
        for part in self._parts(call):
            yield self._rollouts(requests, part, behavior, limits)

    def _drawing(
        self,
        request: Request,
        behavior: Behavior,
        limits: Limits,
        drafted: int,
        forced: tuple[int, ...] = (),
    ) -> Drawing:
        """The sampling parameters of a request; any `forced` ids are the response."""
        if behavior.needs_teacher:
            return Order(
                behavior,
                request.key,
                self._space,
                limits.max_tokens,
                limits.support,
                drafted,
                forced,
            )
        assert isinstance(behavior, Student | Tempered), "no other law is of one model"
        tau = behavior.tau if isinstance(behavior, Tempered) else 1.0
        return Draw(seed_of(request.key), len(request.prompt_ids), tau, limits.support, forced)

    def _draft_length(self, behavior: Behavior, rows: int) -> int:
        """γ: the configured one, else by behavior, models and device; it changes no token."""
        setup = self._setup
        # Decoding reads all parameters, so the ratio of their numbers is the cost of a pass of the
        # teacher in passes of the student.
        student = memory.decoder(setup.student, setup).parameters
        teacher = memory.decoder(setup.teacher, setup).parameters
        arithmetic = arithmetic_cost(rows, torch.cuda.is_available())
        suggested = draft_length(behavior.acceptance_guess, teacher / student, arithmetic)
        return min(self._job.runtime.draft_length or suggested, LONGEST_ROUND)

    # --- calls ---

    def _opened(self) -> EngineProcess:
        """The process of the engine, smaller for each attempt that ran out of memory before."""
        if self._process is None:
            for owner in OWNERS if self._beside_teacher else (self._owner,):
                folder = self._job.folder(owner)
                verify_files(Path(folder.path), folder.files, folder.remedy)
            both = self._beside_teacher
            chosen = blending_settings(self._job) if both else settings(self._job, self._owner)
            for _ in range(self._job.shortages):
                chosen = leaner(chosen)
            self._process = EngineProcess(chosen)
            if self._weights is not None:
                self._process.start_in(self._weights)
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
        self._process = None

    def _switch(self, beside_teacher: bool) -> None:
        """Replace the engine by the one with or without the teacher, in the last loaded weights."""
        assert self._owner == "student" or not beside_teacher, "the teacher is sampled alone"
        if self._beside_teacher != beside_teacher:
            self._end()
            self._beside_teacher = beside_teacher

    def _twice(
        self, call: Callable[[EngineProcess], Result], retried: type[EngineLost] = EngineLost
    ) -> Result:
        """Make a call; if it raises `retried`, make it once more on a new engine."""
        process = self._opened()
        try:
            return call(process)
        except retried as error:
            less = " with less memory" if isinstance(error, EngineOutOfMemory) else ""
            logger.warning("%s; it is started again%s", error, less)
            return call(process)

    def _parts(self, call: Generate) -> Iterator[list[Answer]]:
        """Yield answers as they finish, up to PART at a time."""
        part: list[Answer] = []
        for answer in self._answers(call):
            part.append(answer)
            if len(part) == PART:
                yield part
                part = []
        if part:
            yield part

    def _answers(self, call: Generate) -> Iterator[Answer]:
        """Yield the answer to each ask; if the engine is lost, ask a new one for the missing."""
        process = self._opened()
        missing = {ask.index: ask for ask in call.asks}
        attempts = 0
        while missing:
            left = Generate(list(missing.values()), call.max_tokens, call.stop, call.at_once)
            try:
                for answer in process.generate(left, silence_s(left)):
                    if answer.version != process.version:
                        raise RuntimeError(
                            f"SGLang sampled from weights {answer.version}, not {process.version}"
                        )
                    del missing[answer.index]
                    attempts = 0  # only an engine that dies without one more answer is hopeless
                    yield answer
            except EngineLost as error:
                attempts += 1
                if attempts == ATTEMPTS:
                    raise
                logger.warning("%s; it is started again for %d responses", error, len(missing))

    # --- answers ---

    def _rollouts(
        self, requests: Sequence[Request], answers: list[Answer], behavior: Behavior, limits: Limits
    ) -> Rollouts:
        """Make rollouts of answers, in their order."""
        blended = behavior.needs_teacher
        longest = max(len(answer.tokens) for answer in answers)
        record = Record(len(answers), longest, torch.device("cpu"))
        for row, answer in enumerate(answers):
            records = unpack(answer.kept[ROWS], row_type(behavior, limits.support))
            self._check_tokens(answer, records)
            # With a finite student only the teacher can spoil the law of both.
            last = "teacher" if blended else self._owner
            for name, owner in (("student", self._owner), ("behavior", last)):
                if np.isnan(records[name]).any():
                    raise NotFinite(f"the {owner}'s logits are not finite")
            self._check_end(answer, limits)
            rows = torch.full((len(records),), row)
            kept = kept_of_records(records, behavior, limits.support)
            record.add(rows, torch.arange(len(records)), kept)
            record.lengths[row] = len(records)
            if blended:
                record.count(
                    torch.tensor([row]),
                    rounds=int((records["drafted"] > 0).sum()),
                    drafted=int(records["drafted"].sum()),
                    accepted=int(records["accepted"].sum()),
                )
        answered = [requests[answer.index] for answer in answers]
        return record.finish(answered, self._setup.student.closing_id, blended)

    def _check_tokens(self, answer: Answer, records: NDArray[np.void]) -> None:
        """Raise RuntimeError unless the records are those of the response's tokens."""
        if records["token"].tolist() != answer.tokens:
            raise RuntimeError(
                f"SGLang gave back {len(answer.tokens)} tokens, "
                f"and records of {len(records)} others"
            )

    def _check_end(self, answer: Answer, limits: Limits) -> None:
        """Raise RuntimeError if a response ends neither with EOS nor at its limit."""
        count = len(answer.tokens)
        last = answer.tokens[-1]
        ends_in_eos = last == self._setup.student.closing_id
        ends_at_limit = count == limits.max_tokens
        if answer.stopped != ends_in_eos or not (ends_in_eos or ends_at_limit):
            raise RuntimeError(
                f"SGLang ended a response after {count} of {limits.max_tokens} tokens, "
                f"with id {last}"
            )


def seed_of(key: SequenceKey) -> int:
    """63 bits of the sha256 of a key."""
    digest = hashlib.sha256(json.dumps(astuple(key)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def silence_s(call: Generate) -> float:
    """Seconds of silence after which the engine counts as hung: for prompts and some tokens."""
    rate = SLOWEST["cuda" if torch.cuda.is_available() else "cpu"]
    prompts = sum(len(ask.prompt) for ask in call.asks)
    decoded = TELLS_EVERY * min(len(call.asks), memory.CPU_BATCH)
    # Reading a prompt's token takes about a tenth of decoding one.
    return PATIENCE_S + (prompts / 10 + decoded) / rate


def settings(job: Job, owner: Owner) -> Settings:
    """The settings of a model's engine. UserError if its vocabulary is not the setup's."""
    setup, folder = job.setup, job.folder(owner)
    text = (Path(folder.path) / "config.json").read_text(encoding="utf-8")
    size = json.loads(text)["vocab_size"]
    if size != setup.vocabulary.size:
        raise UserError(
            f"{owner} {folder.path}: {size} vocabulary rows: expected {setup.vocabulary.size}, "
            "as the setup declares for student and teacher alike"
        )
    longest = max(setup.training.max_response_tokens, setup.evaluation.max_response_tokens)
    context = setup.training.max_prompt_tokens + longest
    situation: Situation = "decoding" if job.trains else "evaluating"
    if owner == "teacher":
        situation = "answering"
    budget = granted(job, situation)
    if budget is None:
        cache_tokens = memory.cpu_cache_tokens(setup, context, owner)
        requests = memory.CPU_BATCH
    else:
        cache_tokens = budget.kv_tokens
        requests = budget.requests
    runtime = job.runtime
    attention = attention_backend(runtime.attention_backend, setup.engine.dtype, capability())
    return Settings(
        model=folder.path,
        dtype=setup.engine.dtype,
        owner=job.stops_as if owner == "student" else "teacher",
        valid=setup.vocabulary.valid,
        student_eos=setup.student.eos,
        teacher_eos=setup.teacher.eos,
        context=context,
        gpu=budget is not None,
        needed_gib=None if budget is None else budget.own_gib,
        cache_tokens=cache_tokens,
        requests=requests,
        takes_turns=moves_away(job, budget),
        start_s=job.runtime.engine_start_s,
        shards=job.on.count,
        attention=attention,
        precise_head=setup.engine.head_dtype == "float32",
        kernel=draws_by_kernel(runtime.logits_kernel, attention, capability(), job.on.count),
        # A handle reaches one process, on the very GPU of the learner.
        by_handle=budget is not None
        and runtime.weights == "device"
        and job.takes_turns
        and job.on.count == 1,
    )


def blending_settings(job: Job) -> Settings:
    """Settings of the engine of both models. UserError if they do not fit the setup or the GPU."""
    setup = job.setup
    settings(job, "teacher")  # refuses a teacher with another vocabulary
    asked = job.runtime.attention_backend
    both = replace(
        settings(job, "student"),
        second=Second(job.folder("teacher").path, LONGEST_ROUND),
        requests=min(blending_requests(setup), memory.CPU_BATCH),
        attention=attention_backend(asked, setup.engine.dtype, capability(), blends=True),
    )
    budget = granted(job, "blending")
    if budget is None:
        return both
    return replace(
        both, needed_gib=budget.own_gib, cache_tokens=budget.kv_tokens, requests=budget.requests
    )


def capability() -> Capability | None:
    """The compute capability of this process's GPU; None without one."""
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else None
