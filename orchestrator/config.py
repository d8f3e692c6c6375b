"""The keys of an experiment file, each with its type, default, meaning and limits.

Defaults are the paper's (Appendix A and its tables); setups and experiments hold only differences.
`trb config` prints this page. `experiment.validate` checks keys against each other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from orchestrator.pair import Model, Vocabulary
from orchestrator.rules import (
    A_TRACKER,
    GPUS_OF_A_TRIAL,
    LENGTHS,
    MOST_SAMPLES,
    MOST_STEPS,
    NAMES_OF_MAPPING,
    NULL_IS_DEFAULT,
    WITHOUT_NULLS,
    AfterSft,
    AttentionName,
    Count,
    DataSource,
    Decay,
    Dtype,
    Duration,
    EngineName,
    EvaluationBudget,
    Flag,
    FolderName,
    GpuCount,
    LogitsKernel,
    Natural,
    Number,
    ObjectiveName,
    OtherSeeds,
    PercentagePoints,
    PlacementMode,
    Positive,
    Probability,
    PromptKind,
    Retention,
    RoleName,
    RungMetric,
    SearchKind,
    Section,
    Seed,
    Seeds,
    Terms,
    Text,
    TokenizerName,
    TrainerName,
    Wait,
    WandbMode,
    WeightsPath,
    Whole,
    seconds_of,
)


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
    files: Annotated[list[DataFile], "Of jsonl: each {file, sha256}."] = field(default_factory=list)
    path: Annotated[
        Text | None, "Of source openthoughts: hub id, or a local parquet or JSON Lines file."
    ] = None
    revision: Annotated[
        Text | None, "Of `path`: the hub commit, or the sha256 of the local file or folder."
    ] = None
    order_seed: Annotated[Whole, "Seed of the order of the prompts."] = 0
    longest: Annotated[Terms, "Of source arithmetic: terms of the longest sums."] = 5


@dataclass(frozen=True)
class Optimizer(Section):
    """AdamW with a cosine warmup to `lr`, which then stays, or falls linearly to the last step."""

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
    order_per_seed: Annotated[
        Flag, "Whether each seed has an order of prompts of its own, the same for all methods."
    ] = False
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
        Text | None, "Of a hub id: its commit. Of a file: its sha256; null: that of the file here."
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
    held_out: Annotated[
        Natural | None,
        "Prompts that no trial takes, on which each measures KL(p‖q) at its start and checkpoints; "
        "null: for 5 % of the tokens of a first evaluation, but 8 to 64 prompts; 0: none.",
    ] = None
    keep_texts: Annotated[
        Natural,
        "Responses of each problem whose texts are kept beside the counts, at every checkpoint; of "
        "the selected checkpoint's fresh samples all are. 0: no texts.",
    ] = 1
    benchmarks: Annotated[
        dict[Text, BenchmarkRun],
        WITHOUT_NULLS,
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
    caveat: Annotated[Text | None, "A sentence that stands under each verdict on the setup."] = None
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
        GpuCount, "GPUs that sample; a layer of the model is shared out over them."
    ] = 1
    teacher: Annotated[GpuCount, "GPUs that score, or answer prompts in the supervised stage."] = 1
    learner: Annotated[
        GpuCount, "GPUs that train; parameters and optimizer are sharded over them."
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
        "GPUs of one trial, whose roles take turns on all of them, or a share of one: with 0.5 two "
        "trials are packed on a GPU, each with half its memory; not given: the sum of `role_gpus`, "
        "else 1 where a pair has more than 500 M parameters, else 0.",
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
        AttentionName | None, "Attention kernels of SGLang; null: what suits GPU and dtype."
    ] = None
    engine_start_s: Annotated[
        Wait,
        "Seconds for the start of an SGLang engine: it reads libraries and weights, and compiles "
        "kernels the first time.",
    ] = 600.0
    logits_kernel: Annotated[
        LogitsKernel | None,
        "Reads the teacher's logits on GPUs, and draws from the student's in SGLang; null: triton on "
        "GPUs, except where several sample together, else torch.",
    ] = None
    weights: Annotated[WeightsPath, "How new weights come to SGLang."] = "device"
    micro_batch_tokens: Annotated[
        Count | None,
        "Tokens in one pass of scoring or learning, padding included; null: what fits on the GPU, at "
        "most 16384.",
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
    save_every: Annotated[
        Duration | None,
        "Time after which a unit saves its learner's state between two checkpoints, so that a kill "
        "repeats no more; null: at checkpoints only.",
    ] = "20min"
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
        Natural, "Rollouts of each step whose text is written; of some steps token by token."
    ] = 4

    @property
    def save_every_s(self) -> float:
        """Seconds between two commits after which a state is saved; infinite without saves."""
        return math.inf if self.save_every is None else seconds_of(self.save_every)


@dataclass(frozen=True)
class Confirm(Section):
    """Runs of each method's chosen setting on other seeds, to confirm what a sweep found.

    Only the chosen step is evaluated, on samples that took no part in the choice either.
    """

    seeds: Annotated[
        OtherSeeds, "Seeds of the confirming runs, 2 or more; none: nothing is confirmed."
    ] = field(default_factory=list)
    methods: Annotated[list[Text] | None, "Methods to confirm; null: all."] = None
    until: Annotated[
        Positive | None,
        "Add seeds, as many at a time and up to five times as many, to the methods whose difference to "
        "vanilla is open: its interval neither lies within ± so many points nor leaves out zero.",
    ] = None


@dataclass(frozen=True)
class Search(Section):
    """Which points of its grid a method tries, and how far.

    Ranges without `points` are distributions. Draws depend on `seed`, the key and their number
    alone, so methods that share a key try the same values of it.
    """

    kind: Annotated[SearchKind, "Which points of a grid or of ranges are tried."] = "grid"
    trials: Annotated[
        Count | None, "Points of each method that has more; null: all, which ranges do not have."
    ] = None
    seed: Annotated[Seed, "Seed of the draws."] = 0
    reduction: Annotated[
        Natural,
        Field(ge=2),
        "Halving: one of so many settings goes on from each rung; rungs are so many times apart.",
    ] = 3
    batch: Annotated[Count, "Optuna: points that are asked at a time."] = 8
    by: Annotated[
        RungMetric, "Halving: what decides at a rung, on the checkpoint there, over all seeds."
    ] = "pass@1"


@dataclass(frozen=True)
class ExperimentFile(Section):
    """An experiment file as written; `load.load_experiment` resolves its setups."""

    name: Annotated[FolderName, "Name of the results folder; by default that of the file."] = ""
    setups: Annotated[
        list[Text],
        NAMES_OF_MAPPING,
        "Names of setup files, first those in setups/ beside the experiment, "
        "then shipped; or whole setups by name.",
    ] = field(default_factory=list)
    caveat: Annotated[Text | None, "Stands under each verdict, as those of setups do."] = None
    methods: Annotated[
        dict[Text, Any], "Methods with their knobs; a list of values is an axis of the grid."
    ] = field(default_factory=dict)
    axes: Annotated[
        dict[Text, Any], "Keys of training with their values, which multiply each method's grid."
    ] = field(default_factory=dict)
    search: Annotated[Search, NULL_IS_DEFAULT] = field(default_factory=Search)
    seeds: Annotated[Seeds, "Seeds of each trial, an axis of the grid."] = field(
        default_factory=lambda: [0]
    )
    confirm: Annotated[Confirm, NULL_IS_DEFAULT] = field(default_factory=Confirm)
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
    """A resolved experiment: setups with the experiment's differences, grids as lists of values."""

    name: str
    setups: dict[str, Setup]
    methods: dict[str, dict[str, list[Any]]]
    placements: dict[str, Placement]  # methods that do not use `runtime.placement`
    seeds: list[int]
    data_dir: str | None
    runtime: Runtime
    # Methods that do not use `seeds`.
    method_seeds: dict[str, list[int]] = field(default_factory=dict)
    confirm: Confirm = field(default_factory=Confirm)
    search: Search = field(default_factory=Search)
    # The settings of methods that try some points of their grids alone.
    points: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    # Knob or axis → values or range, of methods whose later points rest on scores; `points` has the
    # first ones of these.
    spaces: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    caveat: str | None = None
    notes: tuple[str, ...] = ()  # values read from local files, which the user could pin

    def seeds_of(self, method: str | None) -> list[int]:
        """The seeds of a method's trials; the experiment's own for None, units without a method."""
        return self.seeds if method is None else self.method_seeds.get(method, self.seeds)

    def settings_of(self, method: str) -> list[dict[str, Any]]:
        """The settings that a method tries, each with its knobs and axes: its points, or its grid."""
        if method in self.points:
            return self.points[method]
        grid = self.methods[method]
        return [
            dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())
        ]

    @property
    def explored_seeds(self) -> list[int]:
        """All seeds on which settings are chosen, of any method."""
        own = [seed for seeds in self.method_seeds.values() for seed in seeds]
        return list(dict.fromkeys([*self.seeds, *own]))

    @property
    def confirmed_methods(self) -> list[str]:
        """The methods whose choice is confirmed on `confirm.seeds`; none without such seeds."""
        chosen = self.methods if self.confirm.methods is None else self.confirm.methods
        return [method for method in self.methods if self.confirm.seeds and method in chosen]
