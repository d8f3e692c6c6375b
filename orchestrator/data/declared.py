"""Lists the data files that setups declare (prompts, benchmarks), and those missing in a folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from orchestrator.config import Setup
from orchestrator.data.benchmarks import benchmark_of


def declared_files(setup: Setup) -> dict[str, str | None]:
    """The files that a setup reads below the data folder: relative path → sha256."""
    files: dict[str, str | None] = {}
    if setup.data.source == "jsonl":
        for entry in setup.data.files:
            files[entry.file] = entry.sha256
    for key, run in setup.evaluation.benchmarks.items():
        declared = benchmark_of(key, run)
        if declared.file is not None and run.path is None:
            files[declared.file] = declared.sha256
    return files


def lacking(setups: Iterable[Setup], folder: Path) -> dict[str, str | None]:
    """The declared files of `setups` that are missing below `folder`."""
    missing: dict[str, str | None] = {}
    for setup in setups:
        for file, sha256 in declared_files(setup).items():
            if not (folder / file).is_file():
                missing[file] = sha256
    return missing
