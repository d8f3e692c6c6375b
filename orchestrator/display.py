"""What a person watches: the live table of units, and the lines of a terminal that cannot redraw."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import ROUND_HALF_UP, Decimal

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from orchestrator.status import STATES, UnitStatus

REFRESH_S = 1.0
LAST_LOOK_S = 10.0  # run directories that cannot be read any more hold nothing up
MOST_ROWS = 40
STYLES = {"done": "green", "running": "cyan", "failed": "red", "interrupted": "yellow"}


def status_table(statuses: list[UnitStatus]) -> Table:
    """State, step, loss, score and time left of each unit; a long list shows those that are not merely queued."""
    shown = statuses
    if len(statuses) > MOST_ROWS:
        shown = [s for s in statuses if s.state in ("running", "failed", "interrupted")][:MOST_ROWS]
    table = Table(caption=summary(statuses), caption_justify="left", box=None, pad_edge=False)
    for heading in ("unit", "state"):
        table.add_column(heading, no_wrap=True)
    for heading in ("step", "loss", "score", "left"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, s in zip(_names(shown), shown, strict=True):
        state = f"[{STYLES.get(s.state, 'dim')}]{s.state}[/]"
        loss = "" if s.loss is None else f"{s.loss:.4f}"
        table.add_row(name, state, f"{s.step}/{s.steps}", loss, percent(s.score), duration(s.seconds_left))
    return table


def _names(statuses: list[UnitStatus]) -> list[str]:
    """Labels, with setup and seed where they differ among the units."""
    setups, seeds = {s.setup for s in statuses}, {s.seed for s in statuses}
    return [
        " ".join([s.setup] * (len(setups) > 1) + [s.label] + [f"seed {s.seed}"] * (len(seeds) > 1)) for s in statuses
    ]


def summary(statuses: list[UnitStatus]) -> str:
    """`12 of 86 units done · 4 running · 70 queued`."""
    counts = Counter(s.state for s in statuses)
    rest = [f"{counts[state]} {state}" for state in STATES[1:] if counts[state]]
    return " · ".join([f"{counts['done']} of {len(statuses)} units done", *rest])


@contextmanager
def watching(collect: Callable[[], list[UnitStatus]], console: Console) -> Iterator[None]:
    """Show the units while the body runs: a live table, or a line per change where output is no terminal."""
    ended = threading.Event()
    follow = _follow_live if console.is_terminal else _follow_lines
    thread = threading.Thread(target=follow, args=(collect, console, ended), daemon=True, name="display")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(LAST_LOOK_S)


def _follow_live(collect: Callable[[], list[UnitStatus]], console: Console, ended: threading.Event) -> None:
    with Live(status_table(collect()), console=console, auto_refresh=False) as live:
        while not ended.wait(REFRESH_S):
            live.update(status_table(collect()), refresh=True)
        live.update(status_table(collect()), refresh=True)


def _follow_lines(collect: Callable[[], list[UnitStatus]], console: Console, ended: threading.Event) -> None:
    """A line when a unit changes state or gets a new score."""
    seen: dict[str, tuple[str, float | None]] = {}
    while True:
        last = ended.wait(REFRESH_S)
        for s in collect():
            now = (s.state, s.score)
            if seen.get(s.id, ("queued", None)) != now and s.state not in ("queued", "waiting"):
                score = f" score {percent(s.score)}" if s.score is not None else ""
                console.print(f"{s.id} {s.state} step {s.step}/{s.steps}{score}", highlight=False, soft_wrap=True)
            seen[s.id] = now
        if last:
            return


@contextmanager
def building(console: Console) -> Iterator[Callable[[str, dict[str, float]], None]]:
    """Progress of the embedded models while they are made."""
    columns = (TextColumn("making the {task.description} model"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
               TextColumn("loss {task.fields[loss]:.3f}"), TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        tasks: dict[str, object] = {}

        def report(role: str, point: dict[str, float]) -> None:
            if role not in tasks:
                tasks[role] = progress.add_task(role, total=point["of"], loss=point["loss"])
                if not console.is_terminal:
                    console.print(f"making the {role} model")
            progress.update(tasks[role], completed=point["update"], loss=point["loss"])  # type: ignore[arg-type]

        yield report


def percent(score: float | None) -> str:
    """A score in [0, 1] in per cent, rounded half up like the results table."""
    return "" if score is None else str(Decimal(str(round(100 * score, 9))).quantize(Decimal("0.1"), ROUND_HALF_UP))


def duration(seconds: float | None) -> str:
    """`4s`, `3m10s`, `2h05m`; empty when unknown."""
    if seconds is None:
        return ""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
