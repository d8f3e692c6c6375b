"""The section `trials`: every unit with its score, best first; and the page's downloads."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from analysis.frames import PERCENT, trials, trials_csv
from analysis.labels import setup_title
from analysis.report.html import Html, code, element, join, note, section, table
from analysis.report.provenance import origin_numbers
from analysis.report.texts import decimal
from analysis.table import formats
from analysis.table.model import Table
from orchestrator.monitor.unit_status import UnitStatus
from orchestrator.records.clock import seconds_spent
from orchestrator.selection.study import Study
from orchestrator.sheet import Sheet

HEADINGS = (
    "Setting",
    "Setup",
    "Seed",
    "State",
    "Best step",
    "Score",
    "Minutes",
    "Made with",
    "Run directory",
)
TEXTS = ("Setting", "Setup", "State", "Run directory")
EXPLANATION = (
    "Score: mean pass@1 over the setup's benchmarks at the unit's own best checkpoint, in per cent; a maximum over "
    "checkpoints of one run, so it is biased upward and differs from the table above, which selects a setting over its "
    "seeds. Minutes: wall-clock of all attempts, also of those that were stopped, and of evaluators."
)


def trials_section(study: Study, statuses: Sequence[UnitStatus], page: Path) -> Html:
    """A row for each unit, with a link to its directory from where the page will lie."""
    setups, numbers = study.experiment.setups, origin_numbers(study)
    rows = []
    for status in by_score(statuses):
        minutes = sum(seconds_spent(study.reader(status.id))) / 60
        state = status.state
        if status.step != status.steps:
            state += f", {status.step} of {status.steps}"
        rows.append(
            [
                status.label,
                setup_title(status.setup, setups),
                str(status.seed),
                state,
                "" if status.best_step is None else str(status.best_step),
                decimal(None if status.score is None else PERCENT * status.score),
                decimal(minutes or None),
                str(numbers.get(status.id, "")),
                _link(status.id, study.runs, page),
            ]
        )
    shown = list(range(len(HEADINGS)))
    # A single setup and a single origin need no column.
    if len(setups) < 2:
        shown.remove(HEADINGS.index("Setup"))
    if len(set(numbers.values())) < 2:
        shown.remove(HEADINGS.index("Made with"))
    sheet = Sheet.of(HEADINGS, rows, left=list(map(HEADINGS.index, TEXTS))).only(shown)
    units = table("Units, best score first", sheet, class_="sortable")
    return section("Trials", "trials", units, note(EXPLANATION))


def by_score(statuses: Sequence[UnitStatus]) -> list[UnitStatus]:
    """Setups stay together, and the best score of each comes first.

    Units without a score come last and keep their order.
    """
    setups = list(dict.fromkeys(status.setup for status in statuses))

    def rank(status: UnitStatus) -> tuple[int, bool, float]:
        return setups.index(status.setup), status.score is None, -(status.score or 0.0)

    return sorted(statuses, key=rank)


def downloads(results: Table, study: Study, page: Path) -> Html:
    """Links that contain the tables, and links to the figures beside the page."""
    texts = {
        "table.csv": formats.to_csv(results),
        "table.tex": formats.to_latex(results),
        "table.json": formats.to_json(results),
        "trials.csv": trials_csv(trials(study)),
    }
    links = []
    for name, text in texts.items():
        content = base64.b64encode(text.encode()).decode()
        href = f"data:text/plain;charset=utf-8;base64,{content}"
        links.append(element("a", name, download=name, href=href))
    for path in sorted(page.parent.glob("*.pdf")):
        links.append(element("a", path.name, href=quote(path.name)))
    return join(links, ", ")


def _link(unit_id: str, runs: Path, page: Path) -> Html:
    """A relative link from a page in the runs folder, so that both can be moved together.

    A page outside the runs folder shows the name without a link.
    """
    if not page.parent.is_relative_to(runs) or not (runs / unit_id).is_dir():
        return code(unit_id)
    href = quote(Path(os.path.relpath(runs / unit_id, page.parent)).as_posix()) + "/"
    return element("a", code(unit_id), href=href)
