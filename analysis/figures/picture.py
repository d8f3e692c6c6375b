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
    """The words of a figure, whose file names begin with its `kind`.

    `alt` says which kind of picture it is, `shows` how to read it, and `hides` what must not be
    read from it.
    """

    kind: str
    title: str
    alt: str
    shows: str
    hides: str


@dataclass(frozen=True)
class Picture:
    """A figure of one setup or experiment, its `subject`, or the reason why it is `missing`.

    `drawing` has the numbers and draws them, `width` inches wide; nothing is drawn before `figure`
    is asked for. `basis` says in a sentence how many seeds it rests on and what its bars and bands
    are.
    """

    caption: Caption
    subject: str
    drawing: partial[Figure] | None = None
    basis: str = ""
    missing: str = ""
    width: float = WIDTH

    @property
    def name(self) -> str:
        """The name of its files."""
        return f"{self.caption.kind}-{self.subject}"

    @cached_property
    def figure(self) -> Figure | None:
        """The drawn figure; None where it is missing."""
        return None if self.drawing is None else self.drawing(width=self.width)


@dataclass(frozen=True)
class SetupRuns:
    """The runs that the figures of one setup are drawn from, with each method's `best` setting."""

    name: str
    title: str
    study: Study
    settings: list[ScoredSetting]
    chosen: list[Selected]
    best: dict[str, ScoredSetting]
    untrained: float | None

    def candidates(self, method: str) -> tuple[Candidate, ...]:
        """The checkpoints from which a method's best one was selected."""
        for selected in self.chosen:
            if selected.best.method == method:
                return selected.pool
        return ()

    def best_of(self, methods: Sequence[str]) -> list[ScoredSetting]:
        return [self.best[method] for method in methods if method in self.best]

    def scores_basis(self, lines: Sequence[Series]) -> str:
        """How many seeds lines of scores are means over, and how far one seed's may be off."""
        counts = sorted({line.seeds for line in lines} - {0})
        if not counts:
            return ""
        if counts[-1] > 1:
            seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
            return f"Means over {seeds} seeds; bands: ±1 standard deviation over seeds."
        methods, margin = {line.method for line in lines}, 0.0
        for selected in self.chosen:
            if selected.best.method in methods:
                margin = max(margin, curves.problem_margin(selected.best) or 0.0)
        text = "One seed each: another one moves a line by several points."
        return f"{text} 95 % over problems: up to ±{100 * margin:.1f} points." if margin else text
