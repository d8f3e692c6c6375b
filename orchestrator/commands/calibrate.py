"""`trb calibrate`: some minutes of each phase on the GPU at hand, for the plan of all the rest."""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from dataclasses import replace
from datetime import date
from pathlib import Path

from rich.console import Console

from orchestrator.commands.arguments import Parser, add_experiment, load_to_run, positive_number
from orchestrator.commands.display import say
from orchestrator.commands.doctor_gpu import SHOWN
from orchestrator.engines.device import has_driver
from orchestrator.engines.interface import Owner
from orchestrator.errors import UserError, refuse
from orchestrator.experiment.methods import behavior_at, needs_teacher
from orchestrator.models.locate import lies_here
from orchestrator.planning.calibrated import FOLDER, Card, calibration_path, gpu_of_card
from orchestrator.planning.costs import SetupCosts
from orchestrator.planning.seconds import measure
from orchestrator.planning.steps import teacher_online_steps
from orchestrator.policy.spec import Behavior, TeacherSequences
from orchestrator.selection.study import Study
from orchestrator.selftest.bench import Bench
from orchestrator.selftest.measuring import Measuring
from orchestrator.selftest.runner import Check, Outcome, run_checks
from orchestrator.sweep.preflight import check_runs_folder

CARD_WITHIN_S = 120.0
MODELS_WITHIN_S = 300.0
# Phases by what they say about a sweep's GPU-hours, with the share of the time that each may take.
SHARES = {"evaluating": 3, "decoding": 4, "blending": 3, "learning": 2, "scoring": 1}
LEAST_S = 1.0
# Beyond a phase's share: an engine may compile kernels at first use, and a disk be slow at first.
LATE_S = 120.0
NO_GPU = "a machine with the GPU that is to be measured"


def add(parser: Parser) -> None:
    add_experiment(parser)
    text = "how long it may take (default: 10), all setups together"
    parser.option("--minutes", "M", text, positive_number, default=10.0)


def run(options: argparse.Namespace) -> int:
    return calibrate(load_to_run(options), options.minutes, Console())


def calibrate(study: Study, minutes: float, console: Console) -> int:
    """Measure each phase of each setup on this machine's GPU; 0 when all of them were measured.

    The minutes are for measurements; the starts of engines, with the kernels that they compile, come
    on top.

    Rows go to the card's file below the runs folder as they are measured, so that a kill keeps
    them; logs go beside it.
    """
    placement = study.experiment.runtime.placement
    if placement.gpus != 1:
        raise refuse(
            "runtime.placement.gpus", placement.gpus, "1: one GPU is measured, and CPUs are not"
        )
    card = card_here()
    check_runs_folder(study.runs)
    deadline = time.monotonic() + 60 * minutes
    folder = study.runs / FOLDER / time.strftime("%Y%m%d-%H%M%S")
    everything: list[Measuring] = []
    shares = 0  # of all phases that are still to be measured
    for name in study.experiment.setups:
        asked = _measuring(study, name, card, folder / name)
        everything.append(asked)
        shares += sum(_shares_of(asked).values())
    say(console, f"{card.name}, {card.gib:.1f} GiB, for {minutes:g} minutes; logs: {folder}")
    failed = False
    for asked in everything:
        asked.bench.folder.mkdir(parents=True)
        try:
            if asked.bench.made:
                check = Check("models", "orchestrator.selftest.pair:models", MODELS_WITHIN_S, "")
                if _run(check, asked.bench, asked.bench, console).verdict != "ok":
                    failed = True
                    shares -= sum(_shares_of(asked).values())
                    continue
            for phase, share in _shares_of(asked).items():
                seconds = (deadline - time.monotonic()) * share / shares
                shares -= share
                if seconds < LEAST_S:
                    why = f"not begun, the {minutes:g} minutes are over"
                    say(console, f"{asked.bench.name} {phase}: {why}")
                    failed = True
                    continue
                limit = 2 * seconds + LATE_S + asked.bench.runtime.engine_start_s
                check = Check(phase, f"orchestrator.selftest.phases:{phase}", limit, "")
                outcome = _run(check, replace(asked, seconds=seconds), asked.bench, console)
                deadline += outcome.numbers.get("start_s", 0.0)
                failed |= outcome.verdict != "ok"
        finally:
            # Gigabytes of random weights.
            shutil.rmtree(asked.bench.folder / "models", ignore_errors=True)
    path = calibration_path(study.runs, card)
    if path.is_file():
        following = study.invocation.command("plan", "--why")
        say(console, f"written to {path}; the sweep's plan with it: {following}")
    return int(failed)


def card_here() -> Card:
    """The first GPU of this machine, asked by a process that frees it again; UserError without."""
    if not has_driver():
        raise UserError(f"calibrate: no NVIDIA driver here: expected {NO_GPU}")
    with tempfile.TemporaryDirectory() as folder:
        check = Check("card", "orchestrator.selftest.phases:card", CARD_WITHIN_S, "")
        [outcome] = run_checks([check], None, Path(folder))
    if outcome.verdict != "ok":
        raise UserError(f"calibrate: {outcome.detail}: expected {NO_GPU}")
    return Card(outcome.detail, outcome.numbers["gib"])


def _measuring(study: Study, name: str, card: Card, folder: Path) -> Measuring:
    """The task of the processes that measure a setup's phases."""
    setup, runtime = study.experiment.setups[name], study.experiment.runtime
    behaviors: dict[str, Behavior] = {}
    for unit in study.units_of(name):
        if unit.method is not None and unit.is_trial and needs_teacher(unit.method, unit.knobs, 0):
            behavior = behavior_at(unit.method, unit.knobs, teacher_online_steps(unit) // 2)
            if isinstance(behavior, TeacherSequences):  # measured by a response of the teacher
                behavior = behavior.of(0.0)
            behaviors.setdefault(unit.method, behavior)
    folders: dict[Owner, Path] = {}
    made: list[Owner] = []
    owners: tuple[Owner, ...] = ("student", "teacher")
    for owner in owners:
        found = lies_here(getattr(setup, owner), setup, study.runs)
        folders[owner] = found or folder / "models" / owner
        if found is None:
            made.append(owner)
    bench = Bench(
        name,
        setup,
        setup,
        runtime,
        folders,
        tuple(made),
        folder,
        bool(behaviors),
        False,
        study.experiment,
        study.runs,
    )
    lengths = measure(study).lengths.get(name, {})
    costs = SetupCosts(setup, runtime, setup.engine.sampler, gpu_of_card(card), lengths)
    path, day = calibration_path(study.runs, card), date.today().isoformat()
    return Measuring(bench, costs, tuple(behaviors.values()), card, path, day, seconds=0.0)


def _shares_of(asked: Measuring) -> dict[str, int]:
    """The phases to measure of a setup, with the share of the time of each."""
    shares = dict(SHARES)
    if not asked.behaviors:
        del shares["blending"]
    return shares


def _run(check: Check, subject: object, bench: Bench, console: Console) -> Outcome:
    """Run one phase and show its outcome."""
    [outcome] = run_checks([check], subject, bench.folder)
    console.print(SHOWN[outcome.verdict], end=" ")
    say(console, f"{bench.name} {outcome.name} ({outcome.seconds:.0f} s): {outcome.detail}")
    return outcome
