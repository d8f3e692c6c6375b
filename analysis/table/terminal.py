"""The results table on a terminal, or in a pipe, of any width.

No character of a number or a setting is ever dropped: what does not fit beside the others stands on
a line of its own, and lines break at blanks only.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.facts.columns import GAP, LIMITS, METHOD, SEEDS, SETTING, STEP, P
from analysis.facts.verdict import brief_intervals, explanation
from analysis.table.evidence_formats import blocks
from analysis.table.model import Table
from orchestrator.sheet import Sheet, to_lines

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

WIDE = 96  # columns from which on a setting has room beside the numbers
LEAST = 24  # no terminal is taken to be narrower
# Beginnings of the headings of the narrow form; the other columns follow on a line below.
ABOVE = (
    METHOD,
    "Avg",
    "Confirmed",
    "KL(",
    GAP,
    P,
    "Lead",
    "Of",
    SEEDS,
    STEP,
    "Truncated",
    "No answer",
)
# Their names there, where it is not the heading in small letters.
NAMES = {LIMITS: "interval", GAP: GAP}


def to_rich(table: Table, brief: bool = False) -> TerminalTable:
    """A table for rich to print; a `brief` one leaves out the evidence and the advice."""
    return TerminalTable(table, brief)


@dataclass(frozen=True)
class TerminalTable:
    """A table for each setup: best bold, second underlined, empty where a number is missing.

    The reach of the intervals stands dimmed beside the scores. Then follow the evidence, the notes
    and the verdict.
    """

    table: Table
    brief: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        return self.lines(max(LEAST, options.max_width))

    def lines(self, width: int) -> Iterator[Text]:
        """Lines of at most `width` columns unless a word is longer; a command stands on one line."""
        from rich.text import Text

        table = self.table
        setups = table.places()
        for setup in setups:
            if len(setups) > 1:
                yield Text()
                yield Text(table.title(setup), "bold")
            yield from _scores(table.only(setup), width)
        for block in blocks(table.facts):
            if block.kind in ("confirmed", "across") or not self.brief:
                several = len(setups) > 1 and block.setup
                heading = block.heading(table.title(block.setup) if several else "")
                yield Text()
                yield from [Text(heading, "bold")] if heading else []
                yield from _evidence(block.sheet, width)
        captions = explanation(table.facts) if table.facts else []
        if table.facts and self.brief:
            captions = brief_intervals(table.facts)
        for style, texts in (
            ("dim", captions),
            ("", table.notes),
            ("bold", table.verdict.sentences),
            ("", table.verdict.caveats),
        ):
            if texts and not (self.brief and captions and texts is table.notes):
                yield Text()
            hanging = "  " if texts is captions else ""  # a list, whose terms stand out at the left
            for text in texts:
                yield from (Text(line, style) for line in _wrapped(text, width, "", hanging))
        if table.verdict.advice is not None and not self.brief:
            yield from (Text(line) for line in _wrapped(table.verdict.advice.reason, width))
            # One line, however long, so that it can be pasted.
            yield Text(table.verdict.advice.command, no_wrap=True, overflow="ignore")


def _scores(table: Table, width: int) -> Iterator[Text]:
    """Scores with their reach if it fits, and in several blocks if a row does not fit at all."""
    sheet = table.sheet()
    if sheet.width() > width:
        sheet = table.sheet(reach=False)
    # As many columns as fit stand in a block, one at least; the next block begins with the names
    # again.
    places: list[int] = []
    for place in range(1, len(sheet.headings)):
        if places and sheet.only([0, *places, place]).width() > width:
            yield from to_lines(sheet.only([0, *places]))
            places = []
        places.append(place)
    yield from to_lines(sheet.only([0, *places]))


def _evidence(sheet: Sheet, width: int) -> Iterator[Text]:
    """One line for each row if it fits, else the first numbers with the others below them."""
    from rich.text import Text

    if width >= WIDE and sheet.width() <= width:
        yield from to_lines(sheet)
        return
    above = []
    for place, name in enumerate(sheet.headings):
        if name.startswith(ABOVE) or (name == SETTING and width >= WIDE):
            above.append(place)
    while len(above) > 2 and sheet.only(above).width() > width:
        above.pop()
    headings, rule, *lines = to_lines(sheet.only(above))
    yield from (headings, rule)
    for line, row in zip(lines, sheet.rows, strict=True):
        yield line
        below: list[str] = []
        for place, (name, cell) in enumerate(zip(sheet.headings, row, strict=True)):
            if name == SETTING and place not in above and cell.text:
                below.insert(0, cell.text)
            elif place not in above and cell.text:
                below.append(f"{NAMES.get(name, name.lower())} {cell.text}")
        for text in _wrapped("; ".join(below), width, "    ", "    "):
            yield Text(text, "dim")


def _wrapped(text: str, width: int, indent: str = "", hanging: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
