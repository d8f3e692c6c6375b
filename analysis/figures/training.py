"""Figures over optimizer steps: scores, their cost, teacher entropy, and what the steps logged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.facts import curves
from analysis.facts.costs import CurvePoint, curve, incomparable
from analysis.facts.curves import Series, SetupRuns, WantedSetting
from analysis.figures import panels
from analysis.figures.picture import COMPARED, Caption, Picture, scores_basis
from analysis.labels import AVERAGE, BASE
from orchestrator.experiment.methods import PROPOSED, REFERENCE
from orchestrator.records.log import COLUMNS, Column, Steps

# --- mean pass@1 over training (paper, "Early-Training Comparisons") ---

TRAJECTORIES = Caption(
    "trajectories",
    "Scores over training",
    "line charts over optimizer steps, a line for the best setting of each method: mean pass@1, and its difference "
    "to vanilla's",
    "Mean pass@1 over the setup's benchmarks at each evaluated checkpoint, for the best setting of each method, and "
    "its difference to vanilla's. The band around 0 is the standard deviation of vanilla's seeds.",
    "The settings were chosen by these scores, so the highest points are biased upward.",
)
NO_STEP_0 = "Lines that start from the supervised stage have no step 0."


@panels.styled()
def draw_trajectories(
    series: Sequence[Series], title: str, note: str = "", width: float = panels.WIDTH
) -> Figure:
    """A line for each setting that has a score: pass@1 in [0, 1], shown in per cent.

    A second panel has the lines minus vanilla's, if vanilla has one. Runs that start from the
    supervised stage have no point at step 0, which is the untrained student; the note over the
    legend says so.
    """
    lines = [line for line in series if line.has_values]
    # The legend counts seeds only where the settings differ in them.
    several = len({line.seeds for line in lines}) > 1
    vanilla = None
    if len(lines) > 1:
        vanilla = next((line for line in lines if line.method == REFERENCE), None)
    figure = panels.new_figure(width, 3.6 if width > panels.NARROW else 4.2)
    axes = figure.subplots(1, 1 if vanilla is None else 2, squeeze=False)[0]
    shades = _shades(lines)
    for index, line in enumerate(lines):
        label = panels.setting_text(line.method, line.knobs)
        if several:
            label += f", {line.seeds} seed{'s' if line.seeds > 1 else ''}"
        panels.plot_series(axes[0], line, label, 100, index, shades[index])
        if vanilla is not None:
            minus = _minus(line, vanilla)
            panels.plot_series(axes[1], minus, label, 100, index, shades[index])
    axes[0].set_ylabel("mean pass@1 (%)")
    if vanilla is not None:
        axes[1].set_ylabel("minus vanilla (points)")
    for panel in axes:
        panels.step_axis(panel, lines)
    panels.set_title(axes[0] if vanilla is None else figure, title)
    if any(line.from_supervised for line in lines):
        note = f"{note} {NO_STEP_0}".lstrip()
    panels.shared_legend(figure, [axes[0]], note)
    return figure


def _shades(lines: Sequence[Series]) -> list[Any]:
    """A shade for each line of a method that has several; None for the method's own colour."""
    counts = Counter(line.method for line in lines)
    left: dict[str, list[Any]] = {}
    for index, line in enumerate(lines):
        if counts[line.method] > 1 and line.method not in left:
            color, _ = panels.method_style(line.method, index)
            left[line.method] = panels.shades(color, counts[line.method])
    return [left[line.method].pop(0) if line.method in left else None for line in lines]


def _minus(line: Series, vanilla: Series) -> Series:
    """Differences of means at the steps that both lines have.

    Vanilla's own line keeps its seeds: they lie around 0, and their spread is the band.
    """
    curve = {}
    for step, values in line.curve.items():
        others = vanilla.curve.get(step)
        if values and others:
            own = values if line is vanilla else [fmean(values)]
            curve[step] = [value - fmean(others) for value in own]
    return replace(line, curve=curve)


