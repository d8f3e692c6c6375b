"""The sections `samples` and `training`: responses by kind of failure, and around training.

The texts are those that `evaluation.keep_texts` kept of the first seed of each selected checkpoint.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analysis.facts.candidates import Selected
from analysis.labels import BASE, benchmark_label, method_label, order_methods, setup_title
from analysis.report.html import Html, block, code, data, element, join, note, paragraph, section
from orchestrator.experiment.methods import REFERENCE
from orchestrator.records.log import RolloutSample
from orchestrator.records.slices import ResponseText
from orchestrator.selection.study import Study

SHOWN = 3  # responses of a kind, for each method
LONGEST = 2000  # characters shown of a text, two thirds of them from its beginning
LIMIT = 1_000_000  # characters of all texts of a section
ROLLOUTS = 2  # training rollouts at each of two steps, for each method

NONE = "No texts of responses were kept: evaluation.keep_texts is 0."
BOUNDS = (
    f"At most {SHOWN} for each method and kind, the first in the order of the problems, so none was chosen for being "
    f"telling. A text of more than {LONGEST:,} characters lacks its middle, and all texts of this part have at most "
    f"{LIMIT / 1e6:g} million characters."
)
OF_WHOM = "Responses whose texts were kept, of the first seed of each selected checkpoint."
TRAINED = "Training rollouts of the first step and of the last before the selected checkpoint"
BEFORE_AFTER = "The same problem before and after training"
AHEAD, BEHIND = "Right where Vanilla is wrong", "Wrong where Vanilla is right"

Key = tuple[str, str, int]  # benchmark, problem, number of the sample
Responses = Mapping[Key, ResponseText]
Side = tuple[str, ResponseText]  # a method and its response


@dataclass(frozen=True)
class ShownSample:
    """One response of a method, or two responses to the same problem side by side.

    `rank` is its place, from 0, among the samples of its setup, kind and methods.
    """

    setup: str
    kind: str
    rank: int
    benchmark: str
    sides: tuple[Side, ...]

    @property
    def size(self) -> int:
        """Characters of its texts as the page shows them, the prompt once."""
        size = len(shortened(self.sides[0][1].prompt))
        for _, response in self.sides:
            size += len(shortened(response.text))
        return size


# The failures of a response as titles of groups, and how it may stand beside vanilla's.
TITLES = {
    "wrong": "Wrong",
    "truncated": "Truncated",
    "no answer": "Without an answer",
    "timed out": "Timed out while grading",
}
KINDS = (*TITLES.values(), AHEAD, BEHIND)


def shortened(text: str) -> str:
    """A long text without its middle: its beginning and the answer at its end say the most."""
    if len(text) <= LONGEST:
        return text
    tail = LONGEST // 3
    head, left_out = text[: LONGEST - tail], len(text) - LONGEST
    return f"{head}\n[… {left_out:,} characters left out …]\n{text[-tail:]}"


def kept_responses(study: Study, chosen: Sequence[Selected]) -> dict[str, dict[str, Responses]]:
    """Setup → method → the kept responses of its selected checkpoint's first seed."""
    found: dict[str, dict[str, Responses]] = {name: {} for name in study.experiment.setups}
    for selected in chosen:
        best, responses = selected.best, dict[Key, ResponseText]()
        run = study.reader(best.units[0])
        for benchmark, evaluation_id in study.evaluation_ids(selected.setup).items():
            for response in run.texts(evaluation_id, best.step):
                responses[benchmark, response.problem, response.sample] = response
        if responses:
            found[selected.setup][best.method] = responses
    return found


def bounded(samples: Sequence[ShownSample]) -> list[ShownSample]:
    """The samples in their order, as many as LIMIT allows; those of low rank come in first."""
    places: list[int] = []
    size = 0
    for place in sorted(range(len(samples)), key=lambda place: samples[place].rank):
        size += samples[place].size
        if size <= LIMIT:
            places.append(place)
    return [samples[place] for place in sorted(places)]


