"""Writes a pack: the run directories of an experiment without weights, and what they are of.

The same files give the same bytes: members are sorted, their times are fixed, and no clock is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from orchestrator.archive.manifest import MANIFEST, SUFFIXES, Manifest, Member, check_name
from orchestrator.archive.secrets import SecretSearch
from orchestrator.errors import UserError
from orchestrator.experiment.probe import probe_unit
from orchestrator.experiment.resolved import RECORD, RESULTS, resolved_text
from orchestrator.models.made_models import ROLES, folder_of, record_path
from orchestrator.records.files import sync
from orchestrator.records.provenance import file_sha256_at
from orchestrator.records.rundir import CHECKPOINTS, DONE
from orchestrator.records.slices import TEXTS
from orchestrator.selection.results_folder import SUBMITS, content_digest, runs_digest, submits
from orchestrator.selection.results_folder import folder_of as results_of
from orchestrator.selection.study import Invocation, Study

LOCK = "docker/lock/runtime.txt"  # versions of all packages, in a checkout
FIRST_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can hold
READABLE_FILE = 0o100644 << 16
# The zip's comment is the sha256 of every byte before it, so that no change to the archive's own
# fields passes unseen either: a zip has checksums for contents alone.
SEAL_LENGTH = 64
CHUNK = 1 << 20  # bytes that are read at once
LOCAL_PATH = re.compile(rb"/(?:home|Users|root)(?:/[A-Za-z0-9._-]+)*")


@dataclass
class LeftOut:
    """Files and their bytes, counted."""

    files: int = 0
    size: int = 0

    def add(self, path: Path) -> None:
        self.files += 1
        self.size += path.stat().st_size


@dataclass(frozen=True)
class Packed:
    """A pack that was written: its size, and what a reader learns and does not learn from it.

    `hosts` and `local_paths` are names of machines and folders below a home in its files.
    """

    path: Path
    size: int
    sha256: str
    manifest: Manifest
    weights: LeftOut
    others: LeftOut
    hosts: list[str]
    local_paths: list[str]


def as_opened(study: Study) -> Study:
    """The study as `trb` names it beside an opened pack, so that a table's advice is the same."""
    return replace(
        study,
        invocation=Invocation((f"{study.experiment.name}/{RESULTS}/{study.experiment.name}",)),
    )


def write_pack(study: Study, output: Path, tables: Mapping[str, str], texts: bool) -> Packed:
    """Write the pack of a finished and undamaged study to `output`, whole or not at all.

    `tables` are the files of the table by name, `texts` whether those of responses go along.
    UserError names a file that holds a secret.
    """
    weights, others = LeftOut(), LeftOut()
    contents: dict[str, Path | bytes] = dict(_run_files(study, texts, weights, others))
    folder = f"{RESULTS}/{study.experiment.name}"
    experiment = _experiment_text(study)
    contents[f"{folder}/{RECORD}"] = experiment.encode()
    contents[f"{folder}/{SUBMITS}"] = _submits_text(study).encode()
    for name, text in tables.items():
        contents[f"{folder}/{name}"] = text.encode()
    about = {
        "experiment": yaml.safe_load(experiment),
        "code": _code(study),
        "models": _models(study),
        "table": json.loads(tables["table.json"]),
        "left_out": {"weights": vars(weights), "others": vars(others), "texts": not texts},
    }
    scratch = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        with scratch.open("w+b") as stream:
            with zipfile.ZipFile(stream, "w") as archive:
                archive.comment = b"0" * SEAL_LENGTH
                members, local_paths = _add_members(archive, output, contents)
                manifest = Manifest(study.experiment.name, members, about)
                _add(archive, MANIFEST, manifest.text().encode())
            size, sha256 = _seal(stream)
        os.replace(scratch, output)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    sync(output.absolute().parent)
    return Packed(output, size, sha256, manifest, weights, others, _hosts(study), local_paths)


def _add_members(
    archive: zipfile.ZipFile, output: Path, contents: Mapping[str, Path | bytes]
) -> tuple[dict[str, Member], list[str]]:
    """Add files and texts under their names; what they are, and the folders below a home in them.

    Each file is read once, so that its sha256 is that of the bytes in the pack.
    """
    search = SecretSearch()
    members: dict[str, Member] = {}
    local_paths: set[str] = set()
    for name, content in sorted(contents.items()):
        data = content.read_bytes() if isinstance(content, Path) else content
        line = search.line_of(data)
        if line is not None:
            where = content if isinstance(content, Path) else name
            expected = "expected none; take it out before packing"
            raise UserError(f"{where}:{line}: holds a key or token: {expected}")
        check_name(name, output)
        for path in LOCAL_PATH.findall(data):
            local_paths.add(path.decode())
        members[name] = Member(len(data), hashlib.sha256(data).hexdigest())
        _add(archive, name, data)
    return members, sorted(local_paths)


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, FIRST_TIME)
    info.create_system = 3  # the same on every system
    info.external_attr = READABLE_FILE
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, data)


