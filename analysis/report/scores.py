"""The first screen and the scores of the page, as texts, sheets and points for its templates."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import fmean
from typing import Any

from analysis.facts import curves, probe
from analysis.facts.columns import (
    GAP,
    LIMITS,
    METHOD,
    SEEDS,
    SETTING,
    STEP,
    TITLES,
    P,
    captions,
)
from analysis.facts.comparison import compare_all
from analysis.facts.curves import Curve, ScoredSetting, SetupRuns
from analysis.facts.evidence import (
    ONE_RUN,
    Difference,
    Facts,
    GapAxis,
    with_interval,
)
from analysis.facts.verdict import brief_intervals, explanation, headline
from analysis.figures.panels import method_style
from analysis.figures.picture import Picture, to_bytes
from analysis.labels import AVERAGE, BASE, method_label, setup_title
from analysis.table.compare import checkpoints_text
from analysis.table.compare import explanation as comparison_notes
from analysis.table.compare import sheet_of as comparison_sheet
from analysis.table.evidence_formats import (
    blocks,
    by_setup,
    number_text,
    row_cells,
    score_text,
    sheet_of,
    tested_text,
)
from analysis.table.model import Table
from orchestrator.config import Experiment
from orchestrator.experiment.axes import setting_text
from orchestrator.experiment.probe import BEHAVIORS
from orchestrator.records.log import COLUMNS, Column
from orchestrator.sheet import Sheet

PERCENT = 100
QUANTITIES: Mapping[str, Column] = {
    key: column for key, column in COLUMNS.items() if column.heading
}

# --- head and first screen: verdict, leaderboards, curves ---


@dataclass(frozen=True)
class Line:
    """One method of a leaderboard with its `difference` to Vanilla, also in words."""

    method: str
    label: str
    color: str
    score: str
    difference: Difference | None
    gap: str
    p: str


@dataclass(frozen=True)
class Board:
    """The methods of a setup from the best average down, beside its scores over training."""

    title: str
    lines: list[Line]
    axis: GapAxis
    picture: Picture | None

    def place(self, value: float | Fraction) -> float:
        """The place of a difference on the axis, in per cent of the width."""
        return round(PERCENT * self.axis.share(float(value)), 2)


def head(facts: Facts) -> dict[str, Any]:
    """How much of the experiment is done, and what it compares."""
    states = Counter[str]()
    failed = []
    for status in facts.overview.units if facts.overview else ():
        states[status.state] += 1
        if status.state == "failed":
            failed.append(f"Failed: {status.id}: {status.error}")
    done = states.pop("done", 0) + states["stopped"]
    return {
        "headline": headline(facts),
        "done": f"{done} of {len(facts.overview.units) if facts.overview else 0} units are done.",
        "others": ", ".join(f"{count} {state}" for state, count in states.items()),
        "failed": failed,
        "methods": ", ".join(map(method_label, facts.experiment.methods)),
        "seeds": _seeds(facts.experiment),
    }


def _seeds(experiment: Experiment) -> str:
    """`1 seed`, `5 seeds` or `1 to 3 seeds a method`."""
    counts = sorted({len(experiment.seeds_of(method)) for method in experiment.methods})
    if len(counts) > 1:
        return f"{counts[0]} to {counts[-1]} seeds a method"
    return f"{counts[0]} seed{'s' if counts[0] > 1 else ''}"


def boards(facts: Facts, drawn: Mapping[str, Picture]) -> list[Board]:
    """A leaderboard for each setup that has scores; confirmed scores where there are any."""
    confirmed = {(row.setup, row.method): row for row in facts.confirmed if row.columns}
    found = []
    for name, rows in by_setup(facts, "selected").items():
        gaps: dict[str, Difference | None] = {}
        scores = {}
        for row in rows:
            shown = (confirmed.get((name, row.method)) or row).columns[AVERAGE]
            scores[row.method], gaps[row.method] = shown.score, shown.difference
        trained = [gap for method, gap in gaps.items() if gap and method != BASE]
        lines = []
        for index, row in sorted(enumerate(rows), key=lambda each: -scores[each[1].method].value):
            gap, words, p = gaps[row.method], "", ""
            if gap is not None:
                one_run = ONE_RUN if gap.estimate.over == "problems" else ""
                words, p = with_interval(gap.estimate) + one_run, tested_text(gap)
            color, score = method_style(row.method, index)[0], score_text(scores[row.method])
            label = method_label(row.method)
            lines.append(Line(row.method, label, color, score, gap, words, p))
        picture = drawn.get(f"trajectories-{name}")
        title = setup_title(name, facts.experiment.setups)
        found.append(Board(title, lines, GapAxis.around(trained), picture))
    return found


def image(picture: Picture, width: float | None = None) -> str:
    """The figure as the address of an SVG image.

    An SVG inside an image keeps its ids and styles to itself; inline they would clash with those of
    the page and of other figures.
    """
    figure = picture.figure if width is None else replace(picture, width=width).figure
    assert figure is not None, "a missing figure has no image"
    return f"data:image/svg+xml;base64,{base64.b64encode(to_bytes(figure, 'svg')).decode()}"


# --- scores and what is behind them ---

# The columns of the selected checkpoints that stand first; the others unfold.
FIRST = (METHOD, "Avg", GAP, LIMITS, P, SEEDS, SETTING, STEP)


def results(facts: Facts, table: Table) -> dict[str, Any]:
    """The sheets of each setup by its title, those across setups, and the notes under them."""
    setups: dict[str, list[tuple[str, Sheet]]] = {}
    found = blocks(facts)
    for setup in table.places():
        sheets = [("pass@1 (%), ± the reach of its 95 % interval", table.only(setup).sheet())]
        for block in found:
            if block.setup == setup and block.kind == "selected":
                sheets.append(("Selected checkpoints, Avg (%)", _arranged(block.sheet)))
            elif block.setup == setup and block.kind != "responses":
                sheets.append((f"{TITLES[block.kind]}, Avg (%)", block.sheet))
        setups[table.title(setup)] = sheets
    across = [block for block in found if block.kind == "across"]
    if across:
        setups["All setups"] = [(f"{TITLES['across']}, Avg (%)", across[0].sheet)]
    return {
        "setups": setups,
        "brief": brief_intervals(facts) if facts.rows else [],
        "explanation": explanation(facts),
    }


def _arranged(sheet: Sheet) -> Sheet:
    """The sheet with the columns of FIRST before the others."""
    places = [place for name in FIRST for place, own in enumerate(sheet.headings) if own == name]
    places += [place for place in range(len(sheet.headings)) if place not in places]
    return sheet.only(places)


def responses(facts: Facts, table: Table) -> dict[str, Any]:
    """The numbers behind pass@1 by setup: a row for each method and benchmark."""
    sheets = {}
    for setup, rows in by_setup(facts, "responses").items():
        cells = []
        for row in rows:
            for column in table.only(setup).columns:
                numbers = row_cells("responses", row, column.benchmark)
                cells.append({METHOD: numbers.pop(METHOD), "Benchmark": column.label} | numbers)
        sheets[table.title(setup)] = replace(sheet_of(cells), left=(0, 1))
    return {"sheets": sheets, "notes": captions(facts, "responses")}


@dataclass(frozen=True)
class Pair:
    """Two methods of a setup, compared by benchmark."""

    methods: str
    title: str
    sheet: Sheet
    note: str


def pairs(facts: Facts) -> dict[str, tuple[dict[str, str], list[Pair]]]:
    """Title of a setup → its methods with their labels, and the comparisons of every two."""
    found = {}
    for name, comparisons in compare_all(facts.study, facts.selected).items():
        labels: dict[str, str] = {}
        own = []
        for comparison in comparisons:
            labels |= {method: method_label(method) for method in comparison.methods}
            note = " ".join(comparison_notes([comparison]))
            title, sheet = checkpoints_text(comparison), comparison_sheet(comparison)
            own.append(Pair(" ".join(comparison.methods), title, sheet, note))
        if own:
            found[setup_title(name, facts.experiment.setups)] = (labels, own)
    return found


# --- curves and figures ---

# Plotly's name of each marker of the figures.
SYMBOLS = {
    "X": "x", "o": "circle", "p": "pentagon", "D": "diamond", "^": "triangle-up", "v": "triangle-down",
    "s": "square", "*": "star", "P": "cross", "d": "diamond-tall", "h": "hexagon", "<": "triangle-left",
    ">": "triangle-right",
}  # fmt: skip


def curves_data(facts: Facts) -> dict[str, Any]:
    """The points that `page.js` draws; without setups before the first step of a chosen run."""
    setups = []
    for runs in facts.runs:
        lines = []
        for index, setting in enumerate(runs.best.values()):
            values = _values(runs, setting)
            if values:
                color, marker = method_style(setting.method, index)
                label = f"{method_label(setting.method)} {setting_text(setting.knobs)}".rstrip()
                style = {"color": color, "symbol": SYMBOLS[marker]}
                own = {"method": setting.method, "name": label, "values": values}
                lines.append(own | style)
        if lines:
            setups.append({"title": runs.title, "lines": lines})
    quantities = [{"key": "score", "title": "Mean pass@1 (%)", "decimals": 1}]
    for key, column in QUANTITIES.items():
        quantities.append({"key": key, "title": column.heading, "decimals": column.decimals})
    return {"quantities": quantities, "setups": setups}


def _values(runs: SetupRuns, setting: ScoredSetting) -> dict[str, Any]:
    """Quantity → `means`, points of step, value and number of runs, and `seeds`, with the seed."""
    values = {}
    scores = curves.score_series(setting, runs.untrained)
    if scores.has_values:
        seeds = []
        for seed, of_seed in curves.seed_scores(runs.study, setting).items():
            seeds += [[step, _short(PERCENT * score), seed] for step, score in of_seed.items()]
        values["score"] = {"means": _means(scores.curve, PERCENT), "seeds": seeds}
    for key, series in curves.metric_series(runs.study, setting, list(QUANTITIES)).items():
        values[key] = {"means": _means(series.curve, QUANTITIES[key].factor), "seeds": []}
    return values


def _means(curve: Curve, factor: int) -> list[list[float | None]]:
    """Points of step, mean and number of runs; a step without the quantity breaks the line."""
    points = []
    for step, values in sorted(curve.items()):
        points.append([step, _short(factor * fmean(values)) if values else None, len(values)])
    return points


def _short(value: float) -> float:
    """Round to six digits, more than a chart shows, so that the page stays small."""
    return float(f"{value:.6g}")


def steps(facts: Facts) -> dict[str, Sheet]:
    """Title of a setup → mean scores by step, the numbers of the chart for who uses no pointer."""
    found = {}
    for runs in facts.runs:
        series = [curves.score_series(each, runs.untrained) for each in runs.best.values()]
        scores, rows = [each.means(PERCENT) for each in series], []
        for step in sorted(set().union(*scores)):
            rows.append([f"{step:g}", *(number_text(own.get(step)) for own in scores)])
        if rows:
            found[runs.title] = Sheet.of(["Step", *map(method_label, runs.best)], rows)
    return found


def figures(facts: Facts, drawn: Mapping[str, Picture]) -> dict[str, Any]:
    """The figures with the title of what they show, and why others are missing.

    The first screen has the trajectories, and the map before them.
    """
    setups, shown, missing = facts.experiment.setups, [], []
    for picture in drawn.values():
        subject = setup_title(picture.subject, setups)
        if picture.drawing is None:
            missing.append(f"{picture.caption.title}, {subject}: {picture.missing}")
        elif picture.caption.kind not in ("trajectories", "map"):
            shown.append((picture, subject))
    maps = [each for each in drawn.values() if each.caption.kind == "map" and each.drawing]
    return {"shown": shown, "missing": missing, "map": maps[0] if maps else None}


def excerpts(facts: Facts) -> dict[str, tuple[list[dict[str, Any]], float]]:
    """Title of a setup → the probe's pairs of rollouts, and the off-task share of its student."""
    found = {}
    for name, setup in facts.experiment.setups.items():
        own = []
        for excerpt in probe.excerpts(facts.study, name):
            sides = {method_label(behavior): excerpt[behavior] for behavior in BEHAVIORS}
            own.append({"prompt": excerpt["prompt"], "gold": excerpt["gold"], "sides": sides})
        recipe = setup.student.recipe
        title = setup_title(name, facts.experiment.setups)
        found[title] = (own, recipe.off_task if recipe else 0.0)
    return found
