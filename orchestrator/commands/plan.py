"""`trb plan`: what an experiment costs, what of it is done, and why the rest would run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from orchestrator.config import Experiment
from orchestrator.cores import cores_here
from orchestrator.data.declared import lacking
from orchestrator.engines.catalog import require_all
from orchestrator.errors import UserError
from orchestrator.experiment.local_models import check_local
from orchestrator.planning import cpu_time
from orchestrator.planning.as_json import rounded, to_json
from orchestrator.planning.calibrated import gpu_here
from orchestrator.planning.layouts import layouts_of
from orchestrator.planning.measured import measure
from orchestrator.planning.plan import Plan, make_plan
from orchestrator.planning.progress import done_of, reasons
from orchestrator.planning.ranges import NOTHING, Range
from orchestrator.planning.rates import Gpu
from orchestrator.planning.totals import hours_on_gpus, total_gpu_hours, units_left
from orchestrator.planning.view import Clock, render, render_layouts
from orchestrator.selection.damage import refuse_damaged
from orchestrator.selection.study import Study


@dataclass(frozen=True)
class Show:
    """What is shown of a plan beside its tables: why each unit would run, other layouts; or all of it as JSON."""

    why: bool = False
    layouts: bool = False
    as_json: bool = False


def plan(study: Study, gpus: int, gpu: Gpu | None, show: Show, console: Console) -> int:
    """Print the plan of an experiment against a runs folder, for `gpus` of the kind `gpu`; nothing is written.

    Without a kind it is that of the card which was calibrated in the runs folder, else the default one. Raises Damaged
    where a unit is, since what is left to run cannot be known then.
    """
    study = study.snapshot()
    refuse_damaged(study)
    for name, setup in study.experiment.setups.items():
        check_local(name, setup)
    made = planned(study, gpu)
    cpu = cpu_time.estimate(made, cores_here(), made=not any(unit.provisional for unit in study.units))
    if show.as_json:
        print(_text(to_json(made) | {"clock": _clock(made, gpus, cpu)}))
        return 0
    shown = render(made, Clock(cpu, gpus), reasons(study) if show.why else None)
    console.print(shown, highlight=False)
    if show.layouts:
        console.print("", render_layouts(layouts_of(made)), highlight=False)
    for note in _notes(study.experiment):
        console.print(note, highlight=False, markup=False)
    return 0


def _notes(experiment: Experiment) -> list[str]:
    """What the sweep wants before it can run here: engines that are not installed, and data files."""
    notes: dict[str, None] = {}
    for setup in experiment.setups.values():
        try:
            require_all(setup.engine)
        except UserError as error:
            notes[f"To submit here: {error}."] = None
    folder = Path(experiment.data_dir or "")
    files = lacking(experiment.setups.values(), folder)
    if files:
        by = f"`trb submit` fetches them, or `trb data fetch {folder}`"
        notes[f"Not in {folder} yet: {', '.join(files)} ({by})."] = None
    return list(notes)


def planned(study: Study, gpu: Gpu | None = None) -> Plan:
    """The plan with what the runs folder holds of it, and with the rates that were measured there."""
    measured = measure(study)
    gpu = gpu or gpu_here(measured.calibrations)
    return make_plan(study.experiment, study.units, done_of(study), measured, gpu=gpu)


def gpu_hours_left(study: Study) -> Range:
    """The low and the high estimate of the GPU-hours that `trb submit` would spend."""
    if not any(unit.placement.gpus for unit in study.units):
        return NOTHING
    made = planned(study)
    hours = total_gpu_hours(made, left=True) if units_left(made) else None
    return hours["total"] if hours else NOTHING


def _text(document: dict[str, Any]) -> str:
    """A document whose `units` take a line each: with indentation Python writes ten thousand of them in seconds."""
    units = ",\n".join(f"    {json.dumps(unit)}" for unit in document["units"])
    rest = json.dumps({name: value for name, value in document.items() if name != "units"}, indent=2)
    return f'{{\n  "units": [\n{units}\n  ],{rest[1:]}'


def _clock(made: Plan, gpus: int, cpu: cpu_time.CpuTime | None) -> dict[str, object]:
    hours = hours_on_gpus(made, gpus, left=True)
    return {
        "gpus": gpus,
        "gpu": made.gpu.name,
        "gpu_clock_hours": None if hours is None else rounded(hours, 3),
        "cpu_cores": None if cpu is None else cpu.cores,
        "cpu_seconds": None if cpu is None else rounded(cpu.seconds, 0),
        "cpu_rough": None if cpu is None else cpu.rough,
    }
