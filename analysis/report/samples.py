"""Responses on the page: by kind of failure, and before and after training.

The texts are those that `evaluation.keep_texts` kept of the first seed of each selected checkpoint.
Of each kind a method shows the first few in the order of the problems, so that none was chosen for
being telling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from analysis.facts.candidates import Selected
from analysis.facts.evidence import Facts
from analysis.labels import BASE, benchmark_label, method_label, order_methods, setup_title
from orchestrator.experiment.methods import REFERENCE
from orchestrator.records.log import RolloutSample
from orchestrator.records.slices import ResponseText

SHOWN = 3  # responses of a kind, for each method
LONGEST = 2000  # characters shown of a text, two thirds of them from its beginning
ROLLOUTS = 2  # training rollouts at each of two steps, for each method
# The failures of a response as titles of groups, and how it may stand beside vanilla's.
TITLES = {
    "wrong": "Wrong",
    "truncated": "Truncated",
    "no answer": "Without an answer",
    "timed out": "Timed out while grading",
}
AHEAD, BEHIND = "Right where Vanilla is wrong", "Wrong where Vanilla is right"

ResponseKey = tuple[str, str, int]  # benchmark, problem, number of the sample
Responses = Mapping[ResponseKey, ResponseText]


@dataclass(frozen=True)
class Shown:
    """A response of a method, or responses of two methods to the same problem side by side.

    `sides` has the responses by method.
    """

    benchmark: str
    sides: dict[str, ResponseText]

    @property
    def title(self) -> str:
        """`TRB and Vanilla: AIME24, problem 7`."""
        labels = " and ".join(map(method_label, self.sides))
        return f"{labels}: {self.benchmark}, problem {self.first.problem}"

    @property
    def first(self) -> ResponseText:
        return next(iter(self.sides.values()))


@dataclass(frozen=True)
class Group:
    """The responses of one kind that the page shows, and how many there are in all."""

    kind: str
    shown: list[Shown]
    count: int


@dataclass(frozen=True)
class RolloutPair:
    """Rollouts of a run's first step and of its last before the selected checkpoint, by step."""

    method: str
    steps: dict[int, list[RolloutSample]]


def shortened(text: str) -> str:
    """A long text without its middle: its beginning and the answer at its end say the most."""
    if len(text) <= LONGEST:
        return text
    tail = LONGEST // 3
    head, left_out = text[: LONGEST - tail], len(text) - LONGEST
    return f"{head}\n[… {left_out:,} characters left out …]\n{text[-tail:]}"


def kept_responses(facts: Facts) -> dict[str, dict[str, Responses]]:
    """Setup → method → the kept responses of its selected checkpoint's first seed."""
    found: dict[str, dict[str, Responses]] = {name: {} for name in facts.experiment.setups}
    for selected in facts.selected:
        best, responses = selected.best, dict[ResponseKey, ResponseText]()
        run = facts.study.reader(best.units[0])
        for benchmark, evaluation_id in facts.study.evaluation_ids(selected.setup).items():
            for response in run.texts(evaluation_id, best.step):
                responses[benchmark, response.problem, response.sample] = response
        if responses:
            found[selected.setup][best.method] = responses
    return found


def failures(facts: Facts, kept: Mapping[str, Mapping[str, Responses]]) -> dict[str, list[Group]]:
    """Title of a setup → its groups of responses, one for each kind that occurs."""
    setups = {}
    for name, methods in kept.items():
        kinds: dict[str, list[list[Shown]]] = {
            kind: [] for kind in (*TITLES.values(), AHEAD, BEHIND)
        }
        for method in order_methods(methods):
            for kind, shown in _kinds_of(facts, name, method, methods).items():
                kinds[kind].append(shown)
        groups = []
        for kind, by_method in kinds.items():
            if by_method:
                first = [each for shown in by_method for each in shown[:SHOWN]]
                groups.append(Group(kind, first, sum(map(len, by_method))))
        if groups:
            setups[setup_title(name, facts.experiment.setups)] = groups
    return setups


def _kinds_of(
    facts: Facts, setup: str, method: str, methods: Mapping[str, Responses]
) -> dict[str, list[Shown]]:
    """All responses of a method by kind, in the order of the problems."""
    found: dict[str, list[Shown]] = {}
    reference = methods.get(REFERENCE, {}) if method not in (REFERENCE, BASE) else {}
    for key, response in methods[method].items():
        label = _benchmark(facts, setup, key)
        if response.failure is not None:
            own = Shown(label, {method: response})
            found.setdefault(TITLES[response.failure], []).append(own)
        # A response may also stand beside vanilla's to the same problem.
        other = reference.get(key)
        if other is not None and other.right != response.right:
            pair = Shown(label, {method: response, REFERENCE: other})
            found.setdefault(AHEAD if response.right else BEHIND, []).append(pair)
    return found


def training(
    facts: Facts, kept: Mapping[str, Mapping[str, Responses]]
) -> dict[str, tuple[list[Shown], list[RolloutPair]]]:
    """Title of a setup → responses of the untrained student beside each method's, and rollouts."""
    found = {}
    for name, methods in kept.items():
        before, pairs = methods.get(BASE, {}), list[Shown]()
        for method in order_methods(methods.keys() - {BASE}):
            common = [key for key in before if key in methods[method]]
            for key in common[:SHOWN]:
                sides = {BASE: before[key], method: methods[method][key]}
                pairs.append(Shown(_benchmark(facts, name, key), sides))
        chosen = [selected for selected in facts.selected if selected.setup == name]
        rollouts = list(filter(None, (_rollouts(facts, selected) for selected in chosen)))
        if pairs or rollouts:
            found[setup_title(name, facts.experiment.setups)] = (pairs, rollouts)
    return found


def _rollouts(facts: Facts, selected: Selected) -> RolloutPair | None:
    """None unless the run kept rollouts of two steps before its selected checkpoint."""
    best = selected.best
    run = facts.study.reader(best.units[0])
    steps = [step for step in run.sampled_steps() if step < best.step]
    if len(steps) < 2:
        return None
    ends = (steps[0], steps[-1])
    return RolloutPair(best.method, {step: run.rollout_samples(step)[:ROLLOUTS] for step in ends})


def benchmarks(facts: Facts) -> list[str]:
    """The labels of the benchmarks of all setups."""
    labels: dict[str, None] = {}
    for setup in facts.experiment.setups.values():
        for key, run in setup.evaluation.benchmarks.items():
            labels[benchmark_label(key, run)] = None
    return list(labels)


def _benchmark(facts: Facts, setup: str, key: ResponseKey) -> str:
    return benchmark_label(key[0], facts.experiment.setups[setup].evaluation.benchmarks[key[0]])
