"""Training prompts: one deterministic order for all methods.

Repeats are removed before the order is drawn and over-long prompts are passed over, so a step's prompts are
the same whatever the method and however many steps are run.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from transformers import PreTrainedTokenizerBase

from orchestrator.config import Data, Setup
from orchestrator.errors import UserError
from orchestrator.tasks import arithmetic
from orchestrator.tasks.openthoughts import openthoughts_problems
from orchestrator.tasks.problem import Problem
from orchestrator.tasks.problem_files import read_problems
from orchestrator.tasks.prompts import render


@dataclass(frozen=True)
class TrainingPrompt:
    """A problem with its rendered token ids."""

    problem: Problem
    ids: tuple[int, ...]


@dataclass(frozen=True)
class TrainingSet:
    """Prompts in training order, and what was left out on the way."""

    prompts: list[TrainingPrompt]
    too_long: int  # prompts passed over on the way

    def batch(self, index: int, size: int) -> list[tuple[int, TrainingPrompt]]:
        """The prompts of batch `index` with their positions in the order."""
        return list(enumerate(self.prompts[index * size : (index + 1) * size], index * size))


def load_training_set(setup: Setup, data_dir: str | None, tokenizer: PreTrainedTokenizerBase) -> TrainingSet:
    """Exactly steps × prompts_per_step prompts. UserError where the data hold fewer."""
    training = setup.training
    # The supervised stage reads the same stream, so the two never disagree on a step's prompts.
    wanted = max(training.steps, training.sft.updates) * training.prompts_per_step
    if setup.data.source == "arithmetic":
        stream = islice(arithmetic.training_problems(setup.data.order_seed), wanted)
        return _select(stream, setup, tokenizer, wanted)
    problems = _unique(_problems(setup.data, data_dir))
    random.Random(f"order-{setup.data.order_seed}").shuffle(problems)
    chosen = _select(problems, setup, tokenizer, wanted)
    if len(chosen.prompts) < wanted:
        raise UserError(
            f"data: {len(chosen.prompts)} usable prompts ({chosen.too_long} too long) — "
            f"{wanted} needed for {wanted // training.prompts_per_step} steps of {training.prompts_per_step}"
        )
    return chosen


def _problems(data: Data, data_dir: str | None) -> list[Problem]:
    return openthoughts_problems(data) if data.source == "openthoughts" else read_problems(data, data_dir)


def _unique(problems: list[Problem]) -> list[Problem]:
    """The first problem of each text."""
    return list({problem.text: problem for problem in reversed(problems)}.values())[::-1]


def _select(problems: Iterable[Problem], setup: Setup, tokenizer: PreTrainedTokenizerBase, wanted: int) -> TrainingSet:
    """The first `wanted` problems whose prompts are short enough."""
    kept: list[TrainingPrompt] = []
    too_long = 0
    for problem in problems:
        if len(kept) == wanted:
            break
        ids = render(problem.text, setup.prompt, tokenizer)
        if len(ids) > setup.training.max_prompt_tokens:
            too_long += 1
        else:
            kept.append(TrainingPrompt(problem, ids))
    return TrainingSet(kept, too_long)
