"""Every sentence about the numbers of a table: the verdict on the methods, the advice, the captions.

The verdict has a sentence for each method and stands at the end of every form of the table;
`explanation` says what intervals are over and what columns mean.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from analysis.facts.columns import captions
from analysis.facts.evidence import (
    MEASURES,
    ONE_RUN,
    Advice,
    ConfirmedRow,
    Difference,
    Facts,
    RowEvidence,
    Verdict,
    with_interval,
)
from analysis.facts.intervals import CONFIDENCE
from analysis.labels import AVERAGE, BASE, method_label, setup_title
from analysis.numbers import p_equation, p_text, signed, tenths_text
from orchestrator.config import Experiment
from orchestrator.experiment.methods import REFERENCE
from orchestrator.selection.study import Study

_VANILLA = method_label(REFERENCE)
CONFIRMING_SEEDS = 3  # that the advice asks for
SEEDS = 5  # as many as the advice asks for


def verdict(known: Facts) -> Verdict:
    """Sentences on the differences to vanilla; empty until a setup has scores of two methods."""
    found = _verdict(known)
    return replace(found, caveats=caveats(known.experiment)) if found.sentences else found


def caveats(experiment: Experiment) -> tuple[str, ...]:
    """The sentences that the experiment and its setups put under each verdict."""
    found: list[str] = [experiment.caveat] if experiment.caveat else []
    for name, setup in experiment.setups.items():
        if setup.caveat:
            several = len(experiment.setups) > 1
            prefix = f"{setup_title(name, experiment.setups)}: " if several else ""
            found.append(prefix + setup.caveat)
    return tuple(found)


def _verdict(known: Facts) -> Verdict:
    study, experiment = known.study, known.experiment
    groups: dict[str, list[RowEvidence]] = {}
    for name in experiment.setups:
        trained = [row for row in known.rows if row.setup == name and row.method != BASE]
        if len(trained) > 1:
            groups[name] = trained
    if not groups:
        return Verdict()
    rows = list(itertools.chain(*groups.values()))
    one_seed = [row.seeds == 1 for row in rows]
    confirms, advice = bool(experiment.confirmed_methods), None
    if not confirms:
        gaps = [row.columns[AVERAGE].difference for row in rows]
        if any(gap is not None and gap.outcome == "unequal choice" for gap in gaps):
            advice = confirmation(study)
        elif any(one_seed):
            advice = more_seeds(study)
        if all(one_seed):
            return Verdict(("No method can be called better: one seed.",), advice)
    sentences: list[str] = []
    for name, of_setup in groups.items():
        prefix = f"{setup_title(name, experiment.setups)}: " if len(experiment.setups) > 1 else ""
        confirmed = [row for row in known.confirmed if row.setup == name]
        judged = _judge_confirmed(experiment, confirmed) if confirms else _judge(of_setup)
        complete = [row for row in confirmed if row.complete]
        judged += _below_untrained(known, name, complete if confirms else of_setup)
        judged += _collapsed(complete, "are") if confirms else _collapsed(of_setup, "end")
        for sentence in [*judged, *_at_equal_cost(known, name)]:
            sentences.append(prefix + sentence)
    for mean in known.across:
        judged = _judged(method_label(mean.method), _VANILLA, mean.difference)
        settled = _settled(mean.difference, experiment.confirm.until)
        others = f"; over setups like these {mean.elsewhere.text}" if mean.elsewhere else ""
        sentences.append(f"Mean of these {mean.setups} setups: {judged[:-1]} ({settled}){others}.")
    return Verdict(tuple(sentences), advice)


def _below_untrained(
    known: Facts, setup: str, rows: Sequence[RowEvidence | ConfirmedRow]
) -> list[str]:
    """A sentence on the methods whose students are worse than before their training."""
    untrained = known.find(setup, BASE)
    if untrained is None:
        return []
    before = untrained.columns[AVERAGE].score.value
    worse = []
    for row in rows:
        after = row.columns[AVERAGE].score.value if row.columns else before
        if after < before:
            worse.append(f"{method_label(row.method)} {tenths_text(after)}")
    if not worse:
        return []
    return [f"Worse than the untrained student's {tenths_text(before)}: {', '.join(worse)}."]


def _at_equal_cost(known: Facts, setup: str) -> list[str]:
    """A sentence on the methods whose selected checkpoints cost more or less than vanilla's."""
    rows = [row for row in known.costs if row.setup == setup]
    costs = {row.method: MEASURES[row.measure](row.cost) for row in rows}
    gaps = []
    for row in rows:
        gap = row.columns[AVERAGE].difference if row.columns else None
        # Without vanilla there is no difference, and no cost of it.
        if gap is not None and costs[row.method] != costs[REFERENCE]:
            gaps.append(_short(row.method, gap))
    return [f"At equal cost ({rows[0].at}): {', '.join(gaps)} against {_VANILLA}."] if gaps else []


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
    """`confirmed`; for a difference not shown also whether it is known to `until` points."""
    if until is None or gap.p_value is None or gap.shown:
        return "confirmed"
    settled = gap.estimate.margin + abs(float(gap.estimate.value)) <= until
    return f"confirmed, {'' if settled else 'not '}to ±{until:g}"


