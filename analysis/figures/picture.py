"""A figure with its caption, and the runs that the figures of a setup are drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from matplotlib.figure import Figure

from analysis.figures import curves
from analysis.figures.curves import ScoredSetting, Series
from analysis.figures.style import WIDTH
from analysis.scores.candidates import Candidate, Selected
from orchestrator.experiment.methods import PROPOSED, REFERENCE
from orchestrator.selection.study import Study

COMPARED = (REFERENCE, PROPOSED)
NOT_PROBED = "no continuation probe has been completed; `trb probe continuation` runs it"


@dataclass(frozen=True)
class Caption:
    """`alt` says what kind of picture it is; `shows` how to read it; `hides` what must not be read
    from it.
    """

    title: str
    alt: str
    shows: str
    hides: str


@dataclass(frozen=True)
class Picture:
    """A figure of one setup by its file name, or the reason why there is none.

    `drawing` has the numbers and draws them, `width` inches wide; nothing is drawn before `figure`
    is asked for. `basis` says in a sentence how many seeds it rests on and what its bars and bands
    are.
    """

    name: str
    caption: Caption
    drawing: partial[Figure] | None = None
    missing: str = ""
    basis: str = ""
    width: float = WIDTH

    @cached_property
    def figure(self) -> Figure | None:
        """The figure as it is drawn; None where there is none."""
        return None if self.drawing is None else self.drawing(width=self.width)


@dataclass(frozen=True)
class SetupRuns:
    """The runs that the figures of one setup are drawn from; `best` is the chosen setting of each
    method family.
    """

    name: str
    title: str
    study: Study
    settings: list[ScoredSetting]
    chosen: list[Selected]
    best: dict[str, ScoredSetting]
    untrained: float | None

    def family(self, method: str) -> list[ScoredSetting]:
        return [setting for setting in self.settings if setting.method == method]

    def candidates(self, method: str) -> tuple[Candidate, ...]:
        return next(
            (selected.pool for selected in self.chosen if selected.best.method == method), ()
        )

    def best_of(self, methods: Sequence[str]) -> list[ScoredSetting]:
        return [self.best[method] for method in methods if method in self.best]


def scores_basis(series: Sequence[Series], chosen: Sequence[Selected]) -> str:
    """How many seeds lines of scores are means over, and how far one seed's may be off."""
    counts = sorted({line.seeds for line in series if line.seeds})
    if not counts:
        return ""
    if counts[-1] == 1:
        margins = [
            margin
            for selected in chosen
            if (margin := curves.problem_margin(selected.best)) is not None
        ]
        text = "One seed each: another one moves a line by several points."
        return text + (
            f" 95 % over problems: up to ±{100 * max(margins):.1f} points." if margins else ""
        )
    if len(counts) == 1:
        return f"Means over {counts[0]} seeds; bands: ±1 standard deviation over seeds."
    return f"Means over {counts[0]} to {counts[-1]} seeds; bands: ±1 standard deviation over seeds."
