"""Roles as Ray actors inside the trial's placement group. The only file that makes actors.

Bundle 0 is the trial itself; the others carry the roles: `colocated` puts rollout, teacher and evaluator in one actor
and the learner in another on the same bundle; `split` gives each role its own bundle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from orchestrator.config import Placement
from orchestrator.workers.roles import WORKERS, Host, Roles, inline_roles, roles_of
from orchestrator.workers.spec import WorkerSpec

COLOCATED = (("rollout", "teacher", "evaluator"), ("learner",))
SPLIT = (("rollout",), ("teacher",), ("evaluator",), ("learner",))


def bundles(placement: Placement) -> list[dict[str, float]]:
    """Resources of a trial's placement group; bundle 0 is the trial."""
    match placement.mode:
        case "inline":
            whole = {"CPU": placement.cpus}
            return [whole | {"GPU": placement.gpus} if placement.gpus else whole]
        case "colocated":
            half = {"CPU": placement.cpus / 2}
            return [half, half | {"GPU": placement.gpus} if placement.gpus else half]
        case _:
            share = {"CPU": placement.cpus / (len(SPLIT) + 1)}
            return [share] * (len(SPLIT) + 1)


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
        return ray.get(actor.call.remote(role, method, *arguments), timeout=timeout_s)

    return call


def _stop(actors: list[Any]) -> None:
    for actor in actors:
        ray.kill(actor)
