"""What stands behind the rows of a results table: plain numbers, no computation. Scores are percent, 0 to 100."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from analysis.uncertainty import Interval


@dataclass(frozen=True)
class Estimate:
    """A score, or a difference of two, with its interval."""

    value: Fraction
    interval: Interval

    @property
    def margin(self) -> float:
        """Distance from the value to the farther limit."""
        return max(self.interval.high - float(self.value), float(self.value) - self.interval.low)


@dataclass(frozen=True)
class Difference:
    """A method's score minus vanilla's on the same problems; `p_value` as in `uncertainty.p_value`."""

    estimate: Estimate
    p_value: float


@dataclass(frozen=True)
class ColumnEvidence:
    """One column of a row; what cannot be had is None.

    `problems` are those of the benchmark, or of all benchmarks together for the average. `samples` counts the
    generations of all problems and seeds, and `n` those of the problem and seed that has the fewest, None for the
    average, whose benchmarks differ.
    """

    score: Estimate
    split_half: float | None
    fresh: Estimate | None
    difference: Difference | None
    problems: int
    samples: int
    n: int | None


@dataclass(frozen=True)
class RowEvidence:
    """The selected checkpoint of a method in one setup; `columns` by benchmark key, the average as `avg`.

    `units` are the ids of its runs, one for each seed; `spread` is the standard deviation of the average over seeds
    (n − 1), None for one seed. `candidates` counts the family's checkpoints, `eligible` those chosen from. `complete`
    says whether it has all samples asked for.
    """

    setup: str
    method: str
    knobs: dict[str, Any]
    step: int
    units: tuple[str, ...]
    spread: float | None
    candidates: int
    eligible: int
    complete: bool
    columns: dict[str, ColumnEvidence]

    @property
    def setting(self) -> str:
        """Knobs for people: `epsilon0=0.05 K=12`."""
        return " ".join(f"{name}={value:g}" for name, value in self.knobs.items())


@dataclass(frozen=True)
class BenchmarkSource:
    """What a column's problems are: `content` as in `Benchmark.identity`, for a file its name and sha256."""

    setup: str
    benchmark: str
    evaluation_id: str
    content: dict[str, Any]


@dataclass(frozen=True)
class Evidence:
    """Rows by setup and method in the order of the table, and the benchmarks of all setups."""

    rows: tuple[RowEvidence, ...]
    benchmarks: tuple[BenchmarkSource, ...]

    def find(self, setup: str, method: str) -> RowEvidence | None:
        return next((row for row in self.rows if (row.setup, row.method) == (setup, method)), None)
