"""What engines and their users agree on: a sampler, a scorer and a trainer, and what passes between them. No torch.

An engine is opened for a job and gives out its roles; those of one process share what they hold. Which engines exist
and what each can do stands in `engines.catalog`; their names are `config.EngineName`, and each has a folder beside this
file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from orchestrator.config import Runtime, Setup
from orchestrator.engines.memory import ONE_GPU, Gpus
from orchestrator.policy.spec import Behavior, Objective

if TYPE_CHECKING:
    from torch import Tensor

    from orchestrator.rollouts import Request, Rollouts, TeacherScores

Owner = Literal["student", "teacher"]  # of a model: whose stop id it uses


@dataclass(frozen=True)
class ModelFolder:
    """A model in a folder in Hugging Face layout.

    `files` is the sha256 of those of the folder's files that are known. They are verified when the model is opened;
    `remedy` is what to do about a wrong one. Of a model of a hub, `hub` is its id and commit, `owner/name@0f3a…`: each
    machine has a folder of its own.
    """

    path: str
    files: Mapping[str, str] = field(default_factory=dict)
    remedy: str = ""
    hub: str = ""


@dataclass(frozen=True)
class Job:
    """What an engine is opened for.

    `initial` is the student that sampling and training start from, which stops as `stops_as` does. `steps` are those
    of the whole training; a job that does not train has none, needs no teacher, and keeps no memory free for them.
    `ranks` is over how many processes an engine that can shards the models that score and learn, and `on` are the GPUs
    over which one that can spreads the model that samples. Roles that share GPUs take turns on them (`takes_turns`):
    each gives back the memory that it needs only for its own work.
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


@dataclass(frozen=True)
class WeightsRef:
    """The student's weights after `step` steps, wherever they lie: a model folder, or tensors by Hugging Face name.

    Tensors stay in the process, or in the memory that processes share: whoever passes a reference on passes a handle
    to it (`workers.roles.Handle`).
    """

    step: int
    place: Path | Mapping[str, Tensor]


@dataclass(frozen=True)
class Limits:
    """What sampling is allowed to do and asked to keep.

    `support` is the k of the student's top-k ids that are kept of each prefix; 0 keeps none. No more than `at_once`
    sequences are decoded together, if that is given: it decides the time, never the result.
    """

    max_tokens: int
    support: int = 0
    at_once: int | None = None


class Sampler(Protocol):
    """Samples responses; a call changes nothing, so that a lost one may be made again.

    The same weights, requests, behavior and limits give the same tokens where the engine is `keyed`
    (`engines.catalog`), else tokens of the same law.
    """

    def start(self, teacher: bool) -> None:
        """Load the student, and the teacher where behaviors will need it."""
        ...

    def load(self, weights: WeightsRef) -> None:
        """Sample from these weights of the student from now on."""
        ...

    def release(self) -> None:
        """Give back the memory that only sampling needs; what is loaded or sampled next takes it again.

        The weights that were loaded are forgotten.
        """
        ...

    def log_probs(self, ids: Sequence[int]) -> list[float]:
        """log p at T = 1 of each of the ids but the first, after those before it, under the loaded weights."""
        ...

    def sample(self, requests: Sequence[Request], behavior: Behavior, limits: Limits) -> Iterator[Rollouts]:
        """One response to each request, some at a time, in whatever order they are finished.

        Teacher scores are included where the behavior needed the teacher and a support is kept.
        """
        ...


class Scorer(Protocol):
    """Reads the teacher at the prefixes of finished rollouts."""

    def start(self) -> None:
        """Load the teacher."""
        ...

    def score(self, rollouts: Rollouts) -> TeacherScores:
        """log q of the rollouts' own support ids and tokens, entropy and overlap at every visited prefix."""
        ...


class Trainer(Protocol):
    """A student in training, on one device or many. Its calls change it: a lost one is restored from a folder."""

    def step(self, rollouts: Rollouts, scores: TeacherScores | None, goal: Objective, step: int) -> dict[str, float]:
        """Update number `step`, counted from 0; what it logs, by the columns of `metrics.jsonl`."""
        ...

    def log_probs(self, ids: Sequence[int]) -> list[float]:
        """As `Sampler.log_probs`, under the weights that `export` would write."""
        ...

    def publish(self, step: int) -> WeightsRef:
        """The weights after `step` steps, for samplers to load."""
        ...

    def export(self, folder: Path) -> None:
        """Write the model in Hugging Face layout, in the forward pass's dtype."""
        ...

    def save(self, folder: Path) -> None:
        """Write what `restore` needs to go on exactly."""
        ...

    def restore(self, folder: Path) -> None:
        """Go on from what `save` wrote."""
        ...


class Engine(Protocol):
    """An engine opened in one process. Roles it cannot play raise ValueError; see `engines.catalog`."""

    def sampler(self, owner: Owner = "student") -> Sampler:
        """A sampler from the student, or from the teacher that answers prompts itself."""
        ...

    def scorer(self) -> Scorer: ...

    def trainer(self) -> Trainer: ...

    def close(self) -> None:
        """Let go of the models, and end the processes that it started. Its roles are of no use afterwards."""
        ...


class OpenEngine(Protocol):
    """What the module of an engine has under the name `open_engine`."""

    def __call__(self, job: Job) -> Engine: ...
