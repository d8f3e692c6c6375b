"""One objective, forward and backward, at Qwen3-0.6B's head: `python -m
benchmarks.objective_variants NAME`.

Prints its time and its peak memory beyond inputs and weight gradients, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from orchestrator.engines.common.learning import Targets, full_losses, summed_objective
from orchestrator.policy.objective import Recorded
from orchestrator.policy.spec import (
    ForwardKL,
    JensenShannon,
    Objective,
    SampledToken,
    TeacherKeeps,
    Term,
)
from orchestrator.policy.vocabulary import TokenSpace

TOKENS, VOCABULARY, HIDDEN, TOP_K = 4096, 151_936, 1024, 16


@dataclass(frozen=True)
class Variant:
    """One way to compute one objective."""

    way: Callable[[Objective, Tensor, Tensor, Targets], Tensor]
    goal: Objective


def plain(goal: Objective, hidden: Tensor, head: Tensor, targets: Targets) -> Tensor:
    """All logits at once."""
    return full_losses((hidden @ head.T).log_softmax(-1), targets, goal).sum()


def shipped(goal: Objective, hidden: Tensor, head: Tensor, targets: Targets) -> Tensor:
    """As every trainer does: the support's rows of the head alone where they are enough, else the
    whole vocabulary, a chunk of tokens at a time.
    """
    return summed_objective(hidden, head, targets, goal, SPACE)


def of(name: str, *terms: Term) -> Objective:
    return Objective(name, terms=terms)


SPACE = TokenSpace(VOCABULARY, VOCABULARY - 1, VOCABULARY - 1)
REVERSE, FORWARD, BOTH = Term(), Term(ForwardKL()), Term(JensenShannon(0.5))
WEIGHED = Term(FORWARD.loss, TeacherKeeps(inverted=True))
VARIANTS: dict[str, Variant] = {
    "plain_renormalized": Variant(plain, of("renormalized", REVERSE)),
    "gathered_renormalized": Variant(shipped, of("renormalized", REVERSE)),
    "gathered_forward_kl": Variant(shipped, of("renormalized", FORWARD)),
    "gathered_jsd": Variant(shipped, of("renormalized", BOTH)),
    "gathered_mixture": Variant(shipped, of("renormalized", Term(where=TeacherKeeps()), WEIGHED)),
    "plain_tail": Variant(plain, of("tail", REVERSE)),
    "chunked_tail": Variant(shipped, of("tail", REVERSE)),
    "chunked_forward_kl": Variant(shipped, of("tail", FORWARD)),
    "chunked_sampled": Variant(shipped, of("renormalized", Term(SampledToken(5.0)))),
}


def main() -> None:
    torch.set_num_threads(2)
    variant = VARIANTS[sys.argv[1]]
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN, generator=generator).requires_grad_()
    head = (0.02 * torch.randn(VOCABULARY, HIDDEN, generator=generator)).requires_grad_()
    targets = made_up_targets(generator)
    before = reset_peak()
    started = time.perf_counter()
    variant.way(variant.goal, hidden, head, targets).backward()
    taken = time.perf_counter() - started
    gradients = sum(tensor.grad.nbytes for tensor in (hidden, head) if tensor.grad is not None)
    print(json.dumps({"seconds": taken, "bytes": peak() - before - gradients}))


def made_up_targets(generator: torch.Generator) -> Targets:
    """A random support and a teacher's distribution on it, for every token."""
    support = torch.randint(0, VOCABULARY, (TOKENS, TOP_K), generator=generator)
    log_q = torch.randn(TOKENS, TOP_K, generator=generator).log_softmax(-1) - 0.01
    of_tokens = -torch.rand(3, TOKENS, generator=generator)
    share = -of_tokens[2]
    recorded = Recorded(
        log_p=of_tokens[0],
        log_q=of_tokens[1],
        entropy=share,
        before=share,
    )
    return Targets(support[:, 0], support, recorded, log_q)


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
