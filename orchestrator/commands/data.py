"""`trb data`: where the data files come from. `trb data fetch` gets them, by their declared content or not at all."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from pathlib import Path

from orchestrator.data.files import file_sha256
from orchestrator.data.sources import SOURCES, Source, Upstream, to_bytes
from orchestrator.errors import UserError, refuse, unknown
from orchestrator.records.files import write_atomically

RAW_FILES = "https://raw.githubusercontent.com"
MOST_BYTES = 64 * 2**20  # of one file upstream; the largest has 5 MB
TIMEOUT_S = 60.0


def table(only: Sequence[str] = ()) -> str:
    """Every data file with its source, commit, licence and content, as text."""
    lines = []
    for key in _keys(only):
        source = SOURCES[key]
        lines += [f"{key}: {source.file}, {source.rows:,} rows", f"  sha256 {source.sha256}"]
        lines += [f"  from {u.repository} {u.path}\n       at {u.commit}" for u in source.upstream]
        lines.append(f"  licence stated there: {source.licence}")
    lines += [
        "AMC and AIME problems are the property of the Mathematical Association of America.",
        "OpenThoughts3 is read from the hub at the commit its setup names (pip install 'trb[hub]').",
        "Get them with `trb data fetch FOLDER`; then data_dir=FOLDER, or TRB_DATA_DIR=FOLDER.",
    ]
    return "\n".join(lines)


def fetch(folder: Path, only: Sequence[str] = (), mirror: str = RAW_FILES) -> Iterable[str]:
    """Put the data files below `folder`; a line for each as it is there.

    `mirror` holds raw files as `owner/name/commit/path`: a URL, or a local folder. Files that are there already and
    right are left alone. UserError at the first that cannot be had or has other content; nothing of it is written.
    """
    read: dict[Upstream, bytes] = {}
    for key in _keys(only):
        source, path = SOURCES[key], folder / SOURCES[key].file
        if path.is_file() and file_sha256(path) == source.sha256:
            yield f"{path}: there already"
            continue
        for upstream in source.upstream:
            if upstream not in read:
                read[upstream] = _read(mirror, upstream)
        content = _converted(key, source, [read[upstream] for upstream in source.upstream])
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content, shared=True)
        yield f"{path}: {source.rows:,} rows from {source.upstream[0].repository}"


def _keys(only: Sequence[str]) -> list[str]:
    for key in only:
        if key not in SOURCES:
            raise unknown(f"--only: {key}", "data file", key, SOURCES)
    return list(dict.fromkeys(only)) or list(SOURCES)


def _read(mirror: str, upstream: Upstream) -> bytes:
    if "://" not in mirror:
        try:
            return (Path(mirror) / upstream.place).read_bytes()
        except OSError as error:
            raise refuse("--from", mirror, f"a folder with {upstream.place} ({error.strerror})") from None
    url = f"{mirror.rstrip('/')}/{upstream.place}"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            content = answer.read(MOST_BYTES + 1)
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(
            f"{url}: cannot be had ({' '.join(str(reason).split())}) — a network, or --from MIRROR"
        ) from None
    if len(content) > MOST_BYTES:
        raise UserError(f"{url}: more than {MOST_BYTES:,} bytes — a file of a few megabytes")
    return content


def _converted(key: str, source: Source, files: Sequence[bytes]) -> bytes:
    """The file as it must be; UserError that says what came instead."""
    try:
        rows = source.convert(files)
    except Exception as error:  # whatever another content makes of the conversion
        came = f"{len(files[0]):,} bytes that are no rows as expected ({type(error).__name__})"
        raise UserError(f"{key}: {came} — {source.upstream[0].place}") from None
    content = to_bytes(rows)
    actual = hashlib.sha256(content).hexdigest()
    if actual != source.sha256:
        raise UserError(f"{key}: {len(rows):,} rows with sha256 {actual} came — {source.rows:,} with {source.sha256}")
    return content
