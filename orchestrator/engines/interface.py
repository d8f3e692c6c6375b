"""The interface of engines: sampler, scorer and trainer, and the data they exchange. No torch.

An engine is opened for a job and gives out its roles; roles in one process share models. See
`engines.catalog` for the engines and their abilities; `rules.EngineName` has their names. Each
engine has a folder beside this file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from orchestrator.config import Runtime, Setup
from orchestrator.engines.memory import ONE_GPU, Gpus, Situation
from orchestrator.policy.spec import Behavior, Objective

if TYPE_CHECKING:
    from torch import Tensor

    from orchestrator.rollouts import Request, Rollouts, TeacherScores

Owner = Literal["student", "teacher"]  # of a model: selects the stop id
OWNERS: tuple[Owner, ...] = ("student", "teacher")


@dataclass(frozen=True)
class ModelFolder:
    """A model in a folder in Hugging Face layout.

    `files` maps known files to their sha256, which an engine verifies when it opens the model;
    `remedy` is the advice in the error about a wrong file. `hub` is a hub model's id and commit,
    `owner/name@0f3a…`; each machine has its own folder of such a model.
    """

    path: str
    files: Mapping[str, str] = field(default_factory=dict)
    remedy: str = ""
    hub: str = ""


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters that a trainer updates instead of the weights: W + (α/r)·B·A.

    Every linear layer but the head has one of rank r = `rank`. `lr` replaces the optimizer's rate;
    `seed` decides the numbers at which A starts.
    """

    rank: int
    alpha: int
    lr: float
    seed: int = 0


@dataclass(frozen=True)
class Job:
    """The work for which an engine is opened.

    Sampling and training start from the student `initial`, which ends its responses with the stop
    ids of `stops_as`. `steps` counts the whole training. A job that does not train has no steps,
    needs no teacher, and reserves no memory for either. With `lora` the trainer updates adapters
    alone. An engine that shards spreads the scoring and learning models over `ranks` processes, or
    the sampling model over the GPUs `on`. Roles that share GPUs take turns (`takes_turns`): each
    releases the memory that only its own work needs, unless all of it fits side by side beside
    the engines of the situations in which the trial samples (`sampling`; `engines.budget`). Earlier
    attempts at the work ran out of memory `shortages` times.
    """

    setup: Setup
    runtime: Runtime
    initial: ModelFolder
    teacher: ModelFolder | None = None
    steps: int = 0
    trains: bool = True
    stops_as: Owner = "student"
    ranks: int = 1
    on: Gpus = ONE_GPU
    takes_turns: bool = False
    lora: Lora | None = None
    sampling: tuple[Situation, ...] = ()
    shortages: int = 0

    def folder(self, owner: Owner) -> ModelFolder:
        """The folder of a model."""
        folder = self.initial if owner == "student" else self.teacher
        assert folder is not None, "this job was opened without a teacher"
        return folder


@dataclass(frozen=True)
class WeightsRef:
    """The student's weights after `step` steps: a model folder, or tensors by Hugging Face name.

    Tensors stay in the process or in shared memory; roles pass handles to references
    (`workers.roles.Handle`).
    """

    step: int
    place: Path | Mapping[str, Tensor]


@dataclass(frozen=True)
class Limits:
    """Limits of a sampling call, and the size of the recorded support.

    `support` is the k of the student's top-k ids recorded at each prefix; 0 records none. At most
    `at_once` sequences are decoded together, if given, which changes the time and never the result.
    """

    max_tokens: int
    support: int = 0
    at_once: int | None = None


class Sampler(Protocol):
    """Samples responses. Calls of `sample` change no state: a lost one may be repeated.

    The same weights, requests, behavior and limits give the same tokens if the engine is `keyed`
    (`engines.catalog`), else tokens of the same law.
    """

    def start(self, teacher: bool) -> None:
        """Load the student, and the teacher if behaviors will need it."""
        ...

    def load(self, weights: WeightsRef) -> None:
        """Sample from these weights of the student from now on."""
        ...

    def release(self) -> None:
        """Release the memory that only sampling needs, until the next load or sample.

        Loaded weights are forgotten.
        """
        ...

    def log_probs(self, ids: Sequence[int]) -> list[float]:
        """log p at T = 1 of each id but the first given its predecessors, in the loaded weights."""
        ...

    def log_probs_each(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """`log_probs` of each of some sequences of one length, read by the code that samples."""
        ...

    def digests(self) -> Mapping[str, str]:
        """Digests of the loaded tensors by Hugging Face name (`common.tensor_digests`).

        A tensor that the engine keeps in a form of its own may be missing.
        """
        ...

    def sample(
        self, requests: Sequence[Request], behavior: Behavior, limits: Limits
    ) -> Iterator[Rollouts]:
        """Yield one response to each request, some at a time, in the order in which they finish.

        They include teacher scores if the behavior needs the teacher and a support is recorded.
        """
        ...


class Scorer(Protocol):
    """Reads the teacher at the prefixes of finished rollouts."""

    def start(self) -> None:
        """Load the teacher."""
        ...

    def score(self, rollouts: Rollouts) -> TeacherScores:
        """log q of support ids and tokens, entropy and overlap at every visited prefix."""
        ...


class Trainer(Protocol):
    """A student in training, on one or many devices. Calls change it; `restore` rebuilds it."""

    def step(
        self, rollouts: Rollouts, scores: TeacherScores | None, goal: Objective, step: int
    ) -> dict[str, float]:
        """Make update number `step`, counted from 0; returns columns of `metrics.jsonl`."""
        ...

    def log_probs(self, ids: Sequence[int]) -> list[float]:
        """As `Sampler.log_probs`, under the weights that `export` would write."""
        ...

    def score(self, rollouts: Rollouts) -> TeacherScores:
        """As `Scorer.score`, by the student in training: log p, its own entropy; changes nothing."""
        ...

    def publish(self, step: int) -> WeightsRef:
        """The weights after `step` steps, for samplers to load before the next update.

        A trainer that takes turns then overwrites them.
        """
        ...

    def export(self, folder: Path) -> Mapping[str, str]:
        """Write the model in Hugging Face layout, in the forward pass's dtype.

        Returns the digest of each tensor by its name (`common.tensor_digests`).
        """
        ...

    def save(self, folder: Path) -> None:
        """Write the state from which `restore` continues exactly."""
        ...

    def restore(self, folder: Path) -> None:
        """Continue from the state that `save` wrote."""
        ...


class Engine(Protocol):
    """An engine opened in one process. Raises ValueError for a role that its catalog row lacks."""

    def sampler(self, owner: Owner = "student") -> Sampler:
        """A sampler from the student, or from the teacher, which then answers prompts itself."""
        ...

    def scorer(self) -> Scorer: ...

    def trainer(self) -> Trainer: ...

    def close(self) -> None:
        """Drop the models and end the engine's processes. Its roles are unusable afterwards."""
        ...


class OpenEngine(Protocol):
    """The function `open_engine` in the module of an engine."""

    def __call__(self, job: Job) -> Engine: ...
