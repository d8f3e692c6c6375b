"""One row of a unit and of a family: its words, its cells, and the columns that fit into a width.

Status, submit's live view and `trb view` render these rows; the lines of events in a pipe are
worded in `commands.status`.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction

from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.numbers import tenths_text
from orchestrator.monitor.status import Overview
from orchestrator.monitor.unit_status import ENDED, LONGEST, STATES, UnitStatus
from orchestrator.sheet import GAP, Cell, Mark, Sheet, to_rich

MOST_ROWS = 40  # of units; larger sweeps show a line for each family
ALWAYS_SHOWN = ("running", "failed", "interrupted")
STATE_MARKS: Mapping[str, Mark] = {
    "done": "good",
    "running": "active",
    "failed": "bad",
    "interrupted": "warning",
}
NOT_STARTED = "not started"

UNIT, SEED, STATE, BAR, STEP = "unit", "seed", "state", "", "step"
LOSS, SCORE, LEFT = "loss", "score", "left"
TEXTS = (UNIT, SEED, STATE, BAR, STEP)  # columns of units that are set left
# Columns that hold these letters at least, so that none moves while one looks: `100.0`, `59m59s`.
LETTERS = {STATE: LONGEST, LOSS: len("12.3456"), SCORE: len("100.0"), LEFT: len("59m59s")}
BAR_LETTERS = 8
CONFIRMS = " conf."  # behind the seed of a run that confirms a choice

METHOD, SETTING, TO_DO, BEST = "method", "best at", "to do", "best"
COUNTED = {  # headings of a family's units, and the states that count there
    "done": ENDED,
    "running": ("running",),
    "failed": ("failed", "damaged"),
    TO_DO: ("interrupted", "queued", "waiting"),
}
CONFIRMING = "  confirming"  # stands below a method, for the runs that confirm its choice

Cells = Mapping[str, Cell]  # by heading
ORDERS = {  # how `--sort` orders units; the unknown come last
    "score": lambda s: 0.0 if s.score is None else -1.0 - s.score,
    "name": lambda s: (s.setup, s.label, s.seed),
    "state": lambda s: STATES.index(s.state),
    "left": lambda s: float("inf") if s.seconds_left is None else s.seconds_left,
}

# --- words ---


def names(statuses: Sequence[UnitStatus]) -> dict[str, str]:
    """Unit id → label, with setup and seed where several units share it.

    A run that confirms a choice is called `TRB K=12 confirming seed 100`.
    """
    called = _labels(statuses)
    for s in _seeded(statuses):
        called[s.id] += f" {'confirming ' if s.confirms is not None else ''}seed {s.seed}"
    return called


def _labels(statuses: Sequence[UnitStatus]) -> dict[str, str]:
    """Unit id → label, with the setup if there are several."""
    several = len({s.setup for s in statuses}) > 1
    return {s.id: f"{s.setup} {s.label}" if several else s.label for s in statuses}


def _seeded(statuses: Sequence[UnitStatus]) -> list[UnitStatus]:
    """The units that only their seed tells from others, and those that confirm a choice."""
    seeds: dict[tuple[str, str], set[int]] = {}
    for s in statuses:
        seeds.setdefault((s.setup, s.label), set()).add(s.seed)
    return [s for s in statuses if s.confirms is not None or len(seeds[s.setup, s.label]) > 1]


def state_words(status: UnitStatus, driven: bool) -> str:
    """The words on a unit: its work or its state; a queued one is not started unless `driven`."""
    words = status.doing or status.state
    return NOT_STARTED if words == "queued" and not driven else words


def state_cell(status: UnitStatus, driven: bool) -> Cell:
    """These words with their mark."""
    return Cell(state_words(status, driven), mark=STATE_MARKS.get(status.state, "faint"))


def progress_bar(done: float, of: float, width: int) -> Cell:
    """`━━━━────`, whose heavy part is done; empty without anything to do."""
    if not of:
        return Cell("")
    full = int(width * min(1.0, done / of))
    return Cell("━" * full + "─" * (width - full), mark="good" if done >= of else "active")


def percent(score: float | None) -> str:
    """A score in [0, 1] in per cent, rounded half up like the results table."""
    return "" if score is None else tenths_text(points(score))


def points(share: float) -> Fraction:
    """Exactly what a person reads: 45.15 is no half of a float that lies below."""
    return Fraction(str(round(100 * share, 9)))


def duration(seconds: float | None) -> str:
    """`4s`, `3m10s`, `2h05m`, `3d04h`; empty when unknown."""
    if seconds is None:
        return ""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 48 * 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


# --- rows ---


def unit_rows(overview: Overview) -> dict[str, Cells]:
    """Unit id → its cells: name, seed, state, steps with a bar, loss, best score and time left."""
    called, seeded = _labels(overview.units), {s.id for s in _seeded(overview.units)}
    # Steps of the same width stay in their place while they are taken.
    digits = max((len(str(s.steps)) for s in overview.units), default=1)
    rows = {}
    for s in overview.units:
        seed = f"{s.seed}{'' if s.confirms is None else CONFIRMS}" if s.id in seeded else ""
        bar = progress_bar(s.step, s.steps, BAR_LETTERS)
        rows[s.id] = {
            UNIT: Cell(called[s.id]),
            SEED: Cell(seed),
            STATE: state_cell(s, overview.driven),
            BAR: bar,
            STEP: Cell(f"{s.step:>{digits}}/{s.steps}" if s.steps else "", mark=bar.mark),
            LOSS: Cell("" if s.loss is None else f"{s.loss:.4f}"),
            SCORE: Cell(percent(s.score)),
            LEFT: Cell(duration(s.seconds_left)),
        }
    return rows


def unit_columns(rows: Mapping[str, Cells], width: int) -> dict[str, int]:
    """Heading → characters of the columns of units; without different seeds they have none."""
    columns = {}
    for heading in (UNIT, SEED, STATE, BAR, STEP, LOSS, SCORE, LEFT):
        texts = [row[heading].text for row in rows.values()]
        if heading != SEED or any(texts):
            columns[heading] = max(LETTERS.get(heading, 0), *map(len, [heading, *texts]))
    return fitted(columns, width, [LOSS, BAR], [UNIT])


def family_rows(overview: Overview) -> list[Cells]:
    """A row for each method of each setup: the best setting so far, counts of units by state.

    A row below it is for the runs that confirm its choice.
    """
    several = len({family.setup for family in overview.families}) > 1
    rows = []
    for family in overview.families:
        label = f"{family.setup} {family.label}" if several else family.label
        rows.append(_family_row(label, family.setting, family.step, family.states, family.score))
        runs = overview.confirming(family)
        if runs:
            states = Counter(s.state for s in runs)
            score = mean_of_done(runs)
            rows.append(_family_row(CONFIRMING, "", runs[0].confirms, states, score))
    return rows


def _family_row(
    label: str,
    setting: str | None,
    step: int | None,
    states: Mapping[str, int],
    score: float | None,
) -> Cells:
    row = {METHOD: label, SETTING: setting or "", STEP: "" if step is None else str(step)}
    for heading, counted in COUNTED.items():
        row[heading] = str(sum(states.get(state, 0) for state in counted) or "")
    row["done"] = f"{row['done'] or 0}/{sum(states.values())}"
    row[BEST] = percent(score)
    return {heading: Cell(text) for heading, text in row.items()}


def family_columns(overview: Overview, rows: Sequence[Cells], width: int) -> dict[str, int]:
    """Heading → characters of the columns of families."""
    # Room for what may come to stand there: any setting, any step, and all units as done.
    least = {
        SETTING: max((len(s.setting) for s in overview.units), default=0),
        STEP: max((len(str(s.steps)) for s in overview.units), default=0),
        "done": max(2 * len(str(sum(each.states.values()))) + 1 for each in overview.families),
        BEST: LETTERS[SCORE],
    }
    columns = {}
    for heading in (METHOD, SETTING, STEP, *COUNTED, BEST):
        texts = [row[heading].text for row in rows]
        columns[heading] = max(least.get(heading, 0), *map(len, [heading, *texts]))
    return fitted(columns, width, [TO_DO, STEP, "running"], [METHOD, SETTING])


def mean_of_done(runs: Sequence[UnitStatus]) -> float | None:
    """The mean score of confirming runs; None before all of them are done."""
    scores = [s.score for s in runs if s.score is not None and s.state == "done"]
    return sum(scores) / len(scores) if len(scores) == len(runs) else None


# --- how they fit ---


def fitted(
    columns: Mapping[str, int], width: int, dropped: Sequence[str], folded: Sequence[str]
) -> dict[str, int]:
    """The columns that fit: first the `dropped` ones go in their order, then `folded` ones narrow,
    the widest first, and their texts break at blanks.
    """
    columns = dict(columns)
    for heading in dropped:
        if taken(columns) > width:
            del columns[heading]
    while taken(columns) > width:
        widest = max(folded, key=lambda heading: columns[heading])
        if columns[widest] == 1:
            break
        columns[widest] -= 1
    return columns


def taken(columns: Mapping[str, int]) -> int:
    """Characters of a line with these columns."""
    return sum(columns.values()) + GAP * (len(columns) - 1)


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
    their states: nothing moves on the screen of a live view.
    """
    cells = unit_rows(overview)
    columns = unit_columns(cells, width)
    units = sorted(overview.units, key=ORDERS[sort]) if sort else overview.units

    def lines(statuses: Iterable[UnitStatus]) -> int:
        wrapped = [textwrap.wrap(cells[s.id][UNIT].text, columns[UNIT]) for s in statuses]
        return sum(map(len, wrapped))

    def table(statuses: Iterable[UnitStatus]) -> Table:
        return _table([cells[s.id] for s in statuses], columns, TEXTS, [UNIT])

    if every or sort or lines(units) <= rows:
        return [table(units)]
    of_families = family_rows(overview)
    shown_columns = family_columns(overview, of_families, width)
    families = _table(of_families, shown_columns, [METHOD, SETTING], [METHOD, SETTING])
    # Below the families stand a blank line, another heading, and the count of units left out.
    room = rows - len(Console(width=width).render_lines(families, pad=False)) - 2
    waiting = [s for s in units if s.state in ALWAYS_SHOWN]
    shown = waiting[: max(0, room)]
    while shown and lines(shown) > room:
        shown.pop()
    parts: list[Table | Text] = [families]
    if shown:
        parts += [Text(), table(shown)]
    if len(shown) < len(waiting):
        more = " more" if shown else ""
        parts.append(Text(f"{len(waiting) - len(shown)}{more} running, failed or interrupted"))
    return parts


def _table(
    rows: Sequence[Cells],
    columns: Mapping[str, int],
    left: Collection[str],
    folded: Collection[str],
) -> Table:
    headings = list(columns)
    cells = [[row[heading] for heading in headings] for row in rows]
    unbroken = [place for place, heading in enumerate(headings) if heading not in folded]
    set_left = [place for place, heading in enumerate(headings) if heading in left]
    return to_rich(Sheet(headings, cells, set_left), unbroken, columns.values())
