"""A made-up finished sweep, its pack, and packs that a stranger might have changed."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import expand
from tests.fake_runs import QUICKSTART, write_run

NAME = "packed"
Members = dict[str, bytes]


def finished(folder: Path) -> list[str]:
    """A finished made-up sweep in `folder/runs`; the words that name it to a command."""
    path, runs = folder / f"{NAME}.yaml", folder / "runs"
    written = yaml.safe_load(QUICKSTART.read_text(encoding="utf-8"))
    del written["methods"]["skd"]
    path.write_text(yaml.safe_dump(written | {"evaluation": {"rescore": False}}))
    experiment = load_experiment(path)
    for unit in expand(experiment):
        steps = {"base_eval": [0], "sft": []}.get(unit.kind, [20, 40, 60])
        scores = {step: [step // 20, (unit.seed or 0) % 3] for step in steps}
        write_run(runs, experiment, unit, scores, unit.steps)
    return [str(path), "--runs", str(runs)]


def members_of(pack: Path) -> Members:
    """Name → content of every member, the manifest included."""
    with zipfile.ZipFile(pack) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_zip(
    pack: Path,
    members: Members,
    change: Callable[[zipfile.ZipInfo], None] | None = None,
    twice: str | None = None,
) -> None:
    """A zip of these members that ends in the sha256 of all before; `change` edits each entry.

    The member named `twice` has two entries.
    """
    entries = list(members.items())
    if twice is not None:
        entries.append((twice, members[twice]))
    with zipfile.ZipFile(pack, "w") as archive:
        archive.comment = b"0" * 64
        for name, data in entries:
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            if change is not None:
                change(info)
            archive.writestr(info, data)
    body = pack.read_bytes()[:-64]
    pack.write_bytes(body + hashlib.sha256(body).hexdigest().encode())


def listed(members: Members, changes: Mapping[str, object] | None = None) -> Members:
    """The members with a manifest that lists them, with these changes."""
    manifest = json.loads(members["manifest.json"])
    described = {}
    for name, data in members.items():
        if name != "manifest.json":
            described[name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    text = json.dumps(manifest | {"members": described} | dict(changes or {}))
    return members | {"manifest.json": text.encode()}
