"""`trb pack`: a finished sweep as one file that others can open, check and cite."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from analysis.table import build, formats
from orchestrator.archive.packing import LeftOut, Packed, as_opened, write_pack
from orchestrator.commands.arguments import Parser, add_experiment, lacks_runs, load_sound
from orchestrator.errors import UserError, refuse
from orchestrator.planning.numbers import counted, size_text
from orchestrator.records.rundir import ROLLOUTS
from orchestrator.selection.confirmation import missing_units
from orchestrator.selection.study import Study

SUFFIX = ".tar.gz"


def add(parser: Parser) -> None:
    add_experiment(parser)
    text = "default: NAME.tar.gz in this folder, by the experiment's name"
    parser.option("--output", "FILE.tar.gz", text, Path)
    parser.flag("--no-texts", "leave out the texts of evaluated responses")


def run(options: argparse.Namespace) -> int:
    study = load_sound(options)
    if lacks_runs(options):
        return 1
    return pack(study, options.output, not options.no_texts)


def pack(study: Study, output: Path | None, texts: bool) -> int:
    """Write the pack of a sound study, and say what is in it; its path goes to stdout.

    UserError for an unfinished sweep: its checkpoints still want samples, which a reader without
    the weights cannot take.
    """
    output = output or Path(f"{study.experiment.name}{SUFFIX}")
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise refuse("--output", str(output), "a file in a folder that exists")
    missing = missing_units(study)
    if missing:
        left = f"{len(missing)} of {len(study.units)} units are unfinished"
        again = study.invocation.command("submit")
        raise UserError(
            f"{study.experiment.name}: {left}: expected a finished sweep; {again} goes on, and "
            "--methods A,B packs those that are done"
        )
    for unit in study.units:
        study.reader(unit).committed(ROLLOUTS)  # raises Damaged; the others were read before
    table = build.results_table(as_opened(study))
    tables = {"table.md": formats.to_markdown(table), "table.json": formats.to_json(table)}
    packed = write_pack(study, output, tables, texts)
    for line in _about(packed):
        print(line, file=sys.stderr)
    print(packed.path)
    return 0


def _about(packed: Packed) -> list[str]:
    inside = f"{packed.files:,} files, {size_text(packed.size)} unpacked"
    lines = [
        f"{packed.path}: {size_text(packed.path.stat().st_size)}, {inside}",
        f"sha256 {packed.sha256}",
    ]
    if packed.about["left_out"]["texts"]:
        lines.append("left out: the texts of evaluated responses")
    lines.append(f"left out: weights and learner states, {_amount(packed.weights)}")
    if packed.others.files:
        lines.append(f"left out: files that no command reads, {_amount(packed.others)}")
    for code in packed.about["code"]:
        if code["dirty"] is not False:
            changed = (
                "uncommitted changes, which are inside" if code["dirty"] else "unknown changes"
            )
            lines.append(f"{counted(code['units'], 'unit')} made with {changed}")
    lines.append(
        "anyone who opens it reads its logs, with names of machines and folders, and with any key or "
        "token that was printed there: look before you publish"
    )
    lines.append(f"anyone opens it with: trb open {shlex.quote(packed.path.name)}")
    return lines


def _amount(tally: LeftOut) -> str:
    return f"{counted(tally.files, 'file')} of {size_text(tally.size)}"
