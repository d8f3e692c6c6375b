"""The parts of a training step that a runtime may switch, and their seconds beside the engines' work.

A `Design` says which of them are on; `Design.of` reads that from a setup and its runtime.
`Design.before` has all of them off, so that a plan can show a step before and now. The numbers were
estimated from sources, from data sheets and from counts on pretended GPUs. None was ever measured on
a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config import Runtime, Setup
from orchestrator.engines.budget import Budget, by_kernel, is_pooled, scores_beside
from orchestrator.engines.memory import Gpus
from orchestrator.planning.ranges import NOTHING, Range

# --- work of a step that keeps a GPU waiting ---
# Weights to the sampler, in seconds a GB of bfloat16: through memory of the host (0.7 + 0.6 + 1 to
# 1.5 s for 1.2 GB), or from one GPU process to the other.
WEIGHTS_BY_HOST = Range(1.2, 2.0, 3.0)
WEIGHTS_BY_GPU = Range(0.03, 0.05, 0.2)
# The learner's state to page-locked memory and back, in seconds a GB of state: 0.5 to 1.1 s for the
# 7.2 GB of 0.6 B parameters.
STATE = Range(0.07, 0.11, 0.2)
# A serving engine's KV cache given back and taken again: some 56 GiB.
CACHE_S = Range(0.3, 0.6, 0.9)
# Grading of a response: 1 to 4 s for 256.
GRADE_S = Range(0.004, 0.010, 0.016)
# Digests, logs, texts, the next batch.
DATA_S = Range(0.5, 1.0, 2.0)

# --- bytes that a value of the vocabulary moves ---
# Inputs and outputs of all operations were counted. A sum in float64 copies its input first, which
# moves 16 bytes more, and a top k of 16 reads its input four times.
# The plain sampler by torch: 40 for mask and normaliser, 40 for the draw, two such copies, top k. By
# the kernels: the logits, and once more a block of them (assumption).
SAMPLED_BYTES, SAMPLED_BYTES_IN_ONE = 128, 12
# The scorer by torch: 40 for the normaliser, a copy, 42 for entropy and overlap, top k. By the
# kernels less than half of that (assumption).
SCORED_BYTES, SCORED_BYTES_IN_FEW = 114, 50
# A blended round beside the student's sampling: 40 and a copy for the teacher's normaliser, 304 for
# the trust region at ε = 0.005, 94 for the records.
JUDGED_BYTES = 450
# The share of the bandwidth that such operations reach.
STATISTICS = Range(0.85, 0.75, 0.60)

# --- shares of a phase's seconds that are left ---
# Of learning without checkpoints: 6ND of arithmetic instead of 8ND.
WITHOUT_CHECKPOINTS = Range.exactly(0.75)
# Of scoring beside sampling: two processes take turns on the GPU, and fill its gaps (assumption).
BESIDE_SAMPLING = Range(0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Design:
    """Parts of a step that are on.

    - `grade_beside`: grading runs beside scoring and learning.
    - `rows_by_draft`: a blended round has as many requests as its γ allows.
    - `weights_on_gpu`: weights reach the sampler without passing through the host.
    - `one_kernel`: the kernels of this program draw from the student's logits.
    - `few_passes`: they also compute the scorer's statistics.
    - `resident`: learner and KV cache stay on the GPU.
    - `checkpoint_free`: the learner keeps its activations.
    - `scores_beside`: finished rollouts are scored while others are decoded.
    """

    grade_beside: bool = False
    rows_by_draft: bool = False
    weights_on_gpu: bool = False
    one_kernel: bool = False
    few_passes: bool = False
    resident: bool = False
    checkpoint_free: bool = False
    scores_beside: bool = False

    @staticmethod
    def of(setup: Setup, runtime: Runtime, sampling: Gpus, learning: Budget | None) -> Design:
        """The parts that are on where the sampler has these GPUs and the learner this budget."""
        pooled = is_pooled(setup)
        by_handle = runtime.weights == "device" and not sampling.apart and sampling.count == 1
        return Design(
            grade_beside=runtime.grade_beside,
            rows_by_draft=True,
            weights_on_gpu=by_handle or not pooled,  # one process has both
            one_kernel=pooled and by_kernel(runtime, setup) and sampling.count == 1,
            few_passes=by_kernel(runtime, setup),
            resident=learning is not None and learning.resident,
            checkpoint_free=learning is not None and not learning.checkpointing,
            scores_beside=scores_beside(setup, runtime, runtime.placement),
        )

    @staticmethod
    def before(setup: Setup) -> Design:
        """The design without anything that a runtime switches."""
        return Design(weights_on_gpu=not is_pooled(setup))

    def weights(self, gigabytes: float) -> Range:
        """Seconds of passing on so many GB of weights."""
        return (WEIGHTS_BY_GPU if self.weights_on_gpu else WEIGHTS_BY_HOST) * gigabytes

    def moves(self, state_gigabytes: float, pooled: bool) -> Range:
        """Seconds of moving the learner's state, and the memory of a pooled KV cache."""
        if self.resident:
            return NOTHING
        return STATE * state_gigabytes + (CACHE_S if pooled else NOTHING)

    def learning(self) -> Range:
        """The share of the learner's seconds that is left."""
        return WITHOUT_CHECKPOINTS if self.checkpoint_free else Range.exactly(1.0)
