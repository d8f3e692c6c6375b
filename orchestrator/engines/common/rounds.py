"""Judges the drafts of a decoding round, and computes the recorded values of its emitted tokens.

The torch and SGLang engines share it: each runs the models itself.

Shapes: B active rows, γ drafts, V vocabulary rows, N emitted positions of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from orchestrator.policy import laws, speculation
from orchestrator.policy.spec import Behavior
from orchestrator.rollouts import SURVIVED, Request, Rollouts, TeacherScores


@dataclass(frozen=True)
class Round:
    """A judged round: of the `tokens` (B, γ) of each active row the first `count` (B,) are emitted."""

    tokens: Tensor
    count: Tensor
    accepted: Tensor  # (B,) drafts that survived
    log_p: Tensor  # (B, γ, V)
    log_mu: Tensor  # (B, γ, V)
    log_q: Tensor | None  # (B, γ, V)
    measured: dict[str, Tensor]  # each (B, γ)


def judge(
    behavior: Behavior,
    drafts: Tensor,
    log_p: Tensor,
    log_q: Tensor,
    u_accept: Tensor,
    u_residual: Tensor,
) -> Round:
    """Judge the student's drafts (B, γ), so that emitted tokens have the behavior's law exactly.

    log p and log q (B, γ, V) are the distributions at the prefixes of the drafts; the uniforms of
    acceptance and replacement are (B, γ).
    """
    flat_p, flat_q = log_p.flatten(0, 1), log_q.flatten(0, 1)
    law = laws.law(behavior, flat_p, flat_q)
    verified = speculation.verify(
        flat_p, law.log_mu, drafts.flatten(), u_accept.flatten(), u_residual.flatten()
    )
    # Drafts before the first rejected one. The round also emits that one's replacement. Without a
    # rejection, the token after the last draft is left to the next round.
    survivors = verified.accepted.view_as(drafts).long().cumprod(-1).sum(-1)
    return Round(
        tokens=verified.tokens.view_as(drafts),
        count=(survivors + 1).clamp_max(drafts.shape[1]),
        accepted=survivors,
        log_p=log_p,
        log_mu=law.log_mu.view_as(log_p),
        log_q=log_q,
        measured={name: value.float().view_as(drafts) for name, value in law.measured.items()},
    )


def kept_of(done: Round, row: Tensor, offset: Tensor, top_k: int) -> Kept:
    """The values to record of N emitted positions (row, offset), with `top_k` support ids."""
    tokens = done.tokens[row, offset]
    log_p = done.log_p[row, offset]
    log_mu = done.log_mu[row, offset]
    measured = {name: value[row, offset] for name, value in done.measured.items()}
    if done.log_q is not None:
        measured[SURVIVED] = (offset < done.accepted[row]).float()
        measured["acceptance"] = speculation.acceptance(log_p, log_mu).float()
        if "behavior_kl" not in measured:
            measured["behavior_kl"] = speculation.kl_divergence(log_mu, log_p).float()
    support_ids = log_p.topk(top_k, dim=-1).indices if top_k else None
    teacher = None
    if support_ids is not None and done.log_q is not None:
        teacher = teacher_statistics(done.log_q[row, offset], tokens, support_ids)
    student = speculation.log_prob_of(tokens, log_p)
    behavior = speculation.log_prob_of(tokens, log_mu)
    return Kept(tokens, student, behavior, measured, support_ids, teacher)


def teacher_statistics(log_q: Tensor, tokens: Tensor, support: Tensor) -> TeacherScores:
    """The teacher's statistics, (N,) and (N, K): from log q (N, V), tokens (N,), support (N, K)."""
    own = log_q.topk(support.shape[-1], dim=-1).indices
    q = log_q.exp()
    return TeacherScores(
        support_BTK=log_q.gather(-1, support),
        token_BT=speculation.log_prob_of(tokens, log_q),
        # 0·log 0 is 0, where q * log_q would be nan.
        entropy_BT=-torch.where(q > 0, q * log_q, 0.0).sum(-1),
        overlap_BT=(support[:, :, None] == own[:, None, :]).any(-1).float().mean(-1),
    )


