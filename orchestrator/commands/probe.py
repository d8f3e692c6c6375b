"""`trb probe continuation`: runs the missing part of each setup's probe, in this process."""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import Progress

from analysis.facts.probe import COUNTS, PrefixComparison, ProbeCounts, comparisons
from orchestrator import sheet
from orchestrator.checks.experiment import CheckedSetup, models, renders, training_files
from orchestrator.commands.arguments import JSON, Parser, add_experiment, load
from orchestrator.commands.waiting import building
from orchestrator.engines.catalog import require_all
from orchestrator.errors import LeaseHeld, UserError
from orchestrator.experiment.methods import PROPOSED, REFERENCE, method_label
from orchestrator.experiment.probe import LOGS, probe_unit
from orchestrator.experiment.units import Unit
from orchestrator.records.provenance import provenance
from orchestrator.records.writer import RunWriter
from orchestrator.selection.study import Study
from orchestrator.start_up import quick_imports
from orchestrator.sweep import prepare
from orchestrator.sweep.prepare import worker_spec
from orchestrator.workers.spec import WorkerSpec, resolved

HEADINGS = (
    "by",
    "t",
    REFERENCE,
    "%",
    method_label(PROPOSED),
    "%",
    "ended",
    "gain %",
    "interval",
)


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
        print(json.dumps(to_json(study), indent=2))
    elif not options.quiet:
        for setup in study.experiment.setups:
            Console().print(to_rich(study, setup))
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


# --- its numbers for people and for programs: a terminal table and stable JSON ---


def to_json(study: Study) -> dict[str, Any]:
    """Every probe of an experiment with its counts; gains are fractions, null where missing."""
    probes = []
    for setup in study.experiment.setups:
        unit = probe_unit(study.experiment, setup, study.runs)
        probe = {"setup": setup, "unit": unit.id, "seed": unit.seed}
        rows = [_row_json(row) for row in comparisons(study, setup)]
        probes.append(probe | {"epsilon": unit.knobs["epsilon"], "rows": rows})
    return {"probes": probes}


def _row_json(row: PrefixComparison) -> dict[str, Any]:
    value, low, high = row.gain or (None, None, None)
    return {
        "continuer": row.continuer,
        "t": row.t,
        REFERENCE: _counts_json(row.vanilla),
        PROPOSED: _counts_json(row.trust_region),
        "gain": value,
        "gain_low": low,
        "gain_high": high,
    }


def _counts_json(counts: ProbeCounts) -> dict[str, Any]:
    totals = {name: counts.totals[name] for name in COUNTS}
    return {"prompts": len(counts.prompts)} | totals | {"success": counts.success}


def to_rich(study: Study, setup: str) -> Any:
    """A rich table, a row for each continuer and truncation length."""
    rows = comparisons(study, setup)
    epsilon = probe_unit(study.experiment, setup, study.runs).knobs["epsilon"]
    sizes = study.experiment.setups[setup].probe
    counted = (
        f"{sizes.prompts} prompts × {sizes.prefixes} rollouts × {sizes.continuations} continuations"
    )
    notes = [
        f"Untrained student, ε = {epsilon:g}; {counted}.",
        "vanilla, TRB: correct/graded, with its share in per cent.",
        "ended: per cent of the rollouts (vanilla, TRB) over within t tokens; they keep their grade.",
        "gain: (TRB − vanilla) ÷ vanilla, with its 95 % interval over prompts.",
    ]
    table = sheet.to_rich(
        sheet.Sheet.of(HEADINGS, map(_texts, rows)),
        title=f"Continued prefixes, {study.experiment.setups[setup].title}",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        collapse_padding=True,
        caption="\n".join(notes),
        caption_justify="left",
    )
    for place, row in enumerate(rows[1:]):
        table.rows[place].end_section = rows[place].continuer != row.continuer
    return table


def _texts(row: PrefixComparison) -> list[str]:
    """A row's cells. Gain and interval are empty where the comparison lacks them."""
    texts = [row.continuer, str(row.t)]
    for counts in (row.vanilla, row.trust_region):
        texts.append(f"{sum(counts.correct)}/{sum(counts.n)}")
        texts.append(f"{100 * counts.success:.1f}")
    vanilla, trust_region = row.vanilla.finished_share, row.trust_region.finished_share
    texts.append(f"{100 * vanilla:.0f}, {100 * trust_region:.0f}")
    value, low, high = row.gain or (None, None, None)
    texts.append("" if value is None else f"{100 * value:+.1f}")
    interval = "" if low is None or high is None else f"{100 * low:+.1f} … {100 * high:+.1f}"
    return [*texts, interval]
