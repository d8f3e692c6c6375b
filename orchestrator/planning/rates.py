"""What GPUs can do, and what each engine makes of it: the numbers under a plan, one row for each engine.

`planning.costs` makes tokens a second and seconds of them. Nothing here was measured by us on a GPU. A `Range` gives
the number in the low, the middle and the high estimate, so a share of the hardware falls from left to right. Finished
run directories replace what they measured (`planning.measured`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from orchestrator.planning.ranges import Range

LAUNCH_LAYERS = 28  # decoder layers of the model that `Rates.launch_ms` is given for


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU: its name, memory, memory bandwidth, and dense bfloat16 arithmetic; or a `share` of one."""

    name: str
    gib: float
    bytes_per_s: float
    flops: float
    share: float = 1.0

    @property
    def title(self) -> str:
        """`H100-80GB`, or `0.5 of an H100-80GB`."""
        return self.name if self.share == 1 else f"{self.share:g} of an {self.name}"

    def part(self, share: float) -> Gpu:
        """What a trial has of it beside others: of everything the same share."""
        return Gpu(self.name, self.gib * share, self.bytes_per_s * share, self.flops * share, share)


GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        "H100-80GB": Gpu("H100-80GB", 80.0, 3.35e12, 990e12),  # H100 SXM data sheet
        "A100-40GB": Gpu("A100-40GB", 40.0, 1.555e12, 312e12),  # A100 SXM data sheet
    }
)
DEFAULT_GPU = "H100-80GB"


@dataclass(frozen=True)
class Rates:
    """What an engine reaches of its GPU.

    `decoding` is the share of the memory bandwidth while the responses of one training step are decoded, `evaluating`
    the same while thousands of responses wait. `launch_ms` is what the kernel launches of a decode step take at
    `LAUNCH_LAYERS` layers. `teacher_passes` are the passes of the teacher for each token of a blended response.
    `scoring` and `learning` are shares of the arithmetic. `step_s` are seconds of a training step that no GPU works
    for: passing on weights, moving the learner's state, grading, data. `start_s` are seconds until a unit works.

    A decode step moves the KV cache `cache_passes` times, and `head_passes` times more for each query head that shares
    a key–value head. An engine with `continuous` batching gives the place of a response that ended to the next one, and
    holds as many as fit at their mean context; otherwise a batch of full-length places runs until its longest ends.
    """

    title: str  # as people write its name
    decoding: Range
    evaluating: Range
    launch_ms: Range
    teacher_passes: Range
    scoring: Range
    learning: Range
    step_s: Range
    start_s: Range
    cache_passes: int
    head_passes: Range
    continuous: bool


# Allowances that nothing published covers. A step passes on 1.2 to 3.4 GB of weights and grades 256 responses.
STEP_S, START_S = Range(6.0, 10.0, 20.0), Range(60.0, 120.0, 300.0)
# The part of STEP_S in which weights and the learner's state are moved, which can be measured by itself.
PASSING_S = Range(4.0, 6.0, 12.0)

# What FSDP2 reaches of the arithmetic. Scoring: long forward passes; an assumption. Learners on one H100 reach 11 to
# 27 % (0.6B) and 21 to 37 % (4B): prime-rl's baselines. The students lie between the two sizes; the head of 151,936
# rows keeps it low.
FSDP2_SCORING, FSDP2_LEARNING = Range(0.45, 0.40, 0.30), Range(0.30, 0.21, 0.11)

# Several GPUs for one role. Nothing of it was measured by us either.
# Tensor parallelism waits for two all-reduces in each layer of a decode step. Those of some 200 rows × hidden width are
# 0.5 to 1 MB, for which NVLink's latency counts and not its bandwidth: about 10 µs with the engine's own kernels, 20 to
# 50 µs with NCCL. The gathered logits, 40 to 80 MB, add 0.1 to 0.3 ms to a step, which the range has room for.
ALL_REDUCES_OF_A_LAYER = 2
ALL_REDUCE_US = Range(10.0, 20.0, 40.0)
# Sharding gathers parameters while the layer before computes. Of what it reaches on one GPU a 7B model on one node's
# NVLink keeps 89 % on 2 GPUs and 93 % on 4 (KempnerForge's benchmarks, H200); students of a quarter of that have a
# quarter of the parameters to gather for a quarter of the arithmetic, but fewer micro-batches to share out evenly.
SHARDED = Range(0.95, 0.90, 0.80)

RATES: Mapping[str, Rates] = MappingProxyType(
    {
        # Eager decoding by transformers: thousands of small kernels for each token. All shares are assumptions.
        "torch": Rates(
            title="torch",
            decoding=Range(0.80, 0.65, 0.50),
            evaluating=Range(0.80, 0.65, 0.50),
            launch_ms=Range(25.0, 32.0, 40.0),
            teacher_passes=Range.exactly(1.0),
            scoring=Range(0.40, 0.27, 0.15),
            learning=Range(0.40, 0.27, 0.15),
            step_s=STEP_S,
            start_s=START_S,
            cache_passes=3,  # copied to append (read, written), read by attention
            head_passes=Range(0.0, 1.0, 2.0),  # under a padding mask each query head gets its own copy
            continuous=False,
        ),
        # Decoding of a small model with grouped queries is bound by reading the KV cache:
        # tokens/s = η · bandwidth ÷ (KV bytes of a token · c̄ + weight bytes ÷ rows).
        "sglang": Rates(
            title="SGLang",
            # Short batches that end in a tail reach 50 to 60 % of that bound.
            decoding=Range(0.60, 0.55, 0.50),
            # 72 to 84 % of it where responses wait: datatrove's inference benchmark, one H100, vLLM 0.15, contexts of
            # about 1,500 tokens, has 14,100, 12,300, 8,100 and 6,400 tokens/s for Qwen3 0.6B, 1.7B, 4B and 8B. The
            # middle is that of these shares; in the high estimate every slice of an evaluation ends in a tail too.
            evaluating=Range(0.84, 0.78, 0.60),
            launch_ms=Range.exactly(0.0),  # CUDA graphs
            # Drafts that the teacher judges together: 5 or 4 tokens for a pass; in the high estimate none at all.
            teacher_passes=Range(0.20, 0.25, 1.0),
            scoring=FSDP2_SCORING,
            learning=FSDP2_LEARNING,
            step_s=STEP_S,
            start_s=START_S,
            cache_passes=1,
            head_passes=Range.exactly(0.0),
            continuous=True,
        ),
    }
)


def trainer_rates(sampler: str, trainer: str) -> tuple[Range, Range]:
    """What scoring and learning reach of the arithmetic: verl's own, else what stands in the sampler's row."""
    return (FSDP2_SCORING, FSDP2_LEARNING) if trainer == "verl" else (RATES[sampler].scoring, RATES[sampler].learning)
