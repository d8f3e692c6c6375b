"""The results table on a terminal, or in a pipe, of any width.

No character of a number or a setting is ever dropped: what does not fit beside the others stands on a line of its own,
and lines break at blanks only.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.scores.evidence import RowEvidence
from analysis.table.captions import brief_intervals, explanation
from analysis.table.evidence_formats import (
    CONFIRMED,
    CONFIRMED_TITLE,
    GAP,
    LEAD,
    LIMITS,
    METHOD,
    OF,
    SCORE,
    SEEDS,
    SETTING,
    STEP,
    P,
    by_setup,
    confirmed_by_setup,
    confirmed_text_rows,
    text_rows,
)
from analysis.table.model import Row, Table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

STYLES = {"best": "bold", "second": "underline", None: ""}
WIDE = 96  # columns from which on a setting has room beside the numbers
GAP_WIDTH = 2  # blanks between columns
LEAST = 24  # no terminal is taken to be narrower
ABOVE = (
    METHOD,
    SCORE,
    CONFIRMED,
    GAP,
    P,
    LEAD,
    OF,
    SEEDS,
    STEP,
)  # columns of the narrow form; the others follow on a line below
NAMES = {LIMITS: "interval", GAP: GAP}  # what columns are called there, the others by their headings in small letters


def to_rich(table: Table, brief: bool = False) -> TerminalTable:
    """A table for rich to print; a `brief` one has scores and verdict, without the evidence and the advice."""
    return TerminalTable(table, brief)


@dataclass(frozen=True)
class TerminalTable:
    """A table for each setup: best bold, second underlined, an empty cell where a number is missing.

    The reach of the intervals stands dimmed beside the scores. Then what the averages rest on, the notes and the
    verdict.
    """

    table: Table
    brief: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        return self.lines(max(LEAST, options.max_width))

    def lines(self, width: int) -> Iterator[Text]:
        """Lines of at most `width` columns, unless a single word is longer; a command stands on one line."""
        from rich.text import Text

        table = self.table
        setups: dict[str, list[int]] = {}  # the places of each one's columns
        for place, column in enumerate(table.columns):
            setups.setdefault(column.setup, []).append(place)
        for setup, places in setups.items():
            if len(setups) > 1:
                yield Text()
                yield Text(table.title(setup), "bold")
            yield from _scores(table, places, width)
        for setup, rows in by_setup(table.evidence) if table.evidence and not self.brief else ():
            yield Text()
            if len(setups) > 1:
                yield Text(table.title(setup), "bold")
            yield from _evidence(rows, width)
        for setup, rows in confirmed_by_setup(table.evidence) if table.evidence else ():
            yield Text()
            yield Text(f"{CONFIRMED_TITLE}{f', {table.title(setup)}' if len(setups) > 1 else ''}", "bold")
            headings, texts = confirmed_text_rows(rows)
            yield from _in_width(
                headings, texts, [{name: _plain(text) for name, text in row.items()} for row in texts], width
            )
        captions = explanation(table.evidence) if table.evidence else []
        if table.evidence and self.brief:
            captions = brief_intervals(table.evidence)
        for style, texts in (("dim", captions), ("", table.notes), ("bold", table.verdict.sentences)):
            if texts and not (self.brief and captions and texts is table.notes):
                yield Text()
            for text in texts:
                yield from (Text(line, style) for line in _wrapped(text, width))
        if table.verdict.advice is not None and not self.brief:
            yield from (Text(line) for line in _wrapped(table.verdict.advice.reason, width))
            # One line, however long, so that it can be pasted.
            yield Text(table.verdict.advice.command, no_wrap=True, overflow="ignore")


def _scores(table: Table, places: Sequence[int], width: int) -> Iterator[Text]:
    """Scores with their reach, without it where it does not fit, in several blocks where a row does not fit at all."""
    labels = [_plain(row.label) for row in table.rows]
    headings = [_plain(table.columns[place].label) for place in places]
    room = width - max(map(len, [METHOD, *labels]))  # beside the names of the methods
    for margins in (True, False):
        cells = []
        for row in table.rows:
            cells.append([_cell(table, row, place, margins) for place in places])
        if _block(headings, cells, 0, len(headings)) <= room:
            break
    # As many columns as fit stand in a block, one at least; the next block begins with the names again.
    start = 0
    while start < len(headings):
        end = start + 1
        while end < len(headings) and _block(headings, cells, start, end + 1) <= room:
            end += 1
        rows = [[label, *row[start:end]] for label, row in zip(labels, cells, strict=True)]
        yield from _aligned([_plain(METHOD), *headings[start:end]], rows, left={0})
        start = end


def _evidence(rows: Sequence[RowEvidence], width: int) -> Iterator[Text]:
    """One line for each row where there is room for all, else the first numbers and below them what did not fit."""
    headings, texts = text_rows(rows)
    cells = []
    for row, known in zip(texts, rows, strict=True):
        of_row = {name: _plain(text) for name, text in row.items()}
        gap = next(iter(known.columns.values())).difference
        if gap is not None and gap.estimate.over == "problems":
            of_row[LIMITS].stylize("dim")
        cells.append(of_row)
    yield from _in_width(headings, texts, cells, width)


def _in_width(
    headings: Sequence[str], texts: Sequence[Mapping[str, str]], cells: Sequence[Mapping[str, Text]], width: int
) -> Iterator[Text]:
    """Rows in one line each where there is room, else their first numbers and below them what did not fit."""
    if width >= WIDE and _needed(headings, _columns(cells, headings)) <= width:
        yield from _columns_aligned(headings, cells)
        return
    above = [name for name in headings if name in ABOVE or (name == SETTING and width >= WIDE)]
    while len(above) > 2 and _needed(above, _columns(cells, above)) > width:
        above.pop()
    lines = list(_columns_aligned(above, cells))
    yield from lines[:2]  # headings and rule
    for line, row in zip(lines[2:], texts, strict=True):
        yield line
        below = [
            f"{NAMES.get(name, name.lower())} {row[name]}"
            for name in headings
            if name not in (*above, SETTING) and row[name]
        ]
        parts = [*([row[SETTING]] if row[SETTING] and SETTING not in above else []), *below]
        yield from (_plain(text, "dim") for text in _wrapped("; ".join(parts), width, "    ") if parts)


def _columns(rows: Sequence[Mapping[str, Text]], names: Sequence[str]) -> list[list[Text]]:
    """The cells of the named columns, row by row."""
    cells = []
    for row in rows:
        cells.append([row[name] for name in names])
    return cells


def _columns_aligned(names: Sequence[str], rows: Sequence[Mapping[str, Text]]) -> Iterator[Text]:
    """Lines of the named columns of the evidence; method and setting are texts, the others numbers."""
    left = {place for place, name in enumerate(names) if name in (METHOD, SETTING)}
    return _aligned([_plain(name) for name in names], _columns(rows, names), left)


def _aligned(headings: Sequence[Text], rows: Sequence[Sequence[Text]], left: set[int]) -> Iterator[Text]:
    """Headings, a rule and the rows, columns set right but those of `left`."""
    from rich.text import Text

    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    rule = [_plain("─" * size) for size in widths]
    for cells in (headings, rule, *rows):
        line = Text()
        for place, (cell, size) in enumerate(zip(cells, widths, strict=True)):
            blank = " " * (size - len(cell))
            line.append(" " * GAP_WIDTH if place else "")
            line.append_text(cell + blank if place in left else _plain(blank) + cell)
        line.rstrip()
        yield line


def _needed(headings: Sequence[Any], rows: Iterable[Sequence[Any]]) -> int:
    """Width of a table with these cells."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    return sum(widths) + GAP_WIDTH * (len(widths) - 1)


def _block(headings: Sequence[Text], rows: Sequence[Sequence[Text]], start: int, end: int) -> int:
    """Width of some columns with the gaps before them."""
    return _needed(headings[start:end], [row[start:end] for row in rows]) + GAP_WIDTH


def _cell(table: Table, row: Row, place: int, margins: bool) -> Text:
    """`56.4 ±2.9`, the reach dimmed; without it where it is unknown or unwanted."""
    from rich.text import Text

    cell, column = row.cells[place], table.columns[place]
    known = table.evidence.find(column.setup, row.method) if table.evidence and margins else None
    reach = f" ±{known.columns[column.benchmark].score.reach}" if known else ""
    return Text.assemble((cell.text, STYLES[cell.mark]), (reach, "dim"))


def _plain(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style)


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
