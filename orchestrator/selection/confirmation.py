"""Finds the runs that confirm what a sweep found: a projection of its run directories, equal after
any kill.

A family's choice of setting and step rests on its exploring seeds, and the larger the family, the
luckier the choice. Once a family is settled, its chosen setting is therefore trained again on
`confirm.seeds`, which took no part in choosing it. Only the chosen step is evaluated, on fresh
samples. Differences between methods are tested on these runs alone.

With `confirm.until` seeds are added in rounds to the methods whose difference to vanilla is still
open. A look at the data after each round would find differences by chance, so that each look is
taken at Pocock's nominal level: all looks together keep 5 % (Pocock 1977, "Group sequential methods
in the design and analysis of clinical trials"; for t tests, Jennison and Turnbull 2000, "Group
Sequential Methods", §4.4, and §9 on repeated confidence intervals).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from orchestrator.config import Experiment
from orchestrator.errors import refuse
from orchestrator.experiment.methods import REFERENCE
from orchestrator.experiment.units import Family, Setting, Unit, with_seed
from orchestrator.selection import scores, significance
from orchestrator.selection.samples_wanted import confirming_samples, family_state, wants
from orchestrator.selection.study import Study

FIRST_SEED = (
    100  # of the seeds that `confirming_seeds` gives: more exploring seeds may be added below it
)
PERCENT = 100
LOOKS = 5  # rounds of seeds at most
NOMINAL_LEVEL = (
    0.0158  # of each of LOOKS looks: Jennison and Turnbull 2000, Table 2.1, C_P(5, 0.05) = 2.413
)


def confirming_seeds(experiment: Experiment, count: int) -> list[int]:
    """The first `count` seeds from FIRST_SEED on that take no part in choosing settings."""
    if count < 2:
        raise refuse("--confirm", count, "2 or more: one run says nothing of another")
    free = (seed for seed in itertools.count(FIRST_SEED) if seed not in experiment.explored_seeds)
    return list(itertools.islice(free, count))


def level(experiment: Experiment) -> float:
    """The level at which differences are tested: 5 %, or that of one look out of several."""
    return 1 - significance.CONFIDENCE if experiment.confirm.until is None else NOMINAL_LEVEL


@dataclass(frozen=True)
class Confirmation:
    """The chosen checkpoint of one method in one setup, and the runs that confirm it.

    `chosen` are the exploring units of the setting and `step` its chosen step. `units` are trials
    of the same setting with confirming seeds, in their order; `stages` are the supervised stages
    that these start from.
    """

    chosen: Setting
    step: int
    units: list[Unit]
    stages: list[Unit]


def confirmations(study: Study) -> Iterator[Confirmation]:
    """Yield a confirmation for each family that is settled and to be confirmed, by setup."""
    experiment = study.experiment
    if not experiment.confirm.seeds or any(unit.provisional for unit in study.units):
        return
    settled: dict[str, dict[str, tuple[Setting, int]]] = {}
    for family in study.families():
        method = family[0][0].method
        if method not in experiment.confirmed_methods or not family_state(study, family).settled:
            continue
        best = scores.best_of(scores.scored_checkpoints(study, family))
        if best is not None:
            settled.setdefault(family[0][0].setup, {})[method] = list(best.setting), best.step
    for chosen in settled.values():
        rounds = _rounds(study, chosen)
        for method, (setting, step) in chosen.items():
            yield _confirmation(study, setting, step, rounds[method])


def _confirmation(study: Study, setting: Setting, step: int, rounds: int) -> Confirmation:
    units, stages = [], []
    for seed in _seeds(study.experiment, rounds):
        *before, trial = with_seed(setting[0], seed, study.experiment, study.runs)
        units.append(trial)
        stages += before
    return Confirmation(setting, step, units, stages)


def _seeds(experiment: Experiment, rounds: int) -> list[int]:
    """`confirm.seeds`, and as many further unused seeds for each later round."""
    first = experiment.confirm.seeds
    used = {*first, *experiment.explored_seeds}
    further = (seed for seed in itertools.count(max(first) + 1) if seed not in used)
    return [*first, *itertools.islice(further, (rounds - 1) * len(first))]


# --- until decided ---


def _rounds(study: Study, chosen: Mapping[str, tuple[Setting, int]]) -> dict[str, int]:
    """Method → rounds of seeds that it wants by now; the looks so far are replayed from the
    beginning.
    """
    experiment = study.experiment
    until, rounds = experiment.confirm.until, dict.fromkeys(chosen, 1)
    if until is None or set(chosen) != set(experiment.confirmed_methods) or REFERENCE not in chosen:
        return rounds
    for look in range(1, LOOKS):
        of_runs: dict[str, list[Fraction]] = {}
        for method, (setting, step) in chosen.items():
            confirmation = _confirmation(study, setting, step, rounds[method])
            evaluated = evaluated_units(study, confirmation)
            if len(evaluated) < len(confirmation.units):
                return rounds  # this round is still being run
            of_runs[method] = [_score(study, unit, step) for unit in evaluated]
        undecided = open_methods(of_runs, until)
        # A method that was decided at an earlier look stays so.
        going_on = [method for method in undecided if rounds[method] == look]
        if not going_on:
            return rounds
        rounds |= dict.fromkeys([REFERENCE, *going_on], look + 1)
    return rounds


def open_methods(of_runs: Mapping[str, list[Fraction]], until: float) -> list[str]:
    """Methods whose difference to vanilla is neither within ± `until` points nor apart from zero.

    `of_runs` are the scores of each method's confirming runs in percent, vanilla's among them.
    """
    spread = significance.pool(of_runs.values())
    others = [method for method in of_runs if method != REFERENCE]
    if spread is None or not others:
        return []
    means = {method: sum(found, Fraction(0)) / len(found) for method, found in of_runs.items()}
    gaps = [means[method] - means[REFERENCE] for method in others]
    runs = [len(of_runs[method]) for method in others]
    reaches = significance.adjusted(
        gaps, spread, runs, len(of_runs[REFERENCE]), NOMINAL_LEVEL
    ).reaches
    undecided = []
    for method, gap, reach in zip(others, gaps, reaches, strict=True):
        if abs(gap) <= reach and abs(gap) + reach > until:
            undecided.append(method)
    return undecided


def evaluated_units(study: Study, confirmation: Confirmation) -> list[Unit]:
    """The confirming units that have all samples of the step that they confirm, in their order."""
    steps = {unit.id: confirmation.step for unit in confirmation.units}
    known = replace(study, confirming=steps)
    return [
        unit
        for unit in confirmation.units
        if study.reader(unit).trained and not confirming_samples(known, unit)
    ]


def _score(study: Study, unit: Unit, step: int) -> Fraction:
    """The score of an evaluated confirming unit in percent."""
    ids = list(study.fresh_evaluation_ids(unit.setup).values())
    score = scores.exact_mean(scores.benchmark_scores(study.reader(unit), ids, step))
    assert score is not None, "it has all samples"
    return PERCENT * score


# --- the units ---


def with_confirmation(study: Study) -> Study:
    """The study with the confirming units of all families that are settled by now, and no others."""
    if not study.experiment.confirm.seeds:
        return study
    explored = study.exploring()
    steps: dict[str, int] = {}
    units: dict[str, Unit] = {}
    there = {unit.id for unit in explored.units}
    for confirmation in confirmations(explored):
        for unit in confirmation.stages:
            if unit.id not in there:
                units[unit.id] = unit
        for unit in confirmation.units:
            units[unit.id] = unit
            steps[unit.id] = confirmation.step
    return replace(explored, units=[*explored.units, *units.values()], confirming=steps)


def unconfirmed_units(study: Study) -> list[Unit]:
    """Units like those that will confirm the families which are still open; their settings may be
    others.

    `study` comes from `with_confirmation`. Units of models that are not made yet are provisional.
    """
    known = {(unit.setup, unit.method) for unit in study.units if unit.id in study.confirming}
    there = {unit.id for unit in study.units}
    units: dict[str, Unit] = {}
    for family in study.families():
        if family[0][0].method in study.experiment.confirmed_methods and _key(family) not in known:
            for seed in study.experiment.confirm.seeds:
                units |= {
                    unit.id: unit
                    for unit in with_seed(family[0][0], seed, study.experiment, study.runs)
                }
    return [unit for unit in units.values() if unit.id not in there]


def missing_units(study: Study) -> list[Unit]:
    """Units that still need work, confirming ones included: training, or samples that are wanted
    now.
    """
    study = with_confirmation(study.snapshot())
    wanted = wants(study)
    return [unit for unit in study.units if unit.id in wanted or not study.reader(unit).trained]


def _key(family: Family) -> tuple[str, str | None]:
    return family[0][0].setup, family[0][0].method
