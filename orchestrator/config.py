"""The keys of an experiment file, each with its type, default, meaning and rule.

Defaults are the paper's (Appendix A and its tables); setups and experiments hold only differences.
`trb config` prints this page. `experiment.validate` checks keys against each other.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from orchestrator.rules import INFINITE, LARGEST, AtLeast, Between, Must

PromptKind = (
    Annotated[Literal["chat"], "the tokenizer's chat template"]
    | Annotated[Literal["plain"], "the problem as it is"]
)
DataSource = (
    Annotated[Literal["arithmetic"], "sums of the embedded world, generated"]
    | Annotated[Literal["jsonl"], "rows {id, problem, answer} of the files below `data_dir`"]
    | Annotated[
        Literal["openthoughts"],
        "math rows of OpenThoughts3; the gold is the majority of a prompt's boxed answers",
    ]
)
ObjectiveName = (
    Annotated[
        Literal["renormalized"],
        "KL(p̄‖q̄) of student and teacher renormalised on the student's top k ids",
    ]
    | Annotated[
        Literal["surrogate"],
        "policy gradient with the advantage −p̄·log(p/q) of each of the top k ids (the released code)",
    ]
    | Annotated[Literal["tail"], "KL(p‖q) with everything outside the top k as one more event"]
    | Annotated[Literal["truncated"], "Σ p·log(p/q) over the top k ids, not renormalised"]
    | Annotated[Literal["full"], "KL(p‖q) over the whole vocabulary"]
)
Decay = (
    Annotated[Literal["constant"], "stay at `lr`"]
    | Annotated[Literal["linear"], "fall linearly, to zero at the last step"]
)
AfterSft = (
    Annotated[Literal["restart"], "an ordinary run of all steps"]
    | Annotated[Literal["continue"], "from prompt batch K on"]
)
EvaluationBudget = (
    Annotated[Literal["full"], "all n samples of every checkpoint"]
    | Annotated[
        Literal["adaptive"],
        "few samples for all, more for those still in their family's race, n for those that remain",
    ]
)
PlacementMode = (
    Annotated[Literal["inline"], "all roles in the trial's process"]
    | Annotated[
        Literal["colocated"],
        "one actor that generates and scores, one that learns, on the same device",
    ]
    | Annotated[
        Literal["split"],
        "an actor for each role, on GPUs of its own where `role_gpus` gives it any",
    ]
)
RoleName = Literal["rollout", "teacher", "learner"]
Kept = (
    Annotated[Literal["best"], "the best checkpoint; all until it is known which that is"]
    | Annotated[Literal["all"], "every checkpoint"]
)
WandbMode = (
    Annotated[Literal["auto"], "online when logged in, else offline"]
    | Annotated[Literal["online"], "sent while the sweep runs"]
    | Annotated[Literal["offline"], "kept in runs/.wandb"]
    | Annotated[Literal["disabled"], "nothing is mirrored"]
)
TorchEngine = Annotated[Literal["torch"], "transformers models in this program's own loops"]
TrainerName = (
    TorchEngine
    | Annotated[
        Literal["verl"],
        "verl's FSDP2 engine, a rank for each GPU of its role, else for each of its cores; it wants "
        "`make setup-engines`",
    ]
)
EngineName = (
    TorchEngine
    | Annotated[
        Literal["sglang"],
        "SGLang in processes of its own, tensor-parallel over the GPUs of its role; it wants `make setup-engines`",
    ]
)
Dtype = (
    Annotated[Literal["float32"], "for CPUs and exact comparisons"]
    | Annotated[Literal["bfloat16"], "for GPUs"]
)
AttentionName = (
    Annotated[Literal["triton"], "Triton's, on every GPU, also in float32"]
    | Annotated[Literal["fa3"], "FlashAttention 3, bfloat16 on Ampere to Hopper"]
    | Annotated[Literal["flashinfer"], "FlashInfer's, bfloat16"]
)
TokenizerName = (
    Annotated[Literal["characters"], "the embedded world's characters"]
    | Annotated[Literal["bytes"], "UTF-8 bytes"]
)

MOST_STEPS = 10**6
MOST_SAMPLES = 10**5  # of one problem
_READ_OFF = "only of a model in a local folder can it be left out"
A_SIZE = Between(1, words=f"≥ 1; {_READ_OFF}")
TWO_IDS = Between(2, words=f"≥ 2; {_READ_OFF}")
POSITIVE = Between(0, INFINITE, low_open=True, high_open=True, words="> 0 and finite")
A_SHARE = Between(0, 1, words="a share between 0 and 1")
POINTS = Between(0, 100, words="points from 0 to 100")
A_PROBABILITY = Between(0, 1, low_open=True, high_open=True, words="a probability > 0 and < 1")
MOST_GPUS = 64  # of a role
GPUS_OF_A_TRIAL = Must(
    "0, a share of one GPU such as 0.5, or a whole number of GPUs",
    lambda gpus: 0.01 <= gpus < 1 or (gpus % 1 == 0 and 0 <= gpus <= 3 * MOST_GPUS),
)
OF_A_ROLE = AtLeast(1, MOST_GPUS)
LENGTHS = Must(
    "whole numbers of tokens, or shares between 0 and 1",
    lambda lengths: bool(lengths) and all(0 < t < 1 or (t >= 1 and t % 1 == 0) for t in lengths),
)
SOME_BENCHMARK = Must("at least one benchmark", bool)
A_FOLDER_NAME = Must(
    "at most 80 lower-case letters, digits, '.', '_' and '-'",
    lambda name: re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,79}", name) is not None,
)
A_NAME = Must(  # a single component of a path
    "a name of at most 80 letters, digits, '.', '_' and '-', not starting with '.'",
    lambda name: re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,79}", name) is not None,
)
SEEDS = (
    Must(
        "one or several whole numbers ≥ 0, for example [0, 1, 2]",
        lambda seeds: (
            bool(seeds)
            and isinstance(seeds, list)
            and all(type(seed) is int and 0 <= seed <= LARGEST for seed in seeds)
        ),
    ),
    Must("every seed once", lambda seeds: len(set(seeds)) == len(seeds)),
)

OTHER_SEEDS = (
    Must(
        "2 or more whole numbers ≥ 0, or none",
        lambda seeds: len(seeds) != 1 and all(0 <= s <= LARGEST for s in seeds),
    ),
    Must("every seed once", lambda seeds: len(set(seeds)) == len(seeds)),
)


@dataclass(frozen=True)
class Shape:
    """The sizes of a Qwen3 decoder, for memory accounting and embedded models.

    Omitted sizes are read from the model's local folder.
    """

    layers: Annotated[int, "Decoder layers.", A_SIZE] = 0
    hidden: Annotated[int, "Width of the residual stream.", A_SIZE] = 0
    heads: Annotated[int, "Query heads.", A_SIZE] = 0
    kv_heads: Annotated[int, "Key and value heads, shared by groups of query heads.", A_SIZE] = 0
    head_dim: Annotated[int, "Width of a head.", A_SIZE] = 0
    ffn: Annotated[int, "Width of the feed-forward layer.", A_SIZE] = 0
    tied: Annotated[bool, "Whether input and output embeddings are one matrix."] = True

    def divides_by(self, count: int) -> bool:
        """Whether `count` GPUs can split each layer evenly, by heads and columns."""
        return all(size % count == 0 for size in (self.heads, self.kv_heads, self.ffn))


@dataclass(frozen=True)
class Recipe:
    """Makes a model instead of loading it: supervised steps from random weights, or none at all."""

    updates: Annotated[
        int, "Supervised updates; 0 leaves the weights random.", AtLeast(0, MOST_STEPS)
    ] = 0
    batch: Annotated[int, "Examples of an update.", AtLeast(1)] = 64
    lr: Annotated[float, "Learning rate.", POSITIVE] = 3e-3
    seed: Annotated[int, "Seed of the weights and of the examples."] = 0
    dtype: Annotated[
        Dtype,
        "Numbers of the weights on disk; bfloat16, for models of billions of parameters, leaves them random.",
    ] = "float32"
    wrong_step: Annotated[
        float, "Share of reasoning steps whose sum is off by 1 to 3, which is carried on.", A_SHARE
    ] = 0.0
    off_task: Annotated[float, "Share of examples that answer with unrelated words.", A_SHARE] = 0.0
    no_reasoning: Annotated[float, "Share of examples that give the answer at once.", A_SHARE] = 0.0


@dataclass(frozen=True)
class Model:
    """A causal language model: a hub id or a local directory with its revision, or a recipe."""

    path: Annotated[str | None, "Hub id, or local folder in Hugging Face layout."] = None
    revision: Annotated[
        str | None,
        "Of a hub id: its commit, 40 hex digits. Of a folder: sha256 of its files; null takes it as it is.",
    ] = None
    recipe: Annotated[Recipe | None, "How the model is made, instead of `path`."] = None
    shape: Shape = field(default_factory=Shape)
    eos: Annotated[
        int, "Token id that ends this model's responses; not given: as a local folder says."
    ] = -1


@dataclass(frozen=True)
class Vocabulary:
    """The token ids that student and teacher share. Omitted values are read from a local folder."""

    size: Annotated[int, "Rows of the embedding.", TWO_IDS] = 0
    valid: Annotated[
        int, "Ids below this one are tokens; the others are untrained padding rows."
    ] = 0


@dataclass(frozen=True)
class PromptTemplate:
    """Turns a problem into token ids, the same for student and teacher."""

    kind: Annotated[PromptKind, "How the problem is put."] = "chat"
    system: Annotated[str | None, "System message of the chat template."] = None
    enable_thinking: Annotated[bool, "Passed on to the chat template."] = False


@dataclass(frozen=True)
class DataFile:
    """A JSON Lines file below `data_dir`, by content."""

    file: Annotated[str, "Path below `data_dir`."] = ""
    sha256: Annotated[str, "Its content as sha256; other content is refused."] = ""


@dataclass(frozen=True)
class Data:
    """Training prompts, in one deterministic order for all methods."""

    source: Annotated[DataSource, "Where training prompts come from."] = "jsonl"
    files: Annotated[list[DataFile], "Of source jsonl: files {file, sha256}."] = field(
        default_factory=list
    )
    path: Annotated[
        str | None, "Of source openthoughts: hub id, or a local parquet or JSON Lines file."
    ] = None
    revision: Annotated[
        str | None, "Of `path`: the hub commit, or the sha256 of the local file or folder."
    ] = None
    order_seed: Annotated[int, "Seed of the order of the prompts."] = 0


@dataclass(frozen=True)
class Optimizer:
    """AdamW with a cosine warmup to `lr`; from there it is constant, or falls linearly to zero at
    the last step.
    """

    lr: Annotated[float, "Learning rate after the warmup.", POSITIVE] = 1e-5
    beta1: Annotated[float, "AdamW's β₁.", Between(0, 1, high_open=True)] = 0.9
    beta2: Annotated[float, "AdamW's β₂.", Between(0, 1, high_open=True)] = 0.999
    eps: Annotated[float, "AdamW's ε.", POSITIVE] = 1e-8
    weight_decay: Annotated[float, "AdamW's decoupled weight decay.", AtLeast(0)] = 0.01
    clip: Annotated[
        float, "Largest norm of the gradient; larger ones are scaled down.", POSITIVE
    ] = 1.0
    warmup_steps: Annotated[int, "Steps over which the rate rises to `lr`.", AtLeast(0)] = 15
    decay: Annotated[Decay, "How the rate goes on after the warmup."] = "constant"


@dataclass(frozen=True)
class Sft:
    """The supervised stage on teacher responses, shared by the trials that start from it."""

    updates: Annotated[int, "Supervised updates of the stage.", AtLeast(1, MOST_STEPS)] = 50
    checkpoints: Annotated[
        list[int], "After which updates a trial can start (the K of sft_warmup)."
    ] = field(default_factory=lambda: [15, 25, 50])
    after: Annotated[AfterSft, "Course of a trial after the stage."] = "restart"


@dataclass(frozen=True)
class Training:
    """On-policy distillation; one optimizer update per batch."""

    steps: Annotated[int, "Optimizer updates of a trial.", AtLeast(1, MOST_STEPS)] = 400
    prompts_per_step: Annotated[int, "Prompts of an update.", AtLeast(1)] = 64
    samples_per_prompt: Annotated[int, "Responses sampled for each of them.", AtLeast(1)] = 4
    max_prompt_tokens: Annotated[int, "Longer prompts are passed over.", AtLeast(1)] = 1024
    max_response_tokens: Annotated[int, "Training responses are cut here.", AtLeast(1)] = 7168
    objective: Annotated[ObjectiveName, "Loss at each token of a rollout."] = "renormalized"
    top_k: Annotated[int, "Ids of the student's support in the objective.", AtLeast(1)] = 16
    checkpoint_every: Annotated[
        int, "Steps between checkpoints; each is evaluated, and so is the last step.", AtLeast(1)
    ] = 20
    optimizer: Optimizer = field(default_factory=Optimizer)
    sft: Sft = field(default_factory=Sft)


@dataclass(frozen=True)
class BenchmarkRun:
    """The evaluation of one benchmark, on the declared file below `data_dir` or on `path`.

    With a `path`, an undeclared key adds a benchmark.
    """

    n: Annotated[int, "Samples for each problem.", AtLeast(1, MOST_SAMPLES)] = 1
    limit: Annotated[int | None, "Only the first so many problems; null: all.", AtLeast(1)] = None
    path: Annotated[str | None, "Hub id, or a local JSON Lines or parquet file."] = None
    revision: Annotated[
        str | None,
        "Of a hub id: its commit, 40 hex digits. Of a file: its sha256; null takes it as it is.",
    ] = None
    title: Annotated[
        str | None, "Heading of its column; null: that of a declared benchmark, else the key."
    ] = None
    problems: Annotated[
        int | None, "Rows it has; null: counted in a local file. Needed with a hub id."
    ] = None
    subset: Annotated[
        str | None, "Of a hub id: name of the configuration, for data sets that have several."
    ] = None
    split: Annotated[str, "Of a hub id: its split."] = "test"
    grader: Annotated[str, "What judges its answers: math, or module:function."] = "math"


@dataclass(frozen=True)
class Evaluation:
    """pass@1 of checkpoints by sampling. No id has sample counts in it: records are extended."""

    max_response_tokens: Annotated[int, "Evaluation responses are cut here.", AtLeast(1)] = 8192
    temperature: Annotated[float, "Sampling temperature.", POSITIVE] = 1.0
    seed: Annotated[int, "Seed of the samples."] = 0
    budget: Annotated[EvaluationBudget, "Which checkpoints get how many samples."] = "full"
    error: Annotated[
        float,
        "Bound on the probability that a race drops the checkpoint that `full` would select.",
        A_PROBABILITY,
    ] = 0.05
    indifference: Annotated[
        float,
        "A race ends once no checkpoint can lie more than so many points above the leader; 0: never.",
        POINTS,
    ] = 0.0
    rescore: Annotated[
        bool, "Whether the selected checkpoint is evaluated again on fresh samples."
    ] = True
    benchmarks: Annotated[
        dict[str, BenchmarkRun], "Benchmarks by key; null leaves one out.", SOME_BENCHMARK
    ] = field(default_factory=dict)


@dataclass(frozen=True)
class Probe:
    """The continuation probe of the untrained student (paper, Figure "continuation gain")."""

    prompts: Annotated[
        int, "The first so many training prompts whose gold is known.", AtLeast(1)
    ] = 64
    prefixes: Annotated[int, "Rollouts of each behavior for a prompt.", AtLeast(1)] = 4
    continuations: Annotated[
        int,
        "Continuations of each truncated rollout, by the student and by the teacher.",
        AtLeast(1),
    ] = 4
    lengths: Annotated[
        list[float],
        "Lengths of the prefixes in tokens; below 1: shares of the response limit.",
        LENGTHS,
    ] = field(default_factory=lambda: [0.25, 0.5, 0.75])
    epsilon: Annotated[
        float | None,
        "Budget of the trust region in nats; null: the experiment's largest ε₀.",
        POSITIVE,
    ] = None


@dataclass(frozen=True)
class EngineConfig:
    """The engines that sample and train, and the dtype of their forward passes."""

    sampler: Annotated[EngineName, "Engine that samples."] = "torch"
    trainer: Annotated[TrainerName, "Engine that trains; the teacher scores on it too."] = "torch"
    dtype: Annotated[
        Dtype, "Numbers of the forward passes; the trainer's master weights are float32."
    ] = "bfloat16"


@dataclass(frozen=True)
class Setup:
    """A student–teacher pair with its data, prompt and benchmarks (a file in `setups/`)."""

    title: Annotated[str, "Name of the setup in tables and figures."] = ""
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


@dataclass(frozen=True)
class RoleGpus:
    """GPUs that each role of a trial has for itself, in placement mode split."""

    rollout: Annotated[
        int, "GPUs that sample; a layer of the model is shared out over them.", OF_A_ROLE
    ] = 1
    teacher: Annotated[
        int, "GPUs that score, or answer prompts in the supervised stage.", OF_A_ROLE
    ] = 1
    learner: Annotated[
        int, "GPUs that train; parameters and optimizer are sharded over them.", OF_A_ROLE
    ] = 1

    @property
    def total(self) -> int:
        """GPUs of all roles."""
        return self.rollout + self.teacher + self.learner


@dataclass(frozen=True)
class Placement:
    """The processes, GPUs and CPU cores of one trial's roles."""

    mode: Annotated[PlacementMode, "How roles are spread over processes."] = "inline"
    gpus: Annotated[
        float,
        "GPUs of one trial, whose roles take turns on all of them, or a share of one: with 0.5 two trials are packed "
        "on a GPU, each with half its memory; not given: the sum of `role_gpus`, else 1 where a pair has more than "
        "500 M parameters, else 0.",
        GPUS_OF_A_TRIAL,
    ] = 0
    role_gpus: Annotated[
        RoleGpus | None,
        "In mode split: GPUs of each role, for example {rollout: 2, teacher: 1, learner: 1}.",
    ] = None
    cpus: Annotated[float, "CPU cores of one trial, its driver included.", POSITIVE] = 1.0

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
class Runtime:
    """Settings that change speed or memory, never a unit's identity."""

    placement: Placement = field(default_factory=Placement)
    rollout_batch: Annotated[
        int | None,
        "Sequences decoded at once; null: what fits on the GPU at full length, 512 on CPUs.",
        AtLeast(1),
    ] = None
    draft_length: Annotated[
        int | None,
        "Draft length γ while blending, at most 16 with SGLang; null: from ε and the sizes of the two models.",
        AtLeast(1),
    ] = None
    attention_backend: Annotated[
        AttentionName | None,
        "Attention kernels of SGLang; null: what suits the GPU and `engine.dtype`.",
    ] = None
    micro_batch_tokens: Annotated[
        int | None,
        "Tokens in one pass of scoring or learning, padding included; null: what fits on the GPU, at most 16384.",
        AtLeast(1),
    ] = None
    slice_responses: Annotated[
        int, "Responses that an evaluator samples at a time and writes together.", AtLeast(1)
    ] = 2000
    keep: Annotated[Kept, "Which checkpoints stay on disk."] = "best"
    worker_timeout_s: Annotated[
        float, "Seconds after which a call of an actor counts as lost.", POSITIVE
    ] = 7200.0
    grader_deadline_s: Annotated[float, "Seconds the grader may take for one answer.", POSITIVE] = (
        5.0
    )
    wandb: Annotated[WandbMode, "How runs are mirrored to W&B."] = "auto"
    wandb_project: Annotated[str, "W&B project."] = "trb"
    rollout_texts: Annotated[
        int, "Training rollouts whose text is written, per step.", AtLeast(0)
    ] = 4


