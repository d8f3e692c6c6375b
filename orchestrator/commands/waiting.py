"""Shows on a terminal by a clock or a bar, and in a pipe by lines, that work takes a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from orchestrator.commands.display import say
from orchestrator.commands.unit_rows import duration

SILENCE_S = 3.0  # without output, before a line says what takes so long
REPORTED_PARTS = 4  # of the making of a model, where output is no terminal


@contextmanager
def taking(console: Console, activity: str) -> Iterator[None]:
    """Name an activity with its seconds: in a pipe again each time that these have doubled."""
    if console.is_terminal:
        columns = TextColumn("{task.description}…"), TimeElapsedColumn()
        with Progress(*columns, console=console, transient=True) as progress:
            progress.add_task(activity, total=None)
            yield
        return
    ended, begun = threading.Event(), time.monotonic()

    def remind() -> None:
        pause = SILENCE_S
        while not ended.wait(pause):
            pause = time.monotonic() - begun
            say(console, f"{activity}… {duration(pause)}")

    say(console, f"{activity}…")
    thread = threading.Thread(target=remind, daemon=True, name="taking")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def building(
    console: Console, before: str = ""
) -> Iterator[Callable[[str, dict[str, float]], None]]:
    """Show the making of the embedded models; an activity may come `before` it."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    tasks: dict[str, TaskID] = {}
    parts: dict[str, int] = {}
    with ExitStack() as showing:
        if before:
            showing.enter_context(taking(console, before))

        def report(role: str, point: dict[str, float]) -> None:
            activity = f"making the {role} model"
            if not tasks:
                showing.close()
                showing.enter_context(progress)
            if role not in tasks:
                tasks[role] = progress.add_task(activity, total=point["of"], loss="")
            loss = f"loss {point['loss']:.3f}"
            progress.update(tasks[role], completed=point["update"], loss=loss)
            part = int(REPORTED_PARTS * point["update"] / max(1, point["of"]))
            if not console.is_terminal and parts.get(role) != part:
                parts[role] = part
                say(console, f"{activity}: {100 * part // REPORTED_PARTS} %")

        yield report
