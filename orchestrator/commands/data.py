"""`trb data`: where the data files come from. `trb data fetch` gets them (`data.sources`)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from orchestrator.commands.arguments import Parser
from orchestrator.data.sources import SOURCES, fetch
from orchestrator.errors import unknown
from orchestrator.experiment.load import data_folder


def add(parser: Parser) -> None:
    actions, text = ("sources", "fetch"), "default: sources"
    parser.add_argument("action", nargs="?", choices=actions, default="sources", help=text)
    text = "where to put them (default: TRB_DATA_DIR, else data)"
    parser.add_argument("folder", nargs="?", type=Path, help=text)
    parser.option("--only", "KEY,…", "some of the files, for example math500,gsm8k")
    text = "URL or folder of owner/name/commit/path files (default: TRB_DATA_MIRROR, else GitHub)"
    parser.option("--from", "MIRROR", text, dest="mirror")


def run(options: argparse.Namespace) -> int:
    keys = chosen(options.only.split(",") if options.only else [])
    if options.action == "sources":
        print(table(keys))
        return 0
    folder = options.folder or Path(data_folder(None))
    for line in fetch(folder, keys, options.mirror):
        print(line, flush=True)
    print(f"use them with data_dir={folder}, or TRB_DATA_DIR={folder.resolve()}")
    return 0


def table(keys: Sequence[str]) -> str:
    """Data files with their sources, commits, licences and contents, as text."""
    lines = []
    for key in keys:
        source = SOURCES[key]
        lines += [f"{key}: {source.file}, {source.rows:,} rows", f"  sha256 {source.sha256}"]
        for place in source.upstream:
            lines += [f"  from {place.repository} {place.path}", f"       at {place.commit}"]
        lines.append(f"  licence stated there: {source.licence}")
    lines += [
        "AMC and AIME problems are the property of the Mathematical Association of America.",
        "OpenThoughts3 is read from the hub at the commit its setup names (pip install 'trb[hub]').",
        "`trb submit` fetches the files that an experiment declares, `trb data fetch FOLDER` all.",
        "Use them with data_dir=FOLDER, or TRB_DATA_DIR=FOLDER. The default folder is `data`.",
    ]
    return "\n".join(lines)


def chosen(only: Sequence[str]) -> list[str]:
    """The keys of SOURCES in `only`, each once, or all of them. UserError names an unknown one."""
    for key in only:
        if key not in SOURCES:
            raise unknown(f"--only: {key}", "data file", key, SOURCES)
    return list(dict.fromkeys(only)) or list(SOURCES)