# --- by what went wrong ---


def samples_section(study: Study, kept: Mapping[str, Mapping[str, Responses]]) -> Html:
    """A group of responses for each kind, which `samples.js` can filter."""
    if not any(kept.values()):
        return section("Responses", "samples", paragraph(NONE))
    first: list[ShownSample] = []
    counts: Counter[tuple[str, str]] = Counter()
    names: dict[str, str] = {}  # of methods and benchmarks
    for setup, methods in kept.items():
        for sample in _failures(setup, methods):
            counts[setup, sample.kind] += 1
            if sample.rank < SHOWN:
                first.append(sample)
        for method in methods:
            names[method] = method_label(method)
    shown: dict[tuple[str, str], list[ShownSample]] = defaultdict(list)
    for sample in bounded(first):
        shown[sample.setup, sample.kind].append(sample)
    parts = []
    for setup in kept:
        groups = []
        for kind in KINDS:
            own = shown[setup, kind]
            if own:
                title = f"{kind}: {len(own):,} shown of {counts[setup, kind]:,}"
                groups.append(_group(study, title, own))
        if groups:
            heading = element("h3", setup_title(setup, study.experiment.setups))
            parts.append(element("div", heading, *groups, class_="samples"))
    if not parts:
        parts = [paragraph("Every response whose text was kept is right.")]
    for setup in study.experiment.setups.values():
        for key, run in setup.evaluation.benchmarks.items():
            names[key] = benchmark_label(key, run)
    parts.append(data("samples-data", names))
    return section("Responses", "samples", paragraph(OF_WHOM), note(BOUNDS), *parts)


def _failures(setup: str, methods: Mapping[str, Responses]) -> list[ShownSample]:
    """All responses of each kind, by method and in the order of its problems, which ranks them."""
    reference = methods.get(REFERENCE, {})
    found: list[ShownSample] = []
    ranks: Counter[tuple[str, str]] = Counter()  # by kind and method: the rank of the next one

    def add(kind: str, benchmark: str, *sides: Side) -> None:
        rank_of = (kind, sides[0][0])
        found.append(ShownSample(setup, kind, ranks[rank_of], benchmark, sides))
        ranks[rank_of] += 1

    for method in order_methods(methods):
        for key, response in methods[method].items():
            if response.failure is not None:
                add(TITLES[response.failure], key[0], (method, response))
            # A response may also stand beside vanilla's to the same problem.
            other = reference.get(key)
            if method not in (REFERENCE, BASE) and other and other.right != response.right:
                against = AHEAD if response.right else BEHIND
                add(against, key[0], (method, response), (REFERENCE, other))
    return found


# --- before and after training ---


def training_section(
    study: Study, chosen: Sequence[Selected], kept: Mapping[str, Mapping[str, Responses]]
) -> Html:
    """Evaluated responses of the untrained student and of each method, then training rollouts."""
    found: list[ShownSample] = []
    for setup, methods in kept.items():
        before = methods.get(BASE, {})
        for method in order_methods(methods):
            if method == BASE:
                continue
            common = [key for key in before if key in methods[method]]
            for rank, key in enumerate(common[:SHOWN]):
                pair = ((BASE, before[key]), (method, methods[method][key]))
                found.append(ShownSample(setup, BEFORE_AFTER, rank, key[0], pair))
    shown = bounded(found)
    parts = []
    for setup in study.experiment.setups:
        own = [sample for sample in shown if sample.setup == setup]
        groups = [_group(study, f"{BEFORE_AFTER}: {len(own)}", own)] if own else []
        rollouts = []
        for selected in chosen:
            article = _rollouts(study, selected) if selected.setup == setup else None
            if article:
                rollouts.append(article)
        if rollouts:
            groups.append(_details(TRAINED, rollouts))
        if groups:
            heading = element("h3", setup_title(setup, study.experiment.setups))
            parts.append(element("div", heading, *groups, class_="samples"))
    if not parts:
        parts = [paragraph("No texts of training rollouts or of responses were kept yet.")]
    words = note(f"{OF_WHOM} {BOUNDS} Training rollouts, {ROLLOUTS} at a step, have other prompts.")
    return section("Before and after training", "training", words, *parts)


