"""What evaluation costs under `budget: full` and `adaptive`, and what checkpoints take on disk. Pure arithmetic.

The share of generations that a race takes depends on scores that nobody has yet. The estimate is what simulated
families of the paper's first setup took (`python -m tests.benchmarks.race`): low where checkpoints differ much, high
where they hardly do. It is no bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from orchestrator.config import Experiment, Setup
from orchestrator.engines.memory import GIB, decoder
from orchestrator.experiment import evaluations
from orchestrator.experiment.evaluations import full_samples, problems_wanted
from orchestrator.experiment.units import Family, Unit, checkpoint_steps, families
from orchestrator.selection.scores import decided_by_family

Span = tuple[float, float]  # low, high

# Checkpoints of a family → share of the full protocol's generations.
SIMULATED: dict[int, Span] = {
    1: (1.0, 1.0),
    2: (0.52, 0.56),
    3: (0.38, 0.43),
    10: (0.28, 0.33),
    20: (0.28, 0.37),
    60: (0.14, 0.25),
    120: (0.10, 0.21),
    180: (0.08, 0.19),
    300: (0.07, 0.18),
}
SIMULATED_FIRST_RUNG = 1 / 32
SIMULATED_GENERATIONS = 126_336  # of one checkpoint


@dataclass(frozen=True)
class Cost:
    """Generations and GPU-hours; the hours are None where no GPU is used."""

    generations: Span
    gpu_hours: Span | None


def checkpoints_evaluated(unit: Unit, setup: Setup) -> int:
    """How many checkpoints of a unit are evaluated: all of a trial, and the untrained student as it is.

    Those of the supervised stage are only started from.
    """
    if unit.kind == "trial":
        return len(checkpoint_steps(unit, setup))
    return 1 if unit.kind == "base_eval" else 0


def evaluation_generations(setup: Setup) -> dict[str, int]:
    """Generations of one checkpoint by benchmark: problems × n."""
    evaluation = setup.evaluation
    return {key: problems_wanted(evaluation, key) * full_samples(evaluation, key) for key in evaluation.benchmarks}


def budgets(experiment: Experiment, units: list[Unit], hours: Mapping[str, Span]) -> dict[str, Cost]:
    """Cost of evaluating everything in `full`, in races (`adaptive`, expected), and of `rescore`.

    `hours` are the GPU-hours of a unit's full evaluation, by unit id. Rescoring takes one checkpoint of each family,
    for each seed.
    """
    parts: dict[str, list[Cost]] = {"full": [], "adaptive": [], "rescore": []}
    for family in families(units):
        setup = experiment.setups[family[0][0].setup]
        whole = _sum(_full_cost(unit, setup, hours) for setting in family for unit in setting)
        parts["full"].append(whole)
        parts["adaptive"].append(_scaled(whole, expected_share(family_size(family, setup), setup)))
        of_checkpoints = 1 / checkpoints_evaluated(family[0][0], setup)
        one = [_full_cost(unit, setup, hours) for unit in family[0]]
        parts["rescore"].append(_scaled(_sum(one), (of_checkpoints, of_checkpoints)))
    return {name: _sum(costs) for name, costs in parts.items()}


def family_size(family: Family, setup: Setup) -> int:
    """Checkpoints that a family chooses from; seeds are averaged."""
    return sum(checkpoints_evaluated(setting[0], setup) for setting in family)


def expected_share(candidates: int, setup: Setup) -> Span:
    """Share of the full generations that a race between `candidates` checkpoints is expected to take.

    Where n is small, the first rung alone is a larger share than in the simulation, and the rest shrinks with it. Far
    fewer samples than there may not tell the checkpoints apart at all: up to 1.
    """
    first, sizes = _first_rung_share(setup), np.log(list(SIMULATED))
    columns = zip(*SIMULATED.values(), strict=True)
    low, high = (float(np.interp(np.log(candidates), sizes, column)) for column in columns)
    rest = (1 - first) / (1 - SIMULATED_FIRST_RUNG)
    if 2 * sum(evaluation_generations(setup).values()) < SIMULATED_GENERATIONS:
        high = 1.0
    return first + rest * (low - SIMULATED_FIRST_RUNG), first + rest * (high - SIMULATED_FIRST_RUNG)


def disk_gib(experiment: Experiment, units: Iterable[Unit]) -> Span:
    """GiB of the trials' checkpoints: what is kept in the end, and the most before. Learner states come on top.

    Under `keep: best` a trial holds its best and its last; all of them until its family is decided, where one trial
    alone cannot tell which are needed.
    """
    best, kept, most = experiment.runtime.keep == "best", 0.0, 0.0
    for unit in units:
        setup = experiment.setups[unit.setup]
        if unit.kind == "trial":
            made, of_one = checkpoints_evaluated(unit, setup), decoder(setup.student, setup).weight_bytes / GIB
            kept += of_one * (1 if best else made)
            most += of_one * (min(made, 2) if best and not decided_by_family(experiment, unit) else made)
    return kept, most


def _first_rung_share(setup: Setup) -> float:
    full = evaluation_generations(setup)
    n = [full_samples(setup.evaluation, benchmark) for benchmark in full]
    first = sum(g * m / of for g, m, of in zip(full.values(), evaluations.rung_sizes(n)[0], n, strict=True))
    return first / sum(full.values())


def _full_cost(unit: Unit, setup: Setup, hours: Mapping[str, Span]) -> Cost:
    generations = float(checkpoints_evaluated(unit, setup) * sum(evaluation_generations(setup).values()))
    return Cost((generations, generations), hours.get(unit.id))


def _scaled(cost: Cost, share: Span) -> Cost:
    low, high = cost.generations
    hours = (cost.gpu_hours[0] * share[0], cost.gpu_hours[1] * share[1]) if cost.gpu_hours else None
    return Cost((low * share[0], high * share[1]), hours)


def _sum(costs: Iterable[Cost]) -> Cost:
    parts = list(costs)
    hours = [cost.gpu_hours for cost in parts if cost.gpu_hours]
    return Cost(_sum_spans(cost.generations for cost in parts), _sum_spans(hours) if hours else None)


def _sum_spans(spans: Iterable[Span]) -> Span:
    low, high = zip(*spans, strict=True)
    return sum(low), sum(high)
