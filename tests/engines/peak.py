"""`python -m tests.engines.peak TRAINER OBJECTIVE FOLDER`: how much more memory four times the
tokens take.

Prints the bytes by which an update of them passes the peak of one before. A process of its own,
since the peak of a process never falls again. The models have a vocabulary as large as Qwen3's and
next to nothing else, so that tensors over it are what counts.
"""

from __future__ import annotations

import resource
import sys
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.decoding import random_model
from benchmarks.gpu import SMALL
from benchmarks.paper_sweep import PAPER
from orchestrator.checks.bench import OWNERS
from orchestrator.checks.measures import rollouts
from orchestrator.config import EngineConfig
from orchestrator.engines.catalog import open_engine
from orchestrator.engines.interface import Job, ModelFolder
from orchestrator.experiment.load import load_experiment
from orchestrator.models.recipes import make_tokenizer
from orchestrator.pair import Model, Vocabulary
from orchestrator.policy.spec import Objective

VOCABULARY, PROMPT, NEW_TOKENS, FEW, MANY = 150_000, 8, 248, 4, 16
MORE_LOGITS_BYTES = (
    (MANY - FEW) * NEW_TOKENS * VOCABULARY * 4
)  # of the positions that are added, in float32


def main(trainer: str, objective: str, folder: Path) -> None:
    torch.set_num_threads(1)
    experiment = load_experiment(PAPER)
    setup = replace(
        experiment.setups["qwen3-1.7b"],
        student=Model(eos=VOCABULARY - 2, shape=SMALL),
        teacher=Model(eos=VOCABULARY - 1, shape=SMALL),
        vocabulary=Vocabulary(VOCABULARY, VOCABULARY),
        engine=EngineConfig(dtype="float32", trainer=trainer),  # pyright: ignore[reportArgumentType]
    )
    for seed, owner in enumerate(OWNERS):
        made = random_model(SMALL, VOCABULARY, owner, seed, 0.02)
        made.model.save_pretrained(folder / owner)
        make_tokenizer("bytes").save_pretrained(folder / owner)
    pair = [ModelFolder(str(folder / owner)) for owner in OWNERS]
    engine = open_engine(trainer, Job(setup, experiment.runtime, *pair, steps=100))
    training = engine.trainer()
    goal = Objective(objective)  # pyright: ignore[reportArgumentType]
    training.step(*rollouts(setup, PROMPT, [NEW_TOKENS] * FEW), goal, 0)
    before = peak_bytes()
    training.step(*rollouts(setup, PROMPT, [NEW_TOKENS] * MANY), goal, 1)
    print(peak_bytes() - before)
    engine.close()


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
