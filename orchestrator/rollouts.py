"""The nouns that flow between the roles of a trial.

Shape legend: B sequences, T response positions (padded to the longest), K support ids. A response
ends with the student's EOS unless it was truncated; the EOS counts in its length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from orchestrator.policy.randomness import SequenceKey

# Name among `Rollouts.measured`: 1 at a draft of the student that survived, 0 at its replacement.
SURVIVED = "survived"


@dataclass(frozen=True)
class Request:
    """One sequence to be sampled: its prompt's token ids and the key of its randomness."""

    prompt_ids: tuple[int, ...]
    key: SequenceKey


@dataclass(frozen=True)
class TeacherScores:
    """The teacher's statistics at the visited prefixes, in nats, for objective and diagnostics."""

    support_BTK: Tensor  # log q of the support ids
    token_BT: Tensor  # log q of the sampled tokens
    entropy_BT: Tensor  # H(q)
    overlap_BT: Tensor  # |S_p ∩ S_q| / k, S_q = the teacher's own top k


@dataclass(frozen=True)
class Rollouts:
    """Sampled responses with everything later stages need, so that no prefix is scored twice."""

    requests: list[Request]
    tokens_BT: Tensor  # int64, padded beyond a row's length
    lengths_B: Tensor  # int64, ≥ 1
    truncated_B: Tensor  # bool: the length limit was hit
    student_BT: Tensor  # log p of the tokens at T = 1
    behavior_BT: Tensor  # log μ of the tokens
    support_ids_BTK: Tensor  # the student's top-k ids, canonicalised and untempered
    teacher: TeacherScores | None = None
    measured: dict[str, Tensor] = field(default_factory=dict)  # each (B, T), by the behavior's law
    # Of blended steps, each (B,): rounds, drafted, accepted.
    speculation: dict[str, Tensor] = field(default_factory=dict)

    @property
    def mask_BT(self) -> Tensor:
        """True at response positions."""
        positions = torch.arange(self.tokens_BT.shape[1], device=self.tokens_BT.device)
        return positions[None] < self.lengths_B[:, None]

    @property
    def sequence_lengths(self) -> list[int]:
        """Tokens of each prompt and response together."""
        responses = self.lengths_B.tolist()
        return [len(r.prompt_ids) + n for r, n in zip(self.requests, responses, strict=True)]

    def response(self, row: int) -> list[int]:
        """Token ids of one response, its EOS included."""
        return self.tokens_BT[row, : int(self.lengths_B[row])].tolist()


def pad_rows(chunks: list[Tensor]) -> Tensor:
    """Stack (B_i, T_i, …) chunks along B, zero-padded to the longest T."""
    longest = max(chunk.shape[1] for chunk in chunks)
    rows = sum(chunk.shape[0] for chunk in chunks)
    out = chunks[0].new_zeros((rows, longest, *chunks[0].shape[2:]))
    start = 0
    for chunk in chunks:
        out[start : start + chunk.shape[0], : chunk.shape[1]] = chunk
        start += chunk.shape[0]
    return out


def in_order(rollouts: Rollouts, requests: list[Request]) -> Rollouts:
    """Reorder rollouts to match `requests`, a permutation of their own."""
    if rollouts.requests == requests:
        return rollouts
    row_of = {request.key: row for row, request in enumerate(rollouts.requests)}
    rows = torch.tensor([row_of[request.key] for request in requests])

    def ordered(values: Mapping[str, object]) -> dict[str, Tensor]:
        return {name: value[rows] for name, value in values.items() if isinstance(value, Tensor)}

    teacher = rollouts.teacher
    return replace(
        rollouts,
        requests=requests,
        teacher=None if teacher is None else replace(teacher, **ordered(vars(teacher))),
        measured=ordered(rollouts.measured),
        speculation=ordered(rollouts.speculation),
        **ordered(vars(rollouts)),
    )


def concatenate(parts: list[Rollouts]) -> Rollouts:
    """Join the rollouts of several decoding batches; all have teacher scores, or none has."""
    if len(parts) == 1:
        return parts[0]
    requests: list[Request] = []
    for part in parts:
        requests += part.requests
    scores = [part.teacher for part in parts if part.teacher is not None]
    assert len(scores) in (0, len(parts))
    return Rollouts(
        requests=requests,
        teacher=TeacherScores(**_joined(map(vars, scores))) if scores else None,
        measured=_joined(part.measured for part in parts),
        speculation=_joined(part.speculation for part in parts),
        **_joined(map(vars, parts)),
    )


def _joined(parts: Iterable[Mapping[str, object]]) -> dict[str, Tensor]:
    """The tensors of each name under each other: padded to the longest T where they have one.

    All parts come from one behavior, so they have the same names.
    """
    columns: dict[str, list[Tensor]] = {}
    for part in parts:
        for name, value in part.items():
            if isinstance(value, Tensor):
                columns.setdefault(name, []).append(value)
    joined = {}
    for name, values in columns.items():
        joined[name] = torch.cat(values) if values[0].dim() == 1 else pad_rows(values)
    return joined
