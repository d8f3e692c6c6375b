"""Reads data files (JSON Lines, parquet) row by row, and verifies their declared content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import UserError
from orchestrator.liveness import pulse
from orchestrator.records.files import file_sha256

SUFFIXES = (".jsonl", ".parquet")
BATCH_ROWS = 256


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
    """Yield rows of a .jsonl or .parquet file, or of all such files of a folder, sorted by name.

    Few rows are in memory at once. Parquet rows hold only `columns`, unless None. UserError for a
    broken file or one of another kind.
    """
    for file in _shards(path) if path.is_dir() else [path]:
        match file.suffix:
            case ".jsonl":
                yield from iterate_jsonl(file)
            case ".parquet":
                yield from _iterate_parquet(file, columns)
            case _:
                raise UserError(
                    f"{file}: unknown kind of file: expected one of {', '.join(SUFFIXES)}"
                )


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Objects of a JSON Lines file; UserError names the first broken line."""
    return list(iterate_jsonl(path))


def iterate_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Objects of a JSON Lines file, a line at a time; UserError names the first broken line."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _parse(path, number, line)
            pulse.advance()


def text_field(path: Path | str, line: int, row: dict[str, Any], key: str) -> str:
    """`row[key]` if it is a non-empty string, else UserError."""
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{path} line {line}: {key} is {value!r}: expected a non-empty string")
    return value


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} line {number}: not UTF-8 text ({error.reason} at byte {error.start})"
        ) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} line {number}: not valid JSON ({error})") from None
    if not isinstance(row, dict):
        raise UserError(f"{path} line {number}: {type(row).__name__}: expected a JSON object")
    return row


def _shards(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES)
    if not files:
        raise UserError(f"{folder}: holds no data: expected {' or '.join(SUFFIXES)} files")
    return files


def _iterate_parquet(path: Path, columns: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path, memory_map=True)
        present = [name for name in file.schema_arrow.names if columns is None or name in columns]
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=present, use_threads=False):
            yield from batch.to_pylist()
            pulse.advance()
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise UserError(
            f"{path}: not a readable parquet file ({str(error).splitlines()[0]})"
        ) from None
