"""The page of `trb report`: report.html, one file that needs no network.

It has the same bytes for the same run directories.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from analysis.facts.evidence import Facts, Verdict
from analysis.facts.facts import facts
from analysis.facts.provenance import provenance
from analysis.figures.catalog import pictures
from analysis.frames import trials, trials_csv
from analysis.labels import method_label, order_methods
from analysis.numbers import signed
from analysis.report import background, samples, scores
from analysis.table import formats
from analysis.table.model import Table, table_of
from orchestrator.errors import UserError
from orchestrator.experiment.methods import PROPOSED, REFERENCE
from orchestrator.records.files import check_writable, write_atomically
from orchestrator.selection.results_folder import claim
from orchestrator.selection.study import Study

CONTENTS: Mapping[str, str] = {
    "results": "Results",
    "responses": "What pass@1 hides",
    "compare": "Compare two",
    "curves": "Curves",
    "figures": "Figures",
    "samples": "Responses",
    "training": "Before and after",
    "rollouts": "Rollouts",
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


def write_report(
    study: Study, path: Path | None = None, say: Callable[[str], None] = lambda line: None
) -> Report:
    """Write the page, by default beside the experiment's tables and figures.

    `say` is told of the parts that take seconds. Raises UserError if no unit was started yet, and
    OSError if its folder takes no files.
    """
    if not any(study.reader(unit).started for unit in study.units):
        raise UserError(
            f"{study.runs}: nothing to report of {study.experiment.name} yet; trb submit starts it"
        )
    path = path or claim(study) / "report.html"
    check_writable(path.parent)  # the page takes seconds to make
    say("testing the differences between methods")
    known = facts(study.snapshot())
    write_atomically(path, build_page(known, path, say))
    study.remember()
    return Report(path, known.verdict)


def build_page(known: Facts, path: Path, say: Callable[[str], None] = lambda line: None) -> str:
    """The page for the file `path`, which its links start from; `say` as in `write_report`."""
    table, origin = table_of(known), provenance(known.study)
    drawn = {picture.name: picture for picture in pictures(known)}
    say(f"drawing {len(drawn)} figures")
    kept = samples.kept_responses(known)
    return (
        _environment()
        .get_template("page.html")
        .render(
            contents=CONTENTS,
            facts=known,
            table=table,
            origin=origin,
            head=scores.head(known),
            boards=scores.boards(known, drawn),
            results=scores.results(known, table),
            responses=scores.responses(known, table),
            pairs=scores.pairs(known),
            curves=scores.curves_data(known),
            steps=scores.steps(known),
            figures=scores.figures(known, drawn),
            excerpts=scores.excerpts(known),
            training=samples.training(known, kept),
            failures=samples.failures(known, kept),
            kept=any(kept.values()),
            methods=order_methods(chain(*kept.values())),
            benchmarks=samples.benchmarks(known),
            diagnostics=background.diagnostics(known),
            costs=background.costs(known),
            units=background.units(known, origin),
            links=background.links(known, path),
            parameters=background.parameters(known),
            provenance=background.provenance(known, origin),
            downloads=_downloads(known, table, path),
            files=sorted(quote(each.name) for each in path.parent.glob("*.pdf")),
        )
    )


def _environment() -> Environment:
    """Templates that escape all texts; of the package's own files only style and script are not."""
    environment = Environment(
        loader=PackageLoader("analysis.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False, "ensure_ascii": False}
    folder = files("analysis.report")
    environment.globals |= {
        "style": (folder / "page.css").read_text(encoding="utf-8"),
        "script": (folder / "page.js").read_text(encoding="utf-8"),
        "plotly": _plotly(),
        "proposed": PROPOSED,
        "reference": REFERENCE,
    }
    environment.filters |= {
        "image": scores.image,
        "label": method_label,
        "shortened": samples.shortened,
        "signed": signed,
    }
    return environment


def _plotly() -> str:
    """Plotly's script, 4.8 MB, compressed to 2 MB; `page.js` unpacks it."""
    script = (files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    return base64.b64encode(gzip.compress(script, compresslevel=6, mtime=0)).decode()


def _downloads(known: Facts, table: Table, path: Path) -> dict[str, str]:
    """File name → base64 of the tables that the page contains."""
    contents = {
        "table.csv": formats.to_csv(table),
        "table.tex": formats.to_latex(table),
        "table.json": formats.to_json(table),
        "trials.csv": trials_csv(trials(known.study)),
    }
    return {name: base64.b64encode(text.encode()).decode() for name, text in contents.items()}
