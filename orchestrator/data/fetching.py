"""Gets data files from their `data.sources`, with the declared content or not at all."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from orchestrator.data.files import file_sha256
from orchestrator.data.sources import SOURCES, Source, Upstream, to_bytes
from orchestrator.errors import UserError, refuse
from orchestrator.records.files import write_atomically

RAW_FILES = "https://raw.githubusercontent.com"
MOST_BYTES = 64 * 2**20  # of one file upstream; the largest has 5 MB
TIMEOUT_S = 60.0


def fetch(folder: Path, keys: Iterable[str], mirror: str | None = None) -> Iterator[str]:
    """Put the data files of these `keys` of SOURCES below `folder`, and yield a line for each.

    `mirror` (a URL or a local folder) holds raw files as `owner/name/commit/path`; the default is
    TRB_DATA_MIRROR, else RAW_FILES. Existing files are never replaced. UserError at the first file
    that is unavailable or has other content than declared; nothing of it is written.
    """
    mirror = mirror or os.environ.get("TRB_DATA_MIRROR") or RAW_FILES
    read: dict[Upstream, bytes] = {}
    for key in keys:
        source = SOURCES[key]
        path = folder / source.file
        if path.is_file():
            if file_sha256(path) != source.sha256:
                raise UserError(
                    f"{path}: another file is there already: "
                    "expected another folder, or this file moved away"
                )
            yield f"{path}: there already"
            continue
        for upstream in source.upstream:
            if upstream not in read:
                read[upstream] = _read(mirror, upstream)
        content = _converted(key, source, [read[upstream] for upstream in source.upstream])
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content, shared=True)
        first = source.upstream[0]
        where = f"{first.repository} at {first.commit[:12]} (licence: {source.licence})"
        yield f"{path}: {source.rows:,} rows of {where}, sha256 as declared"


def _read(mirror: str, upstream: Upstream) -> bytes:
    if "://" not in mirror:
        try:
            return (Path(mirror) / upstream.place).read_bytes()
        except OSError as error:
            key = "--from or TRB_DATA_MIRROR"
            raise refuse(
                key, mirror, f"a folder with {upstream.place} ({error.strerror})"
            ) from None
    url = f"{mirror.rstrip('/')}/{upstream.place}"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            content = answer.read(MOST_BYTES + 1)
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = " ".join(str(getattr(error, "reason", None) or error).split())
        elsewhere = (
            "`trb data fetch FOLDER` where a network is, then data_dir=FOLDER; "
            "or TRB_DATA_MIRROR=URL"
        )
        raise UserError(f"{url}: cannot be had ({reason}); {elsewhere}") from None
    if len(content) > MOST_BYTES:
        raise UserError(
            f"{url}: more than {MOST_BYTES:,} bytes: expected a file of a few megabytes"
        )
    return content


def _converted(key: str, source: Source, files: Sequence[bytes]) -> bytes:
    """Convert upstream files to the declared file; UserError that describes any other result."""
    try:
        rows = source.convert(files)
    except Exception as error:  # unexpected content can break a conversion anywhere
        came = f"{len(files[0]):,} bytes that are no rows as expected ({type(error).__name__})"
        raise UserError(f"{key}: {came}: expected what {source.upstream[0].place} has") from None
    content = to_bytes(rows)
    actual = hashlib.sha256(content).hexdigest()
    if actual != source.sha256:
        raise UserError(
            f"{key}: {len(rows):,} rows with sha256 {actual} came: "
            f"expected {source.rows:,} with {source.sha256}"
        )
    return content
