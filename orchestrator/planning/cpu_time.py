"""How long a sweep takes on CPUs: from what the runs folder measured, else from a rough model of the torch engine.

Rough seconds of a process with one thread, for the small embedded models:

    decoding   passes × layers × `CALL_S` + 2 × parameters × tokens ÷ `FLOPS`
    scoring    2 × parameters × tokens ÷ `FLOPS`          (teacher)
    learning   6 × parameters × tokens ÷ `FLOPS`          (student)
    making     6 × parameters × examples × tokens of one ÷ `FLOPS` + updates × layers × 3 × `CALL_S`

The two constants were measured on a 2-core x86-64 machine with the shipped quickstart; another machine may be `SPREAD`
times faster or slower. Where finished run directories of a setup were clocked, its rough seconds of training and of
evaluating are scaled by measured ÷ rough, and the spread is that between the directories.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.config import Model, Setup
from orchestrator.engines.memory import CPU_BATCH, Decoder, decoder, sequences_per_step
from orchestrator.planning.costs import BLENDED, PLAIN, SUPERVISED
from orchestrator.planning.evaluation_cost import evaluation_generations
from orchestrator.planning.measured import Measured, measured_factor
from orchestrator.planning.plan import Plan
from orchestrator.planning.ranges import NOTHING, Range, Scenario
from orchestrator.planning.steps import steps_left
from orchestrator.planning.totals import NOT_BEGUN, evaluation_shares, rescored_units, share_left

CALL_S = 2e-3  # of a layer, with what goes with a decode step
FLOPS = 3e10
EXAMPLE_TOKENS = 24  # of what an embedded model is made on
START_S, UNIT_START_S = 20.0, 6.0  # Ray and its workers; a unit's process, models and data
SPREAD = 2.0
ROUGH = Range(1 / SPREAD, 1.0, SPREAD)


@dataclass(frozen=True)
class CpuTime:
    """Seconds on the clock on `cores` cores; `rough` where nothing was measured of some setup."""

    seconds: Range
    cores: int
    rough: bool


@dataclass(frozen=True)
class CpuCosts:
    """Seconds of one training step by kind, and of one checkpoint's full evaluation; `rough`: not measured."""

    steps: Mapping[str, Range]
    evaluation: Range
    rough: bool


def estimate(plan: Plan, cores: int, left: bool = True, made: bool = False) -> CpuTime | None:
    """Seconds of the units without a GPU, as many side by side as the cores hold; None if there are none.

    `left`: only of what is not there yet; `made`: embedded models are there already.
    """
    setups = plan.experiment.setups
    names = {planned.unit.setup for planned in plan.units if not planned.resources.gpus}
    costs = {name: cpu_costs(name, setups[name], plan.measured) for name in setups if name in names}
    seconds = unit_seconds(plan, costs, left)
    if not seconds:
        return None
    placed = {planned.unit.id: planned.resources.cpus for planned in plan.units}
    making = 0.0 if made else max(making_seconds(setups[name]) for name in names)

    # Units fill the cores as long as there are enough of them, so the work is shared by all cores; but no sweep ends
    # before its longest unit does.
    def on_the_clock(scenario: Scenario) -> float:
        of_units = {unit_id: of_unit.at(scenario) for unit_id, of_unit in seconds.items()}
        work = sum(of_unit * min(placed[unit_id], cores) for unit_id, of_unit in of_units.items()) / cores
        longest = max(of_units.values())
        before = (START_S + making) * ROUGH.at(scenario)
        return before + max(work, longest) if longest > 0 else 0.0

    return CpuTime(Range.of(on_the_clock), cores, any(of_setup.rough for of_setup in costs.values()))


def unit_seconds(plan: Plan, costs: Mapping[str, CpuCosts], left: bool) -> dict[str, Range]:
    """Seconds of each unit that uses no GPU, by id."""
    done = plan.done if left else {}
    shares = evaluation_shares(plan)
    rescored = {unit.id for unit in rescored_units(plan, done)}
    seconds = {}
    for planned in plan.units:
        unit, needed = planned.unit, planned.resources
        if needed.gpus:
            continue
        of_setup, there = costs[unit.setup], done.get(unit.id, NOT_BEGUN)
        if there.complete and unit.id not in rescored:
            seconds[unit.id] = NOTHING
            continue
        online, alone = steps_left(unit, there.steps)
        parts = [ROUGH * UNIT_START_S, of_setup.steps[BLENDED] * online]
        parts.append(of_setup.steps[SUPERVISED if unit.is_supervised else PLAIN] * alone)
        share = share_left(shares[unit.id], there, needed.evaluation_generations)
        parts.append(of_setup.evaluation * share * needed.checkpoints)
        if unit.id in rescored:
            parts.append(of_setup.evaluation)
        seconds[unit.id] = Range.total(parts)
    return seconds


def cpu_costs(name: str, setup: Setup, measured: Measured) -> CpuCosts:
    """Rough seconds of a setup, times measured ÷ rough of its finished units that used no GPU."""
    steps = {kind: step_seconds(setup, kind) for kind in (BLENDED, PLAIN, SUPERVISED)}
    training, evaluating = [], []  # (measured, rough) seconds, a pair for each unit
    for each in measured.of_setup(name):
        if each.unit.placement.gpus:
            continue
        took = sum(count * sum(means.values()) for count, means in each.steps.values())
        training.append((took, sum(count * steps[kind] for kind, (count, _) in each.steps.items())))
        expected = sum(response_seconds(setup, benchmark) for benchmark in each.responses)
        evaluating.append((sum(each.responses.values()), expected))
    trains, evaluates = measured_factor(training), measured_factor(evaluating)
    return CpuCosts(
        {kind: (trains or ROUGH) * seconds for kind, seconds in steps.items()},
        (evaluates or ROUGH) * evaluation_seconds(setup),
        rough=trains is None or evaluates is None,
    )


def step_seconds(setup: Setup, kind: str) -> float:
    """Rough seconds of one training step."""
    student, teacher, training = decoder(setup.student, setup), decoder(setup.teacher, setup), setup.training
    sequences, limit = sequences_per_step(training), training.max_response_tokens
    tokens = sequences * (training.max_prompt_tokens + limit)
    seconds = 6 * student.parameters * tokens / FLOPS
    if kind != SUPERVISED:
        seconds += _decoding(student, sequences, limit)
    if kind != PLAIN:
        return seconds + _decoding(teacher, sequences, limit)
    return seconds + 2 * teacher.parameters * tokens / FLOPS


def evaluation_seconds(setup: Setup) -> float:
    """Rough seconds of one checkpoint's full evaluation."""
    return sum(response_seconds(setup, key) * count for key, count in evaluation_generations(setup).items())


def response_seconds(setup: Setup, benchmark: str) -> float:
    """Rough seconds of one response to a benchmark, while all of them are sampled."""
    responses, limit = evaluation_generations(setup)[benchmark], setup.evaluation.max_response_tokens
    return _decoding(decoder(setup.student, setup), responses, limit) / responses


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
