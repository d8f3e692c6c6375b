"""`trb status`, and a sweep while it runs: a live view on a terminal, a line for each event in a
pipe. `trb submit` shows the same.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from orchestrator.commands.arguments import JSON, Parser, add_experiment, load
from orchestrator.commands.display import (
    ONE_SEED,
    Gaps,
    header,
    idle_line,
    runs_line,
    say,
    summary_lines,
    sweep_lines,
    where_to_look,
)
from orchestrator.commands.unit_rows import ORDERS, duration, names, percent, units_view
from orchestrator.commands.waiting import SILENCE_S
from orchestrator.experiment.methods import BASE, REFERENCE, method_label
from orchestrator.monitor import status
from orchestrator.monitor.status import Overview, Session
from orchestrator.monitor.unit_status import UnitStatus
from orchestrator.records.log import RESCORING, TRAINING
from orchestrator.selection.study import Study

PIPE_WIDTH = 400  # where no terminal is the limit
REFRESH_S = 1.0
MOST_OF_A_CORE = 0.1  # that looking may take
LAST_LOOK_S = 10.0  # for the last look: run directories that cannot be read hold nothing up
PROGRESS_S = 10.0  # between two lines on units that go on; ends and failures are shown at once
QUIET_S = 300.0  # without an event, after which a line sums the sweep up
MOST_SUMMARY = 7  # lines under the table of a terminal
STARTING = "starting workers, which load PyTorch"


def add(parser: Parser) -> None:
    add_experiment(parser)
    shown = parser.add_mutually_exclusive_group()
    text = "go on looking until every unit is done or Ctrl-C; in a pipe a line for each event"
    shown.add_argument("--watch", action="store_true", help=text)
    shown.add_argument("--json", action="store_true", help=JSON)
    parser.flag("--all", "every unit, also of a large sweep")
    parser.option("--sort", None, "order of the units (default: plan)", choices=[*ORDERS])


def run(options: argparse.Namespace) -> int:
    study = load(options)
    if options.watch:
        return watch_status(study, Console(), options.all, options.sort)
    return show_status(study, Console(), options.json, options.all, options.sort)


def show_status(
    study: Study, console: Console, as_json: bool, every: bool, sort: str | None
) -> int:
    """Print the units; 1 if no runs folder exists, or if a unit is damaged, else 0."""
    study = study.snapshot()
    overview = status.overview(study)
    study.remember()
    if as_json:
        document = {
            "units": [s.to_json() for s in overview.units],
            "sweep": overview.to_json(),
            "runs": str(study.runs),
        }
        print(json.dumps(document, indent=2))
        return _code(study, overview)
    say(console, runs_line(study.runs, overview))
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    units = units_view(overview, console.width, every=every, sort=sort)
    below = summary_lines(overview, console.width, gaps_of(study, overview.finished))
    console.print(*units, "", *below, sep="\n")
    for s in overview.in_state("failed"):
        say(console, f"{s.id}: {s.error}", where_to_look(s, study.runs))
    return _say_how_it_ends(study, overview, console)


def watch_status(study: Study, console: Console, every: bool, sort: str | None) -> int:
    """Show the units while others work on them, until all are done or one is damaged.

    A pipe gets a line for each event. 1 if no runs folder exists or a unit is damaged, else 0. A
    pipe ends where no process works on the sweep.
    """
    if not study.runs.is_dir():
        overview = status.overview(study)
        say(console, runs_line(study.runs, overview))
        return _say_how_it_ends(study, overview, console)
    watch = Watch(study, ("Ctrl-C ends the look, not the sweep",), every=every, sort=sort)
    if console.is_terminal:
        idle = idle_line(status.overview(study.snapshot()), study)
        if idle:
            say(console, idle)
    else:
        for line in header(study, PIPE_WIDTH):
            console.print(line, highlight=False, soft_wrap=True)
    follow(watch, console, threading.Event())
    return _say_how_it_ends(study, watch.look(), console)


def _say_how_it_ends(study: Study, overview: Overview, console: Console) -> int:
    """Name damaged units, else the command that goes on where no process works; the exit code."""
    damaged = overview.in_state("damaged")
    for s in damaged:
        say(console, f"{s.id}: {s.error}")
    idle = idle_line(overview, study)
    if idle and not damaged:
        say(console, idle)
    return _code(study, overview)


def _code(study: Study, overview: Overview) -> int:
    return 0 if study.runs.is_dir() and not overview.in_state("damaged") else 1


# --- looks at a sweep that goes on ---


@dataclass
class Watch:
    """Repeated looks at a sweep's run directories, by its driver, with a `session`, or any process.

    `keys` say what Ctrl-C does; `every` and `sort` are those of `unit_rows.units_view`.
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
        self.at_work = self.at_work or any(s.phase for s in overview.in_state("running"))
        if overview.finished != self._finished:
            self._finished = overview.finished
            self.gaps = gaps_of(study, self._finished)
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

    def is_over(self, overview: Overview, ended: threading.Event) -> bool:
        """Whether the look ends; without a session once all units are done, or one is damaged."""
        if ended.is_set() or self.session is not None:
            return ended.is_set()
        return overview.is_done or bool(overview.in_state("damaged"))


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


