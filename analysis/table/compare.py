"""Two methods on the same problems: `trb table EXP.yaml --compare FIRST,SECOND`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from analysis.facts.assess import (
    Columns,
    confirmed_candidates,
    differences,
    exact_scores,
    relabelled,
    replicate_scores,
)
from analysis.facts.candidates import Candidate, Selected, select
from analysis.facts.columns import LIMITS, EvidenceColumn, P
from analysis.facts.evidence import Difference, Verdict, setting_text
from analysis.facts.intervals import CONFIDENCE, REPLICATES
from analysis.facts.verdict import FEW, PER_CENT, pair_verdict
from analysis.labels import (
    AVERAGE,
    BASE,
    benchmark_label,
    method_label,
    order_methods,
    setup_title,
)
from analysis.table.evidence_formats import gap_cells, number_text
from analysis.table.formats import markdown_advice
from orchestrator import sheet
from orchestrator.errors import refuse
from orchestrator.experiment.methods import known_method
from orchestrator.selection.confirmation import with_confirmation
from orchestrator.selection.study import Study

DIFFERENCE = EvidenceColumn(
    "difference", "Difference", lambda row, _: row.difference, holds="difference"
)
OVER_SEEDS = (
    f"[ ]: {PER_CENT} t interval over the seeds of the two methods, whose spreads may differ (Welch){{few}}; p: "
    "two-sided, for this comparison alone."
)
OVER_PROBLEMS = (
    f"[ ] problems only: {PER_CENT} paired bootstrap over the problems of the checkpoints as they are; another "
    "seed or machine moves Avg by several points."
)


@dataclass(frozen=True)
class MethodComparison:
    """The selected checkpoints of two methods in one setup, None before their first scores.

    They are the `confirmed` ones where all confirming runs of both are evaluated.

    `columns` by benchmark, the average as `avg`; None while one of the two has no scores.
    """

    setup: str
    title: str
    methods: tuple[str, str]
    first: Candidate | None
    second: Candidate | None
    columns: dict[str, Difference | None]
    verdict: Verdict
    confirmed: bool = False

    def sides(self) -> list[tuple[str, Candidate | None]]:
        """Both methods with their checkpoints."""
        return [(self.methods[0], self.first), (self.methods[1], self.second)]


def compare(study: Study, pair: str) -> list[MethodComparison]:
    """The comparison in each setup, of confirmed checkpoints where both methods have one.

    `pair` is `FIRST,SECOND`, each any name of a method or of the untrained student. UserError if
    they are not two different methods of the experiment, or rest on different problems.
    """
    methods = _parse_pair(pair, [*study.experiment.methods, BASE])
    study = with_confirmation(study)
    chosen = select(study)
    comparisons = []
    for setup in study.experiment.setups:
        pool = _pool(study, setup, chosen, methods)
        comparisons.append(_compare_in(study, setup, methods, pool))
    return comparisons


def compare_all(study: Study, chosen: Sequence[Selected]) -> dict[str, list[MethodComparison]]:
    """Setup → the comparison of every two methods that have scores in it."""
    study = with_confirmation(study)
    comparisons = {}
    for setup in study.experiment.setups:
        methods = order_methods([each.best.method for each in chosen if each.setup == setup])
        both = _pool(study, setup, chosen, methods)
        comparisons[setup] = [
            _compare_in(study, setup, pair, both) for pair in itertools.combinations(methods, 2)
        ]
    return comparisons


class _Checkpoints(NamedTuple):
    """Checkpoints of a setup by method, and their replicates.

    `sizes` says out of how many each is the best, by method.
    """

    known: Mapping[str, Candidate]
    replicates: Mapping[str, Columns]
    sizes: Mapping[str, int]


class _Pool(NamedTuple):
    """The checkpoints that can be compared in a setup."""

    selected: _Checkpoints
    confirmed: _Checkpoints


def _pool(study: Study, setup: str, chosen: Sequence[Selected], methods: Sequence[str]) -> _Pool:
    """The checkpoints of a setup, with replicates of these methods."""

    def of(known: Mapping[str, Candidate], sizes: Mapping[str, int]) -> _Checkpoints:
        drawn = {method: known[method] for method in methods if method in known}
        return _Checkpoints(known, replicate_scores(drawn), sizes)

    own = [selected for selected in chosen if selected.setup == setup]
    best = {selected.best.method: selected.best for selected in own}
    sizes = {selected.best.method: selected.candidates for selected in own}
    return _Pool(of(best, sizes), of(confirmed_candidates(study, setup), {}))


def _compare_in(
    study: Study, setup: str, methods: tuple[str, str], pool: _Pool
) -> MethodComparison:
    is_confirmed = pool.confirmed.known.keys() >= set(methods)
    best = pool.confirmed if is_confirmed else pool.selected
    first, second = best.known.get(methods[0]), best.known.get(methods[1])
    benchmarks = study.experiment.setups[setup].evaluation.benchmarks
    columns: dict[str, Difference | None] = dict.fromkeys([AVERAGE, *benchmarks])
    if first is not None and second is not None:
        one = {methods[0]: first}
        gaps = differences(one, second, best.replicates, best.sizes)
        columns |= relabelled(gaps, best.known, methods[1])[methods[0]]
    judged = pair_verdict(study, methods, columns[AVERAGE], is_confirmed)
    title = setup_title(setup, study.experiment.setups)
    return MethodComparison(setup, title, methods, first, second, columns, judged, is_confirmed)


def verdict_of(comparisons: Sequence[MethodComparison]) -> Verdict:
    """The verdict on two methods; setups' titles precede sentences where setups differ."""
    advice, named, sentences = None, list[str](), dict[str, None]()
    for comparison in comparisons:
        advice = advice or comparison.verdict.advice
        for sentence in comparison.verdict.sentences:
            sentences[sentence] = None
            named.append(f"{comparison.title}: {sentence}")
    return Verdict(tuple(named if len(sentences) > 1 else sentences), advice)


