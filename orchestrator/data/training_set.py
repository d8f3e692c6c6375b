"""Training prompts: one deterministic order for all methods.

Repeats are removed before the order is drawn and over-long prompts are passed over, so a step's prompts are
the same whatever the method and however many steps are run.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from transformers import PreTrainedTokenizerBase

from orchestrator.config import Data, Setup
from orchestrator.data import arithmetic
from orchestrator.data.majority import OUTCOMES, majorities
from orchestrator.data.openthoughts import Thought, load_thoughts
from orchestrator.data.problems import Problem, read_training_problems
from orchestrator.data.prompts import render
from orchestrator.errors import UserError
from orchestrator.grading.grader import Gold


@dataclass(frozen=True)
class TrainingPrompt:
    """A problem with its rendered token ids."""

    problem: Problem
    ids: tuple[int, ...]


@dataclass(frozen=True)
class TrainingSet:
    """Prompts in training order, and what was left out on the way.

    `rows` counts what the source holds and what fell away before the order was drawn; `golds` counts the prompts by
    where their gold comes from: given, or the majority of the answers, or why there is none.
    """

    prompts: list[TrainingPrompt]
    too_long: int  # prompts passed over on the way
    rows: dict[str, int]
    golds: dict[str, int]

    def batch(self, index: int, size: int) -> list[tuple[int, TrainingPrompt]]:
        """The prompts of batch `index` with their positions in the order."""
        return list(enumerate(self.prompts[index * size : (index + 1) * size], index * size))

    def counts(self) -> dict[str, Any]:
        """What `data.json` and the preflight tell of the data."""
        return {**self.rows, "too_long": self.too_long, "prompts": len(self.prompts), "golds": self.golds}


@dataclass(frozen=True)
class _Source:
    """Distinct problems in the source's order; `answers` by problem id where golds are a majority."""

    problems: list[Problem]
    rows: dict[str, int]
    answers: dict[str, Mapping[str, int]] | None = None


def load_training_set(setup: Setup, data_dir: str | None, tokenizer: PreTrainedTokenizerBase) -> TrainingSet:
    """Exactly steps × prompts_per_step prompts. UserError where the data hold fewer."""
    training = setup.training
    # The supervised stage reads the same stream, so the two never disagree on a step's prompts.
    wanted = max(training.steps, training.sft.updates) * training.prompts_per_step
    if setup.data.source == "arithmetic":
        stream = islice(arithmetic.training_problems(setup.data.order_seed), wanted)
        return _with_golds(*_select(stream, setup, tokenizer, wanted), _Source([], {}))
    source = _openthoughts(setup.data) if setup.data.source == "openthoughts" else _files(setup.data, data_dir)
    order = list(source.problems)
    random.Random(f"order-{setup.data.order_seed}").shuffle(order)
    kept, too_long = _select(order, setup, tokenizer, wanted)
    if len(kept) < wanted:
        raise UserError(
            f"data: {len(kept)} usable prompts ({too_long} too long) — "
            f"{wanted} needed for {wanted // training.prompts_per_step} steps of {training.prompts_per_step}"
        )
    return _with_golds(kept, too_long, source)


def _openthoughts(data: Data) -> _Source:
    thoughts = load_thoughts(data)
    problems = [Problem(_thought_id(thought), thought.text, None) for thought in thoughts.problems]
    return _Source(problems, thoughts.counts, {_thought_id(thought): thought.answers for thought in thoughts.problems})


def _thought_id(thought: Thought) -> str:
    return f"openthoughts/{thought.row}"


def _files(data: Data, data_dir: str | None) -> _Source:
    problems = read_training_problems(data, data_dir)
    # The first problem of each text.
    unique = list({problem.text: problem for problem in reversed(problems)}.values())[::-1]
    return _Source(unique, {"rows": len(problems), "repeats": len(problems) - len(unique)})


def _select(
    problems: Iterable[Problem], setup: Setup, tokenizer: PreTrainedTokenizerBase, wanted: int
) -> tuple[list[TrainingPrompt], int]:
    """The first `wanted` problems whose prompts are short enough, and how many were not."""
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
    return kept, too_long


def _with_golds(kept: Sequence[TrainingPrompt], too_long: int, source: _Source) -> TrainingSet:
    """The prompts that were selected with their golds: a majority costs comparisons, so only these are looked at."""
    if source.answers is None:
        given = sum(prompt.problem.gold is not None for prompt in kept)
        return TrainingSet(list(kept), too_long, source.rows, {"given": given, "none": len(kept) - given})
    found = majorities([source.answers[prompt.problem.id] for prompt in kept])
    prompts = [
        replace(prompt, problem=replace(prompt.problem, gold=Gold(each.answer) if each.answer else None))
        for prompt, each in zip(kept, found, strict=True)
    ]
    outcomes = Counter(each.outcome for each in found)
    return TrainingSet(prompts, too_long, source.rows, {outcome: outcomes[outcome] for outcome in OUTCOMES})
