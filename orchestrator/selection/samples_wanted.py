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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.experiment import evaluation_protocol
from orchestrator.experiment.evaluation_protocol import FRESH, Sampling
from orchestrator.experiment.units import Family, Setting, Unit
from orchestrator.records.files import damaged
from orchestrator.selection import race, scores
from orchestrator.selection.study import Study

Rival = tuple[Setting, int]  # a checkpoint in a race: its setting and its step
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


def confirming_samples(study: Study, unit: Unit) -> Wants:
    """Fresh samples that a confirming unit still needs of the step it confirms; else none."""
    step = study.confirming.get(unit.id)
    if step is None or not study.reader(unit).trained:
        return {}
    full = evaluation_protocol.rungs(study.setup_of(unit).evaluation)[-1]
    return _lacking(study, [unit], step, full, FRESH)


def family_state(study: Study, family: Family) -> FamilyState:
    """Compute a family's wants: first rungs, then rungs of its race, then fresh samples.

    Raises Damaged if a checkpoint was lost that still wants samples.
    """
    evaluation = study.setup_of(family[0][0]).evaluation
    at_once = evaluation_protocol.samples_at_once(evaluation, family[0][0])
    parts: list[Wants] = []
    trained = True
    for setting in family:
        for unit in setting:
            if unit.trains and not study.reader(unit).trained:
                trained = False
            for step in _kept_checkpoints(study, unit):
                parts.append(_lacking(study, [unit], step, at_once))
    first_rungs = _union(parts)
    # A race is decided among all checkpoints of a family, and a later one could change which are
    # dropped. So no race begins before every trial is trained and has its first samples.
    if first_rungs or not trained:
        return FamilyState(first_rungs, settled=False)
    next_rung = _next_rung(study, family)
    if next_rung:
        return FamilyState(next_rung, settled=False)
    return FamilyState(_fresh_samples(study, family) if evaluation.rescore else {}, settled=True)


def _next_rung(study: Study, family: Family) -> Wants:
    """The samples that the first incomplete rung of a race still needs; empty after the race.

    The race is replayed from its beginning. Each rung counts the samples that it had when it was
    complete, so that samples of later rungs change no earlier decision.
    """
    evaluation = study.setup_of(family[0][0]).evaluation
    rungs = evaluation_protocol.rungs(evaluation)
    bound = race.Race(evaluation.error, len(rungs), evaluation.indifference / 100)
    rivals: list[Rival] = []
    for setting in family:
        for step in scores.evaluated_steps(study, setting):
            rivals.append((setting, step))
    for rung in rungs[:-1]:
        if len(rivals) < 2:
            break  # a sole survivor skips the rungs between and gets all samples at once
        rivals, needed = _able_rivals(study, rivals, rung)
        if needed:
            return needed
        if len(rivals) > 1:  # else the others have just left, and nothing is left to compare
            counts = [_counts(study, benchmark, rivals, n) for benchmark, n in rung.items()]
            alive = bound.survivors(counts)
            rivals = list(itertools.compress(rivals, alive))
    if evaluation.indifference and evaluation.rescore and _is_selected(study, family, rivals):
        return {}
    _, needed = _able_rivals(study, rivals, rungs[-1])
    return needed


def _is_selected(study: Study, family: Family, rivals: Sequence[Rival]) -> bool:
    """Whether a sole rival is the selected checkpoint already.

    A checkpoint with more samples, for example from an evaluation in full, is selected before it
    (`scores.best_of`). The winner of the race then needs all samples, too.
    """
    best = scores.best_of(scores.scored_checkpoints(study, family))
    return best is not None and rivals == [(list(best.setting), best.step)]


def _able_rivals(
    study: Study, rivals: Iterable[Rival], rung: dict[str, int]
) -> tuple[list[Rival], Wants]:
    """Rivals that have or can still get the samples of a rung, and the samples that they lack.

    A checkpoint that was dropped, for example under another `budget`, cannot be sampled again. It
    leaves the race at the first rung that it lacks, up to which its counts are comparable.
    """
    able: list[Rival] = []
    needed: list[Wants] = []
    for setting, step in rivals:
        lacks = _lacking(study, setting, step, rung)
        if lacks and not _is_kept(study, setting, step):
            continue
        able.append((setting, step))
        needed.append(lacks)
    return able, _union(needed)


def _fresh_samples(study: Study, family: Family) -> Wants:
    """Fresh samples of the selected checkpoint, if it still exists.

    The samples that selected it favour it: of many checkpoints the one with the luckiest samples
    was taken.
    """
    best = scores.best_of(scores.scored_checkpoints(study, family))
    if best is None or not _is_kept(study, best.setting, best.step):
        return {}
    full = evaluation_protocol.rungs(study.setup_of(best.setting[0]).evaluation)[-1]
    return _lacking(study, best.setting, best.step, full, FRESH)


def _lacking(
    study: Study, setting: Sequence[Unit], step: int, wanted: dict[str, int], repetition: int = 0
) -> Wants:
    """The `wanted` samples (benchmark → n) that each seed of a setting lacks at one checkpoint.

    Raises Damaged if they cannot be taken any more, because the checkpoint was lost.
    """
    lacking: Wants = {}
    for unit in setting:
        run = study.reader(unit)
        ids = study.evaluation_ids(unit.setup, repetition)
        for benchmark, n in wanted.items():
            counts = scores.tally(run, ids[benchmark], step)
            if counts is not None and counts.samples >= n:
                continue
            # A dropped checkpoint is not committed any more, so this one vanished on its own.
            if step in set(run.committed_checkpoints()) - set(run.checkpoints()):
                raise damaged(
                    run.checkpoint_path(step), "is gone before it was evaluated", run.remedy
                )
            lacking.setdefault(unit.id, {})[Sampling(benchmark, step, repetition)] = n
    return lacking


def _kept_checkpoints(study: Study, unit: Unit) -> Iterable[int]:
    """Steps whose checkpoints were not dropped; the untrained student always exists."""
    return [0] if unit.is_untrained else study.reader(unit).committed_checkpoints()


def _is_kept(study: Study, setting: Sequence[Unit], step: int) -> bool:
    """Whether every seed still has the checkpoint."""
    return all(step in _kept_checkpoints(study, unit) for unit in setting)


def _counts(study: Study, benchmark: str, rivals: Sequence[Rival], n: int) -> race.Counts:
    """Counts of the rivals on one benchmark at the rung of n samples.

    The problems of a setting's seeds stand side by side, as if they were different problems.
    """
    correct = []
    samples = []
    for setting, step in rivals:
        evaluation_id = study.evaluation_ids(setting[0].setup)[benchmark]
        for unit in setting:
            counts = scores.tally_at(study.reader(unit), evaluation_id, step, n)
            correct.append(counts.correct)
            samples.append(counts.n)
    evaluation = study.setup_of(rivals[0][0][0]).evaluation
    return race.Counts(
        np.concatenate(correct).reshape(len(rivals), -1),
        np.concatenate(samples).reshape(len(rivals), -1),
        evaluation_protocol.full_samples(evaluation, benchmark),
    )


def _union(parts: Iterable[Wants]) -> Wants:
    union: Wants = {}
    for part in parts:
        for unit_id, samples in part.items():
            union.setdefault(unit_id, {}).update(samples)
    return union
