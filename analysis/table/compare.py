"""Two methods on the same problems: `trb table EXP.yaml --compare FIRST,SECOND`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from analysis.labels import AVERAGE, BASE, benchmark_label, method_label, setup_title
from analysis.numbers import tenths_text
from analysis.scores.assess import (
    chosen_alike,
    differences,
    exact_scores,
    replicate_scores,
    seed_spreads,
)
from analysis.scores.candidates import Candidate, select
from analysis.scores.confirmed import confirmed_candidates
from analysis.scores.evidence import Difference
from analysis.scores.uncertainty import CONFIDENCE, REPLICATES
from analysis.scores.verdict import Verdict, pair_verdict
from analysis.table.captions import FEW, PER_CENT
from analysis.table.evidence_formats import (
    LIMITS,
    P,
    difference_object,
    gap_text,
    limits_text,
    tested_text,
)
from analysis.table.formats import markdown_advice
from orchestrator import sheet
from orchestrator.errors import refuse
from orchestrator.experiment.methods import known_method
from orchestrator.selection.confirmation import with_confirmation
from orchestrator.selection.study import Study

CSV_COLUMNS = (
    *("setup", "benchmark", "first", "second", "first_score", "second_score"),
    *(
        "difference",
        "ci_low",
        "ci_high",
        "p_value",
        "problems",
        "first_seeds",
        "second_seeds",
        "interval_over",
    ),
)


@dataclass(frozen=True)
class MethodComparison:
    """The selected checkpoints of two methods in one setup, None before their first scores.

    They are the `confirmed` ones where all confirming runs of both are evaluated.

    `columns` by benchmark, the average as `avg`; None while one of the two has no scores. `verdict`
    is what may be said of the two.
    """

    setup: str
    title: str
    methods: tuple[str, str]
    first: Candidate | None
    second: Candidate | None
    columns: dict[str, Difference | None]
    verdict: Verdict
    confirmed: bool = False


def compare(study: Study, pair: str) -> list[MethodComparison]:
    """The comparison in each setup, of confirmed checkpoints where both methods have one.

    `pair` is `FIRST,SECOND`, each any name of a method or of the untrained student. UserError if
    they are not two different methods of the experiment, or rest on different problems.
    """
    methods = _parse_pair(pair, [*study.experiment.methods, BASE])
    titles = {name: setup_title(name, study.experiment.setups) for name in study.experiment.setups}
    study = with_confirmation(study)
    chosen = select(study)
    comparisons = []
    for name, setup in study.experiment.setups.items():
        of_setup = {selected.best.method: selected for selected in chosen if selected.setup == name}
        best = {method: selected.best for method, selected in of_setup.items()}
        confirmed = confirmed_candidates(study, name)
        if confirmed.keys() >= set(methods):
            best = confirmed
        first, second = (best.get(method) for method in methods)
        columns: dict[str, Difference | None] = dict.fromkeys(
            [AVERAGE, *setup.evaluation.benchmarks]
        )
        if first is not None and second is not None:
            drawn = replicate_scores({methods[0]: first, methods[1]: second})
            gaps = differences(
                first, second, [drawn[method] for method in methods], seed_spreads(best.values())
            )
            if best is not confirmed and BASE not in methods:
                gaps = chosen_alike(
                    gaps, (of_setup[methods[0]].candidates, of_setup[methods[1]].candidates)
                )
            columns |= gaps
        sentence = pair_verdict(study, methods, columns[AVERAGE], confirmed=best is confirmed)
        found = (first, second, columns, sentence, best is confirmed)
        comparisons.append(MethodComparison(name, titles[name], methods, *found))
    return comparisons


def verdict_of(comparisons: Sequence[MethodComparison]) -> Verdict:
    """The verdict on two methods over all setups; a setup's title precedes each sentence where
    setups differ.
    """
    sentences, advice = [], None
    for comparison in comparisons:
        sentences += [(comparison.title, sentence) for sentence in comparison.verdict.sentences]
        advice = advice or comparison.verdict.advice
    if len({sentence for _, sentence in sentences}) < 2:
        return Verdict(tuple(sentence for _, sentence in sentences[:1]), advice)
    return Verdict(tuple(f"{title}: {sentence}" for title, sentence in sentences), advice)


def to_markdown(comparisons: Sequence[MethodComparison]) -> str:
    """A table for each setup under a line that names the two checkpoints."""
    lines: list[str] = []
    for comparison in comparisons:
        names = []
        for method, checkpoint in zip(
            comparison.methods, (comparison.first, comparison.second), strict=True
        ):
            known = (
                ""
                if checkpoint is None
                else f"{checkpoint.title}{', confirmed' if comparison.confirmed else ''}"
            )
            names.append(known or f"{method_label(method)} (no scores yet)")
        headings = ["Benchmark", *map(method_label, comparison.methods), "Difference", LIMITS, P]
        rows = _text_rows(comparison)
        table = sheet.Sheet.of(headings, rows)
        if not any(row[-1] for row in rows):
            table = table.only(range(len(headings) - 1))
        lines += [
            f"**{comparison.title}**: {' − '.join(names)}",
            "",
            *sheet.to_markdown(table, aligned=True),
            "",
        ]
    found = verdict_of(comparisons)
    paragraphs = [" ".join(explanation(comparisons)), *(f"**{line}**" for line in found.sentences)]
    paragraphs += markdown_advice(found)
    return "\n".join([*lines, "\n\n".join(paragraphs)]) + "\n"


def explanation(comparisons: Sequence[MethodComparison]) -> list[str]:
    """Say what the intervals and p let vary."""
    gaps = [
        gap for comparison in comparisons for gap in comparison.columns.values() if gap is not None
    ]
    over_seeds = [gap for gap in gaps if gap.estimate.over == "seeds"]
    sentences = []
    if over_seeds:
        few = "; few seeds" if any(min(gap.runs) < FEW for gap in over_seeds) else ""
        sentences.append(
            f"[ ]: {PER_CENT} t interval over seeds, which are assumed to vary equally under every method of the "
            f"setup{few}; p: two-sided, of the same t distribution, for this comparison alone."
        )
    if len(over_seeds) < len(gaps):
        sentences.append(
            f"[ ] problems only: {PER_CENT} paired bootstrap over the problems of the checkpoints as they are; another "
            "seed or machine moves Avg by several points."
        )
    return sentences


def to_csv(comparisons: Sequence[MethodComparison]) -> str:
    """A row for each setup and benchmark, percent with two decimals; numbers that are missing are
    empty.
    """
    rows = []
    for comparison in comparisons:
        for row in _objects(comparison):
            gap = row["difference"] or dict.fromkeys(
                ("value", "low", "high", "p_value", "interval_over")
            )
            numbers = [row["first"], row["second"], gap["value"], gap["low"], gap["high"]]
            texts = ["" if number is None else f"{number:.2f}" for number in numbers]
            p_value = "" if gap["p_value"] is None else f"{gap['p_value']:.4f}"
            named = (comparison.setup, row["benchmark"], *comparison.methods)
            runs = [found and found.seeds for found in (comparison.first, comparison.second)]
            rows.append(
                (*named, *texts, p_value, row["problems"], *runs, *(gap["interval_over"] or [""]))
            )
    return sheet.to_csv(CSV_COLUMNS, rows)


def to_json(comparisons: Sequence[MethodComparison]) -> str:
    """Scores in percent, missing numbers null; `units` are the runs of the checkpoints."""
    found = verdict_of(comparisons)
    rows = [
        {
            "setup": comparison.setup,
            "first": _checkpoint_object(comparison.methods[0], comparison.first),
            "second": _checkpoint_object(comparison.methods[1], comparison.second),
            "columns": _objects(comparison),
        }
        for comparison in comparisons
    ]
    document = {
        "comparisons": rows,
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
    if " vs " in text:
        raise refuse(
            "--compare", text, f"a comma between the methods: {','.join(text.split(' vs '))}"
        )
    names = [known_method("--compare", name.strip(), known) for name in text.split(",")]
    if len(names) != 2 or names[0] == names[1]:
        raise refuse("--compare", text, "two different methods, FIRST,SECOND")
    return names[0], names[1]


def _objects(comparison: MethodComparison) -> list[dict[str, Any]]:
    """A row for each column: both scores, their difference and the number of problems; None where
    missing.
    """
    first, second = (
        exact_scores(found) if found else {} for found in (comparison.first, comparison.second)
    )
    known = comparison.first or comparison.second
    sizes = {key: len(counts[0].problems) for key, counts in known.counts.items()} if known else {}
    sizes |= {AVERAGE: sum(sizes.values())} if known else {}
    return [
        {
            "benchmark": key,
            "first": float(first[key]) if first else None,
            "second": float(second[key]) if second else None,
            "difference": difference_object(found),
            "problems": sizes.get(key),
        }
        for key, found in comparison.columns.items()
    ]


def _text_rows(comparison: MethodComparison) -> list[list[str]]:
    first, second = (
        exact_scores(found) if found else {} for found in (comparison.first, comparison.second)
    )
    rows = []
    for key, gap in comparison.columns.items():
        scores = [
            tenths_text(first[key]) if first else "",
            tenths_text(second[key]) if second else "",
        ]
        difference = [gap_text(gap), limits_text(gap), tested_text(gap)] if gap else ["", "", ""]
        rows.append([benchmark_label(key), *scores, *difference])
    return rows


def _checkpoint_object(method: str, found: Candidate | None) -> dict[str, Any]:
    if found is None:
        return {"method": method, "knobs": None, "step": None, "units": [], "seeds": None}
    known = {
        "knobs": found.knobs,
        "step": found.step,
        "units": list(found.units),
        "seeds": found.seeds,
    }
    return {"method": method, **known}
