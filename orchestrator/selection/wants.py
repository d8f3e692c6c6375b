"""Which samples an experiment still needs: a projection of its run directories, so the same after any kill.

A checkpoint gets the first rung of samples as soon as it is there. Once all trials of a family are trained, its race
is replayed from the counts at each rung (`orchestrator.selection.race`); those still in it get the next one. Under
`budget: full` the first rung is the last. When nothing is left, the checkpoint selected in the family gets fresh
samples, which take no part in selection.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from orchestrator.config import Experiment, Setup
from orchestrator.experiment import evaluations
from orchestrator.experiment.evaluations import Sampling
from orchestrator.experiment.units import Unit
from orchestrator.records.files import damaged
from orchestrator.records.rundir import RunReader
from orchestrator.selection import race, scores
from orchestrator.selection.scores import Setting

Rival = tuple[Setting, int]  # a setting's checkpoint of one step
Wants = dict[str, dict[Sampling, int]]  # unit id → samples for each problem; nothing that is already there


@dataclass(frozen=True)
class Standing:
    """Where the family of some settings is: what it wants, and whether its selection is final."""

    wants: Wants
    settled: bool


@dataclass(frozen=True)
class _Scene:
    """What all questions about a family need; `ids` are evaluation ids by draw, which take a while to make."""

    setup: Setup
    runs: Path
    ids: dict[int, dict[str, str]]

    def lacking(self, setting: Sequence[Unit], step: int, wanted: dict[str, int], draw: int = 0) -> Wants:
        """Which of the `wanted` samples each seed of a setting lacks at one checkpoint.

        Raises Damaged where they cannot be had any more, because the checkpoint was lost.
        """
        found: Wants = {}
        for unit in setting:
            run = RunReader(self.runs, unit.id)
            for benchmark, n in wanted.items():
                have = scores.tally(run, self.ids[draw][benchmark], step)
                if have is None or have.samples < n:
                    if step in self.lost(unit):
                        raise damaged(run.checkpoint_path(step), "is gone before it was evaluated", run.remedy)
                    found.setdefault(unit.id, {})[Sampling(benchmark, step, draw)] = n
        return found

    def checkpoints(self, unit: Unit) -> Iterable[int]:
        """Steps whose checkpoints were not dropped; the untrained student is always there."""
        return [0] if unit.kind == "base_eval" else RunReader(self.runs, unit.id).committed_checkpoints()

    def lost(self, unit: Unit) -> set[int]:
        """Checkpoints that are gone although they were not dropped."""
        run = RunReader(self.runs, unit.id)
        return set(run.committed_checkpoints()) - set(run.checkpoints())

    def is_kept(self, setting: Sequence[Unit], step: int) -> bool:
        """Whether every seed still has the checkpoint."""
        return all(step in self.checkpoints(unit) for unit in setting)

    def counts(self, benchmark: str, rivals: list[Rival], n: int) -> race.Counts:
        """What the rivals had at the rung of n samples."""
        rows = [
            [scores.tally_at(RunReader(self.runs, unit.id), self.ids[0][benchmark], step, n) for unit in setting]
            for setting, step in rivals
        ]
        correct = np.stack([np.concatenate([counts.correct for counts in row]) for row in rows])
        samples = np.stack([np.concatenate([counts.n for counts in row]) for row in rows])
        return race.Counts(correct, samples, evaluations.samples_wanted(self.setup.evaluation, benchmark))


def wants(experiment: Experiment, units: list[Unit], runs: Path) -> Wants:
    """Samples that can and should be taken now."""
    families = scores.families(units)
    return _union(standing(experiment.setups[family[0][0].setup], family, runs).wants for family in families)


def standing(setup: Setup, family: list[Setting], runs: Path) -> Standing:
    """Where a family stands: first rungs, then the race, then the selected checkpoint's fresh samples."""
    scene = _Scene(
        setup, runs, {draw: evaluations.drawn_evaluation_ids(setup, draw) for draw in (0, evaluations.FRESH)}
    )
    members = [unit for setting in family for unit in setting]
    at_once = evaluations.samples_at_once(setup.evaluation, members[0].kind)
    first = _union(scene.lacking([unit], step, at_once) for unit in members for step in scene.checkpoints(unit))
    trained = all(unit.kind == "base_eval" or RunReader(runs, unit.id).trained for unit in members)
    if first or not trained:
        return Standing(first, settled=False)
    next_rung = _next_rung(scene, family)
    if next_rung:
        return Standing(next_rung, settled=False)
    return Standing(_rescoring(scene, family) if setup.evaluation.rescore else {}, settled=True)


def _next_rung(scene: _Scene, family: list[Setting]) -> Wants:
    """What the race lacks at its first rung that is not complete; a rival whose checkpoint is gone leaves it there."""
    setup, rivals = scene.setup, _rivals(scene, family)
    rungs, entered = evaluations.rungs(setup.evaluation), len(rivals)
    for rung in rungs:
        wanted = rung if len(rivals) > 1 else rungs[-1]
        lacking = [scene.lacking(setting, step, wanted) for setting, step in rivals]
        able = [not lacks or scene.is_kept(*rival) for rival, lacks in zip(rivals, lacking, strict=True)]
        rivals, found = list(itertools.compress(rivals, able)), _union(itertools.compress(lacking, able))
        if found or not rivals or wanted == rungs[-1]:
            return found
        if len(rivals) == 1:
            continue  # the others left the race just now: the last one gets all samples
        counts = [scene.counts(benchmark, rivals, n) for benchmark, n in rung.items()]
        alive = race.survivors(counts, setup.evaluation.error, entered, len(rungs))
        rivals = list(itertools.compress(rivals, alive))
    raise AssertionError("the last rung returns")


def _rivals(scene: _Scene, family: list[Setting]) -> list[Rival]:
    steps = ((setting, scores.evaluated_steps(scene.setup, setting, scene.runs)) for setting in family)
    return [(setting, step) for setting, evaluated in steps for step in evaluated]


def _rescoring(scene: _Scene, family: list[Setting]) -> Wants:
    """Fresh samples of the selected checkpoint, if it is still there."""
    best = scores.best_of(scores.candidates(scene.setup, family, scene.runs))
    if best is None or not scene.is_kept(best.setting, best.step):
        return {}
    return scene.lacking(best.setting, best.step, evaluations.rungs(scene.setup.evaluation)[-1], evaluations.FRESH)


def _union(parts: Iterable[Wants]) -> Wants:
    found: Wants = {}
    for part in parts:
        for unit_id, wanted in part.items():
            found.setdefault(unit_id, {}).update(wanted)
    return found
