"""Experiment → units of work, each with an id that says what training produces.

Same id ⇒ same training, so units are shared between experiments and only what is missing runs.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator import race
from orchestrator.config import Evaluation, Experiment, Placement, Setup
from orchestrator.identity import base_identity, digest, evaluation_identity, sft_identity, trial_identity
from orchestrator.methods import BASE, method_label
from orchestrator.tasks.benchmarks import benchmark_of
from orchestrator.tasks.grader import GRADER_VERSION

FRESH = 1  # draw of the samples that take no part in selection


@dataclass(frozen=True)
class Unit:
    """One run directory. `identity` holds everything that can change what training produces."""

    id: str
    kind: str  # base_eval | sft | trial | probe
    setup: str
    method: str | None
    knobs: dict[str, Any]
    seed: int
    depends_on: tuple[str, ...]
    steps: int
    first_batch: int  # prompt batch of step 0 (K under `after: continue`)
    identity: dict[str, Any] = field(repr=False)
    placement: Placement = field(default_factory=Placement)

    @property
    def label(self) -> str:
        """Method and knobs for people: `TRB epsilon0=0.05 K=12`."""
        name = method_label(BASE if self.kind == "base_eval" else self.method or self.kind)
        return " ".join([name, *(f"{k}={v:g}" for k, v in self.knobs.items())])


def expand(experiment: Experiment) -> list[Unit]:
    """All units of `experiment`; what a unit depends on stands before it."""
    units: list[Unit] = []
    for name, setup in experiment.setups.items():
        base_placement = experiment.runtime.placement
        units.append(_base_eval(name, setup, base_placement))
        if "sft_warmup" in experiment.methods:
            units += [_sft(name, setup, seed, base_placement) for seed in experiment.seeds_of("sft_warmup")]
        for method, grid in experiment.methods.items():
            placement = experiment.placements.get(method, base_placement)
            for values, seed in itertools.product(itertools.product(*grid.values()), experiment.seeds_of(method)):
                knobs = dict(zip(grid, values, strict=True))
                units.append(_trial(name, setup, method, knobs, seed, placement))
    return units


def waves(units: list[Unit]) -> list[list[Unit]]:
    """Units by depth of dependency: a wave needs only what earlier waves made."""
    first = [unit for unit in units if not unit.depends_on]
    return [wave for wave in (first, [unit for unit in units if unit.depends_on]) if wave]


def evaluation_id(setup: Setup, benchmark: str, grader: str = GRADER_VERSION) -> str:
    """`<benchmark>-<8 hex>`: see `identity.evaluation_identity`."""
    return f"{benchmark}-{digest(evaluation_identity(setup, benchmark, grader))}"


def evaluation_ids(setup: Setup, grader: str = GRADER_VERSION) -> dict[str, str]:
    """Benchmark key → evaluation id, in the order of the table's columns."""
    return {key: evaluation_id(setup, key, grader) for key in setup.evaluation.benchmarks}


def fresh_evaluation_ids(setup: Setup) -> dict[str, str]:
    """Benchmark key → id of the same evaluation on samples that take no part in selection."""
    return drawn_evaluation_ids(setup, FRESH)


def drawn_evaluation_ids(setup: Setup, draw: int, grader: str = GRADER_VERSION) -> dict[str, str]:
    """Benchmark key → id of an independent repetition: draw d has the samples of the evaluation with seed + d."""
    drawn = replace(setup.evaluation, seed=setup.evaluation.seed + draw)
    return evaluation_ids(replace(setup, evaluation=drawn), grader)


def samples_wanted(evaluation: Evaluation, benchmark: str) -> int:
    """n of a benchmark."""
    run = evaluation.benchmarks[benchmark]
    assert run is not None
    return run.n


def rungs(evaluation: Evaluation) -> list[dict[str, int]]:
    """Benchmark → samples for each problem, rung by rung; the last is n. A single one under `budget: full`."""
    full = {benchmark: samples_wanted(evaluation, benchmark) for benchmark in evaluation.benchmarks}
    if evaluation.budget == "full":
        return [full]
    return [dict(zip(full, sizes, strict=True)) for sizes in race.rungs(list(full.values()))]


def samples_at_once(evaluation: Evaluation, kind: str) -> dict[str, int]:
    """Benchmark → samples a checkpoint gets as soon as it is there; the untrained student has no rivals."""
    return rungs(evaluation)[-1 if kind == "base_eval" else 0]


def problems_wanted(evaluation: Evaluation, benchmark: str) -> int:
    """How many problems of a benchmark are evaluated."""
    run = evaluation.benchmarks[benchmark]
    assert run is not None
    total = benchmark_of(benchmark, run).problems
    return total if run.limit is None else min(run.limit, total)


def _base_eval(name: str, setup: Setup, placement: Placement) -> Unit:
    identity = base_identity(setup)
    unit_id = f"{name}-base_eval-{digest(identity)}"
    return Unit(unit_id, "base_eval", name, None, {}, 0, (), 0, 0, identity, placement)


def _sft(name: str, setup: Setup, seed: int, placement: Placement) -> Unit:
    identity = sft_identity(setup, seed)
    unit_id = f"{name}-sft-s{seed}-{digest(identity)}"
    return Unit(unit_id, "sft", name, None, {}, seed, (), setup.training.sft.updates, 0, identity, placement)


def _trial(name: str, setup: Setup, method: str, knobs: dict[str, Any], seed: int, placement: Placement) -> Unit:
    depends_on: tuple[str, ...] = ()
    steps, first_batch = setup.training.steps, 0
    if method == "sft_warmup":
        depends_on = (_sft(name, setup, seed, placement).id,)
        if setup.training.sft.after == "continue":
            steps, first_batch = steps - knobs["K"], knobs["K"]
    identity = trial_identity(setup, method, knobs, seed, depends_on[0] if depends_on else None)
    slug = "-".join([name, method, *(f"{k}{v:g}" for k, v in knobs.items()), f"s{seed}"])
    return Unit(
        f"{slug}-{digest(identity)}",
        "trial",
        name,
        method,
        knobs,
        seed,
        depends_on,
        steps,
        first_batch,
        identity,
        placement,
    )
