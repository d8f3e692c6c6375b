"""The training steps of a unit: how many of them decode with the teacher, and how long they may get."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from orchestrator.experiment.methods import (
    METHODS,
    behavior_at,
    is_scored,
    needs_teacher,
    response_limit,
)
from orchestrator.experiment.units import Unit
from orchestrator.planning.costs import SUPERVISED, StepWork
from orchestrator.policy.spec import Fusion, TeacherPrefix, TeacherSequences
from orchestrator.records.clock import BLENDED, PLAIN

Knobs = tuple[tuple[str, Any], ...]


def teacher_online_steps(unit: Unit) -> int:
    """Steps whose behavior policy asks the teacher at every token; they come first."""
    if not unit.is_trial:
        return 0
    return _online(unit.method, tuple(unit.knobs.items()), unit.steps)


def steps_left(unit: Unit, first: int = 0) -> tuple[int, int]:
    """Steps from `first` on that decode with the teacher, and those that do not."""
    online = max(0, teacher_online_steps(unit) - first)
    return online, max(0, unit.steps - first) - online


def work_left(unit: Unit, longest: int, first: int = 0) -> Mapping[StepWork, int]:
    """Count the steps from `first` on by their work; `longest` is the setup's limit of tokens."""
    if not unit.is_trial:
        left = max(0, unit.steps - first)
        return {StepWork(SUPERVISED if unit.is_supervised else PLAIN): left} if left else {}
    return _of_trial(unit.method, tuple(unit.knobs.items()), unit.steps, longest, first)


def work_of_kind(unit: Unit, kind: str, longest: int) -> Mapping[StepWork, int]:
    """The unit's steps that a clock calls BLENDED or PLAIN; a typical one where it has none."""
    of_kind = {}
    for work, count in work_left(unit, longest).items():
        if (work.kind == BLENDED) == (kind == BLENDED):
            of_kind[work] = count
    return of_kind or {StepWork(SUPERVISED if unit.is_supervised else kind): 1}


def _of_trial(
    method: str | None, knobs: Knobs, steps: int, longest: int, first: int
) -> Mapping[StepWork, int]:
    if method is not None and _differ(method, dict(knobs)):
        return Counter(_each_step(method, knobs, steps, longest)[first:])
    # The steps of other methods differ only in whether they ask the teacher, and those that do come
    # first.
    online = _online(method, knobs, steps)
    works: Counter[StepWork] = Counter()
    for begin, end in ((first, online), (max(first, online), steps)):
        if begin < end:
            works[_work(method, dict(knobs), begin, steps, longest)] += end - begin
    return works


def _differ(method: str, knobs: dict[str, Any]) -> bool:
    """Whether the lengths of a method's responses, or of parts of them, change from step to step."""
    return METHODS[method].cuts_responses or isinstance(
        behavior_at(method, knobs, 0), TeacherPrefix
    )


@lru_cache(maxsize=2**12)
def _each_step(method: str, knobs: Knobs, steps: int, longest: int) -> tuple[StepWork, ...]:
    return tuple(_work(method, dict(knobs), step, steps, longest) for step in range(steps))


def _work(
    method: str | None, knobs: dict[str, Any], step: int, steps: int, longest: int
) -> StepWork:
    behavior = behavior_at(method, knobs, step)
    limit = response_limit(method, knobs, step, longest)
    kind = BLENDED if behavior.needs_teacher else PLAIN
    scored = method is None or is_scored(method, knobs, step, steps)
    work = StepWork(kind, None if limit == longest else limit, scored=scored)
    match behavior:
        case TeacherSequences(share):
            return work._replace(share=share)
        case TeacherPrefix(tokens):
            return work._replace(prefix=tokens)
        case Fusion(alpha) if alpha == 1:
            return work._replace(share=1.0)
    return work


@lru_cache(maxsize=2**16)
def _online(method: str | None, knobs: Knobs, steps: int) -> int:
    # All of them come before all others, so their number is where the answer changes: 9 questions
    # instead of 400.
    return bisect_left(
        range(steps), True, key=lambda step: not needs_teacher(method, dict(knobs), step)
    )
