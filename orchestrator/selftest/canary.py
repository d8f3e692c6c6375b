"""Compares the canaries of trainer and sampler: log p of the same ids in the same weights."""

from __future__ import annotations

import json
from collections.abc import Sequence

from orchestrator.selftest.bench import Bench
from orchestrator.selftest.runner import Found
from orchestrator.workers.canary import MOST_ON_ODD_IDS, Apart, apart

LEARNER, SAMPLER = "learner", "sampler"
# Measured on random weights of SmolLM2-135M's shape: see `docs/engines.md`.
MOST_ON_RANDOM_WEIGHTS = {"float32": Apart(1e-3, 1e-3), "bfloat16": Apart(0.05, 0.05)}


def write_canary(bench: Bench, who: str, log_probs: Sequence[float]) -> None:
    """Write the canary of `who`: its log p of the odd ids in the student's first weights."""
    content = json.dumps(list(log_probs))
    (bench.folder / f"canary_of_{who}.json").write_text(content, encoding="utf-8")


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
    return Found("ok" if found <= allowed else "fail", words, numbers={"nats": found})
