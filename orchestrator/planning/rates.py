"""Rates of GPUs, of engines on them, and of a step's other work: all that a plan assumes.

`planning.costs` makes tokens a second and seconds of them. None of them was measured by us on a
GPU. A `Range` gives the number in the low, the middle and the high estimate, so a share of the
hardware falls from left to right. Measurements of finished runs replace them (`planning.seconds`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from orchestrator.errors import did_you_mean, refuse
from orchestrator.planning.numbers import Range

LAUNCH_LAYERS = 28  # decoder layers of the model that `Rates.launch_ms` is given for


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU, or a `share` of one: memory, memory bandwidth, and dense bfloat16 arithmetic.

    `gib` is the memory that torch sees, `torch.cuda.get_device_properties().total_memory`.
    """

    name: str
    gib: float
    bytes_per_s: float
    flops: float
    share: float = 1.0

    @property
    def title(self) -> str:
        """`H100-80GB`, or `0.5 × H100-80GB`."""
        return self.name if self.share == 1 else f"{self.share:g} × {self.name}"

    def part(self, share: float) -> Gpu:
        """The GPU as a trial has it beside others: the same share of everything."""
        return Gpu(self.name, self.gib * share, self.bytes_per_s * share, self.flops * share, share)


# Memory: what torch's own out-of-memory messages call the total capacity, which differs by the
# driver by a tenth of a GiB. The least that was found is taken, rounded down to a tenth. H100:
# 79.11 (vllm-project/vllm#27508) to 79.21; H200: 139.80 and B200: 178.35
# (PrimeIntellect-ai/prime-rl, table of benchmarks of January 2026: 139.80, 178.36); A100: 79.15 to
# 79.25 (wbfwonderful/Vad-R1#11) and 39.38 (vllm-project/vllm#16570) to 39.50; L40S: 44.39 to 44.42
# (stepfun-ai/Step-Video-T2V#8). Bandwidth and arithmetic: NVIDIA's data sheets, of the SXM modules
# where there are any. The sheets of Hopper and later give arithmetic with sparsity, which is twice
# the dense one here.
GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        "H100-80GB": Gpu("H100-80GB", 79.1, 3.35e12, 990e12),
        "H200": Gpu("H200", 139.8, 4.8e12, 990e12),
        "B200": Gpu("B200", 178.3, 8.0e12, 2250e12),
        "A100-80GB": Gpu("A100-80GB", 79.1, 2.039e12, 312e12),
        "A100-40GB": Gpu("A100-40GB", 39.3, 1.555e12, 312e12),
        "L40S": Gpu("L40S", 44.3, 0.864e12, 362e12),
    }
)
DEFAULT_GPU = "H100-80GB"


def gpu_of(text: str) -> Gpu:
    """One of GPUS by its name, or another kind as `name=GiB,TB/s,TFLOP/s`; UserError for others.

    `MI=190,5.3,1300` is a GPU of 190 GiB with 5.3 TB/s and 1,300 TFLOP/s.
    """
    if text in GPUS:
        return GPUS[text]
    name, _, numbers = text.partition("=")
    try:
        gib, terabytes, teraflops = map(float, numbers.split(","))
    except ValueError:  # not three of them, or not numbers
        gib = terabytes = teraflops = math.nan
    # A NaN among them fails the first comparison with it.
    sensible = 0 < gib < math.inf and 0 < terabytes < math.inf and 0 < teraflops < math.inf
    if sensible and re.fullmatch(r"[\w.-]+", name):
        return Gpu(name, gib, terabytes * 1e12, teraflops * 1e12)
    # For H100 rather H100-80GB than H200.
    near = [known for known in GPUS if known.startswith(text.upper())]
    expected = f"one of {', '.join(GPUS)}, or name=GiB,TB/s,TFLOP/s as MI=190,5.3,1300"
    raise refuse("--gpu", text, expected + did_you_mean(text, near or GPUS))


@dataclass(frozen=True)
class Rates:
    """The part of its GPU's rates that an engine reaches.

    `decoding` is the share of the memory bandwidth while the responses of one training step are
    decoded, `evaluating` the same while thousands of responses wait. `launch_ms` is what the kernel
    launches of a decode step take at `LAUNCH_LAYERS` layers, `blended_launch_ms` the same for each
    pass of a blended round. `teacher_passes` are the passes of the teacher for each token of a
    blended response; in each it judges `drafted` tokens of a response, so many as the student
    decodes for it. `start_s` are seconds until a unit works.

    A decode step moves the KV cache `cache_passes` times, and `head_passes` times more for each
    query head that shares a key–value head. An engine with `continuous` batching gives the place of
    a response that ended to the next one, and holds as many as fit at their mean context; otherwise
    a batch of full-length places runs until its longest ends.
    """

    title: str  # as people write its name
    decoding: Range
    evaluating: Range
    launch_ms: Range
    blended_launch_ms: Range
    teacher_passes: Range
    drafted: Range
    start_s: Range
    cache_passes: int
    head_passes: Range
    continuous: bool


# An allowance that nothing published covers.
START_S = Range(60.0, 120.0, 300.0)

