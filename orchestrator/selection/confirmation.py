"""Finds the runs that confirm the choices of a sweep, as a projection of its run directories.

A family's choice of setting and step rests on its exploring seeds, and the larger the family, the
luckier the choice. Once a family is settled, its chosen setting is therefore trained again on
`confirm.seeds`, which took no part in choosing it. Only the chosen step is evaluated, on fresh
samples. Differences between methods are tested on these runs alone. No choice is stored: each
process finds the same runs again, also after a kill.

With `confirm.until` seeds are added in rounds to the methods whose difference to vanilla is still
open. Repeated tests at 5 % would find differences by chance, so each round is tested at Pocock's
nominal level, with which all rounds together keep 5 % (Pocock 1977, "Group sequential methods
in the design and analysis of clinical trials"; for t tests, Jennison and Turnbull 2000, "Group
Sequential Methods", §4.4, and §9 on repeated confidence intervals).
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from orchestrator.config import Experiment
from orchestrator.errors import refuse
from orchestrator.experiment.methods import REFERENCE
from orchestrator.experiment.units import Setting, Unit, with_seed
from orchestrator.selection import scores, significance
from orchestrator.selection.asking import with_asked
from orchestrator.selection.halving import with_halving
from orchestrator.selection.samples_wanted import confirming_samples, family_state, wants
from orchestrator.selection.significance import TDistribution
from orchestrator.selection.study import Study

# First seed of `confirming_seeds`, which leaves room for more exploring seeds below it.
FIRST_SEED = 100
PERCENT = 100
LOOKS = 5  # rounds of seeds at most, each followed by one look at the data
# Level of each of LOOKS looks: Jennison and Turnbull 2000, Table 2.1, C_P(5, 0.05) = 2.413.
NOMINAL_LEVEL = 0.0158


def confirming_seeds(experiment: Experiment, count: int) -> list[int]:
    """The first `count` seeds from FIRST_SEED on that take no part in choosing settings."""
    if count < 2:
        raise refuse("--confirm", count, "2 or more: one run says nothing of another")
    return _unused_seeds(FIRST_SEED, count, experiment.explored_seeds)


def _unused_seeds(first: int, count: int, used: Collection[int]) -> list[int]:
    """The first `count` seeds from `first` on that are not used."""
    seeds: list[int] = []
    seed = first
    while len(seeds) < count:
        if seed not in used:
            seeds.append(seed)
        seed += 1
    return seeds


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
    # Rounds are shared by the methods of a setup, so its families are collected before.
    for chosen in settled.values():
        rounds = _rounds(study, chosen)
        for method, (setting, step) in chosen.items():
            yield _confirmation(study, setting, step, rounds[method])


def _confirmation(study: Study, setting: Setting, step: int, rounds: int) -> Confirmation:
    units: list[Unit] = []
    stages: list[Unit] = []
    for seed in _seeds(study.experiment, rounds):
        *before, trial = with_seed(setting[0], seed, study.experiment, study.runs)
        units.append(trial)
        stages += before
    return Confirmation(setting, step, units, stages)


def _seeds(experiment: Experiment, rounds: int) -> list[int]:
    """`confirm.seeds`, and as many further unused seeds for each later round."""
    first = experiment.confirm.seeds
    used = {*first, *experiment.explored_seeds}
    return [*first, *_unused_seeds(max(first) + 1, (rounds - 1) * len(first), used)]


# --- until decided ---


def _rounds(study: Study, chosen: Mapping[str, tuple[Setting, int]]) -> dict[str, int]:
    """Method → rounds of seeds that it wants by now.

    The earlier looks are replayed from the first, so that no decision has to be stored.
    """
    experiment = study.experiment
    until = experiment.confirm.until
    rounds = dict.fromkeys(chosen, 1)
    # The looks compare all methods with vanilla at once, so they begin when all are settled.
    if until is None or set(chosen) != set(experiment.confirmed_methods) or REFERENCE not in chosen:
        return rounds
    for look in range(1, LOOKS):
        of_runs: dict[str, list[Fraction]] = {}
        sampling: dict[str, float] = {}
        for method, (setting, step) in chosen.items():
            confirmation = _confirmation(study, setting, step, rounds[method])
            evaluated = evaluated_units(study, confirmation)
            if len(evaluated) < len(confirmation.units):
                return rounds  # this round is still being run
            found = [_score(study, unit, step) for unit in evaluated]
            of_runs[method] = [score for score, _ in found]
            sampling[method] = statistics.fmean(variance for _, variance in found)
        going_on = False
        for method in open_methods(of_runs, until, sampling):
            # A method that was decided at an earlier look stays decided, and has fewer rounds.
            if rounds[method] == look:
                rounds[method] = look + 1
                going_on = True
        if not going_on:
            return rounds
        rounds[REFERENCE] = look + 1
    return rounds


def open_methods(
    of_runs: Mapping[str, list[Fraction]], until: float, sampling: Mapping[str, float] | None = None
) -> list[str]:
    """Methods whose difference to vanilla is neither within ± `until` points nor apart from zero.

    `of_runs` are the scores of each method's confirming runs in percent, vanilla's among them, and
    `sampling` their variances by the sampling of responses.
    """
    spreads = {
        method: significance.spread_of(own, (sampling or {}).get(method, 0.0))
        for method, own in of_runs.items()
    }
    gaps: dict[str, float] = {}
    distributions: list[TDistribution] = []
    undecided: list[str] = []
    for method in [method for method in of_runs if method != REFERENCE]:
        gap = float(statistics.mean(of_runs[method]) - statistics.mean(of_runs[REFERENCE]))
        found = significance.of_difference(spreads[method], spreads[REFERENCE])
        if found is not None:
            gaps[method] = gap
            distributions.append(found)
        elif abs(gap) > until:  # no two runs of either differ, so that nothing can be tested yet
            undecided.append(method)
    intervals = significance.adjusted(list(gaps.values()), distributions, NOMINAL_LEVEL)
    for (method, gap), reach in zip(gaps.items(), intervals.reaches, strict=True):
        # The interval gap ± reach holds zero, and does not lie within ± until.
        if abs(gap) <= reach and abs(gap) + reach > until:
            undecided.append(method)
    return [method for method in of_runs if method in undecided]


def evaluated_units(study: Study, confirmation: Confirmation) -> list[Unit]:
    """The confirming units that have all samples of the step that they confirm, in their order."""
    steps = {unit.id: confirmation.step for unit in confirmation.units}
    confirming = replace(study, confirming=steps)
    evaluated: list[Unit] = []
    for unit in confirmation.units:
        if study.reader(unit).trained and not confirming_samples(confirming, unit):
            evaluated.append(unit)
    return evaluated


def _score(study: Study, unit: Unit, step: int) -> tuple[Fraction, float]:
    """The score of an evaluated confirming unit in percent, and its variance by sampling."""
    run, total, variance = study.reader(unit), Fraction(0), 0.0
    ids = study.fresh_evaluation_ids(unit.setup).values()
    for evaluation_id in ids:
        tally = scores.tally(run, evaluation_id, step)
        assert tally is not None, "it has all samples"
        total += tally.pass_at_1
        variance += tally.sampling_variance
    return PERCENT * total / len(ids), (PERCENT / len(ids)) ** 2 * variance


# --- the units ---


def with_confirmation(study: Study) -> Study:
    """The study as its search has come by now, with the confirming units of all settled families."""
    explored = with_halving(with_asked(study.exploring()))
    if not study.experiment.confirm.seeds:
        return explored
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
    """Stand-ins for the units that will confirm the open families, so that a plan can count them.

    Each takes the first setting of its family; the family may choose another. `study` comes from
    `with_confirmation`. Units of models that are not made yet are provisional.
    """
    confirmed = {(unit.setup, unit.method) for unit in study.units if unit.id in study.confirming}
    there = {unit.id for unit in study.units}
    units: dict[str, Unit] = {}
    for family in study.families():
        first = family[0][0]
        if first.method not in study.experiment.confirmed_methods:
            continue
        if (first.setup, first.method) in confirmed:
            continue
        for seed in study.experiment.confirm.seeds:
            for unit in with_seed(first, seed, study.experiment, study.runs):
                if unit.id not in there:
                    units[unit.id] = unit
    return list(units.values())


def missing_units(study: Study) -> list[Unit]:
    """Units that still need training or samples by now, confirming ones included."""
    study = with_confirmation(study.snapshot())
    wanted = wants(study)
    return [unit for unit in study.units if unit.id in wanted or not study.is_trained(unit)]