def to_markdown(comparisons: Sequence[MethodComparison]) -> str:
    """A table for each setup under a line that names the two checkpoints."""
    lines: list[str] = []
    for comparison in comparisons:
        lines += [f"**{comparison.title}**: {checkpoints_text(comparison)}", ""]
        lines += [*sheet.to_markdown(sheet_of(comparison), aligned=True), ""]
    found = verdict_of(comparisons)
    paragraphs = [" ".join(explanation(comparisons)), *(f"**{line}**" for line in found.sentences)]
    paragraphs += markdown_advice(found)
    return "\n".join([*lines, "\n\n".join(paragraphs)]) + "\n"


def checkpoints_text(comparison: MethodComparison) -> str:
    """`TRB ε₀=0.05, step 24 − Vanilla, step 24`."""
    suffix = ", confirmed" if comparison.confirmed else ""
    names = []
    for method, checkpoint in comparison.sides():
        missing = f"{method_label(method)} (no scores yet)"
        names.append(f"{checkpoint.title}{suffix}" if checkpoint else missing)
    return " − ".join(names)


def sheet_of(comparison: MethodComparison) -> sheet.Sheet:
    """A row for each benchmark: both scores, their difference, its interval and p if there is any."""
    rows = []
    for row in _rows(comparison):
        scores = [number_text(row.first), number_text(row.second)]
        gap = gap_cells(row.difference).values()
        rows.append([benchmark_label(row.benchmark), *scores, *gap])
    labels = [method_label(method) for method in comparison.methods]
    table = sheet.Sheet.of(["Benchmark", *labels, DIFFERENCE.heading, LIMITS, P], rows)
    if any(row[-1] for row in rows):
        return table
    return table.only(range(len(table.headings) - 1))


def explanation(comparisons: Sequence[MethodComparison]) -> list[str]:
    """Say what the intervals and p let vary."""
    gaps: list[Difference] = []
    for comparison in comparisons:
        gaps += [gap for gap in comparison.columns.values() if gap is not None]
    over_seeds = [gap for gap in gaps if gap.estimate.over == "seeds"]
    sentences = []
    if over_seeds:
        few = "; few seeds" if any(min(gap.runs) < FEW for gap in over_seeds) else ""
        sentences.append(OVER_SEEDS.format(few=few))
    if len(over_seeds) < len(gaps):
        sentences.append(OVER_PROBLEMS)
    return sentences


