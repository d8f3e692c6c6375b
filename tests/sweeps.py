"""Tiny sweeps as a user types them: an experiment file with a setup of its own, and `trb` in a
process.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from orchestrator.cli import main
from orchestrator.liveness.deaths import Process, members, processes

ROOT = Path(__file__).resolve().parents[1]
# Shells start what runs in their background with Ctrl-C ignored, and processes inherit that.
COMMAND = """
import signal
from orchestrator.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""
TRB = [sys.executable, "-c", COMMAND]
# The same, but its trials are those of `tests.fake_training`.
TRAINS_NOTHING = """
import functools, signal
from orchestrator.cli import main
from orchestrator.sweep.prepare import prepare_environment
prepare_environment(None)
from orchestrator.sweep import tuner
from tests.fake_training import FakeProcess
tuner.run_sweep = functools.partial(tuner.run_sweep, process=FakeProcess)
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""
FAKE_TRB = [sys.executable, "-c", TRAINS_NOTHING]
LONGEST_S = 1800  # of one command: far beyond what the slowest machine needs
NO_MIRROR = "http://127.0.0.1:1"  # no test fetches data files from where they really are
NOT_COMPARED = {
    "timing.jsonl",
    "attempts.jsonl",
    "log.txt",
    "phase.json",
}  # clocks, and notes for people

TINY_SHAPE = {
    "layers": 1,
    "hidden": 16,
    "heads": 2,
    "kv_heads": 1,
    "head_dim": 8,
    "ffn": 32,
    "tied": True,
}
TINY_SETUP = {
    "title": "Tiny",
    "tokenizer": "characters",
    "vocabulary": {"size": 56, "valid": 47},
    "student": {
        "eos": 45,
        "shape": TINY_SHAPE,
        "recipe": {"updates": 2, "batch": 4, "wrong_step": 0.3},
    },
    "teacher": {"eos": 46, "shape": TINY_SHAPE, "recipe": {"updates": 4, "batch": 4, "seed": 1}},
    "prompt": {"kind": "plain"},
    "data": {"source": "arithmetic"},
    "engine": {"dtype": "float32"},
    "training": {
        "steps": 10,
        "prompts_per_step": 4,
        "samples_per_prompt": 2,
        "max_prompt_tokens": 16,
        "max_response_tokens": 24,
        "checkpoint_every": 2,
        "optimizer": {"lr": 1e-3},
        "sft": {"updates": 4, "checkpoints": [4]},
    },
    "evaluation": {
        "max_response_tokens": 24,
        "benchmarks": {"arithmetic_short": {"n": 1, "limit": 6}},
    },
}


@dataclass(frozen=True)
class Sweep:
    """A finished sweep: its file, its runs folder and what the terminal showed."""

    experiment: Path
    runs: Path
    shown: str


def run_sweep(folder: Path, methods: dict, **keys: object) -> Sweep:
    """Write and submit an experiment; it must succeed."""
    experiment = write_experiment(folder, methods, **keys)
    done = trb("submit", experiment, "--runs", folder / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    return Sweep(experiment, folder / "runs", done.stdout)


def write_experiment(folder: Path, methods: dict, **keys: object) -> Path:
    """`folder/sweep.yaml` with the tiny setup beside it."""
    (folder / "setups").mkdir(parents=True, exist_ok=True)
    (folder / "setups" / "tiny.yaml").write_text(yaml.safe_dump(TINY_SETUP))
    path = folder / "sweep.yaml"
    path.write_text(
        yaml.safe_dump({"setups": ["tiny"], "methods": methods, "runtime": {"keep": "all"}, **keys})
    )
    return path


def environment() -> dict[str, str]:
    """A user's environment with threads kept at one, a token for clusters of Ray, and no W&B."""
    hidden = ("WANDB_", "TRB_", "RAY_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}
    return (
        kept
        | token
        | {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled", "TRB_DATA_MIRROR": NO_MIRROR}
    )


def start(
    *arguments: str | Path, cwd: Path = ROOT, command: Sequence[str] = TRB, **variables: str
) -> subprocess.Popen[str]:
    """`trb …` running, with more variables in its environment."""
    command = [*command, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=cwd, env=environment() | variables, stdout=pipe, stderr=pipe, text=True
    )


def trb(
    *arguments: str | Path, cwd: Path = ROOT, command: Sequence[str] = TRB, **variables: str
) -> subprocess.CompletedProcess[str]:
    """`trb …` to its end."""
    process = start(*arguments, cwd=cwd, command=command, **variables)
    out, err = process.communicate(timeout=LONGEST_S)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def trb_here(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `trb …` in this process."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


def trb_shows(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Stdout of `trb …` in this process, which must succeed."""
    code, out, err = trb_here(capsys, *arguments)
    assert code == 0, out + err
    return out


def trb_refuses(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line with which `trb …` in this process says what is wrong with its arguments."""
    code, out, err = trb_here(capsys, *arguments)
    assert (code, out, err[:5], err.count("\n"), err[-1:]) == (2, "", "trb: ", 1, "\n"), out + err
    return err.removesuffix("\n")


def contents(runs: Path) -> dict[str, str]:
    """Path → sha256 of every file of every unit that must not depend on what happened on the way.

    A kill may leave a scratch file, which no reader opens.
    """
    found = {}
    for unit in sorted(path for path in runs.iterdir() if (path / "config.json").exists()):
        for file in sorted(
            path for path in unit.rglob("[!.]*") if path.is_file() and path.name not in NOT_COMPARED
        ):
            found[str(file.relative_to(runs))] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def cluster_of(driver: int) -> tuple[set[Process], Path]:
    """The processes that a driver has started, without its guard, and the folder of its cluster."""
    found = members(processes(), Path("/nowhere"), driver)
    guards = {each for each in found if b"orchestrator.liveness.deaths" in command_line(each.pid)}
    (guard,) = guards
    return found - guards, Path(os.fsdecode(command_line(guard.pid)[-1]))


def command_line(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().removesuffix(b"\0").split(b"\0")
    except OSError:
        return [b""]
