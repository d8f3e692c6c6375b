"""The SGLang engine behind `engines.interface`: samples from the student or from the teacher."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from orchestrator.engines import memory
from orchestrator.engines.budget import Situation
from orchestrator.engines.device import granted, moves_away
from orchestrator.engines.interface import Job, Limits, ModelFolder, Owner, WeightsRef
from orchestrator.engines.sglang.blending_rows import plain_row_type, unpack
from orchestrator.engines.sglang.process import (
    ROWS,
    Answer,
    Ask,
    Draw,
    Drawing,
    EngineProcess,
    Generate,
    Settings,
    leaner,
)
from orchestrator.engines.sglang.toolchain import Capability, attention_backend, draws_by_kernel
from orchestrator.errors import EngineLost, EngineOutOfMemory, NotFinite, UserError
from orchestrator.policy.randomness import SequenceKey
from orchestrator.policy.spec import Behavior, Student, Tempered
from orchestrator.records.files import verify_files
from orchestrator.rollouts import Request, Rollouts

logger = logging.getLogger(__name__)

ATTEMPTS = 3  # of a call on an engine that is lost without one more response
PART = 64  # responses that are handed on together
SLOWEST = {"cuda": 200.0, "cpu": 5.0}  # tokens per second over all requests, on slow machines
TELLS_EVERY = 64  # tokens of each request between two reports of the scheduler
PATIENCE_S = 120.0


class SglangEngine:
    """Samplers in their own processes: a student's and a teacher's, each made on demand."""

    def __init__(self, job: Job):
        self._job = job
        self._samplers: dict[Owner, SglangSampler] = {}

    def sampler(self, owner: Owner = "student") -> SglangSampler:
        """See `Engine.sampler`; each model has only one."""
        if owner not in self._samplers:
            self._samplers[owner] = self._new_sampler(owner)
        return self._samplers[owner]

    def _new_sampler(self, owner: Owner) -> SglangSampler:
        return SglangSampler(self._job, owner)

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

    A request's seed depends on its key alone. But other requests in the batch change its logits in
    their last digits, and occasionally a token.
    """

    def __init__(self, job: Job, owner: Owner):
        self._job = job
        self._setup = job.setup
        self._owner: Owner = owner
        folder = job.initial if owner == "student" else job.teacher
        assert folder is not None, "this job was opened without a teacher"
        self._folder = folder
        self._process: EngineProcess | None = None

    def start(self, teacher: bool) -> None:
        """Load the model. For a teacher beside it, use the sampler in `blending`."""
        assert not teacher, "this engine holds one model"
        self._come_up()

    def load(self, weights: WeightsRef) -> None:
        """Put these weights into the engine."""
        process = self._opened()
        try:
            process.load(weights)
        except EngineLost as error:
            logger.warning("%s; it is started again", error)
            process.start()

    def release(self) -> None:
        """End the engine's processes."""
        if self._process is not None:
            self._process.end()
        self._process = None

    def log_probs(self, ids: Sequence[int]) -> list[float]:
        """As `Sampler.log_probs`, by decoding with the ids forced."""
        return self.log_probs_each([ids])[0]

    def log_probs_each(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """`log_probs` of sequences of one length, decoded beside each other."""
        asks: list[Ask] = []
        for index, ids in enumerate(sequences):
            asks.append(Ask(index, (ids[0],), self._forced(ids)))
        call = Generate(asks, len(sequences[0]) - 1, (), None)
        answers = sorted(self._answers(call), key=lambda answer: answer.index)
        return [self._student_log_probs(answer) for answer in answers]

    def digests(self) -> dict[str, str]:
        """Digests of the tensors in the engine, its fused ones part by part.

        A lost engine is started again in the same weights.
        """
        process = self._opened()
        try:
            return process.digests()
        except EngineLost as error:
            logger.warning("%s; it is started again", error)
            return process.digests()

    def sample(
        self, requests: Sequence[Request], behavior: Behavior, limits: Limits
    ) -> Iterator[Rollouts]:
        """Yield one response to each request, as they finish."""
        assert isinstance(behavior, Student | Tempered), "this engine holds one model"
        tau = behavior.tau if isinstance(behavior, Tempered) else 1.0
        asks: list[Ask] = []
        for index, request in enumerate(requests):
            draw = Draw(seed_of(request.key), len(request.prompt_ids), tau, limits.support)
            asks.append(Ask(index, request.prompt_ids, draw))
        at_once = limits.at_once or self._job.runtime.rollout_batch
        call = Generate(asks, limits.max_tokens, (self._setup.student.closing_id,), at_once)
        for part in self._parts(call):
            yield self._rollouts(requests, part, limits)

    def _forced(self, ids: Sequence[int]) -> Drawing:
        return Draw(seed=0, prompt=1, forced=tuple(ids[1:]))

    def _student_log_probs(self, answer: Answer) -> list[float]:
        return unpack(answer.kept[ROWS], plain_row_type(0))["student"].tolist()

    # --- calls ---

    def _opened(self) -> EngineProcess:
        if self._process is None:
            verify_files(Path(self._folder.path), self._folder.files, self._folder.remedy)
            self._process = self._new_process(settings(self._job, self._folder, self._owner))
        return self._process

    def _new_process(self, chosen: Settings) -> EngineProcess:
        """The process of an engine, smaller for each attempt that ran out of memory before."""
        for _ in range(self._job.shortages):
            chosen = leaner(chosen)
        return EngineProcess(chosen)

    def _come_up(self) -> None:
        """Start the engine; once more, with less memory, if it runs out of it."""
        process = self._opened()
        try:
            process.start()
        except EngineOutOfMemory as error:
            logger.warning("%s; it is started again with less", error)
            process.start()

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
        self, requests: Sequence[Request], answers: list[Answer], limits: Limits
    ) -> Rollouts:
        """Make rollouts of answers, in their order."""
        longest = max(len(answer.tokens) for answer in answers)
        shape = (len(answers), longest)
        tokens = torch.zeros(shape, dtype=torch.long)
        support = torch.zeros(*shape, limits.support, dtype=torch.long)
        student = torch.zeros(shape)
        behavior = torch.zeros(shape)
        answered: list[Request] = []
        lengths: list[int] = []
        truncated: list[bool] = []
        for row, answer in enumerate(answers):
            records = unpack(answer.kept[ROWS], plain_row_type(limits.support))
            self._check_tokens(answer, records)
            if np.isnan(records["student"]).any() or np.isnan(records["behavior"]).any():
                raise NotFinite(f"the {self._owner}'s logits are not finite")
            self._check_end(answer, limits)
            count = len(records)
            tokens[row, :count] = torch.tensor(answer.tokens)
            student[row, :count] = torch.from_numpy(records["student"].copy())
            behavior[row, :count] = torch.from_numpy(records["behavior"].copy())
            if limits.support:
                support[row, :count] = torch.from_numpy(records["support_ids"].copy())
            answered.append(requests[answer.index])
            lengths.append(count)
            truncated.append(not answer.stopped)
        return Rollouts(
            requests=answered,
            tokens_BT=tokens,
            lengths_B=torch.tensor(lengths),
            truncated_B=torch.tensor(truncated),
            student_BT=student,
            behavior_BT=behavior,
            support_ids_BTK=support,
        )

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


def settings(job: Job, folder: ModelFolder, owner: Owner) -> Settings:
    """The settings of a model's engine. UserError if its vocabulary is not the setup's."""
    setup = job.setup
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


def capability() -> Capability | None:
    """The compute capability of this process's GPU; None without one."""
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else None
