"""The cost of evaluation under `budget: full` and `adaptive`, and the disk that checkpoints take.
Pure arithmetic.

The share of generations that a race takes depends on scores that are still unknown. The estimate is
the share of simulated families of the paper's first setup (`python -m benchmarks.race`): low where
checkpoints differ much, high where they hardly do. It is no bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from orchestrator.config import Experiment, Setup
from orchestrator.engines.memory import GIB, decoder
from orchestrator.experiment import evaluation_protocol
from orchestrator.experiment.evaluation_protocol import full_samples, problems_wanted
from orchestrator.experiment.units import Family, Unit, checkpoint_steps
from orchestrator.planning.ranges import Range

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


@dataclass(frozen=True)
class EvaluationCost:
    """Generations and GPU-hours; the hours are None where no GPU is used."""

    generations: Range
    gpu_hours: Range | None

    def __mul__(self, share: Range) -> EvaluationCost:
        return EvaluationCost(
            self.generations * share, None if self.gpu_hours is None else self.gpu_hours * share
        )

    @staticmethod
    def total(costs: Iterable[EvaluationCost]) -> EvaluationCost:
        """Sums; the hours are those of the parts that use a GPU."""
        parts = list(costs)
        hours = [part.gpu_hours for part in parts if part.gpu_hours is not None]
        return EvaluationCost(
            Range.total(part.generations for part in parts), Range.total(hours) if hours else None
        )


def checkpoints_evaluated(unit: Unit, setup: Setup) -> int:
    """How many checkpoints of a unit are evaluated: all of a trial, and the untrained student as it
    is.

    Those of the supervised stage are only started from.
    """
    if unit.is_trial:
        return len(checkpoint_steps(unit, setup))
    return 1 if unit.is_untrained else 0


def evaluation_generations(setup: Setup) -> dict[str, int]:
    """Generations of one checkpoint by benchmark: problems × n."""
    evaluation = setup.evaluation
    return {
        key: problems_wanted(evaluation, key) * full_samples(evaluation, key)
        for key in evaluation.benchmarks
    }


def budgets(
    experiment: Experiment, families: Iterable[Family], full_costs: Mapping[str, EvaluationCost]
) -> dict[str, EvaluationCost]:
    """Cost of evaluating everything in `full`, in races (`adaptive`, expected), and of `rescore`.

    `full_costs` are those of each unit under the full protocol, by its id. Rescoring takes one
    checkpoint of each family, for each seed.
    """
    full, adaptive, rescore = [], [], []
    for family in families:
        setup = experiment.setups[family[0][0].setup]
        whole = EvaluationCost.total(full_costs[unit.id] for setting in family for unit in setting)
        full.append(whole)
        adaptive.append(whole * expected_share(family_size(family, setup), setup))
        seeds = EvaluationCost.total(full_costs[unit.id] for unit in family[0])
        rescore.append(seeds * Range.exactly(1 / checkpoints_evaluated(family[0][0], setup)))
    parts = {"full": full, "adaptive": adaptive, "rescore": rescore}
    return {name: EvaluationCost.total(costs) for name, costs in parts.items()}


def family_size(family: Family, setup: Setup) -> int:
    """Checkpoints that a family chooses from; seeds are averaged."""
    return sum(checkpoints_evaluated(setting[0], setup) for setting in family)


def expected_share(candidates: int, setup: Setup) -> Range:
    """Share of the full generations that a race between `candidates` checkpoints is expected to
    take, in (0, 1].

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
        without = _interpolated(SIMULATED, candidates)
        low += (1 - zone / ZONE) * (without[0] - low)
        high += (1 - zone / ZONE) * (without[1] - high)
    if 2 * sum(evaluation_generations(setup).values()) < SIMULATED_GENERATIONS:
        high = 1.0
    first = _first_rung_share(setup)
    rest = (1 - first) / (1 - simulated_first)
    return Range.between(
        first + rest * (low - simulated_first), first + rest * (high - simulated_first)
    )


class Disk(NamedTuple):
    """GiB of checkpoints: what is kept in the end, and the most before."""

    kept: float
    most: float


def disk_gib(experiment: Experiment, units: Iterable[Unit]) -> Disk:
    """GiB that the trials' checkpoints take.

    Learner states come on top. Trials are trained before their checkpoints are evaluated, so all
    checkpoints may be there before `keep: best` lets go of any.
    """
    best, kept, most = experiment.runtime.keep == "best", 0.0, 0.0
    for unit in units:
        setup = experiment.setups[unit.setup]
        if unit.is_trial:
            made, of_one = (
                checkpoints_evaluated(unit, setup),
                decoder(setup.student, setup).weight_bytes / GIB,
            )
            kept += of_one * (1 if best else made)
            most += of_one * made
    return Disk(kept, most)


def _interpolated(simulated: Mapping[int, tuple[float, float]], candidates: int) -> list[float]:
    """Low and high share, interpolated over the logarithm of the family's size."""
    sizes = np.log(list(simulated))
    shares = np.array(list(simulated.values()))
    return [float(np.interp(np.log(candidates), sizes, column)) for column in shares.T]


def _first_rung_share(setup: Setup) -> float:
    """Share of the full generations that every checkpoint of a race gets at once."""
    generations = evaluation_generations(setup)
    n = [full_samples(setup.evaluation, benchmark) for benchmark in generations]
    first_rung = 0.0
    for of_benchmark, samples, full in zip(
        generations.values(),
        evaluation_protocol.rung_sizes(n, setup.evaluation.indifference > 0)[0],
        n,
        strict=True,
    ):
        first_rung += of_benchmark * samples / full
    return first_rung / sum(generations.values())
