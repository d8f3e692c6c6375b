"""The rows of units, from their status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.commands.display import (
    duration,
    names,
    percent,
    progress_bar,
    progress_mark,
    state_mark,
    state_words,
)
from orchestrator.monitor.status import Overview
from orchestrator.monitor.unit_status import UnitStatus
from orchestrator.sheet import Cell, Sheet
from orchestrator.view.searching import holds_words

BAR, SHORT_BAR = 10, 4  # characters of a unit's bar
UNIT, SEED, STATE, STEPS = "Unit", "Seed", "State", "Steps"
LOSS, SCORE, LEFT = "Loss", "Score", "Left"
HEADINGS = (UNIT, SEED, STATE, STEPS, LOSS, SCORE, LEFT)
CONFIRMS = " conf."  # behind the seed of a run that confirms a choice
TEXTS = (UNIT, SEED, STATE, STEPS)  # columns that are set left
# From a wide screen to a narrow one: characters of the bar, and columns that are left out.
SHAPES = (
    (BAR, ()),
    (SHORT_BAR, ()),
    (SHORT_BAR, (LOSS,)),
    (SHORT_BAR, (LOSS, LEFT)),
    (0, (LOSS, LEFT)),
)


@dataclass(frozen=True)
class UnitRow:
    """One unit of the table; `name` is that of `trb status`, which the search reads."""

    name: str
    status: UnitStatus
    cells: Mapping[str, Cell]  # by heading, the steps without their bar

    @property
    def id(self) -> str:
        return self.status.id

    def matches(self, words: str) -> bool:
        """Whether all words stand in its name, its id or its state, in any case."""
        text = f"{self.name} {self.id} {self.cells[STATE].text} {self.status.state}"
        return holds_words(text, words)

    def with_bar(self, heading: str, bar: int) -> Cell:
        """The cell under a heading, the steps with a bar of so many characters."""
        cell, s = self.cells[heading], self.status
        if heading != STEPS or not s.steps or not bar:
            return cell
        return Cell(f"{progress_bar(s.step, s.steps, bar)} {cell.text}", mark=cell.mark)


def unit_rows(overview: Overview) -> list[UnitRow]:
    """A row for each unit, in the order of the plan."""
    rows, called = [], names(overview.units)
    several = len({s.setup for s in overview.units}) > 1
    # Steps of the same width, so that the bars before them stay in one column.
    digits = max((len(str(s.steps)) for s in overview.units), default=1)
    for s in overview.units:
        seed = "" if s.kind == "base_eval" else str(s.seed)
        if s.confirms is not None:
            seed += CONFIRMS
        reached = f"{s.step:>{digits}}/{s.steps}" if s.steps else ""
        cells = {
            UNIT: Cell(f"{s.setup} {s.label}" if several else s.label),
            SEED: Cell(seed),
            STATE: Cell(state_words(s, overview.driven), mark=state_mark(s)),
            STEPS: Cell(reached, mark=progress_mark(s.step, s.steps)),
            LOSS: Cell("" if s.loss is None else f"{s.loss:.4f}"),
            SCORE: Cell(percent(s.score)),
            LEFT: Cell(duration(s.seconds_left)),
        }
        rows.append(UnitRow(called[s.id], s, cells))
    return rows


def fitted(
    rows: Sequence[UnitRow], width: int, padding: int
) -> tuple[list[str], dict[str, list[Cell]]]:
    """The headings that fit into `width`, and under them the cells of each unit by its id; around
    each cell are `padding` blanks.
    """
    headings: list[str] = []
    cells: dict[str, list[Cell]] = {}
    for bar, without in SHAPES:
        headings = [heading for heading in HEADINGS if heading not in without]
        cells = {}
        for row in rows:
            cells[row.id] = [row.with_bar(heading, bar) for heading in headings]
        taken = sum(Sheet(headings, list(cells.values())).widths()) + padding * len(headings)
        if taken <= width:
            break
    return headings, cells
