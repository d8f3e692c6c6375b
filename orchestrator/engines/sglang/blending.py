"""Blended rollouts from SGLang: student and teacher in one engine, later the student alone.

`blending_worker` draws the tokens, in the engine's own processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from orchestrator.engines import memory
from orchestrator.engines.budget import blending_requests, fitting_round
from orchestrator.engines.catalog import LONGEST_ROUND
from orchestrator.engines.common.rounds import Record
from orchestrator.engines.device import granted
from orchestrator.engines.interface import Job, Limits, Owner, WeightsRef
from orchestrator.engines.sglang.blending_rows import Order, kept_of_records, row_type, unpack
from orchestrator.engines.sglang.engine import SglangEngine, SglangSampler, capability, settings
from orchestrator.engines.sglang.process import (
    ROWS,
    Answer,
    Ask,
    Drawing,
    EngineProcess,
    Generate,
    Second,
    Settings,
)
from orchestrator.engines.sglang.toolchain import attention_backend
from orchestrator.errors import NotFinite
from orchestrator.policy.randomness import Purpose, SequenceKey
from orchestrator.policy.spec import Behavior, TrustRegion, arithmetic_cost, draft_length
from orchestrator.policy.vocabulary import TokenSpace
from orchestrator.records.files import verify_files
from orchestrator.rollouts import Request, Rollouts

FORCED_BEHAVIOR = TrustRegion(0.0)  # of ids that are given, and not drawn


class SglangBlendingEngine(SglangEngine):
    """An SGLang engine whose student can also be sampled beside the teacher."""

    def _new_sampler(self, owner: Owner) -> SglangSampler:
        return SglangStudent(self._job) if owner == "student" else super()._new_sampler(owner)


def open_engine(job: Job) -> SglangBlendingEngine:
    """Open the engine for a job; its processes start when first needed."""
    return SglangBlendingEngine(job)


class SglangStudent(SglangSampler):
    """Samples from the student, beside the teacher if the behavior needs it, else alone.

    Only one of the two engines is up at a time. Beside the teacher the uniforms equal the torch
    engine's: tokens differ only through the last digits of logits, which depend on the rest of the
    batch.
    """

    def __init__(self, job: Job):
        super().__init__(job, "student")
        setup = job.setup
        self._space = TokenSpace.of(setup)
        self._beside_teacher = False  # the engine that is up, or will be
        self._weights: WeightsRef | None = None

    def start(self, teacher: bool) -> None:
        """Bring up the engine that the next behavior needs.

        Once weights were loaded, another engine comes up with the next load or sample, in the
        weights of that time.
        """
        self._switch(teacher)
        if self._weights is None:
            self._come_up()

    def load(self, weights: WeightsRef) -> None:
        """Put these weights into the engine that is up, or comes up next."""
        self._weights = weights
        super().load(weights)

    def release(self) -> None:
        """End the engine's processes, and forget loaded weights."""
        super().release()
        self._weights = None

    def _forced(self, ids: Sequence[int]) -> Drawing:
        if not self._beside_teacher:
            return super()._forced(ids)
        return Order(
            FORCED_BEHAVIOR,
            SequenceKey(Purpose.EVALUATION, 0, 0, 0, 0),  # any: forced ids ignore the uniforms
            self._space,
            len(ids) - 1,
            drafted=LONGEST_ROUND,
            forced=tuple(ids[1:]),
        )

    def _student_log_probs(self, answer: Answer) -> list[float]:
        if not self._beside_teacher:
            return super()._student_log_probs(answer)
        return unpack(answer.kept[ROWS], row_type(FORCED_BEHAVIOR, 0))["student"].tolist()

    def sample(
        self, requests: Sequence[Request], behavior: Behavior, limits: Limits
    ) -> Iterator[Rollouts]:
        """Yield a response to each request as they finish, with the teacher's scores if asked."""
        self._switch(behavior.needs_teacher)
        if not behavior.needs_teacher:
            yield from super().sample(requests, behavior, limits)
            return
        process = self._opened()
        at_once = limits.at_once or self._job.runtime.rollout_batch
        running = min(len(requests), process.requests, at_once or len(requests))
        drafted = self._draft_length(behavior, running)
        # A round's distributions limit its requests.
        fitting = fitting_round(self._setup.vocabulary.size, drafted)
        if fitting < running:
            at_once = fitting
        asks: list[Ask] = []
        for index, request in enumerate(requests):
            order = Order(
                behavior, request.key, self._space, limits.max_tokens, limits.support, drafted
            )
            asks.append(Ask(index, request.prompt_ids, order))
        call = Generate(asks, limits.max_tokens, (self._setup.student.closing_id,), at_once)
        for part in self._parts(call):
            yield self._blended(requests, part, behavior, limits)

    def _switch(self, beside_teacher: bool) -> None:
        """Replace the engine by the one with or without the teacher, in the last loaded weights."""
        if self._beside_teacher == beside_teacher:
            return
        super().release()
        self._beside_teacher = beside_teacher

    def _new_process(self, chosen: Settings) -> EngineProcess:
        process = super()._new_process(chosen)
        if self._weights is not None:
            process.start_in(self._weights)
        return process

    def _opened(self) -> EngineProcess:
        if self._process is None and self._beside_teacher:
            for folder in (self._folder, self._job.teacher):
                assert folder is not None, "this job was opened without a teacher"
                verify_files(Path(folder.path), folder.files, folder.remedy)
            self._process = self._new_process(blending_settings(self._job))
        return super()._opened()

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

    def _blended(
        self, requests: Sequence[Request], answers: list[Answer], behavior: Behavior, limits: Limits
    ) -> Rollouts:
        """Make rollouts of answers, in their order."""
        record = Record(len(answers), limits.max_tokens, torch.device("cpu"))
        for row, answer in enumerate(answers):
            records = unpack(answer.kept[ROWS], row_type(behavior, limits.support))
            self._check_tokens(answer, records)
            if np.isnan(records["student"]).any():
                raise NotFinite("the student's logits are not finite")
            if np.isnan(records["behavior"]).any():  # with a finite student it is the teacher
                raise NotFinite("the teacher's logits are not finite")
            self._check_end(answer, limits)
            rows = torch.full((len(records),), row)
            kept = kept_of_records(records, behavior, limits.support)
            record.add(rows, torch.arange(len(records)), kept)
            record.lengths[row] = len(records)
            record.count(
                torch.tensor([row]),
                rounds=int((records["drafted"] > 0).sum()),
                drafted=int(records["drafted"].sum()),
                accepted=int(records["accepted"].sum()),
            )
        answered = [requests[answer.index] for answer in answers]
        return record.finish(answered, self._setup.student.closing_id, blended=True)


def blending_settings(job: Job) -> Settings:
    """Settings of the engine of both models. UserError if they do not fit the setup or the GPU."""
    setup = job.setup
    teacher = job.teacher
    assert teacher is not None, "this job was opened without a teacher"
    settings(job, teacher, "teacher")  # refuses a teacher with another vocabulary
    asked = job.runtime.attention_backend
    both = replace(
        settings(job, job.initial, "student"),
        second=Second(teacher.path, LONGEST_ROUND),
        requests=min(blending_requests(setup), memory.CPU_BATCH),
        attention=attention_backend(asked, setup.engine.dtype, capability(), blends=True),
    )
    budget = granted(job, "blending")
    if budget is None:
        return both
    return replace(
        both, needed_gib=budget.own_gib, cache_tokens=budget.kv_tokens, requests=budget.requests
    )
