"""Two models, one vocabulary: EOS canonicalisation and padding ids.

The paper describes them in its Appendix "EOS Canonicalization", for one EOS of each model. Here a
model may end its responses with any of several ids.

Shapes: … any batch dimensions, V vocabulary rows that both models have, K support ids, E other stop ids of the student.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from orchestrator.config import Setup

NEG_INF = float("-inf")  # the log-probability of an id without mass


@dataclass(frozen=True)
class TokenSpace:
    """The ids of both models: ids from `valid` on are padding; all stop ids are one stop event.

    `student_eos` and `teacher_eos` are the stop ids of each model, one or several. The event is
    emitted as the student's first; all other stop ids are masked in both models. Of tables that
    are padded to different sizes the first `rows` are compared; None takes all.
    """

    valid: int
    student_eos: int | Sequence[int]
    teacher_eos: int | Sequence[int]
    rows: int | None = None

    @staticmethod
    def of(setup: Setup) -> TokenSpace:
        """The ids of a setup's models."""
        vocabulary = setup.vocabulary
        return TokenSpace(vocabulary.valid, setup.student.eos, setup.teacher.eos, vocabulary.size)

    @property
    def emitted(self) -> int:
        """The id of the stop event in responses."""
        return _ids(self.student_eos)[0]

    @property
    def others(self) -> tuple[int, ...]:
        """The E stop ids of the student whose mass belongs to the event beside the emitted one."""
        return _ids(self.student_eos)[1:]

    @property
    def teachers(self) -> tuple[int, ...]:
        """The stop ids of the teacher that are none of the student's."""
        own = _ids(self.student_eos)
        return tuple(number for number in _ids(self.teacher_eos) if number not in own)

    def student_log_prob(self, logits: Tensor) -> Tensor:
        """log p of the student after masking, float32 or better: (…, V) → (…, V).

        Its own stop ids are summed. The teacher's lose their mass, and p is renormalised: a base
        student has not learned to end a response with these ids.
        """
        masked = self._mask_padding(logits)
        for number in self.teachers:
            masked[..., number] = NEG_INF
        self._merge(masked, self.others)
        return _normalise(masked)

    def teacher_log_prob(self, logits: Tensor) -> Tensor:
        """log q of the teacher with all its stop probability at the emitted id: (…, V) → (…, V)."""
        log_q = _normalise(self._mask_padding(logits))
        self._merge(log_q, self.others + self.teachers)
        return log_q

    def is_masked(self, ids: Tensor) -> Tensor:
        """True for ids that no canonicalised distribution gives mass."""
        masked = ids >= self.valid
        for number in self.others + self.teachers:
            masked = masked | (ids == number)
        return masked

    def with_others(self, support: Tensor) -> Tensor:
        """The ids whose logits `support_logits` reads: (N, K) → (N, K + E)."""
        if not self.others:
            return support
        others = support.new_tensor(self.others).expand(len(support), -1)
        return torch.cat([support, others], -1)

    def support_logits(self, logits: Tensor, support: Tensor) -> Tensor:
        """The student's log p on its support but for a constant in each row: (N, K + E) → (N, K).

        The logits are those of the ids of `with_others`.
        """
        size = support.shape[-1]
        shared = logits[:, :size].masked_fill(self.is_masked(support), NEG_INF)
        if not self.others:
            return shared
        stop = torch.logaddexp(shared, logits[:, size:].logsumexp(-1, keepdim=True))
        return torch.where(support == self.emitted, stop, shared)

    def _merge(self, log_prob: Tensor, ids: Sequence[int]) -> None:
        """Move the mass of `ids` to the emitted id, in place."""
        if not ids:
            return
        # Copies, since a gradient needs the values that are overwritten below.
        stop = log_prob[..., self.emitted].clone()
        for number in ids:
            stop = torch.logaddexp(stop, log_prob[..., number].clone())
            log_prob[..., number] = NEG_INF
        log_prob[..., self.emitted] = stop

    def _mask_padding(self, logits: Tensor) -> Tensor:
        """Copy the logits of shared rows in float32 or better, −inf at padding ids."""
        wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
        masked = logits[..., : self.rows].to(wide, copy=True)
        masked[..., self.valid :] = NEG_INF
        return masked


def _ids(eos: int | Sequence[int]) -> tuple[int, ...]:
    return (eos,) if isinstance(eos, int) else tuple(eos)


def _normalise(logits: Tensor) -> Tensor:
    """Log-softmax in place.

    The normaliser is summed in float64: float32 sums over 150,000 ids are off by 5e-6, visible at a
    KL budget of 1e-3.
    """
    logits.sub_(logits.detach().amax(-1, keepdim=True))
    total = logits.exp().sum(-1, keepdim=True, dtype=torch.float64)
    return logits.sub_(total.log().to(logits.dtype))
