"""What decoding keeps of each position, scattered into (B, T, …) as rows advance at their own pace."""

from __future__ import annotations

import torch
from torch import Tensor

from orchestrator.rollouts import Request, Rollouts, TeacherScores


class Record:
    """Values of B rows at up to T positions, by the names of `Rollouts` and `TeacherScores`."""

    def __init__(self, rows: int, max_tokens: int, device: torch.device):
        self._rows, self._max_tokens = rows, max_tokens
        self._fields: dict[str, Tensor] = {}
        self.lengths = torch.zeros(rows, dtype=torch.long, device=device)
        self._counts = {name: torch.zeros_like(self.lengths) for name in ("rounds", "drafted", "accepted")}

    def add(self, rows: Tensor, positions: Tensor, values: dict[str, Tensor]) -> None:
        """Values (N, …) at N pairs of row and position."""
        for name, value in values.items():
            if name not in self._fields:
                self._fields[name] = value.new_zeros((self._rows, self._max_tokens, *value.shape[1:]))
            self._fields[name][rows, positions] = value

    def count(self, rows: Tensor, **amounts: Tensor | int) -> None:
        """Add to the per-row counts of `Rollouts.speculation`."""
        for name, amount in amounts.items():
            self._counts[name][rows] += amount

    def finish(self, requests: list[Request], eos: int, blended: bool) -> Rollouts:
        """The rollouts, trimmed to the longest response."""
        longest = int(self.lengths.max())
        fields = {name: value[:, :longest].cpu() for name, value in self._fields.items()}
        lengths = self.lengths.cpu()
        last = fields["tokens"].gather(1, lengths[:, None] - 1)[:, 0]
        teacher = _part(fields, "teacher.")
        support = fields.get("support_ids", fields["tokens"].new_zeros(self._rows, longest, 0))
        return Rollouts(
            requests=requests,
            tokens_BT=fields["tokens"],
            lengths_B=lengths,
            truncated_B=last != eos,
            student_BT=fields["student"],
            behavior_BT=fields["behavior"],
            support_ids_BTK=support,
            teacher=TeacherScores(**teacher) if teacher else None,
            measured=_part(fields, "measured."),
            speculation={name: value.cpu() for name, value in self._counts.items()} if blended else {},
        )


def _part(fields: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in fields.items() if name.startswith(prefix)}
