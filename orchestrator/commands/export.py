"""`trb export`: the selected checkpoint of a method as a Hugging Face folder with a model card."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from analysis.facts.evidence import ConfirmedRow, RowEvidence
from analysis.labels import AVERAGE, method_label
from analysis.table.model import results_table
from orchestrator.commands.arguments import (
    ONLY_RESULTS,
    Parser,
    add_experiment,
    free_experiment,
    lacks_runs,
    load_sound,
    whole_number,
)
from orchestrator.commands.model_card import Exported, model_card
from orchestrator.errors import UserError, did_you_mean, refuse
from orchestrator.experiment.methods import known_method
from orchestrator.experiment.units import Unit
from orchestrator.models.folders import complete_settings
from orchestrator.models.locate import lies_here
from orchestrator.records.rundir import CANARY, RunReader
from orchestrator.selection import scores
from orchestrator.selection.results_folder import only_results
from orchestrator.selection.study import Study
from orchestrator.start_up import default_runs

# The `license` in the front matter of a model card.
LICENCE = re.compile(r"\A---\n(?:(?!---$).*\n)*?license: *([\w.-]+) *$", re.MULTILINE)
LICENCE_FILES = ("LICENSE*", "LICENCE*", "NOTICE*")


def add(parser: Parser) -> None:
    parser.add_argument("method", metavar="METHOD", help="a method, by key or label")
    add_experiment(parser, without=ONLY_RESULTS)
    parser.option("--output", "DIR", "folder to write, which must not exist", Path, required=True)
    parser.option("--setup", "NAME", "needed where the experiment has several setups")
    parser.option("--seed", "N", "of several training runs (default: the first)", whole_number)


def run(options: argparse.Namespace) -> int:
    free_experiment(options)
    if options.experiment is None:
        options.experiment = only_results(options.runs or default_runs())
    study = load_sound(options)
    if lacks_runs(options):
        return 1
    print(export(study, options.method, options.output, options.setup, options.seed))
    return 0


def export(
    study: Study, method: str, output: Path, setup: str | None = None, seed: int | None = None
) -> Path:
    """Write the selected checkpoint of `method` to the folder `output`, whole or not at all.

    Of several seeds the first is taken, not the best: a choice by score would make the card's
    scores too good. UserError if nothing is selected yet, or if the weights are not here.
    """
    if output.exists():
        raise refuse("--output", str(output), "a folder that does not exist yet")
    if not output.absolute().parent.is_dir():
        raise refuse("--output", str(output), "a folder in one that exists")
    key = known_method("METHOD", method, study.experiment.methods)
    row, confirmed = _rows(study, key, setup)
    unit = _unit(study, row, seed)
    run = study.reader(unit)
    folder = run.checkpoint_path(row.step)
    if not folder.is_dir():
        again = study.invocation.command("submit")
        expected = f"weights, which packs leave out and runtime.keep=best drops; {again} made them"
        raise UserError(f"{folder}: is not here: expected {expected}")
    run.verify_checkpoint(row.step)
    files = run.checkpoint_files(row.step)
    exported = _exported(study, row, confirmed, unit, files)
    scratch = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.absolute().parent))
    try:
        for name in files:
            if name != CANARY:
                (scratch / name).parent.mkdir(exist_ok=True)  # of further chat templates
                shutil.copyfile(folder / name, scratch / name)
        complete_settings(scratch, exported.setup.student.stop_ids)  # older checkpoints need it
        student = lies_here(exported.setup.student, exported.setup, study.runs)
        for pattern in LICENCE_FILES:
            for path in student.glob(pattern) if student is not None else ():
                shutil.copyfile(path, scratch / path.name)
        (scratch / "README.md").write_text(model_card(exported), encoding="utf-8")
        scratch.chmod(0o755)
        os.rename(scratch, output)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return output


def _rows(study: Study, method: str, setup: str | None) -> tuple[RowEvidence, ConfirmedRow | None]:
    """The evidence of the method's selected checkpoint in a setup, and of the runs that confirm it.

    A lone setup need not be named.
    """
    names = list(study.experiment.setups)
    if setup is not None and setup not in names:
        expected = f"one of {', '.join(names)}{did_you_mean(setup, names)}"
        raise refuse("--setup", setup, expected)
    if setup is None and len(names) > 1:
        raise refuse("--setup", None, f"one of {', '.join(names)}")
    evidence = results_table(study).facts
    assert evidence is not None, "an experiment's table has evidence"
    name = setup or names[0]
    row = evidence.find(name, method)
    if row is None:
        again = study.invocation.command("submit")
        raise UserError(
            f"METHOD: {method_label(method)!r}: expected a method with a selected checkpoint; {again}"
        )
    for confirmed in evidence.confirmed:
        if (confirmed.setup, confirmed.method) == (name, method):
            return row, confirmed
    return row, None


def _unit(study: Study, row: RowEvidence, seed: int | None) -> Unit:
    units = {unit.seed: unit for unit in study.units if unit.id in row.units}
    if seed is not None and seed not in units:
        raise refuse("--seed", seed, f"one of {', '.join(map(str, units))}")
    return next(iter(units.values())) if seed is None else units[seed]


def _exported(
    study: Study,
    row: RowEvidence,
    confirmed: ConfirmedRow | None,
    unit: Unit,
    files: Mapping[str, str],
) -> Exported:
    setup, run = study.setup_of(unit), study.reader(unit)
    weights = {name: sha256 for name, sha256 in files.items() if name.endswith(".safetensors")}
    student = lies_here(setup.student, setup, study.runs)
    return Exported(
        experiment=study.experiment.name,
        setup=setup,
        setup_name=unit.setup,
        unit=unit,
        row=row,
        own=_pass_at_1(run, study.evaluation_ids(unit.setup), row.step),
        fresh=_pass_at_1(run, study.fresh_evaluation_ids(unit.setup), row.step),
        origin=run.provenance(),
        weights=weights,
        licence=licence_of(student),
        confirmed=confirmed,
        caveats=[each for each in (study.experiment.caveat, setup.caveat) if each],
    )


def licence_of(folder: Path | None) -> str | None:
    """The `license` in the front matter of the model card in a model's folder; None without one."""
    if folder is None or not (folder / "README.md").is_file():
        return None
    stated = LICENCE.match((folder / "README.md").read_text(encoding="utf-8", errors="replace"))
    return stated[1] if stated else None


def _pass_at_1(run: RunReader, ids: Mapping[str, str], step: int) -> dict[str, float]:
    """Benchmark → pass@1 in percent of a checkpoint that has samples of it; their mean as `avg`."""
    measured = {}
    for key, evaluation_id in ids.items():
        counts = scores.tally(run, evaluation_id, step)
        if counts is not None:
            measured[key] = 100 * float(counts.pass_at_1)
    return {AVERAGE: fmean(measured.values()), **measured} if measured else {}
