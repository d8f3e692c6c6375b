"""Lists the checks of a GPU node: cheap ones first, and each after the checks that it needs."""

from __future__ import annotations

from orchestrator.selftest.runner import Check

_ROOM = "orchestrator.selftest"

CHECKS = (
    Check(
        "driver",
        f"{_ROOM}.node:driver",
        60,
        "the NVIDIA driver, or torch (`make setup TORCH=cuda`)",
    ),
    Check(
        "compilers",
        f"{_ROOM}.compilers:compilers",
        30,
        "`make setup-engines`, which installs nvcc, and g++ with Python's headers",
    ),
    Check(
        "memory",
        f"{_ROOM}.node:memory",
        60,
        "another GPU, or the processes that hold this one",
        needs=("driver",),
    ),
    Check(
        "attention",
        f"{_ROOM}.device:attention",
        120,
        "torch and driver: a sweep's losses would be wrong with this attention",
        needs=("driver",),
    ),
    Check(
        "offload",
        f"{_ROOM}.device:offload",
        120,
        "the host's memory: enough of it, on the GPU's side of the board (numactl), "
        "in a PCIe slot of full width",
        needs=("driver",),
    ),
    Check(
        "collective",
        f"{_ROOM}.device:collective",
        120,
        "one GPU a trial (runtime.placement.gpus=1), or NCCL on this node: its log has NCCL's words",
        needs=("driver",),
    ),
    Check(
        "kernel",
        f"{_ROOM}.node:kernel",
        180,
        "what the compiler says in the log; "
        "engine.sampler=torch compiles nothing, and takes far longer",
        needs=("driver", "compilers"),
    ),
    Check(
        "models",
        f"{_ROOM}.pair:models",
        300,
        "the disk of --runs: it is too slow or too full for the models of this check",
        needs=("driver",),
    ),
    Check(
        "template",
        f"{_ROOM}.asking:template",
        300,
        "the prompt of the setup: the teacher answers it worse than its own template",
        needs=("driver", "models"),
    ),
    Check(
        "endings",
        f"{_ROOM}.asking:endings",
        600,
        "eos of the setup's models: their answers do not end with it",
        needs=("driver", "models"),
    ),
    Check(
        "sampler",
        f"{_ROOM}.sampling:sampler",
        600,
        "what the engine says in the log; engine.sampler=torch instead of it",
        needs=("driver", "kernel", "models"),
    ),
    Check(
        "learner",
        f"{_ROOM}.pair:learner",
        300,
        "a smaller runtime.micro_batch_tokens, or fewer training.max_response_tokens",
        needs=("driver", "models"),
    ),
    Check(
        "canary",
        f"{_ROOM}.canary:same_weights",
        60,
        "do not begin a sweep: sampler and trainer disagree about the same weights, "
        "so every ratio would be wrong",
    ),
    Check(
        "switch",
        f"{_ROOM}.sampling:switch",
        900,
        "what the engine says in the log; methods that blend want engine.sampler=torch meanwhile",
        needs=("driver", "kernel", "models"),
    ),
)
