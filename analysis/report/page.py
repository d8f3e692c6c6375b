"""The page of `trb report`: report.html, one file that needs no network.

It has the same bytes for the same run directories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.costs import family_costs
from analysis.facts.candidates import select
from analysis.facts.evidence import Verdict
from analysis.report.assets import CSS, scripts
from analysis.report.audit import audit_section
from analysis.report.chart import chart_section
from analysis.report.comparison import comparison_section
from analysis.report.diagnostics import diagnostics_section
from analysis.report.excerpts import excerpts_section
from analysis.report.figures import figures_section
from analysis.report.html import Html, bullets, element, join, void
from analysis.report.parameters import parameters_section
from analysis.report.provenance import facts, provenance_section
from analysis.report.responses import responses_section
from analysis.report.samples import kept_responses, samples_section, training_section
from analysis.report.scores import scores_section
from analysis.report.spending import costs_section
from analysis.report.summary import summary
from analysis.report.trials import downloads, trials_section
from analysis.table import build
from analysis.table.model import Table
from orchestrator.errors import UserError
from orchestrator.monitor import status
from orchestrator.records.files import check_writable, write_atomically
from orchestrator.selection.results_folder import claim
from orchestrator.selection.study import Study

CONTENTS: Mapping[str, str] = {
    "results": "Results",
    "responses": "What pass@1 hides",
    "compare": "Compare two",
    "curves": "Curves",
    "figures": "Figures",
    "rollouts": "Rollouts",
    "training": "Before and after",
    "samples": "Responses",
    "diagnostics": "Diagnostics",
    "cost": "Cost",
    "trials": "Trials",
    "parameters": "Hyper-parameters",
    "provenance": "Provenance",
}


@dataclass(frozen=True)
class Report:
    """A page that was written, and its verdict on the methods."""

    path: Path
    verdict: Verdict


def write_report(study: Study, path: Path | None = None) -> Report:
    """Write the page, by default beside the experiment's tables and figures.

    Raises UserError if no unit was started yet, and OSError if its folder takes no files.
    """
    if not any(study.reader(unit).started for unit in study.units):
        raise UserError(
            f"{study.runs}: nothing to report of {study.experiment.name} yet; trb submit starts it"
        )
    path = path or claim(study) / "report.html"
    check_writable(path.parent)  # the page takes seconds to make
    study = study.snapshot()
    results = build.results_table(study)
    page = build_page(study, path, results)
    study.remember()
    write_atomically(path, page)
    return Report(path, results.verdict)


def build_page(study: Study, path: Path, results: Table | None = None) -> str:
    """The page for the file `path`, which its links start from; `results` is the study's table."""
    experiment, statuses = study.experiment, status.collect(study)
    results = results or build.results_table(study)
    chosen = select(study)
    kept = kept_responses(study, chosen)
    costs = {setup: family_costs(study, setup) for setup in experiment.setups}
    links = []
    for key, text in CONTENTS.items():
        links.append(element("a", text, href=f"#{key}"))
    sections = [
        summary(experiment, statuses, results.verdict),
        facts(study, downloads(results, study, path)),
        element("nav", bullets(links), aria_label="Parts"),
        scores_section(results),
        responses_section(results),
        comparison_section(study, chosen),
        chart_section(study, chosen),
        figures_section(study),
        excerpts_section(study),
        training_section(study, chosen, kept),
        samples_section(study, kept),
        diagnostics_section(study, chosen),
        audit_section(study),
        costs_section(experiment, costs),
        trials_section(study, statuses, path),
        parameters_section(experiment),
        provenance_section(study, results.facts),
    ]
    return _document(f"{experiment.name} – trb report", sections)


def _document(title: str, sections: Sequence[Html]) -> str:
    head = element(
        "head",
        void("meta", charset="utf-8"),
        void("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        void("link", rel="icon", href="data:,"),
        element("style", Html(CSS)),
    )
    body = element("body", element("main", join(sections, Html("\n"))), scripts())
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"