def _rollouts(study: Study, selected: Selected) -> Html:
    """Rollouts of a run's first step beside those of its last step before the selected checkpoint.

    Empty unless the run kept rollouts of two such steps.
    """
    best = selected.best
    run = study.reader(best.units[0])
    steps = [step for step in run.sampled_steps() if step < best.step]
    if len(steps) < 2:
        return Html()
    sides = []
    for step in (steps[0], steps[-1]):
        parts = [element("h5", f"Step {step}")]
        for rollout in run.rollout_samples(step)[:ROLLOUTS]:
            parts += _rollout(rollout)
        sides.append(element("div", *parts))
    label = method_label(best.method)
    pair = element("div", *sides, class_="pair")
    return element("article", element("h4", label), pair)


def _rollout(rollout: RolloutSample) -> list[Html]:
    """Prompt, right answer and response of a training rollout."""
    reward = "no reward" if rollout.reward is None else f"reward {rollout.reward:g}"
    facts = [f"prompt {rollout.index}", reward, f"{len(rollout.tokens):,} tokens"]
    if rollout.truncated:
        facts.append("truncated")
    if rollout.survived:
        share = 100 * sum(rollout.survived) / len(rollout.survived)
        facts.append(f"{share:.0f} % of the tokens drafted by the student")
    if rollout.gold is not None:
        facts.append(f"right answer {rollout.gold}")
    prompt, response = shortened(rollout.prompt), shortened("".join(rollout.tokens))
    return [note(", ".join(facts)), block(prompt, "Prompt"), block(response, "Rollout")]


# --- on the page ---


def _details(title: str, articles: Sequence[Html]) -> Html:
    """A group that is open on paper and in browsers without scripts; `samples.js` closes it."""
    return element("details", element("summary", title), *articles, open="")


def _group(study: Study, title: str, samples: Sequence[ShownSample]) -> Html:
    return _details(title, [_article(study, sample) for sample in samples])


def _article(study: Study, sample: ShownSample) -> Html:
    first = sample.sides[0][1]
    runs = study.experiment.setups[sample.setup].evaluation.benchmarks
    benchmark = benchmark_label(sample.benchmark, runs[sample.benchmark])
    methods, labels, sides = [], [], []
    for method, response in sample.sides:
        methods.append(method)
        labels.append(method_label(method))
        sides.append(element("div", element("h5", labels[-1]), *_response(response)))
    title = f"{' and '.join(labels)}: {benchmark}, problem {first.problem}"
    shown = join(_response(first))
    if len(sides) > 1:
        shown = element("div", *sides, class_="pair")
    gold = code(first.gold) if first.gold is not None else "not known"
    return element(
        "article",
        element("h4", title),
        block(shortened(first.prompt), f"Prompt of {title}"),
        paragraph("Right answer: ", gold),
        shown,
        data_methods=" ".join(methods),
        data_benchmark=sample.benchmark,
    )


def _response(response: ResponseText) -> list[Html]:
    mark, kind = ("✓ right", "right") if response.right else ("✗ wrong", "wrong")
    facts = [f" · sample {response.sample} · {response.tokens:,} tokens"]
    if response.truncated:
        facts.append("truncated")
    if response.timed_out:
        facts.append("timed out while grading")
    answer = "no answer" if response.answer is None else "answer "
    words = [
        element("span", mark, class_=kind),
        element("span", ", ".join(facts), f" · {answer}", class_="note"),
    ]
    if response.answer is not None:
        words.append(code(shortened(response.answer)))
    return [paragraph(*words), block(shortened(response.text), "Response")]
