"""The tables of `trb status`: a row for each unit, or for each method of a large sweep.

The sentences around them are those of `display`. `trb view` has a table of its own (`view.units`).
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.commands.display import (
    NOT_STARTED,
    duration,
    names,
    percent,
    progress_bar,
    progress_mark,
    state_mark,
    state_words,
)
from orchestrator.experiment.methods import BASE, method_label
from orchestrator.monitor.status import Overview
from orchestrator.monitor.unit_status import LONGEST, STATES, UnitStatus
from orchestrator.sheet import GAP, Cell, Sheet, to_rich

MOST_ROWS = 40  # of units; larger sweeps show a line for each family
ALWAYS_SHOWN = ("running", "failed", "interrupted")
SCORE, LEFT, LOSS = 5, 6, 7  # characters: `100.0`, `59m59s`, `12.3456`
BAR, SHORT_BAR, LEAST_BAR = 12, 8, 4  # characters of a unit's bar
WORD = 11  # letters of the first word on a unit, where `LONGEST` of them have no room
LEAST_NAME = 24  # letters of a unit's name on a line, before the words on it get fewer
CONFIRMING = "  confirming"  # stands below a method, for the runs that confirm its choice
COUNTED = {  # headings of a family's units, and the states that count there
    "done": ("done",),
    "running": ("running",),
    "failed": ("failed", "damaged"),
    "to do": ("interrupted", "queued", "waiting"),
}
# The table of families from wide to narrow: headings of counts, and whether the best has its step.
FAMILY_SHAPES = [
    (("done", "running", "failed", "to do"), True),
    (("done", "running", "failed"), True),
    (("done", "running", "failed"), False),
    (("done", "failed"), False),
]


def units_view(
    overview: Overview,
    width: int,
    rows: int = MOST_ROWS,
    every: bool = False,
    sort: str | None = None,
) -> list[Table | Text]:
    """A line for each unit; for each family where that is more than `rows` lines and not `every`.

    Below the families stand the units that run, failed or were interrupted. `sort` is one of
    ORDERS. Columns and their widths follow from `width` and from which units exist, never from
    their states: nothing moves on the screen of a live view. Nothing is cropped from `width` 60 on.
    """
    called, columns = names(overview.units), unit_columns(overview, width)
    units = sorted(overview.units, key=ORDERS[sort]) if sort else overview.units
    if every or sort or _lines(called.values(), columns["unit"]) <= rows:
        return [unit_table(units, overview, columns)]
    families = family_table(overview, width)
    # Below the families stand a blank line, another heading, and the count of units left out.
    room = rows - len(Console(width=width).render_lines(families, pad=False)) - 2
    waiting = [s for s in units if s.state in ALWAYS_SHOWN]
    shown: list[UnitStatus] = []
    for s in waiting:
        room -= _lines([called[s.id]], columns["unit"])
        if room < 0:
            break
        shown.append(s)
    parts: list[Table | Text] = [families]
    if shown:
        parts += [Text(), unit_table(shown, overview, columns)]
    if len(shown) < len(waiting):
        more = " more" if shown else ""
        parts.append(Text(f"{len(waiting) - len(shown)}{more} running, failed or interrupted"))
    return parts


ORDERS = {  # how `--sort` orders units; the unknown come last
    "score": lambda s: 0.0 if s.score is None else -1.0 - s.score,
    "name": lambda s: (s.setup, s.label, s.seed),
    "state": lambda s: STATES.index(s.state),
    "left": lambda s: float("inf") if s.seconds_left is None else s.seconds_left,
}


def unit_columns(overview: Overview, width: int) -> dict[str, int]:
    """Heading → characters of the columns of units; the steps stand behind a bar.

    In a narrow terminal the loss goes first, the bar gets shorter, names break at blanks, words on
    a unit are cut to the first, and at last the bar goes.
    """
    labels = ["unit", *names(overview.units).values()]
    name, word = max(map(len, labels)), _longest_word(labels)
    step = _step_letters(overview)
    shapes = (  # letters of the words, the bar and the loss, and those that the name needs beside
        (LONGEST, BAR, LOSS, name),
        (LONGEST, BAR, 0, name),
        (LONGEST, SHORT_BAR, 0, name),
        (LONGEST, LEAST_BAR, 0, max(word, min(name, LEAST_NAME))),
        (WORD, LEAST_BAR, 0, word),
        (WORD, 0, 0, 0),
    )
    columns: dict[str, int] = {}
    for words, bar, loss, needed in shapes:
        columns = {"state": words, "step": bar + bool(bar) + step}
        columns |= {"loss": loss} if loss else {}
        columns |= {"score": SCORE, "left": LEFT}
        room = width - sum(columns.values()) - GAP * len(columns)
        columns = {"unit": min(name, max(word, room)), **columns}
        if room >= needed:
            break
    return columns


def unit_table(
    statuses: Sequence[UnitStatus], overview: Overview, columns: Mapping[str, int]
) -> Table:
    """A row for each unit: the state, the step, the loss, the best score and the time left."""
    called, rows = names(overview.units), []
    step = _step_letters(overview)
    for s in statuses:
        words = state_words(s, overview.driven)
        if words != NOT_STARTED and columns["state"] < LONGEST:
            words = words.split()[0].rstrip(",")
        bar = progress_bar(s.step, s.steps, columns["step"] - step - 1)
        reached = f"{s.step}/{s.steps}".rjust(columns["step"] - len(bar)) if s.steps else ""
        cells = {
            "unit": Cell(called[s.id]),
            "state": Cell(words, mark=state_mark(s)),
            "step": Cell(bar + reached, mark=progress_mark(s.step, s.steps)),
            "loss": Cell("" if s.loss is None else f"{s.loss:.4f}"),
            "score": Cell(percent(s.score)),
            "left": Cell(duration(s.seconds_left)),
        }
        rows.append([cells[heading] for heading in columns])
    unbroken = range(2, len(columns))
    return to_rich(Sheet(list(columns), rows, left=(0, 1, 2)), unbroken, columns.values())


def family_table(overview: Overview, width: int) -> Table:
    """A row for each method of each setup: counts of its units by state, and the best score so far.

    A row below it is for the runs that confirm its choice. In a narrow terminal the units to do
    have no column, then the best has no step, then running units have no column, and at last names
    break at blanks.
    """
    setups = {family.setup for family in overview.families}
    called, settings = ["method"], ["best at"]
    for family in overview.families:
        called.append(f"{family.setup} {family.label}" if len(setups) > 1 else family.label)
    for s in overview.units:
        settings.append(s.label.removeprefix(method_label(s.method or BASE)).strip())
    most = max((s.steps for s in overview.units), default=0)
    confirming = _confirming(overview.units)
    name = max(map(len, [*called, CONFIRMING] if confirming else called))
    total = 0
    for family in overview.families:
        total = max(total, 2 * len(str(sum(family.states.values()))) + 1)
    headings, counts, stepped, place, room = (), [], False, 0, 0
    for headings, stepped in FAMILY_SHAPES:
        place = max(map(len, settings)) + stepped * len(f" step {most}")
        counts = [max(total, len("done")), *map(len, headings[1:])]
        room = width - SCORE - sum(counts) - GAP * (len(counts) + 2)
        if name + place <= room:
            break
    if name + place > room:
        place = max(_longest_word(settings), room - name)
        name = max(_longest_word(called), room - place)
    rows = []
    for family, label in zip(overview.families, called[1:], strict=True):
        at = family.setting or ""
        if stepped and family.step is not None:
            at = f"{at} step {family.step}".strip()
        rows.append([label, at, *_counts(family.states, headings), percent(family.score)])
        runs = confirming.get((family.setup, family.label))
        if runs:
            counts_of_runs = _counts(Counter(s.state for s in runs), headings)
            at = f"step {runs[0].confirms}" if stepped else ""
            rows.append([CONFIRMING, at, *counts_of_runs, percent(confirmed_score(runs))])
    sheet = Sheet.of(["method", "best at", *headings, "best"], rows, left=(0, 1))
    return to_rich(sheet, range(2, len(counts) + 3), [name, place, *counts, SCORE])


def _confirming(units: Iterable[UnitStatus]) -> dict[tuple[str, str], list[UnitStatus]]:
    """Setup and label of a method → the runs that confirm its choice."""
    runs: dict[tuple[str, str], list[UnitStatus]] = {}
    for s in units:
        if s.confirms is not None:
            runs.setdefault((s.setup, method_label(s.method or BASE)), []).append(s)
    return runs


def confirmed_score(runs: Iterable[UnitStatus]) -> float | None:
    """The mean score of confirming runs; None before all of them are done."""
    scores = []
    for s in runs:
        if s.score is None or s.state != "done":
            return None
        scores.append(s.score)
    return sum(scores) / len(scores)


def _counts(states: Mapping[str, int], headings: Iterable[str]) -> list[str]:
    """`12/15`, and how many units are in the states of each further heading."""
    texts = []
    for heading in headings:
        count = sum(states.get(state, 0) for state in COUNTED[heading])
        texts.append(str(count or ""))
    texts[0] = f"{texts[0] or 0}/{sum(states.values())}"
    return texts


def _step_letters(overview: Overview) -> int:
    """Characters of `60/60`, in every unit's row."""
    return max(len("step"), 0, *(2 * len(str(s.steps)) + 1 for s in overview.units))


def _lines(labels: Iterable[str], width: int) -> int:
    """How many lines the labels take in a column."""
    return sum(len(textwrap.wrap(label, width)) for label in labels)


def _longest_word(labels: Iterable[str]) -> int:
    return max(map(len, " ".join(labels).split()))
