"""The manifest of a pack: its members with size and sha256, and what they are of.

| member | holds |
|---|---|
| `manifest.json` | this manifest |
| `results/<name>/` | `experiment.yaml`, resolved; `table.md`, `table.json`; `submits.jsonl` |
| `models/<recipe>.made.json` | sha256 of the files of a model that a recipe made |
| `<unit id>/` | the run directory of a unit, without its checkpoints |

Unpacked, these are a runs folder, and `results/<name>` names the experiment to every command.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.config import Name
from orchestrator.errors import UserError, refuse
from orchestrator.experiment.strict import build
from orchestrator.records.files import damaged, parse_object, pretty
from orchestrator.records.rundir import DONE

FORMAT = 1
MANIFEST = "manifest.json"
# Text and numbers alone. A pack brings no code: an experiment may name a grader by its module, and
# Python would import a file that a stranger has put into the working folder.
SUFFIXES = (".json", ".jsonl", ".txt", ".md", ".yaml", ".gz")
GET_AGAIN = "get the file again from where it was published"
SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Member:
    """A file of a pack: its size in bytes, and its sha256 in hexadecimal."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The members of a pack by name. `about` says what they are of, for people and programs:
    experiment, code, models, table, and how much was left out.
    """

    name: str
    members: Mapping[str, Member]
    about: Mapping[str, Any]

    @property
    def size(self) -> int:
        """Bytes of all members when unpacked."""
        return sum(member.size for member in self.members.values())

    def text(self) -> str:
        """The text of `manifest.json`."""
        members = {name: asdict(member) for name, member in self.members.items()}
        return pretty({"format": FORMAT, "name": self.name, "members": members, **self.about})


def parse_manifest(data: bytes, pack: Path) -> Manifest:
    """The manifest in `data`. UserError for an unknown format, and for members that no pack has."""
    path = pack / MANIFEST
    values = parse_object(data, path, GET_AGAIN)
    version = values.pop("format", None)
    if version != FORMAT:
        expected = f"{FORMAT}, the format of this version of trb"
        raise refuse(f"{path}: format", version, expected)
    name = values.pop("name", None)
    build(Name, name, f"{path}: name")
    listed = values.pop("members", None)
    if not isinstance(listed, dict):
        raise damaged(path, "lists no members", GET_AGAIN)
    members = {}
    for member, described in listed.items():
        check_name(member, pack)
        members[member] = _member(described, path, member)
    return Manifest(name, members, values)


def check_name(name: str, pack: Path) -> None:
    """UserError unless a member's name is a plain relative path of a kind of file that packs hold.

    It has no empty or hidden part, so that it can lead neither outside (`..`, `/etc`) nor into
    the folders that the program keeps for itself (`.index`, `.locks`).
    """
    parts = name.split("/")
    plain = all(part and not part.startswith(".") for part in parts)
    if not (plain and name.isprintable() and "\\" not in name and ":" not in name):
        raise refuse(
            f"{pack}: member", name, "a path that stays below the folder it is unpacked to"
        )
    if not (name.endswith(SUFFIXES) or parts[-1] == DONE):
        raise refuse(f"{pack}: member", name, f"{DONE}, or a file of {', '.join(SUFFIXES)}")


def _member(described: object, path: Path, name: str) -> Member:
    """Size and sha256 of one member, as the manifest in `path` describes it."""
    match described:
        case {"size": int(size), "sha256": str(sha256)} if size >= 0 and SHA256.fullmatch(sha256):
            return Member(size, sha256)
    raise UserError(f"{path}: {name}: expected its size and sha256; {GET_AGAIN}")
