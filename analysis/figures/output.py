"""Figures as files and bytes: the same numbers give the same bytes."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any, Literal

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from analysis.figures.style import styled
from orchestrator.records.files import write_atomically

Format = Literal["png", "pdf", "svg"]
# Nothing that says when or with which version a file was written.
_METADATA: dict[Format, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
}


def to_bytes(figure: Figure, kind: Format) -> bytes:
    """The figure as PNG, PDF or SVG; text in an SVG is outlines, so it looks the same without the
    fonts.
    """
    out = BytesIO()
    with styled():
        _lay_out(figure)
        figure.savefig(out, format=kind, dpi="figure", metadata=_METADATA[kind])
    return out.getvalue()


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write `name`.png and `name`.pdf into an existing folder, each at once."""
    kinds: tuple[Format, ...] = ("png", "pdf")
    paths = []
    for kind in kinds:
        path = folder / f"{name}.{kind}"
        write_atomically(path, to_bytes(figure, kind), durable=False)
        paths.append(path)
    return paths


def _lay_out(figure: Figure) -> None:
    """Place everything for good: a layout starts from the last one, so bytes would depend on what
    was written before.

    One pass is half of what drawing costs; another would move nothing by more than 0.002 inches.
    """
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.execute(figure)
        figure.set_layout_engine(
            None
        )  # with "none" matplotlib would draw once more before it saves
