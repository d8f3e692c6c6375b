"""`trb calibrate`: some minutes of each phase on the GPU at hand, for the plan of all the rest."""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from orchestrator.checks.catalog import SHARES, calibration_checks, card_check, models_check
from orchestrator.checks.check import Check, Checked, run_checks
from orchestrator.checks.preflight import runs_folder
from orchestrator.commands.arguments import Parser, add_experiment, load_to_run, positive_number
from orchestrator.commands.display import say
from orchestrator.commands.doctor import show
from orchestrator.engines.device import has_driver
from orchestrator.errors import UserError, refuse
from orchestrator.experiment.methods import behavior_at, needs_teacher
from orchestrator.planning.calibrated import FOLDER, Card, calibration_path, gpu_of_card
from orchestrator.planning.costs import SetupCosts
from orchestrator.planning.seconds import measure
from orchestrator.planning.work import teacher_online_steps
from orchestrator.policy.spec import Behavior, TeacherSequences
from orchestrator.selection.study import Study

if TYPE_CHECKING:
    from orchestrator.checks.timing import Measuring

NO_GPU = "a machine with the GPU that is to be measured"


def add(parser: Parser) -> None:
    add_experiment(parser)
    text = "how long it may take (default: 10), all setups together"
    parser.option("--minutes", "M", text, positive_number, default=10.0)


def run(options: argparse.Namespace) -> int:
    return calibrate(load_to_run(options), options.minutes, Console())


def calibrate(study: Study, minutes: float, console: Console) -> int:
    """Measure each phase of each setup on this machine's GPU; 0 when all of them were measured.

    The phases share the minutes. The starts of engines, with the kernels that they compile, come on
    top. Rows go to the card's file below the runs folder as they are measured, so that a kill keeps
    them; logs go beside it.
    """
    placement = study.experiment.runtime.placement
    if placement.gpus != 1:
        expected = "1: one GPU is measured, and CPUs are not"
        raise refuse("runtime.placement.gpus", placement.gpus, expected)
    card = card_here()
    runs_folder(study.runs)
    folder = study.runs / FOLDER / time.strftime("%Y%m%d-%H%M%S")
    tasks = [_measuring(study, name, card, folder / name) for name in study.experiment.setups]
    phases = [check for task in tasks for check in calibration_checks(bool(task.behaviors))]
    share_s = 60 * minutes / sum(SHARES[check.name] for check in phases)
    say(console, f"{card.name}, {card.gib:.1f} GiB, for {minutes:g} minutes; logs: {folder}")
    verdicts: set[str] = set()
    for task in tasks:
        verdicts |= {checked.verdict for checked in _measured(task, share_s, console)}
    path = calibration_path(study.runs, card)
    if path.is_file():
        following = study.invocation.command("plan", "--why")
        say(console, f"written to {path}; the sweep's plan with it: {following}")
    return int(verdicts != {"ok"})


def _measured(task: Measuring, share_s: float, console: Console) -> Iterator[Checked]:
    """Measure the phases of a setup, and show each; make missing models before, and remove them."""
    bench = task.bench
    bench.folder.mkdir(parents=True)
    checks: list[tuple[Check, object]] = []
    if bench.made:
        checks.append((replace(models_check(), needs=()), bench))
    for check in calibration_checks(bool(task.behaviors)):
        seconds = SHARES[check.name] * share_s
        limit_s = check.limit_s + 2 * seconds + bench.runtime.engine_start_s
        checks.append((replace(check, limit_s=limit_s), replace(task, seconds=seconds)))
    try:
        for check, subject in checks:
            [checked] = run_checks([check], subject, bench.folder)
            show(console, replace(checked, name=f"{bench.of.name} {checked.name}"))
            yield checked
            if check.name == "models" and checked.verdict != "ok":
                return
    finally:
        shutil.rmtree(bench.folder / "models", ignore_errors=True)  # gigabytes of random weights


def card_here() -> Card:
    """The first GPU of this machine, asked by a process that frees it again; UserError without."""
    if not has_driver():
        raise UserError(f"calibrate: no NVIDIA driver here: expected {NO_GPU}")
    with tempfile.TemporaryDirectory() as folder:
        [checked] = run_checks([card_check()], None, Path(folder))
    if checked.verdict != "ok":
        raise UserError(f"calibrate: {checked.detail}: expected {NO_GPU}")
    return Card(checked.detail, checked.numbers["gib"])


def _measuring(study: Study, name: str, card: Card, folder: Path) -> Measuring:
    """The task of the processes that measure a setup's phases."""
    from orchestrator.checks.bench import bench_of
    from orchestrator.checks.timing import Measuring

    setup, runtime = study.experiment.setups[name], study.experiment.runtime
    behaviors: dict[str, Behavior] = {}
    for unit in study.units_of(name):
        if unit.method is not None and unit.is_trial and needs_teacher(unit.method, unit.knobs, 0):
            behavior = behavior_at(unit.method, unit.knobs, teacher_online_steps(unit) // 2)
            if isinstance(behavior, TeacherSequences):  # measured by a response of the teacher
                behavior = behavior.of(0.0)
            behaviors.setdefault(unit.method, behavior)
    lengths = measure(study).lengths.get(name, {})
    costs = SetupCosts(setup, runtime, setup.engine.sampler, gpu_of_card(card), lengths)
    path, day = calibration_path(study.runs, card), date.today().isoformat()
    bench = bench_of(study, name, folder)
    return Measuring(bench, costs, tuple(behaviors.values()), card, path, day)
