"""Every unit with its score, best first, and the same as a file to download."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from analysis.frames import trials, trials_csv
from analysis.report.html import Html, element, join, paragraph, section, table
from analysis.report.texts import decimal
from analysis.table import formats
from analysis.table.model import Table
from orchestrator.monitor.unit_status import UnitStatus
from orchestrator.records.clock import seconds_spent
from orchestrator.records.rundir import RunReader
from orchestrator.selection.study import Study

PERCENT = 100
EXPLANATION = (
    "Score: mean pass@1 over the setup's benchmarks at the unit's own best checkpoint, in per cent; a maximum over "
    "checkpoints of one run, so it is biased upward and differs from the table above, which selects a setting over its "
    "seeds. Minutes: wall-clock of all attempts, also of those that were stopped, and of evaluators."
)


def trials_section(
    statuses: Sequence[UnitStatus],
    runs: Path,
    page: Path,
    numbers: Mapping[str, int],
    titles: Mapping[str, str],
) -> Html:
    """`page` is where the page will lie, `numbers` the origin of each unit that was started,
    `titles` of setups.
    """
    several, origins = len(titles) > 1, len(set(numbers.values())) > 1
    headings = [
        "Setting",
        *(["Setup"] if several else []),
        "Seed",
        "State",
        "Best step",
        "Score",
        "Minutes",
    ]
    headings += [*(["Made with"] if origins else []), "Run directory"]
    rows = []
    for status in by_score(statuses):
        minutes = sum(seconds_spent(RunReader(runs, status.id))) / 60
        row = [
            status.label,
            *([titles[status.setup]] if several else []),
            str(status.seed),
            _state(status),
        ]
        row += ["" if status.best_step is None else str(status.best_step), score_text(status)]
        row += [decimal(minutes or None)]
        row += [str(numbers.get(status.id, ""))] if origins else []
        rows.append([*row, _link(status.id, runs, page)])
    texts = ["Setup", "State", "Run directory"]
    return section(
        "Trials",
        "trials",
        table("Units, best score first", headings, rows, texts=texts),
        paragraph(EXPLANATION, class_="note"),
    )


def by_score(statuses: Sequence[UnitStatus]) -> list[UnitStatus]:
    """Setups stay together; within one the best score comes first, units without a score last and
    as they were.
    """
    setups = list(dict.fromkeys(status.setup for status in statuses))

    def rank(status: UnitStatus) -> tuple[int, bool, float]:
        return setups.index(status.setup), status.score is None, -(status.score or 0.0)

    return sorted(statuses, key=rank)


def score_text(status: UnitStatus) -> str:
    """In per cent."""
    return decimal(None if status.score is None else PERCENT * status.score)


def downloads(results: Table, study: Study, page: Path) -> Html:
    """Links to the tables, which lie in the page itself, and to the figures beside it."""
    files = {f"table.{form}": formats.FORMATS[form](results) for form in ("csv", "tex", "json")}
    files["trials.csv"] = trials_csv(trials(study))
    links = [
        element("a", name, download=name, href=_data_uri(text)) for name, text in files.items()
    ]
    links += [
        element("a", path.name, href=quote(path.name)) for path in sorted(page.parent.glob("*.pdf"))
    ]
    return join(links, ", ")


def _data_uri(text: str) -> str:
    return f"data:text/plain;charset=utf-8;base64,{base64.b64encode(text.encode()).decode()}"


def _state(status: UnitStatus) -> str:
    return (
        status.state
        if status.step == status.steps
        else f"{status.state}, {status.step} of {status.steps}"
    )


def _link(unit_id: str, runs: Path, page: Path) -> str:
    """Relative, so that it holds where the runs folder is moved with the page in it; elsewhere the
    name alone.
    """
    inside = page.parent.is_relative_to(runs)
    if not (inside and (runs / unit_id).is_dir()):
        return element("code", unit_id)
    href = quote(Path(os.path.relpath(runs / unit_id, page.parent)).as_posix()) + "/"
    return element("a", element("code", unit_id), href=href)
