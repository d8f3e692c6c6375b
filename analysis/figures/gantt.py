"""Gantt chart of a sweep: a row for each GPU, or for each process on CPUs, and bars for its work."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.figures.picture import Caption, Picture
from analysis.figures.style import (
    BLACK,
    BLUE,
    GRAY,
    GREEN,
    NARROW,
    ORANGE,
    VERMILLION,
    WIDTH,
    legend_columns,
    new_figure,
    set_title,
    styled,
)
from orchestrator.records.clock import RESCORE, Piece, attempts, pieces
from orchestrator.records.columns import EVALUATE, START, TRAIN
from orchestrator.selection.study import Study

CAPTION = Caption(
    "Who worked when",
    "Gantt chart: a row for each GPU or process, bars for training, evaluations and start-up over time",
    "Each bar is work without a pause at one unit: steps of training, a slice of an evaluation, the start of a role. "
    "A cross ends an attempt that died or was stopped before its unit was trained.",
    "Work is clocked when it is done: what died before that has left no bar. Saving checkpoints and waiting for other "
    "processes are gaps.",
)
LOST = "lost"
COLORS = {START: GRAY, TRAIN: BLUE, LOST: VERMILLION, EVALUATE: ORANGE, RESCORE: GREEN}
TITLES = {
    START: "start-up",
    TRAIN: "training",
    LOST: "training that was taken again",
    EVALUATE: "evaluation",
    RESCORE: "fresh samples",
}
ENDED = "attempt that died or was stopped"

ROW, LEAST_ROW, HIGHEST = (
    0.26,
    0.11,
    7.0,
)  # inches: of a row, of a row with a name of its own, of all rows at most
BESIDE = 1.5  # inches: title, axis and legend
THINNEST = (
    1500  # bars and pauses that are shorter than such a part of the whole run into their neighbours
)
HOURS = (
    (48.0, 24.0, "days"),
    (2.0, 1.0, "hours"),
    (0.0, 1 / 60, "minutes"),
)  # from how many on, size, name

Place = tuple[str, str]  # machine and GPU or process, as they are shown


@dataclass(frozen=True)
class Bar:
    """Work from `start` to `end`, in seconds since the first; `kind` is a key of COLORS."""

    row: int
    kind: str
    start: float
    end: float


@dataclass(frozen=True)
class Chart:
    """Rows from the top by machine and name, their bars, and (row, seconds) at which an attempt
    ended too early.
    """

    rows: tuple[Place, ...]
    bars: tuple[Bar, ...]
    ended: tuple[tuple[int, float], ...]


def picture(study: Study) -> Picture:
    """All setups together, since they share GPUs."""
    name = f"gantt-{study.experiment.name}"
    chart = read_chart(study)
    if not chart.bars:
        return Picture(name, CAPTION, missing="nothing was clocked yet")
    lines = []
    if _row_height(len(chart.rows)) < LEAST_ROW:
        lines.append(
            f"The {len(chart.rows)} rows are too thin for names and are grouped by machine."
        )
    if chart.ended:
        lines.append(f"Attempts that died or were stopped: {len(chart.ended)}.")
    return Picture(
        name, CAPTION, partial(draw, chart, study.experiment.name), basis=" ".join(lines)
    )


# --- numbers ---


def read_chart(study: Study) -> Chart:
    """Read the chart from the clocks of a study."""
    work: list[Piece] = []
    ends: list[tuple[Piece, float]] = []
    for unit in study.units:
        run = study.reader(unit)
        done = pieces(run)
        work += done
        for attempt in attempts(run, done):
            if not attempt.complete and attempt.where is not None:
                ends.append((attempt.where, attempt.end))
    if not work:
        return Chart((), (), ())
    first = min(piece.start for piece in work)
    row_of, rows = _rows(work)
    bars = []
    for piece in work:
        kind = LOST if piece.lost else piece.kind
        bars.append(Bar(row_of(piece), kind, piece.start - first, piece.end - first))
    ended = sorted((row_of(piece), end - first) for piece, end in ends)
    return Chart(rows, tuple(_thinned(bars)), tuple(ended))


def _rows(work: Sequence[Piece]) -> tuple[Callable[[Piece], int], tuple[Place, ...]]:
    """Which row a piece stands in, and the rows: GPUs; on machines without, as many as processes
    ran side by side.
    """
    spans: dict[tuple[str, str, int], list[float]] = {}
    for piece in work:
        start, end = spans.setdefault(_doer(piece), [piece.start, piece.end])
        spans[_doer(piece)] = [min(start, piece.start), max(end, piece.end)]
    place_of: dict[tuple[str, str, int], Place] = {}
    busy_until: dict[str, list[float]] = defaultdict(list)
    for doer, (start, end) in sorted(spans.items(), key=lambda item: (item[1], item[0])):
        host, gpu, _ = doer
        if gpu:
            place_of[doer] = host, f"GPU {gpu}"
            continue
        until = busy_until[host]
        free = next((row for row, busy in enumerate(until) if busy <= start), len(until))
        until[free:] = [end, *until[free + 1 :]]
        place_of[doer] = host, f"process {free + 1}"
    rows = sorted(set(place_of.values()), key=lambda place: (place[0], len(place[1]), place[1]))
    number = {place: row for row, place in enumerate(rows)}
    return lambda piece: number[place_of[_doer(piece)]], tuple(rows)


def _doer(piece: Piece) -> tuple[str, str, int]:
    """Machine, GPU and process; of a GPU it does not matter which process used it."""
    return piece.host or "", piece.gpu or "", 0 if piece.gpu else piece.process or 0


def _thinned(bars: Sequence[Bar]) -> list[Bar]:
    """Bars in the order of rows and time; those too thin to be seen run into a neighbour of their
    kind.
    """
    thin = max(bar.end for bar in bars) / THINNEST
    found: list[Bar] = []
    for bar in sorted(bars, key=lambda bar: (bar.row, bar.kind, bar.start, bar.end)):
        last = found[-1] if found else None
        same = last is not None and (last.row, last.kind) == (bar.row, bar.kind)
        if (
            last is not None
            and same
            and bar.start - last.end < thin
            and min(_length(bar), _length(last)) < thin
        ):
            found[-1] = Bar(bar.row, bar.kind, last.start, max(last.end, bar.end))
        else:
            found.append(bar)
    return found


def _length(bar: Bar) -> float:
    return bar.end - bar.start


# --- drawing ---


@styled()
def draw(chart: Chart, title: str, width: float = WIDTH) -> Figure:
    """The chart, over the time since the first work; at least one bar."""
    height = _row_height(len(chart.rows))
    figure = new_figure(width, BESIDE + max(0.6, height * len(chart.rows)))
    axes = figure.subplots()
    whole = max(bar.end for bar in chart.bars)
    size, unit = next((hour * 3600, name) for most, hour, name in HOURS if whole / 3600 >= most)
    edge = 0.4 if len(chart.bars) <= THINNEST // 2 else 0.0
    shown = [kind for kind in COLORS if any(bar.kind == kind for bar in chart.bars)]
    for kind in shown:
        corners = [_corners(bar, size) for bar in chart.bars if bar.kind == kind]
        look: dict[str, Any] = {
            "facecolor": COLORS[kind],
            "edgecolor": "white",
            "linewidth": edge,
            "zorder": 2,
        }
        axes.add_collection(PolyCollection(corners, **look))
    axes.set_xlim(0, max(whole / size, 1e-9))
    axes.set_ylim(len(chart.rows) - 0.4, -0.6)
    if chart.ended:
        rows, moments = zip(*chart.ended, strict=True)
        marks: dict[str, Any] = {
            "color": BLACK,
            "markeredgecolor": BLACK,
            "markeredgewidth": 1.2,
            "clip_on": False,
        }
        axes.plot(
            [at / size for at in moments],
            rows,
            "x",
            markersize=min(6.0, 50 * height),
            zorder=3,
            **marks,
        )
    _name_rows(axes, chart.rows, height, width)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"{unit} since the first work")
    set_title(axes, title)
    handles: list[Any] = [Patch(facecolor=COLORS[kind], label=TITLES[kind]) for kind in shown]
    if chart.ended:
        handles.append(Line2D([], [], color="none", marker="x", markeredgecolor=BLACK, label=ENDED))
    columns = legend_columns([str(handle.get_label()) for handle in handles], width)
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)
    return figure


def _row_height(rows: int) -> float:
    """Inches of a row."""
    return min(ROW, HIGHEST / rows)


def _corners(bar: Bar, size: float) -> list[tuple[float, float]]:
    left, right, top, bottom = bar.start / size, bar.end / size, bar.row - 0.42, bar.row + 0.42
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def _name_rows(axes: Axes, rows: Sequence[Place], height: float, width: float) -> None:
    """Each row by its name, with its machine where there are several; thin rows by their machine
    alone.
    """
    hosts = Counter(host for host, _ in rows)
    if height >= LEAST_ROW:
        several = len(hosts) > 1
        axes.set_yticks(
            range(len(rows)), [f"{host} {name}" if several else name for host, name in rows]
        )
    else:
        middles, begin = [], 0
        for count in hosts.values():
            middles.append(begin + (count - 1) / 2)
            begin += count
            axes.axhline(begin - 0.5, color=GRAY, linewidth=0.5)
        axes.set_yticks(
            middles, [f"{host or 'machine'} ({count})" for host, count in hosts.items()]
        )
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
        if width < NARROW:
            label.set_fontsize(6)
