"""Teacher entropy on the visited prefixes beside pass@1 (paper, "Early-Training Comparisons")."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.figure import Figure

from analysis.facts import curves
from analysis.facts.curves import Series
from analysis.figures import panels, style
from analysis.figures.picture import COMPARED, Caption, Picture, SetupRuns
from orchestrator.experiment.methods import PROPOSED

CAPTION = Caption(
    "entropy",
    "Teacher entropy and scores",
    "two stacked line charts over optimizer steps, teacher entropy above mean pass@1, vanilla and trust region",
    "Mean entropy of the teacher's next-token distribution on the prefixes that were visited, above the scores of "
    "the same runs; the blended steps are shaded.",
    "Low entropy alone does not say that a prefix is good: the teacher can be certain of a wrong path.",
)


@style.styled()
def draw(
    entropy: Sequence[Series],
    scores: Sequence[Series],
    warmup: int | None,
    title: str,
    note: str = "",
    width: float = style.WIDTH,
) -> Figure:
    """Token-mean teacher entropy (nats) above mean pass@1 ([0, 1], shown in per cent).

    The `warmup` steps in which the behavior is blended are shaded. The `note` stands over the
    legend.
    """
    figure = style.new_figure(width, 4.6)
    upper, lower = figure.subplots(2, 1, sharex=True)
    if warmup is not None:
        for axes in (upper, lower):
            label = f"warmup, $K$={warmup}"
            axes.axvspan(0, warmup, color=style.BLUE, alpha=0.08, linewidth=0, label=label)
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


def picture(data: SetupRuns) -> Picture:
    """Teacher entropy and pass@1 of vanilla and the best trust-region setting."""
    entropy: list[Series] = []
    scores: list[Series] = []
    for setting in data.best_of(COMPARED):
        entropy += curves.metric_series(data.study, setting, ["teacher_entropy"]).values()
        if setting.scores:
            scores.append(curves.score_series(setting, data.untrained))
    if not entropy:
        missing = "no step of vanilla or of the chosen trust_region run has a teacher entropy yet"
        return Picture(CAPTION, data.name, missing=missing)
    warmup = data.best[PROPOSED].warmup if PROPOSED in data.best else None
    basis = data.scores_basis(scores or entropy)
    drawing = partial(draw, entropy, scores, warmup, data.title, basis)
    return Picture(CAPTION, data.name, drawing, basis)
