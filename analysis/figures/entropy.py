"""Teacher entropy on the visited prefixes beside pass@1 (paper, "Early-Training Comparisons")."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import curves
from analysis.figures.curves import Series
from analysis.figures.picture import COMPARED, Caption, Picture, SetupRuns, scores_basis
from analysis.figures.style import (
    BLUE,
    WIDTH,
    lettered,
    new_figure,
    plot_series,
    set_title,
    setting_label,
    shared_legend,
    step_label,
    styled,
    whole_steps,
)
from orchestrator.experiment.methods import PROPOSED

CAPTION = Caption(
    "Teacher entropy and scores",
    "two stacked line charts over optimizer steps, teacher entropy above mean pass@1, vanilla and trust region",
    "Mean entropy of the teacher's next-token distribution on the prefixes that were visited, above the scores of "
    "the same runs; the blended steps are shaded.",
    "Low entropy alone does not say that a prefix is good: the teacher can be certain of a wrong path.",
)


@styled()
def draw(
    entropy: Sequence[Series],
    scores: Sequence[Series],
    warmup: int | None,
    title: str,
    note: str | None = None,
    width: float = WIDTH,
) -> Figure:
    """Two panels over the same steps: token-mean teacher entropy (nats) and mean pass@1 ([0, 1],
    shown in per cent).

    The `warmup` steps in which the behavior is blended are shaded. The `note` stands over the
    legend.
    """
    figure = new_figure(width, 4.6)
    upper, lower = figure.subplots(2, 1, sharex=True)
    for axes, lines, scale in ((upper, entropy, 1), (lower, scores, 100)):
        if warmup is not None:
            shade_warmup(axes, warmup)
        for index, line in enumerate(lines):
            plot_series(axes, line, setting_label(line), scale, index)
    set_title(figure, title)
    upper.set_ylabel("teacher entropy (nats)")
    upper.set_ylim(bottom=0)
    lower.set_ylabel("mean pass@1 (%)")
    lower.set_xlabel(step_label(entropy))
    whole_steps(lower)
    lettered([upper, lower])
    shared_legend(figure, (upper, lower), note)
    return figure


def shade_warmup(axes: Axes, warmup: int) -> None:
    """Shade the steps whose rollouts are blended."""
    axes.axvspan(0, warmup, color=BLUE, alpha=0.08, linewidth=0, label=f"warmup, $K$={warmup}")


def picture(data: SetupRuns) -> Picture:
    """Teacher entropy and pass@1 of vanilla and the best trust-region setting."""
    name = f"entropy-{data.name}"
    settings = data.best_of(COMPARED)
    columns = [
        curves.metric_series(data.study, setting, ["teacher_entropy"]) for setting in settings
    ]
    found = [column["teacher_entropy"] for column in columns if column]
    if not found:
        return Picture(
            name,
            CAPTION,
            missing="no step of vanilla or of the chosen trust_region run has a teacher entropy yet",
        )
    scores = [
        curves.score_series(setting, data.untrained) for setting in settings if setting.scores
    ]
    warmup = data.best[PROPOSED].warmup if PROPOSED in data.best else None
    basis = scores_basis(
        scores or found, [selected for selected in data.chosen if selected.best.method in COMPARED]
    )
    return Picture(
        name, CAPTION, partial(draw, found, scores, warmup, data.title, basis), basis=basis
    )
