"""A figure with its caption and its files, and the words on the seeds behind its lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from analysis.facts.curves import Series, SetupRuns, problem_margin
from analysis.figures.panels import WIDTH, styled
from orchestrator.experiment.methods import PROPOSED, REFERENCE
from orchestrator.records.files import write_atomically

COMPARED = (REFERENCE, PROPOSED)
NOT_PROBED = "no continuation probe has been completed; `trb probe continuation` runs it"


@dataclass(frozen=True)
class Caption:
    """The words of a figure; `kind` begins the names of its files.

    `alt` names the form of the picture for readers who do not see it, `shows` says how to read it,
    and `hides` warns of wrong conclusions.
    """

    kind: str
    title: str
    alt: str
    shows: str
    hides: str


@dataclass(frozen=True)
class Picture:
    """A figure of one setup or experiment, its `subject`, or the reason why it is `missing`.

    `drawing` holds the numbers and draws them, `width` inches wide, when `figure` is first read.
    `basis` says in a sentence how many seeds the figure rests on, and what its bars and bands are.
    """

    caption: Caption
    subject: str
    drawing: partial[Figure] | None = None
    basis: str = ""
    missing: str = ""
    width: float = WIDTH

    @property
    def name(self) -> str:
        """The name of its files."""
        return f"{self.caption.kind}-{self.subject}"

    @cached_property
    def figure(self) -> Figure | None:
        """The drawn figure; None where it is missing."""
        return None if self.drawing is None else self.drawing(width=self.width)


def scores_basis(data: SetupRuns, lines: Sequence[Series]) -> str:
    """Say how many seeds the lines of scores rest on, and how far a single seed may be off."""
    counts = sorted({line.seeds for line in lines} - {0})
    if not counts:
        return ""
    if counts[-1] > 1:
        seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        return f"Means over {seeds} seeds; bands: ±1 standard deviation over seeds."
    margin = 0.0  # the widest of all lines
    for selected in data.chosen:
        best = selected.best
        if any((line.method, line.knobs) == (best.method, best.knobs) for line in lines):
            margin = max(margin, problem_margin(selected.best) or 0.0)
    text = "One seed each: another one moves a line by several points."
    return f"{text} 95 % over problems: up to ±{100 * margin:.1f} points." if margin else text


# --- files: the same numbers give the same bytes ---

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
