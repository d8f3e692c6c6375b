"""Reads rows of data files and of hub datasets, and keeps expensive results in the user's cache.

A file's first bytes tell its kind (JSON Lines, JSON, parquet), whatever its name is. JSON may be in
gzip, begin with a byte-order mark, have Windows line ends, and hold an object in each line or all of
them in one list. Files and hub datasets are verified against their declared content.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import UserError, refuse, shown
from orchestrator.liveness import heartbeat
from orchestrator.liveness.processes import take_lock
from orchestrator.records.files import file_sha256, write_atomically

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet", ".json", ".json.gz")
IN_FOLDERS = SUFFIXES[:3]  # .json files of a folder may be settings
JSON_NAMES = (".jsonl", ".json", ".ndjson", ".gz")
GZIP, PARQUET = b"\x1f\x8b", b"PAR1"  # first bytes of such a file
BATCH_ROWS = 256
# JSON writes half of a surrogate pair as "\ud800". No tokenizer reads it, and no file can hold it.
NO_TEXT = re.compile("[\ud800-\udfff\0]")


def data_file(file: str, data_dir: str | None) -> Path:
    """The path of `file` below `data_dir`; UserError if either is missing."""
    if not data_dir:
        raise UserError(
            f"data_dir: not set, but {file} is needed: "
            "expected data_dir=FOLDER or TRB_DATA_DIR=FOLDER "
            "(`trb data fetch FOLDER` gets the data files)"
        )
    path = Path(data_dir) / file
    if not path.is_file():
        raise UserError(
            f"{path}: no such file: expected a data_dir that holds it "
            f"(`trb data fetch {data_dir}` gets shipped ones)"
        )
    return path


def verify_sha256(path: Path, expected: str | None) -> None:
    """Raise UserError unless a file, or a folder's files, have the declared content."""
    actual = folder_sha256(path) if path.is_dir() else file_sha256(path)
    if actual != expected:
        what = "the file was" if path.is_file() else "its files were"
        raise UserError(
            f"{path}: sha256 {actual}: expected {expected or 'none'}, as declared; {what} changed"
        )


def folder_sha256(folder: Path) -> str:
    """One hash over names and contents of a folder's files: the `revision` of a local folder."""
    total = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        total.update(f"{file.relative_to(folder).as_posix()}\0{file_sha256(file)}\n".encode())
    return total.hexdigest()


