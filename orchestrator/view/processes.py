"""The processes that work on a sweep now, and the GPUs or cores that each of them holds."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.commands.display import names
from orchestrator.liveness.leases import Claims, Holder
from orchestrator.monitor.device_hours import devices_of
from orchestrator.monitor.status import Overview
from orchestrator.records.clock import clock_rows
from orchestrator.records.rundir import RunReader
from orchestrator.selection.study import Study


@dataclass(frozen=True)
class WorkingProcess:
    """A process, the number of devices that it holds, and its work.

    `gpu` is the number of its GPU, as the process noted it with its latest finished work; empty
    before that and on CPUs.
    """

    host: str
    pid: int
    devices: float
    gpu: str
    work: str


def working_processes(study: Study, overview: Overview) -> list[WorkingProcess]:
    """The processes that train units or evaluate checkpoints, by host and number."""
    found: dict[Holder, WorkingProcess] = {}
    called, claims = names(overview.units), Claims(study.runs)
    evaluator = study.experiment.runtime.placement.of_evaluator
    for s in overview.units:
        if s.state != "running":
            continue
        run = study.reader(s.id)
        if run.holder is not None:
            held = s.gpus if overview.device == "GPU" else s.cpus
            gpu = gpu_of(run, run.holder)
            work = f"{s.phase or 'starting'} {called[s.id]}"
            process = WorkingProcess(run.holder.host, run.holder.pid, held, gpu, work)
            found[run.holder] = process
        for claim in claims.held(s.id):
            held = devices_of(evaluator, overview.device)
            gpu = gpu_of(run, claim.holder)
            work = f"sampling {called[s.id]}, step {claim.step}"
            process = WorkingProcess(claim.holder.host, claim.holder.pid, held, gpu, work)
            # A process that also trains a unit is counted once, with the devices of that unit.
            found.setdefault(claim.holder, process)
    return sorted(found.values(), key=lambda process: (process.host, process.pid))


def gpu_of(run: RunReader, holder: Holder) -> str:
    """The GPU that a process last noted beside its work at a unit; empty without a note."""
    for row in reversed(clock_rows(run)):
        host, process, gpu = row.place
        if (host, process) == (holder.host, holder.pid):
            return gpu or ""
    return ""
