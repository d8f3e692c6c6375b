"""All settings of all methods, each at its best step: `trb table EXP.yaml --by setting`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from analysis.facts.comparison import SettingRow
from analysis.facts.evidence import Estimate
from analysis.labels import AVERAGE, benchmark_label, method_label, setup_title
from analysis.table.evidence_formats import number_text
from orchestrator import sheet
from orchestrator.errors import refuse
from orchestrator.experiment.axes import setting_text
from orchestrator.selection.study import Study
from orchestrator.sheet import Cell, Mark, Sheet

EXPLANATION = (
    "Each row is a setting at its best step, chosen on the problems that it reports: the best of "
    "many settings is high by luck alone. Bold: the choice of its method. Runs: the averages of "
    "its training runs. Confirmed: of runs that took no part in the choice."
)
STOPPED = "Stopped at: the step at which the search stopped the setting; no such one is chosen."
UNCONFIRMED = "No setting is confirmed: add `--confirm 3` to `trb submit`."


def headings(study: Study, setup: str) -> list[str]:
    """The headings of a setup's sheet."""
    runs = study.experiment.setups[setup].evaluation.benchmarks
    titles = [benchmark_label(key, run) for key, run in runs.items()]
    return ["Method", "Setting", "Step", "Stopped at", "Avg", *titles, "Runs", "Confirmed"]


def sheet_of(study: Study, setup: str, rows: Sequence[SettingRow]) -> Sheet:
    """A row for each setting of a setup; the scores in percent, with their intervals."""
    runs, cells = study.experiment.setups[setup].evaluation.benchmarks, list[list[Cell]]()
    for row in rows:
        checkpoint, knobs = row.checkpoint, setting_text(row.checkpoint.knobs)
        stopped = "" if row.stopped is None else str(row.stopped)
        words = [method_label(checkpoint.method), knobs, str(checkpoint.step), stopped]
        averages = " ".join(map(number_text, row.averages)) if len(row.averages) > 1 else ""
        scores = [_cell(row.columns.get(AVERAGE), "best" if row.chosen else None)]
        scores += [_cell(row.columns.get(key)) for key in runs]
        cells.append([*map(Cell, words), *scores, Cell(averages), _cell(row.confirmed)])
    table = Sheet(headings(study, setup), cells, left=(0, 1))
    filled = [
        place for place in range(len(table.headings)) if any(row[place].text for row in cells)
    ]
    return table.only(filled)


def _cell(score: Estimate | None, mark: Mark | None = None) -> Cell:
    """A score with the reach of its interval; empty where it is missing."""
    if score is None:
        return Cell("")
    return Cell(number_text(score.value), score.value, mark, score.reach)


def to_markdown(study: Study, rows: Sequence[SettingRow]) -> str:
    """A table for each setup, and the sentences that belong to it."""
    lines: list[str] = []
    for setup in study.experiment.setups:
        own = [row for row in rows if row.setup == setup]
        lines += [f"**{setup_title(setup, study.experiment.setups)}**", ""]
        lines += [*sheet.to_markdown(sheet_of(study, setup, own), aligned=True), ""]
    lines.append(EXPLANATION)
    if any(row.stopped for row in rows):
        lines.append(STOPPED)
    if not any(row.confirmed for row in rows):
        lines.append(UNCONFIRMED)
    return "\n".join(lines) + "\n"


def records(rows: Sequence[SettingRow]) -> list[dict[str, Any]]:
    """A record for each setting and column; scores in percent, missing numbers None."""
    found: list[dict[str, Any]] = []
    for row in rows:
        checkpoint, own = row.checkpoint, row.confirmed
        for key, score in row.columns.items():
            record = {
                "setup": row.setup,
                "method": checkpoint.method,
                "setting": setting_text(checkpoint.knobs),
                "step": checkpoint.step,
                "benchmark": key,
                "score": float(score.value),
                "ci_low": score.interval.low,
                "ci_high": score.interval.high,
                "over": score.over,
                "chosen": row.chosen,
                "stopped": row.stopped,
                "confirmed": float(own.value) if own and key == AVERAGE else None,
                "units": " ".join(checkpoint.units),
            }
            found.append(record)
    return found


def to_csv(study: Study, rows: Sequence[SettingRow]) -> str:
    """The records, percent with two decimals; missing numbers are empty."""
    texts: list[list[object]] = []
    for record in records(rows):
        texts.append([f"{v:.2f}" if isinstance(v, float) else v for v in record.values()])
    return sheet.to_csv(list(records(rows)[0]) if rows else ["setup"], texts)


def to_json(study: Study, rows: Sequence[SettingRow]) -> str:
    """The records of all settings."""
    return json.dumps({"settings": records(rows)}, ensure_ascii=False, indent=2) + "\n"


FORMATS: Mapping[str, Callable[[Study, Sequence[SettingRow]], str]] = {
    "text": to_markdown,
    "md": to_markdown,
    "csv": to_csv,
    "json": to_json,
}


def format_of(name: str) -> Callable[[Study, Sequence[SettingRow]], str]:
    """How to write the settings; UserError for a format that they do not have."""
    if name not in FORMATS:
        raise refuse("--format", name, f"one of {', '.join(FORMATS)} with --by setting")
    return FORMATS[name]
