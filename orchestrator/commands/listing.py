"""`trb list`: shipped files, methods and benchmarks, and the results in a runs folder."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import yaml
from rich.console import Console

from orchestrator.commands.arguments import Parser, add_runs
from orchestrator.data.benchmarks import BENCHMARKS
from orchestrator.errors import UserError, one_of
from orchestrator.experiment.load import RECORD, known_setups, load_setup
from orchestrator.experiment.methods import METHODS
from orchestrator.models.locate import EXPERIMENTS
from orchestrator.monitor.status import overview
from orchestrator.selection.loading import load_study
from orchestrator.selection.results_folder import results_folders, submits
from orchestrator.sheet import Sheet, to_rich
from orchestrator.start_up import default_runs

Rows = Iterator[Sequence[str]]
NUMBERS = ("problems",)  # headings of columns that hold numbers


def add(parser: Parser) -> None:
    kinds = "experiments | methods | setups | benchmarks | results"
    parser.add_argument("kind", nargs="?", metavar=kinds, help="one of these lists (default: all)")
    add_runs(parser, "$TRB_RUNS, else runs")


def run(options: argparse.Namespace) -> int:
    return show_list(options.kind, (options.runs or default_runs()).resolve(), Console())


def show_list(kind: str | None, runs: Path, console: Console) -> int:
    """Print one of KINDS, or all of them; 0."""
    if kind is not None:
        one_of("list", kind, KINDS)
    for name in [kind] if kind else KINDS:
        headings, rows_of = KINDS[name]
        left = [place for place, heading in enumerate(headings) if heading not in NUMBERS]
        table = to_rich(Sheet.of(headings, rows_of(runs), left), unbroken=[0], title=name)
        shown = table if table.row_count else f"{name}: none in {runs}"
        console.print(shown, highlight=False, markup=False)
        console.print()
    return 0


def _experiments(_: Path) -> Rows:
    """Shipped experiment files; the first sentence of each file says what it is."""
    for path in sorted(EXPERIMENTS.glob("*.yaml")):
        lines = path.read_text(encoding="utf-8").splitlines()
        comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
        text = " ".join(line.removeprefix("#").strip() for line in comment)
        yield path.stem, text.partition(". ")[0].removesuffix(".")


def _methods(_: Path) -> Rows:
    for key, method in METHODS.items():
        described = [f"{name}: {knob.describe()}" for name, knob in method.knobs.items()]
        yield method.short, key, method.title, "; ".join(described) or "none"


def _setups(_: Path) -> Rows:
    here = Path("experiment.yaml")  # setups in ./setups are those of experiments that lie here
    for name in known_setups(here):
        yield name, load_setup(name, here).title


def _benchmarks(_: Path) -> Rows:
    for key, benchmark in BENCHMARKS.items():
        yield key, str(benchmark.problems), benchmark.file or "generated"


def _results(runs: Path) -> Rows:
    """Each results folder with its experiment's digest, how far it is, and its last submit."""
    for folder in results_folders(runs):
        record = folder / RECORD
        try:
            document = yaml.safe_load(record.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            document = None
        if not isinstance(document, dict):
            yield folder.name, "", "", "", "", f"{record} cannot be read"
            continue
        when, command = "", "not recorded"
        for submit in submits(folder):
            when, command = submit["at"][:16].replace("T", " "), submit["command"]
        yield folder.name, str(document.get("digest", "")), *_progress(folder), when, command


def _progress(folder: Path) -> tuple[str, str]:
    """`9 of 13` units, and the best method so far of a single setup, `Fixed ε 19.7`; else blank."""
    try:
        seen = overview(load_study(folder))
    except UserError:
        return "", ""
    scored = [family for family in seen.families if family.score is not None]
    best = max(scored, key=lambda family: family.score or 0.0, default=None)
    alone = best is not None and len({family.setup for family in seen.families}) == 1
    done = f"{seen.done} of {len(seen.units)}"
    return done, f"{best.label} {100 * (best.score or 0):.1f}" if alone and best else ""


KINDS: dict[str, tuple[Sequence[str], Callable[[Path], Rows]]] = {
    "experiments": (("name", "what it is"), _experiments),
    "methods": (("label", "key", "full name", "knobs beside lr"), _methods),
    "setups": (("name", "title"), _setups),
    "benchmarks": (("key", "problems", "file below data_dir"), _benchmarks),
    "results": (
        ("folder", "digest", "done", "best, %", "last submit (UTC)", "its command"),
        _results,
    ),
}
