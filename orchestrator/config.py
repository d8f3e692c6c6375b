"""The nouns of an experiment file, and every default, once.

Defaults are the paper's (Appendix A and its tables); setups and experiments hold only differences.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Shape:
    """A Qwen3 decoder: what the memory accounting and the embedded models need."""

    layers: int = 0
    hidden: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    ffn: int = 0
    tied: bool = True


@dataclass(frozen=True)
class Recipe:
    """How an embedded model is made instead of loaded: `updates` supervised steps from random weights."""

    updates: int = 0
    batch: int = 64
    lr: float = 3e-3
    seed: int = 0
    wrong_step: float = 0.0  # share of reasoning steps whose sum is off by 1–3, carried on
    off_task: float = 0.0  # share of examples that answer with unrelated words
    no_reasoning: float = 0.0  # share of examples that give the answer at once


@dataclass(frozen=True)
class Model:
    """A causal language model: a hub id or a local directory with its revision, or a recipe."""

    path: str | None = None
    revision: str | None = None  # hub: commit of 40 hex digits; directory: sha256 of its files
    recipe: Recipe | None = None
    shape: Shape = field(default_factory=Shape)
    eos: int = -1


@dataclass(frozen=True)
class Vocabulary:
    """Token ids; those from `valid` on are untrained padding rows of the embedding."""

    size: int = 0
    valid: int = 0


@dataclass(frozen=True)
class PromptTemplate:
    """How a problem becomes token ids, the same for student and teacher."""

    kind: str = "chat"  # chat: the tokenizer's chat template; plain: the problem as it is
    system: str | None = None
    enable_thinking: bool = False


@dataclass(frozen=True)
class DataFile:
    """A JSON Lines file below `data_dir`, by content."""

    file: str = ""
    sha256: str = ""


@dataclass(frozen=True)
class Data:
    """Training prompts, in one deterministic order for all methods."""

    source: str = "jsonl"  # arithmetic | jsonl | openthoughts
    files: list[DataFile] = field(default_factory=list)
    path: str | None = None  # openthoughts: hub id, or a local parquet or JSON Lines file
    revision: str | None = None
    order_seed: int = 0


@dataclass(frozen=True)
class Optimizer:
    """AdamW with a cosine warmup to a constant rate."""

    lr: float = 1e-5
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    clip: float = 1.0
    warmup_steps: int = 15


@dataclass(frozen=True)
class Sft:
    """The supervised stage on teacher responses, shared by the trials that start from it."""

    updates: int = 50
    checkpoints: list[int] = field(default_factory=lambda: [15, 25, 50])
    after: str = "restart"  # restart: an ordinary run of all steps; continue: from prompt batch K on


@dataclass(frozen=True)
class Training:
    """On-policy distillation; one optimizer update per batch."""

    steps: int = 400
    prompts_per_step: int = 64
    samples_per_prompt: int = 4
    max_prompt_tokens: int = 1024
    max_response_tokens: int = 7168
    objective: str = "renormalized"
    top_k: int = 16
    checkpoint_every: int = 20
    optimizer: Optimizer = field(default_factory=Optimizer)
    sft: Sft = field(default_factory=Sft)


@dataclass(frozen=True)
class BenchmarkRun:
    """How one benchmark is evaluated: n samples for each of its first `limit` problems (all when null).

    Its problems come from the declared file below `data_dir`, or from `path` where that is set.
    """

    n: int = 1
    limit: int | None = None
    path: str | None = None  # hub id, or a local JSON Lines or parquet file
    revision: str | None = None  # hub: commit of 40 hex digits; file: its sha256
    subset: str | None = None  # hub: name of the configuration, for data sets that have several
    split: str = "test"  # hub


@dataclass(frozen=True)
class Evaluation:
    """pass@1 of checkpoints by sampling. How many samples which checkpoint gets is in no id: records are extended."""

    max_response_tokens: int = 8192
    temperature: float = 1.0
    seed: int = 0
    budget: str = "full"  # full: all n samples of every checkpoint | adaptive: of those still in their family's race
    error: float = 0.05  # bound on the probability that a race drops the checkpoint that `full` would select
    rescore: bool = True  # the selected checkpoints again on fresh samples
    benchmarks: dict[str, BenchmarkRun | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Probe:
    """The continuation probe of the untrained student (paper, Figure "continuation gain")."""

    prompts: int = 64  # the first training prompts whose gold is known
    prefixes: int = 4  # rollouts of each behavior for a prompt
    continuations: int = 4  # of each truncated rollout, by the student and by the teacher
    lengths: list[float] = field(default_factory=lambda: [0.25, 0.5, 0.75])  # tokens; below 1: of the response limit
    epsilon: float | None = None  # budget of the trust region; null: the largest ε₀ of the experiment


@dataclass(frozen=True)
class Engine:
    """What generates and what learns."""

    rollout: str = "torch"
    learner: str = "torch"
    dtype: str = "bfloat16"


@dataclass(frozen=True)
class Setup:
    """A student–teacher pair with its data, prompt and benchmarks (a file in `setups/`)."""

    title: str = ""
    student: Model = field(default_factory=Model)
    teacher: Model = field(default_factory=Model)
    tokenizer: str | None = None  # characters | bytes for embedded models; null: the teacher's
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

    mode: str = "inline"  # inline | colocated | split
    gpus: int = 0  # GPUs of one trial
    cpus: float = 1.0  # CPU cores of one trial, its driver included


@dataclass(frozen=True)
class Runtime:
    """Settings that change speed or memory, never a unit's identity."""

    placement: Placement = field(default_factory=Placement)
    # Sequences decoded at once; null: what fits on the GPU at full length, 512 on CPUs.
    rollout_batch: int | None = None
    draft_length: int | None = None  # γ while blending; null: from ε and the sizes of the two models
    micro_batch_tokens: int = 16384  # padded tokens in one forward pass of scoring or learning
    keep: str = "best"  # checkpoints kept: best (all until it is known which that is) | all
    worker_timeout_s: float = 7200.0
    grader_deadline_s: float = 5.0
    wandb: str = "auto"  # auto: online when logged in, else offline | online | offline | disabled
    wandb_project: str = "trb"
    rollout_texts: int = 4  # training rollouts whose text is written, per step


@dataclass(frozen=True)
class ExperimentFile:
    """An experiment file as written; `load.load_experiment` resolves its setups."""

    name: str = ""
    setups: list[str] = field(default_factory=list)
    methods: dict[str, Any] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=lambda: [0])
    data_dir: str | None = None
    engine: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)
    probe: dict[str, Any] = field(default_factory=dict)
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

    def seeds_of(self, method: str | None) -> list[int]:
        """The seeds of a method's trials; None, for units without a method, gives the experiment's own."""
        return self.seeds if method is None else self.method_seeds.get(method, self.seeds)
