"""How much of a GPU's memory all processes use together, as its driver tells. No torch.

Never run on a GPU: in the test a stand-in takes the place of `nvidia-smi`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from contextlib import suppress

EVERY_MS = 100
MIB_OF_A_GIB = 1024


def ask_driver(*fields: str) -> list[str] | None:
    """Fields of `nvidia-smi --query-gpu` of the first GPU that this process may use; None where
    there is none.
    """
    command = _query(",".join(fields))
    if command is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (
        [value.strip() for value in done.stdout.strip().split(",")]
        if done.returncode == 0
        else None
    )


def _query(fields: str) -> list[str] | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
    return [program, f"--id={first}", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]


class DeviceUse:
    """The largest use of the GPU's memory while it is open, looked at ten times a second."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._peak_mib: float | None = None

    def __enter__(self) -> DeviceUse:
        command = _query("memory.used")
        if command is not None:
            quiet = subprocess.DEVNULL
            self._process = subprocess.Popen(
                [*command, f"--loop-ms={EVERY_MS}"],
                stdin=quiet,
                stdout=subprocess.PIPE,
                stderr=quiet,
                text=True,
            )
            self._thread = threading.Thread(target=self._read, name="nvidia-smi", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._thread is not None:
            self._process.kill()
            self._process.wait()
            self._thread.join()
            if self._process.stdout is not None:
                self._process.stdout.close()

    @property
    def peak_gib(self) -> float | None:
        """GiB since it was opened or `forget` was called; None where it is unknown."""
        return None if self._peak_mib is None else self._peak_mib / MIB_OF_A_GIB

    def forget(self) -> None:
        """Begin anew."""
        self._peak_mib = None

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(ValueError):  # "[N/A]", or what a driver that fails says
                self._peak_mib = max(self._peak_mib or 0.0, float(line))
