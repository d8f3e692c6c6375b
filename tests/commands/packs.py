"""A made-up finished sweep, its pack, and packs that a stranger might have changed."""

from __future__ import annotations

import hashlib
import io
import tarfile
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
    """Name → content of every member, without the folder that holds them all."""
    members = {}
    with tarfile.open(pack, "r:gz") as archive:
        for info in archive:
            stream = archive.extractfile(info)
            assert stream is not None
            members[info.name.removeprefix(f"{NAME}/")] = stream.read()
    return members


def write_tar(pack: Path, members: Members, *others: tarfile.TarInfo) -> None:
    """A pack of these members below its folder, and of `others` without content where they say."""
    with tarfile.open(pack, "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(f"{NAME}/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for info in others:
            archive.addfile(info, io.BytesIO(bytes(info.size)))


def listed(members: Members) -> Members:
    """The members with a list of sums that is right."""
    lines = []
    for name, data in members.items():
        if name != "SHA256SUMS":
            lines.append(f"{hashlib.sha256(data).hexdigest()}  {name}\n")
    return members | {"SHA256SUMS": "".join(lines).encode()}
