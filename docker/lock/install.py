"""Install what the lock beside this file pins into the Python that runs it; `make` and the
Dockerfile call this.

    python docker/lock/install.py runtime --torch cpu
    python docker/lock/install.py dev
    python docker/lock/install.py glibc
    python docker/lock/install.py engines
    python docker/lock/install.py compiler
    python docker/lock/install.py real

`runtime.txt` is what `trb` runs with, `dev.txt` what tests and lint need besides, `engines.txt`
what SGLang and verl import besides. Beside a torch for NVIDIA GPUs `engines` also installs
`kernels.txt`, what SGLang calls there, and `compiler.txt`, nvcc for the kernels that SGLang
compiles itself. `glibc` installs nothing: it refuses, with code 2, a system that
is too old for SGLang's wheel. `real.txt` is a small language model and the reader of its file; what the model's
package declares is left out. All pin versions and sha256.

Only torch comes in two kinds. `cuda` is the public index's own wheel: on Linux it needs CUDA
libraries of several GB, which the lock pins too. `cpu` is PyTorch's build without CUDA, for
machines without an NVIDIA GPU; the public index does not have it, so that its sha256 is not in the
lock. Only the standard library is imported, since nothing is installed yet.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.metadata
import os
import platform
import pty
import re
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterable
from pathlib import Path

LOCK = Path(__file__).resolve().parent
CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # PyTorch's own; asked where pip's registry has no +cpu wheel
SGLANG_ONLY = Path(sys.prefix) / "sglang-only"  # read by `orchestrator.engines.sglang.private`
CUDA_ONLY = ("cuda-", "nvidia-", "triton")  # distributions that only torch's CUDA build needs
FROM_DEV = (
    "cffi",
    "cloudpickle",
    "pycparser",
)  # of dev.txt, which SGLang's and verl's requirements require, too
DRIVER = Path("/proc/driver/nvidia/version")  # of the kernel's module; containers see the host's
OLDEST_DRIVER = 580  # that runs programs of CUDA 13, by NVIDIA's release notes
# Of SGLang's wheels, which are named manylinux_2_34.
OLDEST_GLIBC = (2, 34)
# Measured on Linux x86-64 with an empty cache: GB to download, GB on disk. macOS takes less than
# `cpu`.
SIZES = {
    "cpu": (0.5, 1.7),
    "cuda": (3.0, 5.7),
    "dev": (0.2, 0.6),
    "engines": (0.5, 1.6),
    "kernels": (0.6, 1.8),
    "compiler": (0.1, 0.3),
    "real": (0.1, 0.1),
}
PARTS = {
    "dev": "tests and lint",
    "engines": "SGLang and verl",
    "compiler": "nvcc and headers",
    "real": "SmolLM2-135M-Instruct",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Install what the lock pins into this Python.")
    parser.add_argument("part", choices=("runtime", "glibc", *PARTS))
    parser.add_argument(
        "--torch", choices=("auto", "cpu", "cuda"), default="auto",
        help="auto keeps the kind that is installed, else takes cuda where an NVIDIA driver is, and cpu elsewhere",
    )  # fmt: skip
    options = parser.parse_args()
    try:
        if options.part == "runtime":
            install_runtime(options.torch)
        elif options.part in ("dev", "real"):
            announce(options.part)
            install_pins(read_pins(options.part).values())
        elif options.part == "glibc":
            check_glibc()
        elif options.part == "engines":
            check_glibc()
            install_engines()
        else:
            announce("compiler")
            install_compiler()
    except subprocess.CalledProcessError as error:
        command = " ".join(map(str, error.cmd[:6]))
        sys.exit(
            f"setup: {command} … failed for the reason above; the same command goes on from here"
        )


def announce(part: str, *more: str) -> None:
    """Say how much is to come, and get what installs it."""
    download, disk = (sum(SIZES[each][i] for each in (part, *more)) for i in range(2))
    say(f"{PARTS[part]}: about {download:.1f} GB to download, {disk:.1f} GB on disk")
    install_uv()


def install_runtime(wanted: str) -> None:
    """All of runtime.txt, with the kind of torch that `wanted` and this machine come to."""
    pins = read_pins("runtime")
    version = pin_version(pins["torch"])
    installed, driver = installed_version("torch"), nvidia_driver()
    kind = torch_kind(wanted, installed, driver)
    download, disk = SIZES[kind]
    say(
        f"torch {version} for {'CPUs' if kind == 'cpu' else 'NVIDIA GPUs and CPUs'} (TORCH=cpu or TORCH=cuda decides)"
    )
    if line := remark(wanted, installed, driver):
        say(line)
    say(f"about {download} GB to download and {disk} GB on disk, less what is there or in a cache")
    install_uv()
    if kind == "cpu":
        install_cpu_torch(version)
        pins = without_cuda(pins)
    elif "+cpu" in (installed or ""):  # it would count as the pinned version
        uv("uninstall", "torch")
    install_pins([pins.pop("setuptools")])  # builds what comes as source
    install_pins(pins.values())


def check_glibc() -> None:
    """End with one line and code 2 on a Linux whose glibc SGLang's wheel does not run with."""
    name, version = platform.libc_ver()
    if name != "glibc" or tuple(map(int, version.split(".")[:2])) >= OLDEST_GLIBC:
        return
    oldest = ".".join(map(str, OLDEST_GLIBC))
    print(
        f"setup: glibc {version}: expected {oldest} or newer, for which SGLang is built "
        "(Ubuntu 22.04, Debian 12, RHEL 9); `make setup` alone runs engine.sampler=torch",
        file=sys.stderr,
    )
    sys.exit(2)


