"""Try other versions of SGLang, verl, torch and what belongs to them, in an environment of its own.

    python docker/lock/upgrade.py                                  what the installed versions contradict
    python docker/lock/upgrade.py sglang==0.5.23 torch==2.14.1     the lock with these instead, and the engines' tests

The first prints each requirement that a distribution declares and the environment of this Python
does not meet: what else has to move, or is known to work all the same. The second makes
`.venv-upgrade` from the lock, puts the given versions in without asking what they require, prints
the same list, and runs what `make test-engines` runs; its exit status is that of the tests.
docs/upgrade-an-engine.md is the page for it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

LOCK = Path(__file__).resolve().parent
ROOT = LOCK.parents[1]
FOLDER = ROOT / ".venv-upgrade"
ROOTS = ("sglang", "verl", "torch", "transformers", "ray")  # whose requirements decide
TESTS = ("-m", "pytest", "-o", "addopts=", "-q", "-m", "engines", "--durations=10", "tests/engines")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "versions",
        nargs="*",
        metavar="NAME==VERSION",
        help="what to try instead of the lock's pins",
    )
    options = parser.parse_args()
    try:
        wanted = [exact(text) for text in options.versions]
    except (InvalidRequirement, ValueError) as error:
        print(f"upgrade: {error} — would be right: sglang==0.5.23", file=sys.stderr)
        sys.exit(2)
    if not wanted:
        show(importlib.metadata.distributions())
        return
    python = environment(wanted)
    packages = next((FOLDER / "lib").glob("python3*")) / "site-packages"
    show(importlib.metadata.distributions(path=[str(packages)]))
    tested = subprocess.run(
        [python, *TESTS], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False
    )
    sys.exit(tested.returncode)


def exact(text: str) -> Requirement:
    """`name==version`. Raises InvalidRequirement or ValueError, both of which name the text."""
    requirement = Requirement(text)
    specifiers = list(requirement.specifier)
    if len(specifiers) != 1 or specifiers[0].operator not in ("==", "==="):
        raise ValueError(f"{text}: not one version")
    return requirement


def environment(wanted: Iterable[Requirement]) -> Path:
    """Python of `.venv-upgrade`, which holds the lock with these versions in it."""
    python = FOLDER / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", FOLDER)
    for part in ("runtime", "dev", "engines"):
        run(python, LOCK / "install.py", part)
    run(python, "-m", "uv", "pip", "install", "--python", python, "--no-deps", *map(str, wanted))
    return python


def run(*command: str | Path) -> None:
    done = subprocess.run(list(map(str, command)), cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(f"upgrade: {' '.join(map(str, command[:4]))} … failed for the reason above")


def show(distributions: Iterable[importlib.metadata.Distribution]) -> None:
    """Print what does not fit, a line each."""
    found = {str(canonicalize_name(each.name)): each for each in distributions}
    versions = [f"{name} {found[name].version}" for name in ROOTS if name in found]
    print(f"upgrade: {', '.join(versions)}")
    lines = list(contradictions(found))
    for line in lines:
        print(f"upgrade: {line}")
    print(f"upgrade: {len(lines)} requirements are not met", flush=True)


def contradictions(found: dict[str, importlib.metadata.Distribution]) -> Iterator[str]:
    """`sglang wants torch==2.14.1; here 2.13.0` for what ROOTS declare, without extras, and these
    versions are not.
    """
    for name in ROOTS:
        for text in (found[name].requires or []) if name in found else []:
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            other = found.get(canonicalize_name(requirement.name))
            asked = f"{name} wants {requirement.name}{requirement.specifier}"
            if other is None:
                yield f"{asked}; not here"
            elif not requirement.specifier.contains(other.version, prereleases=True):
                yield f"{asked}; here {other.version}"


if __name__ == "__main__":
    main()
