"""A sweep while it runs: a live table on a terminal, a line for each event everywhere else."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from orchestrator.commands.display import (
    Gaps,
    duration,
    header,
    names,
    percent,
    summary_lines,
    sweep_lines,
    units_view,
)
from orchestrator.experiment.methods import BASE, REFERENCE, method_label
from orchestrator.monitor import status
from orchestrator.monitor.status import Overview, Session
from orchestrator.monitor.unit_status import UnitStatus
from orchestrator.records.columns import RESCORING, TRAINING
from orchestrator.selection.study import Study

REFRESH_S = 1.0
MOST_OF_A_CORE = 0.1  # that looking may take
LAST_LOOK_S = 10.0  # run directories that cannot be read any more hold nothing up
PROGRESS_S = 10.0  # between two lines on units that go on; what ends or fails is said at once
QUIET_S = 300.0  # without an event, after which a line says how the sweep stands
MOST_SUMMARY = 7  # lines under the table of a terminal
SILENCE_S = 3.0  # without output, before a line says what takes so long
STARTING = "starting workers, which load PyTorch"
REPORTED_PARTS = 4  # of the making of a model, where output is no terminal


@dataclass
class Watch:
    """A sweep that is watched from its run directories, by the process that runs it, with its
    `session`, or any other.

    `keys` say what Ctrl-C does; `every` and `sort` are those of `display.status_view`.
    """

    study: Study
    keys: tuple[str, ...]
    session: Session | None = None
    every: bool = False
    sort: str | None = None
    gaps: Gaps = field(default_factory=dict, init=False)
    begun: float = field(default_factory=time.monotonic, init=False)
    at_work: bool = field(default=False, init=False)  # whether anything has run since `begun`
    _finished: frozenset[tuple[str, str]] = field(default_factory=frozenset, init=False)

    def look(self) -> Overview:
        """Where the sweep stands. Intervals are computed anew only when the units of one more
        method are done.
        """
        study = self.study.snapshot()
        overview = status.overview(study, self.session)
        # The driver holds the untrained students for a moment, to describe them: that is no phase
        # of work.
        self.at_work = self.at_work or any(s.state == "running" and s.phase for s in overview.units)
        finished = finished_families(overview)
        if finished != self._finished:
            self._finished, self.gaps = finished, gaps_of(study, finished)
        return overview

    @property
    def starting(self) -> str:
        """`starting workers, which load PyTorch… 5s` while this session has none at work; else
        empty.
        """
        if self.session is None or self.at_work:
            return ""
        return f"{STARTING}… {duration(time.monotonic() - self.begun)}"

    def view(self, overview: Overview, console: Console, keys: Sequence[str]) -> Group:
        """The picture for a terminal, in no more lines than it has unless `every` unit is asked
        for.
        """
        width = console.width
        above = header(self.study.experiment, self.study.runs, width, keys)
        rows = max(1, console.height - len(above) - MOST_SUMMARY - 2)  # a heading, and a blank line
        units = units_view(overview, width, rows, self.every, self.sort)
        below = [Text(self.starting)] * bool(self.starting) + summary_lines(
            overview, width, self.gaps
        )
        return Group(*above, *units, Text(), *below[:MOST_SUMMARY])


def finished_families(overview: Overview) -> frozenset[tuple[str, str]]:
    """Setup and label of each method whose units are all done; none where a unit is damaged: scores
    cannot be read.
    """
    if any(s.state == "damaged" for s in overview.units):
        return frozenset()
    return frozenset((f.setup, f.label) for f in overview.families if set(f.states) == {"done"})


def gaps_of(study: Study, finished: Collection[tuple[str, str]]) -> Gaps:
    """Differences to vanilla of the methods whose units are all done, where vanilla's are, too."""
    from analysis.labels import AVERAGE
    from analysis.scores.assess import assess
    from analysis.scores.candidates import select
    from analysis.scores.evidence import ONE_RUN, with_interval

    gaps: dict[tuple[str, str], str] = {}
    if len(finished) < 2:
        return gaps
    for row in assess(study, select(study)).rows:
        family, reference = (
            (row.setup, method_label(row.method)),
            (row.setup, method_label(REFERENCE)),
        )
        difference = row.columns[AVERAGE].difference
        if row.method != BASE and difference is not None and {family, reference} <= set(finished):
            one_run = ONE_RUN if difference.estimate.over == "problems" else ""
            gaps[family] = with_interval(difference.estimate) + one_run
    return gaps


