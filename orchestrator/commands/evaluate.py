"""`trb eval`: pass@1 of any checkpoint, with the evaluator and grader of the sweeps."""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from analysis.scores import uncertainty
from orchestrator.commands.arguments import MOST_DIGITS
from orchestrator.commands.display import percent
from orchestrator.config import BenchmarkRun, Runtime, Setup
from orchestrator.data.files import SUFFIXES, folder_sha256
from orchestrator.engines.catalog import require
from orchestrator.engines.interface import Job, ModelFolder
from orchestrator.engines.memory import needs_gpu
from orchestrator.errors import refuse
from orchestrator.experiment import validate
from orchestrator.experiment.evaluation_protocol import evaluation_ids, problems_wanted
from orchestrator.experiment.load import data_folder, load_setup
from orchestrator.experiment.local_files import completed
from orchestrator.experiment.strict import build
from orchestrator.models import checkpoints
from orchestrator.models.folders import check_folder
from orchestrator.models.identity import digest
from orchestrator.records.files import write_atomically
from orchestrator.records.problem_record import ProblemRecord
from orchestrator.records.rundir import RunReader
from orchestrator.selection.scores import pass_at_1
from orchestrator.sheet import Sheet, to_rich
from orchestrator.start_up import default_runs, quick_imports
from orchestrator.sweep import prepare

if TYPE_CHECKING:
    from orchestrator.trial.model_evaluation import ModelEvaluation


@dataclass(frozen=True)
class BenchmarkScore:
    """pass@1 in [0, 1] with the interval that resampling the problems gives."""

    pass_at_1: float
    low: float
    high: float


def evaluate_model(options: argparse.Namespace) -> int:
    """Evaluate `options.model`, print a row for each benchmark and keep the result as JSON."""
    data_dir = data_folder(options.data_dir)
    setup = _setup(options, data_dir)
    if options.out is not None and (
        options.out.is_dir() or not options.out.resolve().parent.is_dir()
    ):
        raise refuse("--out", str(options.out), "a file in a folder that is there")
    model = ModelFolder(_folder(options.model, options.revision))
    check_folder(options.model, Path(model.path))
    own = (Path(model.path) / "tokenizer.json").exists()
    runs = (options.runs or default_runs()).resolve()
    tokenizer = model if own else checkpoints.checkpoint_of(setup.teacher, setup, runs)
    _warn_of_cpus(setup)
    with quick_imports():
        from transformers import CONFIG_MAPPING

        from orchestrator.trial.model_evaluation import ModelEvaluation

    check_folder(options.model, Path(model.path), list(CONFIG_MAPPING))
    evaluation = ModelEvaluation(
        Job(setup, Runtime(), model, trains=False, stops_as=options.stops_as),
        tokenizer,
        data_dir,
        options.seed,
        options.step,
        _folder_of(options, setup, model),
    )
    records = _evaluate(evaluation, options.evaluators)
    document = _document(options, setup, records)
    path = options.out or Path(f"{evaluation.folder}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n", shared=True)
    if options.json:
        print(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        Console().print(
            _table(records, document),
            f"written to {path}",
            sep="\n",
            highlight=False,
            soft_wrap=True,
        )
    return 0


def scores(
    records: dict[str, list[ProblemRecord]],
) -> tuple[dict[str, BenchmarkScore], BenchmarkScore]:
    """pass@1 of each benchmark, and their unweighted mean."""
    replicates, exact = {}, {key: pass_at_1(rows) for key, rows in records.items()}
    for key, rows in records.items():
        shares = np.array([row.correct / row.n for row in rows])
        replicates[key] = uncertainty.resample({key: shares}, key)[key]
    mean = sum(exact.values(), Fraction(0)) / len(exact)
    found = {key: _score(float(exact[key]), replicates[key]) for key in records}
    return found, _score(float(mean), uncertainty.average(list(replicates.values())))


def _score(value: float, replicates: uncertainty.Array) -> BenchmarkScore:
    limits = uncertainty.interval(value, replicates)
    return BenchmarkScore(value, limits.low, limits.high)


def _document(
    options: argparse.Namespace, setup: Setup, records: dict[str, list[ProblemRecord]]
) -> dict[str, Any]:
    by_benchmark, mean = scores(records)
    ids = evaluation_ids(setup)
    return {
        "model": options.model,
        "revision": options.revision,
        "setup": options.setup,
        "stops_as": options.stops_as,
        "seed": options.seed,
        "step": options.step,
        "limit": options.limit,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "interval": f"{100 * uncertainty.CONFIDENCE:g} % bootstrap over problems",
        "mean": asdict(mean),
        "benchmarks": {
            key: asdict(by_benchmark[key]) | _counts(rows) | {"evaluation_id": ids[key]}
            for key, rows in records.items()
        },
    }


def _folder_of(options: argparse.Namespace, setup: Setup, model: ModelFolder) -> Path:
    """A folder of its own for each model, by its content, setup and way of evaluating it, among the
    results.
    """
    asked = {key: getattr(options, key) for key in ("stops_as", "seed", "step")}
    # A hub's snapshot lies in a folder named by its commit.
    local = Path(options.model).is_dir()
    asked["model"] = (
        folder_sha256(Path(model.path)) if local else [options.model, Path(model.path).name]
    )
    asked["setup"], asked["ids"] = asdict(setup), evaluation_ids(setup)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(options.model).resolve().name or options.model)
    return (
        (options.runs or default_runs()).resolve() / "results" / "eval" / f"{name}-{digest(asked)}"
    )


