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
# None leaves out the entries with the time and the version of a file's writer.
_METADATA: dict[Format, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
}


def to_bytes(figure: Figure, kind: Format) -> bytes:
    """The figure as PNG, PDF or SVG; text in an SVG is outlines and needs no fonts.

    The layout is made once, before the first file. Another layout would start from this one and
    move texts by up to 0.002 inches, so bytes would depend on the files that were written before.
    It would also take half of the time of drawing.
    """
    out = BytesIO()
    with styled():
        engine = figure.get_layout_engine()
        if isinstance(engine, ConstrainedLayoutEngine):
            engine.execute(figure)
            # With "none" in place of None, matplotlib would draw once more before it saves.
            figure.set_layout_engine(None)
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
