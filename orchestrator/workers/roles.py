"""A trial's view of its roles: proxies for workers in any process, and handles to their results.

Rollouts, scores and weights pass between roles as handles; the trial fetches digests and metrics
only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from orchestrator.engines.interface import WeightsRef
from orchestrator.liveness.processes import place
from orchestrator.policy.spec import Behavior, Objective
from orchestrator.rollouts import Request, Rollouts, TeacherScores
from orchestrator.workers.digests import RolloutDigest, ScoresDigest
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


class Transport(Protocol):
    """Calls methods of workers in their processes. Handles among the arguments arrive as values."""

    def call(
        self, role: RoleName, method: Callable[..., First], *arguments: Any
    ) -> Handle[First]: ...

    def call_for_two(
        self, role: RoleName, method: Callable[..., tuple[First, Second]], *arguments: Any
    ) -> tuple[Handle[First], Handle[Second]]:
        """As `call`, with one handle for each part of the result."""
        ...

    def close(self) -> None: ...


def _place_of(worker: Any) -> dict[str, Any]:
    """The host and process of a worker; called in that process."""
    return place()


@dataclass(frozen=True)
class Rollout:
    """See `generation.RolloutWorker`."""

    transport: Transport

    def start(self, step: int) -> None:
        self.transport.call("rollout", RolloutWorker.start, step).get()

    def place(self) -> dict[str, Any]:
        return self.transport.call("rollout", _place_of).get()

    def load(self, weights: Handle[WeightsRef]) -> None:
        self.transport.call("rollout", RolloutWorker.load, weights).get()

    def sample(
        self,
        requests: list[Request],
        behavior: Behavior,
        max_tokens: int | None = None,
        traced: int = 0,
        scored: bool = False,
    ) -> tuple[Handle[Rollouts], Handle[RolloutDigest]]:
        return self.transport.call_for_two(
            "rollout", RolloutWorker.sample, requests, behavior, max_tokens, traced, scored
        )


@dataclass(frozen=True)
class Teacher:
    """See `generation.TeacherWorker`."""

    transport: Transport

    def start(self, step: int) -> None:
        """Start the teacher, which is the same for all steps."""
        self.transport.call("teacher", TeacherWorker.start).get()

    def place(self) -> dict[str, Any]:
        return self.transport.call("teacher", _place_of).get()

    def score(
        self, rollouts: Handle[Rollouts]
    ) -> tuple[Handle[TeacherScores], Handle[ScoresDigest]]:
        return self.transport.call_for_two("teacher", TeacherWorker.score, rollouts)

    def sample(
        self, requests: list[Request], traced: int = 0
    ) -> tuple[Handle[Rollouts], Handle[RolloutDigest]]:
        return self.transport.call_for_two("teacher", TeacherWorker.sample, requests, traced)


@dataclass(frozen=True)
class Learner:
    """See `learner.LearnerWorker`."""

    transport: Transport

    def start(self, step: int) -> None:
        """Start the learner, which is the same for all steps."""
        self.transport.call("learner", LearnerWorker.start).get()

    def place(self) -> dict[str, Any]:
        return self.transport.call("learner", _place_of).get()

    def step(
        self,
        rollouts: Handle[Rollouts],
        scores: Handle[TeacherScores] | None,
        goal: Objective,
        step: int,
    ) -> Handle[dict[str, float]]:
        return self.transport.call("learner", LearnerWorker.step, rollouts, scores, goal, step)

    def publish(self, step: int) -> Handle[WeightsRef]:
        return self.transport.call("learner", LearnerWorker.publish, step)

    def save(self, folder: Path) -> None:
        self.transport.call("learner", LearnerWorker.save, str(folder)).get()

    def restore(self, folder: Path) -> None:
        self.transport.call("learner", LearnerWorker.restore, str(folder)).get()


class Roles:
    """All roles of a trial, over one transport."""

    def __init__(self, transport: Transport):
        self.rollout = Rollout(transport)
        self.teacher = Teacher(transport)
        self.learner = Learner(transport)
        self.close = transport.close

    def refresh(self, step: int) -> None:
        """Let the rollout role sample from the learner's weights after `step` steps."""
        self.rollout.load(self.learner.publish(step))


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


def inline_roles(spec: WorkerSpec) -> Roles:
    """All roles in this process."""
    return Roles(Inline(spec))