def side_label(name: str) -> str:
    """The label of a method or of a setting in a comparison: `TRB epsilon0=0.5 K=24`."""
    method, _, setting = name.partition(" ")
    return f"{method_label(method)} {setting}".rstrip()


def pair_verdict(
    study: Study,
    methods: tuple[str, str],
    average: Difference | None,
    confirmed: bool = False,
) -> Verdict:
    """Judge two methods, or settings (`side_label`), in a setup from the difference of their
    averages; empty without one.
    """
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
        keys = [name.partition(" ")[0] for name in methods]
        return Verdict((sentence,), more_seeds(study, keys) if advised else None)
    if average.outcome == "unequal choice":
        one, other = average.chosen_from
        sentence = f"Not tested: chosen from {one} and {other} checkpoints, and the best of more is higher by chance."
        return Verdict((sentence,), confirmation(study) if advised else None)
    sentence = _judged(side_label(methods[0]), side_label(methods[1]), average)
    return Verdict((f"{sentence[:-1]} (confirmed)." if confirmed else sentence,))


def more_seeds(study: Study, methods: Sequence[str] = ()) -> Advice:
    """How every method, or each of `methods`, gets five seeds or more."""
    experiment, only = study.experiment, ()
    if methods:
        grids = {name: grid for name, grid in experiment.methods.items() if name in methods}
        own = {name: seeds for name, seeds in experiment.method_seeds.items() if name in methods}
        if len(grids) < len(experiment.methods):
            only = ("--methods", ",".join(grids))
        experiment = replace(experiment, methods=grids, method_seeds=own)
    chosen = list(experiment.explored_seeds)
    for seed in itertools.count():
        if len(chosen) >= SEEDS:
            break
        if seed not in chosen:
            chosen.append(seed)
    # Seeds of a method's own come before those of the experiment, so they are set as well.
    keys = ["seeds", *(f"methods.{name}.seeds" for name in experiment.method_seeds)]
    words = [f"{key}=[{','.join(map(str, chosen))}]" for key in keys]
    wider = replace(experiment, seeds=chosen, method_seeds={})
    return Advice(
        study.invocation.command("submit", *only, *words),
        _trials(wider) - _trials(experiment),
    )


def _trials(experiment: Experiment) -> int:
    trials = 0
    for method in experiment.methods:
        trials += len(experiment.settings_of(method)) * len(experiment.seeds_of(method))
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
        if gap.outcome == "unequal choice":
            unequal.append(f"{_short(row.method, gap)} (best of {gap.chosen_from[0]})")
        elif gap.outcome == "one seed":
            untested.append(_short(row.method, gap))
        else:
            sentences.append(_judged(method_label(row.method), _VANILLA, gap))
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
        return f"{numbers}, {counts} seeds: not tested, since no two seeds of either method differ."
    outcome = "no difference shown"
    if gap.shown:
        outcome = f"{one} is {'better' if gap.estimate.value > 0 else 'worse'}"
    relabelled = "" if gap.permutation is None else f" (by permutation {p_text(gap.permutation)})"
    return f"{numbers}, {p_equation(gap.p_value)}{relabelled}, {counts} seeds: {outcome}."


def _collapsed(rows: Sequence[RowEvidence | ConfirmedRow], where: str) -> list[str]:
    """`Runs that end below the untrained student: Vanilla 3 of 3, TRB 0 of 3 (p = 0.100).`"""
    counts = []
    for row in rows:
        if row.collapse is not None and row.method != BASE:
            own = row.collapse
            p = "" if own.p_value is None else f" ({p_equation(own.p_value)})"
            counts.append(f"{method_label(row.method)} {own.collapsed} of {own.runs}{p}")
    if not any(row.collapse is not None and row.collapse.collapsed for row in rows):
        return []
    return [f"Runs that {where} below the untrained student: {', '.join(counts)}."]


