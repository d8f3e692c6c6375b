"""Runs an SGLang engine in its own process: starts, calls, loads, ends and restarts it.

Weights go to it as a model folder, or as tensors in one flat memory without a name: on the GPU that
both share, or else of the host. Either is gone with this process, however it ends. In the engine's
process, `private` has SGLang load them and empties the prefix cache. A dead or silent process is
replaced by a new one in the same weights. That costs only time, since responses depend on their own
requests alone. After one that ran out of memory the new one has less (`calls.leaner`).
"""

from __future__ import annotations

import functools
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from orchestrator.engines.device import free_gib, wait_for_memory
from orchestrator.engines.interface import Owner, WeightsRef
from orchestrator.engines.memory import GIB, RESERVED_SLOTS
from orchestrator.engines.sglang import toolchain
from orchestrator.errors import EngineLost, EngineOutOfMemory
from orchestrator.liveness import heartbeat
from orchestrator.liveness.children import Child, ChildFailed, ChildLost, Result

# --- messages between a worker and the process of its SGLang engine: plain data, known to both ---


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
class TensorSpan:
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
    spans: list[TensorSpan]
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


# --- runs an SGLang engine in its own process: starts, calls, loads, ends and restarts it ---


MODULE = "orchestrator.engines.sglang.server"
ALIGNMENT = 256  # of a tensor in a flat memory, bytes
Opener = tuple[Callable[..., Any], tuple[Any, ...]]
# Texts of torch, CUDA, Triton and NCCL, of torch's memory saver, whose error 2 is a lack of memory,
# and of SGLang 0.5.20 (`model_executor/pool_configurator.py`). Its "Decode out of memory" and the
# like (`mem_cache/allocation.py`) tell of a full cache, for which less memory would be no help.
SHORTAGE = re.compile(
    r".*(?:OutOfMemoryError|C(?:UDA|uda)\b.*out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|(?:CUresult|cudaError) error: 2\b|Not enough memory\. Please try|can't allocate memory).*"
)


logger = logging.getLogger(__name__)


class EngineRefused(RuntimeError):
    """The engine answers that it cannot serve a call."""


