"""What may be said of the methods: one sentence for each setup, which every form of the table ends in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from analysis.labels import AVERAGE, BASE, method_label, setup_title
from analysis.numbers import p_text
from analysis.scores.evidence import Difference, Evidence, RowEvidence, with_interval
from orchestrator.config import Experiment
from orchestrator.experiment.methods import REFERENCE

SEEDS = 5  # as many as the advice asks for
OWN_SEEDS = re.compile(r"(methods\.\w+\.)?seeds(=|\.)")  # overrides that the advice replaces


def verdict(experiment: Experiment, evidence: Evidence) -> tuple[str, ...]:
    """The sentences, the last of them the command that gives every method more seeds, where one lacks them.

    Empty while fewer than two methods have scores in any setup.
    """
    groups: dict[str, list[RowEvidence]] = {}
    for name in experiment.setups:
        trained = [row for row in evidence.rows if row.setup == name and row.method != BASE]
        if len(trained) > 1:
            groups[name] = trained
    if not groups:
        return ()
    one_seed = [row.seeds == 1 for rows in groups.values() for row in rows]
    advice = [f"Run: {more_seeds(experiment)}"] if any(one_seed) else []
    if all(one_seed):
        return (" ".join(["No method can be called better: one seed.", *advice]),)
    sentences = {name: _judge(rows) for name, rows in groups.items()}
    if len(experiment.setups) > 1:
        sentences = {name: f"{setup_title(name, experiment.setups)}: {text}" for name, text in sentences.items()}
    return (*sentences.values(), *advice)


def pair_verdict(experiment: Experiment, methods: tuple[str, str], average: Difference | None) -> str:
    """What may be said of two methods in a setup, from the difference of their averages; empty without one."""
    if average is None:
        return ""
    one, other = map(method_label, methods)
    if BASE in methods:
        return f"{method_label(BASE)} has no seeds: the difference holds for these checkpoints only."
    if min(average.runs) == 1:
        return f"Neither method can be called better: one seed. Run: {more_seeds(experiment)}"
    if average.p_value is None:
        return "Neither method can be called better: no two seeds of any method differ."
    counts = sorted(set(average.runs))
    over = f"Over {' and '.join(map(str, counts))} seeds:"
    if not average.shown:
        return f"{over} no difference between {one} and {other} can be shown (p = {p_text(average.p_value)})."
    return f"{over} {_better(one, other, average)}."


def more_seeds(experiment: Experiment) -> str:
    """The command that trains every method with five seeds or more, and how many trials that adds."""
    chosen = list(experiment.seeds)
    for own in experiment.method_seeds.values():
        chosen += [seed for seed in own if seed not in chosen]
    unused = (seed for seed in range(SEEDS + len(chosen)) if seed not in chosen)
    while len(chosen) < SEEDS:
        chosen.append(next(unused))
    wider = replace(experiment, seeds=chosen, method_seeds={})
    added = _trials(wider) - _trials(experiment)
    kept = tuple(word for word in experiment.arguments if not OWN_SEEDS.match(word))
    text = replace(experiment, arguments=kept).command("submit", f"seeds=[{','.join(map(str, chosen))}]")
    return f"{text} ({added} more trial{'s' if added != 1 else ''})"


def _trials(experiment: Experiment) -> int:
    settings = {method: prod(map(len, grid.values())) for method, grid in experiment.methods.items()}
    return len(experiment.setups) * sum(n * len(experiment.seeds_of(method)) for method, n in settings.items())


def _judge(rows: Sequence[RowEvidence]) -> str:
    """What the differences to vanilla in one setup show."""
    reference = method_label(REFERENCE)
    vanilla = next((row for row in rows if row.method == REFERENCE), None)
    if vanilla is None:
        return f"There is no {reference} to compare with; trb table --compare compares any two methods."
    if vanilla.seeds == 1:
        return f"No method can be called better than {reference}: it has one seed."
    judged = [row for row in rows if row.method != REFERENCE and row.seeds > 1]
    unjudged = [method_label(row.method) for row in rows if row.seeds == 1]
    parts = []  # `SFT warmup is better than Vanilla by +4.1 [+1.2, +7.0] (p = 0.010)` and so on
    for row in judged:
        gap = row.columns[AVERAGE].difference
        if gap is not None and gap.shown:
            parts.append(_better(method_label(row.method), reference, gap))
    if not judged:
        parts = [f"no method but {reference} has several seeds"]
    elif not parts:
        parts = [f"for no method can a difference to {reference} be shown"]
    elif len(parts) < len(judged):
        parts.append(f"for no other method can a difference to {reference} be shown")
    if unjudged:
        parts.append(f"one seed says nothing of {', '.join(unjudged)}")
    counts = [row.seeds for row in (vanilla, *judged)]
    seeds = str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    return f"Over {seeds} seeds: {'; '.join(parts)}."


def _better(one: str, other: str, gap: Difference) -> str:
    """The sentence of a difference that is shown."""
    side, p = "better" if gap.estimate.value > 0 else "worse", p_text(gap.p_value)
    return f"{one} is {side} than {other} by {with_interval(gap.estimate)} (p {'' if p[0] == '<' else '= '}{p})"
