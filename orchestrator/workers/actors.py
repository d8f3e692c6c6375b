"""Roles as Ray actors inside the trial's placement group. The only file that makes actors."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayTaskError
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from orchestrator.records import pulse
from orchestrator.workers.placement import COLOCATED, SPLIT, bundles
from orchestrator.workers.roles import WORKERS, Host, Roles, inline_roles, roles_of
from orchestrator.workers.spec import WorkerSpec

ASK_EVERY_S = 5.0
ANSWERS_WITHIN_S = 60.0  # a busy process may give its other thread no turn for long


class WatchedHost(Host):
    """Roles in an actor that says how far it is while it works."""

    @ray.method(concurrency_group="pulse")
    def pieces(self) -> int:
        """Pieces of work done so far."""
        return pulse.pieces()


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
    remote: Any = ray.remote  # its type knows nothing of concurrency groups
    return remote(concurrency_groups={"pulse": 1})(WatchedHost).options(**options).remote(spec)


def _remote_call(actor: Any, timeout_s: float) -> Callable[..., Any]:
    """Calls of the actor that end when it dies, does not answer while it works, or has worked for `timeout_s`."""

    def call(role: str, method: str, *arguments: Any) -> Any:
        answer = actor.call.remote(role, method, *arguments)
        deadline, done = time.monotonic() + timeout_s, -1
        while not ray.wait([answer], timeout=min(ASK_EVERY_S, max(deadline - time.monotonic(), 0.0)))[0]:
            if time.monotonic() >= deadline:
                raise GetTimeoutError(f"{role}.{method} has taken {timeout_s:g} s (runtime.worker_timeout_s)")
            before, done = done, ray.get(actor.pieces.remote(), timeout=ANSWERS_WITHIN_S)
            if done != before:  # the trial's own signs of life are those of its actors
                pulse.advance()
        try:
            return ray.get(answer)
        except RayTaskError as error:  # what the role raised, as if it had been called here
            raise (error.cause if isinstance(error.cause, Exception) else error) from error

    return call


def _stop(actors: list[Any]) -> None:
    for actor in actors:
        ray.kill(actor)
