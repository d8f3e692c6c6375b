"""Runs an SGLang engine in its own process: starts, calls, loads, ends and restarts it.

Weights go to it as a model folder; tensors are written to one in shared memory first. In the
engine's process, `private.update_weights` has SGLang read the folder and empties the prefix cache.
A dead or silent process is replaced by a new one in the same weights. That costs only time, since
responses depend on their own requests alone. After one that ran out of memory the new one has less
(`calls.leaner`).
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from orchestrator.engines.device import wait_for_memory
from orchestrator.engines.interface import WeightsRef
from orchestrator.engines.sglang import attention, toolchain
from orchestrator.engines.sglang.calls import Answer, Digest, Generate, Load, Settings, leaner
from orchestrator.errors import EngineLost, EngineOutOfMemory
from orchestrator.liveness import pulse
from orchestrator.liveness.children import Child, ChildFailed, ChildLost, Result

MODULE = "orchestrator.engines.sglang.server"
START_S = 600.0  # to load some GB from a network file system, and to compile kernels
SHARED_MEMORY = Path("/dev/shm")
# Texts of torch, CUDA, Triton and NCCL, of torch's memory saver, whose error 2 is a lack of memory,
# and of SGLang 0.5.20 (`model_executor/pool_configurator.py`). Its "Decode out of memory" and the
# like (`mem_cache/allocation.py`) tell of a full cache, for which less memory would be no help.
SHORTAGE = re.compile(
    r".*(?:OutOfMemoryError|C(?:UDA|uda)\b.*out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|(?:CUresult|cudaError) error: 2\b|Not enough memory\. Please try|can't allocate memory).*"
)


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
        environment = {"HF_HUB_OFFLINE": "1"}
        if settings.gpu:
            environment |= toolchain.environment(os.environ)
        else:
            environment["OMP_NUM_THREADS"] = "1"
        environment |= attention.environment(settings.attention, settings.dtype, settings.gpu)
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._child = Child(MODULE, "the SGLang engine", environment, self._printed)
        with pulse.loading():
            self._ask(settings)
            if self._weights is not None:
                self._put(self._weights)

    def load(self, weights: WeightsRef) -> None:
        """Sample from these weights from now on. Raises EngineLost, or EngineRefused if unfit."""
        self._weights = weights
        self._loads += 1  # a name of its own: the same step may be loaded twice, in other weights
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
        """Have the engine read weights from a folder: their own, or a copy in shared memory."""
        if isinstance(weights.place, Path):
            self._ask(Load(str(weights.place), self.version))
            return
        folder = Path(tempfile.mkdtemp(prefix="trb-weights-", dir=_roomy(weights.place)))
        try:
            tensors = {name: tensor.contiguous() for name, tensor in weights.place.items()}
            save_file(tensors, folder / "model.safetensors")
            shutil.copy(Path(self._settings.model) / "config.json", folder)
            self._ask(Load(str(folder), self.version))
        finally:
            shutil.rmtree(folder)

    # --- calls ---

    def _ask(self, call: Settings | Load | Digest) -> Any:
        with self._call() as child:
            return child.ask(call, START_S)

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


def _roomy(tensors: Mapping[str, Tensor]) -> Path | None:
    """The folder of shared memory if the tensors fit there, else None for the temporary folder."""
    needed = sum(tensor.nbytes for tensor in tensors.values())
    if SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > 1.1 * needed:
        return SHARED_MEMORY
    return None
