"""`python -m tests.engines.peak TRAINER OBJECTIVE FOLDER`: how much more memory four times the
tokens take.

Prints the bytes by which an update of them passes the peak of one before. A process of its own,
since the peak of a process never falls again. The models have a vocabulary as large as Qwen3's and
next to nothing else, so that tensors over it are what counts.
"""

from __future__ import annotations

import dataclasses
import resource
import sys
from pathlib import Path

import torch

from benchmarks.gpu_parts import models
from benchmarks.gpu_scale import job, made_up, scale
from orchestrator.engines.catalog import open_engine
from orchestrator.policy.spec import Objective

VOCABULARY, PROMPT, NEW_TOKENS, FEW, MANY = 150_000, 8, 248, 4, 16
MORE_LOGITS_BYTES = (
    (MANY - FEW) * NEW_TOKENS * VOCABULARY * 4
)  # of the positions that are added, in float32


def main(trainer: str, objective: str, folder: Path) -> None:
    torch.set_num_threads(1)
    size = dataclasses.replace(
        scale(True, folder),
        vocabulary=VOCABULARY,
        rows=MANY,
        prompt=PROMPT,
        new_tokens=NEW_TOKENS,
    )
    for _ in models(size):  # yields seconds
        pass
    opened = job(size, "torch", trainer)  # pyright: ignore[reportArgumentType]
    engine = open_engine(trainer, dataclasses.replace(opened, takes_turns=False))
    training = engine.trainer()
    goal = Objective(objective)  # pyright: ignore[reportArgumentType]
    training.step(*made_up(dataclasses.replace(size, rows=FEW)), goal, 0)
    before = peak_bytes()
    training.step(*made_up(size), goal, 1)
    print(peak_bytes() - before)
    engine.close()


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
