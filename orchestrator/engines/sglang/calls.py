"""What goes between a worker and the process of its SGLang engine: plain data, known to both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from orchestrator.engines.interface import Owner

LOG_PROBS, SUPPORT = "log_probs", "support"  # what is kept of each token: (log p, log μ), and K ids
ROWS = "rows"  # or, while the teacher decodes, a record; see `blending_rows`
RETRACTIONS, CACHED = "num_retractions", "cached_tokens"  # of a request: how often it had to make room; prefix hits
KEPT = (LOG_PROBS, SUPPORT, ROWS, RETRACTIONS, CACHED)


@dataclass(frozen=True)
class Second:
    """The teacher in the student's engine: its folder and γ of the longest rounds.

    Prompts are read `prefilled` tokens at a time; None leaves that to SGLang.
    """

    model: str
    drafted: int
    prefilled: int | None = None


@dataclass(frozen=True)
class Settings:
    """What an engine is started with.

    The cache holds `cache_tokens`, of both models where two share it, and `requests` run at once. `needed_gib` of a
    GPU's memory are free before the engine starts; None without a GPU. One that `takes_turns`
    on its GPU gives the cache's memory back outside of calls. Over `shards` processes, one for each GPU, every layer is
    shared out (tensor parallelism). `attention` names SGLang's attention kernels; None leaves them to SGLang.
    """

    model: str
    dtype: str
    owner: Owner
    valid: int
    student_eos: int
    teacher_eos: int
    context: int  # longest prompt and response, in tokens
    gpu: bool
    needed_gib: float | None
    cache_tokens: int
    requests: int
    takes_turns: bool
    second: Second | None = None
    shards: int = 1
    attention: str | None = None


@dataclass(frozen=True)
class Draw:
    """What the sampler is told of a request, beside its prompt.

    `seed`, below 2⁶³, keys its uniforms, `prompt` is the length of its prompt, `tau` the temperature. `support` is how
    many ids are kept. Where `forced` has ids, these are the response, whatever their probability.
    """

    seed: int
    prompt: int
    tau: float = 1.0
    support: int = 0
    forced: tuple[int, ...] = ()

    def as_parameters(self) -> dict[str, Any]:
        """Plain data, for the request."""
        return {**vars(self), "forced": list(self.forced)}


class Drawing(Protocol):
    """How a response is drawn, as an engine of that kind understands it."""

    def as_parameters(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Ask:
    """One response that is wanted: the ids of its prompt and how it is drawn. `index` is its number in the call."""

    index: int
    prompt: tuple[int, ...]
    draw: Drawing


@dataclass(frozen=True)
class Load:
    """Call: sample from the weights in this folder; they are named by `version`. Answer: None."""

    folder: str
    version: str


@dataclass(frozen=True)
class Generate:
    """Call: responses of at most `max_tokens` that end with `stop`. Answers: an `Answer` each, then None."""

    asks: list[Ask]
    max_tokens: int
    stop: tuple[int, ...]
    at_once: int | None


@dataclass(frozen=True)
class Answer:
    """A finished response; `stopped` tells whether one of the stop ids ended it. `kept` is by the names in KEPT."""

    index: int
    tokens: list[int]
    stopped: bool
    version: str
    kept: dict[str, Any]


@dataclass(frozen=True)
class Sign:
    """The engine is at work."""


@dataclass(frozen=True)
class Failed:
    """The call could not be answered."""

    reason: str
