"""Device-hours: the hours of GPUs, or of cores, that a study has taken."""

from __future__ import annotations

from typing import Literal

from orchestrator.config import Placement
from orchestrator.records.clock import seconds_spent
from orchestrator.selection.study import Study

Device = Literal["GPU", "core"]


def device_of(study: Study) -> Device:
    """The device whose hours an experiment counts: GPUs, or cores where no unit uses a GPU."""
    placements = [study.experiment.runtime.placement, *(unit.placement for unit in study.units)]
    return "GPU" if any(placement.gpus for placement in placements) else "core"


def devices_of(placement: Placement, device: Device) -> float:
    """How many GPUs or cores a process with this placement holds."""
    return float(placement.gpus) if device == "GPU" else placement.cpus


def hours_spent(study: Study) -> float:
    """Device-hours of all work that was clocked in the directories of a study."""
    device, seconds = device_of(study), 0.0
    evaluators = devices_of(study.experiment.runtime.placement.of_evaluator, device)
    for unit in study.units:
        training, evaluating = seconds_spent(study.reader(unit))
        seconds += devices_of(unit.placement, device) * training + evaluators * evaluating
    return seconds / 3600