class EngineProcess:
    """One engine. Each call sets a limit on silence, in seconds."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._child: Child | None = None
        self._printed: Any = None  # the file that the process prints into
        self._weights: WeightsRef | None = None  # to be in use; None for the initial ones
        self._loads = 0

    @property
    def pid(self) -> int | None:
        """The id of the running process, else None."""
        return None if self._child is None else self._child.pid

    @property
    def requests(self) -> int:
        """How many requests run at once."""
        return self._settings.requests

    @property
    def version(self) -> str:
        """The name of the weights that responses must come from."""
        return "default" if self._weights is None else f"{self._loads}-step{self._weights.step}"

    def start(self) -> None:
        """Start the engine in the last loaded weights, unless it is running. Raises EngineLost.

        On a GPU, first wait until its memory is free: a previous engine may just have ended.
        """
        if self._child is not None:
            return
        settings = self._settings
        if settings.needed_gib is not None:
            wait_for_memory(settings.needed_gib, "an SGLang engine")
        environment: dict[str, str | None] = {"HF_HUB_OFFLINE": "1"}
        if settings.gpu:
            environment |= toolchain.environment(os.environ)
        else:
            environment["OMP_NUM_THREADS"] = "1"
        environment |= toolchain.kernel_environment(
            settings.attention, settings.dtype, settings.gpu
        )
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._child = Child(MODULE, "the SGLang engine", environment, self._printed)
        with heartbeat.loading():
            self._ask(settings)
            if self._weights is not None:
                self._put(self._weights)

    def start_in(self, weights: WeightsRef) -> None:
        """Let these weights be in use after the next start."""
        self._weights = weights
        self._loads += 1  # a name of its own: the same step may be loaded twice, in other weights

    def load(self, weights: WeightsRef) -> None:
        """Sample from these weights from now on. Raises EngineLost, or EngineRefused if unfit."""
        self.start_in(weights)
        if self._child is None:
            self.start()
        else:
            self._put(weights)

    def digests(self) -> dict[str, str]:
        """Digests of the tensors in the engine by Hugging Face name."""
        self.start()
        return self._ask(Digest())

    def generate(self, call: Generate, silence_s: float) -> Iterator[Answer]:
        """Yield responses as they finish. Ends the process if the caller does not take them all."""
        self.start()
        with self._call() as child:
            child.send(call)
            while not isinstance(answer := child.receive(silence_s), Result):
                yield answer

    def end(self) -> None:
        """End the process and all its children."""
        if self._child is not None:
            self._child.end()
            self._child = None
        if self._printed is not None:
            self._printed.close()
            self._printed = None

    # --- weights ---

    def _put(self, weights: WeightsRef) -> None:
        """Have the engine load weights: of a model folder, or tensors."""
        if isinstance(weights.place, Path):
            self._ask(Load(str(weights.place), self.version))
            return
        spans = layout(weights.place)
        by_handle = self._settings.by_handle and free_gib() * GIB > 2 * spans[-1].end
        try:
            memory = device_memory if by_handle else host_memory
            with memory(spans, weights.place) as opener:
                self._ask(LoadTensors(opener, spans, self.version))
        except (EngineLost, EngineRefused, torch.OutOfMemoryError) as error:
            if not by_handle:
                raise
            # A driver may not share memory between processes, as in some virtual machines.
            logger.warning("%s; from now on weights go through the host's memory", error)
            self._settings = replace(self._settings, by_handle=False)
            if self._child is None:
                self.start()  # in these weights
            else:
                self._put(weights)

    # --- calls ---

    def _ask(self, call: Settings | Load | LoadTensors | Digest) -> Any:
        with self._call() as child:
            return child.ask(call, self._settings.start_s)

    @contextmanager
    def _call(self) -> Iterator[Child]:
        """The process for one call. It is ended unless the call is answered to its end.

        A caller may stop early, and answers that it did not read would be taken for the next call's.
        """
        assert self._child is not None
        whole = False
        try:
            yield self._child
            whole = True
        except ChildFailed as failed:
            if isinstance(failed.error, EngineOutOfMemory) or SHORTAGE.search(str(failed)):
                raise self._shortage("", str(failed.error)) from failed
            raise EngineRefused(f"SGLang: {failed}") from failed
        except ChildLost as lost:
            printed = f"SGLang printed:\n{lost.printed}\n" if lost.printed else ""
            if named := SHORTAGE.findall(lost.printed):
                raise self._shortage(printed, named[-1].strip()) from lost
            raise EngineLost(f"{printed}{lost}") from lost
        finally:
            if not whole:
                self.end()

    def _shortage(self, printed: str, named: str) -> EngineOutOfMemory:
        """The error of an engine that ran out of memory; the next one gets less."""
        self._settings = leaner(self._settings)
        return EngineOutOfMemory(f"{printed}the SGLang engine ran out of memory: {named}")


def layout(tensors: Mapping[str, Tensor]) -> list[TensorSpan]:
    """A place for each tensor, one behind the other."""
    spans: list[TensorSpan] = []
    start = 0
    for name, tensor in tensors.items():
        end = start + tensor.nbytes
        dtype = str(tensor.dtype).removeprefix("torch.")
        spans.append(TensorSpan(name, dtype, tuple(tensor.shape), start, end))
        start = -(-end // ALIGNMENT) * ALIGNMENT
    return spans


@torch.no_grad()
def fill(flat: Tensor, spans: list[TensorSpan], tensors: Mapping[str, Tensor]) -> None:
    """Copy each tensor to its place."""
    for span in spans:
        tensor = tensors[span.name]
        place = flat[span.start : span.end].view(tensor.dtype).view(tensor.shape)
        place.copy_(tensor, non_blocking=True)


@contextmanager
def host_memory(spans: list[TensorSpan], tensors: Mapping[str, Tensor]) -> Iterator[Opener]:
    """The tensors in memory of the host, which no file system names or limits, as /dev/shm would."""
    size = spans[-1].end
    descriptor = os.memfd_create("trb-weights")
    try:
        os.truncate(descriptor, size)
        here = f"/proc/self/fd/{descriptor}"
        fill(torch.from_file(here, True, size, dtype=torch.uint8), spans, tensors)
        opener = functools.partial(torch.from_file, dtype=torch.uint8)
        yield opener, (f"/proc/{os.getpid()}/fd/{descriptor}", False, size)
    finally:
        os.close(descriptor)


@contextmanager
def device_memory(spans: list[TensorSpan], tensors: Mapping[str, Tensor]) -> Iterator[Opener]:
    """The tensors in memory of this process's GPU, for a process on it. Never run on a GPU.

    While an engine loads, its KV cache is released, or the learner beside it makes no pass: this takes
    that memory.
    """
    flat = torch.empty(spans[-1].end, dtype=torch.uint8, device="cuda")
    fill(flat, spans, tensors)
    torch.cuda.synchronize()
    try:
        yield reduce_tensor(flat)
    finally:
        del flat
        torch.cuda.ipc_collect()  # the engine has closed its handle, or is gone
        torch.cuda.empty_cache()
