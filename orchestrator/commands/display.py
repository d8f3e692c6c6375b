"""What a person watches, as text: the units, the families of a large sweep, and the line of the whole sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

from rich.console import Group
from rich.table import Table
from rich.text import Text

from orchestrator.experiment.methods import BASE, REFERENCE, method_label
from orchestrator.monitor.status import FamilyStatus, Overview
from orchestrator.monitor.unit_status import STATES, UnitStatus
from orchestrator.planning.ranges import SCENARIOS

MOST_ROWS = 40  # of units; larger sweeps show a line for each family
GAP = 2  # blanks between columns
STYLES = {"done": "green", "running": "cyan", "failed": "red", "interrupted": "yellow"}
ALWAYS_SHOWN = ("running", "failed", "interrupted")

Row = tuple[list[str], str]  # cells, style of the row's state


def status_view(
    overview: Overview, width: int, rows: int = MOST_ROWS, every: bool = False, sort: str | None = None
) -> Group:
    """The units if there are at most `rows` of them or `every` is asked for, else a line for each family and the units
    that need a look; the line of the sweep below. Nothing is cropped from `width` 60 on. `sort` is
    `score`, `name`, `state` or `left`.
    """
    if every or sort or len(overview.units) <= rows:
        parts: list[Table | Text] = [unit_table(ordered(overview.units, sort) if sort else overview.units, width)]
    else:
        parts = [family_table(overview.families, width)]
        looks = [s for s in overview.units if s.state in ALWAYS_SHOWN]
        room = max(1, rows - len(overview.families))
        if looks:
            parts += [Text(), unit_table(looks[:room], width, names(overview.units))]
        if len(looks) > room:
            parts.append(Text(f"and {len(looks) - room} more that are running, failed or interrupted"))
    return Group(*parts, Text(), *(Text(line) for line in sweep_lines(overview)))


def unit_table(statuses: Sequence[UnitStatus], width: int, called: dict[str, str] | None = None) -> Table:
    """A row for each unit: what it does, its step, loss, best score and time left."""
    called = called or names(statuses)
    headings = ["unit", "state", "step", "loss", "score", "left"]
    rows: list[Row] = []
    for s in statuses:
        loss = "" if s.loss is None else f"{s.loss:.4f}"
        cells = [called[s.id], s.doing, f"{s.step}/{s.steps}", loss, percent(s.score), duration(s.seconds_left)]
        rows.append((cells, STYLES.get(s.state, "dim")))
    return _table(headings, rows, width, wrapped=2, least_needed="loss")


def family_table(families: Sequence[FamilyStatus], width: int) -> Table:
    """A row for each method of each setup: how many of its units stand where, and the best score so far."""
    several = len({family.setup for family in families}) > 1
    states = [state for state in STATES if any(family.states.get(state) for family in families)]
    rows: list[Row] = []
    for family in families:
        name = f"{family.setup} {family.label}" if several else family.label
        place = "" if family.step is None else f"{family.setting} step {family.step}".strip()
        counts = [str(family.states.get(state) or "") for state in states]
        rows.append(([name, place, *counts, percent(family.score)], ""))
    return _table(["method", "best at", *states, "best"], rows, width, wrapped=2)


def _table(headings: list[str], rows: list[Row], width: int, wrapped: int, least_needed: str | None = None) -> Table:
    """A table of which the first `wrapped` columns break at blanks where `width` is short of them.

    The column `least_needed` goes first. The second column has the row's style.
    """
    cells = [row for row, _ in rows]
    if least_needed is not None and width < sum(_widths(headings, cells)) + GAP * (len(headings) - 1):
        gone = headings.index(least_needed)
        headings = headings[:gone] + headings[gone + 1 :]
        cells = [row[:gone] + row[gone + 1 :] for row in cells]
    widths = _widths(headings, cells)
    least = [0, 0]  # the longest word of either column
    for row in [headings, *cells]:
        for index in (0, 1):
            least[index] = max([least[index], *map(len, row[index].split())])
    short = sum(widths) + GAP * (len(headings) - 1) - width
    while short > 0 and (widths[0] > least[0] or widths[1] > least[1]):
        wider = 0 if widths[0] - least[0] >= widths[1] - least[1] else 1
        widths[wider] -= 1
        short -= 1
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for index, heading in enumerate(headings):
        wraps = index < wrapped
        table.add_column(
            heading, width=widths[index], justify="left" if wraps else "right", no_wrap=not wraps, overflow="fold"
        )
    for row, (_, style) in zip(cells, rows, strict=True):
        table.add_row(*(Text(cell, style if index == 1 else "") for index, cell in enumerate(row)))
    return table


def _widths(headings: list[str], rows: Iterable[list[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(headings, *rows, strict=True)]


def names(statuses: Sequence[UnitStatus]) -> dict[str, str]:
    """Unit id → label, with setup and seed where they differ among the units."""
    setups, seeds = {s.setup for s in statuses}, {s.seed for s in statuses}
    found = {}
    for s in statuses:
        seeded = len(seeds) > 1 and not s.is_untrained
        parts = [s.setup] * (len(setups) > 1) + [s.label] + [f"seed {s.seed}"] * seeded
        found[s.id] = " ".join(parts)
    return found


def ordered(statuses: Sequence[UnitStatus], by: str) -> list[UnitStatus]:
    """The units sorted: best score first, by name, by state, or by the time that is left; the unknown last."""
    match by:
        case "score":
            return sorted(statuses, key=lambda s: -1.0 if s.score is None else s.score, reverse=True)
        case "name":
            return sorted(statuses, key=lambda s: (s.setup, s.label, s.seed))
        case "state":
            return sorted(statuses, key=lambda s: STATES.index(s.state))
        case _:
            return sorted(statuses, key=lambda s: float("inf") if s.seconds_left is None else s.seconds_left)


def sweep_lines(overview: Overview) -> list[str]:
    """The sweep as a whole, and what it costs as far as anything of that is known."""
    return [line for line in (sweep_line(overview), hours_line(overview), *best_lines(overview.families)) if line]


def best_lines(families: Sequence[FamilyStatus]) -> list[str]:
    """`best so far: SFT warmup 92.0 (+5.6) · Vanilla 86.4` for each setup in which two methods have scores.

    In brackets stands the difference to vanilla in points.
    """
    setups: dict[str, list[FamilyStatus]] = {}
    for family in families:
        if family.score is not None and family.label != method_label(BASE):
            setups.setdefault(family.setup, []).append(family)
    lines = []
    for setup, scored in setups.items():
        if len(scored) < 2:
            continue
        vanilla = next((family.score for family in scored if family.label == method_label(REFERENCE)), None)
        parts = []
        for family in sorted(scored, key=lambda family: family.score or 0.0, reverse=True):
            gap = "" if vanilla is None or family.label == method_label(REFERENCE) else _points(family, vanilla)
            parts.append(f"{family.label} {percent(family.score)}{gap}")
        where = f" in {setup}" if len({family.setup for family in families}) > 1 else ""
        lines.append(f"best so far{where}: {' · '.join(parts)}")
    return lines


def _points(family: FamilyStatus, vanilla: float) -> str:
    """` (+1.2)`, the difference to vanilla's score in points."""
    return f" ({100 * ((family.score or 0.0) - vanilla):+.1f})".replace("-", "−")


