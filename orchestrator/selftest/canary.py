"""Compares the canaries of trainer and sampler: log p of the same ids in the same weights."""

from __future__ import annotations

import json
from collections.abc import Sequence

from orchestrator.selftest.bench import Bench
from orchestrator.selftest.runner import Found
from orchestrator.workers.canary import TOLERANCE, canary, canary_ids, difference

LEARNER, SAMPLER = "learner", "sampler"


def write_canary(bench: Bench, who: str, log_probs: Sequence[float]) -> None:
    """Write the canary of `who`: its log p of the canary's ids in the student's first weights."""
    content = json.dumps(canary(canary_ids(bench.setup), log_probs))
    (bench.folder / f"canary_of_{who}.json").write_text(content, encoding="utf-8")


def same_weights(bench: Bench) -> Found:
    """Check that both canaries agree, within the tolerance of an engine that loads a checkpoint."""
    read = {}
    for who in (LEARNER, SAMPLER):
        path = bench.folder / f"canary_of_{who}.json"
        if not path.is_file():
            return Found("skipped", f"the {who} did not come far enough to say anything of the ids")
        read[who] = json.loads(path.read_text(encoding="utf-8"))
    dtype = bench.setup.engine.dtype
    apart = difference(read[LEARNER], read[SAMPLER]["log_probs"])
    allowed = TOLERANCE[dtype]
    words = (
        f"{apart:.2g} nats apart on {len(read[LEARNER]['ids'])} ids, {allowed:g} allowed in {dtype}"
    )
    return Found("ok" if apart <= allowed else "fail", words, numbers={"nats": apart})