def install_engines() -> None:
    """All that goes with the torch that is installed."""
    torch = installed_version("torch") or ""
    announce("engines", *(() if torch.endswith("+cpu") else ("kernels", "compiler")))
    pins, only_sglang = engine_pins(torch)
    install_pins(pins.values())
    if only_sglang:
        if found := [name for name in only_sglang if installed_version(name)]:
            uv("uninstall", *found)
        install_pins(only_sglang.values(), "--target", str(SGLANG_ONLY))
    elif sys.platform == "linux":
        install_compiler()


def install_compiler() -> None:
    """nvcc with the headers and the runtime that its programs are linked with, which torch's CUDA
    build brings too.
    """
    install_pins([*read_pins("compiler").values(), read_pins("runtime")["nvidia-cuda-runtime"]])
    nvcc = importlib.metadata.distribution("nvidia-cuda-nvcc")
    complete_toolkit(Path(str(nvcc.locate_file("nvidia/cu13"))))


def complete_toolkit(folder: Path) -> None:
    """Give NVIDIA's wheels the names that linkers look for: their libraries lie in lib, under full
    names alone.
    """
    for link, target in (("lib64", "lib"), ("lib/libcudart.so", "libcudart.so.13")):
        if not (folder / link).exists():
            (folder / link).unlink(missing_ok=True)  # a link to what was there before
            (folder / link).symlink_to(target)


def engine_pins(torch: str) -> tuple[dict[str, str], dict[str, str]]:
    """What goes with the torch that is installed, and what only SGLang's own processes may find.

    torch's CUDA build has brought a triton of its own and wants SGLang's kernels. Beside its CPU
    build the index's torchvision does not work, which is for CUDA, and what finds it fails; SGLang
    only has to import it.
    """
    dev = read_pins("dev")
    pins = read_pins("engines") | {name: dev[name] for name in FROM_DEV}
    if torch.endswith("+cpu"):
        return pins, {"torchvision": pins.pop("torchvision")}
    del pins["triton"]
    return pins | read_pins("kernels"), {}


# --- the lock ---


