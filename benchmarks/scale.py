"""`make bench-scale`: what looking at a finished paper sweep costs, in CPU seconds of the commands
themselves.

Prints a table and writes `bench-scale.json` (name → number). `trb status`, `trb table` and `trb
report` look twice at a sweep that `paper_sweep` makes: `status_s` is the first look, which reads
all files, and `status_again_s` the next one. `plan_10k_s` plans `paper.yaml` with so many seeds
that it has 10,000 units. `--runs FOLDER` keeps the sweep there, and looks at the one that is there
already.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import cluster, overhead, paper_sweep
from benchmarks.bench import keep, show

RESULTS = Path("bench-scale.json")
SEEDS = 116  # of each of the 86 trials, with their supervised stages: 10,210 units
LOOKS = ("status", "table", "report")
TARGETS = {"plan_10k_s": 2.0, "status_s": 2.0, "table_s": 4.0, "report_s": 15.0}


def main() -> None:
    """Measure everything, show it and keep it."""
    with tempfile.TemporaryDirectory() as scratch:
        kept = sys.argv[sys.argv.index("--runs") + 1] if "--runs" in sys.argv else scratch
        results = look_seconds(Path(kept).resolve())
    results |= {"plan_10k_s": plan_seconds(), "unit_overhead_s": overhead.seconds_a_unit()}
    results |= cluster.numbers()
    title = "CPU seconds; utilisation, and makespan over its lower bound, on simulated GPUs"
    show(results, title, TARGETS)
    keep(results, RESULTS)


def look_seconds(runs: Path) -> dict[str, float]:
    """CPU seconds of each look at a finished sweep in `runs`, which is made if nothing is there."""
    if not any(runs.glob("*/config.json")):
        made_before = _children_seconds()
        make = [
            sys.executable,
            "-c",
            f"from benchmarks import paper_sweep as p; p.make(p.Path({str(runs)!r}))",
        ]
        subprocess.run(make, check=True)
        print(f"the sweep was made in {_children_seconds() - made_before:.0f} s of CPU", flush=True)
    results = {"files": float(sum(path.is_file() for path in runs.rglob("*")))}
    for name in LOOKS:
        paper_sweep.forget_looks(runs)
        for key in (f"{name}_s", f"{name}_again_s"):
            results[key] = command_seconds(
                name, str(paper_sweep.PAPER), *paper_sweep.OVERRIDES, "--runs", str(runs)
            )
    return results


def plan_seconds() -> float:
    """CPU seconds to plan 10,000 units of which nothing is there."""
    with tempfile.TemporaryDirectory() as runs:
        seeds = f"seeds=[{','.join(map(str, range(SEEDS)))}]"
        return command_seconds("plan", str(paper_sweep.PAPER), seeds, "--runs", runs)


def command_seconds(*arguments: str) -> float:
    """User and system time of one `trb` command."""
    trb, before = str(Path(sys.executable).with_name("trb")), _children_seconds()
    subprocess.run([trb, *arguments], stdout=subprocess.DEVNULL, check=True)
    return round(_children_seconds() - before, 2)


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
