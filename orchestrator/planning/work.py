"""The work of units: training steps by their kind and length, and responses of evaluations.

The share of generations that a race takes depends on scores that are still unknown. The estimate is
the share of simulated families of the paper's first setup (`python -m benchmarks.race`): low where
checkpoints differ much, high where they hardly do. It is no bound.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from orchestrator.config import Setup
from orchestrator.experiment.evaluation_protocol import (
    full_samples,
    held_out_prompts,
    problems_wanted,
    rung_sizes,
)
from orchestrator.experiment.methods import (
    METHODS,
    behavior_at,
    needs_teacher,
    response_limit,
)
from orchestrator.experiment.units import Family, Unit, checkpoint_steps
from orchestrator.planning.numbers import Range
from orchestrator.policy.spec import BatchBudget, Fusion, TeacherSequences
from orchestrator.records.clock import BLENDED, PLAIN

KnobItems = tuple[tuple[str, Any], ...]
SUPERVISED = "supervised step"  # beside BLENDED and PLAIN a kind of step
# Checkpoints of a family → share of the full protocol's generations, where checkpoints differ much
# and hardly at all.
SIMULATED: dict[int, tuple[float, float]] = {
    1: (1.0, 1.0),
    2: (0.53, 0.55),
    3: (0.38, 0.39),
    10: (0.25, 0.26),
    20: (0.22, 0.27),
    60: (0.11, 0.17),
    120: (0.07, 0.14),
    180: (0.06, 0.13),
    300: (0.055, 0.12),
}
# The same for races with an indifference zone of ZONE points.
SIMULATED_WITH_ZONE: dict[int, tuple[float, float]] = {
    1: (1 / 64, 1 / 64),
    2: (0.033, 0.034),
    3: (0.044, 0.046),
    10: (0.067, 0.077),
    20: (0.080, 0.099),
    60: (0.041, 0.060),
    120: (0.032, 0.050),
    180: (0.026, 0.042),
    300: (0.022, 0.037),
}
ZONE = 0.3
# Shares of the full generations that every checkpoint got at once in the simulations.
SIMULATED_FIRST_RUNG, SIMULATED_FIRST_RUNG_WITH_ZONE = 1 / 32, 1 / 64
SIMULATED_GENERATIONS = 126_336  # of one checkpoint under the full protocol
# Times that a keyed sampler takes the batch of a budget, mean over the steps of trials on the embedded
# worlds (docs/methods.md).
BATCH_PASSES = 2.0


# --- training steps ---


class StepWork(NamedTuple):
    """The work of a training step, as far as methods differ in it.

    `kind` is BLENDED, PLAIN or SUPERVISED. Responses are cut after `limit` tokens; None stands for
    the setup's limit. While blending, the teacher itself writes a `share` of the responses. A `solved`
    step samples its batch again for the β of its budget, where the sampler is keyed.
    """

    kind: str
    limit: int | None = None
    share: float = 0.0
    solved: bool = False


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
    method: str | None, knobs: KnobItems, steps: int, longest: int, first: int
) -> Mapping[StepWork, int]:
    if method is not None and METHODS[method].cuts_responses:
        return Counter(_each_step(method, knobs, steps, longest)[first:])
    # The steps of other methods differ only in whether they ask the teacher, and those that do come
    # first.
    online = _online(method, knobs, steps)
    works: Counter[StepWork] = Counter()
    for begin, end in ((first, online), (max(first, online), steps)):
        if begin < end:
            works[_work(method, dict(knobs), begin, longest)] += end - begin
    return works


@lru_cache(maxsize=2**12)
def _each_step(method: str, knobs: KnobItems, steps: int, longest: int) -> tuple[StepWork, ...]:
    return tuple(_work(method, dict(knobs), step, longest) for step in range(steps))


def _work(method: str | None, knobs: dict[str, Any], step: int, longest: int) -> StepWork:
    behavior = behavior_at(method, knobs, step)
    limit = response_limit(method, knobs, step, longest)
    kind = BLENDED if behavior.needs_teacher else PLAIN
    work = StepWork(kind, None if limit == longest else limit)
    match behavior:
        case TeacherSequences(share):
            return work._replace(share=share)
        case Fusion(alpha) if alpha == 1:
            return work._replace(share=1.0)
        case BatchBudget():
            return work._replace(solved=True)
    return work


@lru_cache(maxsize=2**16)
def _online(method: str | None, knobs: KnobItems, steps: int) -> int:
    # All of them come before all others, so their number is where the answer changes: 9 questions
    # instead of 400.
    return bisect_left(
        range(steps), True, key=lambda step: not needs_teacher(method, dict(knobs), step)
    )


# --- evaluations ---


def checkpoints_evaluated(unit: Unit, setup: Setup) -> int:
    """How many checkpoints of a unit are evaluated: all of a trial, and the untrained student.

    Checkpoints of the supervised stage are only started from.
    """
    if unit.is_trial:
        return len(checkpoint_steps(unit, setup))
    return 1 if unit.is_untrained else 0


def held_out_responses(unit: Unit, setup: Setup, first: int = 0) -> int:
    """Responses to held-out prompts that a trial takes from step `first` on.

    It measures itself at its start and at each checkpoint; other units never do.
    """
    if not unit.is_trial:
        return 0
    later = [step for step in checkpoint_steps(unit, setup) if step > first]
    return held_out_prompts(setup) * (len(later) + (first == 0))


def evaluation_generations(setup: Setup) -> dict[str, int]:
    """Generations of one checkpoint by benchmark: problems × n."""
    evaluation, generations = setup.evaluation, {}
    for key in evaluation.benchmarks:
        generations[key] = problems_wanted(evaluation, key) * full_samples(evaluation, key)
    return generations


def family_size(family: Family, setup: Setup) -> int:
    """Checkpoints that a family chooses from; seeds are averaged."""
    return sum(checkpoints_evaluated(setting[0], setup) for setting in family)


def expected_share(candidates: int, setup: Setup) -> Range:
    """Expected share of the full generations, in (0, 1], of a race between so many checkpoints.

    The simulated shares are taken over in two steps: between the simulated family sizes they are
    interpolated over the logarithm of the size, and the part beyond the first rung is fitted to the
    setup's own first rung. Where n is small, that rung is a larger share than in the simulation (1
    of 4 samples instead of 2 of 64), and less is left for the later rungs to save.

    With less than half of the simulated samples a race may not separate the checkpoints; the upper
    bound is then 1. The shares of a zone narrower than the simulated one lie between those with it
    and those without any; a wider one is counted as the simulated one.
    """
    zone = setup.evaluation.indifference
    simulated, simulated_first = SIMULATED, SIMULATED_FIRST_RUNG
    if zone > 0:
        simulated, simulated_first = SIMULATED_WITH_ZONE, SIMULATED_FIRST_RUNG_WITH_ZONE
    low, high = _interpolated(simulated, candidates)
    if 0 < zone < ZONE:
        low_without, high_without = _interpolated(SIMULATED, candidates)
        low += (1 - zone / ZONE) * (low_without - low)
        high += (1 - zone / ZONE) * (high_without - high)
    if 2 * sum(evaluation_generations(setup).values()) < SIMULATED_GENERATIONS:
        high = 1.0
    first = _first_rung_share(setup)
    rest = (1 - first) / (1 - simulated_first)
    return Range.between(
        first + rest * (low - simulated_first), first + rest * (high - simulated_first)
    )


def _interpolated(simulated: Mapping[int, tuple[float, float]], candidates: int) -> list[float]:
    """Low and high share, interpolated over the logarithm of the family's size."""
    sizes = np.log(list(simulated))
    shares = np.array(list(simulated.values()))
    return [float(np.interp(np.log(candidates), sizes, column)) for column in shares.T]


def _first_rung_share(setup: Setup) -> float:
    """Share of the full generations that every checkpoint of a race gets at once."""
    generations, evaluation = evaluation_generations(setup), setup.evaluation
    samples = [full_samples(evaluation, benchmark) for benchmark in generations]
    at_first = rung_sizes(samples, evaluation.indifference > 0)[0]
    first_rung = 0.0
    for place, full in enumerate(generations.values()):
        first_rung += full * at_first[place] / samples[place]
    return first_rung / sum(generations.values())
