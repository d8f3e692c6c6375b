"""Two models, one vocabulary: EOS canonicalisation and padding ids (paper, Appendix "EOS Canonicalization").

Shapes: … any batch dimensions, V vocabulary rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NEG_INF = float("-inf")


@dataclass(frozen=True)
class TokenSpace:
    """Ids both models share: those from `valid` on are padding; the two EOS ids are one stop event.

    The event is emitted as `student_eos`; `teacher_eos` is masked in both models.
    """

    valid: int
    student_eos: int
    teacher_eos: int

    def student_log_prob(self, logits: Tensor) -> Tensor:
        """log p of the student after masking, float32 or better: (…, V) → (…, V).

        The mass of the duplicate coordinate is removed and p renormalised: a base student that emits the
        teacher's stop id means nothing by it.
        """
        masked = self._mask_padding(_at_least_float32(logits))
        if self.teacher_eos != self.student_eos:
            masked[..., self.teacher_eos] = NEG_INF
        return _log_softmax(masked)

    def teacher_log_prob(self, logits: Tensor) -> Tensor:
        """log q of the teacher with its stop probability moved to `student_eos`: (…, V) → (…, V)."""
        log_q = _log_softmax(self._mask_padding(_at_least_float32(logits)))
        if self.teacher_eos != self.student_eos:
            stop = torch.logaddexp(log_q[..., self.student_eos], log_q[..., self.teacher_eos])
            log_q[..., self.student_eos] = stop
            log_q[..., self.teacher_eos] = NEG_INF
        return log_q

    def is_masked(self, ids: Tensor) -> Tensor:
        """True for ids that no canonicalised distribution gives mass."""
        duplicate = (ids == self.teacher_eos) & (self.teacher_eos != self.student_eos)
        return (ids >= self.valid) | duplicate

    def _mask_padding(self, logits: Tensor) -> Tensor:
        masked = logits.clone()
        masked[..., self.valid :] = NEG_INF
        return masked


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _log_softmax(logits: Tensor) -> Tensor:
    """log-softmax whose normaliser is summed in float64: float32 sums over 150,000 ids are off by 5e-6,
    which a KL budget of 1e-3 would notice."""
    log_prob = logits.log_softmax(-1)
    return log_prob - log_prob.exp().sum(-1, keepdim=True, dtype=torch.float64).log().to(log_prob.dtype)
