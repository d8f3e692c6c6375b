"""Success of the continuation probe's prefixes, and the gain of TRB prefixes over vanilla ones.

The gain is (s_TRB − s_vanilla) ÷ s_vanilla at one truncation length with one continuer (paper,
Figure "continuation gain"). Readers give nothing before a probe is done.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.scores import uncertainty
from orchestrator.errors import UserError
from orchestrator.experiment.probe import BEHAVIORS, DOCUMENTS, probe_unit
from orchestrator.records.files import Damaged
from orchestrator.records.rundir import RunReader
from orchestrator.selection.study import Study

COUNTS = ("prefixes", "finished", "n", "correct", "truncated", "no_answer", "timed_out")
Gain = tuple[float, float | None, float | None]  # with the ends of its interval, where it has one


@dataclass(frozen=True)
class ProbeCounts:
    """Counts of one behavior, continuer and truncation length, a number for each prompt.

    `finished` of the `prefixes` had ended by then; `n` answers were graded, finished ones as often
    as the others were continued.
    """

    prompts: tuple[int, ...]
    prefixes: tuple[int, ...]
    finished: tuple[int, ...]
    n: tuple[int, ...]
    correct: tuple[int, ...]
    truncated: tuple[int, ...]
    no_answer: tuple[int, ...]
    timed_out: tuple[int, ...]

    def total(self, name: str) -> int:
        """Sum of one of the counts over prompts."""
        return sum(getattr(self, name))

    @property
    def success(self) -> float:
        """Share of the graded answers that are correct, the mean over prompts, in [0, 1]."""
        return self.total("correct") / self.total("n")

    @property
    def finished_share(self) -> float:
        """Share of the rollouts that had ended within the truncation length."""
        return self.total("finished") / self.total("prefixes")


@dataclass(frozen=True)
class PrefixComparison:
    """Both behaviors at one truncation length with one continuer; no `gain` where vanilla never
    succeeds.
    """

    continuer: str
    t: int
    vanilla: ProbeCounts
    trust_region: ProbeCounts
    gain: Gain | None


def continuation_gains(study: Study, setup: str) -> dict[str, dict[int, Gain | None]]:
    """Continuer → truncation length in tokens → gain with its 95 % interval; empty before the probe
    is done.
    """
    gains: dict[str, dict[int, Gain | None]] = defaultdict(dict)
    for found in comparisons(study, setup):
        gains[found.continuer][found.t] = found.gain
    return dict(gains)


def comparisons(study: Study, setup: str) -> list[PrefixComparison]:
    """All counts and gains of a setup's probe, by continuer and ascending length."""
    run = _finished(study, setup)
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = defaultdict(list)
    for row in run.committed("continuations.jsonl") if run else []:
        groups[row["continuer"], row["t"], row["behavior"]].append(row)
    cells = {key: _cell(rows) for key, rows in groups.items()}
    places = sorted({(continuer, t) for continuer, t, _ in cells})
    found = []
    for continuer, t in places:
        vanilla, trust_region = (cells[continuer, t, behavior] for behavior in BEHAVIORS)
        found.append(
            PrefixComparison(continuer, t, vanilla, trust_region, gain(vanilla, trust_region))
        )
    return found


def example(study: Study, setup: str) -> dict[str, Any] | None:
    """One prefix with its solved trust regions; see `orchestrator.probe_documents.solved_example`."""
    run = _finished(study, setup)
    return run.document(DOCUMENTS[0]) if run else None


def excerpts(study: Study, setup: str) -> list[dict[str, Any]]:
    """Prompt-matched rollouts: `prompt`, `gold`, and for each behavior text, correct, length,
    truncated, mean_teacher_log_prob (nats)."""
    run = _finished(study, setup)
    return run.document(DOCUMENTS[1]) if run else []


def gain(vanilla: ProbeCounts, trust_region: ProbeCounts) -> Gain | None:
    """Relative gain in success with its bootstrap interval over prompts, which both behaviors
    share.

    A replicate without a vanilla success has no finite gain and counts as the largest; where that
    reaches the upper end, there is no interval.
    """
    if not vanilla.total("correct"):
        return None
    assert vanilla.prompts == trust_region.prompts
    reference, proposed = BEHAVIORS
    rates = {
        reference: np.divide(vanilla.correct, vanilla.n),
        proposed: np.divide(trust_region.correct, trust_region.n),
    }
    replicates = uncertainty.resample(rates, "probe")
    base, blended = replicates[reference], replicates[proposed]
    ratios = np.divide(blended, base, out=np.full_like(base, np.inf), where=base > 0)
    tail = (1 - uncertainty.CONFIDENCE) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail], method="closest_observation")
    value = trust_region.success / vanilla.success - 1
    return (value, float(low) - 1, float(high) - 1) if np.isfinite(high) else (value, None, None)


def _cell(rows: list[dict[str, Any]]) -> ProbeCounts:
    ordered = sorted(rows, key=lambda row: row["prompt"])
    columns = {name: tuple(row[name] for row in ordered) for name in COUNTS}
    return ProbeCounts(prompts=tuple(row["prompt"] for row in ordered), **columns)


def _finished(study: Study, setup: str) -> RunReader | None:
    """The probe's directory if it is complete; None too where the experiment has nothing to probe."""
    try:
        run = RunReader(study.runs, probe_unit(study.experiment, setup, study.runs).id)
    except Damaged:
        raise
    except UserError:
        return None
    return run if run.trained else None
