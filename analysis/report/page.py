"""The page of `trb report`: report.html, one file that needs no network.

It has the same bytes for the same run directories.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.costs import family_costs
from analysis.figures import gantt
from analysis.labels import setup_title
from analysis.report.audit import audit_section
from analysis.report.diagnostics import diagnostics_section
from analysis.report.excerpts import excerpts_section
from analysis.report.figures import figure, figures_section
from analysis.report.html import Html, bullets, element, join, void
from analysis.report.made_with import facts, hyper_parameters_section
from analysis.report.provenance import origin_numbers, provenance_section
from analysis.report.scores import scores_section
from analysis.report.spending import costs_section
from analysis.report.style import CSS
from analysis.report.summary import summary
from analysis.report.trials import downloads, trials_section
from analysis.scores.verdict import Verdict
from analysis.table import build
from analysis.table.model import Table
from orchestrator.errors import UserError
from orchestrator.monitor import status
from orchestrator.records.files import write_atomically
from orchestrator.selection.results_folder import claim
from orchestrator.selection.study import Study

CONTENTS: Mapping[str, str] = {
    "results": "Results",
    "figures": "Figures",
    "rollouts": "Rollouts",
    "diagnostics": "Diagnostics",
    "cost": "Cost",
    "trials": "Trials",
    "parameters": "Hyper-parameters",
    "provenance": "Provenance",
}


@dataclass(frozen=True)
class Report:
    """A page that was written, and what it says of the methods."""

    path: Path
    verdict: Verdict


def write_report(study: Study, path: Path | None = None) -> Report:
    """Write the page at once, beside the experiment's tables and figures unless a `path` is given.

    UserError where no unit was started yet, and where the results of others cannot be written to.
    """
    if not any((study.runs / unit.id / "config.json").exists() for unit in study.units):
        raise UserError(
            f"{study.runs}: nothing to report of {study.experiment.name} yet; trb submit starts it"
        )
    try:
        path = path or claim(study) / "report.html"
        study = study.snapshot()
        results = build.results_table(study)
        page = build_page(study, path, results)
        study.remember()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, page)
    except PermissionError as error:
        raise UserError(
            f"{error.filename or path}: permission denied; --out report.html writes it here"
        ) from None
    return Report(path, results.verdict)


def build_page(study: Study, path: Path, results: Table | None = None) -> str:
    """The page as it will lie at `path`; `results` is the study's table, where that is known
    already.
    """
    statuses = status.collect(study)
    results = results or build.results_table(study)
    chosen = build.select(study)
    costs = {name: family_costs(study, name) for name in study.experiment.setups}
    titles = {name: setup_title(name, study.experiment.setups) for name in study.experiment.setups}
    sections = [
        summary(study.experiment, statuses, results.verdict),
        facts(study.experiment, statuses, study.runs, downloads(results, study, path)),
        element(
            "nav",
            bullets(element("a", text, href=f"#{key}") for key, text in CONTENTS.items()),
            aria_label="Parts",
        ),
        scores_section(results),
        figures_section(study),
        excerpts_section(study),
        diagnostics_section(study, chosen),
        audit_section(study),
        costs_section(study.experiment, costs, _gantt(study)),
        trials_section(statuses, study.runs, path, origin_numbers(statuses, study.runs), titles),
        hyper_parameters_section(study.experiment),
        provenance_section(study.experiment, statuses, study.runs, results.evidence),
    ]
    return _document(f"{study.experiment.name} – trb report", sections)


def _gantt(study: Study) -> Html:
    """The Gantt chart; empty before any work was clocked."""
    picture = gantt.picture(study)
    return Html() if picture.drawing is None else figure(picture, study.experiment.name)


def _document(title: str, sections: Sequence[Html]) -> str:
    head = element(
        "head",
        void("meta", charset="utf-8"),
        void("meta", http_equiv="Content-Security-Policy", content=_policy()),
        void("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        void("link", rel="icon", href="data:,"),
        element("style", Html(CSS)),
    )
    body = element("body", element("main", join(sections, Html("\n"))))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _policy() -> str:
    """Nothing is loaded and nothing runs: this style sheet and the images inside the page are all
    there is.
    """
    digest = base64.b64encode(hashlib.sha256(CSS.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
