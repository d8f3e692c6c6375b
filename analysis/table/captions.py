"""The sentences under a results table: what its intervals are over, and what its columns mean."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from analysis.facts.evidence import ONE_RUN, Facts, RowEvidence
from analysis.facts.uncertainty import CONFIDENCE
from analysis.labels import AVERAGE, BASE, method_label
from orchestrator.selection import significance

FEW = 5  # below so many seeds an interval is wide, and its method's spread hardly known
PER_CENT = f"{100 * CONFIDENCE:g} %"
OVER_PROBLEMS = "bootstrap over the problems of one training run each; another seed moves Avg by several points."
COLUMNS = (
    "Split-half: selected on half of the problems, scored on the other half.",
    "Fresh: the selected checkpoint on new samples, which took no part in selecting it.",
    "Left-out: chosen on all seeds but one, scored on that one; not tested, since the choices share seeds.",
    "Of: evaluated checkpoints of the method, of which the best is shown.",
    "Seeds: training runs that a score is the mean of.",
)
UNEQUAL = "not tested"  # in place of p, where a method was chosen from more or fewer checkpoints than vanilla
LENGTHS = "Tokens right, Tokens wrong: mean length of right and of wrong responses."
CONFIRMED = (
    "Confirmed: the chosen setting and step, trained on seeds that took no part in choosing, on new samples.",
    "Lead: explored − confirmed, the luck of the choice.",
)
ACROSS = (
    "The mean over all setups: a seed counts once, with the mean of its runs; other setups are not covered.",
)
COST = (
    "Cost: of the training steps and the supervised stage before them, without start, evaluation and saving; a mean "
    "over seeds.",
    "Equal cost: the most that all methods have reached; scores are interpolated between evaluated checkpoints.",
)


def explanation(evidence: Facts) -> list[str]:
    """The sentences, those that matter most first; none without rows."""
    if not evidence.rows:
        return []
    sentences = intervals_sentences(evidence)
    several = any(row.seeds > 1 for row in evidence.rows)
    for sentence in COLUMNS:
        if several or not sentence.startswith("Left-out"):
            sentences.append(sentence)
    sentences += [*_unequal_families(evidence.rows), *_unequal_variances(evidence)]
    sentences += responses_sentences(evidence)
    sentences += CONFIRMED if evidence.confirmed else ()
    sentences += ACROSS if evidence.across else ()
    sentences += COST if evidence.costs else ()
    return sentences


def responses_sentences(evidence: Facts) -> list[str]:
    """Say what the numbers of the responses are; those that no row has are passed over."""
    known: set[str] = set()
    for row in evidence.rows:
        known |= row.columns[AVERAGE].responses.keys()
    sentences = []
    if "pass_at_k" in known:
        k = "k" if len({row.k for row in evidence.rows}) > 1 else str(evidence.rows[0].k)
        voted = f"; maj@{k}: the most frequent of {k} answers is" if "maj_at_k" in known else ""
        sentences.append(
            f"pass@{k}: one of {k} samples is right{voted}; exact over all choices of {k} samples."
        )
    if "truncated" in known:
        sentences.append("Truncated, No answer: shares of the samples in per cent.")
    return [*sentences, LENGTHS] if "tokens_right" in known else sentences


def intervals_sentences(evidence: Facts) -> list[str]:
    """Say what ±, [ ] and p let vary, and what they hold fixed."""
    trained, several = _trained(evidence)
    sentences = []
    if several:
        sentences.append(
            f"± and [ ]: {PER_CENT} t interval over {_seeds(several)}. It assumes that seeds vary equally under every "
            "method, and does not cover the choice of problems."
        )
    if len(several) < len(trained) or not trained:
        sentences.append(f"± with {ONE_RUN}, and [ ] of one seed: {PER_CENT} {OVER_PROBLEMS}")
    if several and len(trained) < len(evidence.rows):
        sentences.append(
            "The untrained student has no seeds: its ± and [ ] are over problems only."
        )
    adjusted = []  # the number of differences that each p-value is corrected for
    without_spread = False
    for row in several:
        for column in row.columns.values():
            without_spread |= column.score.over == "problems"
            if column.difference and column.difference.p_value is not None:
                adjusted.append(column.difference.adjusted)
    if without_spread:
        sentences.append(
            "Where no two seeds of any method differ, no spread between seeds can be told, and the interval is over "
            "problems only."
        )
    if max(adjusted, default=0) > 1:
        sentences.append(
            "p and its interval: two-sided, corrected for the number of methods by Dunnett's test."
        )
    elif adjusted:
        sentences.append("p: two-sided, of the same t distribution.")
    return sentences


def brief_intervals(evidence: Facts) -> list[str]:
    """The same in a sentence or two, for who has just run a sweep."""
    _, several = _trained(evidence)
    if not several:
        return [f"± and [ ]: {PER_CENT} {OVER_PROBLEMS}"]
    sentence = f"± and [ ]: {PER_CENT} t interval over {_seeds(several)}."
    if len(several) < len(evidence.rows):
        sentence += f" With {ONE_RUN}: {OVER_PROBLEMS}"
    return [sentence]


def _trained(evidence: Facts) -> tuple[list[RowEvidence], list[RowEvidence]]:
    """The rows of methods, and those of them with several seeds."""
    trained = [row for row in evidence.rows if row.method != BASE]
    return trained, [row for row in trained if row.seeds > 1]


def _seeds(rows: Sequence[RowEvidence]) -> str:
    """`3 seeds; few seeds`."""
    counts = [row.seeds for row in rows]
    count = str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    return f"{count} seeds{'; few seeds' if min(counts) < FEW else ''}"


def _unequal_variances(evidence: Facts) -> list[str]:
    """Says so where averages were tested although seeds vary unequally under the methods."""
    setups: dict[str, None] = {}
    for row in (*evidence.rows, *evidence.confirmed):
        column = row.columns.get(AVERAGE)
        if column is not None and column.difference is not None and column.difference.unequal:
            setups[row.setup] = None
    if not setups:
        return []
    tested = f"Brown–Forsythe test, p < {significance.UNEQUAL:g}"
    return [
        f"Seeds do not vary equally under all methods in {', '.join(setups)} ({tested}): "
        "there p and its interval are too sure of methods that vary more, and not sure enough of those that vary less."
    ]


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