def _warn_of_cpus(setup: Setup) -> None:
    import torch

    if needs_gpu(setup) and not torch.cuda.is_available():
        print("trb: no GPU is visible; models of this size take hours on CPUs", file=sys.stderr)


def _setup(options: argparse.Namespace, data_dir: str) -> Setup:
    if options.setups_from is not None and not options.setups_from.is_file():
        raise refuse(
            "--setups-from", str(options.setups_from), "an experiment file beside its setups/"
        )
    setup = load_setup(options.setup, options.setups_from)
    items = [_benchmark(item, setup, options.limit) for item in options.benchmarks.split(",")]
    runs = dict(items)
    if len(runs) < len(items):
        raise refuse("--benchmarks", options.benchmarks, "every benchmark once")
    name = Path(options.setup).stem if options.setup.endswith(".yaml") else options.setup
    setup, notes = completed(
        name, replace(setup, evaluation=replace(setup.evaluation, benchmarks=runs))
    )
    validate.check_setup(name, setup)
    require("engine.sampler", setup.engine.sampler)
    for note in notes:
        print(f"trb: {note}", file=sys.stderr)
    prepare.check_benchmarks(setup, data_dir)
    return setup


def _benchmark(item: str, setup: Setup, limit: int | None) -> tuple[str, BenchmarkRun]:
    """`math500:64` → n = 64; without a number, the setup's n or 1. A file is a benchmark of its own
    name.
    """
    key, _, count = item.partition(":")
    if not key or (
        count and not (count.isascii() and count.isdigit() and len(count) <= MOST_DIGITS)
    ):
        raise refuse(
            "--benchmarks", item, "KEY or KEY:n with a whole number n ≥ 1; KEY may be a FILE.jsonl"
        )
    file = key if key.endswith(SUFFIXES) else None
    key = Path(key).stem if file else key
    declared = (
        BenchmarkRun(path=file) if file else setup.evaluation.benchmarks.get(key) or BenchmarkRun()
    )
    asked = asdict(declared) | {"n": int(count) if count else declared.n, "limit": limit}
    return key, build(BenchmarkRun, asked, f"evaluation.benchmarks.{key}")


def _folder(model: str, revision: str | None) -> str:
    if (Path(model) / "checkpoints").is_dir():
        steps = sorted(folder.name for folder in (Path(model) / "checkpoints").iterdir())
        raise refuse(
            "MODEL",
            model,
            f"one of the checkpoints/ of this run: {', '.join(steps) or 'none are left'}",
        )
    if RunReader(Path(model).resolve().parent, Path(model).resolve().name).attempts():
        raise refuse(
            "MODEL", model, "a model folder: this run of the untrained student keeps no checkpoint"
        )
    if Path(model).is_dir():
        return str(Path(model).resolve())
    if revision is None:
        raise refuse("MODEL", model, "a model folder, or a hub id with --revision COMMIT")
    return checkpoints.download(model, revision)


def _evaluate(evaluation: ModelEvaluation, count: int) -> dict[str, list[ProblemRecord]]:
    """Records of each benchmark of the job's setup; a line on stderr says how far it is."""
    with quick_imports():
        from orchestrator.commands.evaluators import run_evaluators, visible_gpus

    benchmarks = evaluation.job.setup.evaluation
    total = sum(
        problems_wanted(benchmarks, key) * run.n for key, run in benchmarks.benchmarks.items()
    )
    shown = -1

    def show() -> None:
        nonlocal shown
        there = total - sum(pending.part.responses for pending in evaluation.pending())
        if there != shown:
            print(f"trb: {there:,} of {total:,} responses", file=sys.stderr)
            shown = there

    run_evaluators(evaluation, count or max(1, len(visible_gpus())), show)
    return evaluation.records()


def _counts(rows: list[ProblemRecord]) -> dict[str, int]:
    counts = {"problems": len(rows)}
    for name in ("n", "correct", "truncated", "no_answer", "timed_out", "tokens"):
        counts[name] = sum(getattr(row, name) for row in rows)
    return counts


def _table(records: dict[str, list[ProblemRecord]], document: dict[str, Any]) -> Table:
    caption = f"[ ]: {document['interval']}"
    headings = ("benchmark", "pass@1", "problems", "generations", "truncated", "no answer")
    rows = []
    for key in records:
        row = document["benchmarks"][key]
        rows.append(
            [
                key,
                _limits(row),
                *(str(row[name]) for name in ("problems", "n", "truncated", "no_answer")),
            ]
        )
    if len(records) > 1:
        rows.append(["mean", _limits(document["mean"]), "", "", "", ""])
    return to_rich(Sheet.of(headings, rows), caption=caption, caption_justify="left")


def _limits(row: dict[str, Any]) -> str:
    return f"{percent(row['pass_at_1'])} [{percent(row['low'])}, {percent(row['high'])}]"
