"""Plans of shipped experiments, as the tests of this folder make and show them."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from rich.console import Console

from orchestrator.config import Experiment
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import Unit, expand
from orchestrator.planning import plan, view
from orchestrator.planning.rates import DEFAULT_GPU, GPUS, Gpu
from tests.sweeps import ROOT

T = TypeVar("T")
Loaded = tuple[Experiment, list[Unit]]
EXPERIMENTS = ROOT / "experiments"
PAPER = EXPERIMENTS / "paper.yaml"
SMALL = ("setups=[qwen3-0.6b]", "evaluation.benchmarks.olympiadbench_674=null")


def known(value: T | None) -> T:
    """A value that must not be missing."""
    assert value is not None
    return value


def paper(*overrides: str) -> Loaded:
    """The smaller setup of the paper, and its units."""
    experiment = load_experiment(PAPER, (*SMALL, *overrides))
    return experiment, expand(experiment)


# Parts of a step that a runtime may switch off, so that seconds follow from rates alone.
FROM_RATES = (
    "runtime.checkpointing=true",
    "runtime.resident=false",
    "runtime.logits_kernel=torch",
    "runtime.weights=host",
)


def planned(*overrides: str, name: str = "paper", gpu: Gpu = GPUS[DEFAULT_GPU]) -> plan.Plan:
    """The plan of a whole experiment."""
    return plan.make_plan(load_experiment(EXPERIMENTS / f"{name}.yaml", overrides), gpu=gpu)


def document(made: plan.Plan, gpus: int = 1) -> dict[str, Any]:
    """What `trb plan --json` prints, read again."""
    return json.loads(json.dumps(view.to_json(made, clock_of(made, gpus)), allow_nan=False))


def totals_of(*overrides: str, name: str = "paper") -> dict[str, Any]:
    """The sums of a whole experiment in the document."""
    return document(planned(*overrides, name=name))["totals"]


def clock_of(made: plan.Plan, gpus: int = 1) -> plan.TimeLeft:
    """The time on so many GPUs, or on two cores of which nothing was measured."""
    if not made.on_gpus:
        return plan.TimeLeft(gpus, made.gpu.name, cpu_cores=2)
    return plan.TimeLeft(gpus, made.gpu.name, plan.hours_on_gpus(made, gpus, left=True))


def shown(made: plan.Plan, clock: plan.TimeLeft | None = None, width: int = 400) -> str:
    """A plan as a terminal shows it."""
    console = Console(width=width, color_system=None)
    with console.capture() as text:
        console.print(view.render(made, clock or clock_of(made)))
    return text.get()
