"""Runs roles as Ray actors in the trial's placement group. The only file that makes actors."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayTaskError
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from orchestrator.liveness import heartbeat
from orchestrator.workers.roles import Host, Inline, Roles
from orchestrator.workers.spec import COLOCATED, SPLIT, RoleName, WorkerSpec, bundles

ASK_EVERY_S = 5.0
ANSWERS_WITHIN_S = 60.0  # a busy process may starve its other thread for long
First = TypeVar("First")
Second = TypeVar("Second")


class WatchedHost(Host):
    """Workers in an actor that reports progress while it works."""

    @ray.method(concurrency_group="pulse")
    def pieces(self) -> int:
        """Pieces of work done so far."""
        return heartbeat.pieces()


def start_roles(spec: WorkerSpec) -> Roles:
    """Start the roles of a trial according to its placement."""
    placement = spec.unit.placement
    if placement.mode == "inline":
        return Inline(spec)
    actors: dict[RoleName, Any] = {}
    for index, roles in enumerate(COLOCATED if placement.mode == "colocated" else SPLIT):
        bundle = 1 if placement.mode == "colocated" else index + 1
        actor = _actor(spec, bundle, sharing=len(COLOCATED) if placement.mode == "colocated" else 1)
        actors |= dict.fromkeys(roles, actor)
    return Remote(actors, spec.runtime.worker_timeout_s)


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


class Remote:
    """Workers in actors: calls return at once, and values move directly between actors."""

    def __init__(self, actors: dict[RoleName, Any], timeout_s: float):
        self._actors = actors
        self._timeout_s = timeout_s

    def call(self, role: RoleName, method: Callable[..., First], *arguments: Any) -> There[First]:
        (handle,) = self._call(role, method, arguments, results=1)
        return handle

    def call_for_two(
        self, role: RoleName, method: Callable[..., tuple[First, Second]], *arguments: Any
    ) -> tuple[There[First], There[Second]]:
        first, second = self._call(role, method, arguments, results=2)
        return first, second

    def _call(
        self, role: RoleName, method: Callable[..., Any], arguments: Any, results: int
    ) -> list[There[Any]]:
        actor = self._actors[role]
        # Ray resolves references among the top-level arguments, and fetches the values from the
        # actors that made them.
        values: list[Any] = []
        for argument in arguments:
            values.append(argument.reference if isinstance(argument, There) else argument)
        answer = actor.call.options(num_returns=results).remote(role, method, *values)
        references = answer if results > 1 else [answer]
        name = f"{role}.{method.__name__}"
        return [There(reference, actor, name, self._timeout_s) for reference in references]

    def close(self) -> None:
        killed: set[int] = set()
        for actor in self._actors.values():
            if id(actor) not in killed:  # roles may share an actor
                ray.kill(actor)
                killed.add(id(actor))


class There(Generic[First]):
    """A handle to the result of an actor's call `name`, due `timeout_s` seconds after the call."""

    def __init__(self, reference: Any, actor: Any, name: str, timeout_s: float):
        self.reference = reference
        self._actor = actor
        self._name = name
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s

    def get(self) -> First:
        """Wait for the result. Raises the worker's error, GetTimeoutError, and Ray's actor errors.

        Fails early if the actor is dead or does not answer.
        """
        done = -1
        while True:
            left = max(self._deadline - time.monotonic(), 0.0)
            ready, _ = ray.wait([self.reference], timeout=min(ASK_EVERY_S, left))
            if ready:
                break
            if time.monotonic() >= self._deadline:
                raise GetTimeoutError(
                    f"{self._name} has taken {self._timeout_s:g} s (runtime.worker_timeout_s)"
                )
            pieces = ray.get(self._actor.pieces.remote(), timeout=ANSWERS_WITHIN_S)
            if pieces != done:  # an actor's progress is the trial's sign of life
                heartbeat.advance()
            done = pieces
        try:
            return ray.get(self.reference)
        except RayTaskError as error:  # raise the worker's own error, as a local call would
            raise (error.cause if isinstance(error.cause, Exception) else error) from error
