"""`trb pack`: a finished sweep as one file that others can open, check and cite.

A pack is a `.tar.gz` with one folder, by the experiment's name:

| member | holds |
|---|---|
| `README.md` | what is where, and fifteen lines that count the scores again |
| `SHA256SUMS` | the sha256 of every other member, as `sha256sum -c` reads it |
| `manifest.json` | experiment, code, models, table, and how much was left out |
| `results/<name>/` | `experiment.yaml`, resolved; `table.md`, `table.json`; `submits.jsonl` |
| `models/<recipe>.made.json` | sha256 of the files of a model that a recipe made |
| `<unit id>/` | the run directory of a unit, without its checkpoints |

Unpacked, the folder is a runs folder, and `results/<name>` names the experiment to every command.
The same files give the same bytes: members are sorted, and no clock is read.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import shlex
import sys
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from analysis.facts.facts import facts
from analysis.facts.provenance import code_states
from analysis.table import formats
from analysis.table.model import table_of
from orchestrator.commands.arguments import Parser, add_experiment, lacks_runs, load_sound
from orchestrator.errors import UserError, refuse
from orchestrator.experiment.load import RECORD, RESULTS, resolved_text
from orchestrator.experiment.probe import probe_unit
from orchestrator.models.locate import ROLES, folder_of, record_path
from orchestrator.monitor import status
from orchestrator.planning.numbers import counted, size_text
from orchestrator.records.files import file_sha256, pretty, sync
from orchestrator.records.log import HELD_OUT
from orchestrator.records.rundir import CHECKPOINTS, DONE, ROLLOUTS
from orchestrator.records.slices import TEXTS
from orchestrator.selection.results_folder import (
    ASKED,
    SUBMITS,
    content_digest,
    runs_digest,
    submits,
)
from orchestrator.selection.results_folder import folder_of as results_of
from orchestrator.selection.study import Invocation, Study

MANIFEST = "manifest.json"
README = "README.md"
SUMS = "SHA256SUMS"
# Text and numbers alone. A pack brings no code: an experiment may name a grader by its module, and
# Python would import a file that came with the pack.
SUFFIXES = (".json", ".jsonl", ".txt", ".md", ".yaml", ".gz")


@dataclass(frozen=True)
class Packed:
    """A pack that was written: its number of files, their bytes when unpacked, and its manifest."""

    files: int
    size: int
    about: Mapping[str, Any]


def add(parser: Parser) -> None:
    add_experiment(parser)
    text = "default: NAME.tar.gz in this folder, by the experiment's name"
    parser.option("--output", "FILE.tar.gz", text, Path)
    parser.flag("--no-texts", "leave out the texts of evaluated responses")


def run(options: argparse.Namespace) -> int:
    """Write the pack, and say on stderr what is in it; its path goes to stdout.

    UserError for an unfinished sweep: its checkpoints still want samples, which a reader without
    the weights cannot take.
    """
    study = load_sound(options)
    if lacks_runs(options):
        return 1
    output = options.output or Path(f"{study.experiment.name}.tar.gz")
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise refuse("--output", str(output), "a file in a folder that exists")
    overview = status.overview(study)
    if not overview.is_done:
        missing = len(overview.units) - overview.done
        left = f"{missing} of {len(overview.units)} units are unfinished"
        again = study.invocation.command("submit")
        raise UserError(
            f"{study.experiment.name}: {left}: expected a finished sweep; {again} goes on, and "
            "--methods A,B packs those that are done"
        )
    for unit in study.units:
        for name in (ROLLOUTS, HELD_OUT):
            study.reader(unit).committed(name)  # raises Damaged; the others were read before
    table = table_of(facts(as_opened(study), overview=overview))
    tables = {"table.md": formats.to_markdown(table), "table.json": formats.to_json(table)}
    packed = write_pack(study, output, tables, not options.no_texts)
    print(*_about(packed, output), sep="\n", file=sys.stderr)
    print(output)
    return 0


def _about(packed: Packed, output: Path) -> list[str]:
    inside = f"{packed.files:,} files, {size_text(packed.size)} unpacked"
    lines = [
        f"{output}: {size_text(output.stat().st_size)}, {inside}",
        f"sha256 {file_sha256(output)}",
    ]
    left_out = packed.about["left_out"]
    if left_out["texts"]:
        lines.append("left out: the texts of evaluated responses")
    kinds = {"weights": "weights and learner states", "others": "files that no command reads"}
    for key, kind in kinds.items():
        files, size = left_out[key]["files"], left_out[key]["size"]
        if files:
            lines.append(f"left out: {kind}, {counted(files, 'file')} of {size_text(size)}")
    for code in packed.about["code"]:
        if code["dirty"] is not False:
            inside = "uncommitted changes, which are inside" if code["dirty"] else "unknown changes"
            lines.append(f"{counted(code['units'], 'unit')} made with {inside}")
    lines.append(
        "anyone who opens it reads its logs, with names of machines and folders, and with any key or "
        "token that was printed there: look before you publish"
    )
    lines.append(f"anyone opens it with: trb open {shlex.quote(output.name)}")
    return lines


def as_opened(study: Study) -> Study:
    """The study as `trb` names it beside an opened pack, so that a table's advice is the same."""
    return replace(
        study,
        invocation=Invocation((f"{study.experiment.name}/{RESULTS}/{study.experiment.name}",)),
    )