def trajectories(data: SetupRuns, wanted: Sequence[WantedSetting] = ()) -> Picture:
    """The `wanted` settings of a method, else its best one, vanilla among them."""
    lines = []
    for setting in data.shown(wanted):
        lines.append(curves.score_series(setting, data.untrained))
    if not any(line.curve for line in lines):
        missing = "no checkpoint has been evaluated on all benchmarks yet"
        return Picture(TRAJECTORIES, data.name, missing=missing)
    basis = scores_basis(data, lines)
    return Picture(
        TRAJECTORIES, data.name, partial(draw_trajectories, lines, data.title, basis), basis
    )


# --- distance from the teacher on held-out prompts ---

DISTANCE = Caption(
    "distance",
    "Distance from the teacher",
    "line charts of KL(p‖q) on held-out prompts for the best setting of each method, over optimizer steps and over the "
    "position in a response",
    "KL of the student from the teacher in nats a token, on the student's own responses to training prompts that no "
    "trial takes, at the start and at each checkpoint; to the right at the last checkpoint by position in a response.",
    "All lines answer the same prompts with the same random numbers. A small distance is no score: a student can be "
    "close to its teacher on short or empty responses.",
)


@panels.styled()
def draw_distance(
    over_steps: Sequence[Series],
    over_positions: Sequence[Series],
    title: str,
    note: str = "",
    width: float = panels.WIDTH,
) -> Figure:
    """A line for each setting in nats, with the spread of its seeds, over steps and positions."""
    figure = panels.new_figure(width, 3.6 if width > panels.NARROW else 4.2)
    axes = figure.subplots(1, 2, squeeze=False)[0]
    panels.plot_all(axes[0], over_steps)
    panels.plot_all(axes[1], over_positions)
    axes[0].set_ylabel("KL(p‖q), nats a token")
    panels.step_axis(axes[0], over_steps)
    axes[1].set_xscale("log", base=2)
    axes[1].set_xlabel("up to this token of a response")
    for panel in axes:
        panel.set_ylim(bottom=0)
    panels.set_title(figure, title)
    panels.shared_legend(figure, [axes[0]], note)
    return figure


def distance(data: SetupRuns) -> Picture:
    """The best setting of each method, as far as its runs measured themselves."""
    over_steps: list[Series] = []
    over_positions: list[Series] = []
    for setting in data.best.values():
        steps, positions = curves.distance_series(data.study, setting)
        if steps.has_values:
            over_steps.append(steps)
            over_positions.append(positions)
    if not over_steps:
        missing = "no run has measured itself on held-out prompts"
        return Picture(DISTANCE, data.name, missing=missing)
    basis = scores_basis(data, over_steps)
    drawing = partial(draw_distance, over_steps, over_positions, data.title, basis)
    return Picture(DISTANCE, data.name, drawing, basis)


# --- mean pass@1 against the cost of training: updates and time ---

COST = Caption(
    "cost",
    "Scores against cost",
    "line charts of mean pass@1 over the cost of training, a panel for each way to count it and a line for each method",
    "Mean pass@1 of the best setting of each method at each evaluated checkpoint, over what training took by then, the "
    "supervised stage included. Methods compare at equal cost where a vertical line cuts their lines.",
    "Time is that of the machine as it was, with whatever ran beside it; a method on other hardware than vanilla's has "
    "no line there.",
)
AXES = {"updates": "updates", "time": "seconds of a GPU, or a core"}


@panels.styled()
def draw_cost(
    by_measure: Mapping[str, Sequence[Series]], title: str, width: float = panels.WIDTH
) -> Figure:
    """A panel for each measure of `AXES` that has lines: pass@1 in [0, 1], shown in per cent."""
    figure = panels.new_figure(width, 3.6)
    axes = figure.subplots(1, len(by_measure), sharey=True, squeeze=False)[0]
    for panel, (measure, lines) in zip(axes, by_measure.items(), strict=True):
        panels.plot_all(panel, lines, 100)
        panel.set_xlabel(AXES[measure])
        panel.set_xlim(left=0)
    axes[0].set_ylabel("mean pass@1 (%)")
    panels.set_title(figure, title)
    panels.shared_legend(figure, axes)
    return figure


