"""Opens a pack: verifies every byte, and refuses what could harm the machine it is opened on.

A pack may come from a stranger. Its manifest is read first, with a limit, and the zip must hold
exactly the members that it lists: plain files, with these sizes, at paths below the folder. What
unpacks to absurdly much more than its own size is refused before anything is written.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.archive.manifest import GET_AGAIN, MANIFEST, Manifest, Member, parse_manifest
from orchestrator.archive.packing import CHUNK, digest_before_seal
from orchestrator.errors import refuse
from orchestrator.experiment.resolved import RECORD, RESULTS
from orchestrator.records.files import damaged, file_sha256

MOST_MANIFEST = 256 << 20  # bytes: a million members
# Logs and counts shrink to a tenth or a twentieth; deflate can shrink zeros to a thousandth.
MOST_GROWTH = 200
SMALL = 64 << 20  # bytes that any pack may unpack to
BROKEN_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError)


@dataclass(frozen=True)
class OpenedPack:
    """A pack whose members lie in `folder`, which is a runs folder; `sha256` is the pack's own."""

    folder: Path
    manifest: Manifest
    sha256: str

    @property
    def results(self) -> Path:
        """The results folder, which names the experiment to every command."""
        return self.folder / RESULTS / self.manifest.name


def open_pack(pack: Path, folder: Path | None) -> OpenedPack:
    """Unpack a verified pack to `folder`, by default one with the experiment's name here.

    A folder that an earlier call made of the same pack is verified and kept. UserError for a folder
    that holds anything else, Damaged for a pack or a folder that was changed.
    """
    with _zip_of(pack) as archive:
        manifest = _manifest(archive, pack)
        folder = folder or Path(manifest.name)
        sha256 = _verify_seal(archive, pack, manifest)
        _check_members(archive, pack, manifest)
        if folder.exists():
            _check_opened_before(folder, manifest)
            return OpenedPack(folder, manifest, sha256)
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.absolute().parent))
        try:
            for name, member in manifest.members.items():
                _unpack_member(archive, pack, name, member, scratch / name)
            _check_experiment(scratch / RESULTS / manifest.name / RECORD, pack)
            (scratch / MANIFEST).write_text(manifest.text(), encoding="utf-8")
            scratch.chmod(0o755)  # mkdtemp lets the owner alone in
            os.rename(scratch, folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return OpenedPack(folder, manifest, sha256)


@contextmanager
def _zip_of(pack: Path) -> Iterator[zipfile.ZipFile]:
    """The pack as a zip. UserError if it is none, or not whole."""
    if not pack.is_file():
        raise refuse("FILE.trb", str(pack), "a file that trb pack wrote")
    try:
        archive = zipfile.ZipFile(pack)
    except BROKEN_ZIP as error:
        raise damaged(pack, f"is no whole pack ({error})", GET_AGAIN) from None
    with archive:
        yield archive


def _manifest(archive: zipfile.ZipFile, pack: Path) -> Manifest:
    try:
        info = archive.getinfo(MANIFEST)
    except KeyError:
        raise refuse("FILE.trb", str(pack), f"a pack, which has a {MANIFEST}") from None
    if info.file_size > MOST_MANIFEST:
        raise refuse(
            f"{pack}: {MANIFEST}", f"{info.file_size:,} bytes", f"at most {MOST_MANIFEST:,}"
        )
    try:
        with archive.open(info) as stream:
            data = stream.read(MOST_MANIFEST)
    except BROKEN_ZIP as error:
        raise damaged(pack / MANIFEST, f"cannot be unpacked ({error})", GET_AGAIN) from None
    return parse_manifest(data, pack)


def _verify_seal(archive: zipfile.ZipFile, pack: Path, manifest: Manifest) -> str:
    """The sha256 of the pack. Damaged, with the name of the first member that differs, unless the
    file ends in the sha256 of all before.
    """
    with pack.open("rb") as stream:
        digest = digest_before_seal(stream, pack.stat().st_size)
        seal = stream.read()
    if digest.hexdigest().encode() == seal:
        digest.update(seal)
        return digest.hexdigest()
    for name, member in manifest.members.items():
        _unpack_member(archive, pack, name, member, None)
    raise damaged(pack, "is not what was packed, in the zip's own fields", GET_AGAIN)


def _check_members(archive: zipfile.ZipFile, pack: Path, manifest: Manifest) -> None:
    """UserError unless the zip holds the listed members, each once, and unpacks to a sane size."""
    infos = archive.infolist()
    names = sorted(info.filename for info in infos)
    if names != sorted([*manifest.members, MANIFEST]):
        other = set(names) ^ {*manifest.members, MANIFEST}
        name = min(other) if other else "the same member twice"
        raise refuse(f"{pack}: member", name, f"the members that {MANIFEST} lists, each once")
    for info in infos:
        mode = info.external_attr >> 16
        plain = stat.S_IFMT(mode) in (0, stat.S_IFREG)  # Windows writes none
        if info.is_dir() or info.flag_bits & 1 or not plain:
            raise refuse(f"{pack}: member", info.filename, "a plain file, no link and no folder")
        listed = manifest.members.get(info.filename)
        if listed is not None and listed.size != info.file_size:
            expected = f"{listed.size:,} bytes, as {MANIFEST} lists it"
            raise refuse(f"{pack}: {info.filename}", f"{info.file_size:,} bytes", expected)
    size = pack.stat().st_size
    # Members that share compressed bytes are the other way to make a small file large.
    most = max(MOST_GROWTH * size, SMALL)
    if manifest.size > most or sum(info.compress_size for info in infos) > size:
        expected = f"at most {most:,}, for a file of {size:,} bytes"
        raise refuse(f"{pack}: size", f"{manifest.size:,} bytes unpacked", expected)


def _unpack_member(
    archive: zipfile.ZipFile, pack: Path, name: str, member: Member, target: Path | None
) -> None:
    """Write one member to `target`, or only verify it. Raises Damaged unless it is as listed."""
    digest, left = hashlib.sha256(), member.size
    with ExitStack() as files:
        file = None
        if target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            file = files.enter_context(target.open("xb"))
        try:
            stream = files.enter_context(archive.open(name))
            while left >= 0 and (data := stream.read(CHUNK)):
                digest.update(data)
                left -= len(data)
                if file is not None:
                    file.write(data)
        except (*BROKEN_ZIP, KeyError) as error:
            raise damaged(pack / name, f"cannot be unpacked ({error})", GET_AGAIN) from None
    if left != 0 or digest.hexdigest() != member.sha256:
        raise damaged(pack / name, "is not what was packed", GET_AGAIN)


def _check_experiment(path: Path, pack: Path) -> None:
    """UserError unless the experiment is there and resolved.

    A reference such as `${oc.env:HF_TOKEN}` would take a value of the reader's own environment.
    """
    if not path.is_file():
        raise refuse(f"{pack}: {RECORD}", None, "the experiment that the runs are of")
    if b"${" in path.read_bytes():
        raise refuse(f"{pack}: {RECORD}", "${", "values alone, without references")


def _check_opened_before(folder: Path, manifest: Manifest) -> None:
    """UserError unless the folder was made of the same pack; Damaged if its files have changed."""
    try:
        before = (folder / MANIFEST).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        before = None
    if before != manifest.text():
        expected = "a folder that does not exist, or one that trb open made of this pack"
        raise refuse("--to", str(folder), expected)
    for name, member in manifest.members.items():
        path = folder / name
        try:
            sha256 = file_sha256(path)
        except OSError as error:
            raise damaged(path, f"cannot be read ({error.strerror})", f"remove {folder}") from None
        if sha256 != member.sha256:
            raise damaged(path, "is not what was packed", f"remove {folder}")
