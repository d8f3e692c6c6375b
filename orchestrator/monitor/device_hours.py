"""Device-hours: the hours of GPUs, or of cores, that a study has taken."""

from __future__ import annotations

from typing import Literal

from orchestrator.config import Placement
from orchestrator.records.clock import seconds_spent
from orchestrator.selection.study import Study

Device = Literal["GPU", "core"]


def device_of(study: Study) -> Device:
    """The device whose hours an experiment counts: GPUs, or cores where no unit uses a GPU."""
    shared = study.experiment.runtime.placement
    uses_gpus = shared.gpus or any(unit.placement.gpus for unit in study.units)
    return "GPU" if uses_gpus else "core"


def devices_of(placement: Placement, device: Device) -> float:
    """How many GPUs or cores a process with this placement holds."""
    return float(placement.gpus) if device == "GPU" else placement.cpus


def hours_spent(study: Study) -> float:
    """Device-hours of all work that was clocked in the run directories of a study."""
    device = device_of(study)
    seconds = 0.0
    evaluators = devices_of(study.experiment.runtime.placement.of_evaluator, device)
    for unit in study.units:
        training, evaluating = seconds_spent(study.reader(unit))
        seconds += devices_of(unit.placement, device) * training + evaluators * evaluating
    return seconds / 3600
