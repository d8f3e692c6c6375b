"""The evidence behind a results table's rows: plain numbers, with scores in percent, 0 to 100."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

from analysis.facts.candidates import Selected
from analysis.facts.curves import SetupRuns, setup_runs
from analysis.facts.intervals import CONFIDENCE, Interval
from analysis.labels import BASE
from analysis.numbers import signed, tenths_text
from orchestrator.config import Experiment
from orchestrator.experiment.axes import setting_text
from orchestrator.monitor.status import Overview
from orchestrator.selection import significance
from orchestrator.selection.scores import Metric
from orchestrator.selection.study import Study

# Behind the reach of an interval over problems, which is no measure of other training runs.
ONE_RUN = "*"
Over = Literal["problems", "prompts", "seeds"]  # what an interval lets vary
Depth = Literal["scores", "intervals", "all"]  # how much of the facts is computed


@dataclass(frozen=True)
class Estimate:
    """A score, or a difference of two, with its interval.

    `over` is "seeds" for a t interval over training runs (`selection.significance`), "problems"
    for a bootstrap over the problems of the checkpoints (`facts.intervals`), and "prompts" for a t
    interval over held-out prompts (`facts.held_out`). The latter two say nothing of other training
    runs.
    """

    value: Fraction
    interval: Interval
    over: Over

    @property
    def margin(self) -> float:
        """Distance from the value to the farther limit."""
        return max(self.interval.high - float(self.value), float(self.value) - self.interval.low)

    @property
    def mark(self) -> str:
        """ONE_RUN behind a margin that holds no other training runs, else nothing."""
        return "" if self.over == "seeds" else ONE_RUN

    @property
    def reach(self) -> str:
        """`1.2`, the margin of an interval over seeds; `1.2*` of one over problems."""
        return f"{tenths_text(self.margin)}{self.mark}"


# Why a difference has a p-value, or has none: a score of the untrained student has no seeds, the
# best of more checkpoints is higher by chance alone, one run shows no spread between seeds, no two
# runs of either method may differ, and a clock has a spread of its own.
Outcome = Literal["tested", "untrained", "unequal choice", "one seed", "no spread", "clocked"]


@dataclass(frozen=True)
class Collapse:
    """How many runs of a checkpoint's setting end below the untrained student.

    `steps` has for each run, in the order of seeds, the evaluated step from which on its average
    lies below the untrained student's; None for a run that ends above it or equal. `p_value` is
    two-sided, that as many of vanilla's runs do so, by Fisher's exact test, corrected for the
    number of methods (Bonferroni) and of looks; None with one run, without vanilla, and for vanilla itself.
    """

    steps: tuple[int | None, ...]
    p_value: float | None = None

    @property
    def runs(self) -> int:
        return len(self.steps)

    @property
    def collapsed(self) -> int:
        return sum(step is not None for step in self.steps)

    @property
    def first(self) -> int | None:
        """The earliest of the steps."""
        return min((step for step in self.steps if step is not None), default=None)

    @property
    def text(self) -> str:
        """`2 of 3, from step 16`."""
        since = "" if self.first is None else f", from step {self.first}"
        return f"{self.collapsed} of {self.runs}{since}"


@dataclass(frozen=True)
class Difference:
    """One method's score minus another's on the same problems.

    `runs` are the training runs that the two scores are means of, none for the untrained student,
    and `chosen_from` the numbers of checkpoints that they are the best of. A difference that is
    "tested" has a two-sided `p_value` of Welch's test; `corrected_for` counts the differences that
    interval and p-value are corrected for (`selection.significance`), and `holm` is corrected by
    Holm's procedure.
    `permutation` is the p-value of the average over relabellings of all runs, which corrects for
    the same number; None elsewhere, and where this is one look of several.
    """

    estimate: Estimate
    runs: tuple[int, int]
    outcome: Outcome = "one seed"
    chosen_from: tuple[int, int] = (1, 1)
    p_value: float | None = None
    corrected_for: int | None = None
    holm: float | None = None
    permutation: float | None = None

    @property
    def shown(self) -> bool:
        """Whether the difference is shown to be one, at the 5 % level."""
        return self.p_value is not None and self.p_value < 1 - CONFIDENCE


FARTHEST = 20.0  # points on either side of Vanilla that an axis shows at most


@dataclass(frozen=True)
class GapAxis:
    """An axis of differences in points, from `low` to `high`."""

    low: float
    high: float

    @staticmethod
    def around(differences: Iterable[Difference]) -> GapAxis:
        """An axis that holds zero and the intervals, as far as FARTHEST points.

        A method that collapses would otherwise flatten the intervals of all others.
        """
        low, high = -1.0, 1.0
        for difference in differences:
            low = min(low, difference.estimate.interval.low)
            high = max(high, difference.estimate.interval.high)
        return GapAxis(max(-FARTHEST, low), min(FARTHEST, high))

    def share(self, value: float) -> float:
        """The place of a value from 0 to 1; that of the nearer end for a value beyond."""
        return (min(self.high, max(self.low, value)) - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class ColumnEvidence:
    """One column of a row; what cannot be had is None.

    `left_out` is the score of the checkpoint chosen on all seeds but one, on that one, averaged
    over the seeds.

    `problems` are those of the benchmark, or of all benchmarks together for the average. `samples`
    counts the generations of all problems and seeds, and `n` those of the problem and seed that has
    the fewest, None for the average, whose benchmarks differ. `responses` are the numbers of
    `facts.responses` by name, without those that are missing.
    """

    score: Estimate
    split_half: float | None
    fresh: Estimate | None
    left_out: float | None
    difference: Difference | None
    problems: int
    samples: int
    n: int | None
    responses: Mapping[str, Estimate] = field(default_factory=dict)


@dataclass(frozen=True)
class RowEvidence:
    """The selected checkpoint of a method in one setup; `columns` by benchmark and as `avg`.

    `units` are the ids of its training runs, one for each seed; `spread` is the standard deviation
    of the average over seeds (n − 1), None for one seed. `candidates` counts the family's
    checkpoints, `eligible` those chosen from. `complete` says whether it has all samples asked for.
    `k` is that of pass@k and maj@k among the responses' numbers, 1 without these. `collapse` is
    None for the untrained student, and without it.
    """

    setup: str
    method: str
    knobs: dict[str, Any]
    step: int
    units: tuple[str, ...]
    spread: float | None
    candidates: int
    eligible: int
    complete: bool
    columns: dict[str, ColumnEvidence]
    k: int = 1
    collapse: Collapse | None = None

    @property
    def seeds(self) -> int:
        """Training runs that the scores are means of; 0 for the untrained student."""
        return len(self.units) if self.method != BASE else 0

    @property
    def setting(self) -> str:
        """Knobs for people: `epsilon0=0.05 K=12`."""
        return setting_text(self.knobs)


@dataclass(frozen=True)
class ConfirmedColumn:
    """One column of a confirmed checkpoint: its score, and the `explored` one it was chosen by."""

    score: Estimate
    explored: Fraction
    difference: Difference | None

    @property
    def lead(self) -> Fraction:
        """How much of the explored score was luck of the choice: explored − confirmed, in points."""
        return self.explored - self.score.value


@dataclass(frozen=True)
class ConfirmedRow:
    """The chosen setting of a method, trained on seeds that took no part in choosing it.

    `units` are the confirming runs that are evaluated, of `wanted` in all; `columns` is empty
    without any. `averages` are the runs' own, in [0, 1], and `sampling` is the variance of one of
    them by the sampling of responses. `collapse` counts the runs that lie below the untrained
    student at the step, the only one that they are evaluated at.
    """

    setup: str
    method: str
    knobs: dict[str, Any]
    step: int
    units: tuple[str, ...]
    wanted: int
    columns: dict[str, ConfirmedColumn]
    averages: tuple[Fraction, ...] = ()
    sampling: float = 0.0
    collapse: Collapse | None = None

    @property
    def complete(self) -> bool:
        """Whether all confirming runs are evaluated."""
        return len(self.units) == self.wanted

    @property
    def setting(self) -> str:
        return setting_text(self.knobs)


@dataclass(frozen=True)
class MeanDifference:
    """A method's confirmed difference to vanilla, the mean over `setups` setups.

    `leads` are those of each setup in points. Each of the `seeds` is one run in every setup.
    """

    method: str
    difference: Difference
    leads: tuple[Fraction, ...]
    seeds: int
    setup: str = ""  # it is about all of them

    @property
    def setups(self) -> int:
        return len(self.leads)

    @property
    def ahead(self) -> int:
        """In how many of them the method's mean is ahead of vanilla's."""
        return sum(lead > 0 for lead in self.leads)

    @cached_property
    def elsewhere(self) -> Interval | None:
        """95 % interval of the mean over all setups like these, which count as drawn at random.

        A t interval over the setups' own differences, so that it contains what seeds do to them.
        None where no two differ.
        """
        over_setups = significance.of_mean(significance.spread_of(self.leads))
        if over_setups is None:
            return None
        reach, mean = over_setups.reach(1 - CONFIDENCE), float(sum(self.leads) / self.setups)
        return Interval(mean - reach, mean + reach)


@dataclass(frozen=True)
class HeldOutRow:
    """Measurements of the runs of a selected checkpoint on held-out prompts (`records.log.HeldOut`).

    All numbers are means over the runs `units`, in nats and shares in [0, 1]. The interval of `kl`
    and of its difference to vanilla is over seeds, and over the prompts with a single run.
    `first_kl` is the KL at the first tokens of a response, where few mistakes have been made, and
    `start` the KL before the first step. `prompts` counts the prompts of a run.
    """

    setup: str
    method: str
    knobs: dict[str, Any]
    step: int
    units: tuple[str, ...]
    prompts: int
    kl: Estimate
    first_kl: float | None
    start: float | None
    sequence_kl: float | None
    tail_student: float | None
    tail_teacher: float | None
    student_entropy: float | None
    teacher_entropy: float | None
    difference: Difference | None = None

    @property
    def setting(self) -> str:
        return setting_text(self.knobs)


@dataclass(frozen=True)
class AtCost:
    """A score read off a method's trajectory at a cost, and its difference to vanilla's there."""

    score: Estimate
    difference: Difference | None


@dataclass(frozen=True)
class TrainingCost:
    """The cost of training up to a checkpoint with its supervised stage; None if it is not logged.

    A supervised stage that several trials share counts for each of them, and a step that ran again
    after a kill counts once. `seconds` are those of the training steps, without start, evaluation
    and saving. `device_seconds` are `seconds` times the number of GPUs, or of cores without a GPU.
    `student_tokens` were decoded by the student: its responses, or its drafts where a teacher
    judges them. `teacher_scored` counts positions at which the teacher's distribution was computed,
    `teacher_decoded` the tokens of its own answers. `updates` contain the `supervised_updates`. All
    are floats, since they are averaged over seeds.
    """

    seconds: float | None
    device_seconds: float | None
    student_tokens: float | None
    teacher_scored: float | None
    teacher_decoded: float | None
    supervised_updates: float
    updates: float


# The ways to count the cost of training. Time is that of GPUs or cores, so it compares methods only
# if they ran on the same hardware.
MEASURES: Mapping[str, Callable[[TrainingCost], float | None]] = {
    "updates": lambda cost: cost.updates,
    "time": lambda cost: cost.device_seconds,
}


def amount_text(measure: str, amount: float, on_gpus: bool) -> str:
    """A cost with its unit: `60 updates`, `0.127 core-minutes`."""
    if measure == "time":
        return f"{hours_or_minutes(amount, on_gpus)} {'GPU-hours' if on_gpus else 'core-minutes'}"
    return f"{amount:,.0f} {measure}"


def hours_or_minutes(device_seconds: float, on_gpus: bool) -> str:
    """GPU-hours, or core-minutes, with up to three significant digits."""
    value = device_seconds / (3600 if on_gpus else 60)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@dataclass(frozen=True)
class CostRow:
    """The training cost of a selected checkpoint, a mean over `units`, and scores at equal cost.

    `hardware` says where they were trained. The methods of a setup are compared at the `amount` of
    a `measure`, a key of MEASURES; of time it is in seconds of a GPU, or of a core unless trials
    are trained `on_gpus`. It is None before it can be told. `columns` is empty where nothing can be
    read off; `why_not` has the reason.
    """

    setup: str
    method: str
    step: int
    units: tuple[str, ...]
    hardware: tuple[str, ...]
    cost: TrainingCost
    columns: dict[str, AtCost]
    why_not: str = ""
    measure: str = "updates"
    amount: float | None = None
    on_gpus: bool = False

    @property
    def at(self) -> str:
        """The equal cost with its unit, as in `60 updates`; empty before it can be told."""
        return "" if self.amount is None else amount_text(self.measure, self.amount, self.on_gpus)


@dataclass(frozen=True)
class BenchmarkSource:
    """The problems of a column: `content` as in `Benchmark.identity`, such as a file's sha256."""

    setup: str
    benchmark: str
    evaluation_id: str
    content: dict[str, Any]


