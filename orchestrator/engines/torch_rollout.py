"""Batched decoding on transformers models: the student alone, or student and teacher in lockstep.

Lockstep: at every position both models read the same prefix, the student drafts a token and the draft is
verified against the behavior's μ (`policy.speculation`). The teacher's targets for the loss come out of the
same pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from orchestrator.batch import Request, Rollouts, TeacherScores
from orchestrator.engines.causal import CausalModel, Stream
from orchestrator.policy import speculation
from orchestrator.policy.behavior import Behavior
from orchestrator.policy.randomness import Role, uniforms


@dataclass(frozen=True)
class Decoding:
    """What a decoding pass is allowed to do."""

    max_tokens: int
    top_k: int = 0  # support size; 0 records no support (evaluation)


@torch.no_grad()
def generate(
    student: CausalModel, teacher: CausalModel | None, requests: list[Request], behavior: Behavior, decoding: Decoding
) -> Rollouts:
    """One response to every request, sampled from `behavior`; rows leave the batch as they finish."""
    prompts = [request.prompt_ids for request in requests]
    draws = torch.stack([uniforms([r.key for r in requests], role, decoding.max_tokens) for role in Role])
    draws = draws.to(student.device)
    mine = Stream(student, prompts)
    theirs = Stream(teacher, prompts) if behavior.needs_teacher and teacher is not None else None
    record = _Record(len(requests), student.device)
    active = torch.arange(len(requests), device=student.device)
    for position in range(decoding.max_tokens):
        chosen = _choose(behavior, mine.log_prob, theirs.log_prob if theirs else None, draws[:, active, position])
        record.add(active, _measure(chosen, mine.log_prob, theirs.log_prob if theirs else None, decoding.top_k))
        alive = (chosen.tokens != student.space.student_eos).nonzero()[:, 0]
        if len(alive) == 0 or position == decoding.max_tokens - 1:
            break
        if len(alive) < len(active):
            active = active[alive]
            for stream in (mine, theirs):
                if stream is not None:
                    stream.keep(alive)
        for stream in (mine, theirs):
            if stream is not None:
                stream.advance(chosen.tokens[alive])
    return record.finish(requests, student.space.student_eos)


@dataclass(frozen=True)
class _Choice:
    tokens: Tensor  # (B,)
    log_mu: Tensor  # (B, V)
    measured: dict[str, Tensor]


def _choose(behavior: Behavior, log_p: Tensor, log_q: Tensor | None, draws: Tensor) -> _Choice:
    """The next token of each row; `draws` (roles, B)."""
    law = behavior.law(log_p, log_q)
    if log_q is None:
        return _Choice(speculation.sample(law.log_mu, draws[Role.DRAFT]), law.log_mu, {})
    draft = speculation.sample(log_p, draws[Role.DRAFT])
    verified = speculation.verify(log_p, law.log_mu, draft, draws[Role.ACCEPT], draws[Role.RESIDUAL])
    measured = law.measured | {
        "behavior_kl": speculation.kl_divergence(law.log_mu, log_p),
        "acceptance": speculation.acceptance(log_p, law.log_mu),
    }
    return _Choice(verified.tokens, law.log_mu, measured)


def _measure(choice: _Choice, log_p: Tensor, log_q: Tensor | None, top_k: int) -> dict[str, Tensor]:
    """What is kept of one position, by the names of `Rollouts` and `TeacherScores`."""
    ids = choice.tokens[:, None]
    kept = {
        "tokens": choice.tokens,
        "student": log_p.gather(-1, ids)[:, 0],
        "behavior": choice.log_mu.gather(-1, ids)[:, 0],
        **{f"measured.{name}": value.float() for name, value in choice.measured.items()},
    }
    if top_k:
        support = log_p.topk(top_k, dim=-1).indices
        kept["support_ids"] = support
        if log_q is not None:
            kept |= {
                f"teacher.{name}": value for name, value in teacher_statistics(log_q, choice.tokens, support).items()
            }
    return kept


def teacher_statistics(log_q: Tensor, tokens: Tensor, support: Tensor) -> dict[str, Tensor]:
    """Fields of `TeacherScores` at N prefixes: log q (N, V), tokens (N,), support ids (N, K)."""
    own = log_q.topk(support.shape[-1], dim=-1).indices
    q = log_q.exp()
    return {
        "support_BTK": log_q.gather(-1, support),
        "token_BT": log_q.gather(-1, tokens[:, None])[:, 0],
        "entropy_BT": -torch.where(q > 0, q * log_q, 0.0).sum(-1),
        "overlap_BT": (support[:, :, None] == own[:, None, :]).any(-1).float().mean(-1),
    }


class _Record:
    """Per-position values of the rows that were active, assembled into (B, T, …) at the end."""

    def __init__(self, rows: int, device: torch.device):
        self._rows, self._device = rows, device
        self._columns: list[tuple[Tensor, dict[str, Tensor]]] = []

    def add(self, active: Tensor, values: dict[str, Tensor]) -> None:
        self._columns.append((active, values))

    def finish(self, requests: list[Request], eos: int) -> Rollouts:
        fields = {name: self._assemble(name) for name in self._columns[0][1]}
        lengths = torch.zeros(self._rows, dtype=torch.long, device=self._device)
        for active, _ in self._columns:
            lengths[active] += 1
        last = fields["tokens"].gather(1, lengths[:, None] - 1)[:, 0]
        teacher = _part(fields, "teacher.")
        support = fields.get("support_ids", fields["tokens"].new_zeros(self._rows, len(self._columns), 0))
        return Rollouts(
            requests=requests,
            tokens_BT=fields["tokens"],
            lengths_B=lengths.cpu(),
            truncated_B=(last != eos).cpu(),
            student_BT=fields["student"],
            behavior_BT=fields["behavior"],
            support_ids_BTK=support,
            teacher=TeacherScores(**teacher) if teacher else None,
            measured=_part(fields, "measured."),
        )

    def _assemble(self, name: str) -> Tensor:
        first = self._columns[0][1][name]
        out = first.new_zeros((self._rows, len(self._columns), *first.shape[1:]))
        for position, (active, values) in enumerate(self._columns):
            out[active, position] = values[name]
        return out.cpu()


def _part(fields: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in fields.items() if name.startswith(prefix)}
