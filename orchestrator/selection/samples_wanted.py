"""Finds the samples that an experiment still needs, as a projection of its run directories.

A checkpoint gets the first rung of samples as soon as it exists. Once all trials of a family are
trained, its race is replayed from the counts at each rung, and the survivors get the next rung.
Under `budget: full` the first rung is the last. After its race a family's selected checkpoint gets
fresh samples, which take no part in selection. The survivors of a race get all n samples before
that. With an indifference zone a race may end with fewer samples, and only
the winner gets n samples: fresh ones.

The bound of `selection.race`: with R rungs, the candidates that leave at one of them would have been
the pick of the full protocol with probabilities that sum to at most `evaluation.error` ÷ (R − 1). With
a zone δ, the same allowance holds for losing more than δ points, and its unused part goes to the next
rung. By the union bound a race errs with probability `evaluation.error` at most.

A rung is a number of samples for each problem. A repetition of an evaluation takes independent
samples: repetition 0 selects, `FRESH` does not. A family is settled when more samples cannot change
its selection.

No decision is stored. Slices end where rungs do, so the counts at each rung are sums over slices:
every caller, also after a kill, replays the same race on the same numbers and comes to the same
answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.config import Evaluation
from orchestrator.experiment import evaluation_protocol
from orchestrator.experiment.evaluation_protocol import FRESH, Sampling
from orchestrator.experiment.units import Family, Setting, Unit
from orchestrator.records.files import damaged
from orchestrator.records.rundir import RunReader
from orchestrator.selection import race, scores
from orchestrator.selection.study import Study

Rival = tuple["_SettingRuns", int]  # a checkpoint in a race: its setting and its step
Wants = dict[str, dict[Sampling, int]]  # unit id → samples for each problem; only missing ones


@dataclass(frozen=True)
class FamilyState:
    """The samples that a family wants now; `settled` once its selection cannot change any more."""

    wants: Wants
    settled: bool


def wants(study: Study) -> Wants:
    """Samples that can and should be taken now."""
    parts: list[Wants] = []
    for family in study.families():
        parts.append(family_state(study, family).wants)
    for unit in study.units:
        parts.append(confirming_samples(study, unit))
    return _union(parts)


def asks_more(study: Study, family: Family) -> bool:
    """Whether a search will ask for further settings of a family by its scores."""
    method, trials = family[0][0].method, study.experiment.search.trials
    return method in study.experiment.spaces and len(family) < (trials or 0)


def confirming_samples(study: Study, unit: Unit) -> Wants:
    """Fresh samples that a confirming unit still needs of the step it confirms; else none."""
    step, run = study.confirming.get(unit.id), study.reader(unit)
    if step is None or not run.trained:
        return {}
    full = evaluation_protocol.rungs(study.setup_of(unit).evaluation)[-1]
    return _lacking([run], study.fresh_evaluation_ids(unit.setup), step, full, FRESH)


def family_state(study: Study, family: Family) -> FamilyState:
    """Compute a family's wants: first rungs, then rungs of its race, then fresh samples.

    Raises Damaged if a checkpoint was lost that still wants samples.
    """
    first, settings = family[0][0], []
    for setting in family:
        settings.append(_SettingRuns(setting, [study.reader(unit) for unit in setting]))
    evaluation, ids = study.setup_of(first).evaluation, study.evaluation_ids(first.setup)
    at_once = evaluation_protocol.samples_at_once(evaluation, first)
    parts: list[Wants] = []
    for setting in settings:
        for run, steps in zip(setting.runs, setting.kept_steps(), strict=True):
            for step in steps:
                parts.append(_lacking([run], ids, step, at_once))
    first_rungs = _union(parts)
    # A race is decided among all checkpoints of a family, and a later one could change which are
    # dropped. So no race begins before every trial is trained and has its first samples.
    trained = all(study.is_trained(u) or not u.trains for u in itertools.chain(*family))
    if first_rungs or not trained or asks_more(study, family):
        return FamilyState(first_rungs, settled=False)
    best = None
    if evaluation.rescore:
        best = scores.best_of(scores.scored_checkpoints(study, family))
    racing = [each for each in settings if not study.is_stopped(each.units[0])]
    next_rung = _next_rung(evaluation, ids, racing, best)
    if next_rung:
        return FamilyState(next_rung, settled=False)
    if best is None:
        return FamilyState({}, settled=True)
    # The samples that selected the best checkpoint favour it: of many checkpoints the one with the
    # luckiest samples was taken. It gets fresh ones if it still exists.
    selected = next(each for each in settings if each.units == list(best.setting))
    fresh: Wants = {}
    if selected.keeps(best.step):
        full = evaluation_protocol.rungs(evaluation)[-1]
        fresh_ids = study.fresh_evaluation_ids(first.setup)
        fresh = _lacking(selected.runs, fresh_ids, best.step, full, FRESH)
    return FamilyState(fresh, settled=True)


@dataclass(frozen=True)
class _SettingRuns:
    """A setting with the run directories of its seeds."""

    units: Setting
    runs: list[RunReader]

    def kept_steps(self) -> list[Iterable[int]]:
        """Steps of each seed whose checkpoints were not dropped; the untrained student has one."""
        if self.units[0].is_untrained:
            return [[0] for _ in self.runs]
        return [run.committed_checkpoints() for run in self.runs]

    def keeps(self, step: int) -> bool:
        """Whether every seed still has the checkpoint."""
        return all(step in steps for steps in self.kept_steps())


def _next_rung(
    evaluation: Evaluation,
    ids: Mapping[str, str],
    settings: Sequence[_SettingRuns],
    best: scores.ScoredCheckpoint | None,
) -> Wants:
    """The samples that the first incomplete rung of a race still needs; empty after the race.

    `best` is the selected checkpoint if that gets fresh samples, else None. The race is replayed
    from its beginning. Each rung counts the samples that it had when it was complete, so that
    samples of later rungs change no earlier decision.
    """
    rungs = evaluation_protocol.rungs(evaluation)
    bound = race.Race(evaluation.error, len(rungs), evaluation.indifference / 100)
    rivals: list[Rival] = []
    for setting in settings:
        for step in scores.evaluated_steps(setting.units[0], setting.runs, ids):
            rivals.append((setting, step))
    for rung in rungs[:-1]:
        if len(rivals) < 2:
            break  # a sole survivor skips the rungs between and gets all samples at once
        rivals, needed = _able_rivals(ids, rivals, rung)
        if needed:
            return needed
        if len(rivals) > 1:  # else the others have just left, and nothing is left to compare
            counts = []
            for benchmark, n in rung.items():
                full = evaluation_protocol.full_samples(evaluation, benchmark)
                counts.append(_counts(ids[benchmark], rivals, n, full))
            rivals = list(itertools.compress(rivals, bound.survivors(counts)))
    # A checkpoint with more samples, for example from an evaluation in full, is selected before the
    # winner of the race (`scores.best_of`), which then needs all samples, too.
    left = [(setting.units, step) for setting, step in rivals]
    if evaluation.indifference and best is not None and left == [(list(best.setting), best.step)]:
        return {}
    _, needed = _able_rivals(ids, rivals, rungs[-1])
    return needed


def _able_rivals(
    ids: Mapping[str, str], rivals: Iterable[Rival], rung: Mapping[str, int]
) -> tuple[list[Rival], Wants]:
    """Rivals that have or can still get the samples of a rung, and the samples that they lack.

    A checkpoint that was dropped, for example under another `budget`, cannot be sampled again. It
    leaves the race at the first rung that it lacks, up to which its counts are comparable.
    """
    able: list[Rival] = []
    needed: list[Wants] = []
    for setting, step in rivals:
        lacks = _lacking(setting.runs, ids, step, rung)
        if not lacks or setting.keeps(step):
            able.append((setting, step))
            needed.append(lacks)
    return able, _union(needed)


def _lacking(
    runs: Sequence[RunReader],
    ids: Mapping[str, str],
    step: int,
    wanted: Mapping[str, int],
    repetition: int = 0,
) -> Wants:
    """The `wanted` samples (benchmark → n) that each seed of a setting lacks at one checkpoint.

    `ids` are the evaluation ids of the `repetition` by benchmark. Raises Damaged if the samples
    cannot be taken any more, because the checkpoint was lost.
    """
    lacking: Wants = {}
    for run in runs:
        for benchmark, n in wanted.items():
            counts = scores.tally(run, ids[benchmark], step)
            if counts is not None and counts.samples >= n:
                continue
            # A dropped checkpoint is not committed any more, so this one vanished on its own.
            if step in set(run.committed_checkpoints()) - set(run.checkpoints()):
                raise damaged(
                    run.checkpoint_path(step), "is gone before it was evaluated", run.remedy
                )
            lacking.setdefault(run.unit_id, {})[Sampling(benchmark, step, repetition)] = n
    return lacking


def _counts(evaluation_id: str, rivals: Sequence[Rival], n: int, full: int) -> race.Counts:
    """Counts of the rivals on one benchmark at the rung of n samples, of `full` in the protocol.

    The problems of a setting's seeds stand side by side, as if they were different problems.
    """
    correct, samples = [], []
    for setting, step in rivals:
        for run in setting.runs:
            counts = scores.tally_at(run, evaluation_id, step, n)
            correct.append(counts.correct)
            samples.append(counts.n)
    shape = len(rivals), -1
    return race.Counts(
        np.concatenate(correct).reshape(shape), np.concatenate(samples).reshape(shape), full
    )


def _union(parts: Iterable[Wants]) -> Wants:
    union: Wants = {}
    for part in parts:
        for unit_id, samples in part.items():
            union.setdefault(unit_id, {}).update(samples)
    return union
