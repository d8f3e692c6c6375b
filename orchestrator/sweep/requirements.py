"""Requirements of every machine of a cluster: the runs folder itself, models and data.

Imports no Ray. The driver lists the requirements, which its own machine meets; `lacking` checks
them on each machine.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.config import Setup
from orchestrator.cores import cores_here
from orchestrator.data.benchmarks import declared_files
from orchestrator.engines.interface import ModelFolder
from orchestrator.errors import UserError, refuse
from orchestrator.liveness.leases import Lease, holder_of
from orchestrator.models.locate import on_this_machine
from orchestrator.selection.study import Study
from orchestrator.workers.spec import Pairs

SIGN = ".sweep"  # suffix of the file that identifies a runs folder


@dataclass(frozen=True)
class Requirement:
    """A file or folder that every machine needs because `key` is `value`.

    `size` is the size in bytes of a model's file on the driver's machine. `hub` is the id of a
    model that each machine keeps in its own cache.
    """

    key: str
    value: str
    path: Path = Path()
    size: int | None = None
    hub: str = ""


@dataclass(frozen=True)
class Lack:
    """A requirement that a machine does not meet, and why; None if the machine cannot be asked."""

    requirement: Requirement | None
    reason: str

    def on(self, node: str) -> UserError:
        """The UserError about a node: `data_dir: '/data' — the same on every node; gpu-3: …`."""
        if self.requirement is None:
            return refuse(
                "--address", node, f"a node with this program and its packages ({self.reason})"
            )
        return refuse(
            self.requirement.key,
            self.requirement.value,
            f"the same on every node; {node}: {self.reason}",
        )


@contextmanager
def signed(runs: Path) -> Iterator[Path]:
    """Keep a file in the runs folder while the body runs, by which other machines recognise it.

    The file has a new name each time, so no copy of the folder has it. Files left by killed sweeps
    are removed.
    """
    locks = runs / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    for sign in locks.glob(f"*{SIGN}"):
        if holder_of(sign) is None:
            sign.unlink(missing_ok=True)
    lease = Lease(locks / f"{uuid.uuid4().hex}{SIGN}")
    try:
        yield lease.path
    finally:
        lease.release(remove=True)


def requirements(study: Study, pairs: Pairs, sign: Path) -> list[Requirement]:
    """List the requirements of a study; this machine meets them all."""
    needed = [Requirement("--runs", str(study.runs), sign)]
    for name, setup in study.experiment.setups.items():
        for role, model in zip(("student", "teacher"), pairs[name], strict=True):
            if not Path(model.path).is_relative_to(study.runs.resolve()):
                needed += _of_model(f"{name}.{role}.path", model)
        needed += _of_data(name, setup, study.experiment.data_dir)
    return needed


def answer_of_node(needed: Sequence[Requirement]) -> tuple[Lack | None, int]:
    """Return what this machine lacks, and the cores that its processes may use."""
    return lacking(needed), cores_here()


def lacking(needed: Sequence[Requirement]) -> Lack | None:
    """Return the first requirement that this machine lacks, or None. Fetches models of a hub."""
    for requirement in needed:
        path = requirement.path
        if requirement.hub:
            try:
                on_this_machine(ModelFolder("", hub=requirement.hub))
            except UserError as error:
                return Lack(requirement, str(error))
        elif not path.exists():
            if path.suffix == SIGN:
                return Lack(requirement, "another folder, or none")
            return Lack(requirement, f"no {path.name} there")
        elif requirement.size is not None:
            size = path.stat().st_size
            if size != requirement.size:
                return Lack(requirement, f"{path.name} has {size} bytes, not {requirement.size}")
    return None


def _of_model(key: str, model: ModelFolder) -> list[Requirement]:
    """Require the files of a folder, by size.

    Hashing gigabytes on every node would load the network for minutes.
    """
    if model.hub:
        return [Requirement(key, model.hub, hub=model.hub)]
    files = sorted(path for path in Path(model.path).rglob("*") if path.is_file())
    return [Requirement(key, model.path, path, path.stat().st_size) for path in files]


def _of_data(name: str, setup: Setup, data_dir: str | None) -> list[Requirement]:
    """Require the files that the setup names; their readers compare content and declaration."""
    needed: list[Requirement] = []
    folder = data_dir or ""  # always set if files are needed
    for file in declared_files(setup):
        needed.append(Requirement("data_dir", folder, Path(folder).absolute() / file))
    path = setup.data.path
    if setup.data.source != "jsonl" and path and Path(path).exists():
        needed.append(Requirement(f"{name}.data.path", path, Path(path).absolute()))
    for benchmark, run in setup.evaluation.benchmarks.items():
        if run.path is not None and Path(run.path).exists():
            key = f"{name}.evaluation.benchmarks.{benchmark}.path"
            needed.append(Requirement(key, run.path, Path(run.path).absolute()))
    return needed