@dataclass(frozen=True)
class Confirm:
    """Runs that confirm what a sweep found: each method's chosen setting, trained on seeds that
    took no part.

    Only the chosen step is evaluated, on samples that took no part either.
    """

    seeds: Annotated[
        list[int],
        "Seeds of the confirming runs, 2 or more; none: nothing is confirmed.",
        *OTHER_SEEDS,
    ] = field(default_factory=list)
    methods: Annotated[list[str] | None, "Methods to confirm; null: all."] = None
    until: Annotated[
        float | None,
        "Add seeds, as many at a time and up to five times as many, to the methods whose difference to vanilla is "
        "open: its interval neither lies within ± so many points nor leaves out zero.",
        POSITIVE,
    ] = None


@dataclass(frozen=True)
class ExperimentFile:
    """An experiment file as written; `load.load_experiment` resolves its setups."""

    name: Annotated[
        str, "Name of the results folder; by default that of the file.", A_FOLDER_NAME
    ] = ""
    setups: Annotated[
        list[str],
        "Names of setup files, first those in setups/ beside the experiment, then shipped; or whole setups by name.",
    ] = field(default_factory=list)
    methods: Annotated[
        dict[str, Any], "Methods with their knobs; a list of values is an axis of the grid."
    ] = field(default_factory=dict)
    seeds: Annotated[list[int], "Seeds of each trial, an axis of the grid.", *SEEDS] = field(
        default_factory=lambda: [0]
    )
    confirm: Confirm = field(default_factory=Confirm)
    data_dir: Annotated[
        str | None, "Folder of the data files; null: that of TRB_DATA_DIR, else `data`."
    ] = None
    engine: Annotated[dict[str, Any], "Differences to the setups' engine.", EngineConfig] = field(
        default_factory=dict
    )
    training: Annotated[dict[str, Any], "Differences to the setups' training.", Training] = field(
        default_factory=dict
    )
    evaluation: Annotated[dict[str, Any], "Differences to the setups' evaluation.", Evaluation] = (
        field(default_factory=dict)
    )
    probe: Annotated[dict[str, Any], "Differences to the setups' probe.", Probe] = field(
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
    arguments: tuple[str, ...] = ()  # as typed: file, overrides, options that all commands share

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

    def command(self, name: str, *more: str) -> str:
        """`trb NAME` for this experiment, with further overrides or options, quoted for a shell."""
        return shlex.join(["trb", name, *self.arguments, *more])
