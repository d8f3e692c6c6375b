"""`trb doctor`: is this machine ready, and does an experiment hold together?

`trb doctor --gpu` tries small pieces of a sweep's real work on a GPU before the whole is started.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from orchestrator.checks.check import ROUNDING_GIB, Checked, run_checks
from orchestrator.checks.preflight import runs_folder
from orchestrator.commands.arguments import (
    JSON,
    Parser,
    add_experiment,
    free_experiment,
    load,
    say_pins,
)
from orchestrator.commands.display import say
from orchestrator.config import Runtime
from orchestrator.engines.device import has_driver
from orchestrator.errors import UserError
from orchestrator.models.locate import EXPERIMENTS
from orchestrator.planning.numbers import counted
from orchestrator.records.files import pretty, write_atomically
from orchestrator.selection.study import Study

if TYPE_CHECKING:
    from orchestrator.checks.bench import Bench

PAIR = EXPERIMENTS / "paper.yaml"  # whose largest pair is checked where no experiment is given
SIGNS = {
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


def add(parser: Parser) -> None:
    add_experiment(parser, without="without one: the machine alone")
    parser.flag("--json", JSON)
    text = "minutes of real work on this machine's GPU: engines, memory, an update, a switch"
    parser.flag("--gpu", text)
    text = "with --gpu: tiny models of random weights, on CPUs if the machine has no GPU"
    parser.flag("--small", text)


def run(options: argparse.Namespace) -> int:
    if options.gpu:
        free_experiment(options)
        options.experiment = options.experiment or PAIR
        return check_gpu(load(options), options.small, options.json)
    if options.small:
        raise UserError("--small: not without --gpu: expected trb doctor --gpu --small")
    if options.experiment is None:
        return examine(None, options.json)
    study = load(options, announce=True)
    say_pins(study)
    return examine(study, options.json)


def examine(study: Study | None, as_json: bool) -> int:
    """Make all checks of a machine and an experiment, and print them; 0 unless one is `fail`."""
    all_checked: list[Checked] = []
    for checked in _examined(study):
        for earlier in all_checked:
            # A key of a setup may stand in an earlier line with the setup's name before it.
            same = earlier.detail.endswith(checked.detail)
            if checked.verdict == earlier.verdict == "fail" and same:
                checked = replace(checked, detail=f"as {earlier.name}", change="")
        all_checked.append(checked)
        if not as_json:
            show(Console(), checked)
    if not as_json:
        show_changes(Console(), all_checked)
    failed = sum(checked.verdict == "fail" for checked in all_checked)
    if as_json:
        print(json.dumps({"checks": [asdict(checked) for checked in all_checked]}, indent=2))
    elif failed:
        say(Console(), f"{counted(failed, 'check')} failed")
    elif study is None:
        say(Console(), "nothing failed; next: trb doctor EXP.yaml checks an experiment, too")
    else:
        say(Console(), f"nothing failed; next: {study.invocation.command('plan')}")
    return int(failed > 0)


def _examined(study: Study | None) -> Iterator[Checked]:
    """Make the checks of this machine, then those of an experiment and each of its setups."""
    from orchestrator.checks import catalog
    from orchestrator.checks.experiment import checked_setup

    runtime = study.experiment.runtime if study else Runtime()
    yield from run_checks(catalog.machine_checks(runtime), runtime)
    if study is None:
        return
    experiment = study.experiment
    yield from run_checks(catalog.experiment_checks(experiment), experiment)
    for name, setup in experiment.setups.items():
        subject = checked_setup(study, name)
        for checked in run_checks(catalog.setup_checks(setup, experiment), subject):
            yield replace(checked, name=f"{name} {checked.name}")
    for name in experiment.setups:  # last, since they may read for minutes
        for checked in run_checks(catalog.DATA_CHECKS, checked_setup(study, name)):
            yield replace(checked, name=f"{name} {checked.name}")


def show(console: Console, checked: Checked) -> None:
    """Print a line with the verdict, and further lines of the detail below it."""
    detail = escape(checked.detail).replace("\n", "\n     ")
    seconds = "" if checked.log is None else f" ({checked.seconds:.0f} s)"
    line = f"{SIGNS[checked.verdict]} {checked.name}{seconds}: {detail}"
    console.print(line, highlight=False, soft_wrap=True)


def show_changes(console: Console, all_checked: Sequence[Checked]) -> None:
    """Print what to change where a check fails or warns, with the log that says more."""
    for checked in all_checked:
        if checked.change:
            say(console, f"change for {checked.name}: {checked.change}")
            if checked.log is not None:
                say(console, f"  log: {checked.log}")


# --- a GPU ---


def check_gpu(study: Study, small: bool, as_json: bool) -> int:
    """Make all checks of a GPU, and show each as it comes, then all; 0 unless one is `fail`.

    The logs, and `results.json` after each check, lie in a folder below the runs folder, whose path
    is printed.
    """
    from orchestrator.checks.bench import largest_pair, small_version
    from orchestrator.checks.catalog import gpu_checks

    gpu = has_driver()
    if not (gpu or small):
        expected = "expected a machine with a GPU, or --small for tiny models on CPUs"
        raise UserError(f"--gpu: no NVIDIA driver here: {expected}")
    runs_folder(study.runs)
    folder = study.runs / FOLDER / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    bench = largest_pair(study, folder)
    if small:
        bench = small_version(bench, gpu)
    # A slow file system gets its time here, too.
    later_s = max(0.0, bench.runtime.engine_start_s - Runtime().engine_start_s)
    checks = [replace(check, limit_s=check.limit_s + later_s) for check in gpu_checks()]
    console = Console(stderr=as_json)
    say(console, *_about(bench))
    all_checked: list[Checked] = []
    try:
        for checked in run_checks(checks, bench, folder):
            all_checked.append(checked)
            write_atomically(folder / RESULTS, pretty(_as_data(bench, all_checked)))
            show(console, checked)
    finally:
        shutil.rmtree(folder / "models", ignore_errors=True)  # gigabytes of random weights
    if as_json:
        print(json.dumps(_as_data(bench, all_checked), indent=2))
    else:
        _summarize(bench, all_checked, console)
    return int(any(checked.verdict == "fail" for checked in all_checked))


def _about(bench: Bench) -> tuple[str, str]:
    """Name the checks and the folder of their logs."""
    engine, models = bench.setup.engine, "both models are here"
    if bench.made:
        models = f"random weights for {' and '.join(bench.made)}"
    size = "tiny models" if bench.small else bench.setup.title or bench.of.name
    engines = f"{engine.sampler} samples, {engine.trainer} trains, {engine.dtype}"
    return f"{bench.of.name}: {size}, {engines}; {models}", f"logs: {bench.folder}"


def _summarize(bench: Bench, all_checked: Sequence[Checked], console: Console) -> None:
    """A table of all checks, what to change, and a table of the numbers to look at first."""
    table = Table("check", "", "seconds", "found")
    for checked in all_checked:
        seconds = "" if checked.log is None else f"{checked.seconds:.1f}"
        sign = SIGNS[checked.verdict].strip()
        table.add_row(checked.name, sign, seconds, escape(checked.detail))
    console.print(table)
    show_changes(console, all_checked)
    counts = Counter(checked.verdict for checked in all_checked)
    words = [f"{counts[verdict]} {verdict}" for verdict in SIGNS if counts[verdict]]
    say(console, f"{len(all_checked)} checks: {', '.join(words)}")
    if not any(checked.numbers for checked in all_checked):
        return
    table = Table("look first at", "", "found", "well", "else")
    for look in looks(bench, all_checked):
        sign = SIGNS["ok" if look.is_well else "warn" if look.found else "skipped"].strip()
        others = (look.found or "not measured", look.well, look.change)
        table.add_row(escape(look.subject), sign, *map(escape, others))
    console.print(table)


def _as_data(bench: Bench, all_checked: Sequence[Checked]) -> dict[str, object]:
    """The outcomes for programs; what was not measured is not there."""
    return {
        "setup": bench.of.name,
        "small": bench.small,
        "random_weights": list(bench.made),
        "folder": str(bench.folder),
        "checks": [asdict(checked) for checked in all_checked],
        "look_first": [asdict(look) for look in looks(bench, all_checked)],
    }


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


def looks(bench: Bench, all_checked: Sequence[Checked]) -> list[Look]:
    """The numbers to look at first, in their order, from what the checks measured."""
    of = {checked.name: checked for checked in all_checked}
    numbers = {name: checked.numbers for name, checked in of.items()}
    sampler, switch = numbers.get("sampler", {}), numbers.get("switch", {})
    learner, canary = numbers.get("learner", {}), numbers.get("canary", {})
    start = None
    if "start_s" in sampler:
        start = f"up in {sampler['start_s']:.0f} s"
    elif "sampler" in of and of["sampler"].log:  # tried
        start = of["sampler"].detail
    memory: list[str] = []
    fits = True
    for name, used in (("decoding", sampler), ("blending", switch), ("learning", learner)):
        if "granted_gib" in used:
            memory.append(f"{name} {_beside_grant(used)}")
            fits &= used["peak_gib"] <= used["granted_gib"] + ROUNDING_GIB
    passed, passed_s = None, math.inf
    if "publish_s" in learner and "load_s" in sampler:
        passed = f"{learner['publish_s']:.2g} + {sampler['load_s']:.2g} s"
        passed_s = learner["publish_s"] + sampler["load_s"]
    of_made = "; with random weights it says little" if "student" in bench.made else ""
    return [
        Look(
            "an engine with the memory saver starts",
            start,
            "start_s" in sampler,
            "it starts, in the first run within minutes",
            "libcudart in the log of sampler: make setup-engines TORCH=cuda; "
            "silence: runtime.engine_start_s",
        ),
        Look(
            "sampler and trainer on the same ids, nats",
            _number(canary, "nats"),
            canary.get("nats", math.inf) <= canary.get("allowed", 0.0),
            f"at most {canary.get('allowed', 0.5):g}{of_made}",
            "begin no sweep; runtime.attention_backend=triton",
        ),
        Look(
            "memory beside the budget",
            "; ".join(memory) or None,
            fits,
            "no more than granted; each process without weights about 512 MiB",
            "a smaller runtime.rollout_batch, or the processes that the checks name",
        ),
        _speed("decoding, tokens/s", sampler),
        _speed("blending, tokens/s", switch),
        Look(
            "weights out and in",
            passed,
            passed_s <= PASSED_S,
            f"at most {PASSED_S:g} s together",
            "cores of the job, numactl; with runtime.weights=host also a slow host",
        ),
        Look(
            "KL of a model in the sampler from itself in the trainer, nats a token",
            _number(canary, "kl"),
            canary.get("kl", math.inf) <= MOST_KL,
            f"about 0.001 in bfloat16, at most {MOST_KL:g}{of_made}",
            "engine.head_dtype=float32; no trust region below this number",
        ),
    ]


def _number(numbers: Mapping[str, float], name: str) -> str | None:
    return f"{numbers[name]:.2g}" if name in numbers else None


def _beside_grant(used: Mapping[str, float]) -> str:
    words = f"{used['peak_gib']:.1f} of {used['granted_gib']:.1f} GiB"
    if "processes" not in used:
        return words
    return f"{words} ({used['processes']:.0f} processes, {used['contexts']:.0f} counted)"


def _speed(subject: str, numbers: Mapping[str, float]) -> Look:
    """A speed beside the plan's."""
    speed, planned = numbers.get("decoded_per_s"), numbers.get("planned_per_s")
    well = "a GPU, beside the plan's rates"
    if planned is not None:
        well = f"{OF_PLANNED * planned:,.0f} or more, {OF_PLANNED:g} of the plan's"
    return Look(
        subject,
        None if speed is None else f"{speed:,.0f} at {numbers['rows']:.0f} rows",
        speed is not None and speed >= OF_PLANNED * (planned or 0.0),
        well,
        "CUDA graphs in the engine's log, and other programs on the card and its cores",
    )
