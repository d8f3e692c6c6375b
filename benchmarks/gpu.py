"""`make gpu-proof`: what can be known on a GPU alone, on random weights in the shapes of Qwen3-1.7B
and Qwen3-8B.

It needs no network, and takes an hour and a quarter at most. Each part runs in a process of its own, within a
limit; what it prints goes to `gpu-proof/<part>.log`, what it measures to `gpu-proof/<part>.json`,
and the table of all of them to `gpu-proof/table.md`. The same command goes on with the parts that
are missing or have failed. `--small` runs every part on small models and on whatever device there
is.

No part has run on a GPU so far.
"""

from __future__ import annotations

import argparse
import logging
import math
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import torch

from benchmarks.gpu_memory import ask_driver
from benchmarks.gpu_table import table
from benchmarks.part_runner import Part, Result, Runner, prepare_part, write_so_far
from orchestrator.records.files import write_atomically
from orchestrator.records.provenance import version_line

if TYPE_CHECKING:
    from benchmarks.gpu_engines import Numbers
    from benchmarks.gpu_scale import Scale

FOLDER = Path("gpu-proof")
TOTAL_S = 4500.0
# In the order in which they run, the most telling first; seconds after which each is ended. They
# are some three times what the plan's rates let expect, since kernels are compiled and files are
# read for the first time.
LIMITS_S = {
    "models": 240,
    "agreement": 60,
    "sglang_start": 300,
    "switch": 240,
    "turns_torch": 240,
    "turns_staying": 240,
    "turns_verl": 240,
    "evaluator": 240,
    "trial_torch": 300,
    "trial_verl": 300,
    "torch_learning": 90,
    "torch_learning_again": 90,
    "verl_learning": 100,
    "sglang_plain": 120,
    "sglang_blended_3": 120,
    "sglang_blended_5": 120,
    "sglang_blended_8": 120,
    "torch_scoring": 60,
    "verl_scoring": 90,
    "sglang_swap": 90,
    "loss_gathered": 45,
    "loss_plain": 45,
    "torch_plain": 90,
    "torch_blended_5": 120,
    "tests_sglang": 900,  # which start some twelve engines
    "tests_trainers": 120,
    "tests_torch": 120,
    "torch_prices": 120,
}
CPU_PATIENCE = 4.0  # of `--small`: on CPUs SGLang needs half a minute to start, on busy ones several times that


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make gpu-proof",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--small", action="store_true", help="small models on the device that is there"
    )
    parser.add_argument(
        "--again", action="store_true", help="measure what was measured before, too"
    )
    parser.add_argument(
        "--part",
        action="append",
        choices=LIMITS_S,
        metavar="NAME",
        help=f"only this part, again: {', '.join(LIMITS_S)}",
    )
    parser.add_argument(
        "--folder", type=Path, help=f"for results and logs (default: {FOLDER}, or {FOLDER}/small)"
    )
    parser.add_argument(
        "--models", type=Path, help="for the pair of models, 19 GiB (default: in that folder)"
    )
    parser.add_argument("--here", nargs=2, metavar=("PART", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.folder or (FOLDER / "small" if options.small else FOLDER)
    models = (options.models or folder / "models").resolve()
    if options.here:
        name, file = options.here
        measure_here(name, options.small, models, Path(file))
        return 0
    if not (options.small or torch.cuda.is_available()):
        _say("no CUDA device here — run it on a machine with a GPU, or with --small")
        return 2
    signal.signal(signal.SIGTERM, _interrupt)  # a batch system's way of saying Ctrl-C
    wanted = options.part or list(LIMITS_S)
    command = [sys.executable, "-m", "benchmarks.gpu", *(["--small"] if options.small else [])]
    command += ["--models", str(models), "--here"]
    patience = CPU_PATIENCE if options.small else 1.0
    parts = [
        Part(name, patience * LIMITS_S[name], [*command, name], name == "models")
        for name in LIMITS_S
    ]
    again: set[str] = set(LIMITS_S) if options.again else set(options.part or ())
    if not (models / "teacher" / "config.json").exists():
        again.add("models")
    runner = Runner(folder, place_here(), version_line(), _say, patience * TOTAL_S)
    in_use = ask_driver("memory.used")
    if in_use is not None:
        _say(f"{in_use[0]} MiB of the card are in use before it begins")
    interrupted = False
    try:
        runner.run([part for part in parts if part.name in wanted or part.name == "models"], again)
    except KeyboardInterrupt:
        interrupted = True
    return _conclude(runner, wanted, interrupted, None if options.models else models)


def all_parts() -> dict[str, Callable[[Scale], Numbers]]:
    """Name → part. Imported here and not above: the process that starts the parts needs none of
    what they import.
    """
    from benchmarks.gpu_engines import engine_parts
    from benchmarks.gpu_torch import torch_parts
    from benchmarks.gpu_turns import turn_parts

    return engine_parts() | turn_parts() | torch_parts()


def measure_here(name: str, small: bool, models: Path, file: Path) -> None:
    """Measure one part in this process; each number is in `file` as soon as it is known."""
    prepare_part()
    from benchmarks.gpu_scale import scale

    warnings = _Warnings()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", stream=sys.stdout
    )
    logging.getLogger("orchestrator").addHandler(warnings)
    measured: dict[str, float] = {}
    for numbers in all_parts()[name](scale(small, models)):
        print(numbers, flush=True)
        measured |= {key: value for key, value in numbers.items() if math.isfinite(value)}
        # Engines are started again where they are lost, with a warning: their numbers then hold
        # such a start.
        write_so_far(file, measured | ({"warnings": warnings.count} if warnings.count else {}))


class _Warnings(logging.Handler):
    """Counts the warnings of the program."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += record.levelno >= logging.WARNING


def place_here() -> dict[str, str]:
    """The card, its driver and torch."""
    card, driver = ("no GPU", "none")
    if torch.cuda.is_available():
        card, driver = ask_driver("name", "driver_version") or ("unknown", "unknown")
    return {"card": card, "driver": driver, "torch": torch.__version__}


def _conclude(runner: Runner, wanted: list[str], interrupted: bool, models: Path | None) -> int:
    """Write and show the table. The exit status: 130 after Ctrl-C, 0 if all that was wanted has
    succeeded, else 1.
    """
    results: dict[str, Result] = {}
    for name in LIMITS_S:
        result = runner.result(name)
        if result is not None:
            results[name] = result
    markdown = table(list(LIMITS_S), results, runner.place, runner.commit)
    path = runner.folder / "table.md"
    write_atomically(path, markdown)
    print(markdown)
    bad = [name for name in wanted if name not in results or results[name].failure is not None]
    if bad or interrupted:
        _say(f"the same command goes on with {', '.join(bad)}; {path}")
    elif models is not None and set(wanted) == set(LIMITS_S):
        shutil.rmtree(models, ignore_errors=True)
    return 130 if interrupted else int(bool(bad))


def _say(line: str) -> None:
    print(f"gpu-proof: {line}", file=sys.stderr, flush=True)


def _interrupt(signal_number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
