"""`trb plan`: the cost of an experiment, the part that is done, and why the rest would run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from orchestrator.checks.check import Check, required_apart
from orchestrator.checks.experiment import checked_setup, renders
from orchestrator.commands.arguments import (
    JSON,
    Parser,
    add_experiment,
    load,
    say_pins,
    whole_number,
)
from orchestrator.commands.power import outlook, outlook_text
from orchestrator.config import Experiment, Setup
from orchestrator.cores import cores_here
from orchestrator.data.benchmarks import benchmark_of, lacking, load_benchmark
from orchestrator.data.problems import check_rows, check_system
from orchestrator.engines.catalog import require_all
from orchestrator.errors import UserError, refuse
from orchestrator.experiment.local_files import check_local
from orchestrator.experiment.units import batches_of
from orchestrator.models.folders import local_folder
from orchestrator.monitor.status import seconds_left_on
from orchestrator.planning.calibrated import gpu_here
from orchestrator.planning.numbers import NOTHING, Range
from orchestrator.planning.plan import (
    TOTAL,
    Plan,
    TimeLeft,
    hours_on_gpus,
    make_plan,
    total_gpu_hours,
)
from orchestrator.planning.progress import done_of, reasons
from orchestrator.planning.rates import Gpu, gpu_of
from orchestrator.planning.seconds import measure
from orchestrator.planning.view import render, to_json
from orchestrator.selection.asking import unasked_units
from orchestrator.selection.confirmation import unconfirmed_units, with_confirmation
from orchestrator.selection.loading import refuse_damaged
from orchestrator.selection.study import Study

RENDERED_WITHIN_S = 600.0  # a slow disk takes minutes to read transformers


def add(parser: Parser) -> None:
    add_experiment(parser)
    parser.option("--gpus", "N", "how long it takes on N GPUs (default: 1)", whole_number)
    kinds = "H100-80GB (default), H200, B200, A100-80GB, A100-40GB, L40S"
    own = "name=GiB,TB/s,TFLOP/s as MI=190,5.3,1300"
    parser.option("--gpu", "KIND", f"kind of these GPUs: {kinds}, or {own}")
    parser.flag("--why", "why each unit would run, and what the costs assume")
    text = "the lines that pin the sha256 of local files which the experiment leaves out"
    parser.flag("--pins", text)
    parser.flag("--json", JSON)


def run(options: argparse.Namespace) -> int:
    if options.gpus is not None and options.gpus < 1:
        raise refuse("--gpus", options.gpus, "1 or more")
    gpu = None if options.gpu is None else gpu_of(options.gpu)
    study = load(options, announce=True)
    if options.pins:
        say_pins(study)
    return plan(study, options.gpus or 1, gpu, Console(), options.why, options.json)


def plan(
    study: Study,
    gpus: int,
    gpu: Gpu | None,
    console: Console,
    why: bool = False,
    as_json: bool = False,
) -> int:
    """Print the plan of an experiment against a runs folder, for `gpus` of the kind `gpu`.

    It writes nothing. With `why` also say why each unit would run; `as_json` prints a document. The
    default kind is that of the card that was calibrated in the runs folder, if any. Raises
    `Damaged` on damaged units: their remaining work is unknown.
    """
    study = study.snapshot()
    refuse_damaged(study)
    for name, setup in study.experiment.setups.items():
        check_local(name, setup, passes=True)
        _check_data(setup, study.experiment.data_dir, batches_of(study.units, name))
    _check_prompts(study)
    made = planned(study, gpu)
    clock, power = _clock(study, made, gpus), outlook(with_confirmation(study))
    if as_json:
        print(_text(to_json(made, clock) | {"power": power}))
        return 0
    console.print(render(made, clock, reasons(study) if why else None), highlight=False)
    for note in [outlook_text(study, power), *_notes(study.experiment)]:
        console.print(note, highlight=False, markup=False)
    return 0


def _clock(study: Study, made: Plan, gpus: int) -> TimeLeft:
    """How long the rest takes on so many GPUs, or on the cores that are here."""
    if made.on_gpus:
        return TimeLeft(gpus, made.gpu.name, hours_on_gpus(made, gpus, left=True))
    cores = cores_here()
    seconds = seconds_left_on(study, {"CPU": cores})
    return TimeLeft(gpus, made.gpu.name, None, cores, seconds)


def _check_data(setup: Setup, data_dir: str | None, batches: int) -> None:
    """Read the rows that are here as the sweep will, which then refuses nothing that a plan takes."""
    folder = Path(data_dir or "")
    files = setup.data.files if setup.data.source == "jsonl" else []
    if files and all((folder / entry.file).is_file() for entry in files):
        check_rows(setup, data_dir, batches)
    for key, run in setup.evaluation.benchmarks.items():
        file = benchmark_of(key, run).file
        path = Path(run.path) if run.path else folder / file if file else None
        if path is not None and path.exists():
            check_system(load_benchmark(key, data_dir, run), setup.prompt.system)


def _check_prompts(study: Study) -> None:
    """Render a prompt of each setup with a chat template and a teacher in a local folder; UserError.

    In a process of its own, since tokenizers take seconds to import.
    """
    for name, setup in study.experiment.setups.items():
        if setup.prompt.kind == "chat" and local_folder(setup.teacher) is not None:
            check = Check(f"{name} prompt", renders, limit_s=RENDERED_WITHIN_S)
            unmade = f"{name}.teacher: a prompt cannot be rendered"
            required_apart(check, checked_setup(study, name), unmade)


def _notes(experiment: Experiment) -> list[str]:
    """List what the sweep lacks here: engines that are not installed, and data files."""
    notes: dict[str, None] = {}
    for setup in experiment.setups.values():
        try:
            require_all(setup.engine)
        except UserError as error:
            notes[f"To submit here: {error}."] = None
    folder = Path(experiment.data_dir or "")
    files = lacking(experiment.setups.values(), folder)
    if files:
        by = f"`trb submit` fetches them, or `trb data fetch {folder}`"
        notes[f"Not in {folder} yet: {', '.join(files)} ({by})."] = None
    return list(notes)


def planned(study: Study, gpu: Gpu | None = None) -> Plan:
    """The plan with the finished part and the measured rates of the runs folder."""
    measured = measure(study)
    gpu = gpu or gpu_here(measured.calibrations)
    study = with_confirmation(study)
    later = unconfirmed_units(study)
    confirming = {*study.confirming, *(unit.id for unit in later if unit.is_trial)}
    later = [*unasked_units(study), *later]
    units = [*map(study.as_expected, study.units), *later]
    return make_plan(
        study.experiment, units, done_of(study), measured, gpu=gpu, confirming=confirming
    )


def gpu_hours_left(study: Study) -> Range:
    """The low and the high estimate of the GPU-hours that `trb submit` would spend."""
    if not any(unit.placement.gpus for unit in study.units):
        return NOTHING
    made = planned(study)
    hours = total_gpu_hours(made, left=True) if made.left else None
    return hours[TOTAL] if hours else NOTHING


def _text(document: dict[str, Any]) -> str:
    """A document whose `units` take a line each. Python takes seconds to indent ten thousand."""
    rest = dict(document)
    units = ",\n".join(f"    {json.dumps(unit)}" for unit in rest.pop("units"))
    return f'{{\n  "units": [\n{units}\n  ],{json.dumps(rest, indent=2)[1:]}'
