"""GPU-hours of a typical trial on other numbers of GPUs, by plan: the table of `docs/costs.md`.

    python -m benchmarks.layouts [EXP.yaml]

A typical trial is the middle one of its setup by GPU-hours. Nothing runs, and nothing of it was
measured.
"""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.experiment.load import load_experiment
from orchestrator.planning.numbers import Range, hours_text
from orchestrator.planning.plan import make_plan, memories
from orchestrator.planning.rates import GPUS
from orchestrator.records.log import EVALUATE
from tests.sweeps import ROOT

ENGINES = ("engine.sampler=sglang", "engine.trainer=verl")
LAYOUTS = {
    "one GPU": ("runtime.placement.gpus=1",),
    "half a GPU, packed": ("runtime.placement.gpus=0.5",),
    "2 GPUs in turns": ("runtime.placement.gpus=2",),
    "4 GPUs in turns": ("runtime.placement.gpus=4",),
    "split 2 + 1 + 1": ("runtime.placement.mode=split", "runtime.placement.role_gpus.rollout=2"),
}
KINDS = ("H100-80GB", "A100-40GB")


def typical_trial(path: Path, setup: str, layout: str, kind: str) -> Range | None:
    """GPU-hours of training; None where a GPU of this kind does not hold the trial."""
    experiment = load_experiment(path, [*ENGINES, *LAYOUTS[layout], f"setups=[{setup}]"])
    plan = make_plan(experiment, gpu=GPUS[kind])
    # The setup's own budgets: the experiment has no method without blending.
    if None in memories(plan)[setup].values():
        return None
    trials = [planned.resources for planned in plan.units if planned.unit.is_trial]
    hours = []
    for resources in trials:
        phases = resources.gpu_hours or {}
        hours.append(Range.total(value for phase, value in phases.items() if phase != EVALUATE))
    return sorted(hours, key=lambda each: each.mid)[len(hours) // 2]


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "experiments" / "paper.yaml"
    setups = load_experiment(path, ENGINES).setups
    for layout in LAYOUTS:
        cells = [f"{layout:<20}"]
        for kind in KINDS:
            for setup in setups:
                try:
                    hours = typical_trial(path, setup, layout, kind)
                except UserError:
                    hours = None
                cells.append(f"{setup}, {kind}: {hours_text(hours) if hours else 'does not fit'}")
        print(" | ".join(cells))


if __name__ == "__main__":
    main()
