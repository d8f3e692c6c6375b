"""A trial's view of its roles: calls of workers in any process, and handles to their results.

Rollouts, scores and weights pass between roles as handles; the trial fetches digests and metrics
only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from orchestrator.liveness.processes import place
from orchestrator.workers.members import Engines, LearnerWorker, RolloutWorker, TeacherWorker
from orchestrator.workers.spec import RoleName, WorkerSpec

First = TypeVar("First")
Second = TypeVar("Second")
Held = TypeVar("Held", covariant=True)


class Handle(Protocol[Held]):
    """A result that a role has made or is making; it stays in its process until `get`."""

    def get(self) -> Held:
        """Wait for the result and fetch it. Raises the role's error."""
        ...


class Roles(Protocol):
    """All roles of a trial: calls methods of workers in their processes.

    Handles among the arguments arrive as values.
    """

    def call(
        self, role: RoleName, method: Callable[..., First], *arguments: Any
    ) -> Handle[First]: ...

    def call_for_two(
        self, role: RoleName, method: Callable[..., tuple[First, Second]], *arguments: Any
    ) -> tuple[Handle[First], Handle[Second]]:
        """As `call`, with one handle for each part of the result."""
        ...

    def close(self) -> None: ...


def start(roles: Roles, role: RoleName, step: int) -> dict[str, Any]:
    """Load the models with which a role begins at step `step`; returns its host and process."""
    match role:
        case "rollout":
            roles.call(role, RolloutWorker.start, step).get()
        case "teacher":
            roles.call(role, TeacherWorker.start).get()
        case "learner":
            roles.call(role, LearnerWorker.start).get()
    return roles.call(role, _place_of).get()


def _place_of(worker: Any) -> dict[str, Any]:
    """The host and process of a worker; called in that process."""
    return place()


def refresh(roles: Roles, step: int) -> None:
    """Let the rollout role sample from the learner's weights after `step` steps."""
    weights = roles.call("learner", LearnerWorker.publish, step)
    roles.call("rollout", RolloutWorker.load, weights).get()


# --- where workers live ---


class Host:
    """Some of the workers in one process, around shared engines; each opens at its first call."""

    def __init__(self, spec: WorkerSpec):
        self._spec = spec
        self._engines = Engines(spec)
        self._workers: dict[RoleName, Any] = {}

    def call(self, role: RoleName, method: Callable[..., First], *arguments: Any) -> First:
        """Call `method`, a function of the role's class, on this process's worker."""
        if role not in self._workers:
            self._workers[role] = self._open(role)
        return method(self._workers[role], *arguments)

    def close(self) -> None:
        """Drop the workers and close their engines."""
        self._workers.clear()
        self._engines.close()

    def _open(self, role: RoleName) -> RolloutWorker | TeacherWorker | LearnerWorker:
        match role:
            case "rollout":
                return RolloutWorker(self._spec, self._engines)
            case "teacher":
                return TeacherWorker(self._spec, self._engines)
            case "learner":
                return LearnerWorker(self._spec, self._engines)


@dataclass(frozen=True)
class Here(Generic[Held]):
    """A handle to a value in this process."""

    value: Held

    def get(self) -> Held:
        return self.value


class Inline:
    """All workers in this process; calls run at once."""

    def __init__(self, spec: WorkerSpec):
        self._host = Host(spec)

    def call(self, role: RoleName, method: Callable[..., First], *arguments: Any) -> Here[First]:
        values: list[Any] = []
        for argument in arguments:
            values.append(argument.value if isinstance(argument, Here) else argument)
        return Here(self._host.call(role, method, *values))

    def call_for_two(
        self, role: RoleName, method: Callable[..., tuple[First, Second]], *arguments: Any
    ) -> tuple[Here[First], Here[Second]]:
        first, second = self.call(role, method, *arguments).value
        return Here(first), Here(second)

    def close(self) -> None:
        """Close the engines: the process may go on with another unit."""
        self._host.close()
