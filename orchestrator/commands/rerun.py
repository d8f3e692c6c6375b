"""`trb rerun`: train again what a cell of a packed table rests on, and say whether it came out the
same.

The experiment is narrowed to the setting and the seeds of the cell and goes through `trb submit`.
Schedules of learning rates and budgets span a whole training, so each run is trained to its end,
and the step of the cell is chosen anew among its checkpoints.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from analysis.facts.evidence import ColumnEvidence, RowEvidence
from analysis.labels import AVERAGE
from analysis.numbers import tenths_text
from analysis.table.model import Table, TableColumn, results_table
from orchestrator.commands.arguments import Parser
from orchestrator.commands.open_pack import OpenedPack, open_pack
from orchestrator.commands.submit import confirm, submit
from orchestrator.config import Confirm, Experiment
from orchestrator.engines.catalog import require_all
from orchestrator.errors import UserError, did_you_mean, refuse
from orchestrator.experiment.load import resolved_text
from orchestrator.experiment.methods import BASE, known_method
from orchestrator.planning.numbers import counted
from orchestrator.records.files import write_once
from orchestrator.records.log import HELD_OUT
from orchestrator.records.provenance import provenance
from orchestrator.records.rundir import DATA, METRICS, ROLLOUTS, RunReader
from orchestrator.selection import scores
from orchestrator.selection.loading import load_study, refuse_damaged
from orchestrator.selection.study import Study

SAME, DIFFERS, WITHIN_INTERVAL = 0, 1, 4  # exit codes
PERCENT = 100
EXPERIMENT_FILE = "rerun.yaml"  # the narrowed experiment, in the new runs folder


@dataclass(frozen=True)
class CellOfTable:
    """One cell of a packed table: the checkpoint of `row` and its score in `column`."""

    row: RowEvidence
    column: TableColumn
    evidence: ColumnEvidence
    name: str


def add(parser: Parser) -> None:
    parser.description = (
        "Train the runs again that a cell of a packed table rests on. Exit code 0: the same bytes; "
        "4: other bytes, and a score within the interval of the cell; 1: a score outside of it. "
        "Where the training stops early, the exit code is that of trb submit."
    )
    parser.add_argument("file", type=Path, metavar="FILE.tar.gz", help="a file that trb pack wrote")
    text = "OmegaConf dotlist that leaves the training alone, for example runtime.keep=best"
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=text)
    text = "the cell, as the table prints it: 'TRB,Short sums'; SETUP where several have the column"
    parser.option("--cell", "METHOD,COLUMN[,SETUP]", text, required=True)
    text = "new folder of the run directories (default: NAME-rerun in this folder)"
    parser.option("--runs", "DIR", text, Path)
    text = "Ray cluster to join; without it a private one on this machine"
    parser.option("--address", None, text)
    parser.flag("--yes", "spend more than 1,000 planned GPU-hours without a question")


def run(options: argparse.Namespace) -> int:
    """SAME, WITHIN_INTERVAL or DIFFERS; the exit code of `trb submit` where it stopped early."""
    with tempfile.TemporaryDirectory() as scratch:
        opened = open_pack(options.file, Path(scratch) / "packed")
        packed = load_study(opened.results)
        refuse_damaged(packed)
        cell = find_cell(results_table(packed), options.cell)
        seeds = [unit.seed for unit in packed.units if unit.id in cell.row.units]
        runs = options.runs or Path(f"{opened.name}-rerun")
        study = _narrowed(packed, cell.row, seeds, runs, options.overrides, opened)
        score = cell.evidence.score
        rests = f"rests on {counted(len(seeds), 'training run')}, step {cell.row.step}"
        print(f"{cell.name}: {tenths_text(score.value)} ±{score.reach} {rests}", flush=True)
        confirm(study, options.yes)
        code = submit(study, options.address, _command(options, runs))
        if code != 0:
            return code
        return _judge(packed, study, cell, opened)


def find_cell(table: Table, text: str) -> CellOfTable:
    """The cell that `METHOD,COLUMN` or `METHOD,COLUMN,SETUP` names, as the table prints them or by
    keys. UserError with the names that there are, and for a cell without a training run.
    """
    method_name, _, rest = text.partition(",")
    column_name, _, setup_name = rest.partition(",")
    methods = [row.method for row in table.rows]
    method = known_method("--cell", method_name.strip(), methods)
    columns = _columns(table, column_name.strip(), setup_name.strip())
    if len(columns) > 1:
        titles = ", ".join(table.title(column.setup) for column in columns)
        raise refuse("--cell", text, f"METHOD,COLUMN,SETUP, with a setup of {titles}")
    (column,) = columns
    if method == BASE:
        raise refuse("--cell", text, "the cell of a method; the untrained student trains nothing")
    row = table.facts.find(column.setup, method) if table.facts else None
    if row is None or column.benchmark not in row.columns:
        raise refuse("--cell", text, "a cell with a score")
    label = next(each.label for each in table.rows if each.method == method)
    return CellOfTable(row, column, row.columns[column.benchmark], f"{label}, {column.label}")


def _columns(table: Table, name: str, setup: str) -> list[TableColumn]:
    """The columns of that label or key, in all setups unless one is named; at least one."""
    found, known = [], []
    for column in table.columns:
        title = table.title(column.setup)
        if setup and setup.casefold() not in (title.casefold(), column.setup.casefold()):
            continue
        known.append(column.label)
        if name.casefold() in (column.label.casefold(), column.benchmark.casefold()):
            found.append(column)
    if setup and not known:
        titles = list(dict.fromkeys(table.title(column.setup) for column in table.columns))
        raise refuse("--cell", setup, f"one of {', '.join(titles)}{did_you_mean(setup, titles)}")
    if not found:
        known = list(dict.fromkeys(known))
        raise refuse("--cell", name, f"one of {', '.join(known)}{did_you_mean(name, known)}")
    return found


def _narrowed(
    packed: Study,
    row: RowEvidence,
    seeds: Sequence[int],
    runs: Path,
    overrides: Sequence[str],
    opened: OpenedPack,
) -> Study:
    """The study of the cell's training runs alone over a new runs folder, which then has the file
    of the experiment. UserError if the folder holds anything else, or if other units come out.
    """
    narrowed = _only(packed.experiment, row, seeds)
    text, file = resolved_text(narrowed, {}), runs / EXPERIMENT_FILE
    if runs.exists() and not (file.is_file() and file.read_text(encoding="utf-8") == text):
        raise refuse("--runs", str(runs), "a folder that does not exist, or that of the same rerun")
    runs.mkdir(parents=True, exist_ok=True)
    write_once(file, text)
    for made in (opened.folder / "models").glob("*.made.json"):
        # A recipe that is made again must give the weights that the runs were trained from.
        (runs / "models").mkdir(exist_ok=True)
        write_once(runs / "models" / made.name, made.read_text(encoding="utf-8"))
    study = load_study(file, overrides, runs=runs)
    for setup in study.experiment.setups.values():
        require_all(setup.engine)
    lacking = set(row.units) - {unit.id for unit in study.units}
    if lacking:
        given = " ".join(overrides) or None
        expected = f"overrides that leave what is trained alone; {min(lacking)} is another unit now"
        raise refuse("rerun", given, expected)
    return study.with_units([unit for unit in study.units if not unit.is_untrained])


def _only(experiment: Experiment, row: RowEvidence, seeds: Sequence[int]) -> Experiment:
    """The experiment of one setting on these seeds."""
    return replace(
        experiment,
        name=f"{experiment.name}-rerun",
        setups={row.setup: experiment.setups[row.setup]},
        methods={row.method: {name: [value] for name, value in row.knobs.items()}},
        placements={},
        seeds=list(seeds),
        method_seeds={},
        confirm=Confirm(),
        data_dir=None,
        # No tracker of the author's is imported or called.
        runtime=replace(experiment.runtime, tracker="wandb", wandb="disabled"),
    )


def _command(options: argparse.Namespace, runs: Path) -> str:
    """The command that goes on where this one stops."""
    words = ["trb", "rerun", str(options.file), "--cell", options.cell, *options.overrides]
    return shlex.join([*words, "--runs", str(runs)])


def _judge(packed: Study, study: Study, cell: CellOfTable, opened: OpenedPack) -> int:
    """Print whether the runs are the same bytes, else where the new score lies; the exit code."""
    row = cell.row
    ids = study.evaluation_ids(row.setup)
    evaluations = [*ids.values(), *study.fresh_evaluation_ids(row.setup).values()]
    difference = None
    for unit_id in row.units:
        before, now = packed.reader(unit_id), study.reader(unit_id)
        difference = difference or first_difference(before, now, row.step, evaluations)
    if difference is None:
        trained = counted(len(row.units), "training run")
        print(f"same bytes: {trained}, each with its checkpoint of step {row.step} and its samples")
        return SAME
    print(f"other bytes: {difference}")
    for line in _other_versions(opened):
        print(line)
    keys = list(ids) if cell.column.benchmark == AVERAGE else [cell.column.benchmark]
    value = _score(study, row, [ids[key] for key in keys])
    low, high = cell.evidence.score.interval.low, cell.evidence.score.interval.high
    inside = low <= float(value) <= high
    limits = f"[{tenths_text(low)}, {tenths_text(high)}]"
    if inside:
        print(f"within its interval: {tenths_text(value)} in {limits}")
        return WITHIN_INTERVAL
    print(f"outside its interval: {tenths_text(value)}, not in {limits}")
    return DIFFERS


def first_difference(
    packed: RunReader, again: RunReader, step: int, evaluation_ids: Sequence[str]
) -> str | None:
    """Where a trained run first differs from the packed one of the same id; None with equal bytes.

    Compared are the logs of training, the checkpoint of one step by the sha256 that both runs have
    noted of its files, and its samples. Clocks and notes for people differ in every run.
    """
    for name in (DATA, METRICS, ROLLOUTS, HELD_OUT):
        before, now = ((run.path / name) for run in (packed, again))
        line = _first_line(_content(before), _content(now))
        if line is not None:
            return f"{again.unit_id}/{name}, line {line}"
    if packed.checkpoint_files(step) != again.checkpoint_files(step):
        return f"{again.unit_id}: the files of the checkpoint of step {step}"
    for evaluation_id in evaluation_ids:
        before, now = _slices(packed, evaluation_id, step), _slices(again, evaluation_id, step)
        for name in sorted(before | now):
            line = _first_line(before.get(name, b""), now.get(name, b""))
            if line is not None:
                return f"{again.unit_id}/evals/{evaluation_id}/step_{step:06d}/{name}, line {line}"
    return None


def _first_line(before: bytes, now: bytes) -> int | None:
    """The number of the first line that differs."""
    lines = itertools.zip_longest(before.splitlines(), now.splitlines())
    return next((number for number, (ours, theirs) in enumerate(lines, 1) if ours != theirs), None)


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _slices(run: RunReader, evaluation_id: str, step: int) -> dict[str, bytes]:
    """Name → rows of each slice that counts, without the last line, which seals the others."""
    folder = run.evaluation_path(evaluation_id, step)
    rows = {}
    for part in run.counted_slices(evaluation_id, step):
        data = (folder / part.name).read_bytes()
        rows[part.name] = data[: data.rfind(b"\n", 0, -1) + 1]
    return rows


def _score(study: Study, row: RowEvidence, evaluation_ids: Sequence[str]) -> Fraction:
    """The mean over runs and benchmarks at the step of the cell, in percent."""
    values = []
    for unit_id in row.units:
        for evaluation_id in evaluation_ids:
            counts = scores.tally(study.reader(unit_id), evaluation_id, row.step)
            if counts is None:
                raise UserError(
                    f"{unit_id}: has no samples of step {row.step}: its race dropped it"
                )
            values.append(counts.pass_at_1)
    return PERCENT * sum(values, Fraction(0)) / len(values)


def _other_versions(opened: OpenedPack) -> list[str]:
    """A line for each package whose version here is none of those that the packed runs had."""
    lines = []
    for name, here in provenance()["versions"].items():
        then = {code["versions"].get(name) for code in opened.about["code"]} - {None}
        if then and here not in then:
            lines.append(f"{name} {here} here, {' and '.join(sorted(then))} then")
    return lines
