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
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import torch

from benchmarks.part_runner import Part, Result, Runner, ask_driver, prepare_part, write_so_far
from orchestrator.records.files import write_atomically
from orchestrator.records.provenance import version_line

if TYPE_CHECKING:
    from benchmarks.gpu_parts import Numbers
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
TARGETS = {"blend_vs_vanilla": 1.3, "blend_vs_lockstep": 0.6}
TENSORS, DEVICE, GRANTED = "_torch_gib", "_device_gib", "_granted_gib"
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
    from benchmarks.gpu_parts import PARTS

    return PARTS


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


# --- the table: a row for each part, and for each phase that memory is granted ---


def table(
    parts: Sequence[str], results: Mapping[str, Result], place: Mapping[str, str], commit: str
) -> str:
    """Rows of all parts in their order, under a line that says where they were measured; absent
    numbers are empty.
    """
    where = ", ".join(f"{name} {value}" for name, value in place.items())
    lines = [
        f"`make gpu-proof`, {where}, {commit}, {date.today().isoformat()}",
        "",
        "| part | seconds | peak of the card, GiB | measured |",
        "|---|---:|---:|---|",
    ]
    for part in parts:
        if part in results:
            result = results[part]
            peak = _gib(result.device_peak_gib)
            lines.append(
                f"| `{part}` | {result.seconds:.0f} | {peak} | {_measured(result, commit)} |"
            )
        else:
            lines.append(f"| `{part}` |  |  | not measured |")
    prices = blending_prices(results)
    if prices:
        lines.append(f"| blended ÷ (plain + scoring) |  |  | {_shown(prices)} |")
    memory = [row for part in parts if part in results for row in memory_rows(results[part])]
    if memory:
        lines += [
            "",
            "| phase | tensors, GiB | card, GiB | granted, GiB |",
            "|---|---:|---:|---:|",
            *memory,
        ]
    return "\n".join(lines) + "\n"


def memory_rows(result: Result) -> list[str]:
    """Peaks of the phases that the program grants memory for, beside what it grants; bold where
    they are larger.
    """
    rows = []
    for name, granted in result.measured.items():
        if name.endswith(GRANTED):
            phase = name.removesuffix(GRANTED)
            tensors, card = (result.measured.get(f"{phase}{kind}") for kind in (TENSORS, DEVICE))
            shown = f"**{_gib(card)}**" if card is not None and card > granted else _gib(card)
            rows.append(
                f"| `{result.part}` {phase.replace('_', ' ')} | {_gib(tensors)} | {shown} | {_gib(granted)} |"
            )
    return rows


def _measured(result: Result, commit: str) -> str:
    """Why it failed, another commit, and all numbers but those of the table of memory."""
    notes = [] if result.failure is None else [f"**FAILED**: {result.failure}"]
    if result.where.get("commit") != commit:
        notes.append(f"at {result.where.get('commit')}")
    numbers = {
        name: value
        for name, value in result.measured.items()
        if not name.endswith((TENSORS, DEVICE, GRANTED))
    }
    if numbers:
        notes.append(_shown(numbers))
    return "; ".join(notes).replace("|", "\\|")


def _gib(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _shown(numbers: Mapping[str, float]) -> str:
    """`tokens per s 9,812, blend vs vanilla 1.21 (target ≤ 1.3)`."""
    shown = []
    for name, value in numbers.items():
        number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        target = f" (target ≤ {TARGETS[name]:g})" if name in TARGETS else ""
        shown.append(f"{name.replace('_', ' ')} {number}{target}")
    return ", ".join(shown)


def blending_prices(results: Mapping[str, Result]) -> dict[str, float]:
    """Seconds of blended rollouts, which bring their scores, over those of plain ones and of
    scoring them.

    Both engines' rollouts are scored by the torch engine. A price whose parts are not all measured
    is left out.
    """
    prices = {}
    for engine, lengths in (("sglang", (3, 5, 8)), ("torch", (5,))):
        apart = _sum_of(results, [(f"{engine}_plain", "rollout_s"), ("torch_scoring", "scoring_s")])
        for length in lengths:
            together = _sum_of(results, [(f"{engine}_blended_{length}", "rollout_s")])
            if apart is not None and together is not None:
                prices[f"{engine}_{length}"] = together / apart
    return prices


def _sum_of(results: Mapping[str, Result], wanted: Iterable[tuple[str, str]]) -> float | None:
    """The sum of numbers of parts; None unless all are there."""
    total = 0.0
    for part, name in wanted:
        if part not in results or name not in results[part].measured:
            return None
        total += results[part].measured[name]
    return total


if __name__ == "__main__":
    sys.exit(main())
