"""Two methods on the same problems: `trb table EXP.yaml --compare FIRST,SECOND`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from typing import Any

from analysis.facts.candidates import Candidate
from analysis.facts.columns import LIMITS, EvidenceColumn, P
from analysis.facts.comparison import MethodComparison, compare_methods
from analysis.facts.evidence import Difference, Verdict
from analysis.facts.intervals import CONFIDENCE, REPLICATES
from analysis.facts.verdict import FEW, PER_CENT, side_label
from analysis.labels import BASE, benchmark_label
from analysis.table.evidence_formats import gap_cells, number_text
from analysis.table.formats import markdown_advice
from orchestrator import sheet
from orchestrator.errors import refuse
from orchestrator.experiment.axes import respelled, setting_text, short_names, value_text
from orchestrator.experiment.methods import known_method
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


def compare(study: Study, pair: str) -> list[MethodComparison]:
    """The comparison of `FIRST,SECOND`: each any name of a method, with knobs that of a setting, or
    of the untrained student.

    UserError if they are not two different ones of the experiment.
    """
    names = [_side_of(study, name) for name in pair.split(",")]
    if len(names) != 2 or names[0] == names[1]:
        raise refuse("--compare", pair, "two different methods, FIRST,SECOND")
    return compare_methods(study, (names[0], names[1]))


def _side_of(study: Study, text: str) -> str:
    """The name of a method, or of the one setting that a method's name and some knobs mean.

    `TRB lr=1e-4` is enough where only one setting of TRB has this rate.
    """
    words = text.split()
    given = [word for word in words if "=" in word]
    known = [*study.experiment.methods, BASE]
    named = " ".join(word for word in words if "=" not in word)
    method = known_method("--compare", named, known)
    if not given:
        return method
    settings: dict[str, None] = {}
    for unit in study.units:
        if unit.method == method and _has(unit.knobs, given):
            settings[f"{method} {setting_text(unit.knobs)}"] = None
    if len(settings) != 1:
        labels = [side_label(name) for name in settings]
        if not labels:
            labels = list(dict.fromkeys(u.label for u in study.units if u.method == method))
        raise refuse("--compare", text.strip(), f"one setting: {', '.join(labels)}")
    return next(iter(settings))


def _has(knobs: Mapping[str, Any], given: Sequence[str]) -> bool:
    """Whether a setting has all the values that are given as `name=value`."""
    short = short_names(knobs)
    values = {}
    for name, value in knobs.items():
        values[name] = values[short[name]] = value_text(value)
    for word in given:
        name, _, text = word.partition("=")
        if values.get(name) != respelled(text):
            return False
    return True


def verdict_of(comparisons: Sequence[MethodComparison]) -> Verdict:
    """The verdict on two methods; setups' titles precede sentences where setups differ."""
    advice, named, sentences = None, list[str](), dict[str, None]()
    said = dict.fromkeys(line for each in comparisons for line in each.verdict.caveats)
    for comparison in comparisons:
        advice = advice or comparison.verdict.advice
        for sentence in comparison.verdict.sentences:
            sentences[sentence] = None
            named.append(f"{comparison.title}: {sentence}")
    return Verdict(tuple(named if len(sentences) > 1 else sentences), advice, tuple(said))


def to_markdown(comparisons: Sequence[MethodComparison]) -> str:
    """A table for each setup under a line that names the two checkpoints."""
    lines: list[str] = []
    for comparison in comparisons:
        lines += [f"**{comparison.title}**: {checkpoints_text(comparison)}", ""]
        lines += [*sheet.to_markdown(sheet_of(comparison), aligned=True), ""]
    found = verdict_of(comparisons)
    paragraphs = [" ".join(explanation(comparisons)), *(f"**{line}**" for line in found.sentences)]
    paragraphs += [*found.caveats, *markdown_advice(found)]
    return "\n".join([*lines, "\n\n".join(paragraphs)]) + "\n"


def checkpoints_text(comparison: MethodComparison) -> str:
    """`TRB ε₀=0.05, step 24 − Vanilla, step 24`."""
    suffix = ", confirmed" if comparison.confirmed else ""
    names = []
    for method, checkpoint in comparison.sides():
        missing = f"{side_label(method)} (no scores yet)"
        names.append(f"{checkpoint.title}{suffix}" if checkpoint else missing)
    return " − ".join(names)


def sheet_of(comparison: MethodComparison) -> sheet.Sheet:
    """A row for each benchmark: both scores, their difference, its interval and p if there is any."""
    rows = []
    for row in comparison.rows():
        scores = [number_text(row.first), number_text(row.second)]
        gap = gap_cells(row.difference).values()
        rows.append([benchmark_label(row.benchmark), *scores, *gap])
    labels = [side_label(method) for method in comparison.methods]
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
        for row in comparison.rows():
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
        "caveats": list(found.caveats),
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
