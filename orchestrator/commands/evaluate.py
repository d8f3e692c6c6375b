"""`trb eval`: pass@1 of any checkpoint, with the evaluator and grader of the sweeps."""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from analysis.facts import intervals
from orchestrator.checks.experiment import CheckedSetup, benchmarks
from orchestrator.commands.arguments import Parser, add_runs, whole_number
from orchestrator.commands.unit_rows import percent
from orchestrator.config import BenchmarkRun, Runtime, Setup
from orchestrator.data.files import SUFFIXES, folder_sha256
from orchestrator.engines.catalog import require
from orchestrator.engines.interface import Job, ModelFolder, Owner
from orchestrator.engines.memory import needs_gpu
from orchestrator.errors import refuse
from orchestrator.experiment import validate
from orchestrator.experiment.evaluation_protocol import evaluation_ids, problems_wanted
from orchestrator.experiment.load import data_folder, load_setup
from orchestrator.experiment.local_files import completed
from orchestrator.experiment.reading import build
from orchestrator.models import locate
from orchestrator.models.folders import check_folder
from orchestrator.models.identity import digest
from orchestrator.records.files import check_writable, write_atomically
from orchestrator.records.rundir import RunReader
from orchestrator.records.slices import ProblemRecord
from orchestrator.selection.scores import pass_at_1
from orchestrator.sheet import Sheet, to_rich
from orchestrator.start_up import default_runs, quick_imports

if TYPE_CHECKING:
    from orchestrator.trial.evaluation_loop import ModelEvaluation


@dataclass(frozen=True)
class AskedModel:
    """A model, and the way of evaluating it; the result keeps both."""

    model: str
    revision: str | None
    setup: str
    stops_as: Owner
    seed: int
    step: int
    limit: int | None


@dataclass(frozen=True)
class BenchmarkScore:
    """pass@1 in [0, 1] with the interval that resampling the problems gives."""

    pass_at_1: float
    low: float
    high: float


def add(parser: Parser) -> None:
    parser.add_argument("model", help="model folder, or hub id with --revision")
    text = "comma-separated, each KEY, KEY:n or FILE.jsonl:n, e.g. math500:64,aime24:512"
    parser.option("--benchmarks", None, text, required=True)
    text = "gives prompt, vocabulary and decoding: a shipped setup, or the path of a setup file"
    parser.option("--setup", "NAME", text, required=True)
    parser.option("--setups-from", "EXP.yaml", "find the setup beside this experiment", Path)
    parser.option("--revision", None, "commit of a hub model")
    owners = ("student", "teacher")
    parser.option("--stops-as", None, "whose EOS it emits", choices=owners, default="student")
    text = "of the samples; a sweep uses the unit's seed"
    parser.option("--seed", None, text, whole_number, default=0)
    text = "of the samples; a sweep uses the checkpoint's step"
    parser.option("--step", None, text, whole_number, default=0)
    text = "processes that sample at once (default: one for each visible GPU, else one)"
    parser.option("--evaluators", "N", text, whole_number)
    parser.option("--limit", None, "only the first problems of each benchmark", whole_number)
    text = "folder of the benchmark files (default: TRB_DATA_DIR, else data)"
    parser.option("--data-dir", "DIR", text)
    add_runs(parser, "$TRB_RUNS, else runs")
    parser.option("--out", "FILE.json", "default: results/eval/ in the runs folder", Path)
    parser.flag("--json", "print the result as JSON")