# --- records values of decoded positions in (B, T, …), while rows advance at their own pace ---


@dataclass(frozen=True)
class Kept:
    """Values recorded at positions; all tensors lead with (N,), or with (B, T) once scattered.

    The fields match `Rollouts`. `support_ids` has a further dimension of K ids; `teacher` is set if
    decoding asked the teacher and a support is recorded.
    """

    tokens: Tensor
    student: Tensor
    behavior: Tensor
    measured: dict[str, Tensor]
    support_ids: Tensor | None = None
    teacher: TeacherScores | None = None

    def tensors(self) -> Iterator[Tensor]:
        """All tensors, always in the same order."""
        yield from (self.tokens, self.student, self.behavior)
        yield from self.measured.values()
        if self.support_ids is not None:
            yield self.support_ids
        if self.teacher is not None:
            yield from vars(self.teacher).values()

    def each(self, change: Callable[[Tensor], Tensor]) -> Kept:
        """Apply `change` to every tensor."""
        teacher = self.teacher
        if teacher is not None:
            teacher = TeacherScores(*map(change, vars(teacher).values()))
        return Kept(
            tokens=change(self.tokens),
            student=change(self.student),
            behavior=change(self.behavior),
            measured={name: change(value) for name, value in self.measured.items()},
            support_ids=None if self.support_ids is None else change(self.support_ids),
            teacher=teacher,
        )


class Record:
    """The recorded values of B rows at up to T positions."""

    def __init__(self, rows: int, max_tokens: int, device: torch.device):
        self._shape = (rows, max_tokens)
        self._kept: Kept | None = None
        self.lengths = torch.zeros(rows, dtype=torch.long, device=device)
        self._counts = {
            "rounds": torch.zeros_like(self.lengths),
            "drafted": torch.zeros_like(self.lengths),
            "accepted": torch.zeros_like(self.lengths),
        }

    def add(self, rows: Tensor, positions: Tensor, values: Kept) -> None:
        """Record the values of N pairs of row and position."""
        if self._kept is None:
            # Only the first values show which tensors a behavior records, and in which dtypes.
            self._kept = values.each(lambda value: value.new_zeros(self._shape + value.shape[1:]))
        for buffer, value in zip(self._kept.tensors(), values.tensors(), strict=True):
            buffer[rows, positions] = value

    def count(self, rows: Tensor, **amounts: Tensor | int) -> None:
        """Add to the per-row counts of `Rollouts.speculation`."""
        for name, amount in amounts.items():
            self._counts[name][rows] += amount

    def finish(self, requests: list[Request], eos: int, blended: bool) -> Rollouts:
        """The rollouts, trimmed to the longest response."""
        assert self._kept is not None, "every row has at least one token"
        longest = int(self.lengths.max())
        kept = self._kept.each(lambda value: value[:, :longest].cpu())
        lengths = self.lengths.cpu()
        last = kept.tokens.gather(1, lengths[:, None] - 1)[:, 0]
        support_ids = kept.support_ids
        if support_ids is None:
            support_ids = kept.tokens.new_zeros((*kept.tokens.shape, 0))
        # Without blending the engine drafts nothing, and counts of zero would look like a measure.
        speculation: dict[str, Tensor] = {}
        if blended:
            speculation = {name: value.cpu() for name, value in self._counts.items()}
        return Rollouts(
            requests=requests,
            tokens_BT=kept.tokens,
            lengths_B=lengths,
            truncated_B=last != eos,
            student_BT=kept.student,
            behavior_BT=kept.behavior,
            support_ids_BTK=support_ids,
            teacher=kept.teacher,
            measured=kept.measured,
            speculation=speculation,
        )
