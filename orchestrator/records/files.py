"""Reads and writes files that are whole or absent, and finds files that are not what was written.

A sealed file holds the sha256 of the rest of its content: a JSON object under the key SEAL, JSON
Lines in an additional last line.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import socket
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from orchestrator.errors import UserError

SEAL = "sha256"
PARSED_AT_ONCE = 500  # lines of JSON Lines
LEVEL = 6  # of compression: on solutions of MATH-500 level 9 takes a quarter longer for 1 % less


class Damaged(UserError):
    """A file of the program is not what was written; the message names the file and a remedy."""


def damaged(path: Path, what: str, remedy: str) -> Damaged:
    """A `Damaged` in the form of all its messages: `file: what is wrong; what to do`."""
    return Damaged(f"{path}: {what}; {remedy}")


def file_sha256(path: Path) -> str:
    """sha256 of a file's content, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def pretty(value: Any) -> str:
    """`value` as indented JSON, keys sorted."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write_atomically(
    path: Path, content: str | bytes, shared: bool = False, durable: bool = True
) -> None:
    """Replace `path` by `content`, text as UTF-8: a reader finds the old or the new file, whole.

    `shared` is for files that several processes may write at once: the last one to finish wins.
    Unless `durable`, a loss of power may lose the file, which is then made again.

    The content goes through a hidden scratch file beside `path`. A kill can leave it; no reader
    opens it, and the next write of a file with one writer replaces it.
    """
    data = content.encode() if isinstance(content, str) else content
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp" if shared else f".{path.name}.tmp")
    try:
        _fill(scratch, data, durable)
        os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


def check_writable(folder: Path) -> None:
    """Make a folder, and a file in it that goes again. OSError if it takes none."""
    folder.mkdir(parents=True, exist_ok=True)
    with naming(folder / "probe"), tempfile.TemporaryFile(dir=folder) as probe:
        probe.write(b"probe")
        probe.flush()


def write_once(path: Path, content: str) -> bool:
    """Write `path`, text as UTF-8, unless it exists; returns False if it does.

    The file is whole and durable once it has its name. A kill can leave a hidden scratch file
    beside it, which no reader opens.
    """
    scratch = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    try:
        _fill(scratch, content.encode(), durable=True)
        try:
            os.link(scratch, path)
        except OSError:  # the name is taken, or the file system has no hard links
            if path.exists():
                return False
            os.replace(scratch, path)  # another writer may do the same, with equal contents
    finally:
        scratch.unlink(missing_ok=True)
    sync(path.parent)
    return True


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in errors of its body: the system does so when it opens one, not at a write."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def _fill(path: Path, data: bytes, durable: bool) -> None:
    with naming(path), path.open("wb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Flush a file, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def give_usual_mode(folder: Path) -> None:
    """Give a folder's files the usual mode: safetensors lets the owner alone read weights."""
    new = folder / ".mode"
    new.touch()
    mode = new.stat().st_mode & 0o777
    new.unlink()
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(mode)


def read_bytes(path: Path, remedy: str) -> bytes | None:
    """Read a file, None if there is none; Damaged for a folder or a loop of links in its place."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise damaged(path, f"cannot be read ({error.strerror or error})", remedy) from None


def read_text(path: Path, remedy: str) -> str | None:
    """Read a text file; None if there is none. Raises Damaged if it cannot be read or is not UTF-8."""
    data = read_bytes(path, remedy)
    try:
        return None if data is None else data.decode("utf-8")
    except UnicodeDecodeError:
        raise damaged(path, "is not UTF-8 text", remedy) from None


def read_object(path: Path, remedy: str) -> dict[str, Any] | None:
    """The JSON object in a file, None if there is no file; Damaged if it holds anything else."""
    text = read_text(path, remedy)
    return None if text is None else parse_object(text, path, remedy)


def parse_json(text: str | bytes, path: Path, remedy: str, where: str = "is") -> Any:
    """The JSON value in `text`, which comes from a file. Raises Damaged if it holds none.

    `where` begins the message: `is` for the whole file, else for example `line 3 is`.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise damaged(path, f"{where} not valid JSON", remedy) from None