def records(comparisons: Sequence[MethodComparison]) -> list[dict[str, Any]]:
    """A record for each setup and benchmark; scores in percent, missing numbers None."""
    found = []
    for comparison in comparisons:
        for row in _rows(comparison):
            found.append(
                {
                    "setup": comparison.setup,
                    "benchmark": row.benchmark,
                    **_side("first", comparison.methods[0], comparison.first, row.first),
                    **_side("second", comparison.methods[1], comparison.second, row.second),
                    **DIFFERENCE.values(row, row.benchmark),
                    "problems": row.problems,
                }
            )
    return found


def _side(
    name: str, method: str, checkpoint: Candidate | None, score: Fraction | None
) -> dict[str, Any]:
    """One of the two methods: its score, and the checkpoint that has it."""
    found = {name: method, f"{name}_score": None if score is None else float(score)}
    setting = setting_text(checkpoint.knobs) if checkpoint else None
    found |= {f"{name}_setting": setting, f"{name}_step": checkpoint and checkpoint.step}
    units = checkpoint.units if checkpoint else ()
    return found | {f"{name}_seeds": len(units) or None, f"{name}_units": " ".join(units) or None}


def to_csv(comparisons: Sequence[MethodComparison]) -> str:
    """The records, percent with two decimals; missing numbers are empty."""
    rows = []
    for record in records(comparisons):
        texts = []
        for name, value in record.items():
            decimals = 4 if name.startswith("p_value") else 2
            texts.append(f"{value:.{decimals}f}" if isinstance(value, float) else value)
        rows.append(texts)
    return sheet.to_csv(list(records(comparisons)[0]), rows)


def to_json(comparisons: Sequence[MethodComparison]) -> str:
    """The records with the verdict; scores in percent, missing numbers null."""
    found = verdict_of(comparisons)
    document = {
        "comparisons": records(comparisons),
        "bootstrap": {"confidence": CONFIDENCE, "replicates": REPLICATES},
        "caption": explanation(comparisons),
        "verdict": list(found.sentences),
        "advice": asdict(found.advice) if found.advice else None,
    }
    return json.dumps(document, ensure_ascii=False, indent=2, sort_keys=True) + "\n"


FORMATS: Mapping[str, Callable[[Sequence[MethodComparison]], str]] = {
    "text": to_markdown,
    "md": to_markdown,
    "csv": to_csv,
    "json": to_json,
}


def format_of(name: str) -> Callable[[Sequence[MethodComparison]], str]:
    """How to write a comparison; UserError for a format that it does not have."""
    if name not in FORMATS:
        raise refuse("--format", name, f"one of {', '.join(FORMATS)} with --compare")
    return FORMATS[name]


def _parse_pair(text: str, known: Sequence[str]) -> tuple[str, str]:
    names = [known_method("--compare", name.strip(), known) for name in text.split(",")]
    if len(names) != 2 or names[0] == names[1]:
        raise refuse("--compare", text, "two different methods, FIRST,SECOND")
    return names[0], names[1]


class _Row(NamedTuple):
    """A column of a comparison: both scores in percent, their difference and the problems."""

    benchmark: str
    first: Fraction | None
    second: Fraction | None
    difference: Difference | None
    problems: int | None


def _rows(comparison: MethodComparison) -> list[_Row]:
    first = exact_scores(comparison.first) if comparison.first else {}
    second = exact_scores(comparison.second) if comparison.second else {}
    sizes = dict[str, int]()
    known = comparison.first or comparison.second
    if known:
        for key, of_seeds in known.counts.items():
            sizes[key] = len(of_seeds[0].problems)
        sizes[AVERAGE] = sum(sizes.values())
    rows = []
    for key, gap in comparison.columns.items():
        rows.append(_Row(key, first.get(key), second.get(key), gap, sizes.get(key)))
    return rows
