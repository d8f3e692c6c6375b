"""Lists all checks: before a submit, of this machine, of an experiment, and of a GPU node.

The phases that `trb calibrate` clocks are checks, too. Cheap ones come first, and each after the
checks that it needs. The checks of machine and GPU load torch, for which a submit does not wait:
they are imported with their lists.
"""

from __future__ import annotations

import os
from functools import partial

from orchestrator.checks import experiment, preflight
from orchestrator.checks.check import Check
from orchestrator.config import Experiment, Runtime, Setup
from orchestrator.engines.catalog import ENGINES
from orchestrator.engines.device import ALLOCATOR, has_driver
from orchestrator.engines.memory import needs_gpu


def driver_checks(address: str | None) -> list[Check]:
    """The checks of the machine that submits to a cluster; their subject is the runs folder."""
    checks = [
        Check("runs folder", preflight.runs_folder),
        Check("scratch folder", preflight.scratch_folder),
    ]
    if address is not None:
        checks.append(Check("address", partial(preflight.cluster_at, address)))
    return checks


# The checks of each setup before a submit; their subject is a `CheckedSetup`.
SUBMIT_CHECKS = [
    Check("training files", experiment.training_files),
    Check("benchmarks", experiment.benchmarks),
    Check("models", experiment.models),
    Check("rendering", experiment.renders),
    Check("template", partial(experiment.template, on_gpu=False)),
]


def machine_checks(runtime: Runtime) -> list[Check]:
    """The checks of this machine; their subject is the runtime."""
    from orchestrator.checks import machine

    checks = [
        Check("devices", machine.devices),
        Check("cores", machine.cores),
        Check("memory", machine.memory),
        Check("grader", machine.grader),
        Check("gradient", machine.gradient),
    ]
    if any(name in os.environ for name in ALLOCATOR):
        checks.append(Check("allocator", machine.allocator))
    if runtime.tracker == "wandb":
        return [*checks, Check("wandb", machine.wandb)]
    return [*checks, Check("tracker", machine.tracker)]


def experiment_checks(asked: Experiment) -> list[Check]:
    """The checks of an experiment as a whole; their subject is the experiment."""
    from orchestrator.checks import machine

    checks = [Check("placement", experiment.placement)]
    if _works_on_gpus(asked) and machine.SHARED_MEMORY.is_dir():
        checks.append(Check("shared memory", machine.shared_memory))
    return checks


def setup_checks(setup: Setup, asked: Experiment) -> list[Check]:
    """The checks of a setup, but that of its training data; their subject is a `CheckedSetup`."""
    from orchestrator.checks import machine

    checks = [Check("engine", experiment.engine)]
    if ENGINES[setup.engine.sampler].tools and _works_on_gpus(asked):
        checks.append(Check("compilers", machine.compilers))
    if needs_gpu(setup):
        checks.append(Check("GPU memory", experiment.gpu_memory))
    return [
        *checks,
        Check("benchmarks", experiment.benchmarks),
        Check("models", experiment.models),
        Check("prompt", experiment.prompt, needs=("models",)),
        Check("template", experiment.template, needs=("models", "prompt")),
        Check("endings", experiment.endings, needs=("models", "prompt")),
    ]


DATA_CHECKS = [Check("training data", experiment.training_data)]  # it may read for minutes


def _works_on_gpus(asked: Experiment) -> bool:
    return has_driver() and max(experiment.gpus_asked(asked)) > 0


ON_NODE, WITH_MODELS = ("driver",), ("driver", "models")
WITH_ENGINE = ("driver", "kernel", "models")


def gpu_checks() -> list[Check]:
    """The checks of `trb doctor --gpu`, each in a process of its own; their subject is a `Bench`."""
    from orchestrator.checks import engines, machine

    return [
        Check("driver", machine.driver, (), 60,
            "the NVIDIA driver, or torch (`make setup TORCH=cuda`)"),
        Check("compilers", machine.compilers, (), 60,
            "`make setup-engines`, which installs nvcc, and g++ with Python's headers"),
        Check("memory", machine.card, ON_NODE, 60,
            "another GPU, or the processes that hold this one"),
        Check("attention", machine.attention, ON_NODE, 120,
            "torch and driver: a sweep's losses would be wrong with this attention"),
        Check("offload", machine.offload, ON_NODE, 120,
            "the host's memory: enough of it, on the GPU's side of the board (numactl), in a "
            "PCIe slot of full width"),
        Check("collective", machine.collective, ON_NODE, 120,
            "one GPU a trial (runtime.placement.gpus=1), or NCCL on this node: its log has "
            "NCCL's words"),
        Check("kernel", machine.kernel, ("driver", "compilers"), 180,
            "what the compiler says in the log; engine.sampler=torch compiles nothing, and "
            "takes far longer"),
        models_check(),
        Check("template", engines.template, WITH_MODELS, 300,
            "the prompt of the setup: the teacher answers it worse than its own template"),
        Check("endings", engines.endings, WITH_MODELS, 600,
            "eos of the setup's models: their answers do not end with it"),
        Check("sampler", engines.sampler, WITH_ENGINE, 600,
            "what the engine says in the log; engine.sampler=torch instead of it"),
        Check("learner", engines.learner, WITH_MODELS, 300,
            "a smaller runtime.micro_batch_tokens, or fewer training.max_response_tokens"),
        Check("canary", engines.same_weights, (), 60,
            "do not begin a sweep: sampler and trainer disagree about the same weights, so "
            "every ratio would be wrong"),
        Check("switch", engines.switch, WITH_ENGINE, 900,
            "what the engine says in the log; methods that blend want engine.sampler=torch "
            "meanwhile"),
    ]  # fmt: skip


def models_check() -> Check:
    """The check that makes the missing models of a `Bench`, for the checks and phases after it."""
    from orchestrator.checks import engines

    remedy = "the disk of --runs: it is too slow or too full for the models of this check"
    return Check("models", engines.models, ON_NODE, 300, remedy)


# Phases of `trb calibrate` by what they say about a sweep's GPU-hours, with the share of the time
# that each takes.
SHARES = {"evaluating": 3, "decoding": 4, "blending": 3, "learning": 2, "scoring": 1}
# Beyond a phase's share: an engine may compile kernels at first use, and a disk be slow at first.
LATE_S = 120.0


def card_check() -> Check:
    """The check that names the card; it has no subject."""
    from orchestrator.checks import timing

    return Check("card", timing.card, limit_s=120)


def calibration_checks(blends: bool) -> list[Check]:
    """The phases of a calibration, which are clocked; their subject is a `Measuring`."""
    from orchestrator.checks import timing

    phases = [phase for phase in SHARES if blends or phase != "blending"]
    return [Check(phase, getattr(timing, phase), limit_s=LATE_S) for phase in phases]