def _follow_live(watch: Watch, console: Console, ended: threading.Event) -> None:
    overview, spent = watch.look(), 0.0
    view = watch.view(overview, console, watch.keys)
    with Live(view, console=console, auto_refresh=False) as live:
        while not watch.is_over(overview, ended):
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
        last = watch.is_over(overview, ended) or (watch.session is None and not overview.driven)
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


# --- a line for each event: a unit began, reached a step, ended or failed ---


class Events:
    """News of a sweep since the last look, a line for each unit; the first look brings none."""

    def __init__(self, first: Overview):
        self._seen = {s.id: _sign(s) for s in first.units if s.state != "running"}

    def since_then(self, overview: Overview) -> tuple[list[str], list[str]]:
        """Lines on units with news: of those that ended or failed, and of those that go on.

        `[4/10, 1m20s left] TRB epsilon0=0.05 K=12 seed 0: step 40/60, 45.5` begins with the units
        that are done, and the time that the sweep still takes.
        """
        called, ended, going_on = names(overview.units), [], []
        done = overview.done
        of = len(overview.units) + overview.to_confirm
        left = f", {duration(overview.seconds_left)} left" if overview.seconds_left else ""
        for s in overview.units:
            sign = _sign(s)
            needs_another = s.state == "waiting" and s.phase == TRAINING
            if self._seen.get(s.id) != sign and s.state != "queued" and not needs_another:
                lines = going_on if s.state in ("running", "waiting") else ended
                lines.append(f"[{done}/{of}{left}] {called[s.id]}: {event(s)}")
            self._seen[s.id] = sign
        return ended, going_on


def _sign(s: UnitStatus) -> tuple[object, ...]:
    """The facts of a unit whose change is an event."""
    return s.state, s.state == "running" and s.phase == RESCORING, s.latest_step, s.attempt, s.error


def event(s: UnitStatus) -> str:
    """Describe the state of a unit in words."""
    latest = "" if s.latest_score is None else f", {percent(s.latest_score)}"
    reached = latest
    if s.is_trial:
        best = "" if s.confirms is not None else "best "
        reached = "" if s.score is None else f", {best}{percent(s.score)} at step {s.best_step}"
    match s.state:
        case "done":
            return f"done{reached}"
        case "failed":
            return f"failed at step {s.step}/{s.steps}: {s.error}"
        case "damaged":
            return f"damaged: {s.error}"
        case "stopped":
            return f"stopped by the search at step {s.step}/{s.steps}{reached}"
        case "interrupted":
            return f"interrupted at step {s.step}/{s.steps}"
        case "waiting":
            return f"{'trained' if s.is_trial else 'evaluated'}{reached}; {s.doing}"
    attempt = f"attempt {s.attempt} of {s.attempts}, " if s.attempt and s.attempt > 1 else ""
    if s.phase == RESCORING:
        step = f" step {s.best_step}" if s.is_trial else ""
        return f"{attempt}rescoring{step} on fresh samples"
    if s.latest_step is None or not s.step:
        return f"{attempt}{s.phase or 'starting'}"
    return f"{attempt}step {s.latest_step}/{s.steps}{latest}"
