"""Messages between a worker and the process of its SGLang engine: plain data, known to both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from orchestrator.engines.budget import RESERVED_SLOTS
from orchestrator.engines.interface import Owner

ROWS = "rows"  # of each token: a record of `blending_rows`, as bytes
RETRACTIONS = "num_retractions"  # of a request
CACHED = "cached_tokens"  # of a request: its hits in the prefix cache
KEPT = (ROWS, RETRACTIONS, CACHED)


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
    """The settings with which an engine starts.

    The cache holds `cache_tokens`, of both models if two share it, and `requests` run at once.
    `needed_gib` of the GPU must be free before the start; None without a GPU. An engine that
    `takes_turns` on its GPU releases the cache's memory outside of calls. `shards` processes, one
    per GPU, split every layer (tensor parallelism). `attention` names SGLang's attention kernels;
    None leaves them to SGLang. With a `precise_head` logits are made in float32. With the
    `kernel` Triton draws from them. The start and each load may take `start_s`. New weights come to
    it `by_handle` of GPU memory, else through memory of the host. Engines of the same job ran out of
    memory `shortages` times before (`leaner`).
    """

    model: str
    dtype: str
    owner: Owner
    valid: int
    student_eos: int | list[int]
    teacher_eos: int | list[int]
    context: int  # longest prompt and response, in tokens
    gpu: bool
    needed_gib: float | None
    cache_tokens: int
    requests: int
    takes_turns: bool
    second: Second | None = None
    start_s: float = 600.0
    shards: int = 1
    attention: str | None = None
    precise_head: bool = True
    kernel: bool = False
    by_handle: bool = False
    shortages: int = 0


def leaner(settings: Settings) -> Settings:
    """The settings for the next start of an engine that ran out of memory.

    The first shortage costs a tenth of the cache, which still holds one longest sequence. Each later
    one halves the requests as well.
    """
    longest = settings.context + RESERVED_SLOTS
    tokens = min(settings.cache_tokens, max(longest, settings.cache_tokens * 9 // 10))
    requests = settings.requests if not settings.shortages else max(1, settings.requests // 2)
    shortages = settings.shortages + 1
    return replace(settings, cache_tokens=tokens, requests=requests, shortages=shortages)


@dataclass(frozen=True)
class Draw:
    """The sampler's parameters of a request, beside its prompt.

    `seed`, below 2⁶³, keys the uniforms, `prompt` is the length of the prompt, `tau` the
    temperature, and `support` the number of recorded ids. Any `forced` ids are the response,
    whatever their probability.
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
    """Sampling parameters of a response: a `Draw`, or an order of the blending engine."""

    def as_parameters(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Ask:
    """A requested response: prompt ids and sampling parameters. `index` numbers it in a call."""

    index: int
    prompt: tuple[int, ...]
    draw: Drawing


@dataclass(frozen=True)
class Load:
    """Call: sample from the weights in this folder, named `version`."""

    folder: str
    version: str


@dataclass(frozen=True)
class Span:
    """The bytes from `start` to `end` of a flat memory: a tensor of `dtype`, such as `bfloat16`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class LoadTensors:
    """Call: sample from the tensors in one flat memory of the caller, named `version`.

    `opener` is a function with its arguments. In another process it returns that memory as a tensor
    of bytes.
    """

    opener: tuple[Callable[..., Any], tuple[Any, ...]]
    spans: list[Span]
    version: str


@dataclass(frozen=True)
class Digest:
    """Call: digests of the tensors in the engine, by Hugging Face name. Its result is a dict."""


@dataclass(frozen=True)
class Generate:
    """Call: responses of up to `max_tokens`, or ended by `stop`. Its messages are `Answer`s."""

    asks: list[Ask]
    max_tokens: int
    stop: tuple[int, ...]
    at_once: int | None


@dataclass(frozen=True)
class Answer:
    """A finished response; `stopped` tells if a stop id ended it. `kept` has keys from KEPT."""

    index: int
    tokens: list[int]
    stopped: bool
    version: str
    kept: dict[str, Any]
