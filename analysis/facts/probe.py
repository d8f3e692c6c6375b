"""Success of the continuation probe's prefixes, and the gain of TRB prefixes over vanilla ones.

The gain is (s_TRB − s_vanilla) ÷ s_vanilla at one truncation length with one continuer (paper,
Figure "continuation gain"). All readers return empty results before a probe is done.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.facts import intervals
from orchestrator.errors import UserError
from orchestrator.experiment.probe import BEHAVIORS, DOCUMENTS, probe_unit
from orchestrator.records.files import Damaged
from orchestrator.records.rundir import RunReader
from orchestrator.selection.study import Study

COUNTS = ("prefixes", "finished", "n", "correct", "truncated", "no_answer", "timed_out")
# Relative gain with the ends of its 95 % interval, where it has one.
Gain = tuple[float, float | None, float | None]


@dataclass(frozen=True)
class ProbeCounts:
    """Counts of one behavior, continuer and truncation length.

    `totals` has the sums of COUNTS over prompts: `finished` of the `prefixes` had ended within the
    length, and `n` answers were graded. A finished prefix is graded as often as the others are
    continued. `n` and `correct` have a number for each of the `prompts`.
    """

    prompts: tuple[int, ...]
    n: tuple[int, ...]
    correct: tuple[int, ...]
    totals: Counter[str]

    @property
    def success(self) -> float:
        """Share of the graded answers that are correct, the mean over prompts, in [0, 1]."""
        return sum(self.correct) / sum(self.n)

    @property
    def finished_share(self) -> float:
        """Share of the rollouts that had ended within the truncation length."""
        return self.totals["finished"] / self.totals["prefixes"]


@dataclass(frozen=True)
class PrefixComparison:
    """Both behaviors at one truncation length with one continuer.

    `gain` is None where vanilla never succeeds.
    """

    continuer: str
    t: int
    vanilla: ProbeCounts
    trust_region: ProbeCounts
    gain: Gain | None


def continuation_gains(study: Study, setup: str) -> dict[str, dict[int, Gain | None]]:
    """Continuer → truncation length in tokens → gain; empty before the probe is done."""
    gains: dict[str, dict[int, Gain | None]] = defaultdict(dict)
    for row in comparisons(study, setup):
        gains[row.continuer][row.t] = row.gain
    return dict(gains)


def comparisons(study: Study, setup: str) -> list[PrefixComparison]:
    """All counts and gains of a setup's probe, by continuer and ascending length."""
    run = _finished(study, setup)
    groups: dict[tuple[str, int], dict[str, list[dict[str, Any]]]] = {}
    for row in run.committed("continuations.jsonl") if run else []:
        group = groups.setdefault((row["continuer"], row["t"]), defaultdict(list))
        group[row["behavior"]].append(row)
    compared = []
    for (continuer, t), group in sorted(groups.items()):
        vanilla, trust_region = (_counts(group[behavior]) for behavior in BEHAVIORS)
        own = gain(vanilla, trust_region)
        compared.append(PrefixComparison(continuer, t, vanilla, trust_region, own))
    return compared


def example(study: Study, setup: str) -> dict[str, Any] | None:
    """One prefix with its solved trust regions; see `orchestrator.trial.probe`."""
    run = _finished(study, setup)
    return run.document(DOCUMENTS[0]) if run else None


def excerpts(study: Study, setup: str) -> list[dict[str, Any]]:
    """Rollouts of the same prompts, one of each behavior.

    Each excerpt has `prompt`, `gold`, and for each behavior text, correct, length, truncated and
    mean_teacher_log_prob (nats).
    """
    run = _finished(study, setup)
    return run.document(DOCUMENTS[1]) if run else []


def gain(vanilla: ProbeCounts, trust_region: ProbeCounts) -> Gain | None:
    """Relative gain in success with its bootstrap interval over the prompts of both behaviors.

    A replicate without a vanilla success has no finite gain and counts as the largest. If such
    replicates reach the upper limit, the gain has no interval.
    """
    if not sum(vanilla.correct):
        return None
    assert vanilla.prompts == trust_region.prompts
    reference, proposed = BEHAVIORS
    rates = {
        reference: np.divide(vanilla.correct, vanilla.n),
        proposed: np.divide(trust_region.correct, trust_region.n),
    }
    replicates = intervals.resample(rates, "probe")
    base, blended = replicates[reference], replicates[proposed]
    ratios = np.divide(blended, base, out=np.full_like(base, np.inf), where=base > 0)
    tail = (1 - intervals.CONFIDENCE) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail], method="closest_observation")
    value = trust_region.success / vanilla.success - 1
    return (value, float(low) - 1, float(high) - 1) if np.isfinite(high) else (value, None, None)


def _counts(rows: list[dict[str, Any]]) -> ProbeCounts:
    rows, totals = sorted(rows, key=lambda row: row["prompt"]), Counter[str]()
    for row in rows:
        totals.update({name: row[name] for name in COUNTS})
    prompts, n, correct = (tuple(row[key] for row in rows) for key in ("prompt", "n", "correct"))
    return ProbeCounts(prompts, n, correct, totals)


def _finished(study: Study, setup: str) -> RunReader | None:
    """The probe's directory; None if it is not complete, or the experiment has nothing to probe."""
    try:
        run = RunReader(study.runs, probe_unit(study.experiment, setup, study.runs).id)
    except Damaged:
        raise
    except UserError:
        return None
    return run if run.trained else None