def _about_collapses(known: Facts) -> list[str]:
    """Explains the column where some run collapses."""
    rows = [*known.rows, *known.confirmed]
    if not any(row.collapse is not None and row.collapse.collapsed for row in rows):
        return []
    return [
        "Collapsed: runs that end below the untrained student, and the first step from which one of them stays there; "
        "confirming runs are evaluated at one step alone.",
        "p of collapsed runs: by Fisher's exact test against Vanilla, corrected for the number of methods.",
        "Where some runs of a method collapse, no test of means is right with few of them.",
    ]


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
    where = f" in these {facts.across[0].setups} setups" if facts.across else ""
    outcomes: dict[str, list[str]] = {
        f"better than {_VANILLA}{where}": [], "worse": [], "no difference shown": [], "not tested": [],
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


# --- captions: what intervals are over, and what columns mean ---

FEW = 5  # below so many seeds an interval is wide, and its method's spread hardly known
PER_CENT = f"{100 * CONFIDENCE:g} %"
OVER_PROBLEMS = "bootstrap over the problems of one training run each; another seed moves Avg by several points."


def explanation(known: Facts) -> list[str]:
    """The sentences, those that matter most first; none without rows."""
    if not known.rows:
        return []
    sentences = [*intervals_sentences(known), *captions(known, "selected")]
    sentences += [*_unequal_families(known.rows), *_about_collapses(known)]
    for kind in ("responses", "held_out", "confirmed", "across", "cost"):
        sentences += captions(known, kind)
    return sentences


def intervals_sentences(known: Facts) -> list[str]:
    """Say what ±, [ ] and p let vary, and what they hold fixed."""
    trained, several = _trained(known)
    sentences = []
    if several:
        sentences.append(
            f"± and [ ]: {PER_CENT} t interval over {_seeds(several)}, from each method's own runs. It does not cover "
            "the choice of problems."
        )
    if len(several) < len(trained) or not trained:
        sentences.append(f"± with {ONE_RUN}, and [ ] of one seed: {PER_CENT} {OVER_PROBLEMS}")
    if several and len(trained) < len(known.rows):
        sentences.append(
            "The untrained student has no seeds: its ± and [ ] are over problems only."
        )
    if any(each.score.over == "problems" for row in several for each in row.columns.values()):
        sentences.append(
            "Where no two seeds of a method differ, no spread between seeds can be told, and the interval is over "
            "problems only."
        )
    columns = [each for row in (*several, *known.confirmed) for each in row.columns.values()]
    gaps = [each.difference for each in columns if each.difference is not None]
    corrected = [gap.corrected_for for gap in gaps if gap.corrected_for is not None]
    if max(corrected, default=0) > 1:
        sentences.append(
            "p and its interval: two-sided, corrected for the number of methods by Dunnett's test with the variance of "
            "each method (Hasler and Hothorn)."
        )
    elif corrected:
        sentences.append("p: two-sided, by Welch's test.")
    if any(gap.permutation is not None for gap in gaps):
        sentences.append("By permutation: the same question asked of all runs relabelled.")
    return sentences


def brief_intervals(known: Facts) -> list[str]:
    """The same in a sentence or two, for who has just run a sweep."""
    _, several = _trained(known)
    if not several:
        return [f"± and [ ]: {PER_CENT} {OVER_PROBLEMS}"]
    sentence = f"± and [ ]: {PER_CENT} t interval over {_seeds(several)}."
    if len(several) < len(known.rows):
        sentence += f" With {ONE_RUN}: {OVER_PROBLEMS}"
    return [sentence]


def _trained(known: Facts) -> tuple[list[RowEvidence], list[RowEvidence]]:
    """The rows of methods, and those of them with several seeds."""
    trained = [row for row in known.rows if row.method != BASE]
    return trained, [row for row in trained if row.seeds > 1]


def _seeds(rows: Sequence[RowEvidence]) -> str:
    """`3 seeds; few seeds`."""
    counts = [row.seeds for row in rows]
    count = str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    return f"{count} seeds{'; few seeds' if min(counts) < FEW else ''}"


def _unequal_families(rows: Sequence[RowEvidence]) -> list[str]:
    """Says so where the methods of a setup were selected from different numbers of checkpoints."""
    trained = [row for row in rows if row.method != BASE]
    for _, of_setup in groupby(trained, key=lambda row: row.setup):
        group = list(of_setup)
        least = min(group, key=lambda row: row.candidates)
        most = max(group, key=lambda row: row.candidates)
        if least.candidates < most.candidates:  # one setup is enough of an example
            return [
                f"The best of {most.candidates} checkpoints ({method_label(most.method)}) is higher by chance alone "
                f"than the best of {least.candidates} ({method_label(least.method)}); such differences are not tested."
            ]
    return []
