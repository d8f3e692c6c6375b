"""The leaderboard's rows: the numbers of the results table, the best method of each setup first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from analysis.facts.evidence import ONE_RUN, ConfirmedRow, Difference, Estimate, RowEvidence
from analysis.labels import AVERAGE
from analysis.numbers import signed
from analysis.table.evidence_formats import GAP, LIMITS, PROBLEMS_ONLY, P, gap_cells, score_text
from analysis.table.model import Table
from orchestrator.experiment.methods import REFERENCE
from orchestrator.sheet import Cell

ZERO, POINT, LINE, BLANK = "│", "●", "─", " "
BELOW, ABOVE = "◀", "▶"  # in place of the point, for a difference beyond the axis
FARTHEST = 20.0  # points on either side of zero that an axis shows at most


@dataclass(frozen=True)
class Placing:
    """One method in one setup.

    `average` is its exact score in percent and `lead` the same minus vanilla's. `chosen` is the
    evidence of its selected checkpoint and `confirmed` that of the runs which confirm the choice.
    All are None before their samples are there, evidence also until it is computed.
    """

    setup: str
    method: str
    label: str
    average: Cell
    lead: Fraction | None
    chosen: RowEvidence | None
    confirmed: ConfirmedRow | None

    @property
    def key(self) -> str:
        """A name of the row that stays the same while the sweep goes on."""
        return f"{self.setup}/{self.method}"

    @property
    def unit_prefix(self) -> str:
        """The beginning of the ids of its units."""
        return f"{self.setup}-{self.method}-"

    @property
    def score(self) -> Estimate | None:
        """The average by which the checkpoint was chosen."""
        return self.chosen.columns[AVERAGE].score if self.chosen else None

    @property
    def confirmed_score(self) -> Estimate | None:
        """The average over the confirming runs that are evaluated."""
        column = self.confirmed.columns.get(AVERAGE) if self.confirmed else None
        return column.score if column else None

    @property
    def difference(self) -> Difference | None:
        """The average minus vanilla's, over the confirming runs where some are evaluated."""
        column = self.confirmed.columns.get(AVERAGE) if self.confirmed else None
        if column is None and self.chosen is not None:
            column = self.chosen.columns[AVERAGE]
        return column.difference if column else None

    @property
    def height(self) -> float:
        """The score that places it; methods without one come last."""
        if self.confirmed_score is not None:
            return float(self.confirmed_score.value)
        # Below every score in percent.
        return -1.0 if self.average.value is None else float(self.average.value)

    def cells(self) -> dict[str, str]:
        """The texts of the row, by heading; empty where a number is missing."""
        gap = gap_cells(self.difference)
        if self.chosen is None and self.lead is not None:
            gap[GAP] = signed(self.lead)
        return {
            "Method": self.label,
            "Avg": score_text(self.score) or self.average.text,
            "Confirmed": score_text(self.confirmed_score),
            GAP: gap[GAP].partition(" ")[0],  # the interval says what it is over
            "Interval": gap[LIMITS].replace(PROBLEMS_ONLY, ONE_RUN),
            P: gap[P],
            "Seeds": str(self.chosen.seeds or "") if self.chosen else "",
            "Step": str(self.chosen.step) if self.chosen else "",
            "Setting": self.chosen.setting if self.chosen else "",
        }


def placings(table: Table) -> list[Placing]:
    """Every method of every setup: setup by setup, from the highest average to the lowest."""
    found = []
    for setup, places in table.places().items():
        averages = {row.method: row.cells[places[0]] for row in table.rows}
        reference = averages[REFERENCE].value if REFERENCE in averages else None
        confirmed = {}
        for each in table.facts.confirmed if table.facts else ():
            if each.setup == setup:
                confirmed[each.method] = each
        rows = []
        for row in table.rows:
            chosen = table.facts.find(setup, row.method) if table.facts else None
            lead, average = None, averages[row.method]
            if average.value is not None and reference is not None and row.method != REFERENCE:
                lead = average.value - reference
            known = confirmed.get(row.method)
            rows.append(Placing(setup, row.method, row.label, average, lead, chosen, known))
        found += sorted(rows, key=lambda placing: placing.height, reverse=True)
    return found


def benchmark_texts(table: Table, placing: Placing) -> list[str]:
    """`Short sums 89.6 ±0.6, − Vanilla +0.4 [−1.0, +1.8]` for each benchmark of the chosen
    checkpoint.
    """
    texts = []
    for column in table.columns:
        if column.setup != placing.setup or placing.chosen is None:
            continue
        if column.benchmark == AVERAGE:
            continue
        known = placing.chosen.columns[column.benchmark]
        text = f"{column.label} {score_text(known.score)}"
        gap = gap_cells(known.difference)
        texts.append(f"{text}, {GAP} {gap[GAP]} {gap[LIMITS]}" if gap[GAP] else text)
    return texts


@dataclass(frozen=True)
class IntervalAxis:
    """An axis of differences in points, from `low` to `high` over `width` characters."""

    low: float
    high: float
    width: int

    @staticmethod
    def around(differences: Iterable[Difference], width: int) -> IntervalAxis:
        """An axis that holds zero and the intervals, as far as FARTHEST points.

        A method that collapses would otherwise flatten the intervals of all others.
        """
        low, high = -1.0, 1.0
        for difference in differences:
            low = min(low, difference.estimate.interval.low)
            high = max(high, difference.estimate.interval.high)
        return IntervalAxis(max(-FARTHEST, low), min(FARTHEST, high), width)

    def place(self, value: float) -> int:
        """The character at which a value lies; the first or last one for a value beyond."""
        share = (value - self.low) / (self.high - self.low)
        return min(self.width - 1, max(0, round(share * (self.width - 1))))

    def heading(self) -> str:
        """`−3.2       +4.1`: the two ends of the axis."""
        low, high = signed(self.low), signed(self.high)
        return low + " " * (self.width - len(low) - len(high)) + high

    def draw(self, difference: Difference | None) -> str:
        """`  ──●─│──`: an interval with its difference, beside the line of zero."""
        letters = [BLANK] * self.width
        # Zero comes first, so that an interval over it shows where they cross.
        letters[self.place(0.0)] = ZERO
        if difference is None:
            return "".join(letters)
        interval, value = difference.estimate.interval, float(difference.estimate.value)
        for place in range(self.place(interval.low), self.place(interval.high) + 1):
            letters[place] = LINE if letters[place] == BLANK else "┼"
        point = BELOW if value < self.low else ABOVE if value > self.high else POINT
        letters[self.place(value)] = point
        return "".join(letters)
