"""Finds the experiments and setups that come with the program, and the user's own by name."""

from __future__ import annotations

from pathlib import Path

from orchestrator.config import Name
from orchestrator.errors import UserError, did_you_mean, refuse
from orchestrator.experiment.resolved import RECORD
from orchestrator.experiment.strict import build
from orchestrator.models.locate import EXPERIMENTS

SETUPS = EXPERIMENTS / "setups"


def find_experiment(path: Path) -> Path:
    """`path` if it is a file, the file in a results folder, else a shipped experiment's file.

    Raises UserError, with the names of the shipped ones, if it is none of these.
    """
    if path.exists() and not path.is_dir():
        return path
    if (path / RECORD).is_file():
        return path / RECORD
    shipped = {file.stem: file for file in sorted(EXPERIMENTS.glob("*.yaml"))}
    name = path.name.removesuffix(".yaml")
    if path.parent == Path() and name in shipped:
        return shipped[name]
    if path.is_dir():
        raise UserError(
            f"{path}: a folder without {RECORD}: expected a file, a results folder, or one of {', '.join(shipped)}"
        )
    others = [
        file for file in path.parent.glob(f"{path.stem}.*") if file.suffix in (".yaml", ".yml")
    ]
    if others:
        raise refuse("EXP.yaml", str(path), f"a file that exists (did you mean {others[0]}?)")
    first, *rest = str(path).split(" ")
    if rest and names_experiment(first):
        raise UserError(
            f"{path}: no such file: expected {first}, with each override as a word of its own"
        )
    raise UserError(
        f"{path}: no such file: expected a file, or one of {', '.join(shipped)}{did_you_mean(name, [*shipped])}"
    )


def names_experiment(word: str) -> bool:
    """Whether a word means an experiment: a YAML file, a results folder, or a shipped one's name."""
    path = Path(word)
    is_shipped = (
        path.parent == Path()
        and (EXPERIMENTS / f"{path.name.removesuffix('.yaml')}.yaml").is_file()
    )
    return word.endswith((".yaml", ".yml")) or (path / RECORD).is_file() or is_shipped


def known_setups(beside: Path | None = None) -> list[str]:
    """Names of the usable setups: those beside the experiment file, and the shipped ones."""
    names: set[str] = set()
    for folder in _setup_folders(beside):
        for path in folder.glob("*.yaml"):
            names.add(path.stem)
    return sorted(names)


def _setup_folders(beside: Path | None) -> list[Path]:
    """The folders of setups, the user's own first."""
    return [beside.resolve().parent / "setups", SETUPS] if beside else [SETUPS]


def setup_path(name: str, beside: Path | None) -> Path:
    """The file of a setup. UserError, with the known names, if none has that name."""
    build(Name, name, "setups")
    for folder in _setup_folders(beside):
        if (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    known = known_setups(beside)
    raise refuse("setups", name, f"one of {', '.join(known)}{did_you_mean(name, known)}")
