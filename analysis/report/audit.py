"""The report's section on the second grader, from the last `trb regrade --audit`."""

from __future__ import annotations

from analysis.labels import setup_title
from analysis.report.html import Html, bullets, element, join, paragraph, section
from orchestrator.selection.results_folder import folder_of
from orchestrator.selection.second_opinion import Audited, read_audit
from orchestrator.selection.study import Study

INTRODUCTION = (
    "math-verify alone grades the answers that the evaluations keep a second time. A disagreement "
    "is no error by itself: the examples show which grader is right."
)


def audit_section(study: Study) -> Html:
    """Rates of disagreement by benchmark with examples; empty where no audit was made."""
    audits = read_audit(folder_of(study.experiment.name, study.runs))
    if not audits:
        return Html()
    parts = []
    for audited in audits:
        title = f"{setup_title(audited.setup, study.experiment.setups)}, {audited.benchmark}"
        parts += [element("h3", title), paragraph(_rate(audited)), _examples(audited)]
    return section("A second grader", "audit", paragraph(INTRODUCTION), *parts)


def _rate(audited: Audited) -> str:
    rate = "No answer has a second verdict"
    if audited.rate is not None:
        rate = f"{audited.rate:.2%} disagree"
    return (
        f"{rate}, of {audited.answers:,} answers: math-verify alone refuses {audited.refused:,} "
        f"and accepts {audited.accepted:,}; it gives no verdict on {audited.undecided:,}."
    )


def _examples(audited: Audited) -> Html:
    lines = []
    for example in audited.examples:
        verdict = "right" if example.correct else "wrong"
        text = f" for {example.gold}: {verdict} by the sweep's grader ({example.count:,} responses)"
        lines.append(join([element("code", example.answer), text]))
    return bullets(lines)
