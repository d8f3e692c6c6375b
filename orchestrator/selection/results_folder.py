"""Chooses the folder of an experiment's results, one for all edits that change no number.

`runs/results/<name>/experiment.yaml` holds the resolved experiment and a digest of all settings
that its rows and numbers depend on. If `<name>` belongs to another digest, or overrides change the
numbers, the folder is `<name>-<digest>`. `submits.jsonl` beside it has a line for each submit that
had work to run: user, time, command and code.
"""

from __future__ import annotations

import getpass
import json
import os
import platform
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestrator.config import Evaluation, Experiment, Search, Setup
from orchestrator.errors import UserError, refuse
from orchestrator.experiment.load import RECORD, RESULTS, resolved_text
from orchestrator.experiment.reading import from_here
from orchestrator.models.identity import digest
from orchestrator.pair import Shape
from orchestrator.records.files import write_atomically, write_once
from orchestrator.records.provenance import version_line
from orchestrator.selection.study import Study

SUBMITS = "submits.jsonl"
ASKED = "asked.json"  # setup → method → points of a search that asks by scores
SUBMIT_KEYS = ("at", "command", "user", "host", "version")
# Overrides that change neither a row nor a number, and the keys of setups among them.
NEUTRAL = ("runtime.", "data_dir=", "name=", "evaluation.keep_texts=", "caveat=")
UNCOUNTED = {(Evaluation, "keep_texts"), (Shape, "parameters"), (Setup, "caveat")}
PICTURES = (".png", ".pdf")


def content_digest(experiment: Experiment) -> str:
    """8 hex digits over setups, methods and all seeds.

    Values equal to their default do not count, so that keys of later versions keep the digest.
    """
    counted: list[Any] = [
        experiment.setups,
        experiment.methods,
        experiment.seeds,
        experiment.method_seeds,
    ]
    if experiment.points:
        counted.append(experiment.points)
    if experiment.search != Search():
        counted.append(experiment.search)
    if experiment.confirm.seeds:
        counted.append(experiment.confirm)
    return digest([_differences(part) for part in counted])


def runs_digest(study: Study) -> str:
    """8 hex digits over the ids of the units and evaluations."""
    ids: list[Any] = [sorted(unit.id for unit in study.units)]
    for name in study.experiment.setups:
        ids.append(study.evaluation_ids(name))
    return digest(ids)


def settled_name(experiment: Experiment, overrides: Sequence[str], runs: Path) -> str:
    """The name of the results folder: `<name>`, or `<name>-<digest>` if that is another's.

    An experiment whose overrides change numbers takes the longer name from the start: the plain
    name belongs to the file without overrides.
    """
    own = content_digest(experiment)
    longer = f"{experiment.name}-{own}"
    for name in (experiment.name, longer):
        if _recorded(folder_of(name, runs), "digest") == own:
            return name
    plain = all(word.startswith(NEUTRAL) for word in overrides)
    return experiment.name if plain and _is_free(folder_of(experiment.name, runs)) else longer


def folder_of(name: str, runs: Path) -> Path:
    """Path of the results folder with that name."""
    return runs / RESULTS / name


def results_folders(runs: Path) -> list[Path]:
    """The results folders in a runs folder, by name."""
    return sorted(record.parent for record in (runs / RESULTS).glob(f"*/{RECORD}"))


def only_results(runs: Path) -> Path:
    """The one results folder in a runs folder, for commands to which no experiment was given.

    UserError if the runs folder is missing, and with the names of several results folders.
    """
    if not runs.is_dir():
        raise refuse("--runs", from_here(runs), "a folder with runs, or an EXP to look at")
    folders = results_folders(runs)
    if not folders:
        expected = f"an experiment, since {from_here(runs)} has no results"
        raise UserError(f"EXP.yaml: missing: expected {expected}")
    if len(folders) > 1:
        names = ", ".join(from_here(folder) for folder in folders)
        raise UserError(f"EXP.yaml: missing: expected one of {names}")
    return folders[0]


def claim(study: Study) -> Path:
    """Make the experiment's results folder, record it as its own, and return it.

    The folder holds no figures or pages of other runs: if the ids of units or evaluations differ
    from the recorded ones, as with models made anew on another machine, older pictures are removed.
    The record is written at first and in this case only, so that commands with another runtime or
    another working folder leave it alone.
    """
    own = content_digest(study.experiment)
    for name in (study.experiment.name, f"{study.experiment.name}-{own}"):
        folder = folder_of(name, study.runs)
        folder.mkdir(parents=True, exist_ok=True)
        if _is_free(folder):
            write_once(folder / RECORD, f"digest: {own}\n")
        if _recorded(folder, "digest") == own:
            break
    runs = runs_digest(study)
    if _recorded(folder, "runs") != runs:
        for path in _pictures(folder, study.experiment):
            path.unlink()
        experiment = replace(study.experiment, name=folder.name)
        write_atomically(folder / RECORD, resolved_text(experiment, {"digest": own, "runs": runs}))
    return folder


def note_submit(study: Study) -> None:
    """Add a line on this submit to the results folder: time, command, user, machine and code."""
    line = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": study.invocation.command("submit"),
        "user": _user(),
        "host": platform.node(),
        "version": version_line(),
    }
    with (claim(study) / SUBMITS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _user() -> str:
    """Name of the user, or the user's number if a container has no name for it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return str(os.getuid())


def submits(folder: Path) -> list[dict[str, str]]:
    """The lines that `note_submit` wrote to a results folder, in order.

    Leaves out lines that a kill tore, or that another program wrote.
    """
    try:
        lines = (folder / SUBMITS).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    complete: list[dict[str, str]] = []
    for line in lines:
        try:
            values = json.loads(line)
        except ValueError:
            continue
        if not isinstance(values, dict):
            continue
        if all(isinstance(values.get(key), str) for key in SUBMIT_KEYS):
            complete.append(values)
    return complete


def _differences(value: Any) -> Any:
    """Map a configuration object to its values that differ from the default."""
    if is_dataclass(value) and not isinstance(value, type):
        default = type(value)()
        changed: dict[str, Any] = {}
        for field in fields(value):
            own = getattr(value, field.name)
            counts = (type(value), field.name) not in UNCOUNTED
            if counts and own != getattr(default, field.name):
                changed[field.name] = _differences(own)
        return changed
    if isinstance(value, dict):
        return {key: _differences(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_differences(item) for item in value]
    return value


def _recorded(folder: Path, key: str) -> str | None:
    """A digest in a folder's record; None without such a line."""
    try:
        text = (folder / RECORD).read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    found = re.search(rf"^{key}: '?([0-9a-f]{{8}})'?$", text, re.MULTILINE)
    return found[1] if found else None


def _is_free(folder: Path) -> bool:
    """Whether the folder is missing or holds no visible file."""
    if not folder.exists():
        return True
    return folder.is_dir() and all(path.name.startswith(".") for path in folder.iterdir())


def _pictures(folder: Path, experiment: Experiment) -> Iterator[Path]:
    """The page, and the figures of the experiment's setups."""
    endings = tuple(f"-{setup}" for setup in experiment.setups)
    # A list, since the caller removes files of the folder meanwhile.
    for path in list(folder.iterdir()):
        is_figure = path.suffix in PICTURES and path.stem.endswith(endings)
        if is_figure or path.name == "report.html":
            yield path
