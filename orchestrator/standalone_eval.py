"""`trb eval`: pass@1 of any checkpoint, with the evaluator and grader of the sweeps."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from orchestrator import prepare, validate
from orchestrator.arguments import MOST_DIGITS
from orchestrator.config import BenchmarkRun, Runtime, Setup
from orchestrator.display import percent
from orchestrator.errors import UserError, refuse
from orchestrator.grid import Unit
from orchestrator.load import load_setup
from orchestrator.records import ProblemRecord
from orchestrator.selection import exact_mean, pass_at_1
from orchestrator.workers.spec import Checkpoint, WorkerSpec

if TYPE_CHECKING:
    from orchestrator.engines.causal import Owner


def evaluate_model(options: argparse.Namespace) -> int:
    """Evaluate `options.model` and print a row for each benchmark."""
    data_dir = options.data_dir or os.environ.get("TRB_DATA_DIR")
    setup = _setup(options, data_dir)
    spec = _spec(options, setup, data_dir)
    records = _evaluate(spec, options.stops_as, options.step)
    means = {key: pass_at_1(rows) for key, rows in records.items()}
    if options.json:
        rows = {key: {"pass_at_1": float(means[key])} | _counts(records[key]) for key in records}
        print(json.dumps({"model": options.model, "setup": options.setup, "benchmarks": rows}, indent=2))
    else:
        mean = exact_mean(list(means.values()))
        Console().print(_table(records, float(mean) if mean is not None else None))
    return 0


def _setup(options: argparse.Namespace, data_dir: str | None) -> Setup:
    setup = load_setup(options.setup)
    items = [_benchmark(item, setup, options.limit) for item in options.benchmarks.split(",")]
    runs = dict(items)
    if len(runs) < len(items):
        raise refuse("--benchmarks", options.benchmarks, "every benchmark once")
    setup = replace(setup, evaluation=replace(setup.evaluation, benchmarks=runs))
    validate.check_setup(options.setup, setup)
    no_training_data = replace(setup, data=replace(setup.data, source="arithmetic"))
    prepare.check_data(options.setup, no_training_data, data_dir)
    return setup


def _benchmark(item: str, setup: Setup, limit: int | None) -> tuple[str, BenchmarkRun]:
    """`math500:64` → n = 64; without a number, the setup's n or 1."""
    key, _, count = item.partition(":")
    declared = setup.evaluation.benchmarks.get(key) or BenchmarkRun()
    if count and not (count.isascii() and count.isdigit() and len(count) <= MOST_DIGITS):
        raise refuse("--benchmarks", item, "KEY or KEY:n with a whole number n ≥ 1")
    return key, replace(declared, n=int(count) if count else declared.n, limit=limit)


def _spec(options: argparse.Namespace, setup: Setup, data_dir: str | None) -> WorkerSpec:
    runs = options.runs.resolve()
    model = Checkpoint(_folder(options.model, options.revision))
    unit = Unit("eval", "base_eval", options.setup, None, {}, options.seed, (), 0, 0, {})
    own = (Path(model.path) / "tokenizer.json").exists()
    tokenizer = model if own else prepare.checkpoint_of(setup.teacher, setup, runs)
    return WorkerSpec(unit, setup, Runtime(), model, tokenizer, model, data_dir)


def _folder(model: str, revision: str | None) -> str:
    if (Path(model) / "checkpoints").is_dir():
        steps = sorted(folder.name for folder in (Path(model) / "checkpoints").iterdir())
        raise UserError(f"{model}: a run, not a model — one of its checkpoints/: {', '.join(steps) or 'none are left'}")
    if Path(model).is_dir():
        if not (Path(model) / "config.json").is_file():
            raise UserError(f"{model}: no config.json — a Hugging Face model folder")
        return str(Path(model).resolve())
    if revision is None:
        raise UserError(f"{model}: no such folder — a model folder, or a hub id with --revision COMMIT")
    return prepare.download(model, revision)


def _evaluate(spec: WorkerSpec, stops_as: Owner, step: int) -> dict[str, list[ProblemRecord]]:
    from orchestrator.workers.evaluator import EvaluatorWorker
    from orchestrator.workers.models import ModelStore

    evaluator = EvaluatorWorker(ModelStore(spec, stops_as))
    try:
        benchmarks = spec.setup.evaluation.benchmarks
        return {
            key: evaluator.evaluate(None, key, 0, run.n, step) for key, run in benchmarks.items() if run is not None
        }
    finally:
        evaluator.close()


def _counts(rows: list[ProblemRecord]) -> dict[str, int]:
    names = ("n", "correct", "truncated", "no_answer", "timed_out", "tokens")
    return {"problems": len(rows)} | {name: sum(getattr(row, name) for row in rows) for name in names}


def _table(records: dict[str, list[ProblemRecord]], mean: float | None) -> Table:
    table = Table(box=None, pad_edge=False, caption=f"mean {percent(mean)}", caption_justify="left")
    for heading in ("benchmark", "pass@1", "problems", "generations", "truncated", "no answer"):
        table.add_column(heading, justify="left" if heading == "benchmark" else "right")
    for key, rows in records.items():
        counts = _counts(rows)
        numbers = (counts["problems"], counts["n"], counts["truncated"], counts["no_answer"])
        table.add_row(key, percent(float(pass_at_1(rows))), *map(str, numbers))
    return table
