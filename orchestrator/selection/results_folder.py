"""Which folder holds the results of an experiment: one folder, one experiment, whatever else is edited or overridden.

`runs/results/<name>/experiment.yaml` holds the resolved experiment and the digest of all in it that rows and numbers
rest on. Where `<name>` belongs to another digest, or overrides ask for other numbers, the folder is `<name>-<digest>`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml

from orchestrator.config import Experiment
from orchestrator.experiment.identity import digest
from orchestrator.records.files import write_atomically
from orchestrator.selection.study import Study

RECORD = "experiment.yaml"
# Overrides that change neither a row nor a number.
NEUTRAL = ("runtime.", "data_dir=", "name=")
DRAWN = (".png", ".pdf")


def content_digest(experiment: Experiment) -> str:
    """8 hex digits over setups, methods and seeds; what is at its default does not count, so that later keys do not."""
    counted = (experiment.setups, experiment.methods, experiment.seeds, experiment.method_seeds)
    return digest([_differences(part) for part in counted])


def settled_name(experiment: Experiment, overrides: Sequence[str], runs: Path) -> str:
    """The name of the results folder, as long as nothing else is written: `<name>` or `<name>-<digest>`."""
    own = content_digest(experiment)
    longer = f"{experiment.name}-{own}"
    for name in (experiment.name, longer):
        if _recorded(folder_of(name, runs), "digest") == own:
            return name
    plain = all(word.startswith(NEUTRAL) for word in overrides)
    return experiment.name if plain and _is_free(folder_of(experiment.name, runs)) else longer


def folder_of(name: str, runs: Path) -> Path:
    """Where the results of that name lie."""
    return runs / "results" / name


def claim(study: Study) -> Path:
    """The folder of the experiment's results, made and recorded as its own.

    It holds no figures or pages of other runs: where the ids of units or evaluations are not those that it was last
    written for, as with models made anew on another machine, what was drawn of the others is removed.
    """
    own = content_digest(study.experiment)
    for name in (study.experiment.name, f"{study.experiment.name}-{own}"):
        folder = folder_of(name, study.runs)
        folder.mkdir(parents=True, exist_ok=True)
        if _is_free(folder):
            _write_first(folder / RECORD, f"digest: {own}\n")
        if _recorded(folder, "digest") == own:
            break
    of = digest(
        [sorted(unit.id for unit in study.units), *(study.evaluation_ids(name) for name in study.experiment.setups)]
    )
    if _recorded(folder, "runs") != of:
        for path in _drawn(folder, study.experiment):
            path.unlink()
    write_atomically(folder / RECORD, _record(study.experiment, own, of))
    return folder


def _record(experiment: Experiment, own: str, of: str) -> str:
    """The resolved experiment as plain YAML."""
    resolved = asdict(experiment)
    command = experiment.command("submit")
    for key in ("arguments", "notes"):
        del resolved[key]
    head = (
        "# The experiment that the files of this folder are of, with every value resolved.\n"
        "# digest: of setups, methods and seeds; runs: of the ids of its units and evaluations.\n"
    )
    document = {"digest": own, "runs": of, "command": command, **resolved}
    return head + yaml.safe_dump(_plain(document), sort_keys=False, allow_unicode=True, width=120)


def _plain(value: Any) -> Any:
    """Tuples as lists, which is all that YAML knows."""
    if isinstance(value, dict):
        return {key: _plain(own) for key, own in value.items()}
    return [_plain(own) for own in value] if isinstance(value, list | tuple) else value


def _differences(value: Any) -> Any:
    """A configuration object as a mapping of what is not at its default."""
    if is_dataclass(value) and not isinstance(value, type):
        default = type(value)()
        names = [field.name for field in fields(value)]
        return {name: _differences(getattr(value, name)) for name in names if _is_set(value, default, name)}
    if isinstance(value, dict):
        return {key: _differences(own) for key, own in value.items()}
    return [_differences(own) for own in value] if isinstance(value, list) else value


def _is_set(value: Any, default: Any, name: str) -> bool:
    return getattr(value, name) != getattr(default, name)


def _recorded(folder: Path, key: str) -> str | None:
    """A digest that a folder's record holds; None where there is no such line."""
    try:
        text = (folder / RECORD).read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    found = re.search(rf"^{key}: '?([0-9a-f]{{8}})'?$", text, re.MULTILINE)
    return found[1] if found else None


def _is_free(folder: Path) -> bool:
    """Whether nothing lies there yet."""
    return not folder.exists() or (folder.is_dir() and not any(not p.name.startswith(".") for p in folder.iterdir()))


def _write_first(path: Path, text: str) -> None:
    """Write a file whole unless somebody else was first."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    scratch.write_text(text, encoding="utf-8")
    try:
        os.link(scratch, path)
    except FileExistsError:
        pass
    finally:
        scratch.unlink()


def _drawn(folder: Path, experiment: Experiment) -> Iterator[Path]:
    """The page, and the figures of the experiment's setups."""
    for path in list(folder.iterdir()):
        figure = path.suffix in DRAWN and any(path.stem.endswith(f"-{setup}") for setup in experiment.setups)
        if figure or path.name == "report.html":
            yield path
