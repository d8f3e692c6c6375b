"""The four roles of a trial, whatever they run in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from orchestrator.policy.spec import Behavior, Objective
from orchestrator.records.problem_record import ProblemRecord
from orchestrator.rollouts import Request, Rollouts, TeacherScores
from orchestrator.workers.evaluator import EvaluatorWorker
from orchestrator.workers.generation import RolloutWorker, TeacherWorker
from orchestrator.workers.learner import LearnerWorker
from orchestrator.workers.spec import WorkerSpec
from orchestrator.workers.store import ModelStore


class Role(Protocol):
    """What all roles share: coming up ahead of the first call that needs it."""

    def start(self) -> None: ...


class Rollout(Role, Protocol):
    """See `generation.RolloutWorker`."""

    def load(self, weights: dict[str, Tensor]) -> None: ...
    def sample(self, requests: list[Request], behavior: Behavior) -> Rollouts: ...


class Teacher(Role, Protocol):
    """See `generation.TeacherWorker`."""

    def score(self, rollouts: Rollouts) -> TeacherScores: ...
    def sample(self, requests: list[Request]) -> Rollouts: ...


class Learner(Role, Protocol):
    """See `learner.LearnerWorker`."""

    def step(
        self, rollouts: Rollouts, scores: TeacherScores | None, goal: Objective, step: int
    ) -> dict[str, float]: ...
    def weights(self) -> dict[str, Tensor]: ...
    def save(self, folder: str) -> None: ...
    def restore(self, folder: str) -> None: ...


class Evaluator(Role, Protocol):
    """See `evaluator.EvaluatorWorker`."""

    def evaluate(
        self,
        checkpoint: str | None,
        benchmark: str,
        first: int,
        last: int,
        step: int,
        draw: int = 0,
        notes: str | None = None,
    ) -> list[ProblemRecord]: ...


@dataclass(frozen=True)
class Roles:
    """The roles, and how to let go of them."""

    rollout: Rollout
    teacher: Teacher
    learner: Learner
    evaluator: Evaluator
    close: Callable[[], None]


WORKERS: dict[str, Callable[[ModelStore], Any]] = {
    "rollout": RolloutWorker,
    "teacher": TeacherWorker,
    "learner": LearnerWorker,
    "evaluator": EvaluatorWorker,
}


class Host:
    """Some of the roles in one process, around one store of models; each role comes up when first called."""

    def __init__(self, spec: WorkerSpec):
        self._store = ModelStore(spec)
        self._workers: dict[str, Any] = {}

    def call(self, role: str, method: str, *arguments: Any) -> Any:
        """`method` of `role`."""
        if role not in self._workers:
            self._workers[role] = WORKERS[role](self._store)
        return getattr(self._workers[role], method)(*arguments)

    def close(self) -> None:
        """End what the roles started."""
        if "evaluator" in self._workers:
            self._workers["evaluator"].close()


class RoleProxy:
    """A role somewhere else: its methods are calls of `call(role, method, *arguments)`."""

    def __init__(self, call: Callable[..., Any], role: str):
        self._call, self._role = call, role

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return lambda *arguments: self._call(self._role, method, *arguments)


def roles_of(call_of: dict[str, Callable[..., Any]], close: Callable[[], None]) -> Roles:
    """Roles from one `call` function for each of them."""
    proxies: dict[str, Any] = {role: RoleProxy(call_of[role], role) for role in WORKERS}
    return Roles(**proxies, close=close)


def inline_roles(spec: WorkerSpec) -> Roles:
    """All roles in this process."""
    host = Host(spec)
    return roles_of(dict.fromkeys(WORKERS, host.call), host.close)