def run(options: argparse.Namespace) -> int:
    """Evaluate a model, print a row for each benchmark and keep the result as JSON."""
    asked = AskedModel(**{each.name: getattr(options, each.name) for each in fields(AskedModel)})
    data_dir = data_folder(options.data_dir)
    setup = _setup(asked, options.setups_from, options.benchmarks)
    runs = (options.runs or default_runs()).resolve()
    benchmarks(CheckedSetup(asked.setup, setup, runs, data_dir=data_dir))
    out: Path | None = options.out
    if out is not None and (out.is_dir() or not out.resolve().parent.is_dir()):
        raise refuse("--out", str(out), "a file in a folder that exists")
    model = ModelFolder(_model_folder(asked))
    folder = Path(model.path)
    check_folder(asked.model, folder)
    has_tokenizer = (folder / "tokenizer.json").exists()
    tokenizer = model if has_tokenizer else locate.checkpoint_of(setup.teacher, setup, runs)
    with quick_imports():
        import torch
        from transformers import CONFIG_MAPPING

        from orchestrator.trial.evaluation_loop import ModelEvaluation

    if needs_gpu(setup) and not torch.cuda.is_available():
        print("trb: no GPU is visible; models of this size take hours on CPUs", file=sys.stderr)
    check_folder(asked.model, folder, list(CONFIG_MAPPING))
    locate.check_passes(asked.model, folder, setup.context)
    evaluation = ModelEvaluation(
        job=Job(setup, Runtime(), model, trains=False, stops_as=asked.stops_as),
        tokenizer=tokenizer,
        data_dir=data_dir,
        seed=asked.seed,
        step=asked.step,
        folder=runs / "results" / "eval" / _name(asked, setup, folder),
    )
    path = out or Path(f"{evaluation.folder}.json")
    if evaluation.pending():  # samples take long, and would be lost in a folder that takes none
        check_writable(evaluation.folder)
        check_writable(path.parent)
    records = _evaluate(evaluation, options.evaluators)
    document = asdict(asked) | _results(setup, records)
    text = json.dumps(document, indent=2, ensure_ascii=False)
    console = Console(highlight=False, soft_wrap=True)
    # Shown first: the disk may have filled meanwhile.
    print(text, flush=True) if options.json else console.print(_table(document))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text + "\n", shared=True)
    if not options.json:
        console.print(f"written to {path}")
    return 0


def scores(
    records: dict[str, list[ProblemRecord]],
) -> tuple[dict[str, BenchmarkScore], BenchmarkScore]:
    """pass@1 of each benchmark, and their unweighted mean."""
    replicates, exact, by_benchmark = {}, {}, {}
    for key, rows in records.items():
        shares = np.array([row.correct / row.n for row in rows])
        replicates[key] = intervals.resample({key: shares}, key)[key]
        exact[key] = pass_at_1(rows)
        by_benchmark[key] = _score(float(exact[key]), replicates[key])
    mean = sum(exact.values(), Fraction(0)) / len(exact)
    return by_benchmark, _score(float(mean), intervals.average(list(replicates.values())))


def _score(value: float, replicates: intervals.Array) -> BenchmarkScore:
    limits = intervals.interval(value, replicates)
    return BenchmarkScore(value, limits.low, limits.high)


def _results(setup: Setup, records: dict[str, list[ProblemRecord]]) -> dict[str, Any]:
    """The scores and counts of the result's document."""
    by_benchmark, mean = scores(records)
    benchmarks = {}
    for key, evaluation_id in evaluation_ids(setup).items():
        counts = {"problems": len(records[key])}
        for name in ("n", "correct", "truncated", "no_answer", "timed_out", "tokens"):
            counts[name] = sum(getattr(row, name) for row in records[key])
        benchmarks[key] = asdict(by_benchmark[key]) | counts | {"evaluation_id": evaluation_id}
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "interval": f"{100 * intervals.CONFIDENCE:g} % bootstrap over problems",
        "mean": asdict(mean),
        "benchmarks": benchmarks,
    }


def _name(asked: AskedModel, setup: Setup, folder: Path) -> str:
    """A name for each model, by its content, its setup and the way of evaluating it."""
    model = asked.model
    identity: dict[str, Any] = {key: getattr(asked, key) for key in ("stops_as", "seed", "step")}
    # A hub's snapshot lies in a folder named by its commit.
    identity["model"] = folder_sha256(folder) if Path(model).is_dir() else [model, folder.name]
    identity["setup"], identity["ids"] = asdict(setup), evaluation_ids(setup)
    # Keeping texts changes no sample, so it makes no other name than before it was a key.
    del identity["setup"]["evaluation"]["keep_texts"]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(model).resolve().name or model)
    return f"{name}-{digest(identity)}"


