"""`trb open`: verify a packed sweep, unpack it, and print its table as this machine computes it.

Python's `data` filter refuses paths that lead outside of the folder, links out of it and devices.
Every file must have the sha256 of the pack's list.
"""

from __future__ import annotations

import argparse
import gzip
import os
import platform
import shlex
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from analysis.table import formats, terminal
from analysis.table.model import results_table
from orchestrator.commands.arguments import Parser
from orchestrator.commands.pack import MANIFEST, SUFFIXES, SUMS, as_opened
from orchestrator.errors import refuse
from orchestrator.experiment.load import RECORD, RESULTS
from orchestrator.planning.numbers import counted
from orchestrator.records.files import damaged, file_sha256, read_object, read_text, verify_files
from orchestrator.records.rundir import DONE
from orchestrator.selection.loading import load_study, refuse_damaged

GET_AGAIN = "get the file again from where it was published"


@dataclass(frozen=True)
class OpenedPack:
    """A pack whose `files` lie in `folder`, a runs folder; `sha256` is the pack's own, `about` its
    manifest.
    """

    folder: Path
    name: str
    files: int
    about: Mapping[str, Any]
    sha256: str

    @property
    def results(self) -> Path:
        """The results folder, which names the experiment to every command."""
        return self.folder / RESULTS / self.name


def add(parser: Parser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE.tar.gz", help="a file that trb pack wrote")
    text = "folder to unpack to (default: NAME in this folder, by the sweep's name)"
    parser.option("--to", "DIR", text, Path)


def run(options: argparse.Namespace) -> int:
    """0 if the table that this version computes from the runs is the one in the pack, else 1.

    The table alone goes to stdout.
    """
    opened = open_pack(options.file, options.to)
    study = load_study(opened.results)
    refuse_damaged(study)
    table = results_table(as_opened(study))
    Console().print(terminal.to_rich(table, brief=True), crop=False)
    same = formats.to_markdown(table) == (opened.results / "table.md").read_text(encoding="utf-8")
    lines = [f"{options.file}: sha256 {opened.sha256}; all {opened.files:,} files are as packed"]
    for code in opened.about["code"]:
        lines.append(f"{counted(code['units'], 'unit')} made with {_code_text(code)}")
    if same:
        lines.append("the table above was computed here from the runs, and is the packed one")
    else:
        lines.append(
            f"the table computed here is not the packed one: {opened.results / 'table.md'}"
        )
    lines.append("go on with:")
    results = shlex.quote(str(opened.results))
    for name in ("table", "report", "view", "status"):
        lines.append(f"  trb {name} {results}")
    lines.append(f"  trb rerun {shlex.quote(str(options.file))} --cell METHOD,COLUMN")
    print(*lines, sep="\n", file=sys.stderr)
    return 0 if same else 1


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


def open_pack(pack: Path, folder: Path | None) -> OpenedPack:
    """Unpack a verified pack to `folder`, by default one with the experiment's name here.

    A folder that an earlier call made of the same pack is verified and kept. UserError for a folder
    that holds anything else, Damaged for a pack or a folder that was changed.
    """
    parent = (folder or Path("pack")).absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".pack.", dir=parent))
    try:
        unpacked = _unpack(pack, scratch)
        _check(unpacked, pack)
        folder = folder or Path(unpacked.name)
        if not folder.exists():
            os.rename(unpacked, folder)
        elif read_text(folder / SUMS, GET_AGAIN) == read_text(unpacked / SUMS, GET_AGAIN):
            verify_files(folder, _sums(folder), f"remove {folder}")
        else:
            expected = "a folder that does not exist, or one that trb open made of this pack"
            raise refuse("--to", str(folder), expected)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    about = read_object(folder / MANIFEST, GET_AGAIN) or {}
    return OpenedPack(folder, unpacked.name, len(_sums(folder)), about, file_sha256(pack))


def _unpack(pack: Path, scratch: Path) -> Path:
    """The one folder of the pack, unpacked to `scratch`. UserError for anything but a pack."""
    if not hasattr(tarfile, "data_filter"):
        raise refuse("python", platform.python_version(), "3.11.4 or newer, which unpacks safely")
    if not pack.is_file():
        raise refuse("FILE.tar.gz", str(pack), "a file that trb pack wrote")
    try:
        with tarfile.open(pack, "r:gz") as archive:
            archive.extractall(scratch, filter="data")
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        expected = f"a whole .tar.gz file that trb pack wrote ({error})"
        raise refuse("FILE.tar.gz", str(pack), expected) from None
    folders = sorted(scratch.iterdir())
    if len(folders) != 1 or not (folders[0] / SUMS).is_file():
        raise refuse("FILE.tar.gz", str(pack), f"one folder with its {SUMS}, as trb pack writes it")
    return folders[0]


def _sums(folder: Path) -> dict[str, str]:
    """The listed files of an unpacked pack with their sha256."""
    sums = {}
    for line in (folder / SUMS).read_text(encoding="utf-8", errors="replace").splitlines():
        sha256, _, name = line.partition("  ")
        sums[name] = sha256
    return sums


def _check(unpacked: Path, pack: Path) -> None:
    """Raise UserError for a file that no pack holds, and Damaged for one that is not as listed."""
    sums = _sums(unpacked)
    present = set()
    for path in unpacked.rglob("*"):
        if not path.is_dir():
            present.add(str(path.relative_to(unpacked)))
    for name in sorted(present ^ {*sums, SUMS}):
        raise damaged(pack, f"{name} is not both in it and in its {SUMS}", GET_AGAIN)
    for name in sorted(sums):
        if not (name.endswith(SUFFIXES) or Path(name).name == DONE):
            raise refuse(f"{pack}: member", name, f"{DONE}, or a file of {', '.join(SUFFIXES)}")
    verify_files(unpacked, sums, GET_AGAIN)
    experiment = unpacked / RESULTS / unpacked.name / RECORD
    # A reference such as `${oc.env:HF_TOKEN}` would take a value of the reader's own environment.
    if not experiment.is_file() or b"${" in experiment.read_bytes():
        raise refuse(f"{pack}: {RECORD}", None, "the resolved experiment that the runs are of")