# The share of the arithmetic that trainers reach. The same for each of them, since all run the same
# transformers model. Scoring: long forward passes; an assumption. Learners by FSDP2 on one H100
# reach 11 to 27 % (0.6B) and 21 to 37 % (4B): prime-rl's baselines. The students lie between the
# two sizes; the head of 151,936 rows keeps it low.
SCORING, LEARNING = Range(0.45, 0.40, 0.30), Range(0.30, 0.21, 0.11)

# Several GPUs for one role. Nothing of it was measured by us either.
# Tensor parallelism waits for two all-reduces in each layer of a decode step. Those of some 200
# rows × hidden width are 0.5 to 1 MB, for which NVLink's latency counts and not its bandwidth:
# about 10 µs with the engine's own kernels, 20 to 50 µs with NCCL. The gathered logits, 40 to 80
# MB, add 0.1 to 0.3 ms to a step, which the range has room for.
ALL_REDUCES_OF_A_LAYER = 2
ALL_REDUCE_US = Range(10.0, 20.0, 40.0)
# Sharding gathers parameters while the layer before computes. Of what it reaches on one GPU a 7B
# model on one node's NVLink keeps 89 % on 2 GPUs and 93 % on 4 (KempnerForge's benchmarks, H200);
# students of a quarter of that have a quarter of the parameters to gather for a quarter of the
# arithmetic, but fewer micro-batches to share out evenly.
SHARDED = Range(0.95, 0.90, 0.80)

RATES: Mapping[str, Rates] = MappingProxyType(
    {
        # Eager decoding by transformers: thousands of small kernels for each token. Its shares are
        # assumptions.
        "torch": Rates(
            title="torch",
            decoding=Range(0.80, 0.65, 0.50),
            evaluating=Range(0.80, 0.65, 0.50),
            launch_ms=Range(25.0, 32.0, 40.0),
            blended_launch_ms=Range(25.0, 32.0, 40.0),
            teacher_passes=Range.exactly(1.0),
            drafted=Range.exactly(1.0),
            start_s=START_S,
            cache_passes=3,  # copied to append (read, written), read by attention
            # Under a padding mask each query head gets its own copy.
            head_passes=Range(0.0, 1.0, 2.0),
            continuous=False,
        ),
        # Decoding of a small model with grouped queries is bound by reading the KV cache:
        # tokens/s = η · bandwidth ÷ (KV bytes of a token · c̄ + weight bytes ÷ rows).
        "sglang": Rates(
            title="SGLang",
            # Short batches that end in a tail reach 50 to 60 % of that bound.
            decoding=Range(0.60, 0.55, 0.50),
            # 72 to 84 % of it where responses wait: datatrove's inference benchmark, one H100, vLLM
            # 0.15, contexts of about 1,500 tokens, has 14,100, 12,300, 8,100 and 6,400 tokens/s for
            # Qwen3 0.6B, 1.7B, 4B and 8B. The middle is that of these shares; in the high estimate
            # every slice of an evaluation ends in a tail too.
            evaluating=Range(0.84, 0.78, 0.60),
            launch_ms=Range.exactly(0.0),  # CUDA graphs
            # Blended rounds run without graphs: γ + 1 = 5 passes take 25 to 40 ms (estimated).
            blended_launch_ms=Range(5.0, 6.5, 8.0),
            # Drafts that the teacher judges together: 5 or 4 tokens for a pass; in the high
            # estimate none at all.
            teacher_passes=Range(0.20, 0.25, 1.0),
            drafted=Range(6.0, 5.0, 1.0),
            start_s=START_S,
            cache_passes=1,
            head_passes=Range.exactly(0.0),
            continuous=True,
        ),
    }
)

# --- a step beside the engines' work: estimates from sources and data sheets, none measured ---

# Work that keeps a GPU waiting.
# Weights to the sampler, in seconds a GB of bfloat16: through memory of the host (0.7 + 0.6 + 1 to
# 1.5 s for 1.2 GB), or from one GPU process to the other.
WEIGHTS_BY_HOST_S = Range(1.2, 2.0, 3.0)
WEIGHTS_BY_GPU_S = Range(0.03, 0.05, 0.2)
# The learner's state to page-locked memory and back, in seconds a GB of state: 0.5 to 1.1 s for the
# 7.2 GB of 0.6 B parameters.
STATE_S = Range(0.07, 0.11, 0.2)
# A serving engine's KV cache given back and taken again: some 56 GiB.
CACHE_S = Range(0.3, 0.6, 0.9)
# Grading of a response: 1 to 4 s for 256.
GRADE_S = Range(0.004, 0.010, 0.016)
# Digests, logs, texts, the next batch.
DATA_S = Range(0.5, 1.0, 2.0)

# Bytes that a value of the vocabulary moves.
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

# Shares of a phase's seconds that are left.
# Of learning without checkpoints: 6ND of arithmetic instead of 8ND.
WITHOUT_CHECKPOINTS = Range.exactly(0.75)
# Of scoring beside sampling: two processes take turns on the GPU, and fill its gaps (assumption).
BESIDE_SAMPLING = Range(0.5, 0.75, 1.0)
