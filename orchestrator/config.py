"""The nouns of an experiment file: every key once, with its default, its meaning and, where it is closed, its choices.

Defaults are the paper's (Appendix A and its tables); setups and experiments hold only differences. `trb config` prints
this page: the text of a key is the first thing in its `Annotated`, its choices the second.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import Annotated, Any

PROMPT_KINDS = {
    "chat": "the tokenizer's chat template",
    "plain": "the problem as it is",
}
DATA_SOURCES = {
    "arithmetic": "sums of the embedded world, generated",
    "jsonl": "rows {id, problem, answer} of the files below `data_dir`",
    "openthoughts": "math rows of OpenThoughts3; the gold is the majority of a prompt's boxed answers",
}
OBJECTIVES = {
    "renormalized": "KL(p̄‖q̄) of student and teacher renormalised on the student's top k ids",
    "surrogate": "policy gradient with the advantage −p̄·log(p/q) of each of the top k ids (the released code)",
    "tail": "KL(p‖q) with everything outside the top k as one more event",
    "truncated": "Σ p·log(p/q) over the top k ids, not renormalised",
    "full": "KL(p‖q) over the whole vocabulary",
}
DECAYS = {
    "constant": "stay at `lr`",
    "linear": "fall linearly, to zero at the last step",
}
SFT_AFTER = {
    "restart": "an ordinary run of all steps",
    "continue": "from prompt batch K on",
}
BUDGETS = {
    "full": "all n samples of every checkpoint",
    "adaptive": "few samples for all, more for those still in their family's race, n for those that remain",
}
PLACEMENTS = {
    "inline": "all roles in the trial's process",
    "colocated": "one actor that generates and scores, one that learns, on the same device",
    "split": "an actor for each role",
}
KEPT = {
    "best": "the best checkpoint and the last; all until it is known which is best",
    "all": "every checkpoint",
}
WANDB_MODES = {
    "auto": "online when logged in, else offline",
    "online": "sent while the sweep runs",
    "offline": "kept in runs/.wandb",
    "disabled": "nothing is mirrored",
}
ENGINES = {"torch": "transformers models in this program's own loops"}
DTYPES = {
    "float32": "for CPUs and exact comparisons",
    "bfloat16": "for GPUs",
}
TOKENIZERS = {
    "characters": "the embedded world's characters",
    "bytes": "UTF-8 bytes",
}


@dataclass(frozen=True)
class Shape:
    """A Qwen3 decoder: what the memory accounting and the embedded models need. Not given: as a local folder says."""

    layers: Annotated[int, "Decoder layers."] = 0
    hidden: Annotated[int, "Width of the residual stream."] = 0
    heads: Annotated[int, "Query heads."] = 0
    kv_heads: Annotated[int, "Key and value heads, shared by groups of query heads."] = 0
    head_dim: Annotated[int, "Width of a head."] = 0
    ffn: Annotated[int, "Width of the feed-forward layer."] = 0
    tied: Annotated[bool, "Whether input and output embeddings are one matrix."] = True


@dataclass(frozen=True)
class Recipe:
    """How an embedded model is made instead of loaded: supervised steps from random weights."""

    updates: Annotated[int, "Supervised updates; 0 leaves the weights random."] = 0
    batch: Annotated[int, "Examples of an update."] = 64
    lr: Annotated[float, "Learning rate."] = 3e-3
    seed: Annotated[int, "Seed of the weights and of the examples."] = 0
    wrong_step: Annotated[float, "Share of reasoning steps whose sum is off by 1 to 3, which is carried on."] = 0.0
    off_task: Annotated[float, "Share of examples that answer with unrelated words."] = 0.0
    no_reasoning: Annotated[float, "Share of examples that give the answer at once."] = 0.0


@dataclass(frozen=True)
class Model:
    """A causal language model: a hub id or a local directory with its revision, or a recipe."""

    path: Annotated[str | None, "Hub id, or local folder in Hugging Face layout."] = None
    revision: Annotated[
        str | None, "Of a hub id: its commit, 40 hex digits. Of a folder: sha256 of its files; null takes it as it is."
    ] = None
    recipe: Annotated[Recipe | None, "How the model is made, instead of `path`."] = None
    shape: Shape = field(default_factory=Shape)
    eos: Annotated[int, "Token id that ends this model's responses; not given: as a local folder says."] = -1


@dataclass(frozen=True)
class Vocabulary:
    """Token ids that student and teacher share. Not given: as a local folder says."""

    size: Annotated[int, "Rows of the embedding."] = 0
    valid: Annotated[int, "Ids below this one are tokens; the others are untrained padding rows."] = 0


@dataclass(frozen=True)
class PromptTemplate:
    """How a problem becomes token ids, the same for student and teacher."""

    kind: Annotated[str, "How the problem is put.", PROMPT_KINDS] = "chat"
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

    source: Annotated[str, "Where training prompts come from.", DATA_SOURCES] = "jsonl"
    files: Annotated[list[DataFile], "Of source jsonl: files {file, sha256}."] = field(default_factory=list)
    path: Annotated[str | None, "Of source openthoughts: hub id, or a local parquet or JSON Lines file."] = None
    revision: Annotated[str | None, "Of `path`: the hub commit, or the sha256 of the local file or folder."] = None
    order_seed: Annotated[int, "Seed of the order of the prompts."] = 0


@dataclass(frozen=True)
class Optimizer:
    """AdamW with a cosine warmup to `lr`; from there it is constant, or falls linearly to zero at the last step."""

    lr: Annotated[float, "Learning rate after the warmup."] = 1e-5
    beta1: Annotated[float, "AdamW's β₁."] = 0.9
    beta2: Annotated[float, "AdamW's β₂."] = 0.999
    eps: Annotated[float, "AdamW's ε."] = 1e-8
    weight_decay: Annotated[float, "AdamW's decoupled weight decay."] = 0.01
    clip: Annotated[float, "Largest norm of the gradient; larger ones are scaled down."] = 1.0
    warmup_steps: Annotated[int, "Steps over which the rate rises to `lr`."] = 15
    decay: Annotated[str, "How the rate goes on after the warmup.", DECAYS] = "constant"


@dataclass(frozen=True)
class Sft:
    """The supervised stage on teacher responses, shared by the trials that start from it."""

    updates: Annotated[int, "Supervised updates of the stage."] = 50
    checkpoints: Annotated[list[int], "After which updates a trial can start (the K of sft_warmup)."] = field(
        default_factory=lambda: [15, 25, 50]
    )
    after: Annotated[str, "What a trial does after the stage.", SFT_AFTER] = "restart"


@dataclass(frozen=True)
class Training:
    """On-policy distillation; one optimizer update per batch."""

    steps: Annotated[int, "Optimizer updates of a trial."] = 400
    prompts_per_step: Annotated[int, "Prompts of an update."] = 64
    samples_per_prompt: Annotated[int, "Responses sampled for each of them."] = 4
    max_prompt_tokens: Annotated[int, "Longer prompts are passed over."] = 1024
    max_response_tokens: Annotated[int, "Training responses are cut here."] = 7168
    objective: Annotated[str, "What is minimised at each token of a rollout.", OBJECTIVES] = "renormalized"
    top_k: Annotated[int, "Ids of the student's support in the objective."] = 16
    checkpoint_every: Annotated[int, "Steps between checkpoints; each is evaluated, and so is the last step."] = 20
    optimizer: Optimizer = field(default_factory=Optimizer)
    sft: Sft = field(default_factory=Sft)


@dataclass(frozen=True)
class BenchmarkRun:
    """How one benchmark is evaluated. Problems come from the declared file below `data_dir`, or from `path`.

    With a `path`, a key that is none of the declared ones is a benchmark of one's own.
    """

    n: Annotated[int, "Samples for each problem."] = 1
    limit: Annotated[int | None, "Only the first so many problems; null: all."] = None
    path: Annotated[str | None, "Hub id, or a local JSON Lines or parquet file."] = None
    revision: Annotated[
        str | None, "Of a hub id: its commit, 40 hex digits. Of a file: its sha256; null takes it as it is."
    ] = None
    title: Annotated[str | None, "Heading of its column; null: that of a declared benchmark, else the key."] = None
    problems: Annotated[int | None, "Rows it has; null: counted in a local file. Needed with a hub id."] = None
    subset: Annotated[str | None, "Of a hub id: name of the configuration, for data sets that have several."] = None
    split: Annotated[str, "Of a hub id: its split."] = "test"


@dataclass(frozen=True)
class Evaluation:
    """pass@1 of checkpoints by sampling. How many samples which checkpoint gets is in no id: records are extended."""

    max_response_tokens: Annotated[int, "Evaluation responses are cut here."] = 8192
    temperature: Annotated[float, "Sampling temperature."] = 1.0
    seed: Annotated[int, "Seed of the samples."] = 0
    budget: Annotated[str, "Which checkpoints get how many samples.", BUDGETS] = "full"
    error: Annotated[float, "Bound on the probability that a race drops the checkpoint that `full` would select."] = (
        0.05
    )
    rescore: Annotated[bool, "Whether the selected checkpoint is evaluated again on fresh samples."] = True
    benchmarks: Annotated[dict[str, BenchmarkRun | None], "Benchmarks by key; null leaves one out."] = field(
        default_factory=dict
    )


@dataclass(frozen=True)
class Probe:
    """The continuation probe of the untrained student (paper, Figure "continuation gain")."""

    prompts: Annotated[int, "The first so many training prompts whose gold is known."] = 64
    prefixes: Annotated[int, "Rollouts of each behavior for a prompt."] = 4
    continuations: Annotated[int, "Continuations of each truncated rollout, by the student and by the teacher."] = 4
    lengths: Annotated[list[float], "Lengths of the prefixes in tokens; below 1: shares of the response limit."] = (
        field(default_factory=lambda: [0.25, 0.5, 0.75])
    )
    epsilon: Annotated[float | None, "Budget of the trust region in nats; null: the experiment's largest ε₀."] = None


@dataclass(frozen=True)
class Engine:
    """What generates and what learns."""

    rollout: Annotated[str, "Engine that samples.", ENGINES] = "torch"
    learner: Annotated[str, "Engine that trains.", ENGINES] = "torch"
    dtype: Annotated[str, "Numbers of the forward passes; the learner's master weights are float32.", DTYPES] = (
        "bfloat16"
    )


@dataclass(frozen=True)
class Setup:
    """A student–teacher pair with its data, prompt and benchmarks (a file in `setups/`)."""

    title: Annotated[str, "Name of the setup in tables and figures."] = ""
    student: Model = field(default_factory=Model)
    teacher: Model = field(default_factory=Model)
    tokenizer: Annotated[str | None, "Tokenizer of embedded models; null: the teacher's own.", TOKENIZERS] = None
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    prompt: PromptTemplate = field(default_factory=PromptTemplate)
    data: Data = field(default_factory=Data)
    engine: Engine = field(default_factory=Engine)
    training: Training = field(default_factory=Training)
    evaluation: Evaluation = field(default_factory=Evaluation)
    probe: Probe = field(default_factory=Probe)


@dataclass(frozen=True)
class Placement:
    """Where the roles of one trial live."""

    mode: Annotated[str, "How roles are spread over processes.", PLACEMENTS] = "inline"
    gpus: Annotated[int, "GPUs of one trial; not given: 1 where a pair has more than 500 M parameters, else 0."] = 0
    cpus: Annotated[float, "CPU cores of one trial, its driver included."] = 1.0


@dataclass(frozen=True)
class Runtime:
    """Settings that change speed or memory, never a unit's identity."""

    placement: Placement = field(default_factory=Placement)
    rollout_batch: Annotated[
        int | None, "Sequences decoded at once; null: what fits on the GPU at full length, 512 on CPUs."
    ] = None
    draft_length: Annotated[
        int | None, "Draft length γ while blending; null: from ε and the sizes of the two models."
    ] = None
    micro_batch_tokens: Annotated[int, "Padded tokens in one forward pass of scoring or learning."] = 16384
    keep: Annotated[str, "Which checkpoints stay on disk.", KEPT] = "best"
    worker_timeout_s: Annotated[float, "Seconds after which a call of an actor counts as lost."] = 7200.0
    grader_deadline_s: Annotated[float, "Seconds the grader may take for one answer."] = 5.0
    wandb: Annotated[str, "What W&B gets to see.", WANDB_MODES] = "auto"
    wandb_project: Annotated[str, "W&B project."] = "trb"
    rollout_texts: Annotated[int, "Training rollouts whose text is written, per step."] = 4


