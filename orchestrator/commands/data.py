"""`trb data`: where the data files come from. `trb data fetch` gets them (`data.fetching`)."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.data.sources import SOURCES
from orchestrator.errors import unknown


def table(only: Sequence[str] = ()) -> str:
    """Every data file with its source, commit, licence and content, as text."""
    lines = []
    for key in chosen(only):
        source = SOURCES[key]
        lines += [f"{key}: {source.file}, {source.rows:,} rows", f"  sha256 {source.sha256}"]
        lines += [f"  from {u.repository} {u.path}\n       at {u.commit}" for u in source.upstream]
        lines.append(f"  licence stated there: {source.licence}")
    lines += [
        "AMC and AIME problems are the property of the Mathematical Association of America.",
        "OpenThoughts3 is read from the hub at the commit its setup names (pip install 'trb[hub]').",
        "`trb submit` fetches those that an experiment declares. `trb data fetch FOLDER` gets all of them; then",
        "data_dir=FOLDER, or TRB_DATA_DIR=FOLDER. Without either the folder is `data`.",
    ]
    return "\n".join(lines)


def chosen(only: Sequence[str]) -> list[str]:
    """The keys of SOURCES in `only`, each once, or all of them; UserError that names one that is
    none.
    """
    for key in only:
        if key not in SOURCES:
            raise unknown(f"--only: {key}", "data file", key, SOURCES)
    return list(dict.fromkeys(only)) or list(SOURCES)
