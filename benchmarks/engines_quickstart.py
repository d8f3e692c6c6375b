"""A reduced quickstart on SGLang and verl, from `trb submit` to its table, over a cluster of two
nodes on this machine.

    python -m benchmarks.engines_quickstart [KEY=VALUE …]

Overrides come after those that reduce it. The results are in a folder that is printed at the end,
with the seconds. Wants `make setup-engines`, and five minutes of two idle cores: without a GPU
SGLang starts in half a minute, and each process that samples has an engine of its own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

from tests.nodes import start_nodes
from tests.sweeps import ROOT, TRB, environment

NODES = 2
REDUCED = [
    *(f"methods.{name}=null" for name in ("fixed_epsilon", "veto", "skd", "temperature_warmup")),
    "methods.vanilla.seeds=[0]",
    "methods.trust_region.seeds=[0]",
    "methods.trust_region.K=[2]",
    "methods.sft_warmup.K=[2]",
    "training.steps=4",
    "training.checkpoint_every=4",
    "training.prompts_per_step=8",
    "training.sft={updates: 2, checkpoints: [2]}",
    "evaluation.rescore=false",
]
ENGINES = ["engine.sampler=sglang", "engine.trainer=verl"]


def main(overrides: list[str]) -> int:
    runs = tempfile.mkdtemp(prefix="trb-engines-")
    with start_nodes(NODES) as nodes:
        command = [*TRB, "submit", "experiments/quickstart.yaml", *ENGINES, *REDUCED, *overrides]
        started = time.monotonic()
        done = subprocess.run(
            [*command, "--runs", runs, "--address", nodes.address],
            cwd=ROOT,
            env=environment(),
            check=False,
        )
        seconds = time.monotonic() - started
    print(f"{seconds:.0f} s over {NODES} nodes, exit status {done.returncode}; {runs}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
