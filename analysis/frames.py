"""A study as pandas DataFrames: units, counts by problem, logs, and the evidence of its table.

Each function reads the run directories anew. Columns have pandas' nullable types, and a missing
number is `<NA>`. Scores are in percent, times in seconds, and `at` is UTC. `trials.csv`, the
Parquet file of `trb table --format parquet` and the tables of W&B are made from these frames.
`docs/notebooks.md` shows their use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pandas as pd

from analysis.facts.columns import BlockKind, records, units_of
from analysis.facts.costs import unit_cost
from analysis.facts.units import unit_scores, units_now
from analysis.labels import AVERAGE, BASE
from analysis.table.evidence_formats import CELL_UNITS, cell_records
from analysis.table.model import Table
from orchestrator.experiment.axes import setting_text
from orchestrator.experiment.evaluation_protocol import FRESH
from orchestrator.experiment.units import Unit
from orchestrator.records.rundir import RunReader
from orchestrator.records.slices import COUNTS
from orchestrator.selection.study import Study

PERCENT = 100
TEXT, NUMBER, WHOLE, YES_NO = "string", "Float64", "Int64", "boolean"
UNIT_COLUMNS = {"unit": TEXT, "setup": TEXT, "method": TEXT, "setting": TEXT, "seed": WHOLE}
TRIAL_COLUMNS = {
    "unit": TEXT, "setup": TEXT, "kind": TEXT, "method": TEXT, "setting": TEXT, "seed": WHOLE, "state": TEXT,
    "step": WHOLE, "steps": WHOLE, "best_step": WHOLE, "avg": NUMBER,
}  # fmt: skip
PROBLEM_COLUMNS = {"step": WHOLE, "benchmark": TEXT, "samples": TEXT, "problem": TEXT}
RESPONSE_COLUMNS = {
    "sample": WHOLE, "prompt": TEXT, "gold": TEXT, "text": TEXT, "answer": TEXT, "right": YES_NO,
    "truncated": YES_NO, "timed_out": YES_NO, "tokens": WHOLE,
}  # fmt: skip
CELL_COLUMNS = {"method": TEXT, "setup": TEXT, "benchmark": TEXT}
BOARD: dict[BlockKind, str] = {"selected": "exploring", "confirmed": "confirming"}
LEADERBOARD = (
    *("setup", "method", "setting", "runs", "seeds", "step", "score", "ci_low", "ci_high"),
    *("minus_vanilla", "minus_vanilla_low", "minus_vanilla_high", "p_value", "p_value_holm"),
    *("corrected_for", "outcome"),
)
TYPES = {"percent": NUMBER, "number": NUMBER, "count": WHOLE, "text": TEXT}  # by unit
SAMPLES = {0: "selection", FRESH: "fresh"}  # by the purpose of an evaluation's samples


def trials(study: Study) -> pd.DataFrame:
    """A row for each unit in the order of the grid.

    `avg` and a column for each benchmark are the scores of the unit's own best checkpoint, after
    `best_step` updates. The results table may show another one: the best mean over the seeds of a
    setting. Units that confirm a choice come last, with the scores of the step that they confirm.
    `seconds` is the wall-clock of training and evaluation as logged. `method` is `base` for the
    untrained student and empty for a supervised stage.
    """
    study, rows = study.snapshot(), []
    benchmarks: dict[str, str] = {}  # columns with a score of some unit
    for unit, run, known in units_now(study):
        row = _unit_values(unit)
        row |= {"kind": unit.kind, "state": known.state, "step": known.step, "steps": known.steps}
        row["best_step"] = known.best_step
        row["seconds"] = unit_cost(study, unit).total_seconds if run.started else None
        if known.best_step is not None:
            ids = study.evaluation_ids(unit.setup, 0 if known.confirms is None else FRESH)
            for key, score in unit_scores(run, ids).by_step[known.best_step].items():
                row[key] = float(PERCENT * score)
                benchmarks |= {} if key == AVERAGE else {key: NUMBER}
        rows.append(row)
    return _frame(rows, TRIAL_COLUMNS | benchmarks | {"seconds": NUMBER})


def trials_csv(frame: pd.DataFrame) -> str:
    """`trials` as CSV: scores with two decimals, seconds with one, missing values empty."""
    texts = frame.astype(object)
    for column in frame.columns[list(frame.columns).index("avg") :]:
        form = "{:.1f}" if column == "seconds" else "{:.2f}"
        texts[column] = texts[column].map(form.format, na_action="ignore")
    return texts.to_csv(index=False, lineterminator="\n")


def problem_counts(study: Study) -> pd.DataFrame:
    """A row for each problem of each evaluated checkpoint: `correct` of `n` samples.

    `samples` is `selection` for samples by which a checkpoint was chosen, and `fresh` for samples
    that took no part in the choice. `truncated`, `no_answer` and `timed_out` count samples;
    `tokens` is the sum over all of them.
    """
    rows = []
    for where, run, evaluation_id in _evaluations(study.snapshot()):
        for record in run.evaluation(evaluation_id, where["step"]) or ():
            row = where | {"problem": record.problem}
            for name in COUNTS:
                row[name] = getattr(record, name)
            rows.append(row)
    return _frame(rows, UNIT_COLUMNS | PROBLEM_COLUMNS | dict.fromkeys(COUNTS, WHOLE))


def texts(study: Study) -> pd.DataFrame:
    """A row for each evaluated response whose text was kept (`evaluation.keep_texts`).

    It has the `prompt` that the model read, `gold`, `text`, the extracted `answer` and its grade.
    `sample` is its number among the responses to its problem. A large sweep has gigabytes of them:
    `study.with_units` restricts a study to some units.
    """
    rows = []
    for where, run, evaluation_id in _evaluations(study.snapshot()):
        for text in run.texts(evaluation_id, where["step"]):
            rows.append(where | vars(text))
    return _frame(rows, UNIT_COLUMNS | PROBLEM_COLUMNS | RESPONSE_COLUMNS)


def metrics(study: Study) -> pd.DataFrame:
    """A row for each training step: the columns of `orchestrator.records.log` that it logged."""
    return _logs(study, RunReader.metrics)


def rollouts(study: Study) -> pd.DataFrame:
    """A row for each training rollout, with its texts: gigabytes for a large sweep."""
    return _logs(study, RunReader.rollouts)


def timings(study: Study) -> pd.DataFrame:
    """A row for each piece of work: seconds by phase, and `at`, the UTC time at which it ended.

    Steps that ran again after a kill appear again.
    """
    frame = _logs(study, RunReader.timing)
    if "at" in frame:
        frame["at"] = pd.to_datetime(frame["at"].astype("float64"), unit="s", utc=True)
    return frame


def evidence(table: Table) -> pd.DataFrame:
    """A row for each cell of a results table, with the columns that `--format csv` adds.

    Scores, limits and differences are in percent and not rounded. A cell without a score has no
    evidence.
    """
    known, rows = cell_records(table.facts), []
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            score = None if cell.value is None else float(cell.value)
            where = {"method": row.method, "setup": column.setup, "benchmark": column.benchmark}
            values = known.get((row.method, column.setup, column.benchmark), {})
            rows.append(values | where | {table.metric.column: score})
    types = {name: TYPES[unit] for name, unit in CELL_UNITS.items()}
    return _frame(rows, CELL_COLUMNS | {table.metric.column: NUMBER} | types)


def confirmed(table: Table) -> pd.DataFrame:
    """A row for each cell of the confirmed checkpoints, in percent.

    `lead` is the explored score minus the confirmed one. `p_value` and the limits of the difference
    to vanilla are those of Welch's test, corrected for the number of methods as by Dunnett's test,
    and `p_value_holm` is corrected by Holm's procedure.
    """
    rows = records_of(table, "confirmed")
    frame = _frame(rows, CELL_COLUMNS | _types("confirmed"))
    return frame.rename(columns={"score": table.metric.column})


def leaderboard(table: Table) -> pd.DataFrame:
    """A row for each selected setting (`runs`: exploring) and each confirmed one: the average alone."""
    rows: list[dict[str, Any]] = []
    for kind, runs in BOARD.items():
        for record in records_of(table, kind):
            if record["benchmark"] == AVERAGE:
                rows.append(record | {"runs": runs})
    return _frame(rows, {name: _types("selected").get(name, TEXT) for name in LEADERBOARD})


def across_setups(table: Table) -> pd.DataFrame:
    """A row for each confirmed method: its difference to vanilla, averaged over all setups.

    Empty with one setup. `ahead` counts the setups in which its mean is higher than vanilla's.
    """
    return _frame(records_of(table, "across"), {"method": TEXT} | _types("across"))


def costs(table: Table) -> pd.DataFrame:
    """A row for each method of each setup: cost of its selected step, and average at equal cost.

    `amount` is the equal cost in the unit of `measure`; times are in seconds.
    """
    rows = [row for row in records_of(table, "cost") if row["benchmark"] == AVERAGE]
    return _frame(rows, {"method": TEXT, "setup": TEXT} | _types("cost"))


def records_of(table: Table, kind: BlockKind) -> list[dict[str, Any]]:
    """The records of a block; none for a table without facts."""
    return records(table.facts, kind) if table.facts else []


def _types(kind: BlockKind) -> dict[str, str]:
    """Name → pandas' type of the numbers of a block."""
    return {name: TYPES[unit] for name, unit in units_of(kind).items()}


