"""Gantt chart of a sweep: a row for each GPU, or for each process on CPUs, and bars for its work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.figures import panels, style
from analysis.figures.picture import Caption, Picture
from orchestrator.records.clock import RESCORE, Piece, attempts, pieces
from orchestrator.records.columns import EVALUATE, START, TRAIN
from orchestrator.selection.study import Study

CAPTION = Caption(
    "gantt",
    "Who worked when",
    "Gantt chart: a row for each GPU or process, bars for training, evaluations and start-up over time",
    "Each bar is work without a pause at one unit: steps of training, a slice of an evaluation, the start of a role. "
    "A cross ends an attempt that died or was stopped before its unit was trained.",
    "Work is clocked when it is done: what died before that has left no bar. Saving checkpoints and waiting for other "
    "processes are gaps.",
)
LOST = "lost"
KINDS = {
    START: ("start-up", style.GRAY),
    TRAIN: ("training", style.BLUE),
    LOST: ("training that was taken again", style.VERMILLION),
    EVALUATE: ("evaluation", style.ORANGE),
    RESCORE: ("fresh samples", style.GREEN),
}
ENDED = "attempt that died or was stopped"

ROW, HIGHEST = 0.26, 7.0  # inches: of a row, of all rows at most
NAME = 0.12  # inches that the name of a row takes
BESIDE = 1.5  # inches: title, axis and legend
THINNEST = 1500  # bars and pauses are thin below this part of the whole time: 1/1500
# Hours from which on the axis has a unit, hours of the unit, and its name.
HOURS = ((48.0, 24.0, "days"), (2.0, 1.0, "hours"), (0.0, 1 / 60, "minutes"))

Place = tuple[str, str]  # machine and GPU or process, as they are shown
Worker = tuple[str, str, int]  # machine, GPU, and process if it has no GPU


@dataclass(frozen=True)
class Bar:
    """Work from `start` to `end`, in seconds since the first work; `kind` is a key of KINDS."""

    row: int
    kind: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Chart:
    """Rows from the top by machine and name, and their bars.

    `ended` has the row and the second of each attempt that ended too early.
    """

    rows: tuple[Place, ...]
    bars: tuple[Bar, ...]
    ended: tuple[tuple[int, float], ...]


def picture(study: Study) -> Picture:
    """All setups together, since they share GPUs."""
    name, chart = study.experiment.name, read_chart(study)
    if not chart.bars:
        return Picture(CAPTION, name, missing="nothing was clocked yet")
    basis = f"Attempts that died or were stopped: {len(chart.ended)}." if chart.ended else ""
    return Picture(CAPTION, name, partial(draw, chart, name), basis)


# --- numbers ---


def read_chart(study: Study) -> Chart:
    """The chart of all clocked work of a study."""
    work: list[Piece] = []
    ends: list[tuple[Piece, float]] = []
    for unit in study.units:
        run = study.reader(unit)
        done = pieces(run)
        work += done
        for attempt in attempts(run, done):
            if not attempt.complete and attempt.where is not None:
                ends.append((attempt.where, attempt.end))
    first = min((piece.start for piece in work), default=0.0)
    places = _places(work)
    rows = sorted(set(places.values()), key=lambda place: (place[0], len(place[1]), place[1]))
    bars = []
    for piece in work:
        row, kind = rows.index(places[_worker(piece)]), LOST if piece.lost else piece.kind
        bars.append(Bar(row, kind, piece.start - first, piece.end - first))
    ended = sorted((rows.index(places[_worker(piece)]), end - first) for piece, end in ends)
    return Chart(tuple(rows), tuple(_thinned(bars)), tuple(ended))


def _places(work: Sequence[Piece]) -> dict[Worker, Place]:
    """The row of each worker: its GPU, or a numbered process on machines without GPUs.

    A new process takes the row of one that has ended, so a machine has as many rows as processes
    ran side by side.
    """
    spans: dict[Worker, tuple[float, float]] = {}
    for piece in work:
        start, end = spans.get(_worker(piece), (piece.start, piece.end))
        spans[_worker(piece)] = min(start, piece.start), max(end, piece.end)
    places: dict[Worker, Place] = {}
    busy_until: dict[str, list[float]] = defaultdict(list)
    for (host, gpu, process), (start, end) in sorted(spans.items(), key=lambda item: item[::-1]):
        if gpu:
            places[host, gpu, process] = host, f"GPU {gpu}"
            continue
        # The first row that is free again, else a new one.
        until = busy_until[host]
        row = next((row for row, busy in enumerate(until) if busy <= start), len(until))
        until[row : row + 1] = [end]
        places[host, gpu, process] = host, f"process {row + 1}"
    return places


def _worker(piece: Piece) -> Worker:
    """The worker of a piece; all processes of a GPU are one worker."""
    return piece.host or "", piece.gpu or "", 0 if piece.gpu else piece.process or 0


def _thinned(bars: Sequence[Bar]) -> list[Bar]:
    """Bars in the order of rows, kinds and time, thin ones joined to a neighbour of their kind.

    A sweep of the paper's size has some hundred thousand bars. Most are too thin to be seen, and
    joining them bounds the bytes of the page.
    """
    thin = max((bar.end for bar in bars), default=0.0) / THINNEST
    joined: list[Bar] = []
    for bar in sorted(bars, key=lambda bar: (bar.row, bar.kind, bar.start, bar.end)):
        last = joined[-1] if joined else None
        if (
            last is not None
            and (last.row, last.kind) == (bar.row, bar.kind)
            and bar.start - last.end < thin
            and min(bar.seconds, last.seconds) < thin
        ):
            joined[-1] = Bar(bar.row, bar.kind, last.start, max(last.end, bar.end))
        else:
            joined.append(bar)
    return joined


# --- drawing ---


@style.styled()
def draw(chart: Chart, title: str, width: float = style.WIDTH) -> Figure:
    """The chart over the time since the first work; it has at least one bar."""
    height = min(ROW, HIGHEST / len(chart.rows))
    figure = style.new_figure(width, BESIDE + max(0.6, height * len(chart.rows)))
    axes = figure.subplots()
    whole = max(bar.end for bar in chart.bars)
    size, unit = next((hours * 3600, name) for most, hours, name in HOURS if whole / 3600 >= most)
    # White edges part bars that touch, and would hide bars that are thinner than an edge.
    edge = 0.4 if len(chart.bars) <= THINNEST // 2 else 0.0
    handles: list[Any] = []
    for kind, (name, color) in KINDS.items():
        spans: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for bar in chart.bars:
            if bar.kind == kind:
                spans[bar.row].append((bar.start / size, bar.seconds / size))
        fill: dict[str, Any] = {"facecolor": color, "edgecolor": "white", "linewidth": edge}
        for row, own in spans.items():
            axes.broken_barh(own, (row - 0.42, 0.84), zorder=2, **fill)
        if spans:
            handles.append(Patch(facecolor=color, label=name))
    cross: dict[str, Any] = {"color": "none", "marker": "x", "markeredgecolor": style.BLACK}
    for row, end in chart.ended:
        at = {"markersize": min(6.0, 50 * height), "markeredgewidth": 1.2, "zorder": 3}
        axes.plot(end / size, row, clip_on=False, **cross, **at)
    if chart.ended:
        handles.append(Line2D([], [], label=ENDED, **cross))
    axes.set_xlim(0, max(whole / size, 1e-9))
    axes.set_ylim(len(chart.rows) - 0.4, -0.6)
    several = len({host for host, _ in chart.rows}) > 1
    names = []
    for host, name in chart.rows:
        names.append(f"{host} {name}" if several else name)
    # Rows that are thinner than a name leave out the names between.
    named = range(0, len(names), ceil(NAME / height))
    axes.set_yticks(named, [names[row] for row in named])
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
        label.set_fontsize(8 if width >= style.NARROW else 6)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"{unit} since the first work")
    panels.set_title(axes, title)
    panels.legend_below(figure, handles)
    return figure
