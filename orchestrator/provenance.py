"""What code, versions and machine a run was made with. No clock, no environment variables, no secrets."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

PACKAGES = ("trb", "torch", "transformers", "ray", "numpy", "math-verify", "tokenizers", "safetensors")


def provenance() -> dict[str, Any]:
    """Commit and dirty diff of the source tree (null where it is no checkout), versions, host."""
    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty_diff": _git("diff", "HEAD"),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
        "host": {"name": platform.node(), "system": platform.platform(), "machine": platform.machine()},
    }


def _git(*arguments: str) -> str | None:
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
