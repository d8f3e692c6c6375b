"""Responses of the selected checkpoints to read: by what went wrong, and before and after training.

They are texts that `evaluation.keep_texts` has kept, of the first seed of each selected checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analysis.labels import BASE, benchmark_label, method_label, order_methods, setup_title
from analysis.report.html import Html, block, code, data, element, join, note, paragraph, section
from analysis.scores.candidates import Selected
from orchestrator.experiment.methods import REFERENCE
from orchestrator.records.rollout_samples import RolloutSample
from orchestrator.records.texts import ResponseText
from orchestrator.selection.study import Study

SHOWN = 3  # responses of a kind, for each method
LONGEST = 2000  # characters of a text that are shown: two thirds of them from its beginning
LIMIT = 1_000_000  # characters of all texts of a section
ROLLOUTS = 2  # training rollouts at each of two steps, for each method

NONE = (
    "No texts of responses were kept: evaluation.keep_texts is 0, or an older version evaluated the "
    "checkpoints."
)
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
    """One response of a method, or two to the same problem side by side.

    `rank` is its place among those of its setup, kind and methods.
    """

    setup: str
    kind: str
    rank: int
    benchmark: str
    sides: tuple[Side, ...]

    @property
    def size(self) -> int:
        texts = [self.sides[0][1].prompt, *(response.text for _, response in self.sides)]
        return sum(len(shortened(text)) for text in texts)


def kind_of(response: ResponseText) -> str | None:
    """The first of the things that went wrong; None for a right answer."""
    if response.timed_out:
        return "Timed out while grading"
    if response.truncated:
        return "Truncated"
    if response.answer is None:
        return "Without an answer"
    return None if response.right else "Wrong"


KINDS = ("Wrong", "Truncated", "Without an answer", "Timed out while grading", AHEAD, BEHIND)


def shortened(text: str) -> str:
    """A text without its middle where it is long: beginning and answer say the most."""
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
    """The samples in their order, without those that pass the limit: the last of each kind."""
    kept, size = set[int](), 0
    for place in sorted(range(len(samples)), key=lambda place: samples[place].rank):
        size += samples[place].size
        if size <= LIMIT:
            kept.add(place)
    return [sample for place, sample in enumerate(samples) if place in kept]


# --- by what went wrong ---


def samples_section(study: Study, kept: Mapping[str, Mapping[str, Responses]]) -> Html:
    """A group of responses for each kind, which the page can filter."""
    found: list[ShownSample] = []
    for setup, methods in kept.items():
        found += _failures(setup, methods)
    counts = Counter((sample.setup, sample.kind) for sample in found)
    if not any(kept.values()):
        return section("Responses", "samples", paragraph(NONE))
    shown = bounded([sample for sample in found if sample.rank < SHOWN])
    parts = []
    for setup in kept:
        groups = []
        for kind in KINDS:
            own = [sample for sample in shown if (sample.setup, sample.kind) == (setup, kind)]
            if own:
                title = f"{kind}: {len(own):,} shown of {counts[setup, kind]:,}"
                groups.append(_group(study, title, own))
        if groups:
            heading = element("h3", setup_title(setup, study.experiment.setups))
            parts.append(element("div", heading, *groups, class_="samples"))
    if not parts:
        parts = [paragraph("Every response whose text was kept is right.")]
    names = {method: method_label(method) for methods in kept.values() for method in methods}
    for setup in study.experiment.setups.values():
        for key, run in setup.evaluation.benchmarks.items():
            names[key] = benchmark_label(key, run)
    parts.append(data("samples-data", names))
    return section("Responses", "samples", paragraph(OF_WHOM), note(BOUNDS), *parts)


def _failures(setup: str, methods: Mapping[str, Responses]) -> list[ShownSample]:
    """All responses of each kind, by method; those of a method are ranked by their problems."""
    reference, found = methods.get(REFERENCE, {}), list[ShownSample]()
    ranks = Counter[tuple[str, str]]()

    def add(kind: str, benchmark: str, *sides: Side) -> None:
        of = (kind, sides[0][0])
        found.append(ShownSample(setup, kind, ranks[of], benchmark, sides))
        ranks[of] += 1

    for method in order_methods(methods):
        for key, response in methods[method].items():
            kind, other = kind_of(response), reference.get(key)
            if kind is not None:
                add(kind, key[0], (method, response))
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
            common = [key for key in before if key in methods[method]]
            if method != BASE:
                for rank, key in enumerate(common[:SHOWN]):
                    pair = ((BASE, before[key]), (method, methods[method][key]))
                    found.append(ShownSample(setup, BEFORE_AFTER, rank, key[0], pair))
    shown, parts = bounded(found), []
    for setup in study.experiment.setups:
        own = [sample for sample in shown if sample.setup == setup]
        groups = [_group(study, f"{BEFORE_AFTER}: {len(own)}", own)] if own else []
        rollouts = [_rollouts(study, each) for each in chosen if each.setup == setup]
        rollouts = [each for each in rollouts if each]
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

    Empty where the run keeps none, or those of a single step.
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
    """Open for paper and for browsers without scripts; `samples.js` closes it."""
    return element("details", element("summary", title), *articles, open="")


def _group(study: Study, title: str, samples: Sequence[ShownSample]) -> Html:
    return _details(title, [_article(study, sample) for sample in samples])


def _article(study: Study, sample: ShownSample) -> Html:
    first = sample.sides[0][1]
    runs = study.experiment.setups[sample.setup].evaluation.benchmarks
    benchmark = benchmark_label(sample.benchmark, runs[sample.benchmark])
    methods = [method_label(method) for method, _ in sample.sides]
    title = f"{' and '.join(methods)}: {benchmark}, problem {first.problem}"
    shown = join(_response(first))
    if len(sample.sides) > 1:
        sides = []
        for method, response in sample.sides:
            sides.append(element("div", element("h5", method_label(method)), *_response(response)))
        shown = element("div", *sides, class_="pair")
    gold = code(first.gold) if first.gold is not None else "not known"
    return element(
        "article",
        element("h4", title),
        block(shortened(first.prompt), f"Prompt of {title}"),
        paragraph("Right answer: ", gold),
        shown,
        data_methods=" ".join(method for method, _ in sample.sides),
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
