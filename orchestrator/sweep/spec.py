"""The specification of one sweep, which all its processes share, and the names of its work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.selection.confirmation import with_confirmation
from orchestrator.selection.study import Study
from orchestrator.sweep.requirements import Requirement
from orchestrator.sweep.schedule import Evaluating, TrainUnit, Work
from orchestrator.workers.spec import Pairs

SAMPLED = "sampled"  # key of a result: an evaluator has sampled a slice
UNFIT = "unfit"  # key of a result: Ray's id of a node that cannot do the work
LACK = "lack"  # key of the same result: the requirement that the node lacks
FULL_DISK = "full_disk"  # key of a result: number, text and file of the error that ended the work
LABELS = "labels"  # key of a configuration: labels that Ray must find on a node


@dataclass(frozen=True)
class Sweep:
    """One call of `trb submit`, identified by `name`.

    It makes at most `attempts` at a unit or a slice. `requirements` apply to the machines of a
    cluster that the sweep did not start.
    """

    study: Study
    pairs: Pairs
    name: str
    attempts: int
    requirements: Sequence[Requirement] = ()

    def name_of(self, work: Work) -> str:
        """Name under which work gives signs of life: a unit's id, or `evaluator-3f9a0c-2`."""
        if isinstance(work, TrainUnit):
            return work.unit.id
        return f"evaluator-{self.name[:6]}-{work.number}"

    def work_of(self, config: dict[str, Any]) -> Work:
        """Return the work that Tune's configuration of a trial describes; see `config_of`."""
        if "evaluator" in config:
            return Evaluating(config["evaluator"])
        for unit in self.study.units:
            if unit.id == config["unit"]:
                return TrainUnit(unit)
        # A confirming unit: the sweep found it after it had made this study.
        study = with_confirmation(self.study.snapshot())
        return TrainUnit(next(unit for unit in study.units if unit.id == config["unit"]))


def config_of(work: Work, labels: Mapping[str, str]) -> dict[str, Any]:
    """Tune's configuration of a trial that does this work on nodes with these labels."""
    named = {"unit": work.unit.id} if isinstance(work, TrainUnit) else {"evaluator": work.number}
    return named | {LABELS: dict(labels)}