def as_printed(table: Table) -> pd.DataFrame:
    """The results table itself, in percent: a row for each method, a column for each benchmark."""
    several = len({column.setup for column in table.columns}) > 1
    rows = []
    for row in table.rows:
        values: dict[str, Any] = {"Method": row.label}
        for column, cell in zip(table.columns, row.cells, strict=True):
            heading = f"{column.setup} {column.label}" if several else column.label
            values[heading] = None if cell.value is None else float(cell.value)
        rows.append(values)
    headings = list(rows[0]) if rows else ["Method"]
    return _frame(rows, {"Method": TEXT} | dict.fromkeys(headings[1:], NUMBER))


def plain_rows(frame: pd.DataFrame) -> tuple[list[Any], list[Any]]:
    """Headings, and rows as lists of plain Python values with None where one is missing."""
    rows = frame.astype(object).where(frame.notna(), None)
    return list(frame.columns), rows.to_numpy().tolist()


def _evaluations(study: Study) -> Iterator[tuple[dict[str, Any], RunReader, str]]:
    """(leading columns, reader, evaluation id) of each evaluation of each evaluated checkpoint."""
    for unit in study.units:
        run = study.reader(unit)
        for repetition, samples in SAMPLES.items():
            for benchmark, evaluation_id in study.evaluation_ids(unit.setup, repetition).items():
                for step in run.evaluated_steps(evaluation_id):
                    where = {"step": step, "benchmark": benchmark, "samples": samples}
                    yield _unit_values(unit) | where, run, evaluation_id


def _unit_values(unit: Unit) -> dict[str, Any]:
    return {
        "unit": unit.id,
        "setup": unit.setup,
        "method": BASE if unit.is_untrained else unit.method or "",
        "setting": setting_text(unit.knobs),
        "seed": unit.seed,
    }


def _logs(study: Study, read: Callable[[RunReader], Iterable[dict[str, Any]]]) -> pd.DataFrame:
    """The rows of a log of all units under each other, with the types that pandas finds in them."""
    rows: list[dict[str, Any]] = []
    for unit in study.units:
        values = _unit_values(unit)
        for row in read(study.reader(unit)):
            rows.append(values | row)
    frame = pd.DataFrame(rows, columns=None if rows else list(UNIT_COLUMNS))
    return frame.convert_dtypes().astype(UNIT_COLUMNS)


def _frame(rows: Sequence[dict[str, Any]], columns: dict[str, str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(columns)).astype(columns)
