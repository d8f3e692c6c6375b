"""The whole page: one file that asks nothing of any network, the same bytes for the same run directories."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from analysis.costs import family_costs
from analysis.labels import setup_title
from analysis.report.diagnostics import diagnostics_section
from analysis.report.excerpts import excerpts_section
from analysis.report.figures import figures_section
from analysis.report.html import Html, bullets, element, join, void
from analysis.report.making import facts, hyper_parameters_section
from analysis.report.provenance import origin_numbers, provenance_section
from analysis.report.scores import scores_section
from analysis.report.spending import costs_section
from analysis.report.style import CSS
from analysis.report.summary import summary
from analysis.report.trials import downloads, trials_section
from analysis.table import build
from analysis.trials import read_trials
from orchestrator.config import Experiment
from orchestrator.errors import UserError
from orchestrator.experiment.units import Unit
from orchestrator.monitor import status
from orchestrator.records.files import write_atomically
from orchestrator.selection.results_folder import claim

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


def write_report(experiment: Experiment, units: list[Unit], runs: Path, path: Path | None = None) -> Path:
    """Write the page at once, beside the experiment's tables and figures unless a `path` is given, and say where.

    UserError where no unit was started yet.
    """
    if not any((runs / unit.id / "config.json").exists() for unit in units):
        raise UserError(f"{runs}: nothing to report of {experiment.name} yet — trb submit starts it")
    path = path or claim(experiment, units, runs) / "report.html"
    page = build_page(experiment, units, runs, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page)
    return path


def build_page(experiment: Experiment, units: list[Unit], runs: Path, path: Path) -> str:
    """The page as it will lie at `path`."""
    statuses = status.collect(experiment, units, runs)
    results = build.results_table(experiment, units, runs)
    chosen = build.select(experiment, units, runs)
    costs = {name: family_costs(experiment, units, runs, name) for name in experiment.setups}
    titles = {name: setup_title(name, experiment.setups) for name in experiment.setups}
    sections = [
        summary(experiment, statuses, results.verdict),
        facts(experiment, statuses, runs, downloads(results, read_trials(experiment, units, runs), path)),
        element(
            "nav", bullets(element("a", text, href=f"#{key}") for key, text in CONTENTS.items()), aria_label="Parts"
        ),
        scores_section(results),
        figures_section(experiment, units, runs),
        excerpts_section(experiment, runs),
        diagnostics_section(experiment, units, runs, chosen),
        costs_section(experiment, costs),
        trials_section(statuses, runs, path, origin_numbers(statuses, runs), titles),
        hyper_parameters_section(experiment),
        provenance_section(experiment, statuses, runs, results.evidence),
    ]
    return _document(f"{experiment.name} – trb report", sections)


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
    """Nothing is loaded and nothing runs: this style sheet and the images inside the page are all there is."""
    digest = base64.b64encode(hashlib.sha256(CSS.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
