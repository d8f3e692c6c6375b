"""The continuation probe as a unit of work: its measurements, and its id. Imports nothing heavy.

The probe (paper, Figure "continuation gain"): rollouts of the untrained student alone and of the
trust region at its first budget are cut at t tokens and continued by the student and by the
teacher; only the source of the prefix differs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.config import Experiment, Setup
from orchestrator.engines.interface import Owner
from orchestrator.errors import UserError, refuse
from orchestrator.experiment.identity import PROBE, SCHEMA, pair_identity
from orchestrator.experiment.methods import PROPOSED, REFERENCE
from orchestrator.experiment.units import Unit
from orchestrator.grading.gold import GRADER_VERSION
from orchestrator.models.identity import Models, digest, part
from orchestrator.models.locate import models_of

# The probe compares these two, independently of the experiment's methods.
BEHAVIORS = (REFERENCE, PROPOSED)
CONTINUERS: tuple[Owner, ...] = ("student", "teacher")
LOGS = ("rollouts.jsonl", "continuations.jsonl")
DOCUMENTS = ("example.json", "excerpts.json")
PROMPTS_AT_ONCE = 16  # prompts of one step, which ends with a commit


def probe_unit(experiment: Experiment, name: str, runs: Path | None = None) -> Unit:
    """The probe of one setup with the first seed; a step is a commit, `runs` as in `units.expand`.

    Raises UserError if the experiment gives no budget, or a truncation length that cuts nothing.
    """
    setup, seed = experiment.setups[name], experiment.seeds[0]
    epsilon, budgets = _budgets(experiment, setup)
    models, final = models_of(setup, runs)
    identity = _identity(setup, models, seed, epsilon, budgets)
    steps = -(-setup.probe.prompts // PROMPTS_AT_ONCE)
    return Unit(
        id=f"{name}-probe-epsilon={epsilon:g}-s{seed}-{digest(identity)}",
        kind="probe",
        setup=name,
        knobs={"epsilon": epsilon},
        seed=seed,
        steps=steps,
        identity=identity,
        placement=experiment.runtime.placement,
        provisional=not final,
    )


def truncation_lengths(setup: Setup) -> list[int]:
    """Lengths t in tokens, ascending; UserError outside 1 … response limit − 1."""
    limit = setup.training.max_response_tokens
    lengths = {value: round(value * limit if value < 1 else value) for value in setup.probe.lengths}
    for value, length in lengths.items():
        if not 1 <= length < limit:
            raise refuse(
                "probe.lengths",
                value,
                f"between 1 and {limit - 1} tokens: a response has at most {limit}",
            )
    return sorted(set(lengths.values()))


def _budgets(experiment: Experiment, setup: Setup) -> tuple[float, list[float]]:
    """The ε of the probe, and every budget that the solved example shows."""
    grid = experiment.methods.get(PROPOSED, {}).get("epsilon0", [])
    epsilon = setup.probe.epsilon if setup.probe.epsilon is not None else max(grid, default=0.0)
    if not epsilon > 0:
        raise UserError(
            "probe.epsilon: not set, and no method gives an epsilon0 > 0: expected, for example, probe.epsilon=0.05"
        )
    return epsilon, sorted({*grid, epsilon})


def _identity(
    setup: Setup, models: Models, seed: int, epsilon: float, budgets: list[float]
) -> dict[str, Any]:
    """Everything that can change the probe's results."""
    return pair_identity(setup, models) | {
        "kind": "probe",
        "seed": seed,
        "max_prompt_tokens": setup.training.max_prompt_tokens,
        "max_response_tokens": setup.training.max_response_tokens,
        "engine": setup.engine.sampler,
        "dtype": setup.engine.dtype,
        "epsilon": epsilon,
        "budgets": budgets,
        "lengths": truncation_lengths(setup),
        **part(setup.engine, ()),
        **part(setup.probe, PROBE),
        "prompts_at_once": PROMPTS_AT_ONCE,
        "grader": GRADER_VERSION,
        "schema": SCHEMA,
    }
