"""Lists all checks: of this machine, of an experiment and its setups, and of a GPU node.

Cheap ones come first, and each after the checks that it needs.
"""

from __future__ import annotations

import os

from orchestrator.checks import engines, experiment, machine
from orchestrator.checks.check import Check
from orchestrator.config import Experiment, Runtime, Setup
from orchestrator.engines.catalog import ENGINES
from orchestrator.engines.device import ALLOCATOR, has_driver
from orchestrator.engines.memory import needs_gpu


def machine_checks(runtime: Runtime) -> list[Check]:
    """The checks of this machine; their subject is the runtime."""
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
    checks = [Check("placement", experiment.placement)]
    if _works_on_gpus(asked) and machine.SHARED_MEMORY.is_dir():
        checks.append(Check("shared memory", machine.shared_memory))
    return checks


def setup_checks(setup: Setup, asked: Experiment) -> list[Check]:
    """The checks of a setup, but that of its training data; their subject is a `CheckedSetup`."""
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
# The checks of `trb doctor --gpu`, each in a process of its own; their subject is a `Bench`.
GPU_CHECKS = [
    Check(
        "driver", machine.driver, (), 60, "the NVIDIA driver, or torch (`make setup TORCH=cuda`)"
    ),
    Check(
        "compilers", machine.compilers, (), 60,
        "`make setup-engines`, which installs nvcc, and g++ with Python's headers",
    ),
    Check(
        "memory", machine.card, ON_NODE, 60, "another GPU, or the processes that hold this one"
    ),
    Check(
        "attention", machine.attention, ON_NODE, 120,
        "torch and driver: a sweep's losses would be wrong with this attention",
    ),
    Check(
        "offload", machine.offload, ON_NODE, 120,
        "the host's memory: enough of it, on the GPU's side of the board (numactl), "
        "in a PCIe slot of full width",
    ),
    Check(
        "collective", machine.collective, ON_NODE, 120,
        "one GPU a trial (runtime.placement.gpus=1), or NCCL on this node: its log has NCCL's words",
    ),
    Check(
        "kernel", machine.kernel, ("driver", "compilers"), 180,
        "what the compiler says in the log; "
        "engine.sampler=torch compiles nothing, and takes far longer",
    ),
    Check(
        "models", engines.models, ON_NODE, 300,
        "the disk of --runs: it is too slow or too full for the models of this check",
    ),
    Check(
        "template", engines.template, WITH_MODELS, 300,
        "the prompt of the setup: the teacher answers it worse than its own template",
    ),
    Check(
        "endings", engines.endings, WITH_MODELS, 600,
        "eos of the setup's models: their answers do not end with it",
    ),
    Check(
        "sampler", engines.sampler, WITH_ENGINE, 600,
        "what the engine says in the log; engine.sampler=torch instead of it",
    ),
    Check(
        "learner", engines.learner, WITH_MODELS, 300,
        "a smaller runtime.micro_batch_tokens, or fewer training.max_response_tokens",
    ),
    Check(
        "canary", engines.same_weights, (), 60,
        "do not begin a sweep: sampler and trainer disagree about the same weights, "
        "so every ratio would be wrong",
    ),
    Check(
        "switch", engines.switch, WITH_ENGINE, 900,
        "what the engine says in the log; methods that blend want engine.sampler=torch meanwhile",
    ),
]  # fmt: skip