def read_pins(part: str) -> dict[str, str]:
    """Distribution name → its lines of `<part>.txt`: pin, marker, hashes, who requires it."""
    return parse_pins((LOCK / f"{part}.txt").read_text(encoding="utf-8"))


def parse_pins(text: str) -> dict[str, str]:
    """`read_pins` of a lock's text; comments before the first pin are left out."""
    pins: dict[str, str] = {}
    for block in re.split(r"^(?=\w)", text, flags=re.MULTILINE):
        name, pinned, _ = block.partition("==")
        if pinned:
            pins[name] = pins.get(name, "") + block  # platforms may have a version each
    return pins


def pin_version(pin: str) -> str:
    """`2.13.0` of `torch==2.13.0 --hash=…`."""
    return pin.split("==")[1].split()[0]


def without_cuda(pins: dict[str, str]) -> dict[str, str]:
    """The pins beside a torch for CPUs, which is installed already."""
    return {
        name: pin
        for name, pin in pins.items()
        if name != "torch" and not name.startswith(CUDA_ONLY)
    }


# --- torch ---


def torch_kind(
    wanted: str, installed: str | None, driver: str | None, platform: str = sys.platform
) -> str:
    """`cpu` or `cuda`. `installed` is the version of torch that is there, `driver` that of
    NVIDIA's.
    """
    if platform != "linux":
        return "cuda"  # the index's own wheel has no CUDA there
    if wanted != "auto":
        return wanted
    if installed is not None:
        return "cpu" if installed.endswith("+cpu") else "cuda"
    return "cuda" if driver is not None else "cpu"


def remark(
    wanted: str, installed: str | None, driver: str | None, platform: str = sys.platform
) -> str | None:
    """How the kind of torch and this machine's driver contradict each other, in a line; None where
    they agree.
    """
    kind = torch_kind(wanted, installed, driver, platform)
    if platform != "linux":
        return None
    if (
        kind == "cuda"
        and driver is not None
        and driver[0].isdigit()
        and int(driver.split(".")[0]) < OLDEST_DRIVER
    ):
        return f"NVIDIA driver {driver} is too old: CUDA 13 finds no GPU before {OLDEST_DRIVER}"
    if wanted != "auto":
        return None
    if kind == "cpu" and driver is not None:
        return f"NVIDIA driver {driver} is here, but torch {installed} is installed, which uses no GPU: TORCH=cuda"
    if kind == "cuda" and driver is None:
        return f"no NVIDIA driver is here, but torch {installed} is installed, which is for GPUs: TORCH=cpu"
    if installed is None and driver is None:
        return "no NVIDIA driver is here; if machines with GPUs are to use this folder: TORCH=cuda"
    return None


def nvidia_driver(proc: Path = DRIVER, library: str = "libcuda.so.1") -> str | None:
    """Version of this machine's NVIDIA driver, such as 580.65.06; None without one.

    Where the kernel does not tell, as under WSL, a driver is there if its library can be loaded.
    """
    try:
        found = re.search(
            r"\b\d{3,}\.\d+(\.\d+)?\b", proc.read_text(encoding="utf-8", errors="replace")
        )
        return found[0] if found else "of unknown version"
    except OSError:
        pass
    try:
        ctypes.CDLL(library)
    except OSError:
        return None
    return "of unknown version"


