"""A table of texts, and its writers: for a terminal, as lines of text, in Markdown and as CSV."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from io import StringIO
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import rich.table
    from rich.text import Text

Mark = Literal["best", "second", "total", "faint", "good", "active", "bad", "warning"]
MARK_STYLES: Mapping[Mark | None, str] = {
    "best": "bold",
    "second": "underline",
    "total": "bold",
    "faint": "dim",
    "good": "green",
    "active": "cyan",
    "bad": "red",
    "warning": "yellow",
    None: "",
}
MARKDOWN_MARKS: Mapping[Mark | None, str] = {"best": "**%s**", "second": "<u>%s</u>"}
GAP = 2  # blanks between columns


@dataclass(frozen=True)
class Cell:
    """A text, empty where it is missing, with the exact value behind it and its mark, such as its
    rank in a column.

    `reach` is that of the value's interval: `56.4` and `2.9` are shown as `56.4 ±2.9`.
    """

    text: str
    value: Fraction | None = None
    mark: Mark | None = None
    reach: str = ""

    @property
    def plain(self) -> str:
        """The text with its reach, without marks."""
        return f"{self.text} ±{self.reach}" if self.reach else self.text

    def marked(self, marks: Mapping[Mark | None, str], reach: str = " ±%s") -> str:
        """The text within its mark and then the reach; `marks` and `reach` have `%s` where these
        belong.
        """
        text = marks.get(self.mark, "%s") % self.text
        return text + reach % self.reach if self.reach else text

    def rich(self) -> Text:
        """The text in its style, the reach dimmed."""
        from rich.text import Text

        return Text.assemble(
            (self.text, MARK_STYLES[self.mark]), (self.plain[len(self.text) :], "dim")
        )


@dataclass(frozen=True)
class Sheet:
    """Headings, and rows with a cell for each of them.

    The columns at the places in `left` hold texts and are set left, the others hold numbers and are
    set right.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    left: Collection[int] = (0,)

    @staticmethod
    def of(
        headings: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[int] = (0,)
    ) -> Sheet:
        """A sheet of plain texts."""
        return Sheet(headings, [[Cell(text) for text in row] for row in rows], left)

    def only(self, places: Sequence[int]) -> Sheet:
        """The columns at these places."""
        rows = [[row[place] for place in places] for row in self.rows]
        left = [index for index, place in enumerate(places) if place in self.left]
        return Sheet([self.headings[place] for place in places], rows, left)

    def widths(self) -> list[int]:
        """Characters of each column."""
        widths = [len(heading) for heading in self.headings]
        for row in self.rows:
            widths = [max(width, len(cell.plain)) for width, cell in zip(widths, row, strict=True)]
        return widths

    def width(self) -> int:
        """Characters of a line."""
        widths = self.widths()
        return sum(widths) + GAP * (len(widths) - 1)


def to_lines(sheet: Sheet) -> Iterator[Text]:
    """Lines as wide as the cells are: the headings, a rule and the rows."""
    from rich.text import Text

    widths = sheet.widths()
    rows = [map(Cell, sheet.headings), (Cell("─" * width) for width in widths), *sheet.rows]
    for row in rows:
        line = Text()
        for place, (cell, width) in enumerate(zip(row, widths, strict=True)):
            blank = " " * (width - len(cell.plain))
            line.append(" " * GAP if place else "")
            line.append("" if place in sheet.left else blank)
            line.append_text(cell.rich())
            line.append(blank if place in sheet.left else "")
        line.rstrip()
        yield line


def to_rich(
    sheet: Sheet,
    unbroken: Collection[int] = (),
    widths: Iterable[int | None] = (),
    **options: Any,
) -> rich.table.Table:
    """A table for rich to print, without rules unless the `options` of rich's table ask for them.

    A narrow terminal breaks the cells at blanks, or within words that are too long; it never drops
    a character. The columns at the places in `unbroken` keep their lines. Columns are as wide as
    their cells, or have the given `widths`.
    """
    from rich.table import Table

    plain = {"box": None, "pad_edge": False, "padding": (0, GAP, 0, 0), "title_justify": "left"}
    table = Table(**plain | options)
    for place, (heading, width) in enumerate(itertools.zip_longest(sheet.headings, widths)):
        side = "left" if place in sheet.left else "right"
        table.add_column(
            heading, justify=side, width=width, overflow="fold", no_wrap=place in unbroken
        )
    for row in sheet.rows:
        table.add_row(*(cell.rich() for cell in row))
    return table


def to_markdown(
    sheet: Sheet, escapes: Mapping[int, str] | None = None, aligned: bool = False
) -> list[str]:
    """Lines of a GitHub table; `escapes` is for `str.translate`, and columns of an `aligned` one
    have one width.
    """
    texts = [list(sheet.headings)]
    for row in sheet.rows:
        texts.append([cell.marked(MARKDOWN_MARKS) for cell in escaped(row, escapes or {})])
    widths = [max(3, *map(len, column)) if aligned else 0 for column in zip(*texts, strict=True)]
    rule = []
    for place, width in enumerate(widths):
        rule.append(
            "-" * (width or 3) if place in sheet.left else "-" * (width - 1 if width else 3) + ":"
        )
    lines = []
    for row in (texts[0], rule, *texts[1:]):
        padded = []
        for place, (text, width) in enumerate(zip(row, widths, strict=True)):
            padded.append(text.ljust(width) if place in sheet.left else text.rjust(width))
        lines.append(f"| {' | '.join(padded)} |")
    return lines


def escaped(row: Iterable[Cell], escapes: Mapping[int, str]) -> list[Cell]:
    """The cells as another language reads them; `escapes` is for `str.translate`."""
    cells = []
    for cell in row:
        cells.append(
            Cell(cell.text.translate(escapes), cell.value, cell.mark, cell.reach.translate(escapes))
        )
    return cells


def to_csv(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Comma-separated values; None is an empty cell."""
    out = StringIO()
    csv.writer(out, lineterminator="\n").writerows([headings, *rows])
    return out.getvalue()
