"""Make the lock anew, or check that it is what setup.cfg and the public index ask for.

    python docker/lock/resolve.py lock [--upgrade]      writes the files beside this one
    python docker/lock/resolve.py check                 exits 1 and says what differs

One resolution by uv for Python 3.11 and newer on all platforms: what `trb` runs with, the extra
`hub` included, goes to runtime.txt, and what tests and lint need besides to dev.txt. Versions that
stand there stay unless they no longer fit, or `--upgrade` is given. Nothing of this machine enters:
the index is the public one, and configurations are not read.

engines.txt, kernels.txt, compiler.txt and real.txt are no resolutions: what SGLang and verl declare
contradicts itself and runtime.txt, and what the package of a model declares is not needed. Their
versions are changed by hand there, and `lock` puts in the hashes.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from install import LOCK, parse_pins, read_pins

ROOT = LOCK.parents[1]
INDEX = "https://pypi.org/simple"
TITLES = {
    "runtime": "# What `trb` runs with on Linux (x86-64, arm64) and macOS 14 (arm64). Written by `make lock`.\n",
    "dev": "# What tests and lint need besides runtime.txt; one resolution with it. Written by `make lock`.\n",
}
BY_HAND = {
    "engines": "# What SGLang and verl import besides runtime.txt and install.py's FROM_DEV, in versions tested\n"
    "# together, and triton, which torch's CPU build does not bring. Edit a version here and run `make lock` for the\n"
    "# hashes.\n",
    "kernels": "# What SGLang calls on NVIDIA GPUs besides engines.txt, as it and flashinfer declare it; never run by\n"
    "# us. SGLang names cuda-tile 1.6.0rc5, of which the index has no wheel but a script that fetches one elsewhere.\n"
    "# Edit a version here and run `make lock` for the hashes.\n",
    "compiler": "# nvcc and headers for the kernels that SGLang compiles at first use, of the CUDA that torch's build\n"
    "# for GPUs pins in runtime.txt. Edit a version here and run `make lock` for the hashes.\n",
    "real": "# A language model of 135 million parameters and what reads its file, without what the model's\n"
    "# package declares. Edit a version here and run `make lock` for the hashes.\n",
}  # fmt: skip
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28", "aarch64-apple-darwin")
ENGINE_PLATFORMS = (
    "x86_64-manylinux_2_34",
    "aarch64-manylinux_2_34",
)  # SGLang's wheels want such a glibc
SOURCE_ONLY = "antlr4-python3-runtime"  # the one distribution of the lock that has no wheel
HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})")
NETWORK_WORDS = (
    "error sending request",
    "failed to fetch",
    "timed out",
    "dns error",
    "client error (connect)",
)


class UvError(Exception):
    """What uv printed when it found no solution, or no network."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the lock anew, or check it.")
    parser.add_argument("do", choices=("lock", "check"))
    parser.add_argument(
        "--upgrade", action="store_true", help="take the newest versions that setup.cfg allows"
    )
    options = parser.parse_args()
    try:
        if options.do == "check":
            check()
        else:
            write_lock(options.upgrade)
    except UvError as error:
        if options.do == "check" and any(word in str(error).lower() for word in NETWORK_WORDS):
            print("lock: NOT checked against the index, which does not answer", file=sys.stderr)
        else:
            sys.exit(f"lock: {error}")


# --- making it ---


def write_lock(upgrade: bool) -> None:
    for part, text in resolve("" if upgrade else present_lock()).items():
        (LOCK / f"{part}.txt").write_text(TITLES[part] + text, encoding="utf-8")
        print(
            f"lock: {len(parse_pins(text))} distributions in {(LOCK / part).relative_to(ROOT)}.txt"
        )
    for part, title in BY_HAND.items():
        (LOCK / f"{part}.txt").write_text(title + pins_by_hand(part), encoding="utf-8")


def present_lock() -> str:
    """Both parts as they stand, as one."""
    return "".join((LOCK / f"{part}.txt").read_text(encoding="utf-8") for part in TITLES)


def resolve(preferred: str) -> dict[str, str]:
    """runtime → text, dev → text, for setup.cfg and the index; versions of the lock `preferred`
    stay where they fit.
    """
    everything = compile_pins(preferred, "--all-extras")
    runtime = compile_pins(everything, "--extra", "hub")
    small = parse_pins(runtime)
    # A pin with another marker than runtime.txt's, or none, is wanted on more platforms.
    rest = [
        pin
        for name, pin in parse_pins(everything).items()
        if what(pin) != what(small.get(name, ""))
    ]
    return {"runtime": runtime, "dev": "".join(rest)}


