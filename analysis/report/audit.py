"""The report's section on the second grader, from the last `trb regrade --audit`."""

from __future__ import annotations

from analysis.labels import setup_title
from analysis.report.html import Html, bullets, element, join, paragraph, section
from orchestrator.selection.results_folder import folder_of
from orchestrator.selection.second_opinion import Audited, read_audit
from orchestrator.selection.study import Study

WHAT = (
    "math-verify alone grades the answers that the evaluations keep a second time. A disagreement "
    "is no error by itself: the examples show which grader is right."
)


def audit_section(study: Study) -> Html:
    """Rates of disagreement by benchmark with examples; empty where no audit was made."""
    found = read_audit(folder_of(study.experiment.name, study.runs))
    if not found:
        return Html()
    parts = []
    for each in found:
        title = f"{setup_title(each.setup, study.experiment.setups)}, {each.benchmark}"
        parts.append(join([element("h3", title), paragraph(_rate(each)), _examples(each)]))
    return section("A second grader", "audit", paragraph(WHAT), *parts)


def _rate(found: Audited) -> str:
    rate = "No answer has a second verdict" if found.rate is None else f"{found.rate:.2%} disagree"
    return (
        f"{rate}, of {found.answers:,} answers: math-verify alone refuses {found.refused:,} and "
        f"accepts {found.accepted:,}; it gives no verdict on {found.undecided:,}."
    )


def _examples(found: Audited) -> Html:
    lines = []
    for example in found.examples:
        verdict = "right" if example.correct else "wrong"
        text = f" for {example.gold}: {verdict} by the sweep's grader ({example.count:,} responses)"
        lines.append(join([element("code", example.answer), text]))
    return bullets(lines) if lines else Html()
