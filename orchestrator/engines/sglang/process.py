"""Runs an SGLang engine in its own process, for a worker: starts, calls, ends and restarts it.

A dead or silent process is replaced by a new one in the same weights. That costs only time, since
responses depend on their own requests alone.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

import orchestrator
from orchestrator.engines.device import wait_for_memory
from orchestrator.engines.interface import WeightsRef
from orchestrator.engines.sglang import attention, toolchain
from orchestrator.engines.sglang.calls import Answer, Failed, Generate, Load, Settings, Sign
from orchestrator.errors import EngineLost
from orchestrator.records import pulse
from orchestrator.records.processes import group_members

START_S = 600.0  # to load some GB from a network file system, and to compile kernels
ENDS_S = 10.0
LOOK_S = 1.0
GONE_LOOK_S = 0.02
SHARED_MEMORY = Path("/dev/shm")
LAST_CHARACTERS = 20_000  # of output; a scheduler's traceback comes before two of its parents'


class EngineRefused(RuntimeError):
    """The engine answers that it cannot serve a call."""


class EngineProcess:
    """One engine. Each call sets a limit on silence, in seconds."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._printed: Any = None  # the file that the process prints into
        self._weights: WeightsRef | None = None  # to be in use; None for the initial ones
        self._loads = 0

    @property
    def pid(self) -> int | None:
        """The id of the running process, else None."""
        return None if self._process is None else self._process.pid

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
        if self._process is not None:
            return
        if self._settings.needed_gib is not None:
            wait_for_memory(self._settings.needed_gib, "an SGLang engine")
        here, there = socket.socketpair()
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        root = str(Path(orchestrator.__file__).parent.parent)
        paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
        settings = self._settings
        environment |= (
            toolchain.environment(os.environ) if settings.gpu else {"OMP_NUM_THREADS": "1"}
        )
        environment |= attention.environment(settings.attention, settings.dtype, settings.gpu)
        with there:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "orchestrator.engines.sglang.server",
                    str(there.fileno()),
                    str(os.getpid()),
                ],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # to end it together with the processes that it starts
            )
        self._connection = Connection(here.detach())
        with pulse.loading():
            self._send(self._settings)
            self._receive_nothing_but_the_end(START_S)
            if self._weights is not None:
                self._put(self._weights)

    def load(self, weights: WeightsRef) -> None:
        """Sample from these weights from now on. Raises EngineLost, or EngineRefused if unfit."""
        self._weights, self._loads = weights, self._loads + 1
        if self._process is None:
            self.start()
        else:
            self._put(weights)

    def generate(self, call: Generate, silence_s: float) -> Iterator[Answer]:
        """Yield responses as they finish. Ends the process if the caller does not take them all."""
        self.start()
        done = False
        try:
            self._send(call)
            while (message := self._receive(silence_s)) is not None:
                assert isinstance(message, Answer)
                yield message
            done = True
        finally:
            if not done:
                self.end()

    def end(self) -> None:
        """End the process and all its children."""
        process, self._process = self._process, None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if process is not None:
            with suppress(ProcessLookupError):  # the whole group is gone
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(ENDS_S)
            _wait_for_group(process.pid)
        if self._printed is not None:
            self._printed.close()
            self._printed = None

    # --- weights ---

    def _put(self, weights: WeightsRef) -> None:
        """Have the engine read weights from a folder: their own, or a copy in shared memory."""
        if isinstance(weights.place, Path):
            self._load_folder(weights.place)
            return
        folder = Path(tempfile.mkdtemp(prefix="trb-weights-", dir=_roomy(weights.place)))
        try:
            tensors = {name: tensor.contiguous() for name, tensor in weights.place.items()}
            save_file(tensors, folder / "model.safetensors")
            shutil.copy(Path(self._settings.model) / "config.json", folder)
            self._load_folder(folder)
        finally:
            shutil.rmtree(folder)

    def _load_folder(self, folder: Path) -> None:
        self._send(Load(str(folder), self.version))
        self._receive_nothing_but_the_end(START_S)

    # --- messages ---

    def _send(self, message: object) -> None:
        assert self._connection is not None
        try:
            self._connection.send(message)
        except OSError as error:
            raise self._lost("does not listen") from error

    def _receive_nothing_but_the_end(self, silence_s: float) -> None:
        message = self._receive(silence_s)
        assert message is None

    def _receive(self, silence_s: float) -> Answer | None:
        """The next answer, or None at the end of a call."""
        heard = time.monotonic()
        while True:
            assert self._connection is not None
            try:
                if not self._connection.poll(LOOK_S):
                    if time.monotonic() - heard > silence_s:
                        raise self._lost(f"has been silent for {silence_s:.0f} s")
                    continue
                message = self._connection.recv()
            except (EOFError, OSError) as error:
                raise self._lost("died") from error
            pulse.advance()
            if isinstance(message, Sign):
                heard = time.monotonic()
                continue
            if isinstance(message, Failed):
                self.end()
                raise EngineRefused(f"SGLang: {message.reason}")
            return message

    def _lost(self, how: str) -> EngineLost:
        """End the rest of the process; returns an error of its output, with `how` as last line."""
        printed = ""
        if self._printed is not None:
            self._printed.seek(0)
            printed = self._printed.read().decode(errors="replace")[-LAST_CHARACTERS:]
        self.end()
        return EngineLost(
            (f"SGLang printed:\n{printed}\n" if printed else "") + f"the SGLang engine {how}"
        )


def _wait_for_group(group: int) -> None:
    """Wait until all processes of a killed group are gone: SGLang's scheduler outlives its parent.

    The scheduler holds the GPU. `wait_for_memory` deals with one that the kernel cannot end.
    """
    end = time.monotonic() + ENDS_S
    while group_members(group) and time.monotonic() < end:
        time.sleep(GONE_LOOK_S)


def _roomy(tensors: Mapping[str, Tensor]) -> Path | None:
    """The folder of shared memory if the tensors fit there, else None for the temporary folder."""
    needed = sum(tensor.nbytes for tensor in tensors.values())
    if SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > 1.1 * needed:
        return SHARED_MEMORY
    return None
