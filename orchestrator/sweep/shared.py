"""What every process of a sweep knows, and how its work is named to Tune and to whoever watches it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.selection.study import Study
from orchestrator.sweep.schedule import Evaluating, Training, Work
from orchestrator.workers.spec import Pairs

SAMPLED = "sampled"  # key of a result: an evaluator has sampled a slice


@dataclass(frozen=True)
class Sweep:
    """One call of `trb submit`, told from others by its `name`; it makes at most `attempts` at a unit or a slice."""

    study: Study
    pairs: Pairs
    name: str
    attempts: int

    def name_of(self, work: Work) -> str:
        """What the signs of life of some work are called: the unit's id, or the evaluator's number in this sweep."""
        return work.unit.id if isinstance(work, Training) else f"evaluator-{self.name[:6]}-{work.number}"

    def work_of(self, config: dict[str, Any]) -> Work:
        """The work that Tune's configuration of a trial stands for; see `config_of`."""
        if "evaluator" in config:
            return Evaluating(config["evaluator"])
        return Training(next(unit for unit in self.study.units if unit.id == config["unit"]))


def config_of(work: Work) -> dict[str, Any]:
    """Tune's configuration of a trial that does this work."""
    return {"unit": work.unit.id} if isinstance(work, Training) else {"evaluator": work.number}
