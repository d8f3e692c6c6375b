"""Two methods on the same problems: their checkpoints, and the difference in every column."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from analysis.facts.assess import (
    confirmed_candidates,
    differences,
    exact_scores,
    relabelled,
    replicate_scores,
)
from analysis.facts.candidates import Candidate, Selected, select
from analysis.facts.evidence import Difference, Verdict
from analysis.facts.verdict import pair_verdict
from analysis.labels import AVERAGE, order_methods, setup_title
from orchestrator.selection.confirmation import with_confirmation
from orchestrator.selection.study import Study

Methods = tuple[str, str]


class ComparedColumn(NamedTuple):
    """A column of a comparison: both scores in percent, their difference and the problems."""

    benchmark: str
    first: Fraction | None
    second: Fraction | None
    difference: Difference | None
    problems: int | None


@dataclass(frozen=True)
class MethodComparison:
    """The selected checkpoints of two methods in one setup, None before their first scores.

    They are the `confirmed` ones where all confirming runs of both are evaluated.

    `columns` by benchmark, the average as `avg`; None while one of the two has no scores.
    """

    setup: str
    title: str
    methods: Methods
    first: Candidate | None
    second: Candidate | None
    columns: dict[str, Difference | None]
    verdict: Verdict
    confirmed: bool = False

    def sides(self) -> list[tuple[str, Candidate | None]]:
        """Both methods with their checkpoints."""
        return [(self.methods[0], self.first), (self.methods[1], self.second)]

    def rows(self) -> list[ComparedColumn]:
        """The columns with what their differences are made of."""
        first, second = (exact_scores(each) if each else {} for _, each in self.sides())
        sizes, known = dict[str, int](), self.first or self.second
        if known:
            sizes = {key: len(of_seeds[0].problems) for key, of_seeds in known.counts.items()}
            sizes[AVERAGE] = sum(sizes.values())
        rows = []
        for key, gap in self.columns.items():
            rows.append(ComparedColumn(key, first.get(key), second.get(key), gap, sizes.get(key)))
        return rows


def compare_methods(study: Study, methods: Methods) -> list[MethodComparison]:
    """The comparison in each setup, of confirmed checkpoints where both methods have one.

    UserError if the two rest on different problems.
    """
    study = with_confirmation(study)
    chosen, found = select(study), list[MethodComparison]()
    for setup in study.experiment.setups:
        found += _compare_in(study, setup, chosen, [methods])
    return found


def compare_all(study: Study, chosen: Sequence[Selected]) -> dict[str, list[MethodComparison]]:
    """Setup → the comparison of every two methods that have scores in it."""
    study, found = with_confirmation(study), dict[str, list[MethodComparison]]()
    for setup in study.experiment.setups:
        methods = order_methods([each.best.method for each in chosen if each.setup == setup])
        found[setup] = _compare_in(study, setup, chosen, [*itertools.combinations(methods, 2)])
    return found


def _only(checkpoints: Mapping[str, Candidate], methods: Iterable[str]) -> dict[str, Candidate]:
    return {method: checkpoints[method] for method in methods if method in checkpoints}


def _compare_in(
    study: Study, setup: str, chosen: Iterable[Selected], pairs: Sequence[Methods]
) -> list[MethodComparison]:
    own = [selected for selected in chosen if selected.setup == setup]
    sizes = {selected.best.method: selected.candidates for selected in own}
    checkpoints = {selected.best.method: selected.best for selected in own}
    confirmed, found = confirmed_candidates(study, setup), list[MethodComparison]()
    compared = dict.fromkeys(itertools.chain(*pairs))
    drawn_checkpoints = replicate_scores(_only(checkpoints, compared))
    drawn_confirmed = replicate_scores(_only(confirmed, compared))
    for pair in pairs:
        both = confirmed.keys() >= set(pair)
        known = confirmed if both else checkpoints
        drawn = drawn_confirmed if both else drawn_checkpoints
        first, second = known.get(pair[0]), known.get(pair[1])
        benchmarks = study.experiment.setups[setup].evaluation.benchmarks
        columns: dict[str, Difference | None] = dict.fromkeys([AVERAGE, *benchmarks])
        if first is not None and second is not None:
            chosen_from = {} if both else sizes
            gaps = differences({pair[0]: first}, second, drawn, chosen_from)
            columns |= relabelled(gaps, known, pair[1])[pair[0]]
        judged = pair_verdict(study, pair, columns[AVERAGE], both)
        title = setup_title(setup, study.experiment.setups)
        found.append(MethodComparison(setup, title, pair, first, second, columns, judged, both))
    return found
