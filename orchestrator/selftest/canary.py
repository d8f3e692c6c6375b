"""Compares trainer and sampler in the same weights: log p of the same ids, and of drawn tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from orchestrator.selftest.bench import Bench
from orchestrator.selftest.runner import Found
from orchestrator.workers.canary import MOST_ON_ODD_IDS, Apart, apart

if TYPE_CHECKING:
    from orchestrator.rollouts import Rollouts

LEARNER, SAMPLER = "learner", "sampler"
DRAWN, APART = "drawn.json", "drawn_apart.json"
DRAWN_ROWS = 8  # responses of the sampler that the trainer reads
# Measured on random weights of SmolLM2-135M's shape: see `docs/engines.md`.
MOST_ON_RANDOM_WEIGHTS = {"float32": Apart(1e-3, 1e-3), "bfloat16": Apart(0.05, 0.05)}


def write_canary(bench: Bench, who: str, log_probs: Sequence[float]) -> None:
    """Write the canary of `who`: its log p of the odd ids in the student's first weights."""
    content = json.dumps(list(log_probs))
    (bench.folder / f"canary_of_{who}.json").write_text(content, encoding="utf-8")


def write_drawn(bench: Bench, rollouts: Rollouts) -> None:
    """Write some of the sampler's responses with its log p of their tokens."""
    rows: list[dict[str, list[float]]] = []
    for row, request in enumerate(rollouts.requests[:DRAWN_ROWS]):
        count = int(rollouts.lengths_B[row])
        log_probs = rollouts.student_BT[row, :count].tolist()
        rows.append({"ids": [*request.prompt_ids, *rollouts.response(row)], "log_probs": log_probs})
    (bench.folder / DRAWN).write_text(json.dumps(rows), encoding="utf-8")


def read_drawn(bench: Bench, log_probs_of: Callable[[Sequence[int]], list[float]]) -> None:
    """Write how far the trainer's log p of the drawn tokens are from the sampler's, in nats."""
    path = bench.folder / DRAWN
    if not path.is_file():
        return
    apart_by: list[float] = []
    for row in json.loads(path.read_text(encoding="utf-8")):
        here = log_probs_of(row["ids"])[-len(row["log_probs"]) :]
        apart_by += [its - ours for its, ours in zip(here, row["log_probs"], strict=True)]
    (bench.folder / APART).write_text(json.dumps(apart_by), encoding="utf-8")


def divergence(bench: Bench) -> float | None:
    """KL(sampler‖trainer) of one policy, in nats a token, from the drawn tokens; None without them.

    The mean of exp(d) − 1 − d over the differences d of the two log p: its expectation is the
    divergence, and each of its terms is positive (http://joschu.net/blog/kl-approx.html).
    """
    path = bench.folder / APART
    if not path.is_file():
        return None
    differences = json.loads(path.read_text(encoding="utf-8"))
    return sum(math.expm1(each) - each for each in differences) / max(1, len(differences))


def same_weights(bench: Bench) -> Found:
    """Check that both canaries agree, within a bound for what stands for the student here."""
    read = {}
    for who in (LEARNER, SAMPLER):
        path = bench.folder / f"canary_of_{who}.json"
        if not path.is_file():
            return Found("skipped", f"the {who} did not come far enough to say anything of the ids")
        read[who] = json.loads(path.read_text(encoding="utf-8"))
    dtype = bench.setup.engine.dtype
    # Random weights give almost equal probabilities, which rounding moves little.
    bounds = MOST_ON_RANDOM_WEIGHTS if "student" in bench.made else MOST_ON_ODD_IDS
    found = apart([read[LEARNER]], [read[SAMPLER]]).spread
    allowed = bounds[dtype].spread
    words = (
        f"{found:.2g} nats apart on {len(read[LEARNER]) + 1} ids, {allowed:g} allowed in {dtype}"
    )
    numbers = {"nats": found, "allowed": allowed}
    kl = divergence(bench)
    if kl is not None:
        words += f"; KL of the sampler's law from the trainer's {kl:.2g} nats a token"
        numbers["kl"] = kl
    return Found("ok" if found <= allowed else "fail", words, numbers=numbers)
