"""`trb probe continuation`: runs the missing part of each setup's probe, in this process."""

from __future__ import annotations

import argparse
import json
from contextlib import closing

from rich.console import Console
from rich.progress import Progress

from analysis.probe import view
from orchestrator.checks.experiment import CheckedSetup, models, renders, training_files
from orchestrator.commands.arguments import JSON, Parser, add_experiment, load
from orchestrator.commands.waiting import building
from orchestrator.engines.catalog import require_all
from orchestrator.errors import LeaseHeld, UserError
from orchestrator.experiment.probe import LOGS, probe_unit
from orchestrator.experiment.units import Unit
from orchestrator.records.provenance import provenance
from orchestrator.records.writer import RunWriter
from orchestrator.selection.study import Study
from orchestrator.start_up import quick_imports
from orchestrator.sweep import prepare
from orchestrator.sweep.prepare import worker_spec
from orchestrator.workers.spec import WorkerSpec, resolved


def add(parser: Parser) -> None:
    probes = parser.add_subparsers(dest="probe", metavar="PROBE", required=True)
    text = "success of vanilla and trust-region prefixes when student and teacher continue them"
    continuation = probes.add_parser("continuation", help=text, description=text)
    add_experiment(continuation)
    shown = continuation.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help=JSON)
    text = "measure only; the report has the numbers and a picture of them"
    shown.add_argument("--quiet", action="store_true", help=text)


def run(options: argparse.Namespace) -> int:
    study = load(options)
    run_probes(study, Console(stderr=options.json))
    if options.json:
        print(json.dumps(view.to_json(study), indent=2))
    elif not options.quiet:
        for setup in study.experiment.setups:
            Console().print(view.to_rich(study, setup))
    return 0


def run_probes(study: Study, console: Console) -> None:
    """Bring every setup's probe to its end from its last commit; UserError if one cannot run."""
    missing = _missing(study)
    if not missing:
        return
    setups = {unit.setup: study.setup_of(unit) for unit in missing}
    for name, setup in setups.items():  # a probe reads training prompts and no benchmark
        require_all(setup.engine)
        subject = CheckedSetup(name, setup, study.runs, data_dir=study.experiment.data_dir)
        for check in (training_files, models, renders):
            check(subject)
    study.runs.mkdir(parents=True, exist_ok=True)
    with building(console) as report:
        pairs = prepare.prepare(setups, study.runs, report, study.experiment.data_dir)
    for unit in _missing(study):  # with the ids that the models have given them
        _run(study, worker_spec(unit, study.experiment, study.runs, pairs[unit.setup]), console)


def _missing(study: Study) -> list[Unit]:
    missing = []
    for name in study.experiment.setups:
        unit = probe_unit(study.experiment, name, study.runs)
        if not study.reader(unit).trained:
            missing.append(unit)
    return missing


def _run(study: Study, spec: WorkerSpec, console: Console) -> None:
    with quick_imports():
        from orchestrator.trial.probe import run_probe  # torch takes seconds to import

    unit = spec.unit
    if not console.is_terminal:
        console.print(f"probing {unit.setup}: {spec.setup.probe.prompts} prompts", highlight=False)
    try:
        run = RunWriter(study.runs, unit.id, LOGS)
    except LeaseHeld as error:
        raise UserError(str(error)) from None
    with (
        closing(run),
        Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        run.describe(resolved(spec), provenance, spec.trained_from)
        task = progress.add_task(f"probing {unit.setup}", total=unit.steps, completed=run.next_step)
        for done in run_probe(spec, run):
            progress.update(task, completed=done)
