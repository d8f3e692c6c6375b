"""`trb plan`: what an experiment costs, what of it is done, and why the rest would run."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from orchestrator.config import Experiment
from orchestrator.cores import cores_here
from orchestrator.data.benchmarks import benchmark_of
from orchestrator.data.files import GET_DATA
from orchestrator.planning import cpu_time
from orchestrator.planning.plan import Plan, make_plan
from orchestrator.planning.progress import done_of, reasons
from orchestrator.planning.ranges import Range
from orchestrator.planning.totals import hours_on_gpus, to_json, total_gpu_hours, units_left
from orchestrator.planning.view import Clock, render
from orchestrator.selection.study import Study


def plan(study: Study, gpus: int, why: bool, as_json: bool, console: Console) -> int:
    """Print the plan of an experiment against a runs folder; nothing is written."""
    made = planned(study)
    cpu = cpu_time.estimate(made, cores_here(), made=(study.runs / ".models").is_dir())
    if as_json:
        print(json.dumps(to_json(made) | {"clock": _clock(made, gpus, cpu)}, indent=2))
        return 0
    shown = render(made, Clock(cpu, gpus), reasons(study) if why else None)
    console.print(shown, highlight=False)
    lacking = missing_files(study.experiment)
    if lacking:
        console.print(f"Not there yet: {', '.join(lacking)} ({GET_DATA}).", highlight=False, markup=False)
    return 0


def missing_files(experiment: Experiment) -> list[str]:
    """Declared data files that do not lie below the data folder."""
    wanted: dict[str, None] = {}
    for setup in experiment.setups.values():
        wanted |= dict.fromkeys(entry.file for entry in setup.data.files if setup.data.source == "jsonl")
        for key, run in setup.evaluation.benchmarks.items():
            file = benchmark_of(key, run).file
            if file is not None and (run is None or run.path is None):
                wanted[file] = None
    folder = Path(experiment.data_dir) if experiment.data_dir else None
    return [file for file in wanted if folder is None or not (folder / file).is_file()]


def planned(study: Study) -> Plan:
    """The plan with what the runs folder holds of it."""
    return make_plan(study.experiment, study.units, done_of(study))


def gpu_hours_left(study: Study) -> Range:
    """The low and the high estimate of the GPU-hours that `trb submit` would spend."""
    if not any(unit.placement.gpus for unit in study.units):
        return Range(0.0, 0.0)
    made = planned(study)
    hours = total_gpu_hours(made, left=True) if units_left(made) else None
    return hours["total"] if hours else Range(0.0, 0.0)


def _clock(made: Plan, gpus: int, cpu: cpu_time.CpuTime | None) -> dict[str, object]:
    hours = hours_on_gpus(made, gpus, left=True)
    return {
        "gpus": gpus,
        "gpu_clock_hours": None if hours is None else {"low": round(hours.low, 3), "high": round(hours.high, 3)},
        "cpu_cores": None if cpu is None else cpu.cores,
        "cpu_seconds": None if cpu is None else {"low": round(cpu.seconds.low), "high": round(cpu.seconds.high)},
        "cpu_rough": None if cpu is None else cpu.rough,
    }
