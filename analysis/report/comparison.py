"""The section `compare`: any two methods, as `trb table EXP --compare FIRST,SECOND` compares them."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.facts.candidates import Selected
from analysis.labels import method_label, setup_title
from analysis.report.html import Html, code, data, element, paragraph, section
from analysis.table.compare import (
    MethodComparison,
    checkpoints_text,
    compare_all,
    explanation,
    sheet_of,
)
from orchestrator.experiment.methods import PROPOSED, REFERENCE
from orchestrator.selection.study import Study

TITLE = "Compare two methods"
WITHOUT = "A browser that runs scripts compares any two methods here. Everywhere "


def comparison_section(study: Study, chosen: Sequence[Selected]) -> Html:
    """The comparisons of all setups, and the place in which the script shows the chosen one."""
    setups = []
    for name, comparisons in compare_all(study, chosen).items():
        pairs = {}
        for comparison in comparisons:
            table = sheet_of(comparison)
            rows = [[cell.text for cell in row] for row in table.rows]
            pairs[",".join(comparison.methods)] = {
                "title": checkpoints_text(comparison),
                "rows": [[str(heading) for heading in table.headings], *rows],
                "note": " ".join(explanation([comparison])),
            }
        if pairs:
            title = setup_title(name, study.experiment.setups)
            setups.append({"title": title, "methods": _labels(comparisons), "pairs": pairs})
    if not setups:
        return section(TITLE, "compare", paragraph("Fewer than two methods have scores yet."))
    command = code("trb table EXP --compare FIRST,SECOND")
    return section(
        TITLE,
        "compare",
        paragraph(WITHOUT, command, " prints the same numbers.", class_="unscripted"),
        element("div", class_="live", id="comparison"),
        data("comparison-data", {"pair": [PROPOSED, REFERENCE], "setups": setups}),
    )


def _labels(comparisons: Sequence[MethodComparison]) -> dict[str, str]:
    """Method → its label, in the order of the table."""
    labels = {}
    for comparison in comparisons:
        labels |= {method: method_label(method) for method in comparison.methods}
    return labels