def cost(data: SetupRuns) -> Picture:
    """The selected setting of each trained method, in a panel for each cost that was logged."""
    points_of: dict[str, Sequence[CurvePoint]] = {}
    for selected in data.chosen:
        if selected.best.method != BASE:
            points_of[selected.best.method] = curve(data.study, selected.best)
    by_measure: dict[str, list[Series]] = {}
    for measure in AXES:
        left_out = incomparable(data.study, points_of, measure)
        for method, points in points_of.items():
            if method not in left_out:
                by_measure.setdefault(measure, []).append(series(points, measure))
    # Over updates alone the panel would repeat the trajectories.
    if by_measure.keys() <= {"updates"}:
        missing = "no method has an evaluated checkpoint whose time was logged"
        return Picture(COST, data.name, missing=missing)
    basis = scores_basis(data, by_measure["updates"])
    return Picture(COST, data.name, partial(draw_cost, by_measure, data.title), basis)


def series(points: Sequence[CurvePoint], measure: str) -> Series:
    """The scores of each seed over a cost that was logged."""
    scores = {}
    for point in points:
        scores[point.amount(measure)] = list(map(float, point.checkpoint.by_seed[AVERAGE]))
    best = points[0].checkpoint
    return Series(best.method, best.knobs, scores)


# --- teacher entropy on the visited prefixes beside pass@1 ---

ENTROPY = Caption(
    "entropy",
    "Teacher entropy and scores",
    "two stacked line charts over optimizer steps, teacher entropy above mean pass@1, vanilla and trust region",
    "Mean entropy of the teacher's next-token distribution on the prefixes that were visited, above the scores of "
    "the same runs; the blended steps are shaded.",
    "Low entropy alone does not say that a prefix is good: the teacher can be certain of a wrong path.",
)


@panels.styled()
def draw_entropy(
    entropy: Sequence[Series],
    scores: Sequence[Series],
    warmup: int | None,
    title: str,
    note: str = "",
    width: float = panels.WIDTH,
) -> Figure:
    """Token-mean teacher entropy (nats) above mean pass@1 ([0, 1], shown in per cent).

    The `warmup` steps in which the behavior is blended are shaded. The `note` stands over the
    legend.
    """
    figure = panels.new_figure(width, 4.6)
    upper, lower = figure.subplots(2, 1, sharex=True)
    if warmup is not None:
        for axes in (upper, lower):
            label = f"warmup, $K$={warmup}"
            axes.axvspan(0, warmup, color=panels.BLUE, alpha=0.08, linewidth=0, label=label)
    panels.plot_all(upper, entropy)
    panels.plot_all(lower, scores, 100)
    panels.set_title(figure, title)
    upper.set_ylabel("teacher entropy (nats)")
    upper.set_ylim(bottom=0)
    lower.set_ylabel("mean pass@1 (%)")
    panels.step_axis(lower, entropy)
    panels.lettered([upper, lower])
    panels.shared_legend(figure, (upper, lower), note)
    return figure


def entropy(data: SetupRuns) -> Picture:
    """Teacher entropy and pass@1 of vanilla and the best trust-region setting."""
    entropy: list[Series] = []
    scores: list[Series] = []
    for setting in data.best_of(COMPARED):
        entropy += curves.metric_series(data.study, setting, ["teacher_entropy"]).values()
        if setting.scores:
            scores.append(curves.score_series(setting, data.untrained))
    if not entropy:
        missing = "no step of vanilla or of the chosen trust_region run has a teacher entropy yet"
        return Picture(ENTROPY, data.name, missing=missing)
    warmup = data.best[PROPOSED].warmup if PROPOSED in data.best else None
    basis = scores_basis(data, scores or entropy)
    drawing = partial(draw_entropy, entropy, scores, warmup, data.title, basis)
    return Picture(ENTROPY, data.name, drawing, basis)


# --- logged diagnostics of training steps as small multiples ---

# SKD samples by another law than a blend, so only its share of replaced tokens is shown.
INJECTION = "skd"
DIAGNOSTICS = Caption(
    "diagnostics",
    "What the steps logged",
    "small line charts over optimizer steps, one for each logged quantity",
    "Logged quantities of vanilla, of the best trust-region setting and of the best SKD setting. A line ends where "
    "a run no longer has the quantity, as after the warmup.",
    "They describe the batches a run trained on, not held-out problems; the batches differ in what was sampled.",
)

