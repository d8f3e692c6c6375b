"""The code, versions and machine of a run, without clock, environment variables or secrets."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGES = (
    "trb",
    "torch",
    "transformers",
    "ray",
    "numpy",
    "math-verify",
    "tokenizers",
    "safetensors",
)
CPU_INFO = Path("/proc/cpuinfo")
GPU_INFO = Path("/proc/driver/nvidia/gpus")


def provenance() -> dict[str, Any]:
    """Commit, dirty diff and untracked files (null without a checkout), versions, machine."""
    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty_diff": _git("diff", "HEAD"),
        "untracked": _untracked(),
        "versions": {"python": platform.python_version()}
        | {name: _version(name) for name in PACKAGES},
        "host": {
            "name": platform.node(),
            "system": platform.platform(),
            "machine": platform.machine(),
            "cpu": cpu_model(CPU_INFO),
            "cores": os.cpu_count(),
            "gpus": gpu_models(GPU_INFO),
        },
    }


def cpu_model(info: Path) -> str | None:
    """The processor's name in a `/proc/cpuinfo`, else by `platform`; None if it is unknown."""
    text = info.read_text(errors="replace") if info.exists() else ""
    match = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or None


def gpu_models(folder: Path) -> list[str]:
    """Names of the machine's NVIDIA GPUs, from the driver's folder, which needs no CUDA context.

    Some containers lack that folder. The names then come from torch if this process already uses a
    GPU through it, and are missing otherwise.
    """
    names = []
    for file in sorted(folder.glob("*/information")):
        match = re.search(r"^Model:\s*(.+)$", file.read_text(errors="replace"), re.MULTILINE)
        if match:
            names.append(match[1].strip())
    torch = sys.modules.get("torch")
    if not names and torch is not None and torch.cuda.is_initialized():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return names


def version_line() -> str:
    """`trb 0.1.0`, in a checkout with its commit: `trb 0.1.0, commit 0f3a9c1b2d3e with changes`."""
    line = f"trb {_version('trb') or '(not installed)'}"
    commit = _git("rev-parse", "--short=12", "HEAD")
    if commit is None:
        return line
    changes = " with changes" if _git("status", "--porcelain") else ""
    return f"{line}, commit {commit}{changes}"


def file_sha256_at(commit: str, name: str) -> str | None:
    """sha256 of a file of the source tree at a commit; None where this checkout lacks either."""
    root = _checkout()
    if root is None:
        return None
    command = ["git", "-C", str(root), "cat-file", "blob", f"{commit}:{name}"]
    done = subprocess.run(command, capture_output=True, check=False)
    return hashlib.sha256(done.stdout).hexdigest() if done.returncode == 0 else None


def _checkout() -> Path | None:
    """The root of the source tree if it is a checkout."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / ".git").exists() else None


def _git(*arguments: str) -> str | None:
    root = _checkout()
    if root is None:
        return None
    done = subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None


def _untracked() -> list[str] | None:
    """Files of the source tree that git neither tracks nor ignores."""
    names = _git("ls-files", "--others", "--exclude-standard")
    return None if names is None else names.splitlines()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
