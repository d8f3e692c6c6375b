"""`trb doctor --gpu`: small pieces of a sweep's real work, tried before the whole is started."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from orchestrator.commands.doctor import SIGNS
from orchestrator.engines.device import has_driver
from orchestrator.errors import UserError
from orchestrator.models.shipped import EXPERIMENTS
from orchestrator.records.files import pretty, write_atomically
from orchestrator.selection.study import Study
from orchestrator.selftest.bench import Bench, bench_of
from orchestrator.selftest.catalog import CHECKS
from orchestrator.selftest.runner import Outcome, run_checks
from orchestrator.sweep.preflight import check_runs_folder

PAIR = EXPERIMENTS / "paper.yaml"  # whose largest pair is checked where no experiment is given
SHOWN = {**SIGNS, "skipped": "[dim]skip[/]"}
FOLDER = ".doctor"  # of the runs folder: a folder in it for each time that the checks are made
RESULTS = "results.json"


def check_gpu(study: Study, small: bool, as_json: bool) -> int:
    """Make all checks, and show each outcome as it comes, then all; 0 unless one is `fail`.

    The logs, and `results.json` after each check, lie in a folder below the runs folder, whose path
    is printed.
    """
    gpu = has_driver()
    if not (gpu or small):
        expected = "expected a machine with a GPU, or --small for tiny models on CPUs"
        raise UserError(f"--gpu: no NVIDIA driver here: {expected}")
    check_runs_folder(study.runs)
    folder = study.runs / FOLDER / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    bench = bench_of(study, folder, gpu, small)
    console = Console(stderr=as_json)
    console.print(_about(bench), highlight=False, soft_wrap=True)
    outcomes: list[Outcome] = []
    try:
        for outcome in run_checks(CHECKS, bench, folder):
            outcomes.append(outcome)
            write_atomically(folder / RESULTS, pretty(_as_data(bench, outcomes)))
            seconds = "" if outcome.log is None else f" ({outcome.seconds:.0f} s)"
            line = f"{SHOWN[outcome.verdict]} {outcome.name}{seconds}: {escape(outcome.detail)}"
            console.print(line, highlight=False, soft_wrap=True)
    finally:
        shutil.rmtree(folder / "models", ignore_errors=True)  # gigabytes of random weights
    if as_json:
        print(json.dumps(_as_data(bench, outcomes), indent=2))
    else:
        _summarize(outcomes, console)
    return int(any(outcome.verdict == "fail" for outcome in outcomes))


def _about(bench: Bench) -> str:
    """Name the checks and the folder of their logs."""
    engine, models = bench.setup.engine, "both models are here"
    if bench.made:
        models = f"random weights for {' and '.join(bench.made)}"
    size = "tiny models" if bench.small else escape(bench.setup.title or bench.name)
    engines = f"{engine.sampler} samples, {engine.trainer} trains, {engine.dtype}"
    first = f"{escape(bench.name)}: {size}, {engines}; {models}"
    return f"{first}\nlogs: {escape(str(bench.folder))}"


def _summarize(outcomes: list[Outcome], console: Console) -> None:
    """The table of all checks, and below it what to change, with the log that says more."""
    table = Table("check", "", "seconds", "found")
    for outcome in outcomes:
        seconds = "" if outcome.log is None else f"{outcome.seconds:.1f}"
        table.add_row(outcome.name, SHOWN[outcome.verdict].strip(), seconds, escape(outcome.detail))
    console.print(table)
    for outcome in outcomes:
        if outcome.change:
            change = f"change for {outcome.name}: {escape(outcome.change)}"
            text = f"{change}\n  log: {escape(str(outcome.log))}"
            console.print(text, highlight=False, soft_wrap=True)
    counts = Counter(outcome.verdict for outcome in outcomes)
    words = [f"{counts[verdict]} {verdict}" for verdict in SHOWN if counts[verdict]]
    console.print(f"{len(outcomes)} checks: {', '.join(words)}", highlight=False)


def _as_data(bench: Bench, outcomes: list[Outcome]) -> dict[str, object]:
    """The outcomes for programs; what was not measured is not there."""
    setup = {"setup": bench.name, "small": bench.small, "random_weights": list(bench.made)}
    return setup | {
        "folder": str(bench.folder),
        "checks": [asdict(outcome) for outcome in outcomes],
    }
