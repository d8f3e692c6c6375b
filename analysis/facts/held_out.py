"""KL(p‖q) of selected checkpoints on held-out prompts, and their differences to vanilla.

The endpoint of a run is the token mean of one measurement (`records.log.HeldOut`). It is no score:
a student that writes what its teacher would also write after a mistake is close to it, and runs
that collapse scatter in it as they do in pass@1. All trials of a setup answer the same prompts with
the same uniforms. What the prompts have in common therefore cancels in a difference, and intervals
over runs hold for these prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import sqrt
from statistics import fmean

import numpy as np

from analysis.facts.assess import decide, trained_runs, with_tests
from analysis.facts.candidates import Selected
from analysis.facts.evidence import Difference, Estimate, HeldOutRow, Over
from analysis.facts.intervals import Interval
from orchestrator.experiment.methods import REFERENCE
from orchestrator.records.log import HeldOut
from orchestrator.selection import significance
from orchestrator.selection.significance import LEVEL, TDistribution
from orchestrator.selection.study import Study


@dataclass(frozen=True)
class _Measured:
    """The measurements of a checkpoint, one of each run, none without a KL."""

    selected: Selected
    rows: Sequence[HeldOut]

    @property
    def values(self) -> list[Fraction]:
        return [Fraction(row.kl) for row in self.rows if row.kl is not None]

    @property
    def mean(self) -> Fraction:
        return sum(self.values, Fraction(0)) / len(self.values)

    @property
    def residuals(self) -> Mapping[int, float]:
        """Prompt → (y − R·x) ÷ x̄ of the ratio estimator, the mean over the runs that answered it."""
        of_prompts: dict[int, list[float]] = {}
        for row in self.rows:
            lengths = np.array(row.tokens, dtype=float)
            totals = np.array(row.prompt_kl, dtype=float)
            found = (totals - totals.sum() / lengths.sum() * lengths) / lengths.mean()
            for prompt, residual in zip(row.prompts, found.tolist(), strict=True):
                of_prompts.setdefault(prompt, []).append(residual)
        return {prompt: fmean(values) for prompt, values in of_prompts.items()}


def held_out_rows(study: Study, chosen: Iterable[Selected]) -> list[HeldOutRow]:
    """A row for each selected checkpoint that all of its runs measured.

    Differences to vanilla are tested over runs, and corrected for their number, as those of scores
    are.
    """
    rows, measured = [], [found for each in chosen if (found := _measured(study, each))]
    for setup in study.experiment.setups:
        of_setup = [each for each in measured if each.selected.setup == setup]
        gaps = _differences(of_setup)
        for each in of_setup:
            rows.append(_row(study, each, gaps.get(each.selected.best.method)))
    return rows


def _measured(study: Study, selected: Selected) -> _Measured | None:
    """The measurements of a trained checkpoint on two prompts or more; None where a run has none."""
    rows, best = [], selected.best
    for unit_id in best.units if trained_runs(best) else ():
        row = study.reader(unit_id).held_out_at(best.step)
        if row is None or row.kl is None or None in row.prompt_kl or len(row.prompts) < 2:
            return None
        rows.append(row)
    return _Measured(selected, rows) if rows else None


def _row(study: Study, each: _Measured, gap: Difference | None) -> HeldOutRow:
    best, rows = each.selected.best, each.rows
    starts = [study.reader(unit_id).held_out_at(0) for unit_id in best.units]
    over_runs = significance.of_mean(significance.spread_of(each.values))
    return HeldOutRow(
        setup=each.selected.setup,
        method=best.method,
        knobs=best.knobs,
        step=best.step,
        units=best.units,
        prompts=min(len(row.prompts) for row in rows),
        kl=_estimate(each.mean, over_runs, each.residuals.values(), lowest=0.0),
        first_kl=_mean(row.positions[0]["kl"] for row in rows),
        start=_mean(row.kl if row is not None else None for row in starts),
        sequence_kl=_mean(row.sequence_kl for row in rows),
        tail_student=_mean(row.tail_student for row in rows),
        tail_teacher=_mean(row.tail_teacher for row in rows),
        student_entropy=_mean(row.student_entropy for row in rows),
        teacher_entropy=_mean(row.teacher_entropy for row in rows),
        difference=gap,
    )


def _differences(measured: Sequence[_Measured]) -> dict[str, Difference]:
    """Method → its KL minus vanilla's; over the prompts that both have where one has a single run."""
    by_method = {each.selected.best.method: each for each in measured}
    reference = by_method.pop(REFERENCE, None)
    if reference is None:
        return {}
    gaps: dict[str, Difference] = {}
    distributions: dict[str, TDistribution] = {}
    subtracted, others = significance.spread_of(reference.values), reference.residuals
    for method, each in by_method.items():
        own = each.residuals
        over_runs = significance.of_difference(significance.spread_of(each.values), subtracted)
        paired = [own[prompt] - others[prompt] for prompt in own if prompt in others]
        if over_runs is None and len(paired) < 2:  # of other experiments, with other prompts
            continue
        runs = (len(each.rows), len(reference.rows))
        sizes = (each.selected.candidates, reference.selected.candidates)
        outcome = decide(runs, sizes, over_runs is not None)
        value = each.mean - reference.mean
        gaps[method] = Difference(_estimate(value, over_runs, paired), runs, outcome, sizes)
        if over_runs is not None and outcome == "tested":
            distributions[method] = over_runs
    return gaps | with_tests(gaps, distributions, LEVEL)


def _estimate(
    value: Fraction,
    over_runs: TDistribution | None,
    residuals: Iterable[float],
    lowest: float = -np.inf,
) -> Estimate:
    """A mean, or the difference of two, with its interval: over runs, else over prompts.

    The error over prompts is √(Σe² ÷ (P(P − 1))) of the P residuals e, as in `HeldOut.kl_error`.
    """
    over: Over = "seeds"
    if over_runs is None:
        over, values = "prompts", np.array(list(residuals))
        count = len(values)
        error = sqrt(float(np.square(values).sum()) / (count * (count - 1)))
        over_runs = TDistribution(error, count - 1)
    reach = over_runs.reach()
    return Estimate(value, Interval(max(lowest, float(value) - reach), float(value) + reach), over)


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean; None where a value is missing."""
    known = list(values)
    present = [value for value in known if value is not None]
    return fmean(present) if known and len(present) == len(known) else None