def write_pack(study: Study, output: Path, tables: Mapping[str, str], texts: bool) -> Packed:
    """Write the pack of a finished and undamaged study to `output`, whole or not at all.

    `tables` are the files of the table by name, `texts` whether those of responses go along.
    """
    runs, weights, others = _run_files(study, texts)
    contents: dict[str, Path | bytes] = {**runs, **_made_models(study)}
    name = study.experiment.name
    folder = f"{RESULTS}/{name}"
    # The resolved experiment. A reader's machine has a data folder of its own.
    digests = {"digest": content_digest(study.experiment), "runs": runs_digest(study)}
    experiment = resolved_text(replace(study.experiment, data_dir=None), digests)
    contents[f"{folder}/{RECORD}"] = experiment.encode()
    contents[f"{folder}/{SUBMITS}"] = _submits_text(study).encode()
    if (points := results_of(name, study.runs) / ASKED).exists():
        contents[f"{folder}/{ASKED}"] = points
    for file, text in tables.items():
        contents[f"{folder}/{file}"] = text.encode()
    about = {
        "name": name,
        "experiment": yaml.safe_load(experiment),
        "code": [asdict(state) for state in code_states(study)],
        "models": _models(study),
        "table": json.loads(tables["table.json"]),
        "left_out": {"weights": _amount(weights), "others": _amount(others), "texts": not texts},
    }
    contents[MANIFEST] = pretty(about).encode()
    contents[README] = _readme(name, about["table"]).encode()
    scratch = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        with scratch.open("wb") as stream:
            size = _write_members(stream, name, contents)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(scratch, output)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    sync(output.absolute().parent)
    return Packed(len(contents) + 1, size, about)


def _write_members(
    stream: io.BufferedIOBase, top: str, contents: Mapping[str, Path | bytes]
) -> int:
    """Write the members below the folder `top`, and their sums last; their bytes when unpacked.

    Each file is read once, so that its sha256 is that of the bytes in the pack.
    """
    size = 0
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):

        def add(name: str, data: bytes) -> None:
            info = tarfile.TarInfo(f"{top}/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))

        sums = []
        for name, content in sorted(contents.items()):
            data = content.read_bytes() if isinstance(content, Path) else content
            add(name, data)
            sums.append(f"{hashlib.sha256(data).hexdigest()}  {name}\n")
            size += len(data)
        text = "".join(sums).encode()
        add(SUMS, text)
    return size + len(text)


# --- what goes into it ---


def _run_files(study: Study, texts: bool) -> tuple[dict[str, Path], list[Path], list[Path]]:
    """Member name → path of the files of run directories; and those of weights, and others, that
    stay.
    """
    packed, weights, others = {}, [], []
    for unit_id in _unit_ids(study):
        for path in sorted((study.runs / unit_id).rglob("*")):
            inside = path.relative_to(study.runs / unit_id)
            wanted = path.name == DONE or path.name.endswith(SUFFIXES)
            if path.name.endswith(TEXTS) and not texts:
                wanted = False
            if not path.is_file():
                continue
            if inside.parts[0] == CHECKPOINTS:
                weights.append(path)
            elif not wanted or any(part.startswith(".") for part in inside.parts):
                others.append(path)
            else:
                packed[f"{unit_id}/{inside}"] = path
    return packed, weights, others


def _readme(name: str, table: Mapping[str, Any]) -> str:
    """The text of a pack's README, which is Markdown, in which nothing is escaped."""
    environment = Environment(
        loader=PackageLoader("orchestrator.commands", "."),
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    template = environment.get_template("pack_readme.jinja")
    known = {"caveats": table["caveats"], "benchmarks": table["benchmarks"]}
    return template.render(known, name=name) + "\n"


def _made_models(study: Study) -> dict[str, Path]:
    """Member name → path of the sha256 of each model that a recipe made."""
    packed = {}
    for setup in study.experiment.setups.values():
        for role in ROLES:
            model = getattr(setup, role)
            if model.recipe is not None:
                made = record_path(folder_of(model, setup, study.runs))
                if made.is_file():
                    packed[f"models/{made.name}"] = made
    return packed


def _amount(paths: Sequence[Path]) -> dict[str, int]:
    return {"files": len(paths), "size": sum(path.stat().st_size for path in paths)}


def _unit_ids(study: Study) -> list[str]:
    """Ids of the units, and of the probes that were taken."""
    ids = [unit.id for unit in study.units]
    for setup in study.experiment.setups:
        with suppress(UserError):  # the experiment has no budget to probe
            probe = probe_unit(study.experiment, setup, study.runs)
            if study.reader(probe).trained:
                ids.append(probe.id)
    return ids


def _submits_text(study: Study) -> str:
    """The noted submits, without the names of the user and the machine."""
    lines = []
    for line in submits(results_of(study.experiment.name, study.runs)):
        lines.append(json.dumps(line | {"user": "", "host": ""}, ensure_ascii=False) + "\n")
    return "".join(lines)


# --- what they are of ---


def _models(study: Study) -> dict[str, dict[str, Any]]:
    """Setup → role → the values that fix the model: sha256 of its weights, or its revision."""
    found: dict[str, dict[str, Any]] = {}
    for unit in study.units:
        for role in ROLES:
            if role in unit.identity:
                found.setdefault(unit.setup, {})[role] = unit.identity[role]
    return found
