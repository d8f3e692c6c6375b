"""The facts that every process of a sweep has, and the names of its work for Tune and for the watchdog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.selection.study import Study
from orchestrator.sweep.requirements import Requirement
from orchestrator.sweep.schedule import Evaluating, TrainUnit, Work
from orchestrator.workers.spec import Pairs

SAMPLED = "sampled"  # key of a result: an evaluator has sampled a slice
UNFIT, LACK = "unfit", "lack"  # keys of a result: Ray's id of a node that cannot do the work, and what it lacks
LABELS = "labels"  # key of a configuration: what Ray must find on a node


@dataclass(frozen=True)
class Sweep:
    """One call of `trb submit`, told from others by its `name`; it makes at most `attempts` at a unit or a slice.

    `requirements` are those on machines of a cluster that is not its own.
    """

    study: Study
    pairs: Pairs
    name: str
    attempts: int
    requirements: Sequence[Requirement] = ()

    def name_of(self, work: Work) -> str:
        """Name the signs of life of some work: the unit's id, or the evaluator's number in this sweep."""
        return work.unit.id if isinstance(work, TrainUnit) else f"evaluator-{self.name[:6]}-{work.number}"

    def work_of(self, config: dict[str, Any]) -> Work:
        """The work that Tune's configuration of a trial stands for; see `config_of`."""
        if "evaluator" in config:
            return Evaluating(config["evaluator"])
        return TrainUnit(next(unit for unit in self.study.units if unit.id == config["unit"]))


def config_of(work: Work, labels: Mapping[str, str]) -> dict[str, Any]:
    """Tune's configuration of a trial that does this work on nodes with these labels."""
    named = {"unit": work.unit.id} if isinstance(work, TrainUnit) else {"evaluator": work.number}
    return named | {LABELS: dict(labels)}
