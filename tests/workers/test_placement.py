"""Where the roles of a trial are placed: bundles of each mode, ranks, and what each role's engines
are opened for.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.config import Placement, RoleGpus
from orchestrator.engines.memory import ONE_GPU, Gpus
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.methods import Knobs
from orchestrator.experiment.units import Kind, expand
from orchestrator.rules import RoleName
from orchestrator.workers.members import job_of
from orchestrator.workers.spec import bundles, evaluator_bundles, ranks
from tests import tiny
from tests.sweeps import ROOT

ROLES: tuple[RoleName, ...] = ("rollout", "teacher", "learner")
SPLIT = Placement("split", 4, RoleGpus(rollout=2), 8)
PAPER = ROOT / "experiments" / "paper.yaml"
ENGINES = ("engine.sampler=sglang", "engine.trainer=verl")


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        (Placement(cpus=2), [{"CPU": 2}]),
        (Placement(gpus=0.5, cpus=2), [{"CPU": 2, "GPU": 0.5}]),
        (Placement(gpus=4, cpus=8), [{"CPU": 8, "GPU": 4}]),
        (Placement("colocated", 1, cpus=4), [{"CPU": 2}, {"CPU": 2, "GPU": 1}]),
        (Placement("split", cpus=4), [{"CPU": 1}] * 4),
        (SPLIT, [{"CPU": 2}, {"CPU": 2, "GPU": 2}, {"CPU": 2, "GPU": 1}, {"CPU": 2, "GPU": 1}]),
    ],
)
def test_bundles_of_each_mode(placement: Placement, expected: list[dict[str, float]]) -> None:
    assert bundles(placement) == expected
    assert sum(bundle.get("GPU", 0) for bundle in bundles(placement)) == placement.gpus
    [evaluator] = evaluator_bundles(placement)
    assert evaluator == {"CPU": placement.cpus} | (
        {"GPU": min(placement.gpus, 1)} if placement.gpus else {}
    )


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        (Placement(cpus=4), (4, 4, 4)),
        (Placement("colocated", cpus=8), (2, 2, 2)),
        (Placement("split", cpus=8), (2, 2, 2)),
        (Placement(gpus=0.5, cpus=8), (1, 1, 1)),
        (Placement(gpus=4), (4, 4, 4)),
        (Placement("split", 7, RoleGpus(1, 2, 4)), (1, 2, 4)),
    ],
)
def test_ranks_are_the_gpus_of_a_role_or_the_cores_of_its_process(
    placement: Placement, expected: tuple[int, ...]
) -> None:
    assert tuple(ranks(placement, role) for role in ROLES) == expected


@pytest.mark.parametrize(
    ("placement", "gpus", "takes_turns"),
    [
        (Placement(), (ONE_GPU,) * 3, False),
        (Placement(gpus=0.5), (ONE_GPU,) * 3, True),
        (Placement(gpus=2), (Gpus(2),) * 3, True),
        (Placement("colocated", 1), (ONE_GPU,) * 3, True),
        (Placement("split", cpus=4), (ONE_GPU,) * 3, False),
        (SPLIT, (Gpus(2, apart=True), Gpus(1, apart=True), Gpus(1, apart=True)), False),
    ],
)
def test_each_role_has_a_job_of_its_own(
    placement: Placement, gpus: tuple[Gpus, ...], takes_turns: bool, tmp_path: Path
) -> None:
    spec = tiny.worker_spec(tmp_path)
    spec = replace(spec, unit=replace(spec.unit, placement=placement))
    jobs = [job_of(spec, role) for role in ROLES]
    assert tuple(job.on for job in jobs) == gpus
    assert [job.ranks for job in jobs] == [ranks(placement, role) for role in ROLES]
    assert {job.takes_turns for job in jobs} == {takes_turns}


@pytest.mark.parametrize(
    ("kind", "method", "knobs", "sampling"),
    [
        ("trial", "vanilla", {}, ("decoding",)),
        ("trial", "trust_region", {"epsilon0": 0.01, "K": 2}, ("decoding", "blending")),
        ("trial", "fixed_epsilon", {"epsilon": 0.01}, ("blending",)),
        ("sft", None, {}, ("answering",)),
    ],
)
def test_the_job_of_a_unit_says_how_it_samples(
    kind: Kind, method: str | None, knobs: Knobs, sampling: tuple[str, ...], tmp_path: Path
) -> None:
    spec = tiny.worker_spec(tmp_path)
    unit = replace(spec.unit, kind=kind, method=method, knobs=knobs, steps=4)
    jobs = [job_of(replace(spec, unit=unit), role) for role in ROLES]
    assert {job.sampling for job in jobs} == {sampling}


def test_gpus_of_a_split_trial_are_the_sum_of_its_roles() -> None:
    split = ("runtime.placement.mode=split", "runtime.placement.role_gpus.rollout=2", *ENGINES)
    loaded = load_experiment(PAPER, split)  # the file says gpus: 1, which was of another mode
    assert loaded.runtime.placement == Placement("split", 4, RoleGpus(2, 1, 1), 4)
    assert load_experiment(PAPER, [*split, "runtime.placement.gpus=4"]).runtime == loaded.runtime
    own = (
        "methods.vanilla.placement.mode=split",
        "methods.vanilla.placement.role_gpus.learner=2",
        *ENGINES,
    )
    assert load_experiment(PAPER, own).placements["vanilla"] == Placement(
        "split", 4, RoleGpus(1, 1, 2), 4
    )
    back = load_experiment(PAPER, [*split, "methods.vanilla.placement=inline"]).placements[
        "vanilla"
    ]
    assert back == Placement("inline", 4, None, 4), (
        "another mode takes nothing of the roles' GPUs but their number"
    )


def test_ids_know_nothing_of_placements() -> None:
    ids = [unit.id for unit in expand(load_experiment(PAPER, ENGINES))]
    for given in (("gpus=4",), ("mode=split", "role_gpus.rollout=2")):
        placed = load_experiment(PAPER, [*ENGINES, *(f"runtime.placement.{key}" for key in given)])
        assert [unit.id for unit in expand(placed)] == ids
