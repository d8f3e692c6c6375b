"""Runs the tests of the rooms that differ from a commit: `python -m tests.changed [COMMIT]`, by
default `main`'s fork.

Tests that start Ray are left out, so that a small change is tried in about a minute; `make test`
runs all.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.sweeps import ROOT

ALWAYS = "tests/test_layout.py"
ERRORS = "tests/test_cli_errors.py"  # types commands, and so passes through the files that stand in no room
ELSEWHERE = {  # files beside the code → the tests that read them
    "experiments": ("tests/test_shipped_configs.py", "tests/experiment/test_identity.py"),
    "docs": ("tests/test_docs.py",),
    "docker": ("tests/test_cluster_kit.py", "tests/test_packaging.py"),
    "benchmarks": ("tests/benchmarks",),
}


def main() -> None:
    """Run pytest on the tests of all changed files, and exit as it does."""
    base = sys.argv[1] if len(sys.argv) > 1 else _fork()
    found = {ALWAYS, *(test for path in changed(base) for test in tests_of(path))}
    tests = sorted(test for test in found if str(Path(test).parent) not in found)
    print(f"changed since {base[:10]}: {' '.join(tests)}", flush=True)
    marks = "not ray and not gpu and not models and not real and not engines"
    sys.exit(
        subprocess.run(
            [sys.executable, "-m", "pytest", "-m", marks, *tests], cwd=ROOT, check=False
        ).returncode
    )


def tests_of(path: Path) -> Iterator[str]:
    """The test files and folders of one file of the project, as far as they exist."""
    top, *rest = path.parts
    if top == "tests":
        found = (
            [path if path.name.startswith("test_") else path.parent]
            if len(rest) > 1 or "test_" in path.name
            else []
        )
    elif top == "analysis":
        found = [Path("tests/analysis")]
    elif top == "orchestrator":
        found = (
            [Path("tests") / rest[0]]
            if len(rest) > 1
            else [Path(f"tests/test_{path.stem}.py"), Path(ERRORS)]
        )
    else:
        found = [Path(test) for test in ELSEWHERE.get("docs" if path.suffix == ".md" else top, ())]
    yield from (str(test) for test in found if (ROOT / test).exists())


def changed(base: str) -> list[Path]:
    """Files that differ from a commit, and files that git does not know yet."""
    return [
        Path(name)
        for name in [
            *_git("diff", "--name-only", base),
            *_git("ls-files", "-o", "--exclude-standard"),
        ]
    ]


def _fork() -> str:
    """The commit at which this branch left main; the last commit on main itself."""
    return _git("merge-base", "HEAD", "main")[0]


def _git(*words: str) -> list[str]:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()


if __name__ == "__main__":
    main()
