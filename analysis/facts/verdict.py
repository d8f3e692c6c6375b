"""The verdict on the methods: one sentence for each, at the end of every form of the table."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from analysis.costs import MEASURES
from analysis.facts.evidence import (
    Advice,
    ConfirmedRow,
    Difference,
    Facts,
    RowEvidence,
    Verdict,
    with_interval,
)
from analysis.labels import AVERAGE, BASE, method_label, setup_title
from analysis.numbers import p_text, signed
from orchestrator.config import Experiment
from orchestrator.experiment.methods import REFERENCE
from orchestrator.selection.study import Invocation, Study

_VANILLA = method_label(REFERENCE)
CONFIRMING_SEEDS = 3  # that the advice asks for
SEEDS = 5  # as many as the advice asks for
OWN_SEEDS = re.compile(r"(methods\.\w+\.)?seeds(=|\.)")  # overrides that the advice replaces


def verdict(evidence: Facts) -> Verdict:
    """Sentences on the differences to vanilla; empty until a setup has scores of two methods."""
    study, experiment = evidence.study, evidence.experiment
    groups: dict[str, list[RowEvidence]] = {}
    for name in experiment.setups:
        trained = [row for row in evidence.rows if row.setup == name and row.method != BASE]
        if len(trained) > 1:
            groups[name] = trained
    if not groups:
        return Verdict()
    rows = list(itertools.chain(*groups.values()))
    one_seed = [row.seeds == 1 for row in rows]
    confirms, advice = bool(experiment.confirmed_methods), None
    if not confirms:
        gaps = [row.columns[AVERAGE].difference for row in rows]
        if any(gap is not None and gap.chosen_from is not None for gap in gaps):
            advice = confirmation(study)
        elif any(one_seed):
            advice = more_seeds(study)
        if all(one_seed):
            return Verdict(("No method can be called better: one seed.",), advice)
    sentences: list[str] = []
    for name, of_setup in groups.items():
        prefix = f"{setup_title(name, experiment.setups)}: " if len(experiment.setups) > 1 else ""
        confirmed = [row for row in evidence.confirmed if row.setup == name]
        judged = _judge_confirmed(experiment, confirmed) if confirms else _judge(of_setup)
        for sentence in [*judged, *_at_equal_cost(evidence, name)]:
            sentences.append(prefix + sentence)
    for mean in evidence.across:
        judged = _judged(method_label(mean.method), _VANILLA, mean.difference)
        settled = _settled(mean.difference, experiment.confirm.until)
        sentences.append(f"Mean of {mean.setups} setups: {judged[:-1]} ({settled}).")
    return Verdict(tuple(sentences), advice)


def _at_equal_cost(evidence: Facts, setup: str) -> list[str]:
    """A sentence on the methods whose selected checkpoints cost more or less than vanilla's."""
    for table in evidence.costs:
        if table.setup != setup:
            continue
        costs = {row.method: MEASURES[table.measure](row.cost) for row in table.rows}
        gaps = []
        for row in table.rows:
            gap = row.columns[AVERAGE].difference if row.columns else None
            # Without vanilla there is no difference, and no cost of it.
            if gap is not None and costs[row.method] != costs[REFERENCE]:
                gaps.append(_short(row.method, gap))
        if gaps:
            return [f"At equal cost ({table.text}): {', '.join(gaps)} against {_VANILLA}."]
    return []


def _short(method: str, gap: Difference) -> str:
    """`SKD +0.3`."""
    return f"{method_label(method)} {signed(gap.estimate.value)}"


def confirmation(study: Study) -> Advice:
    """How the choice of every method is confirmed on three seeds that took no part."""
    experiment = study.experiment
    command = study.invocation.command("submit", "--confirm", str(CONFIRMING_SEEDS))
    trials = CONFIRMING_SEEDS * len(experiment.methods) * len(experiment.setups)
    return Advice(command, trials, "Each method's choice confirmed on other seeds")


def _judge_confirmed(experiment: Experiment, rows: Sequence[ConfirmedRow]) -> list[str]:
    """A sentence for each confirmed method of a setup, and one for those that are still open."""
    if REFERENCE not in experiment.confirmed_methods:
        why = "so that no method can be called better: see confirm.methods."
        return [f"{_VANILLA} is not confirmed, {why}"]
    complete = {row.method: row for row in rows if row.complete}
    sentences = []
    for method, row in complete.items() if REFERENCE in complete else ():
        gap = row.columns[AVERAGE].difference
        if gap is not None:
            judged = _judged(method_label(method), _VANILLA, gap)
            sentences.append(f"{judged[:-1]} ({_settled(gap, experiment.confirm.until)}).")
    still_open = []
    for method in experiment.confirmed_methods:
        if method not in complete:
            still_open.append(method_label(method))
    if still_open:
        sentences.append(f"Not confirmed yet: {', '.join(still_open)}.")
    return sentences


def _settled(gap: Difference, until: float | None) -> str:
    """`confirmed`; for a difference not shown also whether it is known to `until` points.

    A difference that is shown rests on seeds that vary equally under all methods.
    """
    if gap.shown and gap.unequal:
        return "confirmed, but seeds vary unequally"
    if until is None or gap.p_value is None or gap.shown:
        return "confirmed"
    settled = gap.estimate.margin + abs(float(gap.estimate.value)) <= until
    return f"confirmed, {'' if settled else 'not '}to ±{until:g}"


