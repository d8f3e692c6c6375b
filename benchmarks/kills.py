"""Random SIGKILLs until a sweep is done, again and again: `python -m benchmarks.kills [KILLS]
[SEED]`.

Each kill strikes the driver, the process of a trial, an evaluator or the raylet, at a random
moment. A sweep that ended by it is submitted again. When it is done, every file must equal that of
an undisturbed sweep, and no sample may be missing; then the next sweep begins. Prints a
line for each sweep; exits with 1 after the first divergence.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from orchestrator.liveness.deaths import members, processes
from orchestrator.liveness.leases import Claims, holder_of
from tests.sweeps import contents, start, write_experiment
from tests.without_ray import run_without_ray

METHODS = {
    "vanilla": {"placement": "colocated"},
    "trust_region": {"epsilon0": [0.05, 0.2], "K": [5]},
    "sft_warmup": {"K": [4]},
}
LONG = {"steps": 30, "checkpoint_every": 5}
EVALUATION = {"benchmarks": {"arithmetic_short": {"n": 8, "limit": 40}}, "budget": "adaptive"}
RUNTIME = {"keep": "all", "save_every": "0.3s"}  # a save between most checkpoints
PAUSE_S = (0.2, 8.0)  # between the moment that something runs and the kill

Target = Callable[[subprocess.Popen[str], Path], list[int]]


def drivers(process: subprocess.Popen[str], runs: Path) -> list[int]:
    return [process.pid]


def trials(process: subprocess.Popen[str], runs: Path) -> list[int]:
    """Processes that hold the lease of a unit."""
    holders = [holder_of(lock) for lock in (runs / ".locks").glob("*.lock")]
    return [holder.pid for holder in holders if holder and holder.pid != process.pid]


def evaluators(process: subprocess.Popen[str], runs: Path) -> list[int]:
    """Processes that hold a claim on a slice."""
    return [
        held.holder.pid for unit in runs.glob("tiny-*") for held in Claims(runs).held(unit.name)
    ]


def raylets(process: subprocess.Popen[str], runs: Path) -> list[int]:
    found = []
    for member in members(processes(), Path("/nowhere"), process.pid):
        with suppress(OSError):
            name = Path(f"/proc/{member.pid}/cmdline").read_bytes().split(b"\0")[0]
            if Path(os.fsdecode(name)).name == "raylet":
                found.append(member.pid)
    return found


TARGETS: dict[str, Target] = {
    "driver": drivers,
    "trial": trials,
    "evaluator": evaluators,
    "raylet": raylets,
}
WEIGHTS = (2, 4, 4, 1)


def main() -> int:
    """0 if nothing diverged."""
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    rng = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    with tempfile.TemporaryDirectory(prefix="trb-kills-") as name:
        folder = Path(name)
        keys = {"training": LONG, "evaluation": EVALUATION, "runtime": RUNTIME}
        experiment = write_experiment(folder, METHODS, **keys)
        run_without_ray(experiment, folder / "undisturbed")
        expected, kills = contents(folder / "undisturbed"), Counter[str]()
        while kills.total() < wanted:
            begun, before = time.monotonic(), kills.copy()
            shutil.copytree(folder / "undisturbed" / "models", folder / "runs" / "models")
            submits = _disturbed(experiment, folder / "runs", rng, kills)
            found = contents(folder / "runs")
            differing = sorted(
                path for path in expected | found if expected.get(path) != found.get(path)
            )
            struck = ", ".join(
                f"{count} × {target}" for target, count in sorted((kills - before).items())
            )
            print(
                f"{time.monotonic() - begun:5.0f} s, {submits} submits, killed {struck}: {len(differing)} files differ",
                flush=True,
            )
            if differing:
                print(*differing[:20], sep="\n")
                return 1
            shutil.rmtree(folder / "runs")
        print(f"{kills.total()} kills ({dict(kills)}), 0 divergences")
    return 0


def _disturbed(experiment: Path, runs: Path, rng: random.Random, kills: Counter[str]) -> int:
    """Submit until everything is done, killing as it runs; return the number of submits."""
    for submits in range(1, 1000):
        process = start("submit", experiment, "--runs", runs)
        target = rng.choices(list(TARGETS), WEIGHTS)[0]
        strike_at = None
        while process.poll() is None:
            time.sleep(0.02)
            works = trials(process, runs) or evaluators(process, runs)
            if strike_at is None and works:
                strike_at = time.monotonic() + rng.uniform(*PAUSE_S)
            if strike_at is None or time.monotonic() < strike_at:
                continue
            victims = TARGETS[target](process, runs)
            if victims:
                with suppress(ProcessLookupError):
                    os.kill(rng.choice(victims), signal.SIGKILL)
                    kills[target] += 1
                target, strike_at = rng.choices(list(TARGETS), WEIGHTS)[0], None
        process.communicate()
        if process.returncode == 0:
            return submits
    raise AssertionError("a thousand submits did not finish the sweep")


if __name__ == "__main__":
    sys.exit(main())
