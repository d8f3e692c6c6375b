"""A sweep while it runs: a live table on a terminal, a line for each event everywhere else."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from orchestrator.commands.display import (
    ONE_SEED,
    Gaps,
    duration,
    header,
    say,
    summary_lines,
    sweep_lines,
)
from orchestrator.commands.events import Events
from orchestrator.commands.status_tables import units_view
from orchestrator.commands.waiting import SILENCE_S
from orchestrator.experiment.methods import BASE, REFERENCE, method_label
from orchestrator.monitor import status
from orchestrator.monitor.status import Overview, Session
from orchestrator.selection.study import Study

REFRESH_S = 1.0
MOST_OF_A_CORE = 0.1  # that looking may take
LAST_LOOK_S = 10.0  # for the last look: run directories that cannot be read hold nothing up
PROGRESS_S = 10.0  # between two lines on units that go on; ends and failures are shown at once
QUIET_S = 300.0  # without an event, after which a line sums the sweep up
MOST_SUMMARY = 7  # lines under the table of a terminal
STARTING = "starting workers, which load PyTorch"


@dataclass
class Watch:
    """Repeated looks at a sweep's run directories, by its driver, with a `session`, or any process.

    `keys` say what Ctrl-C does; `every` and `sort` are those of `status_tables.units_view`.
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
        """Read the sweep's state. Intervals are computed anew only when one more method is done."""
        study = self.study.snapshot()
        overview = status.overview(study, self.session)
        # The driver holds the untrained students for a moment, to describe them. They have no
        # phase then, and no worker is at work.
        self.at_work = self.at_work or any(s.state == "running" and s.phase for s in overview.units)
        finished = finished_families(overview)
        if finished != self._finished:
            self._finished, self.gaps = finished, gaps_of(study, finished)
        return overview

    @property
    def starting(self) -> str:
        """`starting workers, which load PyTorch… 5s` until a worker of this session is at work."""
        if self.session is None or self.at_work:
            return ""
        return f"{STARTING}… {duration(time.monotonic() - self.begun)}"

    def view(self, overview: Overview, console: Console, keys: Sequence[str]) -> Group:
        """The picture for a terminal, no higher than it is unless `every` unit is asked for."""
        width = console.width
        above = header(self.study, width, keys)
        rows = max(1, console.height - len(above) - MOST_SUMMARY - 2)  # a heading, and a blank line
        units = units_view(overview, width, rows, self.every, self.sort)
        below = summary_lines(overview, width, self.gaps)
        if self.starting:
            below.insert(0, Text(self.starting))
        return Group(*above, *units, Text(), *below[:MOST_SUMMARY])


def finished_families(overview: Overview) -> frozenset[tuple[str, str]]:
    """Setup and label of each method whose units are all done.

    A damaged unit leaves none: the scores of its sweep cannot be read.
    """
    finished = set()
    for family in overview.families:
        if set(family.states) == {"done"}:
            finished.add((family.setup, family.label))
    damaged = any(s.state == "damaged" for s in overview.units)
    return frozenset() if damaged else frozenset(finished)


def gaps_of(study: Study, finished: Collection[tuple[str, str]]) -> Gaps:
    """Differences to vanilla of the finished methods of each setup where vanilla is finished."""
    from analysis.facts.evidence import with_interval
    from analysis.facts.facts import facts
    from analysis.labels import AVERAGE

    gaps: dict[tuple[str, str], str] = {}
    if len(finished) < 2:
        return gaps
    for row in facts(study, depth="intervals").rows:
        family = row.setup, method_label(row.method)
        reference = row.setup, method_label(REFERENCE)
        difference = row.columns[AVERAGE].difference
        if row.method != BASE and difference is not None and {family, reference} <= set(finished):
            one_seed = ONE_SEED if difference.estimate.over == "problems" else ""
            gaps[family] = with_interval(difference.estimate) + one_seed
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
    """Show the units until `ended`; without a session until all are done or one is damaged.

    Without a session a pipe also ends where no process works on the sweep: its reader would wait
    for ever.
    """
    if console.is_terminal:
        _follow_live(watch, console, ended)
    else:
        _follow_lines(watch, console, ended)


def _is_over(watch: Watch, overview: Overview, ended: threading.Event) -> bool:
    if watch.session is not None:
        return ended.is_set()
    states = {s.state for s in overview.units}
    return ended.is_set() or states <= {"done"} or "damaged" in states


def _follow_live(watch: Watch, console: Console, ended: threading.Event) -> None:
    overview, spent = watch.look(), 0.0
    view = watch.view(overview, console, watch.keys)
    with Live(view, console=console, auto_refresh=False) as live:
        while not _is_over(watch, overview, ended):
            ended.wait(pause_after(spent))
            begun = time.thread_time()
            overview = watch.look()
            live.update(watch.view(overview, console, watch.keys), refresh=True)
            spent = time.thread_time() - begun
        live.update(watch.view(overview, console, ()), refresh=True)  # the keys do nothing any more


def pause_after(spent: float) -> float:
    """Seconds until the next look, after one that took so much CPU time."""
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
        # The first sign of life is shown at once, later ones every PROGRESS_S.
        lines = ended_units + (going_on[-1:] if silence > PROGRESS_S or not signs else [])
        signs = signs or bool(lines)
        # The start is mentioned ever more rarely: after 3, 6, 12 seconds.
        patience = max(SILENCE_S, (time.monotonic() - watch.begun) / 2)
        if not lines and watch.starting and silence > patience:
            lines = [watch.starting]
        if last or (not lines and silence > QUIET_S):
            lines += sweep_lines(overview, watch.gaps)
        for line in lines:
            say(console, f"{time.strftime('%H:%M:%S')} {line}")
            spoke = time.monotonic()
        if last:
            return
