"""Batched decoding on transformers models: the student alone, or with drafts judged by the teacher.

In a blended round the student drafts γ tokens, and one teacher pass over the γ prefixes gives all
of its distributions. Each draft is accepted or redrawn, so that emitted tokens have the behavior's
law exactly (`policy.speculation`); tokens after a rejected draft are dropped. γ = 1 is lockstep
decoding, the reference. The next round samples the token after γ accepted drafts, which saves a
student distribution. Rows advance at their own pace and leave the batch as they finish. The same
passes give the teacher's targets for the loss.

Shapes: B active rows, γ drafts, V vocabulary rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from orchestrator.engines.budget import slots_of
from orchestrator.engines.common.causal import CausalModel
from orchestrator.engines.common.record import Record
from orchestrator.engines.common.rounds import Round, judge, kept_of
from orchestrator.engines.torch.stream import Stream
from orchestrator.errors import NotFinite
from orchestrator.liveness import pulse
from orchestrator.policy import laws, speculation
from orchestrator.policy.randomness import JUDGED, Role, uniforms
from orchestrator.policy.spec import Behavior
from orchestrator.rollouts import Request, Rollouts


@dataclass(frozen=True)
class Decoding:
    """Limits of one decoding call."""

    max_tokens: int
    top_k: int = 0  # support size; 0 records no support (evaluation)
    draft_length: int = 1  # γ of behaviors that need the teacher


@torch.no_grad()
def generate(
    student: CausalModel,
    teacher: CausalModel | None,
    requests: list[Request],
    behavior: Behavior,
    decoding: Decoding,
) -> Rollouts:
    """One response to every request, sampled from `behavior`."""
    batch = _Batch(student, teacher if behavior.needs_teacher else None, requests, decoding)
    while len(batch.rows):
        if behavior.needs_teacher:
            batch.advance(batch.blended_round(behavior))
        else:
            batch.advance(batch.student_round(behavior))
        pulse.advance()
    return batch.record.finish(requests, student.space.emitted, blended=behavior.needs_teacher)


class _Batch:
    """The rows that are still being decoded."""

    def __init__(
        self,
        student: CausalModel,
        teacher: CausalModel | None,
        requests: list[Request],
        decoding: Decoding,
    ):
        self._eos = student.space.emitted
        self._decoding = decoding
        prompts = [request.prompt_ids for request in requests]
        keys = [request.key for request in requests]
        device = student.device
        # Without a teacher each draft is emitted, so that no uniform decides about it.
        roles = JUDGED if teacher is not None else (Role.DRAFT,)
        self._draws = {role: uniforms(keys, role, decoding.max_tokens).to(device) for role in roles}
        self._sampler = student.owner  # "teacher" if the teacher answers prompts itself
        slots = None
        if device.type == "cuda":
            # The budget grants full-length sequences: the buffers get their last size at once.
            drafted = decoding.draft_length if teacher is not None else 1
            slots = slots_of(max(map(len, prompts)) + decoding.max_tokens, drafted)
        self._student = Stream(student, prompts, slots)
        self._teacher = Stream(teacher, prompts, slots) if teacher is not None else None
        self._pending = torch.tensor([prompt[-1] for prompt in prompts], device=device)
        self.rows = torch.arange(len(requests), device=device)
        self.record = Record(len(requests), decoding.max_tokens, device)

    def student_round(self, behavior: Behavior) -> Round:
        """Sample one token of each row from the behavior's law."""
        log_p = self._student.feed(self._pending[:, None])
        self._check(log_p, self._sampler)
        law = laws.law(behavior, log_p[:, 0], None)
        tokens = speculation.sample(law.log_mu, self._uniforms(Role.DRAFT, 1)[:, 0])
        return Round(
            tokens=tokens[:, None],
            count=torch.ones_like(tokens),
            accepted=torch.zeros_like(tokens),
            log_p=log_p,
            log_mu=law.log_mu[:, None],
            log_q=None,
            measured={},
        )

    def blended_round(self, behavior: Behavior) -> Round:
        """Up to γ tokens of each row: student drafts, one teacher pass, one verification."""
        assert self._teacher is not None
        # Drafts beyond the length limit of the shortest row are of use to no row.
        left = self._decoding.max_tokens - int(self._positions().min())
        length = min(self._decoding.draft_length, left)
        drafts, log_p = self._draft(length)
        self._check(log_p, self._sampler)
        # The teacher reads the prefixes of all drafts: the pending token, then all drafts but the
        # last.
        log_q = self._teacher.feed(torch.cat([self._pending[:, None], drafts[:, :-1]], 1))
        self._check(log_q, "teacher")
        accept = self._uniforms(Role.ACCEPT, length)
        residual = self._uniforms(Role.RESIDUAL, length)
        judged = judge(behavior, drafts, log_p, log_q, accept, residual, self._positions())
        self.record.count(self.rows, rounds=1, drafted=length, accepted=judged.accepted)
        return judged

    def advance(self, done: Round) -> None:
        """Record the emitted tokens of a round, take back the others, and drop finished rows."""
        fed = done.tokens.shape[1]
        offsets = torch.arange(fed, device=self.rows.device)
        # A row emits its proposed tokens up to the length limit, and none after an EOS.
        count = torch.minimum(done.count, self._decoding.max_tokens - self._positions())
        stops = (done.tokens == self._eos) & (offsets < count[:, None])
        ended = stops.any(-1)
        count = torch.where(ended, stops.long().argmax(-1) + 1, count)
        emitted = offsets < count[:, None]
        row, offset = emitted.nonzero(as_tuple=True)
        kept = kept_of(done, row, offset, self._decoding.top_k)
        self.record.add(self.rows[row], self._positions()[row] + offset, kept)
        self.record.lengths[self.rows] += count
        last = done.tokens.gather(1, count[:, None] - 1)[:, 0]
        alive = (~ended & (self._positions() < self._decoding.max_tokens)).nonzero()[:, 0]
        some_finished = len(alive) < len(self.rows)
        self.rows = self.rows[alive]
        self._pending = last[alive]
        for stream in (self._student, self._teacher):
            if stream is not None and len(alive):
                if some_finished:  # `keep` copies the whole cache
                    stream.keep(alive)
                # The round fed the pending token and γ − 1 drafts. A row's last emitted token was
                # not fed, or is taken back with later drafts: it is the next round's pending token.
                stream.take_back(fed, count[alive])

    def _draft(self, length: int) -> tuple[Tensor, Tensor]:
        """γ student samples in a row (B, γ) and the distributions (B, γ, V) they were drawn from."""
        uniform = self._uniforms(Role.DRAFT, length)
        token = self._pending
        drafts: list[Tensor] = []
        log_p: list[Tensor] = []
        for index in range(length):
            log_p.append(self._student.feed(token[:, None])[:, 0])
            token = speculation.sample(log_p[-1], uniform[:, index])
            drafts.append(token)
        return torch.stack(drafts, 1), torch.stack(log_p, 1)

    def _check(self, log_prob: Tensor, owner: str) -> None:
        """Raise NotFinite if a distribution (B, γ, V) has a NaN.

        The softmax spreads a NaN over its whole row, so that the entry of EOS stands for all.
        """
        if bool(log_prob[..., self._eos].isnan().any()):
            raise NotFinite(f"the {owner}'s logits are not finite")

    def _positions(self) -> Tensor:
        """Response position (B,) of the next token."""
        return self.record.lengths[self.rows]

    def _uniforms(self, role: Role, length: int) -> Tensor:
        """Uniforms (B, γ) of the next positions."""
        positions = self._positions()[:, None] + torch.arange(length, device=self.rows.device)
        # A longer row passes its limit within a round. `advance` drops its tokens from there on, so
        # that they may repeat the last uniform.
        positions = positions.clamp_max(self._decoding.max_tokens - 1)
        return self._draws[role][self.rows].gather(1, positions)
