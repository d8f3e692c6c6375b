"""Scores of checkpoints, and the selection of the best: projections of the run directories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, cached_property, lru_cache
from math import comb
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from orchestrator.config import Evaluation, Experiment
from orchestrator.experiment import evaluation_protocol
from orchestrator.experiment.units import Family, Setting, Unit
from orchestrator.grading.notation import spelled
from orchestrator.records.rundir import RunReader
from orchestrator.records.slices import ProblemRecord, Slice, complete_samples
from orchestrator.selection.study import Study

# --- scores that k of the n samples of a problem would have: pass@k and maj@k, exact from counts ---
#
# Both are means over all choices of k of the n samples, so they are unbiased for every k up to n.
# pass@k asks for one right sample (Chen et al. 2021, "Evaluating Large Language Models Trained on
# Code", equation 1). maj@k lets the k samples vote (Wang et al. 2022, "Self-Consistency Improves
# Chain of Thought Reasoning in Language Models"):
#
# - All right answers are one candidate, since the grader takes each of them for the gold. Wrong
#   answers vote together where `grading.notation` gives them one text; equal values in other
#   notations do not, so that maj@k may be somewhat too high.
# - A sample without an answer has no vote. Without any vote the problem is wrong.
# - Where m answers tie for the most votes and one of them is right, the problem counts 1/m.


@dataclass(frozen=True)
class Metric:
    """How the samples of a problem are scored: `pass@8` or `maj@8`."""

    kind: Literal["pass", "maj"]
    k: int

    def __str__(self) -> str:
        return f"{self.kind}@{self.k}"

    @property
    def column(self) -> str:
        """The name of its column in files, such as pass_at_8."""
        return f"{self.kind}_at_{self.k}"


PASS_AT_1 = Metric("pass", 1)  # which selects checkpoints


@dataclass(frozen=True)
class Votes:
    """Samples of one problem: with the `right` answer, with each `wrong` one, and with none."""

    right: int
    wrong: tuple[int, ...]  # in ascending order
    blank: int

    @property
    def samples(self) -> int:
        return self.right + sum(self.wrong) + self.blank


def votes_of(record: ProblemRecord) -> Votes | None:
    """The votes in a record; None where the evaluator did not note which answers were right."""
    if record.right_answers is None:
        return None
    wrong = dict[str, int]()
    for answer, count in record.answers.items():
        # One text can be right in some samples and wrong in others, when the grader ran out of time.
        wrong_count = count - record.right_answers.get(answer, 0)
        if wrong_count > 0:
            wrong[answer] = wrong_count
    counts = list(wrong.values())
    if len(counts) > 1:
        by_spelling: Counter[str] = Counter()
        for answer, count in wrong.items():
            by_spelling[_spelled(answer)] += count
        counts = sorted(by_spelling.values())
    return Votes(record.correct, tuple(counts), record.no_answer)


_spelled = lru_cache(maxsize=100_000)(spelled)  # checkpoints repeat each other's answers


@lru_cache(maxsize=100_000)  # problems with equal counts abound: all right, all wrong
def pass_share(n: int, correct: int, k: int) -> Fraction:
    """The share of the choices of k samples out of n in which one is right."""
    return 1 - Fraction(comb(n - correct, k), comb(n, k))


@lru_cache(maxsize=100_000)
def majority_share(votes: Votes, k: int) -> Fraction:
    """The share of the choices of k samples whose vote is right, a tie of m answers counting 1/m."""
    won = Fraction(0)
    for most in range(1, min(votes.right, k) + 1):  # the votes for the right answer
        # Wrong answers of fewer samples than that cannot tie: any of their samples may be chosen,
        # like those without an answer.
        rivals = [count for count in votes.wrong if count >= most]
        harmless = votes.samples - votes.right - sum(rivals)
        for (chosen, ties), ways in _ways(rivals, most, k - most).items():
            rest = comb(harmless, k - most - chosen)
            won += Fraction(comb(votes.right, most) * ways * rest, 1 + ties)
    return won / comb(votes.samples, k)


def _ways(rivals: list[int], most: int, limit: int) -> dict[tuple[int, int], int]:
    """Count the choices of samples of the rivals, with at most `most` from each and `limit` in all.

    The key is (samples chosen, rivals that tie with `most` of them). Adds one rival after another:
    each choice so far is extended by 0 to `most` of the rival's samples.
    """
    ways = {(0, 0): 1}
    for count in rivals:
        longer: Counter[tuple[int, int]] = Counter()
        for (chosen, ties), number in ways.items():
            for votes in range(min(most, limit - chosen) + 1):
                longer[chosen + votes, ties + (votes == most)] += number * comb(count, votes)
        ways = dict(longer)
    return ways


# --- scores of checkpoints, and the selection of the best: projections of the run directories ---


@dataclass(frozen=True, eq=False)
class Tally:
    """One benchmark at one checkpoint of one unit: `correct` out of `n` samples, (problems,) each.

    `problems` names them if the counts come from a run directory. Only maj@k needs `votes`.
    """

    n: NDArray[np.int64]
    correct: NDArray[np.int64]
    problems: tuple[str, ...] = field(default=(), repr=False)
    votes: tuple[Votes, ...] = field(default=(), repr=False)

    @cached_property
    def pass_at_1(self) -> Fraction:
        """Mean over problems of c/n, exact (paper, "Evaluation Protocol")."""
        # Fractions are slow, so problems with the same n are summed as integers first.
        total = Fraction(0)
        for n in np.unique(self.n):
            total += Fraction(int(self.correct[self.n == n].sum()), int(n))
        return total / len(self.n)

    def score(self, metric: Metric) -> Fraction:
        """Mean over problems, exact."""
        if metric == PASS_AT_1:
            return self.pass_at_1
        total = Fraction(0)
        # Few shares differ, so that each is added once, times its number of problems.
        for share, times in Counter(self._exact_shares(metric)).items():
            total += times * share
        return total / len(self.n)

    def shares(self, metric: Metric = PASS_AT_1) -> NDArray[np.float64]:
        """The score of each problem, (problems,)."""
        if metric == PASS_AT_1:
            return self.correct / self.n
        return np.array([float(share) for share in self._exact_shares(metric)])

    @cached_property
    def sampling_variance(self) -> float:
        """Variance of `pass_at_1` by the sampling of responses, Σ p̂(1 − p̂)/(n − 1) / P².

        Zero where problems have one sample each, which says nothing of it.
        """
        rate = self.correct / self.n
        of_problems = rate * (1 - rate) / np.maximum(self.n - 1, 1)
        return float(of_problems.sum()) / len(self.n) ** 2

    def _exact_shares(self, metric: Metric) -> Iterator[Fraction]:
        if metric.kind == "maj":
            assert len(self.votes) == len(self.n), "counts without answers have no majority"
            for votes in self.votes:
                yield majority_share(votes, metric.k)
        else:
            for n, correct in zip(self.n.tolist(), self.correct.tolist(), strict=True):
                yield pass_share(n, correct, metric.k)

    @property
    def samples(self) -> int:
        """Samples that every problem has."""
        return int(self.n.min())


@dataclass(frozen=True)
class ScoredCheckpoint:
    """One checkpoint of one setting, its scores averaged over seeds.

    `sampled` measures the progress of its evaluation: the share of the wanted samples that exists,
    summed over benchmarks. A halving search has `stopped` its setting, or not.
    """

    setting: tuple[Unit, ...]
    step: int
    mean: Fraction
    sampled: Fraction
    stopped: bool = False


def pass_at_1(records: list[ProblemRecord]) -> Fraction:
    """Mean over problems of c/n, exact (paper, "Evaluation Protocol")."""
    return Tally(np.array([r.n for r in records]), np.array([r.correct for r in records])).pass_at_1


def tally(run: RunReader, evaluation_id: str, step: int) -> Tally | None:
    """Counts of a checkpoint over the samples that all problems have; None without an evaluation."""
    tallies = _tallies(run, evaluation_id, step)
    return tallies[-1] if tallies else None


def tally_with_votes(run: RunReader, evaluation_id: str, step: int) -> Tally | None:
    """Like `tally`, with each problem's votes, which takes ten times as long.

    None without an evaluation, and also if an evaluator did not note which answers were right.
    """
    votes: list[Votes] = []
    for record in run.evaluation(evaluation_id, step) or ():
        of_problem = votes_of(record)
        if of_problem is None:
            return None
        votes.append(of_problem)
    counts = tally(run, evaluation_id, step)
    return replace(counts, votes=tuple(votes)) if counts is not None else None


def tally_at(run: RunReader, evaluation_id: str, step: int, n: int) -> Tally:
    """Counts of a checkpoint at n samples, or at the next larger number; it must have n by now."""
    return next(counts for counts in _tallies(run, evaluation_id, step) if counts.samples >= n)


def benchmark_scores(run: RunReader, evaluation_ids: list[str], step: int) -> list[Fraction | None]:
    """pass@1 of one checkpoint on each benchmark; None for a benchmark without an evaluation."""
    scores = []
    for evaluation_id in evaluation_ids:
        counts = tally(run, evaluation_id, step)
        scores.append(None if counts is None else counts.pass_at_1)
    return scores


def exact_mean(scores: Sequence[Fraction | None]) -> Fraction | None:
    """Unweighted mean over benchmarks; None if any is missing."""
    total = Fraction(0)
    for score in scores:
        if score is None:
            return None
        total += score
    return total / len(scores) if scores else None


def mean_score(run: RunReader, evaluation_ids: list[str], step: int) -> float | None:
    """Unweighted mean pass@1 of a checkpoint in [0, 1]."""
    mean = exact_mean(benchmark_scores(run, evaluation_ids, step))
    return None if mean is None else float(mean)


def trajectory(run: RunReader, evaluation_ids: list[str]) -> dict[int, Fraction]:
    """Mean pass@1 by step, for the checkpoints that all benchmarks have."""
    steps = set(run.evaluated_steps(evaluation_ids[0]))
    for evaluation_id in evaluation_ids[1:]:
        steps &= set(run.evaluated_steps(evaluation_id))
    means: dict[int, Fraction] = {}
    for step in sorted(steps):
        mean = exact_mean(benchmark_scores(run, evaluation_ids, step))
        if mean is not None:
            means[step] = mean
    return means


def best_step(run: RunReader, evaluation_ids: list[str]) -> int | None:
    """The checkpoint with the highest mean among those with the most samples, ties to the earliest.

    None before the first evaluation. A checkpoint with fewer samples was dropped from its race.
    """
    by_samples: dict[int, dict[int, Fraction]] = {}  # step → mean of those with as many samples
    for step, mean in trajectory(run, evaluation_ids).items():
        samples = 0
        for evaluation_id in evaluation_ids:
            counts = tally(run, evaluation_id, step)
            samples += counts.samples if counts is not None else 0
        by_samples.setdefault(samples, {})[step] = mean
    return highest(by_samples[max(by_samples)]) if by_samples else None


def highest(means: dict[int, Fraction]) -> int | None:
    """The step with the highest mean, ties to the earliest."""
    return max(means, key=lambda step: (means[step], -step)) if means else None


def decided_by_family(experiment: Experiment, unit: Unit) -> bool:
    """Whether other trials decide which checkpoints may be selected: in a race, or over seeds."""
    budget = experiment.setups[unit.setup].evaluation.budget
    return budget == "adaptive" or len(experiment.seeds_of(unit.method)) > 1


def scored_checkpoints(study: Study, family: Family) -> list[ScoredCheckpoint]:
    """Checkpoints of a family that all seeds of their setting have on all benchmarks."""
    scored: list[ScoredCheckpoint] = []
    for setting in family:
        evaluation = study.setup_of(setting[0]).evaluation
        ids, runs = study.evaluation_ids(setting[0].setup), [study.reader(each) for each in setting]
        stopped = study.is_stopped(setting[0])
        for step in evaluated_steps(setting[0], runs, ids):
            scored.append(replace(_scored(setting, evaluation, runs, ids, step), stopped=stopped))
    return scored


def evaluated_steps(first: Unit, runs: Sequence[RunReader], ids: Mapping[str, str]) -> list[int]:
    """Steps at which all seeds of a setting have all benchmarks, without step 0 of a trial.

    `first` is one of its units. Step 0 is the untrained student, which is a setting of its own.
    """
    common: set[int] | None = None
    for run in runs:
        for evaluation_id in ids.values():
            steps = set(run.evaluated_steps(evaluation_id))
            common = steps if common is None else common & steps
    return sorted(step for step in common or () if step > 0 or first.is_untrained)


def best_of(candidates: Sequence[ScoredCheckpoint]) -> ScoredCheckpoint | None:
    """The highest mean of `choices`; ties go to the earlier step, then to the earlier setting.

    Without a race and a search this is the paper's "Evaluation Protocol".
    """
    pool = choices(candidates)
    return max(pool, key=lambda candidate: (candidate.mean, -candidate.step), default=None)


def choices(candidates: Sequence[ScoredCheckpoint]) -> list[ScoredCheckpoint]:
    """The checkpoints with the most samples, which survived a race, of settings that were not stopped.

    Where all settings were stopped, it chooses among these.
    """
    pool = [each for each in candidates if not each.stopped] or list(candidates)
    most = max((candidate.sampled for candidate in pool), default=None)
    return [candidate for candidate in pool if candidate.sampled == most]


def _scored(
    setting: Setting,
    evaluation: Evaluation,
    runs: Sequence[RunReader],
    ids: Mapping[str, str],
    step: int,
) -> ScoredCheckpoint:
    """Score a checkpoint that all seeds have; the seed with the fewest samples counts for all."""
    total = Fraction(0)
    sampled = Fraction(0)
    for benchmark, evaluation_id in ids.items():
        wanted = evaluation_protocol.full_samples(evaluation, benchmark)
        fewest = wanted
        for run in runs:
            counts = tally(run, evaluation_id, step)
            assert counts is not None, "only evaluated checkpoints are candidates"
            total += counts.pass_at_1
            fewest = min(fewest, counts.samples)
        sampled += Fraction(fewest, wanted)
    # Each benchmark has the same seeds, so the mean over both is the mean of the means over seeds.
    mean = total / (len(runs) * len(ids))
    return ScoredCheckpoint(tuple(setting), step, mean, sampled)


def _tallies(run: RunReader, evaluation_id: str, step: int) -> tuple[Tally, ...]:
    """Counts at each number of samples that all problems had, fewest first.

    Cached twice: by a snapshot for one look, and by this process until a slice changes on disk.
    """
    return run.once(
        ("tallies", evaluation_id, step), lambda: _known_tallies(run, evaluation_id, step)
    )


def _known_tallies(run: RunReader, evaluation_id: str, step: int) -> tuple[Tally, ...]:
    slices = run.slices(evaluation_id, step)
    version = [(part, run.slice_stamp(evaluation_id, step, part)) for part in slices]
    key = str(run.path), evaluation_id, step
    if key not in _SUMMED or _SUMMED[key][0] != version:
        _SUMMED[key] = version, _sum_slices(run, evaluation_id, step, slices)
    return _SUMMED[key][1]


# (run directory, evaluation id, step) → slices with their stamps, and the tallies of these slices.
_SUMMED: dict[
    tuple[str, str, int], tuple[list[tuple[Slice, tuple[int, ...]]], tuple[Tally, ...]]
] = {}


def _sum_slices(
    run: RunReader, evaluation_id: str, step: int, slices: Sequence[Slice]
) -> tuple[Tally, ...]:
    """Add up the counts of slices, and keep the sum at each number of samples that all problems had.

    `slices` are in order of their first sample.
    """
    complete = complete_samples(slices)
    if not complete:
        return ()
    names = [""] * slices[0].problems
    correct = np.zeros(len(names), dtype=np.int64)
    tallies: list[Tally] = []
    added = 0
    for n in complete:
        while added < len(slices) and slices[added].sample < n:
            part = slices[added]
            counts = run.slice_counts(evaluation_id, step, part)
            names[part.problem : part.problem_end] = counts.problems
            correct[part.problem : part.problem_end] += counts.correct
            added += 1
        tallies.append(Tally(np.full(len(names), n), correct.copy(), _shared(tuple(names))))
    return tuple(tallies)


@cache
def _shared(problems: tuple[str, ...]) -> tuple[str, ...]:
    """Return one tuple for all checkpoints with the same problems, which saves memory."""
    return problems
