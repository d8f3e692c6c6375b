"""The part of an experiment that a runs folder holds, as `trb plan` counts it, and why each unit
would run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import UserError
from orchestrator.experiment.evaluation_protocol import FRESH, Sampling
from orchestrator.experiment.units import Unit
from orchestrator.planning.plan import Done
from orchestrator.records.rundir import RunReader, started_units
from orchestrator.selection import scores
from orchestrator.selection.samples_wanted import (
    FamilyState,
    confirming_samples,
    family_state,
    wants,
)
from orchestrator.selection.study import Study

# Where the parts of an identity stand in a setup file; the others have their own names.
CONFIG_NAMES = {
    name: f"training.{name}" for name in ("objective", "top_k", "steps", "checkpoint_every")
}


def done_of(study: Study) -> dict[str, Done]:
    """Count the finished part of each unit, by id; write nothing."""
    if not study.runs.is_dir():
        return {}
    present = set(
        os.listdir(study.runs)
    )  # one look, where asking for each of ten thousand directories takes seconds
    state_of: dict[str, FamilyState] = {}
    for family in study.families():
        members = [unit.id for setting in family for unit in setting]
        if not present.isdisjoint(members):
            state_of |= dict.fromkeys(members, family_state(study, family))
    for unit in study.units:
        if unit.id in study.confirming and unit.id in present:
            wanted = confirming_samples(study, unit)
            state_of[unit.id] = FamilyState(
                wanted, settled=study.reader(unit).trained and not wanted
            )
    done = {}
    for unit in study.units:
        if unit.id not in present:
            done[unit.id] = Done()
            continue
        run, state = study.reader(unit), state_of.get(unit.id)
        wanted = state is not None and unit.id in state.wants
        done[unit.id] = Done(
            steps=unit.steps if run.trained else min(run.next_step, unit.steps),
            generations=_generations(study, unit) if unit.has_scores else 0,
            selected=state is not None and state.settled,
            rescored=state is not None and state.settled and not state.wants,
            complete=run.trained and not wanted,
        )
    return done


def _generations(study: Study, unit: Unit) -> int:
    """Samples that take part in selection, over all checkpoints and benchmarks."""
    run, generations = study.reader(unit), 0
    for evaluation_id in study.evaluation_ids(unit.setup).values():
        for step in run.evaluated_steps(evaluation_id):
            tally = scores.tally(run, evaluation_id, step)
            generations += 0 if tally is None else int(tally.n.sum())
    return generations


# --- why ---


@dataclass(frozen=True)
class Reason:
    """Why a unit would run, or not: `why` in a few words.

    Of a unit that has no directory, `nearest` is the one of the same setup and method that differs
    least, if any, and `differences` are the fields that differ.
    """

    unit: Unit
    why: str
    nearest: str | None = None
    differences: tuple[str, ...] = ()


def reasons(study: Study) -> list[Reason]:
    """One for each unit, in their order."""
    wanted = wants(study) if study.runs.is_dir() else {}
    others = list(_recorded(study.runs))
    found = []
    for unit in study.units:
        run = study.reader(unit)
        if run.started or run.trained:
            found.append(Reason(unit, _why_started(unit, run, wanted.get(unit.id, {}))))
        else:
            waits = [needed for needed in unit.depends_on if not study.reader(needed).trained]
            why = f"missing; waits for {waits[0]}" if waits else "missing"
            found.append(Reason(unit, why, *_nearest(unit, others)))
    return found


def _why_started(unit: Unit, run: RunReader, wanted: Mapping[Sampling, int]) -> str:
    if unit.trains and not run.trained:
        failed = f", failed: {run.error}" if run.error else ""
        return f"{'runs now' if run.running else 'training incomplete'}: step {run.next_step} of {unit.steps}{failed}"
    if not wanted:
        return "done" if run.trained else "evaluation incomplete"
    by_kind = {False: "samples wanted", True: "fresh samples of the selected checkpoint wanted"}
    parts = []
    for fresh, words in by_kind.items():
        asked = {
            sampling: n for sampling, n in wanted.items() if (sampling.repetition == FRESH) == fresh
        }
        if asked:
            benchmarks = ", ".join(
                dict.fromkeys(f"{sampling.benchmark} n={n}" for sampling, n in asked.items())
            )
            steps = sorted({sampling.step for sampling in asked})
            at = f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} checkpoints"
            parts.append(f"{words}: {benchmarks} at {at}")
    return "; ".join(parts)


def _recorded(runs: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(directory, unit as it was started) of everything in a runs folder that can be read."""
    for name in started_units(runs):
        try:
            unit = RunReader(runs, name).config().get("unit")
        except (OSError, ValueError, AttributeError, UserError):
            continue  # a damaged directory is no neighbour; commands that need it say so
        if isinstance(unit, dict) and isinstance(unit.get("identity"), dict):
            yield name, unit


def _nearest(
    unit: Unit, others: Sequence[tuple[str, dict[str, Any]]]
) -> tuple[str | None, tuple[str, ...]]:
    """The directory of the same setup, kind and method with the fewest fields that differ, and
    these fields.
    """
    differing: dict[str, list[str]] = {}
    for name, other in others:
        if (other.get("setup"), other.get("kind"), other.get("method")) == (
            unit.setup,
            unit.kind,
            unit.method,
        ):
            differing[name] = differences(other["identity"], unit.identity)
    nearest = min(differing, key=lambda name: len(differing[name]), default=None)
    return (nearest, tuple(differing[nearest])) if nearest else (None, ())


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """`training.optimizer.lr: 0.001 there, 0.0006 here` for every field of two identities that
    differs.
    """
    old, new = dict(_flat(there)), dict(_flat(here))
    return [
        f"{name}: {_shown(old, name)} there, {_shown(new, name)} here"
        for name in {**new, **old}
        if old.get(name, _ABSENT) != new.get(name, _ABSENT)
    ]


_ABSENT = object()


def _shown(fields: Mapping[str, Any], name: str) -> str:
    return f"{fields[name]!r}" if name in fields else "not named"


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        name = f"{prefix}.{key}" if prefix else CONFIG_NAMES.get(key, key)
        if isinstance(value, Mapping):
            yield from _flat(value, name)
        else:
            yield name, value
