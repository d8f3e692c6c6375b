"""The verdict on the methods: one sentence for each, at the end of every form of the table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from analysis.costs import MEASURES
from analysis.labels import AVERAGE, BASE, method_label, setup_title
from analysis.numbers import p_text, signed
from analysis.scores.evidence import ConfirmedRow, Difference, Evidence, RowEvidence, with_interval
from orchestrator.config import Experiment
from orchestrator.experiment.methods import REFERENCE
from orchestrator.selection.study import Invocation, Study

CONFIRMING_SEEDS = 3  # that the advice asks for
SEEDS = 5  # as many as the advice asks for
OWN_SEEDS = re.compile(r"(methods\.\w+\.)?seeds(=|\.)")  # overrides that the advice replaces


@dataclass(frozen=True)
class Advice:
    """A command that makes the comparison fair, how many trials it adds, and what they are for."""

    command: str
    trials: int
    purpose: str = f"{SEEDS} seeds for every method"

    @property
    def reason(self) -> str:
        """`5 seeds for every method, 24 more trials:`, which stands on the line above the command."""
        if not self.trials:
            return "The other seeds of this sweep:"
        return f"{self.purpose}, {self.trials} more trial{'s' if self.trials != 1 else ''}:"


@dataclass(frozen=True)
class Verdict:
    """Sentences on the methods of each setup; `advice` where a method has a single seed."""

    sentences: tuple[str, ...] = ()
    advice: Advice | None = None

    def lines(self) -> list[str]:
        """Sentences, reason and command, a line each, for forms without styles."""
        return [
            *self.sentences,
            *((self.advice.reason, self.advice.command) if self.advice else ()),
        ]


def verdict(study: Study, evidence: Evidence) -> Verdict:
    """Sentences on the differences to vanilla. Empty while fewer than two methods have scores in
    any setup.
    """
    experiment = study.experiment
    groups: dict[str, list[RowEvidence]] = {}
    for name in experiment.setups:
        trained = [row for row in evidence.rows if row.setup == name and row.method != BASE]
        if len(trained) > 1:
            groups[name] = trained
    if not groups:
        return Verdict()
    one_seed = [row.seeds == 1 for rows in groups.values() for row in rows]
    confirms = bool(experiment.confirmed_methods)
    unequal = any(_chosen_unequally(row) for rows in groups.values() for row in rows)
    advice = more_seeds(study) if any(one_seed) and not confirms else None
    if unequal and not confirms:
        advice = confirmation(study)
    if all(one_seed) and not confirms:
        return Verdict(("No method can be called better: one seed.",), advice)
    sentences: list[str] = []
    for name, rows in groups.items():
        prefix = f"{setup_title(name, experiment.setups)}: " if len(experiment.setups) > 1 else ""
        confirmed = [row for row in evidence.confirmed if row.setup == name]
        judged = _judge_confirmed(experiment, confirmed) if confirms else _judge(rows)
        sentences += [prefix + sentence for sentence in [*judged, *_at_equal_cost(evidence, name)]]
    return Verdict(tuple(sentences), advice)


def _at_equal_cost(evidence: Evidence, setup: str) -> list[str]:
    """A sentence on the methods whose selected checkpoints did not cost as much as vanilla's; none
    without any.
    """
    for table in evidence.costs:
        costs = {row.method: MEASURES[table.measure](row.cost) for row in table.rows}
        if table.setup == setup:
            gaps = []
            for row in table.rows:
                gap = (
                    row.columns[AVERAGE].difference if row.columns else None
                )  # None without vanilla, too
                if gap is not None and costs[row.method] != costs[REFERENCE]:
                    gaps.append(f"{method_label(row.method)} {signed(gap.estimate.value)}")
            if gaps:
                reference = method_label(REFERENCE)
                return [f"At equal cost ({table.text}): {', '.join(gaps)} against {reference}."]
    return []


def confirmation(study: Study) -> Advice:
    """How the choice of every method is confirmed on three seeds that took no part."""
    experiment = study.experiment
    command = study.invocation.command("submit", "--confirm", str(CONFIRMING_SEEDS))
    trials = CONFIRMING_SEEDS * len(experiment.methods) * len(experiment.setups)
    return Advice(command, trials, "Each method's choice confirmed on other seeds")


def _chosen_unequally(row: RowEvidence) -> bool:
    gap = row.columns[AVERAGE].difference
    return gap is not None and gap.chosen_from is not None


def _judge_confirmed(experiment: Experiment, rows: Sequence[ConfirmedRow]) -> list[str]:
    """A sentence for each confirmed method of a setup, and one for those whose runs are not all
    there.
    """
    reference = method_label(REFERENCE)
    if REFERENCE not in experiment.confirmed_methods:
        return [
            f"{reference} is not confirmed, so that no method can be called better: see confirm.methods."
        ]
    complete = {row.method: row for row in rows if row.complete}
    open_methods = [method for method in experiment.confirmed_methods if method not in complete]
    sentences = []
    for method, row in complete.items() if REFERENCE in complete else ():
        gap = row.columns[AVERAGE].difference
        if gap is not None:
            sentences.append(
                _confirmed_sentence(method_label(method), reference, gap, experiment.confirm.until)
            )
    if open_methods:
        sentences.append(f"Not confirmed yet: {', '.join(map(method_label, open_methods))}.")
    return sentences


def pair_verdict(
    study: Study,
    methods: tuple[str, str],
    average: Difference | None,
    confirmed: bool = False,
) -> Verdict:
    """Judge two methods in a setup from the difference of their averages; empty without one."""
    confirms = bool(study.experiment.confirmed_methods)
    if average is None:
        return Verdict()
    if BASE in methods:
        return Verdict(
            (
                f"{method_label(BASE)} has no seeds: the difference holds for these checkpoints only.",
            )
        )
    if min(average.runs) == 1:
        sentence = "Neither method can be called better: one seed."
        # Confirming runs are on their way; the advice's seeds could be theirs.
        return Verdict((sentence,), None if confirms else more_seeds(study, methods))
    if average.chosen_from is not None:
        one, other = average.chosen_from
        sentence = f"Not tested: chosen from {one} and {other} checkpoints, and the best of more is higher by chance."
        return Verdict((sentence,), None if confirms else confirmation(study))
    sentence = _judged(method_label(methods[0]), method_label(methods[1]), average)
    return Verdict((f"{sentence[:-1]} (confirmed)." if confirmed else sentence,))


def more_seeds(study: Study, methods: Sequence[str] = ()) -> Advice:
    """How every method, or each of `methods`, gets five seeds or more."""
    experiment, typed = study.experiment, study.invocation.words
    if methods:
        only = {
            method: experiment.methods[method] for method in experiment.methods if method in methods
        }
        own = {
            method: seeds for method, seeds in experiment.method_seeds.items() if method in methods
        }
        if len(only) < len(experiment.methods):
            typed = (*_without_option(typed, "--methods"), "--methods", ",".join(only))
        experiment = replace(experiment, methods=only, method_seeds=own)
    chosen = list(experiment.seeds)
    for own_seeds in experiment.method_seeds.values():
        chosen += [seed for seed in own_seeds if seed not in chosen]
    unused = (seed for seed in range(SEEDS + len(chosen)) if seed not in chosen)
    while len(chosen) < SEEDS:
        chosen.append(next(unused))
    wider = replace(experiment, seeds=chosen, method_seeds={})
    kept = Invocation(tuple(word for word in typed if not OWN_SEEDS.match(word)))
    command = kept.command("submit", f"seeds=[{','.join(map(str, chosen))}]")
    return Advice(command, _trials(wider) - _trials(experiment))


def _without_option(words: Sequence[str], option: str) -> tuple[str, ...]:
    """The words of a command line without an option and its value."""
    if option not in words:
        return tuple(words)
    place = words.index(option)
    return (*words[:place], *words[place + 2 :])


def _trials(experiment: Experiment) -> int:
    settings = {
        method: prod(map(len, grid.values())) for method, grid in experiment.methods.items()
    }
    return len(experiment.setups) * sum(
        n * len(experiment.seeds_of(method)) for method, n in settings.items()
    )


def _confirmed_sentence(one: str, other: str, gap: Difference, until: float | None) -> str:
    """The judgement on a confirmed difference; with `until` in points, also whether it is settled
    to that.
    """
    sentence = _judged(one, other, gap).removesuffix(".")
    if until is None or gap.p_value is None or gap.shown:
        return f"{sentence} (confirmed)."
    settled = gap.estimate.margin + abs(float(gap.estimate.value)) <= until
    return f"{sentence} (confirmed, {'' if settled else 'not '}to ±{until:g})."


def _judge(rows: Sequence[RowEvidence]) -> list[str]:
    """A sentence for each method of a setup that was trained on several seeds, and one for the
    others together.
    """
    reference = method_label(REFERENCE)
    vanilla = next((row for row in rows if row.method == REFERENCE), None)
    if vanilla is None:
        return [
            f"{reference} has no scores to compare with; trb table --compare compares any two methods."
        ]
    if vanilla.seeds == 1:
        return [f"No method can be called better than {reference}: it has one seed."]
    sentences, untested, unequal = [], [], []
    for row in rows:
        gap = row.columns[AVERAGE].difference
        if row.method == REFERENCE or gap is None:
            continue
        if gap.chosen_from is not None:
            unequal.append(
                f"{method_label(row.method)} {signed(gap.estimate.value)} (best of {gap.chosen_from[0]})"
            )
        elif row.seeds > 1:
            sentences.append(_judged(method_label(row.method), reference, gap))
        else:
            untested.append(f"{method_label(row.method)} {signed(gap.estimate.value)}")
    if untested:
        sentences.append(
            f"Not tested, with one seed each: {', '.join(untested)} against {reference}."
        )
    if unequal:
        sentences.append(
            f"Not tested, chosen from more or fewer checkpoints than {reference}'s {vanilla.candidates}, and the best "
            f"of more is higher by chance: {', '.join(unequal)}."
        )
    return sentences


def _judged(one: str, other: str, gap: Difference) -> str:
    """`TRB − Vanilla: +0.1 [−1.7, +1.8], p = 0.98, 3 seeds: no difference shown.`"""
    counts = " and ".join(map(str, sorted(set(gap.runs))))
    numbers = f"{one} − {other}: {with_interval(gap.estimate)}"
    if gap.p_value is None:
        return f"{numbers}, {counts} seeds: not tested, since no two seeds of any method differ."
    p = p_text(gap.p_value)
    outcome = "no difference shown"
    if gap.shown:
        outcome = f"{one} is {'better' if gap.estimate.value > 0 else 'worse'}"
    return f"{numbers}, p {'' if p[0] == '<' else '= '}{p}, {counts} seeds: {outcome}."
