"""Checks the runs folder, its disk and the cluster's address, before Ray takes seconds to start.

Checks this machine alone; `requirements` lists the needs of a cluster's nodes, and `nodes` asks for
them.
"""

from __future__ import annotations

import os
import shutil
import socket
from contextlib import suppress
from pathlib import Path

from orchestrator.errors import refuse
from orchestrator.liveness.head_node import answers

LEAST_FREE = 64 * 2**20  # bytes on the disk of the runs folder


def check_runs_folder(runs: Path, least_free: int = LEAST_FREE) -> None:
    """Raise UserError unless files can be made, renamed and removed in `runs`, with room on its disk.

    Removes the folder again if it was missing before.
    """
    new = not runs.exists()
    probe = runs / f".probe-{socket.gethostname()}-{os.getpid()}"
    try:
        runs.mkdir(parents=True, exist_ok=True)
        with probe.open("wb") as file:
            file.write(b"probe")
            file.flush()
            os.fsync(file.fileno())
        renamed = probe.with_suffix(".renamed")
        os.replace(probe, renamed)
        renamed.unlink()
        free = shutil.disk_usage(runs).free
        if new:
            runs.rmdir()
    except OSError as error:
        with suppress(OSError):
            probe.unlink()
        raise refuse(
            "--runs", str(runs), f"a folder that can be written to ({error.strerror})"
        ) from None
    if free < least_free:
        raise refuse(
            "--runs", str(runs), f"{least_free >> 20} MiB free on its disk, which has {free >> 20}"
        )


def check_address(address: str) -> None:
    """UserError at once if no Ray answers: Ray itself would try, and warn, for minutes."""
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isascii() and port.isdigit() and int(port[:6]) < 65536):
        raise refuse("--address", address, "auto, or HOST:PORT")
    try:
        speaks = answers(host, int(port))
    except (OSError, UnicodeError) as error:  # UnicodeError: no name of a host is that long
        reason = getattr(error, "strerror", None) or str(error)
        raise refuse(
            "--address", address, f"a Ray cluster; nothing answers there ({reason})"
        ) from None
    if not speaks:
        raise refuse("--address", address, "a Ray cluster; something else answers there")
