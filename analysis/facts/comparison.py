"""Two methods on the same problems: their checkpoints, and the difference in every column."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from analysis.facts.assess import (
    PERCENT,
    confirmed_candidates,
    differences,
    estimates,
    exact_scores,
    relabelled,
    replicate_scores,
)
from analysis.facts.candidates import Candidate, Selected, select, select_settings
from analysis.facts.evidence import Difference, Estimate, Verdict
from analysis.facts.verdict import caveats, pair_verdict
from analysis.labels import AVERAGE, BASE, order_methods, setup_title
from orchestrator.experiment.axes import setting_text
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

    A method is named by its key; a setting, by the key and its knobs after a blank, is compared at
    its best step. UserError if the two rest on different problems.
    """
    study = with_confirmation(study)
    chosen, found = select(study), list[MethodComparison]()
    settings = select_settings(study) if any(" " in name for name in methods) else []
    for setup in study.experiment.setups:
        found += _compare_in(study, setup, chosen, [methods], settings)
    return found


def compare_all(study: Study, chosen: Sequence[Selected]) -> dict[str, list[MethodComparison]]:
    """Setup → the comparison of every two methods that have scores in it."""
    study, found = with_confirmation(study), dict[str, list[MethodComparison]]()
    for setup in study.experiment.setups:
        methods = order_methods([each.best.method for each in chosen if each.setup == setup])
        found[setup] = _compare_in(study, setup, chosen, [*itertools.combinations(methods, 2)])
    return found


def setting_name(checkpoint: Candidate) -> str:
    """The name of a setting among the methods of a comparison: `trust_region epsilon0=0.5 K=24`."""
    return f"{checkpoint.method} {setting_text(checkpoint.knobs)}".rstrip()


@dataclass(frozen=True)
class SettingRow:
    """A setting at its best step: `columns` by benchmark, the average as `avg`.

    `averages` are those of its runs, in percent; `chosen` tells whether its method's choice is this
    setting. `confirmed` is the average of its confirming runs, None without any.
    """

    setup: str
    checkpoint: Candidate
    columns: dict[str, Estimate]
    averages: tuple[Fraction, ...]
    chosen: bool
    confirmed: Estimate | None = None
    stopped: int | None = None  # the step at which a halving search stopped it


def setting_rows(study: Study) -> list[SettingRow]:
    """A row for each setting that has scores, by setup and in the order of the grid."""
    known = with_confirmation(study)
    chosen = {(each.setup, setting_name(each.best)) for each in select(study)}
    confirmed: dict[tuple[str, str], Estimate] = {}
    for setup in study.experiment.setups:
        runs = confirmed_candidates(known, setup)
        drawn = replicate_scores(runs)
        for method, candidate in runs.items():
            scores = estimates(candidate, drawn[method])
            confirmed[setup, setting_name(candidate)] = scores[AVERAGE]
    rows: list[SettingRow] = []
    settings = select_settings(study)
    for setup in study.experiment.setups:
        own = {setting_name(each.best): each.best for each in settings if each.setup == setup}
        drawn = replicate_scores(own)
        for name, checkpoint in own.items():
            averages = tuple(PERCENT * score for score in checkpoint.by_seed[AVERAGE])
            scores, at = estimates(checkpoint, drawn[name]), (setup, name)
            is_chosen = at in chosen and checkpoint.method != BASE
            stopped = known.halved.get(checkpoint.units[0])
            row = SettingRow(
                setup,
                checkpoint,
                scores,
                averages,
                is_chosen,
                confirmed.get(at),
                stopped.goal if stopped and stopped.stopped else None,
            )
            rows.append(row)
    return rows


def _only(checkpoints: Mapping[str, Candidate], methods: Iterable[str]) -> dict[str, Candidate]:
    return {method: checkpoints[method] for method in methods if method in checkpoints}


def _compare_in(
    study: Study,
    setup: str,
    chosen: Iterable[Selected],
    pairs: Sequence[Methods],
    settings: Iterable[Selected] = (),
) -> list[MethodComparison]:
    of_settings = {setting_name(each.best): each for each in settings if each.setup == setup}
    of_methods = {each.best.method: each for each in chosen if each.setup == setup}
    own = of_settings | of_methods
    sizes = {name: selected.candidates for name, selected in own.items()}
    checkpoints = {name: selected.best for name, selected in own.items()}
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
            gaps = differences({pair[0]: first}, second, drawn, chosen_from, name=pair[1])
            columns |= relabelled(gaps, known, pair[1])[pair[0]]
        judged = pair_verdict(study, pair, columns[AVERAGE], both)
        judged = replace(judged, caveats=caveats(study.experiment) if judged.sentences else ())
        title = setup_title(setup, study.experiment.setups)
        found.append(MethodComparison(setup, title, pair, first, second, columns, judged, both))
    return found
