"""One objective, forward and backward, at Qwen3-0.6B's head: `python -m
benchmarks.objective_variants NAME`.

Prints its time and its peak memory beyond inputs and weight gradients, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from orchestrator.engines.common.head_loss import summed_loss
from orchestrator.policy import objective

TOKENS, VOCABULARY, HIDDEN, TOP_K = 4096, 151_936, 1024, 16


def plain(name: str, hidden: Tensor, head: Tensor, support: Tensor, log_q: Tensor) -> Tensor:
    """All logits at once."""
    log_p = (hidden @ head.T).log_softmax(-1).gather(-1, support)
    return objective.token_loss(name, log_p, log_q).sum()


def gathered(name: str, hidden: Tensor, head: Tensor, support: Tensor, log_q: Tensor) -> Tensor:
    """The support's rows of the head alone."""
    return summed_loss(
        hidden, head, support, lambda x, part: objective.token_loss(name, x, log_q[part])
    )


def chunked(name: str, hidden: Tensor, head: Tensor, support: Tensor, log_q: Tensor) -> Tensor:
    """The full vocabulary, a chunk of tokens at a time."""

    def loss(logits: Tensor, part: slice) -> Tensor:
        return objective.token_loss(
            name, logits.log_softmax(-1).gather(-1, support[part]), log_q[part]
        )

    return summed_loss(hidden, head, None, loss)


VARIANTS: dict[str, tuple[Callable[..., Tensor], str]] = {
    "plain_renormalized": (plain, "renormalized"),
    "gathered_renormalized": (gathered, "renormalized"),
    "plain_tail": (plain, "tail"),
    "chunked_tail": (chunked, "tail"),
}


def main() -> None:
    torch.set_num_threads(2)
    function, name = VARIANTS[sys.argv[1]]
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN, generator=generator).requires_grad_()
    head = (0.02 * torch.randn(VOCABULARY, HIDDEN, generator=generator)).requires_grad_()
    support = torch.randint(0, VOCABULARY, (TOKENS, TOP_K), generator=generator)
    log_q = torch.randn(TOKENS, TOP_K, generator=generator).log_softmax(-1) - 0.01
    before = reset_peak()
    started = time.perf_counter()
    function(name, hidden, head, support, log_q).backward()
    taken = time.perf_counter() - started
    gradients = sum(tensor.grad.nbytes for tensor in (hidden, head) if tensor.grad is not None)
    print(json.dumps({"seconds": taken, "bytes": peak() - before - gradients}))


def reset_peak() -> int:
    """Resident bytes now; the kernel's record of the peak starts anew."""
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def peak() -> int:
    return status("VmHWM")


def status(field: str) -> int:
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(field)
    )
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