def parse_object(text: str | bytes, path: Path, remedy: str, where: str = "is") -> dict[str, Any]:
    """As `parse_json`, for a JSON object. Raises Damaged for any other value, too."""
    value = parse_json(text, path, remedy, where)
    if not isinstance(value, dict):
        raise damaged(path, f"{where} a {type(value).__name__} and not a JSON object", remedy)
    return value


def write_sealed(path: Path, value: dict[str, Any]) -> None:
    """Replace `path` by `value` and the sha256 of its canonical JSON."""
    write_atomically(path, pretty(value | {SEAL: _seal(value)}))


def read_sealed(path: Path, remedy: str) -> dict[str, Any] | None:
    """Read a file of `write_sealed`, None if it is missing or empty; Damaged for others."""
    text = read_text(path, remedy)
    if not text:
        return None
    value = parse_object(text, path, remedy)
    seal = value.pop(SEAL, None)
    if seal != _seal(value):
        raise damaged(path, "is not what was written", remedy)
    return value


def verify_files(folder: Path, files: Mapping[str, str], remedy: str) -> None:
    """Raise Damaged unless each of the `files` (name → sha256) in `folder` has its sha256."""
    for name, expected in files.items():
        path = folder / name
        try:
            actual = file_sha256(path)
        except OSError as error:
            raise damaged(path, f"cannot be read ({error.strerror or error})", remedy) from None
        if actual != expected:
            raise damaged(path, f"sha256 is {actual[:12]}, but {expected[:12]} was written", remedy)


def sealed_lines(lines: str, of: Mapping[str, Any] | None = None) -> str:
    """JSON Lines with a last line that holds `of`, which describes the rows, and their sha256."""
    return lines + _last_line(lines.encode(), of or {})


def unsealed_lines(
    data: bytes, path: Path, remedy: str, of: Mapping[str, Any] | None = None
) -> bytes:
    """The lines of a file of `sealed_lines` without the last; Damaged if that does not fit them."""
    body = data[: data.rfind(b"\n", 0, -1) + 1]
    last = data[len(body) :]
    if last == _last_line(body, of or {}).encode():
        return body
    other = None
    with suppress(ValueError, RecursionError):
        other = json.loads(last)
    if isinstance(other, dict) and other.pop(SEAL, None) == hashlib.sha256(body).hexdigest():
        written_as = ", ".join(f"{key} {value}" for key, value in other.items())
        raise damaged(path, f"was written in another place ({written_as})", remedy)
    raise damaged(path, "is not what was written", remedy)


def _last_line(lines: bytes, of: Mapping[str, Any]) -> str:
    return json.dumps({**of, SEAL: hashlib.sha256(lines).hexdigest()}, ensure_ascii=False) + "\n"


def compressed(text: str) -> bytes:
    """`text` as gzip, the same bytes whenever it is written: the header holds no time."""
    return gzip.compress(text.encode(), LEVEL, mtime=0)


def decompressed(data: bytes, path: Path, remedy: str) -> bytes:
    """The content of a gzip file. Raises Damaged where it is not whole."""
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error):
        raise damaged(path, "is not what was written", remedy) from None


def parse_rows(data: bytes, path: Path, remedy: str) -> Iterator[dict[str, Any]]:
    """Complete lines of JSON Lines, each an object; a torn last line is left out. Raises Damaged."""
    lines = data.split(b"\n")[:-1]
    for start in range(0, len(lines), PARSED_AT_ONCE):
        chunk = lines[start : start + PARSED_AT_ONCE]
        # One call for many lines takes half the time. If it fails, or does not give one object for
        # each line, the lines are parsed one by one, which finds the wrong line.
        try:
            rows = json.loads(b"[%b]" % b",".join(chunk))
        except (ValueError, RecursionError):
            rows = []
        if len(rows) == len(chunk) and all(isinstance(row, dict) for row in rows):
            yield from rows
        else:
            for number, line in enumerate(chunk, start + 1):
                yield parse_object(line, path, remedy, f"line {number} is")


def list_folder(folder: Path, remedy: str) -> list[str]:
    """Sorted names in a folder, none if it is missing; Damaged if something else is in its place."""
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise damaged(folder, f"cannot be read ({error.strerror or error})", remedy) from None


def _seal(value: dict[str, Any]) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
