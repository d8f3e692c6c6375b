"""Figures as files and bytes: the same numbers give the same bytes."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from analysis.figures.style import styled

Format = Literal["png", "pdf", "svg"]
# Nothing that says when or with which version a file was written.
_METADATA: dict[Format, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
}


def to_bytes(figure: Figure, kind: Format) -> bytes:
    """The figure as PNG, PDF or SVG; text in an SVG is outlines, so it looks the same without the fonts."""
    out = BytesIO()
    with styled():
        _lay_out(figure)
        figure.savefig(out, format=kind, dpi="figure", metadata=_METADATA[kind])
    return out.getvalue()


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write `name`.png and `name`.pdf into an existing folder, each at once."""
    kinds: tuple[Format, ...] = ("png", "pdf")
    return [_replace(folder / f"{name}.{kind}", to_bytes(figure, kind)) for kind in kinds]


def _lay_out(figure: Figure) -> None:
    """Place everything for good: a layout starts from the last one, so bytes would depend on what was written before.

    The second pass settles what the first moved.
    """
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.execute(figure)
        engine.execute(figure)
        figure.set_layout_engine("none")


def _replace(path: Path, data: bytes) -> Path:
    scratch = path.with_name(f".{path.name}.tmp")
    scratch.write_bytes(data)
    os.replace(scratch, path)
    return path