def installed_version(name: str) -> str | None:
    """Version of a distribution in this Python; None without it."""
    importlib.invalidate_caches()  # this process has installed things itself
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def offers_cpu(version: str) -> bool:
    """Whether the registry that pip is configured with has `<version>+cpu` for this machine."""
    command = [sys.executable, "-m", "pip", "index", "versions", "torch"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"{version}+cpu" in available_versions(listed.stdout)


def available_versions(listed: str) -> list[str]:
    """Versions in what `pip index versions` prints; it also names the one that is installed, which
    is no offer.
    """
    line = re.search(r"^Available versions: (.*)$", listed, flags=re.MULTILINE)
    return line[1].split(", ") if line else []


def install_cpu_torch(version: str) -> None:
    """PyTorch's CPU build, in place of any other; what only the CUDA build needed goes."""
    if installed_version("torch") == f"{version}+cpu":
        return
    others = [] if offers_cpu(version) else ["--retries", "1", "--extra-index-url", CPU_INDEX]
    say(
        f"torch {version}+cpu from {CPU_INDEX if others else 'the registry that pip is configured with'}"
    )
    try:
        pip("install", "--no-deps", f"torch=={version}+cpu", *others)
    except subprocess.CalledProcessError:
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        sys.exit(
            f"setup: torch {version}+cpu for Python {python} could not be had: make setup TORCH=cuda takes the public "
            f"index's build, which runs on CPUs too ({SIZES['cuda'][0]} GB), PIP_EXTRA_INDEX_URL names another index"
        )
    names = [
        dist.name for dist in importlib.metadata.distributions() if dist.name.startswith(CUDA_ONLY)
    ]
    if names:
        uv("uninstall", *names)


# --- installers ---


def install_uv() -> None:
    """The pinned uv: it downloads in parallel and shows what it does."""
    pin = read_pins("dev")["uv"]
    if installed_version("uv") != pin_version(pin):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(pin)
            file.flush()
            pip("install", "--no-deps", "--require-hashes", "-r", file.name)


def install_pins(pins: Iterable[str], *where: str) -> None:
    """What is missing of these pins; every file must have a hash of its pin."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("".join(pins))
        file.flush()
        uv(
            "install",
            "--no-deps",
            "--require-hashes",
            "--no-build-isolation",
            *where,
            "-r",
            file.name,
        )


def uv(verb: str, *arguments: str) -> None:
    """`uv pip VERB` on this Python, with the package index that pip is configured with.

    A terminal sees uv's bars, a pipe only errors; neither gets the list of packages.
    """
    command = [sys.executable, "-m", "uv", "pip", verb, "--python", sys.executable, *arguments]
    if sys.stderr.isatty():
        show_bars(command, uv_environment())
    else:
        subprocess.run([*command, "--quiet"], check=True, env=uv_environment())


def show_bars(command: list[str], environment: dict[str, str]) -> None:
    """Run uv on a terminal of its own, where it draws bars, and pass on what it shows before its
    list of packages.
    """
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, termios.tcgetwinsize(sys.stderr))
    with subprocess.Popen(command, env=environment, stdout=its, stderr=its) as process:
        os.close(its)
        shown = b""
        while chunk := read_or_end(ours):
            before = len(shown)
            shown += chunk
            last = re.search(rb"Installed [^\n]*\n", shown)
            sys.stderr.buffer.write(shown[before : last.end() if last else None])
            sys.stderr.flush()
    os.close(ours)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def read_or_end(descriptor: int) -> bytes:
    """Bytes of a terminal; none when the program on its other end has ended, which Linux calls an
    error.
    """
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""


def uv_environment() -> dict[str, str]:
    """uv does not read pip's configuration: a mirror that stands there is handed on."""
    asked = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    mirror = os.environ.get("PIP_INDEX_URL") or (
        done.stdout.strip() if done.returncode == 0 else ""
    )
    return ({"UV_DEFAULT_INDEX": mirror} if mirror else {}) | os.environ


def pip(*arguments: str) -> None:
    """pip with its progress on a terminal, but without its line for every registry that lacks a
    package.
    """
    quiet = () if sys.stdout.isatty() else ("--quiet",)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, *quiet]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr or ():
            if "is ignored: it is neither a file nor a directory" not in line:
                print(line, end="", file=sys.stderr, flush=True)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, ["pip", *arguments])


def say(line: str) -> None:
    print(f"setup: {line}", flush=True)


if __name__ == "__main__":
    main()
