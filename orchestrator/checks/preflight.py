"""Checks the runs folder, its disk and the cluster's address, before Ray takes seconds to start.

Checks this machine alone; `sweep.nodes` lists the needs of a cluster's nodes, and asks for them.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.checks.check import Found
from orchestrator.errors import LONGEST_VALUE, UserError, refuse, shortened, shown
from orchestrator.liveness.deaths import ANSWERS_WITHIN_S, answers
from orchestrator.liveness.processes import processes, scratch_parent

LEAST_FREE = 64 * 2**20  # bytes on the disk of the runs folder
CLIENT = "ray://"  # what the addresses of Ray's client begin with


def runs_folder(runs: Path, least_free: int = LEAST_FREE) -> Found:
    """Check that files can be made, renamed and removed in `runs`, with room on its disk; UserError.

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
    return Found("ok", f"{free >> 20} MiB free")


def scratch_folder(_: Path) -> Found:
    """Check that a folder has room for sockets, and a path that is short enough; UserError."""
    return Found("ok", str(scratch_parent()))


def cluster_at(address: str, _: Path) -> Found:
    """Check that a Ray answers at the address; the detail is the place that Ray joins."""
    return Found("ok", check_address(address))


@dataclass(frozen=True)
class Address:
    """The address that Ray joins, and for one that was looked up `RAY_ADDRESS is` as its origin."""

    place: str
    origin: str = ""


def check_address(address: str) -> str:
    """Return the address that Ray joins; UserError within seconds if no Ray answers there.

    Ray itself would try, and warn, for minutes.
    """
    asked = _looked_up() if address == "auto" else Address(address)
    host, _, port = asked.place.removeprefix(CLIENT).rpartition(":")
    is_port = port.isascii() and port.isdigit() and int(port[:6]) < 65536
    if not (host and is_port) or "/" in host:
        raise _refused(asked, "expected auto, or HOST:PORT", "expected HOST:PORT")
    try:
        speaks = _answers(host.removeprefix("[").removesuffix("]"), int(port))
    except (OSError, UnicodeError) as error:  # UnicodeError: no name of a host is that long
        reason = getattr(error, "strerror", None) or str(error)
        nothing = f"nothing answers there ({reason})"
        raise _refused(asked, f"expected a Ray cluster; {nothing}", nothing) from None
    if not speaks:
        other = "something else answers there"
        raise _refused(asked, f"expected a Ray cluster; {other}", f"{other} than a Ray cluster")
    return asked.place


def _looked_up() -> Address:
    """The address that Ray takes for `auto`: RAY_ADDRESS, a raylet's of this machine, a file's."""
    named = os.environ.get("RAY_ADDRESS", "")
    if named not in ("", "auto"):
        return Address(named, "RAY_ADDRESS is")
    system = {"linux": os.environ.get("TMPDIR")}.get(sys.platform)
    noted = Path(os.environ.get("RAY_TMPDIR", system or "/tmp")) / "ray" / "ray_current_cluster"
    text = noted.read_text(errors="replace").strip() if noted.is_file() else ""
    joined = sorted(_clusters_here())
    if joined and not (len(joined) > 1 and text):
        return Address(joined[0], "this machine's raylet names")
    if text:
        return Address(text, f"{noted} names")
    sources = f"RAY_ADDRESS is not set, no raylet runs here, and {noted} names no cluster"
    raise refuse("--address", "auto", f"a running Ray cluster; {sources}")


def _clusters_here() -> set[str]:
    """The addresses that the raylets of this machine have on their command lines."""
    flag = "--gcs-address="
    addresses: set[str] = set()
    for pid in processes():
        with suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            if "raylet" in Path(line[0]).name:
                addresses |= {word.removeprefix(flag) for word in line if word.startswith(flag)}
    return addresses


def _answers(host: str, port: int) -> bool:
    """As `deaths.answers`, with a time limit for all of it: looking up a name knows none."""
    results: list[bool | Exception] = []

    def ask() -> None:
        try:
            results.append(answers(host, port))
        except Exception as error:
            results.append(error)

    asking = threading.Thread(target=ask, daemon=True, name="address")
    asking.start()
    asking.join(ANSWERS_WITHIN_S)
    result = results[0] if results else TimeoutError(f"no answer in {ANSWERS_WITHIN_S:.0f} s")
    if isinstance(result, Exception):
        raise result
    return result


def _refused(asked: Address, expected: str, instead: str) -> UserError:
    """The error for an address as it was given, or for the one that `auto` stands for."""
    if not asked.origin:
        return UserError(f"--address: {shown(asked.place)}: {expected}")
    place = shortened(asked.place, LONGEST_VALUE)
    return UserError(f"--address auto: {asked.origin} {place}: {instead}")
