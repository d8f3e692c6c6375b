"""The part of an experiment that a runs folder holds, and why each unit would run."""

from __future__ import annotations

import itertools
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
    "objective": "training.objective",
    "top_k": "training.top_k",
    "steps": "training.steps",
    "checkpoint_every": "training.checkpoint_every",
}


def done_of(study: Study) -> dict[str, Done]:
    """Count the finished part of each unit, by id; write nothing."""
    if not study.runs.is_dir():
        return {}
    # One listing, since asking for each of ten thousand directories takes seconds.
    present = set(os.listdir(study.runs))
    state_of: dict[str, FamilyState] = {}
    for family in study.families():
        members = [unit.id for unit in itertools.chain(*family)]
        if not present.isdisjoint(members):
            state_of |= dict.fromkeys(members, family_state(study, family))
    for unit in study.units:
        if unit.id in study.confirming and unit.id in present:
            wanted = confirming_samples(study, unit)
            settled = study.reader(unit).trained and not wanted
            state_of[unit.id] = FamilyState(wanted, settled)
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
            complete=study.is_trained(unit) and not wanted,
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

    For a unit without a directory, `nearest` is the directory of the same setup and method that
    differs least, if any, and `differences` are the fields that differ.
    """

    unit: Unit
    why: str
    nearest: str | None = None
    differences: tuple[str, ...] = ()


def reasons(study: Study) -> list[Reason]:
    """One for each unit, in their order."""
    wanted = wants(study) if study.runs.is_dir() else {}
    others = list(_recorded(study.runs))
    listed = []
    for unit in study.units:
        run = study.reader(unit)
        if run.started or run.trained:
            listed.append(Reason(unit, _why_started(unit, run, wanted.get(unit.id, {}))))
        else:
            waits = [needed for needed in unit.depends_on if not study.reader(needed).trained]
            why = f"missing; waits for {waits[0]}" if waits else "missing"
            listed.append(Reason(unit, why, *_nearest(unit, others)))
    return listed


def _why_started(unit: Unit, run: RunReader, wanted: Mapping[Sampling, int]) -> str:
    if unit.trains and not run.trained:
        state = "runs now" if run.running else "training incomplete"
        failed = f", failed: {run.error}" if run.error else ""
        return f"{state}: step {run.next_step} of {unit.steps}{failed}"
    if not wanted:
        return "done" if run.trained else "evaluation incomplete"
    parts = []
    for fresh, words in ((False, "samples"), (True, "fresh samples of the selected checkpoint")):
        benchmarks: dict[str, None] = {}
        steps = set()
        for sampling, n in wanted.items():
            if (sampling.repetition == FRESH) == fresh:
                benchmarks[f"{sampling.benchmark} n={n}"] = None
                steps.add(sampling.step)
        if steps:
            at = f"step {min(steps)}" if len(steps) == 1 else f"{len(steps)} checkpoints"
            parts.append(f"{words} wanted: {', '.join(benchmarks)} at {at}")
    return "; ".join(parts)


def _recorded(runs: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(directory, its unit as the first attempt noted it) of a runs folder."""
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
    """The directory of the same setup, kind and method with the fewest fields that differ.

    The fields come with it.
    """
    differing: dict[str, list[str]] = {}
    for name, other in others:
        kind = other.get("setup"), other.get("kind"), other.get("method")
        if kind == (unit.setup, unit.kind, unit.method):
            differing[name] = differences(other["identity"], unit.identity)
    nearest = min(differing, key=lambda name: len(differing[name]), default=None)
    return (nearest, tuple(differing[nearest])) if nearest else (None, ())


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """`training.optimizer.lr: 0.001 there, 0.0006 here` for each differing field of identities."""
    old, new = dict(_flat(there)), dict(_flat(here))
    lines = []
    for name in new | old:
        before, now = old.get(name, "not named"), new.get(name, "not named")
        if before != now:
            lines.append(f"{name}: {before} there, {now} here")
    return lines


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The fields of a tree by their dotted names, as Python writes them."""
    for key, value in tree.items():
        name = f"{prefix}.{key}" if prefix else CONFIG_NAMES.get(key, key)
        if isinstance(value, Mapping):
            yield from _flat(value, name)
        else:
            yield name, repr(value)
