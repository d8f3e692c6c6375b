"""Roles as Ray actors inside the trial's placement group. The only file that makes actors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayTaskError
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from orchestrator.placement import COLOCATED, SPLIT, bundles
from orchestrator.workers.roles import WORKERS, Host, Roles, inline_roles, roles_of
from orchestrator.workers.spec import WorkerSpec


def start_roles(spec: WorkerSpec) -> Roles:
    """The roles of a trial where its placement says."""
    placement = spec.unit.placement
    if placement.mode == "inline":
        return inline_roles(spec)
    groups = COLOCATED if placement.mode == "colocated" else SPLIT
    actors: list[Any] = []
    calls: dict[str, Callable[..., Any]] = {}
    for index, roles in enumerate(groups):
        bundle = 1 if placement.mode == "colocated" else index + 1
        actor = _actor(spec, bundle, sharing=len(COLOCATED) if placement.mode == "colocated" else 1)
        actors.append(actor)
        calls |= dict.fromkeys(roles, _remote_call(actor, spec.runtime.worker_timeout_s))
    assert set(calls) == set(WORKERS)
    return roles_of(calls, lambda: _stop(actors))


def _actor(spec: WorkerSpec, bundle: int, sharing: int) -> Any:
    resources = bundles(spec.unit.placement)[bundle]
    group = get_current_placement_group()
    assert group is not None, "a trial always runs inside its placement group"
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
    options: dict[str, Any] = {
        "num_cpus": resources["CPU"] / sharing,
        "num_gpus": resources.get("GPU", 0) / sharing,
        "scheduling_strategy": strategy,
        "max_restarts": 0,  # a lost role ends the attempt; the trial resumes from its last commit
    }
    return ray.remote(Host).options(**options).remote(spec)


def _remote_call(actor: Any, timeout_s: float) -> Callable[..., Any]:
    def call(role: str, method: str, *arguments: Any) -> Any:
        try:
            return ray.get(actor.call.remote(role, method, *arguments), timeout=timeout_s)
        except RayTaskError as error:  # what the role raised, as if it had been called here
            raise (error.cause if isinstance(error.cause, Exception) else error) from error

    return call


def _stop(actors: list[Any]) -> None:
    for actor in actors:
        ray.kill(actor)