def hours_line(overview: Overview) -> str:
    """`0.42 core-hours spent · about 0.90 left (0.70 to 1.2) · done about 14:05 (13:58 to 14:20)`."""
    spent, left = overview.device_hours_spent, overview.device_hours_left
    unfinished = any(s.state != "done" for s in overview.units)
    parts = [f"{hours(spent)} {overview.device}-hours spent"] if spent else []
    if left is not None and unfinished:
        unit = "" if parts else f" {overview.device}-hours"
        parts.append(f"about {hours(left.mid)}{unit} left ({hours(left.low)} to {hours(left.high)})")
    if overview.seconds_left_range is not None:
        now = datetime.now()
        low, mid, high = (clock(now, overview.seconds_left_range.at(scenario)) for scenario in SCENARIOS)
        parts.append(f"done about {mid} ({low} to {high})")
    if overview.calibrated and (left is not None or overview.seconds_left_range is not None) and unfinished:
        parts.append("rates measured on this card")
    return " · ".join(parts)


def hours(number: float) -> str:
    """`0.042`, `3.1`, `120` or `12,345`: two digits, and all of those before the point."""
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def clock(now: datetime, seconds: float) -> str:
    """The time of day after so many seconds, with the day if it is another one, and the year if that is another one."""
    then = now + timedelta(seconds=seconds)
    if then.date() == now.date():
        return f"{then:%H:%M}"
    return f"{then.day} {then:%b}{'' if then.year == now.year else f' {then.year}'} {then:%H:%M}"


def sweep_line(overview: Overview) -> str:
    """`4 of 11 done · 2 running · elapsed 1m20s · left about 2m40s (2m to 3m) · 2 of 2 CPUs used · 3.1 trials/min`."""
    parts = [summary(overview.units)]
    if overview.elapsed is not None:
        parts.append(f"elapsed {duration(overview.elapsed)}")
    if overview.seconds_left is not None:
        span = overview.seconds_left_range
        between = f" ({duration(span.low)} to {duration(span.high)})" if span is not None else ""
        parts.append(f"left about {duration(overview.seconds_left)}{between}")
    kind = "GPU" if overview.cluster.get("GPU") else "CPU"
    if overview.cluster.get(kind):
        parts.append(f"{overview.used[kind]:g} of {overview.cluster[kind]:g} {kind}s used")
    rate = overview.trials_an_hour
    if rate is not None:
        parts.append(f"{rate / 60:.1f} trials/min" if rate >= 60 else f"{rate:.1f} trials/h")
    return " · ".join(parts)


def summary(statuses: Sequence[UnitStatus]) -> str:
    """`12 of 86 done · 4 running · 70 queued`."""
    counts = Counter(s.state for s in statuses)
    rest = [f"{counts[state]} {state}" for state in STATES[1:] if counts[state]]
    return " · ".join([f"{counts['done']} of {len(statuses)} done", *rest])


def runs_line(runs: Path, statuses: Sequence[UnitStatus], absent: str = "does not exist") -> str:
    """Which runs folder is meant, and how much of the experiment it holds; `absent` if there is no such folder."""
    if not runs.is_dir():
        return f"runs: {runs} ({absent})"
    done = sum(s.state == "done" for s in statuses)
    return f"runs: {runs} ({done} of {len(statuses)} units done)"


def where_to_look(failed: UnitStatus, runs: Path) -> str:
    """Where the story of a failed unit stands."""
    return f"  traceback: {runs / failed.id / 'traceback.txt'}; its log: trb logs {failed.id} --runs {runs}"


def percent(score: float | None) -> str:
    """A score in [0, 1] in per cent, rounded half up like the results table."""
    return "" if score is None else str(Decimal(str(round(100 * score, 9))).quantize(Decimal("0.1"), ROUND_HALF_UP))


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
