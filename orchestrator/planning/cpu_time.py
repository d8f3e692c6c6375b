"""How long a sweep takes on CPUs: from what the runs folder measured, else from a rough model of the torch engine.

Rough seconds of a process with one thread, for the small embedded models:

    decoding   passes × layers × `CALL_S` + 2 × parameters × tokens ÷ `FLOPS`
    scoring    2 × parameters × tokens ÷ `FLOPS`          (teacher)
    learning   6 × parameters × tokens ÷ `FLOPS`          (student)
    making     6 × parameters × examples × tokens of one ÷ `FLOPS` + updates × layers × 3 × `CALL_S`

The two constants were measured on a 2-core x86-64 machine with the shipped quickstart; another machine may be `SPREAD`
times faster or slower.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestrator.config import Model, Setup
from orchestrator.engines.memory import CPU_BATCH, Decoder, decoder, sequences_per_step
from orchestrator.experiment.units import Unit
from orchestrator.planning.evaluation import checkpoints_evaluated, evaluation_generations
from orchestrator.planning.plan import Done, Plan, steps_left
from orchestrator.planning.ranges import Range
from orchestrator.planning.totals import evaluation_shares, full_generations, rescored_units, share_left

CALL_S = 2e-3  # of a layer, with what goes with a decode step
FLOPS = 3e10
EXAMPLE_TOKENS = 24  # of what an embedded model is made on
START_S, UNIT_START_S = 20.0, 6.0  # Ray and its workers; a unit's process, models and data
SPREAD = 2.0


@dataclass(frozen=True)
class CpuTime:
    """Seconds on the clock on `cores` cores; `rough` where nothing was measured."""

    seconds: Range
    cores: int
    rough: bool


def estimate(plan: Plan, cores: int, left: bool = True, made: bool = False) -> CpuTime | None:
    """Seconds of the units without a GPU, as many side by side as the cores hold; None if there are none.

    `left`: only of what is not there yet; `made`: embedded models are there already.
    """
    seconds = rough_seconds(plan, left)
    if not seconds:
        return None
    placed = {planned.unit.id: planned.resources.cpus for planned in plan.units}
    work = sum(seconds[unit_id] * min(placed[unit_id], cores) for unit_id in seconds) / cores
    longest = max(seconds.values())
    making = 0.0 if made else max(making_seconds(setup) for setup in plan.experiment.setups.values())
    middle = (START_S + max(work, longest) + making) if max(seconds.values()) > 0 else 0.0
    return CpuTime(Range(middle / SPREAD, middle * SPREAD), cores, rough=True)


def rough_seconds(plan: Plan, left: bool) -> dict[str, float]:
    """Seconds of each unit that uses no GPU, by id."""
    done = plan.done if left else {}
    shares, experiment = evaluation_shares(plan), plan.experiment
    rescored = {unit.id for unit in rescored_units(plan, done)}
    found = {}
    for unit in (planned.unit for planned in plan.units if not planned.resources.gpus):
        setup, there = experiment.setups[unit.setup], done.get(unit.id, Done())
        if there.complete and unit.id not in rescored:
            found[unit.id] = 0.0
            continue
        share = share_left(shares[unit.id], there, full_generations(experiment, unit))
        checkpoints = checkpoints_evaluated(unit, setup) * (share.low + share.high) / 2 + (unit.id in rescored)
        training = training_seconds(setup, unit, there.steps)
        found[unit.id] = UNIT_START_S + training + checkpoints * evaluation_seconds(setup)
    return found


def training_seconds(setup: Setup, unit: Unit, first: int) -> float:
    """Seconds of a unit's steps from `first` on."""
    student, teacher, training = decoder(setup.student, setup), decoder(setup.teacher, setup), setup.training
    sequences, limit = sequences_per_step(training), training.max_response_tokens
    online, alone = steps_left(unit, first)
    tokens = sequences * (training.max_prompt_tokens + limit)
    blended = _decoding(student, sequences, limit) + _decoding(teacher, sequences, limit)
    plain = (
        _decoding(teacher if unit.is_supervised else student, sequences, limit)
        + 2 * teacher.parameters * tokens / FLOPS
    )
    return online * blended + alone * plain + (online + alone) * 6 * student.parameters * tokens / FLOPS


def evaluation_seconds(setup: Setup) -> float:
    """Seconds of one checkpoint's full evaluation."""
    student, limit = decoder(setup.student, setup), setup.evaluation.max_response_tokens
    return sum(_decoding(student, generations, limit) for generations in evaluation_generations(setup).values())


def making_seconds(setup: Setup) -> float:
    """Seconds until the embedded models of a setup are made, both at once; 0 where none is."""
    return max(_making(model, setup) for model in (setup.student, setup.teacher))


def _making(model: Model, setup: Setup) -> float:
    if model.recipe is None:
        return 0.0
    made, recipe = decoder(model, setup), model.recipe
    arithmetic = 6 * made.parameters * recipe.updates * recipe.batch * EXAMPLE_TOKENS / FLOPS
    return arithmetic + recipe.updates * made.layers * 3 * CALL_S


def _decoding(model: Decoder, sequences: int, limit: int) -> float:
    passes = math.ceil(sequences / CPU_BATCH) * limit
    return passes * model.layers * CALL_S + 2 * model.parameters * sequences * limit / FLOPS
