"""`trb doctor --gpu`: small pieces of a sweep's real work, tried before the whole is started."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from orchestrator.config import Runtime
from orchestrator.engines.device import has_driver
from orchestrator.errors import UserError
from orchestrator.models.locate import EXPERIMENTS
from orchestrator.records.files import pretty, write_atomically
from orchestrator.selection.study import Study
from orchestrator.selftest.bench import ROUNDING_GIB, Bench, bench_of
from orchestrator.selftest.catalog import CHECKS
from orchestrator.selftest.runner import Outcome, run_checks
from orchestrator.sweep.preflight import check_runs_folder

PAIR = EXPERIMENTS / "paper.yaml"  # whose largest pair is checked where no experiment is given
SHOWN = {
    "ok": "[green]ok[/]  ",
    "warn": "[yellow]warn[/]",
    "fail": "[red]fail[/]",
    "skipped": "[dim]skip[/]",
}
FOLDER = ".doctor"  # of the runs folder: a folder in it for each time that the checks are made
RESULTS = "results.json"
OF_PLANNED = 0.6  # the least speed that is well: 15,000 tokens/s of Qwen3-0.6B on an H100
PASSED_S = 2.0
MOST_KL = 3e-3  # real weights in bfloat16 were 0.001 nats a token apart on CPUs


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
    # A slow file system gets its time here, too.
    later_s = max(0.0, bench.runtime.engine_start_s - Runtime().engine_start_s)
    checks = [replace(check, limit_s=check.limit_s + later_s) for check in CHECKS]
    console = Console(stderr=as_json)
    console.print(_about(bench), highlight=False, soft_wrap=True)
    outcomes: list[Outcome] = []
    try:
        for outcome in run_checks(checks, bench, folder):
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
        if any(outcome.numbers for outcome in outcomes):
            console.print(_table_of(looks(bench, outcomes)))
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


# --- what the first hour on a new card looks at ---


@dataclass(frozen=True)
class Look:
    """One of the numbers that tell first how a card does; `found` is None if it was not measured.

    `well` says when it is well, and `change` what to do if it is not.
    """

    subject: str
    found: str | None
    is_well: bool
    well: str
    change: str


def looks(bench: Bench, outcomes: Sequence[Outcome]) -> list[Look]:
    """The numbers to look at first, in their order, from what the checks measured."""
    measured = {outcome.name: outcome.numbers for outcome in outcomes}
    sampler, switch = measured.get("sampler", {}), measured.get("switch", {})
    learner, canary = measured.get("learner", {}), measured.get("canary", {})
    started = [outcome for outcome in outcomes if outcome.name == "sampler" and outcome.log]
    memory: list[str] = []
    for name, numbers in (("decoding", sampler), ("blending", switch), ("learning", learner)):
        if "granted_gib" in numbers:
            memory.append(
                f"{name} {numbers['peak_gib']:.1f} of {numbers['granted_gib']:.1f} GiB"
                f"{_processes(numbers)}"
            )
    passed: str | None = None
    if "publish_s" in learner and "load_s" in sampler:
        passed = f"{learner['publish_s']:.2g} + {sampler['load_s']:.2g} s"
    of_made = "; with random weights it says little" if "student" in bench.made else ""
    return [
        Look(
            "an engine with the memory saver starts",
            _first_of(started),
            "start_s" in sampler,
            "it starts, in the first run within minutes",
            "libcudart in the log of sampler: make setup-engines TORCH=cuda; "
            "silence: runtime.engine_start_s",
        ),
        Look(
            "sampler and trainer on the same ids, nats",
            _number(canary, "nats"),
            canary.get("nats", 1.0) <= canary.get("allowed", 0.0),
            f"at most {canary.get('allowed', 0.5):g}{of_made}",
            "begin no sweep; runtime.attention_backend=triton",
        ),
        Look(
            "memory beside the budget",
            "; ".join(memory) or None,
            _fits(sampler) and _fits(switch) and _fits(learner),
            "no more than granted; each process without weights about 512 MiB",
            "a smaller runtime.rollout_batch, or the processes that the checks name",
        ),
        _speed("decoding, tokens/s", sampler),
        _speed("blending, tokens/s", switch),
        Look(
            "weights out and in",
            passed,
            learner.get("publish_s", 0.0) + sampler.get("load_s", 0.0) <= PASSED_S,
            f"at most {PASSED_S:g} s together",
            "cores of the job, numactl; with runtime.weights=host also a slow host",
        ),
        Look(
            "KL of a model in the sampler from itself in the trainer, nats a token",
            _number(canary, "kl"),
            canary.get("kl", 1.0) <= MOST_KL,
            f"about 0.001 in bfloat16, at most {MOST_KL:g}{of_made}",
            "engine.head_dtype=float32; no trust region below this number",
        ),
    ]


def _first_of(started: Sequence[Outcome]) -> str | None:
    """The start of an engine in words; None if it was not tried."""
    for outcome in started:
        if "start_s" in outcome.numbers:
            return f"up in {outcome.numbers['start_s']:.0f} s"
        return outcome.detail
    return None


def _number(numbers: Mapping[str, float], name: str) -> str | None:
    return f"{numbers[name]:.2g}" if name in numbers else None


def _processes(numbers: Mapping[str, float]) -> str:
    if "processes" not in numbers:
        return ""
    return f" ({numbers['processes']:.0f} processes, {numbers['contexts']:.0f} counted)"


def _fits(numbers: Mapping[str, float]) -> bool:
    """Whether no more memory was used than granted, if any was measured."""
    granted = numbers.get("granted_gib", math.inf)
    return numbers.get("peak_gib", 0.0) <= granted + ROUNDING_GIB


def _speed(subject: str, numbers: Mapping[str, float]) -> Look:
    """A speed beside the plan's."""
    found, planned = numbers.get("decoded_per_s"), numbers.get("planned_per_s")
    well = "a GPU, beside the plan's rates"
    if planned is not None:
        well = f"{OF_PLANNED * planned:,.0f} or more, {OF_PLANNED:g} of the plan's"
    return Look(
        subject,
        None if found is None else f"{found:,.0f} at {numbers['rows']:.0f} rows",
        found is not None and found >= OF_PLANNED * (planned or 0.0),
        well,
        "CUDA graphs in the engine's log, and other programs on the card and its cores",
    )


def _table_of(found: Sequence[Look]) -> Table:
    table = Table("look first at", "", "found", "well", "else")
    for look in found:
        sign = SHOWN["ok" if look.is_well else "warn"].strip()
        if look.found is None:
            sign = SHOWN["skipped"].strip()
        cells = (look.subject, sign, look.found or "not measured", look.well, look.change)
        table.add_row(*(cell if cell is sign else escape(cell) for cell in cells))
    return table


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
        "look_first": [asdict(look) for look in looks(bench, outcomes)],
    }