@dataclass(frozen=True)
class Advice:
    """A command that makes the comparison fair, how many trials it adds, and what they are for."""

    command: str
    trials: int
    purpose: str = "5 seeds for every method"

    @property
    def reason(self) -> str:
        """`5 seeds for every method, 24 more trials:`, which stands on the line above the command."""
        if not self.trials:
            return "The other seeds of this sweep:"
        return f"{self.purpose}, {self.trials} more trial{'s' if self.trials != 1 else ''}:"


@dataclass(frozen=True)
class Verdict:
    """Sentences on the methods of each setup; `advice` where a method has a single seed.

    `caveats` are those of the setups and of the experiment, as their files give them.
    """

    sentences: tuple[str, ...] = ()
    advice: Advice | None = None
    caveats: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Sentences, caveats, reason and command, a line each, for forms without styles."""
        said = [*self.sentences, *self.caveats]
        return said if self.advice is None else [*said, self.advice.reason, self.advice.command]


@dataclass(frozen=True)
class Facts:
    """Everything that is said about the scores of a study; `facts.facts` computes it once.

    `selected` are the checkpoints chosen by pass@1, each with those that it was chosen from.
    `scores` maps setup and method to the exact scores in percent by column, by the `metric`. `rows`
    have the same with all that they rest on, by setup and method in the order of the table;
    `confirmed` has the confirmed checkpoints of the families that are settled by now,
    `across` their differences to vanilla over several setups, `costs` what each cost, `held_out`
    their distance from the teacher, for rows whose runs measured it. `missing`
    counts the units that still need training or samples.
    `notes` say what is missing or small, `verdict` what may be said of the methods. What the
    `depth` leaves out is empty, and `overview` None.
    """

    study: Study = field(repr=False)
    metric: Metric
    depth: Depth
    selected: tuple[Selected, ...]
    scores: Mapping[tuple[str, str], Mapping[str, Fraction]]
    rows: tuple[RowEvidence, ...] = ()
    benchmarks: tuple[BenchmarkSource, ...] = ()
    confirmed: tuple[ConfirmedRow, ...] = ()
    across: tuple[MeanDifference, ...] = ()
    costs: tuple[CostRow, ...] = ()
    held_out: tuple[HeldOutRow, ...] = ()
    missing: int = 0
    notes: tuple[str, ...] = ()
    verdict: Verdict = field(default_factory=Verdict)
    overview: Overview | None = None

    @property
    def experiment(self) -> Experiment:
        return self.study.experiment

    @cached_property
    def runs(self) -> list[SetupRuns]:
        """The runs of each setup that curves and figures show; read when first asked for."""
        return setup_runs(self.study, self.selected)

    def find(self, setup: str, method: str) -> RowEvidence | None:
        """The selected checkpoint of a method in a setup, with its evidence."""
        return next((row for row in self.rows if (row.setup, row.method) == (setup, method)), None)


def with_interval(estimate: Estimate) -> str:
    """A difference: `+0.8 [−1.0, +2.6]`."""
    low, high = estimate.interval.low, estimate.interval.high
    return f"{signed(estimate.value)} [{signed(low)}, {signed(high)}]"
