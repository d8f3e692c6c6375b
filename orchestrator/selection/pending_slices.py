"""Cuts the samples of `samples_wanted` into slices, which wait for any evaluator to take them.

Like `samples_wanted`, it is a projection of the run directories.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.experiment import evaluation_protocol
from orchestrator.experiment.evaluation_protocol import Sampling
from orchestrator.experiment.units import Unit
from orchestrator.records.slices import Slice, missing
from orchestrator.selection.confirmation import with_confirmation
from orchestrator.selection.samples_wanted import confirming_samples, family_state
from orchestrator.selection.study import Study


@dataclass(frozen=True)
class PendingSlice:
    """One part of the samples that a checkpoint lacks.

    It `decides` if its family waits for samples alone, with all trials trained. The weights are the
    setup's student before any training if it is `untrained`, else a checkpoint in the run directory
    `unit_id`. `score_ids` are the evaluations whose mean is the checkpoint's score; empty for fresh
    samples, which take no part in that score.
    """

    unit_id: str
    setup: str
    seed: int
    untrained: bool
    sampling: Sampling
    evaluation_id: str
    part: Slice
    decides: bool
    score_ids: Sequence[str] = ()

    @property
    def checkpoint(self) -> tuple[str, int]:
        """(unit id, step) of the weights that sample it."""
        return self.unit_id, self.sampling.step


class Slicelike(Protocol):
    """The facts of a slice on which the choice between slices rests."""

    @property
    def setup(self) -> str: ...

    @property
    def checkpoint(self) -> tuple[str, int]: ...

    @property
    def decides(self) -> bool: ...


def preference(wanted: Slicelike, loaded: object, setup: str | None) -> tuple[bool, bool, bool]:
    """Sort key of slices for an evaluator that has `loaded` a checkpoint of this setup.

    The evaluator takes the smallest: it goes on with its checkpoint, else with a slice that decides
    a family, else in its setup. Among equals it takes the first.
    """
    return wanted.checkpoint != loaded, not wanted.decides, wanted.setup != setup


def pending_slices(study: Study) -> Iterator[PendingSlice]:
    """Yield every slice that can and should be sampled now, by family, oldest checkpoint first.

    Slices of confirming units come last. A checkpoint whose evaluation failed
    (`RunReader.evaluation_error`) yields none.
    """
    study = with_confirmation(study)
    for family in study.families():
        units: dict[str, Unit] = {}
        decides = True
        for setting in family:
            for unit in setting:
                units[unit.id] = unit
                decides = decides and study.is_trained(unit)
        for unit_id, samplings in family_state(study, family).wants.items():
            for sampling, samples in sorted(samplings.items(), key=lambda item: item[0].step):
                yield from _slices_of(study, units[unit_id], sampling, samples, decides)
    for unit in study.units:
        for sampling, samples in confirming_samples(study, unit).get(unit.id, {}).items():
            yield from _slices_of(study, unit, sampling, samples, decides=False)


def _slices_of(
    study: Study, unit: Unit, sampling: Sampling, samples: int, decides: bool
) -> Iterator[PendingSlice]:
    """Yield the slices that one evaluation of a checkpoint lacks of its first `samples` samples."""
    evaluation = study.setup_of(unit).evaluation
    run = study.reader(unit)
    ids = study.evaluation_ids(unit.setup, sampling.repetition)
    evaluation_id = ids[sampling.benchmark]
    if run.evaluation_error(evaluation_id, sampling.step) is not None:
        return
    problems = evaluation_protocol.problems_wanted(evaluation, sampling.benchmark)
    # Races compare counts at the rungs, so slices of the samples that select end there.
    rungs = evaluation_protocol.rungs(evaluation) if sampling.repetition == 0 else []
    cuts = [rung[sampling.benchmark] for rung in rungs]
    most = study.experiment.runtime.slice_responses
    for part in missing(run.slices(evaluation_id, sampling.step), problems, samples, cuts, most):
        yield PendingSlice(
            unit_id=unit.id,
            setup=unit.setup,
            seed=unit.seed,
            untrained=unit.is_untrained,
            sampling=sampling,
            evaluation_id=evaluation_id,
            part=part,
            decides=decides,
            score_ids=() if sampling.repetition else tuple(ids.values()),
        )
