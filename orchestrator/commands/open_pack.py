"""`trb open`: verify a packed sweep, unpack it, and print its table as this machine computes it."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from analysis.table import build, formats, terminal
from orchestrator.archive.packing import as_opened
from orchestrator.archive.unpacking import OpenedPack, open_pack
from orchestrator.commands.arguments import Parser
from orchestrator.planning.numbers import counted
from orchestrator.selection.loading import load_study, refuse_damaged


def add(parser: Parser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE.tar.gz", help="a file that trb pack wrote")
    text = "folder to unpack to (default: NAME in this folder, by the sweep's name)"
    parser.option("--to", "DIR", text, Path)


def run(options: argparse.Namespace) -> int:
    return open_and_show(options.file, options.to, Console())


def open_and_show(pack: Path, folder: Path | None, console: Console) -> int:
    """0 if the table that this version computes from the runs is the one in the pack, else 1."""
    opened = open_pack(pack, folder)
    study = load_study(opened.results)
    refuse_damaged(study)
    table = build.results_table(as_opened(study))
    console.print(terminal.to_rich(table, brief=True), crop=False)
    same = formats.to_markdown(table) == (opened.results / "table.md").read_text(encoding="utf-8")
    say(f"{pack}: sha256 {opened.sha256}; all {opened.files:,} files are as packed")
    for code in opened.about["code"]:
        say(f"{counted(code['units'], 'unit')} made with {_code_text(code)}")
    if same:
        say("the table above was computed here from the runs, and is the packed one")
    else:
        say(f"the table computed here is not the packed one: {opened.results / 'table.md'}")
    say("go on with:")
    for line in _next(opened, pack):
        say(f"  {line}")
    return 0 if same else 1


def say(line: str) -> None:
    """Print a line to stderr: stdout has the table alone."""
    print(line, file=sys.stderr)


def _code_text(code: dict[str, Any]) -> str:
    """`commit 1a2b3c4d5e6f, torch 2.13.0+cpu, transformers 5.12.1`."""
    commit = f"commit {code['commit'][:12]}" if code["commit"] else "an installed package"
    if code["dirty"]:
        commit += " with uncommitted changes"
    words = [commit]
    for name in ("torch", "transformers"):
        if code["versions"].get(name):
            words.append(f"{name} {code['versions'][name]}")
    return ", ".join(words)


def _next(opened: OpenedPack, pack: Path) -> list[str]:
    results = shlex.quote(str(opened.results))
    commands = [f"trb {name} {results}" for name in ("table", "report", "view", "status")]
    return [*commands, f"trb rerun {shlex.quote(str(pack))} --cell METHOD,COLUMN"]
