"""Chooses the folder of an experiment's results: one folder for one experiment, however it is
edited or overridden.

`runs/results/<name>/experiment.yaml` holds the resolved experiment and a digest of all settings
that rows and numbers rest on. If `<name>` belongs to another digest, or overrides change the
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

from orchestrator.config import Evaluation, Experiment
from orchestrator.experiment.resolved import RECORD, RESULTS, resolved_text
from orchestrator.models.identity import digest
from orchestrator.records.files import write_atomically, write_once
from orchestrator.records.provenance import version_line
from orchestrator.selection.study import Study

SUBMITS = "submits.jsonl"
SUBMIT_KEYS = ("at", "command", "user", "host", "version")
# Overrides that change neither a row nor a number, and the keys of setups among them.
NEUTRAL = ("runtime.", "data_dir=", "name=", "evaluation.keep_texts=")
UNCOUNTED = {(Evaluation, "keep_texts")}
PICTURES = (".png", ".pdf")


def content_digest(experiment: Experiment) -> str:
    """8 hex digits over setups, methods and all seeds. Defaults do not count, so later keys keep
    the digest.
    """
    counted: list[Any] = [
        experiment.setups,
        experiment.methods,
        experiment.seeds,
        experiment.method_seeds,
    ]
    if experiment.confirm.seeds:
        counted.append(experiment.confirm)
    return digest([_differences(part) for part in counted])


def settled_name(experiment: Experiment, overrides: Sequence[str], runs: Path) -> str:
    """The name of the results folder, until other results are written: `<name>` or
    `<name>-<digest>`.
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


def claim(study: Study) -> Path:
    """Make the experiment's results folder, record it as its own, and return it.

    The folder holds no figures or pages of other runs. If the ids of units or evaluations differ
    from the recorded ones, as with models made anew on another machine, the pictures of the others
    are removed. Only then, and at first, is the record written: later looks, with another runtime
    or from another folder, leave it alone.
    """
    own = content_digest(study.experiment)
    for name in (study.experiment.name, f"{study.experiment.name}-{own}"):
        folder = folder_of(name, study.runs)
        folder.mkdir(parents=True, exist_ok=True)
        if _is_free(folder):
            write_once(folder / RECORD, f"digest: {own}\n")
        if _recorded(folder, "digest") == own:
            break
    of = digest(
        [
            sorted(unit.id for unit in study.units),
            *(study.evaluation_ids(name) for name in study.experiment.setups),
        ]
    )
    if _recorded(folder, "runs") != of:
        for path in _pictures(folder, study.experiment):
            path.unlink()
        experiment = replace(study.experiment, name=folder.name)
        write_atomically(folder / RECORD, resolved_text(experiment, {"digest": own, "runs": of}))
    return folder


def note_submit(study: Study) -> None:
    """Add a line on this submit to the experiment's results folder: command, time, user, machine
    and code.
    """
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
    """The lines that `note_submit` wrote to a results folder, in order; torn or foreign lines are
    left out.
    """
    try:
        lines = (folder / SUBMITS).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            values = json.loads(line)
        except ValueError:
            continue
        if isinstance(values, dict) and all(
            isinstance(values.get(key), str) for key in SUBMIT_KEYS
        ):
            found.append(values)
    return found


def _differences(value: Any) -> Any:
    """Map a configuration object to its values that differ from the default."""
    if is_dataclass(value) and not isinstance(value, type):
        default = type(value)()
        names = [field.name for field in fields(value)]
        return {
            name: _differences(getattr(value, name))
            for name in names
            if _is_set(value, default, name)
        }
    if isinstance(value, dict):
        return {key: _differences(own) for key, own in value.items()}
    return [_differences(own) for own in value] if isinstance(value, list) else value


def _is_set(value: Any, default: Any, name: str) -> bool:
    return (type(value), name) not in UNCOUNTED and getattr(value, name) != getattr(default, name)


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
    return not folder.exists() or (
        folder.is_dir() and not any(not p.name.startswith(".") for p in folder.iterdir())
    )


def _pictures(folder: Path, experiment: Experiment) -> Iterator[Path]:
    """The page, and the figures of the experiment's setups."""
    for path in list(folder.iterdir()):
        figure = path.suffix in PICTURES and any(
            path.stem.endswith(f"-{setup}") for setup in experiment.setups
        )
        if figure or path.name == "report.html":
            yield path
