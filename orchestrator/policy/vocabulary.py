"""Two models, one vocabulary: EOS canonicalisation and padding ids.

The paper describes them in its Appendix "EOS Canonicalization".

Shapes: … any batch dimensions, V vocabulary rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NEG_INF = float("-inf")  # the log-probability of an id without mass


@dataclass(frozen=True)
class TokenSpace:
    """The ids of both models: ids from `valid` on are padding; the two EOS ids are one stop event.

    The event is emitted as `student_eos`; `teacher_eos` is masked in both models.
    """

    valid: int
    student_eos: int
    teacher_eos: int

    def student_log_prob(self, logits: Tensor) -> Tensor:
        """log p of the student after masking, float32 or better: (…, V) → (…, V).

        The teacher's EOS loses its mass, and p is renormalised: a base student has not learned to
        end a response with this id.
        """
        masked = self._mask_padding(logits)
        if self.teacher_eos != self.student_eos:
            masked[..., self.teacher_eos] = NEG_INF
        return _normalise(masked)

    def teacher_log_prob(self, logits: Tensor) -> Tensor:
        """log q of the teacher with its stop probability moved to `student_eos`: (…, V) → (…, V)."""
        log_q = _normalise(self._mask_padding(logits))
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
        """Copy the logits in float32 or better, −inf at padding ids."""
        wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
        masked = logits.to(wide, copy=True)
        masked[..., self.valid :] = NEG_INF
        return masked


def _normalise(logits: Tensor) -> Tensor:
    """Log-softmax in place.

    The normaliser is summed in float64: float32 sums over 150,000 ids are off by 5e-6, visible at a
    KL budget of 1e-3.
    """
    logits.sub_(logits.detach().amax(-1, keepdim=True))
    total = logits.exp().sum(-1, keepdim=True, dtype=torch.float64)
    return logits.sub_(total.log().to(logits.dtype))