def iterate_rows(path: Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of `numbered_rows` without their numbers."""
    for _, row in numbered_rows(path, columns):
        yield row


def numbered_rows(
    path: Path, columns: Sequence[str] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield rows of a data file, or of all such files of a folder, sorted by name.

    Each row comes with its line in JSON Lines, or else with its number, from 1. Few rows are in
    memory at once, unless a JSON file is one list. Parquet rows hold only `columns`, unless None.
    UserError for a broken file or one of another kind.
    """
    for file in _shards(path) if path.is_dir() else [path]:
        with file.open("rb") as stream:
            start = stream.read(len(PARQUET))
        if start == PARQUET or file.suffix == ".parquet":
            yield from enumerate(_iterate_parquet(file, columns), 1)
            continue
        with gzip.open(file) if start.startswith(GZIP) else file.open("rb") as stream:
            try:
                yield from json_rows(str(file), stream)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise UserError(f"{file}: not a readable gzip file ({error})") from None


def json_rows(where: str, lines: Iterable[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of JSON Lines with their lines, or of a JSON list with their numbers.

    UserError names `where` and the first broken line.
    """
    numbered = enumerate(lines, 1)
    is_first = True
    for number, line in numbered:
        text = _decoded(where, number, line)
        if is_first and text[:1] not in ("", "{", "[") and not where.endswith((*JSON_NAMES, "-")):
            raise UserError(f"{where}: unknown kind of file: expected one of {', '.join(SUFFIXES)}")
        if is_first and text.startswith("["):
            rest = (_decoded(where, later, line) for later, line in numbered)
            rows = _parsed(where, number, "\n".join(itertools.chain([text], rest)))
            for position, row in enumerate(rows, 1):
                yield position, _object(where, position, row)
                heartbeat.advance()
            return
        if text:
            is_first = False
            yield number, _object(where, number, _parsed(where, number, text))
        heartbeat.advance()


def text_field(path: Path | str, line: int, row: dict[str, Any], key: str) -> str:
    """`row[key]` if it is a non-empty string of Unicode characters other than NUL, else UserError."""
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{path} line {line}: {key} is {shown(value)}: expected a non-empty string")
    if broken := NO_TEXT.search(value):
        raise UserError(
            f"{path} line {line}: {key} holds {broken[0]!r} at character {broken.start() + 1}: "
            "expected Unicode text"
        )
    return value


def _decoded(where: str, number: int, line: bytes) -> str:
    """The text of a line without byte-order mark, which joined files have inside, and blanks."""
    try:
        return line.decode("utf-8-sig").strip(" \t\r\n")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{where} line {number}: not UTF-8 text ({error.reason} at byte {error.start})"
        ) from None


def _parsed(where: str, number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits
        raise UserError(f"{where} line {number}: not valid JSON ({error})") from None


def _object(where: str, number: int, row: Any) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise UserError(f"{where} line {number}: {type(row).__name__}: expected a JSON object")
    return row


def _shards(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.rglob("*") if path.name.endswith(IN_FOLDERS))
    if not files:
        raise UserError(f"{folder}: holds no data: expected {' or '.join(IN_FOLDERS)} files")
    return files


def _iterate_parquet(path: Path, columns: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path, memory_map=True)
        present = [name for name in file.schema_arrow.names if columns is None or name in columns]
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=present, use_threads=False):
            yield from batch.to_pylist()
            heartbeat.advance()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: a text is not UTF-8 ({error.reason})") from None
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(
            f"{path}: not a readable parquet file ({str(error).splitlines()[0]})"
        ) from None


# --- rows of a Hugging Face hub dataset at a pinned commit ---


def check_hub_id(key: str, path: str, revision: str | None) -> None:
    """Raise UserError unless `path` and `revision` name a hub dataset at a commit."""
    if path.startswith((".", "/", "~")):
        raise refuse(f"{key}.path", path, "a file or folder that is there, or a hub id")
    if not re.fullmatch("[0-9a-f]{40}", revision or ""):
        raise refuse(
            f"{key}.revision", revision, f"the commit (40 hex digits) of the hub dataset {path}"
        )


def iterate_hub(
    key: str,
    path: str,
    revision: str | None,
    columns: Sequence[str] | None,
    split: str,
    subset: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Stream rows in the dataset's order: none are kept on disk, few in memory.

    `key` names the dataset in messages; `columns` None takes all. UserError if the dataset is
    unavailable.
    """
    check_hub_id(key, path, revision)
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(
            f"{key}.path: {path!r} is no local file; for hub data: pip install 'trb[hub]'"
        ) from None
    try:
        rows = datasets.load_dataset(
            path, name=subset, revision=revision, split=split, streaming=True
        )
        yield from rows if columns is None else rows.select_columns(list(columns))
    except Exception as error:  # of the library, its HTTP client (it varies by version), or formats
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(
            f"{key}.path: {path}@{revision} cannot be had from the hub ({reason})"
        ) from None


# --- results in the user's cache folder ---
#
# A name such as `majorities-3f9a0c….json` holds a hash or version of every input. Other inputs have
# another name, and no file goes stale. Files of a removed folder are made again.


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/trb`, by default `~/.cache/trb`."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "trb"


def is_cached(name: str) -> bool:
    """Whether `cached` would find `name`."""
    return (cache_folder() / name).is_file()


def cached(name: str, make: Callable[[], str]) -> str:
    """The text kept as `name`. If it is missing, one process makes it while the others wait.

    The file is written atomically. UserError if the cache folder cannot be written.
    """
    path = cache_folder() / name
    if not path.is_file():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = path.with_name(f".{name}.lock").open("a")
        except OSError as error:
            raise UserError(
                f"{path.parent}: {error.strerror}: expected a folder that can be written, "
                "as XDG_CACHE_HOME=FOLDER"
            ) from None
        with lock:
            take_lock(lock, wait=True)
            if not path.is_file():  # else another process has made it while this one waited
                write_atomically(path, make())
    return path.read_text(encoding="utf-8")
