"""Losses from hidden states and the LM head, chunk by chunk, and the learning rate of a step.

All logits never exist at once. The forward pass computes the gradients of hidden states and head
while a chunk's logits exist, so memory holds one chunk instead of tokens × vocabulary. A loss on a
few logits of each token gathers only the rows of the head for these.

Shapes: N tokens, H hidden, V vocabulary rows, K gathered ids of each token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from orchestrator.config import Optimizer
from orchestrator.engines.common.passes import Inputs, inputs, micro_batches, response_tokens
from orchestrator.policy import objective
from orchestrator.policy.objective import Recorded, discrepancy_before, weigh
from orchestrator.policy.spec import Divergence, Everywhere, Objective
from orchestrator.policy.vocabulary import TokenSpace
from orchestrator.rollouts import Rollouts, TeacherScores

# Logits, or gathered head values, of one chunk. On GPUs the cost is reading and writing the head's
# whole gradient for each chunk. Chunks are therefore long: 883 tokens of Qwen3's vocabulary, at
# about 20 bytes per logit.
CHUNK_ELEMENTS = {"cpu": 2**24, "cuda": 2**27}

WIDENED = 2**17  # values of a 16-bit head that a CPU widens at once: they fit into its caches

# Losses (n,) from a chunk's logits, (n, V) or (n, K), and its slice of tokens.
LossOfLogits = Callable[[Tensor, slice], Tensor]


def summed_loss(hidden: Tensor, head: Tensor, support: Tensor | None, loss: LossOfLogits) -> Tensor:
    """Σ over N tokens of `loss`, differentiable in hidden (N, H) and head (V, H).

    With `support` (N, K) the loss sees the logits of those ids alone. Logits are float32 or better.
    """
    return _SummedLoss.apply(hidden, head, support, loss)  # pyright: ignore[reportReturnType]


def head_logits(hidden: Tensor, head: Tensor, bias: Tensor | None = None) -> Tensor:
    """Logits (…, V) of hidden states (…, H) and a head (V, H), in float32 or better.

    Products of 16-bit numbers are exact in float32, so that only their sum is rounded. The head is
    taken in the dtype of the hidden states, in which samplers have it.
    """
    with torch.autocast(hidden.device.type, enabled=False):
        head = head.to(hidden.dtype)
        if hidden.dtype not in (torch.bfloat16, torch.float16):
            return linear(hidden, head, None if bias is None else bias.to(hidden.dtype))
        rows = hidden.flatten(0, -2)
        if _accumulates_precisely(rows):
            logits = _product(rows, head.T)
        else:
            # Widened part by part: a float32 copy of the whole head would be written and read again
            # for each token of a decoding step.
            logits = rows.new_empty(len(rows), len(head), dtype=torch.float32)
            wide = rows.float().T.contiguous()
            size = max(1, WIDENED // head.shape[1])
            for start in range(0, len(head), size):
                part = slice(start, start + size)
                logits[:, part] = (head[part].float() @ wide).T
        if bias is not None:
            logits += bias
        return logits.unflatten(0, hidden.shape[:-1])


class _SummedLoss(torch.autograd.Function):
    """The sum with its gradients from the forward pass; the backward pass only scales them."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, support: Tensor | None, loss: LossOfLogits
    ) -> Tensor:
        # In float32 even for a bfloat16 head: an id's row sums over many tokens and chunks.
        head_gradient = torch.zeros_like(head, dtype=_precise(head.dtype))
        hidden_gradient = torch.empty_like(hidden)
        total = torch.zeros((), dtype=_precise(hidden.dtype), device=hidden.device)
        width = head.shape[0] if support is None else support.shape[1] * head.shape[1]
        size = max(1, CHUNK_ELEMENTS[hidden.device.type] // width)
        cast = head.to(hidden.dtype)
        for start in range(0, len(hidden), size):
            part = slice(start, min(start + size, len(hidden)))
            ids = None if support is None else support[part]
            total += _chunk(
                hidden[part], cast, ids, part, loss, hidden_gradient[part], head_gradient
            )
        ctx.gradients = hidden_gradient, head_gradient.to(head.dtype)
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        # Scaled in place and handed over, since the head's gradient is as large as the head. The
        # backward pass therefore runs only once.
        hidden_gradient, head_gradient = ctx.gradients
        ctx.gradients = None
        for gradient in (hidden_gradient, head_gradient):
            gradient.mul_(upstream[0].to(gradient.dtype))
        return hidden_gradient, head_gradient, None, None


def _chunk(
    hidden: Tensor,
    head: Tensor,
    ids: Tensor | None,
    part: slice,
    loss: LossOfLogits,
    to_hidden: Tensor,
    to_head: Tensor,
) -> Tensor:
    """Loss of one chunk; its gradients are written to `to_hidden` and added to `to_head`.

    A separate function, so that a chunk's logits are freed before the next chunk's are made.
    """
    if ids is None:
        rows = head
        logits = _product(hidden, head.T)
    else:
        rows = head[ids]  # (n, K, H)
        logits = _product(rows, hidden[:, :, None])[:, :, 0]
    leaf = logits.detach().requires_grad_()
    with torch.enable_grad():
        value = loss(leaf, part).sum()
        gradient = torch.autograd.grad(value, leaf)[0].to(hidden.dtype)
    if ids is None:
        to_hidden.copy_(gradient @ head)
        _add_product(to_head, gradient.T, hidden)
    else:
        # An id may be in the support of many tokens; its row of the head sums over them.
        to_hidden.copy_((gradient[:, None, :] @ rows)[:, 0])
        outer = gradient[:, :, None] * hidden[:, None, :]
        to_head.index_add_(0, ids.flatten(), outer.flatten(0, 1).to(to_head.dtype))
    return value.detach()


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b of matrices, or of batches of them, in float32 or better."""
    if _accumulates_precisely(a):
        multiply = torch.mm if a.dim() == 2 else torch.bmm
        return multiply(a, b, out_dtype=torch.float32)
    return (a @ b).to(_precise(a.dtype))


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a @ b to `total`, which is float32 or better, without a copy of its size on CUDA."""
    if _accumulates_precisely(a):
        torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(a.to(total.dtype), b.to(total.dtype))


def _accumulates_precisely(tensor: Tensor) -> bool:
    """Whether PyTorch multiplies with a float32 result on tensor cores: 16-bit matrices on CUDA."""
    return tensor.device.type == "cuda" and tensor.dtype in (torch.bfloat16, torch.float16)


def _precise(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


# --- the loss of every trainer: the objective on response tokens, from hidden states and an LM head ---
#
# Shapes: N response tokens of a micro-batch, flattened; H hidden; V vocabulary rows; K support ids.
# The trainer passes the head, and alone knows how the model is spread over devices.


MASS_SAMPLE = 512  # tokens of a micro-batch on which M and the sampler's gap are measured
MEASURED = ("support_mass_student", "support_mass_teacher", "sampler_gap", "sampler_kl")


@dataclass(frozen=True)
class Targets:
    """Training targets of the N tokens of a micro-batch; `log_q` is None without scores."""

    tokens: Tensor  # (N,)
    support: Tensor  # (N, K)
    recorded: Recorded  # each (N,)
    log_mu: Tensor  # (N,) of the tokens, under the policy that sampled them
    log_q: Tensor | None = None  # (N, K)

    @staticmethod
    def gather(rollouts: Rollouts, scores: TeacherScores | None, group: Sequence[int]) -> Targets:
        """Gather the targets at all response tokens of the rows in `group`, row by row."""
        batch_rows = torch.tensor(group, dtype=torch.long)
        log_p = rollouts.student_BT[batch_rows]
        mask = rollouts.mask_BT[batch_rows]
        # Only the likelihood comes without scores, and it never reads these.
        log_q = entropy = torch.full_like(log_p, torch.nan)
        if scores is not None:
            log_q, entropy = scores.token_BT[batch_rows], scores.entropy_BT[batch_rows]
        rows, positions = response_tokens(rollouts.lengths_B[batch_rows], range(len(batch_rows)))
        at = batch_rows[rows], positions
        # It compares a token with the others of its response, so it takes whole responses: the
        # result does not depend on how the batch is cut.
        before = discrepancy_before(log_p, log_q, mask)
        recorded = Recorded(
            log_p=log_p[rows, positions],
            log_q=log_q[rows, positions],
            entropy=entropy[rows, positions],
            before=before[rows, positions],
        )
        support_log_q = None if scores is None else scores.support_BTK[at]
        return Targets(
            rollouts.tokens_BT[at],
            rollouts.support_ids_BTK[at],
            recorded,
            rollouts.behavior_BT[at],
            support_log_q,
        )

    def to(self, device: torch.device) -> Targets:
        """The same on another device."""
        return self._each(lambda values: values.to(device))

    def part(self, part: slice) -> Targets:
        """Some of the tokens."""
        return self._each(lambda values: values[part])

    def _each(self, change: Callable[[Tensor], Tensor]) -> Targets:
        tokens = change(self.tokens)
        support = change(self.support)
        recorded = Recorded(*map(change, vars(self.recorded).values()))
        log_q = None if self.log_q is None else change(self.log_q)
        return Targets(tokens, support, recorded, change(self.log_mu), log_q)


@dataclass(frozen=True)
class MicroBatch:
    """Rows of a batch with the targets of their response tokens. It may have no rows."""

    rows: list[int]  # in the whole batch
    prompts: list[tuple[int, ...]]
    responses: list[list[int]]
    targets: Targets

    @staticmethod
    def gather(rollouts: Rollouts, scores: TeacherScores | None, group: list[int]) -> MicroBatch:
        """The rows in `group`."""
        return MicroBatch(
            group,
            [rollouts.requests[row].prompt_ids for row in group],
            [rollouts.response(row) for row in group],
            Targets.gather(rollouts, scores, group),
        )

    @property
    def tokens(self) -> int:
        """N."""
        return len(self.targets.tokens)

    def inputs(self, device: torch.device, packed: bool) -> Inputs:
        """The model inputs; of one token for an empty batch, since a pass needs some."""
        if not self.rows:
            return inputs([(0,)], [[]], device, packed)
        return inputs(self.prompts, self.responses, device, packed)


def micro_batches_of(
    rollouts: Rollouts, scores: TeacherScores | None, max_tokens: int, packed: bool
) -> Iterator[MicroBatch]:
    """Yield all rows of a batch, grouped as in `passes.micro_batches`."""
    for group in micro_batches(rollouts.sequence_lengths, max_tokens, packed):
        yield MicroBatch.gather(rollouts, scores, group)


def summed_objective(
    hidden: Tensor, head: Tensor, targets: Targets, goal: Objective, space: TokenSpace
) -> Tensor:
    """Σ of the objective over the N tokens, differentiable in hidden (N, H) and head (V, H).

    No temporary is as large as tokens × vocabulary; see the head of this file.
    """
    if goal.on_support:
        # p̄ is the softmax of the support's logits; other logits are not needed.
        def on_support(logits: Tensor, part: slice) -> Tensor:
            log_p = space.support_logits(logits, targets.support[part])
            return support_losses(log_p, None, targets.part(part), goal)

        return summed_loss(hidden, head, space.with_others(targets.support), on_support)

    def on_vocabulary(logits: Tensor, part: slice) -> Tensor:
        return full_losses(space.student_log_prob(logits), targets.part(part), goal)

    return summed_loss(hidden, head, None, on_vocabulary)


@dataclass(frozen=True)
class Readings:
    """Measurements of a micro-batch: sums over its tokens by column, and |Δ| of the read tokens.

    Δ is the difference of the sampled token's log p between the learner and the sampler, which hold
    the same weights and differ by rounding.
    """

    sums: dict[str, float]
    gaps: list[float]


@torch.no_grad()
def measure(hidden: Tensor, head: Tensor, targets: Targets, space: TokenSpace) -> Readings:
    """Measure the support's masses, M of the student and Q of the teacher, and the sampler's gap.

    Empty without scores. M and the gap are scaled up from an even subsample of the tokens, since
    only they need logits over the full vocabulary.
    """
    if targets.log_q is None:
        return Readings({}, [])
    if not len(hidden):
        return Readings(dict.fromkeys(MEASURED, 0.0), [])
    stride = -(-len(hidden) // MASS_SAMPLE)
    read = targets.part(slice(None, None, stride))
    log_p = space.student_log_prob(head_logits(hidden[::stride], head))
    share = objective.support_mass(log_p.gather(-1, read.support)).mean()
    gap = (log_p.gather(-1, read.tokens[:, None])[:, 0] - read.recorded.log_p).double()
    # Tokens come from μ, so that the weight p/μ makes the mean one over p: its expectation is the
    # divergence of the sampler's p from the learner's, and no summand is negative (Schulman 2020).
    divergence = (read.recorded.log_p - read.log_mu).double().exp() * (gap.expm1() - gap)
    of_teacher = objective.support_mass(targets.log_q).sum()
    means = [share, of_teacher, gap.abs().mean(), divergence.mean()]
    # One copy to the host, which waits for the device once.
    values = torch.cat([torch.stack([mean.double() for mean in means]), gap.abs()]).cpu().tolist()
    count = len(hidden)
    sums = [values[0] * count, values[1], values[2] * count, values[3] * count]
    return Readings(dict(zip(MEASURED, sums, strict=True)), values[4:])


def largest_gap(gaps: list[float]) -> dict[str, float]:
    """The column of the 99th percentile of |Δ| over a step's read tokens; empty without any."""
    if not gaps:
        return {}
    return {"sampler_gap_p99": float(torch.tensor(gaps, dtype=torch.float64).quantile(0.99))}


def full_losses(log_p: Tensor, targets: Targets, goal: Objective) -> Tensor:
    """Losses (N,) from the student's log p over the whole vocabulary (N, V)."""
    of_tokens = log_p.gather(-1, targets.tokens[:, None])[:, 0]
    if goal.name == "nll":
        return -of_tokens
    return support_losses(log_p.gather(-1, targets.support), of_tokens, targets, goal)


def support_losses(
    log_p: Tensor, of_tokens: Tensor | None, targets: Targets, goal: Objective
) -> Tensor:
    """Losses (N,) from log p on the support (N, K), and from the sampled tokens' log p (N,).

    A goal that is `on_support` needs no log p of the tokens. It renormalises log p on the support,
    so that a constant may be added to a token's log p: raw logits serve as well.
    """
    assert targets.log_q is not None
    target = objective.target_of(goal.target, goal.name, log_p, targets.log_q)
    total = None
    for term in goal.terms:
        if isinstance(term.loss, Divergence):
            losses = objective.token_loss(goal.name, log_p, target, term.loss)
        else:
            assert of_tokens is not None
            losses = objective.sampled_loss(term.loss, of_tokens, targets.recorded.log_q)
        if not isinstance(term.where, Everywhere):
            losses = losses * weigh(term.where, targets.recorded)
        total = losses if total is None else total + losses
    assert total is not None
    return total


# --- the learning rate of each update: a cosine warmup, then constant or falling ---


def learning_rate(optimizer: Optimizer, step: int, steps: int) -> float:
    """The rate of update k = `step` of N = `steps`, with a warmup of W updates.

    lr·½(1 − cos(π(k+1)/W)) for k < W; then lr, or lr·(N − k)/(N − W) under `decay: linear`. The
    last update k = N − 1 thus keeps a rate above zero.
    """
    warmup = optimizer.warmup_steps
    if step < warmup:
        return optimizer.lr * 0.5 * (1 - math.cos(math.pi * (step + 1) / warmup))
    if optimizer.decay == "linear":
        return optimizer.lr * (steps - step) / (steps - warmup)
    return optimizer.lr