def _seal(stream: BinaryIO) -> tuple[int, str]:
    """Put the sha256 of all before the comment into the comment. Size and sha256 of the file."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    digest = digest_before_seal(stream, size)
    seal = digest.hexdigest().encode()
    stream.seek(size - SEAL_LENGTH)
    stream.write(seal)
    stream.flush()
    os.fsync(stream.fileno())
    digest.update(seal)
    return size, digest.hexdigest()


def digest_before_seal(stream: BinaryIO, size: int) -> hashlib._Hash:
    """The sha256 of a pack of `size` bytes without its seal, from the beginning of `stream` on."""
    digest, left = hashlib.sha256(), size - SEAL_LENGTH
    while left > 0 and (data := stream.read(min(CHUNK, left))):
        digest.update(data)
        left -= len(data)
    return digest


# --- what goes into it ---


def _run_files(
    study: Study, texts: bool, weights: LeftOut, others: LeftOut
) -> Iterator[tuple[str, Path]]:
    """Member name and path of each file of run directories and models; the rest is counted."""
    for unit_id in _unit_ids(study):
        unit = study.runs / unit_id
        for folder, folders, names in os.walk(unit):
            here = Path(folder)
            if here == unit and CHECKPOINTS in folders:
                folders.remove(CHECKPOINTS)
                for path in (unit / CHECKPOINTS).rglob("*"):
                    if path.is_file():
                        weights.add(path)
            # `os.walk` goes into the folders that this very list still has.
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                path = here / name
                wanted = name == DONE or name.endswith(SUFFIXES)
                if name.startswith(".") or not wanted or (name.endswith(TEXTS) and not texts):
                    others.add(path)
                else:
                    yield str(path.relative_to(study.runs)), path
    for setup in study.experiment.setups.values():
        for role in ROLES:
            model = getattr(setup, role)
            if model.recipe is not None:
                made = record_path(folder_of(model, setup, study.runs))
                if made.is_file():
                    yield f"models/{made.name}", made


def _unit_ids(study: Study) -> list[str]:
    """Ids of the units, and of the probes that were taken."""
    ids = [unit.id for unit in study.units]
    for setup in study.experiment.setups:
        with suppress(UserError):  # the experiment has no budget to probe
            probe = probe_unit(study.experiment, setup, study.runs)
            if study.reader(probe).trained:
                ids.append(probe.id)
    return ids


def _experiment_text(study: Study) -> str:
    """The resolved experiment. A reader's machine has a data folder of its own."""
    digests = {"digest": content_digest(study.experiment), "runs": runs_digest(study)}
    return resolved_text(replace(study.experiment, data_dir=None), digests)


def _submits_text(study: Study) -> str:
    """The noted submits, without the names of the user and the machine."""
    lines = []
    for line in submits(results_of(study.experiment.name, study.runs)):
        lines.append(json.dumps(line | {"user": "", "host": ""}, ensure_ascii=False) + "\n")
    return "".join(lines)


# --- what they are of ---


def _code(study: Study) -> list[dict[str, Any]]:
    """Each state of the code that units were made with: commit, whether it was changed, the sha256
    of its lock and the versions of its packages.
    """
    units = Counter[str]()  # by the state as JSON, since a dict is no key
    for unit in study.units:
        origin = study.reader(unit).provenance()
        dirty = None if origin.get("dirty_diff") is None else bool(origin["dirty_diff"])
        commit = origin.get("commit")
        state = {"commit": commit, "dirty": dirty, "versions": origin.get("versions", {})}
        units[json.dumps(state, sort_keys=True)] += 1
    states = []
    for text, count in sorted(units.items()):
        state = json.loads(text)
        lock = file_sha256_at(state["commit"], LOCK) if state["commit"] else None
        states.append(state | {"lock_sha256": lock, "units": count})
    return states


def _models(study: Study) -> dict[str, dict[str, Any]]:
    """Setup → role → the values that fix the model: sha256 of its weights, or its revision."""
    found: dict[str, dict[str, Any]] = {}
    for unit in study.units:
        for role in ROLES:
            if role in unit.identity:
                found.setdefault(unit.setup, {})[role] = unit.identity[role]
    return found


def _hosts(study: Study) -> list[str]:
    """Names of the machines that worked on the units, as far as these noted them."""
    hosts: set[str] = set()
    for unit in study.units:
        for row in study.reader(unit).attempts():
            hosts.add(str(row.get("host", {}).get("name") or ""))
    return sorted(hosts - {""})
