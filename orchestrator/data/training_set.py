"""Training prompts in one deterministic order for all methods.

Repeats are removed before shuffling, and over-long prompts are skipped. A step's prompts are the
same for every method and number of steps. Golds come with the rows of the source, but for
OpenThoughts, where they are majorities of its solutions. A problem whose rows give different golds
has none: a wrong gold would reward wrong answers. Training problems that stand in a benchmark are
counted.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import chain, islice
from typing import Any

from transformers import PreTrainedTokenizerBase

from orchestrator.config import Data, Setup
from orchestrator.data import arithmetic, word_problems
from orchestrator.data.benchmarks import find_overlap
from orchestrator.data.openthoughts import OUTCOMES, load_thoughts, majorities
from orchestrator.data.problems import Problem, check_system, read_training_problems
from orchestrator.data.prompts import render
from orchestrator.errors import LONGEST_VALUE, UserError, shortened
from orchestrator.grading.gold import Gold, plain_number
from orchestrator.grading.notation import spelled

EXAMPLES = 3  # problems with different golds that `data.json` names
FRACTION = re.compile(r"([+-]?)(?:\\frac(?:\{(\d+)\}|(\d))(?:\{(\d+)\}|(\d))|(\d+)/(\d+))")

GENERATED = ("arithmetic", "word_problems")
MORE_GENERATED = 64  # for a held-out prompt: short sums repeat, and most of them may be trained on


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
    `{"given": 96, "none": 0}` for published answers, else the outcomes of `data.openthoughts`.
    `differing` gives examples of the problems whose rows differ in their gold, with these golds:
    `{"What is 3 plus 6?": ["10", "9"]}`. `overlap` counts the problems that stand in a benchmark,
    by the benchmark's key. `held_out` are prompts behind all of these, with their positions in the
    order.
    """

    prompts: list[TrainingPrompt]
    too_long: int  # skipped prompts
    rows: dict[str, int]
    golds: dict[str, int]
    differing: dict[str, list[str]] = field(default_factory=dict)
    overlap: dict[str, dict[str, Any]] = field(default_factory=dict)
    held_out: list[tuple[int, TrainingPrompt]] = field(default_factory=list)

    def batch(self, index: int, size: int) -> list[tuple[int, TrainingPrompt]]:
        """The prompts of batch `index` with their positions in the order."""
        return list(enumerate(self.prompts[index * size : (index + 1) * size], index * size))

    def counts(self) -> dict[str, Any]:
        """The counts that `data.json` and the checks before a sweep report."""
        counts = {
            **self.rows,
            "too_long": self.too_long,
            "prompts": len(self.prompts),
            "golds": self.golds,
        }
        if self.differing:
            counts["differing_golds"] = self.differing
        return counts | {"overlap": self.overlap} if self.overlap else counts


@dataclass(frozen=True)
class _Source:
    """Distinct problems in training order.

    `rows` counts the rows read and dropped: `{"rows": 7437, "repeats": 3}`. `answers` counts the
    answers to each problem, by its id, for sources whose golds are majorities. `differing` has the
    golds of each text whose rows differ in them.
    """

    problems: list[Problem]
    rows: dict[str, int]
    answers: dict[str, Mapping[str, int]] | None = None
    differing: dict[str, list[str]] = field(default_factory=dict)


def load_training_set(
    setup: Setup,
    data_dir: str | None,
    tokenizer: PreTrainedTokenizerBase,
    batches: int | None = None,
    held_out: int = 0,
    seed: int | None = None,
) -> TrainingSet:
    """The prompts of all steps, steps × prompts_per_step of them, in training order.

    With `training.order_per_seed` the order is that of the unit's `seed`. Exactly as many problems
    as all steps take are generated; the set is then smaller if some are too long. At most
    `held_out` prompts that no step takes are the next ones in that order. Raises UserError if the
    data hold fewer than `batches` steps take, by default all.
    """
    training = setup.training
    each = training.prompts_per_step
    # The supervised stage reads the same stream, so the two never disagree on a step's prompts.
    wanted = max(training.steps, training.sft.updates) * each
    needed = wanted if batches is None else batches * each
    order: int | str = setup.data.order_seed
    if training.order_per_seed and seed is not None:
        order = f"{order}-{seed}"
    source = _read_source(setup.data, data_dir, wanted, order)
    check_system(source.problems, setup.prompt.system)
    prompts: list[TrainingPrompt] = []
    too_long, problems = 0, iter(source.problems)
    for problem in problems:
        ids = render(problem.text, setup.prompt, tokenizer)
        if len(ids) > training.max_prompt_tokens:
            too_long += 1
        else:
            prompts.append(TrainingPrompt(problem, ids))
        if len(prompts) == wanted:
            break
    if len(prompts) < needed and setup.data.source not in GENERATED:
        raise UserError(
            f"data: {len(prompts)} usable prompts ({too_long} too long): expected "
            f"{needed} for {needed // each} steps of {each}"
        )
    differing: dict[str, list[str]] = {}
    if source.answers is not None:
        prompts, golds = _with_majorities(prompts, source.answers)
    else:
        for prompt in prompts:
            if (text := prompt.problem.text) in source.differing:
                differing[text] = source.differing[text]
        given = sum(prompt.problem.gold is not None for prompt in prompts)
        golds = {"given": given, "none": len(prompts) - given - len(differing)}
        golds |= {"differing": len(differing)} if differing else {}
    examples: dict[str, list[str]] = {}
    for text, answers in islice(differing.items(), EXAMPLES):
        examples[shortened(text, LONGEST_VALUE)] = answers
    used = [prompt.problem.text for prompt in prompts]
    overlap = find_overlap(setup, data_dir, source.problems, used)
    others: list[tuple[int, TrainingPrompt]] = []
    if held_out:
        more = _generated(setup.data, order, len(source.problems), MORE_GENERATED * held_out)
        others = _held_out(setup, tokenizer, chain(problems, more), used, held_out)
    return TrainingSet(prompts, too_long, source.rows, golds, examples, overlap, others)


