"""The experiments and setups that come with the program, in a checkout and in an installed package."""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrator.errors import UserError, did_you_mean

PACKAGE = Path(__file__).resolve().parents[1]
PACKED = PACKAGE / "shipped"  # only a wheel has this folder: setup.py puts experiments/ there
EXPERIMENTS = PACKED if PACKED.is_dir() else PACKAGE.parent / "experiments"
SETUPS = EXPERIMENTS / "setups"


def find_experiment(path: Path) -> Path:
    """`path` if it is there; else the shipped experiment that it names, with or without `.yaml`, said on stderr.

    Raises UserError, with what is shipped, if it is neither.
    """
    if path.exists() and not path.is_dir():
        return path
    shipped = {file.stem: file for file in sorted(EXPERIMENTS.glob("*.yaml"))}
    name = path.name.removesuffix(".yaml")
    if path.parent == Path() and name in shipped:
        print(f"trb: no file {path} here: the shipped {shipped[name]}", file=sys.stderr)
        return shipped[name]
    if path.is_dir():
        return path  # reading it says that it is no file
    raise UserError(f"{path}: no such file — a file, or one of {', '.join(shipped)}{did_you_mean(name, [*shipped])}")
