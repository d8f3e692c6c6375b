"""Records values of decoded positions in (B, T, …), while rows advance at their own pace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from orchestrator.rollouts import Request, Rollouts, TeacherScores


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
