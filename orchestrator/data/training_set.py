"""Training prompts in one deterministic order for all methods.

Repeats are removed before shuffling, and over-long prompts are skipped. A step's prompts are the
same for every method and number of steps. Golds come with the rows of the source, but for
OpenThoughts, where they are majorities of its solutions.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from transformers import PreTrainedTokenizerBase

from orchestrator.config import Data, Setup
from orchestrator.data import arithmetic, word_problems
from orchestrator.data.majority import OUTCOMES, majorities
from orchestrator.data.openthoughts import load_thoughts
from orchestrator.data.problems import Problem, read_training_problems
from orchestrator.data.prompts import render
from orchestrator.errors import UserError
from orchestrator.grading.grader import Gold

GENERATED = ("arithmetic", "word_problems")


@dataclass(frozen=True)
class TrainingPrompt:
    """A problem with its rendered token ids."""

    problem: Problem
    ids: tuple[int, ...]


@dataclass(frozen=True)
class TrainingSet:
    """Prompts in training order, and counts of skipped rows.

    `rows` counts the source's rows and the rows dropped before shuffling, such as
    `{"rows": 7437, "repeats": 3}`. `golds` counts the prompts by the origin of their gold:
    `{"given": 96, "none": 0}` for published answers, else the outcomes of `data.majority`.
    """

    prompts: list[TrainingPrompt]
    too_long: int  # skipped prompts
    rows: dict[str, int]
    golds: dict[str, int]

    def batch(self, index: int, size: int) -> list[tuple[int, TrainingPrompt]]:
        """The prompts of batch `index` with their positions in the order."""
        return list(enumerate(self.prompts[index * size : (index + 1) * size], index * size))

    def counts(self) -> dict[str, Any]:
        """The counts that `data.json` and the checks before a sweep report."""
        return {
            **self.rows,
            "too_long": self.too_long,
            "prompts": len(self.prompts),
            "golds": self.golds,
        }


@dataclass(frozen=True)
class _Source:
    """Distinct problems in training order.

    `rows` counts the rows read and dropped: `{"rows": 7437, "repeats": 3}`. `answers` counts the
    answers to each problem, by its id, for sources whose golds are majorities.
    """

    problems: list[Problem]
    rows: dict[str, int]
    answers: dict[str, Mapping[str, int]] | None = None


def load_training_set(
    setup: Setup, data_dir: str | None, tokenizer: PreTrainedTokenizerBase
) -> TrainingSet:
    """The prompts of all steps, steps × prompts_per_step of them, in training order.

    Raises UserError if the data hold fewer. Exactly that many problems are generated; the set is
    then smaller if some are too long.
    """
    training = setup.training
    # The supervised stage reads the same stream, so the two never disagree on a step's prompts.
    wanted = max(training.steps, training.sft.updates) * training.prompts_per_step
    source = _read_source(setup.data, data_dir, wanted)
    prompts: list[TrainingPrompt] = []
    too_long = 0
    for problem in source.problems:
        if len(prompts) == wanted:
            break
        ids = render(problem.text, setup.prompt, tokenizer)
        if len(ids) > training.max_prompt_tokens:
            too_long += 1
        else:
            prompts.append(TrainingPrompt(problem, ids))
    if len(prompts) < wanted and setup.data.source not in GENERATED:
        raise UserError(
            f"data: {len(prompts)} usable prompts ({too_long} too long): expected "
            f"{wanted} for {wanted // training.prompts_per_step} steps of {training.prompts_per_step}"
        )
    if source.answers is not None:
        prompts, golds = _with_majorities(prompts, source.answers)
    else:
        given = sum(prompt.problem.gold is not None for prompt in prompts)
        golds = {"given": given, "none": len(prompts) - given}
    return TrainingSet(prompts, too_long, source.rows, golds)


def _read_source(data: Data, data_dir: str | None, wanted: int) -> _Source:
    """The problems of the source: `wanted` generated ones, or a whole data set, shuffled."""
    match data.source:
        case "arithmetic":
            sums = arithmetic.training_problems(data.order_seed, data.longest)
            return _Source(list(islice(sums, wanted)), rows={})
        case "word_problems":
            stories = word_problems.training_problems(data.order_seed)
            return _Source(list(islice(stories, wanted)), rows={})
        case "openthoughts":
            thoughts = load_thoughts(data)
            answers: dict[str, Mapping[str, int]] = {}
            problems = []
            for thought in thoughts.problems:
                problem = Problem(f"openthoughts/{thought.row}", thought.text, gold=None)
                problems.append(problem)
                answers[problem.id] = thought.answers
            source = _Source(problems, thoughts.counts, answers)
        case _:
            problems = read_training_problems(data, data_dir)
            # A repeated text keeps its first problem at the place of its last: the orders of runs
            # made so far depend on it.
            by_text: dict[str, Problem] = {}
            for problem in problems:
                by_text[problem.text] = by_text.pop(problem.text, problem)
            repeats = len(problems) - len(by_text)
            source = _Source(list(by_text.values()), {"rows": len(problems), "repeats": repeats})
    random.Random(f"order-{data.order_seed}").shuffle(source.problems)
    return source


def _with_majorities(
    prompts: Sequence[TrainingPrompt], answers: Mapping[str, Mapping[str, int]]
) -> tuple[list[TrainingPrompt], dict[str, int]]:
    """Give each prompt its problem's majority answer as gold; returns prompts and outcome counts.

    Only selected prompts get a majority, since it costs comparisons by the grader.
    """
    with_golds = []
    outcomes: dict[str, int] = dict.fromkeys(OUTCOMES, 0)
    majority_of_each = majorities([answers[prompt.problem.id] for prompt in prompts])
    for prompt, majority in zip(prompts, majority_of_each, strict=True):
        gold = Gold(majority.answer) if majority.answer else None
        with_golds.append(replace(prompt, problem=replace(prompt.problem, gold=gold)))
        outcomes[majority.outcome] += 1
    return with_golds, outcomes