def _setup(asked: AskedModel, beside: Path | None, benchmarks: str) -> Setup:
    """The setup with the asked benchmarks."""
    if beside is not None and not beside.is_file():
        raise refuse("--setups-from", str(beside), "an experiment file beside its setups/")
    name = asked.setup
    setup = load_setup(name, beside)
    runs: dict[str, BenchmarkRun] = {}
    for item in benchmarks.split(","):
        key, run = _benchmark(item, setup, asked.limit)
        if key in runs:
            raise refuse("--benchmarks", benchmarks, "every benchmark once")
        runs[key] = run
    name = Path(name).stem if name.endswith(".yaml") else name
    setup = replace(setup, evaluation=replace(setup.evaluation, benchmarks=runs))
    setup, _ = completed(name, setup, data_dir=None)
    validate.check_setup(name, setup)
    require("engine.sampler", setup.engine.sampler)
    return setup


def _benchmark(item: str, setup: Setup, limit: int | None) -> tuple[str, BenchmarkRun]:
    """`math500:64` → n = 64, without a number the setup's n or 1; a file is a benchmark, too."""
    key, _, count = item.partition(":")
    try:
        n = int(count) if count else None
    except ValueError:
        key, n = "", None
    if not key:
        expected = "KEY or KEY:n with a whole number n ≥ 1; KEY may be a FILE.jsonl"
        raise refuse("--benchmarks", item, expected)
    if key.endswith(SUFFIXES):
        key, declared = Path(key).stem, BenchmarkRun(path=key)
    else:
        declared = setup.evaluation.benchmarks.get(key) or BenchmarkRun()
    asked = asdict(declared) | {"n": declared.n if n is None else n, "limit": limit}
    return key, build(BenchmarkRun, asked, f"evaluation.benchmarks.{key}")


def _model_folder(asked: AskedModel) -> str:
    """The folder of a model, which is fetched if it is one of the hub. Refuses run directories."""
    model, folder = asked.model, Path(asked.model)
    if (folder / "checkpoints").is_dir():
        steps = sorted(step.name for step in (folder / "checkpoints").iterdir())
        left = ", ".join(steps) or "none are left"
        raise refuse("MODEL", model, f"one of the checkpoints/ of this run: {left}")
    if RunReader(folder.resolve().parent, folder.resolve().name).attempts():
        expected = "a model folder: this run of the untrained student keeps no checkpoint"
        raise refuse("MODEL", model, expected)
    if folder.is_dir():
        return str(folder.resolve())
    if asked.revision is None:
        raise refuse("MODEL", model, "a model folder, or a hub id with --revision COMMIT")
    return locate.download(model, asked.revision)


def _evaluate(evaluation: ModelEvaluation, count: int) -> dict[str, list[ProblemRecord]]:
    """Records of each benchmark of the job's setup; lines on stderr count the responses so far."""
    with quick_imports():
        from orchestrator.commands.evaluators import run_evaluators, visible_gpus

    asked, total, shown = evaluation.job.setup.evaluation, 0, -1
    for key, run in asked.benchmarks.items():
        total += problems_wanted(asked, key) * run.n

    def show() -> None:
        nonlocal shown
        sampled = total - sum(pending.part.responses for pending in evaluation.pending())
        if sampled != shown:
            print(f"trb: {sampled:,} of {total:,} responses", file=sys.stderr)
            shown = sampled

    run_evaluators(evaluation, count or max(1, len(visible_gpus())), show)
    return evaluation.records()


def _table(document: dict[str, Any]) -> Table:
    headings = ("benchmark", "pass@1", "problems", "generations", "truncated", "no answer")
    rows: list[list[str]] = []
    for key, row in document["benchmarks"].items():
        counts = [str(row[name]) for name in ("problems", "n", "truncated", "no_answer")]
        rows.append([key, _limits(row), *counts])
    if len(rows) > 1:
        rows.append(["mean", _limits(document["mean"]), "", "", "", ""])
    caption = f"[ ]: {document['interval']}"
    return to_rich(Sheet.of(headings, rows), caption=caption, caption_justify="left")


def _limits(row: dict[str, Any]) -> str:
    return f"{percent(row['pass_at_1'])} [{percent(row['low'])}, {percent(row['high'])}]"