@dataclass(frozen=True)
class ExperimentFile:
    """An experiment file as written; `load.load_experiment` resolves its setups."""

    name: Annotated[str, "Name of the results folder; by default that of the file."] = ""
    setups: Annotated[list[str], "Setup files by name: first those in setups/ beside the experiment, then shipped."] = (
        field(default_factory=list)
    )
    methods: Annotated[dict[str, Any], "Methods with their knobs; a list of values is an axis of the grid."] = field(
        default_factory=dict
    )
    seeds: Annotated[list[int], "Seeds of each trial, an axis of the grid."] = field(default_factory=lambda: [0])
    data_dir: Annotated[str | None, "Folder of the data files; also TRB_DATA_DIR."] = None
    engine: Annotated[dict[str, Any], "Differences to the setups' engine.", Engine] = field(default_factory=dict)
    training: Annotated[dict[str, Any], "Differences to the setups' training.", Training] = field(default_factory=dict)
    evaluation: Annotated[dict[str, Any], "Differences to the setups' evaluation.", Evaluation] = field(
        default_factory=dict
    )
    probe: Annotated[dict[str, Any], "Differences to the setups' probe.", Probe] = field(default_factory=dict)
    runtime: Runtime = field(default_factory=Runtime)


@dataclass(frozen=True)
class Experiment:
    """A resolved experiment: setups merged with the experiment's differences, grids as lists of values."""

    name: str
    setups: dict[str, Setup]
    methods: dict[str, dict[str, list[Any]]]
    placements: dict[str, Placement]  # methods that do not use `runtime.placement`
    seeds: list[int]
    data_dir: str | None
    runtime: Runtime
    method_seeds: dict[str, list[int]] = field(default_factory=dict)  # methods that do not use `seeds`
    notes: tuple[str, ...] = ()  # what was read off local files and could be pinned
    arguments: tuple[str, ...] = ()  # what was typed to get it: file, overrides, options that all commands share

    def seeds_of(self, method: str | None) -> list[int]:
        """The seeds of a method's trials; None, for units without a method, gives the experiment's own."""
        return self.seeds if method is None else self.method_seeds.get(method, self.seeds)

    def command(self, name: str, *more: str) -> str:
        """`trb NAME` for this experiment as one types it, with further overrides or options; quoted for a shell."""
        return shlex.join(["trb", name, *self.arguments, *more])