@contextmanager
def watching(watch: Watch, console: Console) -> Iterator[None]:
    """Show the units while the body runs."""
    ended = threading.Event()
    thread = threading.Thread(
        target=follow, args=(watch, console, ended), daemon=True, name="display"
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(LAST_LOOK_S)


def follow(watch: Watch, console: Console, ended: threading.Event) -> None:
    """Show the units until `ended`; without a session, until all of them are done or one is
    damaged.

    Without a session a pipe also ends where no process works on the sweep: its reader would wait
    for ever.
    """
    (_follow_live if console.is_terminal else _follow_lines)(watch, console, ended)


def _is_over(watch: Watch, overview: Overview, ended: threading.Event) -> bool:
    if watch.session is not None:
        return ended.is_set()
    states = {s.state for s in overview.units}
    return ended.is_set() or states <= {"done"} or "damaged" in states


def _follow_live(watch: Watch, console: Console, ended: threading.Event) -> None:
    overview, spent = watch.look(), 0.0
    with Live(
        watch.view(overview, console, watch.keys), console=console, auto_refresh=False
    ) as live:
        while not _is_over(watch, overview, ended):
            ended.wait(pause_after(spent))
            begun = time.thread_time()
            overview = watch.look()
            live.update(watch.view(overview, console, watch.keys), refresh=True)
            spent = time.thread_time() - begun
        live.update(watch.view(overview, console, ()), refresh=True)  # the keys do nothing any more


def pause_after(spent: float) -> float:
    """Seconds until the next look, after one that took so much CPU time: a large sweep is looked at
    less often.
    """
    return max(REFRESH_S, spent / MOST_OF_A_CORE)


def _follow_lines(watch: Watch, console: Console, ended: threading.Event) -> None:
    overview = watch.look()
    events, spoke, spent, signs = Events(overview), time.monotonic(), 0.0, False
    while True:
        last = _is_over(watch, overview, ended) or (watch.session is None and not overview.driven)
        if not last:
            ended.wait(pause_after(spent))
        begun = time.thread_time()
        overview = watch.look()
        spent = time.thread_time() - begun
        ended_units, going_on = events.since_then(overview)
        silence = time.monotonic() - spoke
        # The first sign of life is said at once, what follows it every PROGRESS_S.
        lines = ended_units + (going_on[-1:] if silence > PROGRESS_S or not signs else [])
        signs = signs or bool(lines)
        # The start is spoken of ever more rarely: after 3, 6, 12 seconds.
        if (
            not lines
            and watch.starting
            and silence > max(SILENCE_S, (time.monotonic() - watch.begun) / 2)
        ):
            lines = [watch.starting]
        if last or (not lines and silence > QUIET_S):
            lines += sweep_lines(overview, watch.gaps)
        for line in lines:
            console.print(
                f"{time.strftime('%H:%M:%S')} {line}", highlight=False, markup=False, soft_wrap=True
            )
            spoke = time.monotonic()
        if last:
            return


class Events:
    """News of a sweep since the last look, a line for each unit; the first look brings none."""

    def __init__(self, first: Overview):
        self._seen = {s.id: _sign(s) for s in first.units if s.state != "running"}

    def since_then(self, overview: Overview) -> tuple[list[str], list[str]]:
        """Lines on the units that ended or failed, and lines on those that go on, for each unit
        with news.

        `[4/10, 1m20s left] TRB epsilon0=0.05 K=12 seed 0: step 40/60, 45.5`: units that are done, and the time that the
        sweep still takes.
        """
        called, ended, going_on = names(overview.units), [], []
        done = sum(s.state == "done" for s in overview.units)
        left = f", {duration(overview.seconds_left)} left" if overview.seconds_left else ""
        for s in overview.units:
            sign = _sign(s)
            needs_another = s.state == "waiting" and s.phase == TRAINING
            if self._seen.get(s.id) != sign and s.state != "queued" and not needs_another:
                line = f"[{done}/{len(overview.units) + overview.to_confirm}{left}] {called[s.id]}: {event(s)}"
                (going_on if s.state in ("running", "waiting") else ended).append(line)
            self._seen[s.id] = sign
        return ended, going_on


def _sign(s: UnitStatus) -> tuple[object, ...]:
    """The facts of a unit whose change is an event."""
    return s.state, s.state == "running" and s.phase == RESCORING, s.latest_step, s.attempt, s.error


def event(s: UnitStatus) -> str:
    """Describe the state of a unit in words."""
    best = "" if s.score is None else f", best {percent(s.score)} at step {s.best_step}"
    match s.state:
        case "done":
            return f"done{best if s.is_trial else _score(s)}"
        case "failed":
            return f"failed at step {s.step}/{s.steps}: {s.error}"
        case "damaged":
            return f"damaged: {s.error}"
        case "interrupted":
            return f"interrupted at step {s.step}/{s.steps}"
        case "waiting":
            return f"trained{best}; {s.doing}" if s.is_trial else f"evaluated{_score(s)}; {s.doing}"
        case _:
            return _running(s)


def _running(s: UnitStatus) -> str:
    attempt = f"attempt {s.attempt} of {s.attempts}, " if s.attempt and s.attempt > 1 else ""
    if s.phase == RESCORING:
        step = f" step {s.best_step}" if s.is_trial else ""
        return f"{attempt}rescoring{step} on fresh samples"
    if s.latest_step is None or not s.step:
        return f"{attempt}{s.phase or 'starting'}"
    return f"{attempt}step {s.latest_step}/{s.steps}{_score(s)}"


def _score(s: UnitStatus) -> str:
    return "" if s.latest_score is None else f", {percent(s.latest_score)}"


@contextmanager
def taking(console: Console, what: str) -> Iterator[None]:
    """Say what takes a while: on a terminal with the seconds so far, else again each time that
    these have doubled.
    """
    if console.is_terminal:
        columns = TextColumn("{task.description}…"), TimeElapsedColumn()
        with Progress(*columns, console=console, transient=True) as progress:
            progress.add_task(what, total=None)
            yield
        return
    ended, begun = threading.Event(), time.monotonic()

    def remind() -> None:
        pause = SILENCE_S
        while not ended.wait(pause):
            pause = time.monotonic() - begun
            console.print(
                f"{what}… {duration(pause)}", highlight=False, markup=False, soft_wrap=True
            )

    console.print(f"{what}…", highlight=False, markup=False, soft_wrap=True)
    thread = threading.Thread(target=remind, daemon=True, name="taking")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def building(
    console: Console, first: str = ""
) -> Iterator[Callable[[str, dict[str, float]], None]]:
    """Progress of the embedded models while they are made, and before that of what comes `first`."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    with (
        Progress(*columns, console=console, disable=not console.is_terminal) as progress,
        ExitStack() as opening,
    ):
        tasks: dict[str, TaskID] = {}
        parts: dict[str, int] = {}
        if first and console.is_terminal:
            opening.callback(
                progress.remove_task, progress.add_task(f"{first}…", total=None, loss="")
            )
        elif first:
            opening.enter_context(taking(console, first))

        def report(role: str, point: dict[str, float]) -> None:
            opening.close()
            if role not in tasks:
                tasks[role] = progress.add_task(
                    f"making the {role} model", total=point["of"], loss=""
                )
            progress.update(
                tasks[role], completed=point["update"], loss=f"loss {point['loss']:.3f}"
            )
            part = int(REPORTED_PARTS * point["update"] / max(1, point["of"]))
            if not console.is_terminal and parts.get(role) != part:
                parts[role] = part
                console.print(
                    f"making the {role} model: {100 * part // REPORTED_PARTS} %", highlight=False
                )

        yield report


class LastingOutput:
    """Standard output that outlives its reader: once a pipe is closed, what is written goes
    nowhere.

    A sweep of days must not die because `head` has seen enough. Not an `io.TextIOBase`, whose
    finalizer would flush a stream that belongs to others and may be closed by then.
    """

    def __init__(self, stream: TextIO, on_end: Callable[[], None]):
        self._stream, self._on_end = stream, on_end

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            return self._leave(len(text))

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._leave(0)

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def encoding(self) -> str:
        return self._stream.encoding

    def _leave(self, written: int) -> int:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        self._on_end()
        return written


def lasting_console(runs: Path) -> Console:
    """A console on standard output for a sweep in `runs`, which goes on when its reader is gone."""

    def tell() -> None:
        print(
            f"trb: the reader of the output is gone; the sweep goes on in {runs}", file=sys.stderr
        )

    return Console(file=LastingOutput(sys.stdout, tell))  # pyright: ignore[reportArgumentType]