def pins_by_hand(part: str) -> str:
    """The versions of a part with the hashes that the index has for them.

    uv is not shown the hashes that stand there: it would believe them, those of another version
    too.
    """
    wanted = [what(pin) for pin in read_pins(part).values()]
    with tempfile.TemporaryDirectory() as folder:
        asked, output = Path(folder) / "asked.txt", Path(folder) / "pins.txt"
        asked.write_text("\n".join(wanted), encoding="utf-8")
        how = (
            "--no-deps",
            "--universal",
            "--python-version",
            PYTHONS[0],
            "--generate-hashes",
            "--no-header",
        )
        uv("compile", str(asked), *how, "--no-annotate", "--output-file", str(output))
        return output.read_text(encoding="utf-8")


def what(pin: str) -> str:
    """`name==version ; marker` of a pin, without its hashes."""
    return ", ".join(line.rstrip("\\ ") for line in pin.splitlines() if line[:1].isalnum())


def compile_pins(preferred: str, *extras: str) -> str:
    """uv's universal resolution of setup.cfg, as requirements with hashes. Raises UvError."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "pins.txt"
        output.write_text(preferred, encoding="utf-8")
        wanted = (
            "setup.cfg",
            *extras,
            "--universal",
            "--python-version",
            PYTHONS[0],
            "--generate-hashes",
        )
        uv("compile", *wanted, "--no-header", "--output-file", str(output))
        return output.read_text(encoding="utf-8")


def uv(*arguments: str) -> str:
    """`uv pip …` against the public index, whatever this machine is configured with. Returns what
    it said.
    """
    hidden = ("UV_", "PIP_", "VIRTUAL_ENV")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
    environment["MACOSX_DEPLOYMENT_TARGET"] = "14.0"  # the oldest that torch has wheels for
    command = [
        sys.executable,
        "-m",
        "uv",
        "--no-config",
        "pip",
        *arguments,
        "--default-index",
        INDEX,
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise UvError(done.stderr.strip())
    return done.stderr


# --- checking it ---


def check() -> None:
    """Exits 1 unless a new resolution comes to the same pins and every platform has a file for each
    of them.
    """
    differences = compare(resolve(present_lock()))
    for part in BY_HAND:
        differences += unknown_hashes(part, parse_pins(pins_by_hand(part)))
    if differences:
        sys.exit(
            "\n".join(
                ["lock: not what setup.cfg and the index ask for; run make lock", *differences]
            )
        )
    for python in PYTHONS:
        for platform in PLATFORMS:
            dry_run(TITLES, python, platform, "--no-binary", SOURCE_ONLY)
        for platform in ENGINE_PLATFORMS:
            dry_run(BY_HAND, python, platform, "--no-deps")
    where = ", ".join(dict.fromkeys([*PLATFORMS, *ENGINE_PLATFORMS]))
    print(
        f"lock: what setup.cfg and the index ask for; files for Python {', '.join(PYTHONS)} on {where}"
    )


def compare(fresh: dict[str, str]) -> list[str]:
    """Lines `- pin` and `+ pin` for what is pinned and should not be, and what should be and is
    not.
    """
    lines = []
    for part, text in fresh.items():
        pinned = set(
            map(what, parse_pins((LOCK / f"{part}.txt").read_text(encoding="utf-8")).values())
        )
        wanted = set(map(what, parse_pins(text).values()))
        lines += [f"{part}.txt: - {pin}" for pin in sorted(pinned - wanted)]
        lines += [f"{part}.txt: + {pin}" for pin in sorted(wanted - pinned)]
    return lines


def unknown_hashes(part: str, offered: Mapping[str, str]) -> list[str]:
    """A line for each pin of a part with a hash that the index does not have; it may have got more
    files since.
    """
    lines = []
    for name, pin in read_pins(part).items():
        if not set(HASH.findall(pin)) <= set(HASH.findall(offered[name])):
            lines.append(f"{part}.txt: {what(pin)} has hashes of other files than the index has")
    return lines


def dry_run(parts: Iterable[str], python: str, platform: str, *how: str) -> None:
    """UvError where a pin of `parts` has no file for this Python on this platform.

    Unless `how` has --no-deps, also where a file requires what is not pinned.
    """
    pinned = [word for part in parts for word in ("-r", str(LOCK / f"{part}.txt"))]
    wheels = ("--require-hashes", "--only-binary", ":all:", *how)
    with tempfile.TemporaryDirectory() as empty:
        target = ("--target", empty, "--python-version", python, "--python-platform", platform)
        uv("install", "--dry-run", *target, *wheels, *pinned)


if __name__ == "__main__":
    main()