PANELS: Mapping[str, Column] = {key: column for key, column in COLUMNS.items() if column.figure}
# Quantities of the behavior policy while it samples, and of the training on its samples.
BEHAVIOR = [
    key for key, column in PANELS.items() if column.logged in (Steps.BLENDED, Steps.MEASURED)
]
TRAINING = [key for key in PANELS if key not in BEHAVIOR]
SPENT, BUDGET = "sequence_kl", r"budget $\varepsilon\cdot T$ of a response"
REPLACED = "replaced"  # SKD replaces tokens at every step, so the panel has the axis of all steps


@panels.styled()
def draw_diagnostics(
    columns: Mapping[str, Sequence[Series]],
    title: str,
    width: float = panels.WIDTH,
    budgets: Sequence[Series] = (),
) -> Figure:
    """A panel for each column of PANELS that some run has, the behavior's above those of training.

    The quantities of blended steps have one axis of steps, and all others have one of all steps.
    Beside the KL of a response stand the `budgets` ε·T, in nats.
    """
    across = 3 if width >= panels.NARROW else 2
    groups: list[list[str]] = [[], []]
    smoothed = False
    for name in PANELS:
        lines = columns.get(name, ())
        if any(line.has_values for line in lines):
            groups[name in TRAINING].append(name)
            smoothed = smoothed or any(map(panels.is_long, lines))
    heights = [ceil(len(group) / across) for group in groups]
    figure = panels.new_figure(width, 1.0 + 1.6 * max(1, sum(heights)))
    places = list(figure.subplots(max(1, sum(heights)), across, squeeze=False).flat)
    # Each group begins a row of its own, so the last row of the first one may have places left.
    shown = dict(zip(groups[0], places, strict=False))
    shown |= zip(groups[1], places[across * heights[0] :], strict=False)
    for axes in places:
        axes.set_axis_off()
    for name, axes in shown.items():
        axes.set_axis_on()
        panels.plot_all(axes, columns[name], PANELS[name].factor)
        for line in budgets if name == SPENT else ():
            means, color = line.means(), panels.method_style(line.method)[0]
            axes.plot(list(means), list(means.values()), "--", color=color, label=BUDGET)
        axes.set_title(PANELS[name].figure, fontsize=8)
        axes.ticklabel_format(axis="y", useOffset=False)
    for group in groups:
        _share_steps(group, shown, across)
    panels.lettered(list(shown.values()))
    panels.set_title(figure, title)
    note = f"Thick lines: {panels.WINDOW}-step means." if smoothed else None
    panels.shared_legend(figure, shown.values(), note)
    return figure


def _share_steps(group: Sequence[str], shown: Mapping[str, Axes], across: int) -> None:
    """Give panels of a kind one range of steps; the last row of a group names the axis."""
    first: dict[str, Axes] = {}
    for name in group:
        blended = name in BEHAVIOR and name != REPLACED
        label = "blended step" if blended else "optimizer step"
        axes = shown[name]
        if label in first:
            axes.sharex(first[label])
        first.setdefault(label, axes)
        panels.whole_steps(axes)
        if name in group[-across:]:
            axes.set_xlabel(label, fontsize=8)


def diagnostics(data: SetupRuns) -> Picture:
    """Draw the diagnostics of vanilla, the best trust-region setting and the best SKD setting."""
    columns: dict[str, list[Series]] = {key: [] for key in PANELS}
    budgets: list[Series] = []
    seeds = 0
    for setting in data.best_of([*COMPARED, INJECTION]):
        keys = [REPLACED] if setting.method == INJECTION else list(PANELS)
        for key, line in curves.metric_series(data.study, setting, keys).items():
            columns[key].append(line)
            seeds = max(seeds, line.seeds)
        budget = curves.budget_series(data.study, setting)
        budgets += [budget] if budget.has_values else []
    if not seeds:
        missing = "no step of vanilla, skd or the chosen trust_region run has been logged yet"
        return Picture(DIAGNOSTICS, data.name, missing=missing)
    bands = f"Means over {seeds} seeds with bands of ±1 standard deviation."
    basis = bands if seeds > 1 else "One seed each."
    drawing = partial(draw_diagnostics, columns, data.title, budgets=budgets)
    return Picture(DIAGNOSTICS, data.name, drawing, basis)
