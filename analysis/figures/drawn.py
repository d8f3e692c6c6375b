"""Figures that were drawn before: one is drawn anew only where its numbers, the program or a library has changed.

Drawing is most of what a report costs. `runs/.index/figures/` keeps each figure of an experiment as it was drawn last,
with the digest of all that it depends on; as everything there it may be removed at any time.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import ft2font

from analysis.figures.output import to_bytes
from analysis.figures.picture import Picture
from analysis.figures.style import styled
from orchestrator.records.files import Damaged, sealed_lines, unsealed_lines, write_atomically
from orchestrator.records.index import FOLDER
from orchestrator.selection.study import Study

PROGRAM = ("analysis", "orchestrator")  # packages whose code a figure may depend on


def svg(study: Study, picture: Picture) -> bytes:
    """A picture that has a figure as SVG: as it was drawn before, or drawn now and kept."""
    assert picture.drawing is not None
    path = study.runs / FOLDER / "figures" / study.experiment.name / f"{picture.name}-{picture.width:g}in.svg"
    drawing = picture.drawing
    key = _digest((drawing.func.__module__, drawing.args, drawing.keywords, picture.width, _made_with()))
    with suppress(OSError, Damaged):
        known, _, kept = unsealed_lines(path.read_bytes(), path, "remove it").partition(b"\n")
        if known == key.encode():
            return kept
    assert picture.figure is not None
    drawn = to_bytes(picture.figure, "svg")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, sealed_lines(f"{key}\n{drawn.decode()}"), shared=True, durable=False)
    return drawn


@cache
def _made_with() -> tuple[Any, ...]:
    """All that a figure depends on beside its numbers: versions, settings of matplotlib, the program's own code."""
    code = hashlib.sha256()
    root = Path(__file__).resolve().parents[2]
    for package in PROGRAM:
        for path in sorted((root / package).rglob("*.py")):
            code.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    versions = platform.python_version(), np.__version__, matplotlib.__version__, ft2font.__freetype_version__
    with styled():
        # To ask for the backend would choose one, and what is drawn into a file needs none.
        names: list[Any] = [name for name in matplotlib.rcParams if not name.startswith("backend")]
        settings = {name: repr(matplotlib.rcParams[name]) for name in names}
    return *versions, settings, code.hexdigest()


def _digest(value: Any) -> str:
    """sha256 of plain values: the same for equal ones, wherever they came from."""
    digest = hashlib.sha256()
    _feed(digest, value)
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    """Add a value with its kind and length, so that no two different ones look the same."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str | Fraction):
        text = f"{type(value).__name__} {value!r}"
        digest.update(f"{len(text)} {text}".encode())
        return
    if isinstance(value, np.ndarray):
        digest.update(f"array {value.dtype} {value.shape} ".encode() + value.tobytes())
        return
    if is_dataclass(value) and not isinstance(value, type):
        parts = [(field.name, getattr(value, field.name)) for field in fields(value)]
    elif isinstance(value, Mapping):
        parts = list(value.items())  # in their order, which is that of what is drawn
    else:
        assert isinstance(value, list | tuple | range), f"{type(value)} has no digest yet"
        parts = list(value)
    digest.update(f"{type(value).__name__} of {len(parts)} ".encode())
    for part in parts:
        _feed(digest, part)
