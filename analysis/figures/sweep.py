"""Best-over-training scores over the grids (paper, "Extended Results"), and TRB's as a heat map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import ceil, isnan, nan, sqrt
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.facts import curves
from analysis.facts.curves import MethodGrid, ScoredSetting, SeedMean, SetupRuns
from analysis.figures import panels
from analysis.figures.picture import Caption, Picture
from analysis.labels import method_label
from analysis.numbers import signed
from orchestrator.experiment.axes import value_text
from orchestrator.experiment.methods import METHODS, PROPOSED, REFERENCE

CAPTION = Caption(
    "sweep",
    "Best score over the grids",
    "panels of best mean pass@1 over the hyperparameters of each method, vanilla as a dashed line",
    "The best checkpoint of each hyperparameter setting; methods with a single one share a panel. The dashed line "
    "is vanilla's best, shaded as far as its own bar would reach.",
    "Each point is a maximum over checkpoints, of noisy scores. Settings beside each other may differ by chance.",
)
BASIS = "Bars of several seeds: ±1 standard deviation; of one seed: 95 % interval over the problems, normal."

PANEL_WIDTH = 1.8  # inches, at least
SPANS = 5  # largest ÷ smallest value from which on a scale is logarithmic
MOST_TICKS = 3  # of the values of drawn points; more are shown by their ends and the middle
DODGE = 0.07  # share of the distance between two ticks, so that bars of one tick stand side by side
CROWDED = 9  # letters of tick labels on an inch; where more would stand, the labels are turned


@panels.styled()
def draw(
    grids: Sequence[MethodGrid], vanilla: SeedMean | None, title: str, width: float = panels.WIDTH
) -> Figure:
    """A panel for each grid on one scale of per cent, and one for methods with a single setting.

    Vanilla is a dashed line across all panels. Bars are the standard deviation over seeds; of one
    seed, the 95 % interval over the problems. At least one grid has several settings.
    """
    several: list[MethodGrid] = []
    single: list[MethodGrid] = []
    for grid in grids:
        (single if grid.x is None else several).append(grid)
    count = len(several) + bool(single)
    columns = min(count, max(1, int(width / PANEL_WIDTH)))
    rows = ceil(count / columns)
    figure = panels.new_figure(width, 1.2 + 2.2 * rows)
    places = list(figure.subplots(rows, columns, squeeze=False, sharey=True).flat)
    shown = places[:count]
    for axes, grid in zip(shown, several, strict=False):
        _draw_grid(axes, grid, grids.index(grid), width / columns)
    if single:
        _draw_single(shown[-1], single, grids)
    for axes in shown:
        axes.grid(visible=False, axis="x")
        if vanilla is not None:
            _draw_vanilla(axes, vanilla)
    for axes in places[count:]:
        axes.set_axis_off()
    figure.supylabel("best mean pass@1 (%)", fontsize=9)
    panels.lettered(shown)
    panels.set_title(figure, title)
    panels.shared_legend(figure, shown)
    return figure


def _draw_grid(axes: Axes, grid: MethodGrid, index: int, inches: float) -> None:
    """A line for each setting of the other knobs, on a panel of that many inches."""
    assert grid.x is not None
    if grid.drawn:
        _draw_points(axes, grid, index)
        return
    color, marker = panels.method_style(grid.method, index)
    ticks = sorted(set().union(*grid.lines.values()))
    lines = zip(grid.lines.items(), panels.shades(color, len(grid.lines)), strict=True)
    for line, ((knobs, scores), shade) in enumerate(lines):
        shift = DODGE * (line - (len(grid.lines) - 1) / 2)
        label = panels.setting_text(grid.method, dict(knobs))
        _draw_line(axes, ticks, scores, shift, color=shade, marker=marker, label=label)
    shown = [value_text(tick) for tick in ticks]
    crowded = len("".join(shown)) > CROWDED * inches
    axes.set_xticks(range(len(ticks)), shown, rotation=90 if crowded else 0)
    axes.set_xlim(-0.5, len(ticks) - 0.5)
    symbol = panels.knob_symbol(grid.method, grid.x)
    fixed = panels.knob_texts(grid.method, grid.fixed)
    axes.set_xlabel(f"{symbol}   (at {fixed})" if fixed else symbol)
    axes.set_title(method_label(grid.method))


def _draw_points(axes: Axes, grid: MethodGrid, index: int) -> None:
    """A point for each setting that a search drew, on a scale of numbers."""
    assert grid.x is not None
    color, marker = panels.method_style(grid.method, index)
    places: list[float] = []
    for scores in grid.lines.values():
        for value, score in scores.items():
            places.append(value)
            if score is not None:
                mean, reach = 100 * score.mean, 100 * (score.reach or 0)
                label = panels.MARGIN if score.spread is None else panels.SPREAD
                bar = {"color": color, "linewidth": 1, "alpha": 0.4}
                axes.vlines(value, mean - reach, mean + reach, label=label, **bar)
                axes.plot([value], [mean], linestyle="none", color=color, marker=marker)
    low, high = min(places), max(places)
    is_log = low > 0 and high >= SPANS * low
    axes.set_xscale("log" if is_log else "linear")
    ticks = sorted(set(places))
    if len(ticks) > MOST_TICKS:
        ticks = [low, sqrt(low * high) if is_log else (low + high) / 2, high]
    axes.set_xticks(ticks, [value_text(float(f"{tick:.2g}")) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(panels.knob_symbol(grid.method, grid.x))
    axes.set_title(method_label(grid.method))


def _draw_single(axes: Axes, single: Sequence[MethodGrid], grids: Sequence[MethodGrid]) -> None:
    """A point for each method, which the legend names with its setting."""
    for place, grid in enumerate(single):
        color, marker = panels.method_style(grid.method, grids.index(grid))
        (scores,) = grid.lines.values()
        label = panels.setting_text(grid.method, grid.fixed)
        _draw_line(axes, [0], scores, place, color=color, marker=marker, label=label)
    axes.set_xticks([])
    axes.set_xlim(-0.7, len(single) - 0.3)
    axes.set(title="single settings", xlabel="in the legend's order")


def _draw_vanilla(axes: Axes, score: SeedMean) -> None:
    color, _ = panels.method_style(REFERENCE)
    mean = 100 * score.mean
    label = method_label(REFERENCE)
    axes.axhline(mean, color=color, linestyle="--", linewidth=1.2, label=label)
    if score.reach is not None:
        reach = 100 * score.reach
        axes.axhspan(mean - reach, mean + reach, color=color, alpha=0.08, linewidth=0)


def _draw_line(
    axes: Axes,
    ticks: Sequence[float],
    scores: Mapping[float, SeedMean | None],
    shift: float,
    **line: Any,
) -> None:
    """A line that breaks where a setting has no score, with bars of uncertainty.

    A single point is drawn without a line, and so is its entry in the legend.
    """
    xs, means = [], []
    for place, tick in enumerate(ticks):
        score = scores.get(tick)
        x = place + shift
        xs.append(x)
        means.append(nan if score is None else 100 * score.mean)
        if score is not None and score.reach is not None:
            low, high = means[-1] - 100 * score.reach, means[-1] + 100 * score.reach
            label = panels.MARGIN if score.spread is None else panels.SPREAD
            bar = {"color": line["color"], "linewidth": 1, "zorder": 2.1}  # over the marker
            axes.vlines(x, low, high, label=label, **bar)
    several = len(ticks) - sum(map(isnan, means)) > 1
    axes.plot(xs, means, linestyle="-" if several else "none", **line)


def picture(data: SetupRuns) -> Picture:
    """Best-over-training scores over the grids of all methods but vanilla."""
    families: dict[str, list[ScoredSetting]] = {}
    for setting in data.settings:
        families.setdefault(setting.method, []).append(setting)
    # Vanilla is the dashed line across all panels; at several learning rates it has its own, too.
    reference = families.get(REFERENCE, [])
    if len(reference) == 1:
        del families[REFERENCE]
    grids = []
    for method, family in families.items():
        if method in data.study.experiment.points and len(family) > 1:
            own = curves.drawn_grids(data, family)
        else:
            own = [curves.method_grid(family, data.candidates(method))]
        grids += [grid for grid in own if grid.scored]
    if not any(grid.x for grid in grids):
        missing = "no method that has several settings has been evaluated yet"
        return Picture(CAPTION, data.name, missing=missing)
    drawing = partial(draw, grids, _best_of_vanilla(data), data.title)
    return Picture(CAPTION, data.name, drawing, BASIS)


def _best_of_vanilla(data: SetupRuns) -> SeedMean | None:
    candidates, scores = data.candidates(REFERENCE), []
    for setting in data.settings:
        if setting.method == REFERENCE:
            scores.append(curves.best_over_training(candidates, setting.knobs))
    return max(filter(None, scores), key=lambda score: score.mean, default=None)


# --- two knobs or axes of the trust region as a heat map ---

HEAT = Caption(
    "heatmap",
    "Best score over two keys of the trust region",
    "grid of cells, a row for each value of one knob or axis of the trust region and a column for each value of "
    "another, such as first KL budget and warmup: best mean pass@1 and its lead over vanilla's",
    "The best checkpoint at each value of the two, which are budget and warmup where both vary: mean pass@1 in per "
    "cent, and below it the points above or below vanilla's best.",
    "Each cell is a maximum over checkpoints, of noisy scores; cells beside each other may differ by chance.",
)
BOTH = ("epsilon0", "K")  # rows and columns, where both have several values
HeatCells = Mapping[tuple[Any, Any], SeedMean | None]  # (value of the row, of the column) → score


def keys_of(data: SetupRuns) -> tuple[str, str] | None:
    """The two knobs or axes of the trust region's heat map; None unless two have several values.

    Budget and warmup, or the two with the most values.
    """
    own = [setting.knobs for setting in data.settings if setting.method == PROPOSED]
    counts = {knob: len({knobs[knob] for knobs in own}) for knob in own[0]} if own else {}
    varied = sorted(
        (knob for knob in counts if counts[knob] > 1),
        key=lambda knob: (knob not in BOTH, -counts[knob]),
    )
    return (varied[0], varied[1]) if len(varied) > 1 else None


def cells_of(data: SetupRuns, keys: tuple[str, str]) -> HeatCells:
    """The trust region's best scores by two of its keys; empty where most of them are missing.

    Where a further knob varies, the best of its values counts.
    """
    rows, across = keys
    cells: dict[tuple[Any, Any], SeedMean | None] = {}
    candidates = data.candidates(PROPOSED)
    for setting in data.settings:
        if setting.method == PROPOSED:
            place = setting.knobs[rows], setting.knobs[across]
            scores = (cells.get(place), curves.best_over_training(candidates, setting.knobs))
            cells[place] = max(filter(None, scores), key=lambda score: score.mean, default=None)
    counts = [len({place[knob] for place in cells}) for knob in (0, 1)]
    # The points that a search drew would leave most cells empty.
    return cells if 2 * len(cells) > counts[0] * counts[1] else {}


@panels.styled()
def draw_heat(
    cells: HeatCells,
    vanilla: SeedMean | None,
    title: str,
    width: float = panels.WIDTH,
    keys: tuple[str, str] = BOTH,
) -> Figure:
    """A cell for each value of two keys, the smallest below; a missing score leaves it empty.

    Without a score of vanilla the cells have no colour.
    """
    budgets, warmups = (sorted({place[knob] for place in cells}) for knob in (0, 1))
    leads = np.full((len(budgets), len(warmups)), np.nan)
    texts: dict[tuple[int, int], str] = {}
    for (budget, warmup), score in cells.items():
        if score is not None:
            row, column = budgets.index(budget), warmups.index(warmup)
            texts[row, column] = f"{100 * score.mean:.1f}"
            if vanilla is not None:
                leads[row, column] = lead = 100 * (score.mean - vanilla.mean)
                texts[row, column] += f"\n{signed(lead)}"
    figure = panels.new_figure(width, 1.5 + 0.5 * len(budgets))
    axes = figure.subplots()
    span, letters = panels.color_leads(axes, leads)
    for (row, column), text in texts.items():
        color = letters[row][column]
        axes.text(column, row, text, ha="center", va="center", fontsize=8, color=color)
    axes.set_xticks(range(len(warmups)), list(map(value_text, warmups)))
    axes.set_yticks(range(len(budgets)), list(map(value_text, budgets)))
    axes.set_ylim(-0.5, len(budgets) - 0.5)
    row_label, label = (_label(key) for key in keys)
    if vanilla is not None:
        mean = f"{100 * vanilla.mean:.1f}"
        note = f"points above or below vanilla's {mean}; colours end at ± {span:.2g}"
        label = "\n".join([label, *wrap(note, int(panels.NOTE_LETTERS * 0.7 * width))])
    axes.set_xlabel(label, fontsize=8)
    axes.set_ylabel(row_label)
    panels.set_title(figure, title)
    return figure


def _label(key: str) -> str:
    """The symbol of a knob or an axis of the trust region, with its unit if it has one."""
    knob = METHODS[PROPOSED].knobs.get(key)
    unit = f" ({knob.unit})" if knob is not None and knob.unit else ""
    return f"{panels.knob_symbol(PROPOSED, key)}{unit}"


def heat(data: SetupRuns) -> Picture | None:
    """The heat map of the trust region's grid; None where it has none, see `keys_of`."""
    keys = keys_of(data)
    cells = cells_of(data, keys) if keys else {}
    if keys is None or not cells:
        return None
    if not any(cells.values()):
        missing = "no setting of trust_region's grid has been evaluated yet"
        return Picture(HEAT, data.name, missing=missing)
    drawing = partial(draw_heat, cells, _best_of_vanilla(data), data.title, keys=keys)
    seeds = max(len(setting.units) for setting in data.settings if setting.method == PROPOSED)
    basis = f"Means over {seeds} seeds." if seeds > 1 else "One seed each."
    return Picture(HEAT, data.name, drawing, basis)