def _held_out(
    setup: Setup,
    tokenizer: PreTrainedTokenizerBase,
    problems: Iterable[Problem],
    trained: Collection[str],
    count: int,
) -> list[tuple[int, TrainingPrompt]]:
    """The first `count` of the problems whose texts no step trains on, each text once.

    Their numbers go on where those of the `trained` prompts end.
    """
    seen, chosen = set(trained), list[tuple[int, TrainingPrompt]]()
    for problem in problems:
        if len(chosen) == count:
            break
        if problem.text not in seen:
            seen.add(problem.text)
            ids = render(problem.text, setup.prompt, tokenizer)
            if len(ids) <= setup.training.max_prompt_tokens:
                chosen.append((len(trained) + len(chosen), TrainingPrompt(problem, ids)))
    return chosen


def _read_source(data: Data, data_dir: str | None, wanted: int, order: int | str) -> _Source:
    """The problems of the source: `wanted` generated ones, or a whole data set, shuffled."""
    if data.source in GENERATED:
        return _Source(list(_generated(data, order, 0, wanted)), rows={})
    match data.source:
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
            distinct, differing = _without_repeats(problems)
            rows = {"rows": len(problems), "repeats": len(problems) - len(distinct)}
            source = _Source(distinct, rows, differing=differing)
    random.Random(f"order-{order}").shuffle(source.problems)
    return source


def _generated(data: Data, order: int | str, first: int, count: int) -> Iterator[Problem]:
    """`count` problems of an endless source from number `first` on; none of a source with an end."""
    endless: Iterator[Problem] = iter(())
    if data.source == "arithmetic":
        endless = arithmetic.training_problems(order, data.longest)
    elif data.source == "word_problems":
        endless = word_problems.training_problems(order)
    return islice(endless, first, first + count)


def _without_repeats(
    problems: Sequence[Problem],
) -> tuple[list[Problem], dict[str, list[str]]]:
    """Each text once, and the golds of each text whose rows differ in them, which gets none.

    A repeated text keeps its first problem at the place of its last: the orders of runs made so far
    depend on it. Its gold may stand in any of its rows.
    """
    by_text: dict[str, Problem] = {}
    golds: dict[str, dict[Gold, None]] = {}  # a dict for an ordered set
    for problem in problems:
        by_text[problem.text] = by_text.pop(problem.text, problem)
        if problem.gold is not None:
            golds.setdefault(problem.text, {})[problem.gold] = None
    differing: dict[str, list[str]] = {}
    for text, given in golds.items():
        gold = next(iter(given))
        if len(given) > 1:
            values: dict[tuple[Any, ...], str] = {}
            for other in given:
                values.setdefault(_value(other), other.answer)
            if len(values) > 1:
                gold, differing[text] = None, list(values.values())
        if by_text[text].gold != gold:
            by_text[text] = replace(by_text[text], gold=gold)
    return list(by_text.values()), differing


def _value(gold: Gold) -> tuple[Any, ...]:
    """A key that two golds share if they differ in their spelling alone, as `9` and `9.0` do.

    It compares numbers, fractions and notations without algebra. Golds that only algebra would find
    equal are different here, which costs a reward and never gives a wrong one.
    """
    answer: Any = re.sub(r"\s+", "", spelled(gold.answer))
    if not gold.multiple and re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?", answer):
        answer = answer.replace(",", "")
    number = plain_number(answer)
    if number is None and (parts := FRACTION.fullmatch(answer)):
        sign, *digits = parts.groups()
        above, below = (int(group) for group in digits if group is not None)
        number = Fraction(int(f"{sign}1") * above, below) if below else None
    return (answer if number is None else number, gold.multiple, gold.unit, gold.tolerance)


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
