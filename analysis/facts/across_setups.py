"""Each method's difference to vanilla, averaged over the setups of an experiment.

A run of a seed in every setup counts as one: its score is the mean of its averages. Intervals and
p-values are therefore over seeds, and take the setups as given. A difference that is too small to
be seen in one setup may show over several of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from analysis.facts.assess import LEVEL, Columns, seed_spreads, to_reference
from analysis.facts.evidence import ConfirmedRow, MeanDifference
from analysis.labels import AVERAGE
from orchestrator.experiment.methods import REFERENCE


@dataclass(frozen=True)
class _Averaged:
    """A method's scores over all setups, as the tests of one setup read them (`Scored`)."""

    method: str
    by_seed: Mapping[str, Sequence[Fraction]]

    @property
    def seeds(self) -> int:
        return len(self.by_seed[AVERAGE])


def across_setups(
    rows: Sequence[ConfirmedRow], setups: Collection[str], level: float = LEVEL
) -> tuple[MeanDifference, ...]:
    """A row for each method but vanilla that is confirmed on the same seeds in every setup.

    `rows` are those of one experiment, and `setups` all that it has. The result is empty with one
    setup, and before vanilla and another method are confirmed in all of them. `level` is as in
    `assess.to_reference`.
    """
    by_method: dict[str, dict[str, ConfirmedRow]] = {}
    for row in rows:
        if row.complete and row.columns:
            by_method.setdefault(row.method, {})[row.setup] = row
    reference = by_method.get(REFERENCE, {})
    if len(setups) < 2 or len(reference) < len(setups):
        return ()
    averaged: dict[str, _Averaged] = {}
    for method, of_setups in by_method.items():
        # A rule that adds seeds until a difference is settled gives each setup its own number.
        seeds = {len(row.averages) for row in (*of_setups.values(), *reference.values())}
        if len(of_setups) == len(setups) and len(seeds) == 1:
            of_runs = zip(*(row.averages for row in of_setups.values()), strict=True)
            means = [statistics.mean(of_seed) for of_seed in of_runs]
            averaged[method] = _Averaged(method, {AVERAGE: means})
    spreads = seed_spreads(averaged.values())
    if REFERENCE not in averaged or spreads[AVERAGE] is None:
        return ()
    # Replicates are for scores of single runs; a method is confirmed on two seeds at least.
    drawn = dict.fromkeys(averaged, Columns({AVERAGE: np.zeros(1)}))
    gaps = to_reference(averaged, drawn, spreads, dict.fromkeys(averaged, 1), level)
    found = []
    for method, of_columns in gaps.items():
        ahead = 0
        for name, row in by_method[method].items():
            ahead += sum(row.averages) > sum(reference[name].averages)
        seeds = averaged[method].seeds
        found.append(MeanDifference(method, of_columns[AVERAGE], len(setups), ahead, seeds))
    return tuple(found)