def pair_verdict(
    study: Study,
    methods: tuple[str, str],
    average: Difference | None,
    confirmed: bool = False,
) -> Verdict:
    """Judge two methods in a setup from the difference of their averages; empty without one."""
    if average is None:
        return Verdict()
    if BASE in methods:
        label = method_label(BASE)
        return Verdict((f"{label} has no seeds: the difference holds for these checkpoints only.",))
    # Confirming runs are on their way where there are confirmed methods; the advice's seeds could
    # be theirs.
    advised = not study.experiment.confirmed_methods
    if min(average.runs) == 1:
        sentence = "Neither method can be called better: one seed."
        return Verdict((sentence,), more_seeds(study, methods) if advised else None)
    if average.chosen_from is not None:
        one, other = average.chosen_from
        sentence = f"Not tested: chosen from {one} and {other} checkpoints, and the best of more is higher by chance."
        return Verdict((sentence,), confirmation(study) if advised else None)
    sentence = _judged(method_label(methods[0]), method_label(methods[1]), average)
    return Verdict((f"{sentence[:-1]} (confirmed)." if confirmed else sentence,))


def more_seeds(study: Study, methods: Sequence[str] = ()) -> Advice:
    """How every method, or each of `methods`, gets five seeds or more."""
    experiment, typed = study.experiment, study.invocation.words
    if methods:
        only = {name: grid for name, grid in experiment.methods.items() if name in methods}
        own = {name: seeds for name, seeds in experiment.method_seeds.items() if name in methods}
        if len(only) < len(experiment.methods):
            typed = (*_without_option(typed, "--methods"), "--methods", ",".join(only))
        experiment = replace(experiment, methods=only, method_seeds=own)
    chosen = list(experiment.explored_seeds)
    for seed in itertools.count():
        if len(chosen) >= SEEDS:
            break
        if seed not in chosen:
            chosen.append(seed)
    wider = replace(experiment, seeds=chosen, method_seeds={})
    kept = Invocation(tuple(word for word in typed if not OWN_SEEDS.match(word)))
    command = kept.command("submit", f"seeds=[{','.join(map(str, chosen))}]")
    return Advice(command, _trials(wider) - _trials(experiment), f"{SEEDS} seeds for every method")


def _without_option(words: Sequence[str], option: str) -> tuple[str, ...]:
    """The words of a command line without an option and its value."""
    if option not in words:
        return tuple(words)
    place = words.index(option)
    return (*words[:place], *words[place + 2 :])


def _trials(experiment: Experiment) -> int:
    trials = 0
    for method, grid in experiment.methods.items():
        trials += prod(map(len, grid.values())) * len(experiment.seeds_of(method))
    return trials * len(experiment.setups)


def _judge(rows: Sequence[RowEvidence]) -> list[str]:
    """A sentence for each method of a setup with several seeds, and one for all others."""
    vanilla = next((row for row in rows if row.method == REFERENCE), None)
    if vanilla is None:
        advice = "trb table --compare compares any two methods."
        return [f"{_VANILLA} has no scores to compare with; {advice}"]
    if vanilla.seeds == 1:
        return [f"No method can be called better than {_VANILLA}: it has one seed."]
    sentences, untested, unequal = [], [], []
    for row in rows:
        gap = row.columns[AVERAGE].difference
        if row.method == REFERENCE or gap is None:
            continue
        if gap.chosen_from is not None:
            unequal.append(f"{_short(row.method, gap)} (best of {gap.chosen_from[0]})")
        elif row.seeds > 1:
            sentences.append(_judged(method_label(row.method), _VANILLA, gap))
        else:
            untested.append(_short(row.method, gap))
    if untested:
        names = ", ".join(untested)
        sentences.append(f"Not tested, with one seed each: {names} against {_VANILLA}.")
    if unequal:
        fewer = f"chosen from more or fewer checkpoints than {_VANILLA}'s {vanilla.candidates}"
        why = "and the best of more is higher by chance"
        sentences.append(f"Not tested, {fewer}, {why}: {', '.join(unequal)}.")
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


def headline(facts: Facts) -> str:
    """The verdict in one sentence: `Better than Vanilla: SKD; worse: Veto; not tested: TRB.`

    It is about all setups together where differences over several are known, and otherwise the
    first sentence of the verdict where an experiment has several setups or no test.
    """
    rows: Sequence[RowEvidence | ConfirmedRow] = facts.rows
    if facts.experiment.confirmed_methods:
        rows = facts.confirmed
    gaps: dict[str, Difference] = {mean.method: mean.difference for mean in facts.across}
    for row in rows if len(facts.experiment.setups) == 1 else ():
        gap = row.columns[AVERAGE].difference if row.columns else None
        if gap is not None and row.method != BASE:
            gaps[row.method] = gap
    outcomes: dict[str, list[str]] = {
        f"better than {_VANILLA}": [], "worse": [], "no difference shown": [], "not tested": [],
    }  # fmt: skip
    better, worse, same, untested = outcomes.values()
    for method, gap in gaps.items():
        if gap.shown:
            (better if gap.estimate.value > 0 else worse).append(method_label(method))
        else:
            (untested if gap.p_value is None else same).append(method_label(method))
    if len(untested) == len(gaps):
        return next(iter(facts.verdict.sentences), "")
    parts = [f"{name}: {', '.join(own)}" for name, own in outcomes.items() if own]
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."
