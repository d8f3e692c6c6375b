"""Training rollouts token by token, coloured by what happened to each token."""

from __future__ import annotations

from dataclasses import dataclass

from rich.style import Style
from rich.text import Text

from analysis.facts.evidence import Facts
from orchestrator.experiment.units import Unit
from orchestrator.records.log import RolloutSample
from orchestrator.selection.study import Study

BETA, REPLACED = "beta", "replaced"  # columns of the law that colour tokens
TAKEN_OVER = Style(color="bright_white", bgcolor="dark_red", bold=True)
UNSURE = "yellow"  # a draft that survived although it was likelier to be rejected
FEW = 0.5
# Ground of a token by the weight of the teacher β, from none to all of it.
GROUNDS = ("", "#12323f", "#14465a", "#165c78", "#187498")
LEGEND = (
    "Plain: the student's draft survived. Yellow: it survived a chance below 1/2. White on red: "
    "replaced. Bluer ground: more of the teacher (β)."
)


@dataclass(frozen=True)
class KeptRollout:
    """A rollout of a training step, the `number`-th of those that were kept."""

    unit: Unit
    step: int
    number: int
    sample: RolloutSample

    @property
    def key(self) -> str:
        """A name that no other rollout has."""
        return f"{self.unit.id}/{self.step}/{self.number}"

    @property
    def survived(self) -> float | None:
        """The share of tokens that are the student's; None where the teacher was not asked."""
        flags = self.sample.survived
        return sum(flags) / len(flags) if flags else None


def kept_rollouts(study: Study, evidence: Facts | None) -> list[KeptRollout]:
    """The rollouts of the runs behind each method's selected checkpoint, or of all trials before
    there is one.
    """
    chosen = set[str]()
    for row in evidence.rows if evidence else ():
        chosen |= set(row.units)
    found = []
    for unit in study.units:
        if unit.is_trial and (not chosen or unit.id in chosen):
            run = study.reader(unit)
            for step in run.sampled_steps():
                for number, sample in enumerate(run.rollout_samples(step)):
                    found.append(KeptRollout(unit, step, number, sample))
    return found


def coloured(sample: RolloutSample) -> Text:
    """The response, each token in the style of `token_style`."""
    text = Text()
    for place, token in enumerate(sample.tokens):
        text.append(token, token_style(sample, place))
    return text


def token_style(sample: RolloutSample, place: int) -> Style:
    """The style of a token, see LEGEND; plain where the teacher was not asked."""
    if sample.survived is None:
        return Style()
    if not sample.survived[place]:
        return TAKEN_OVER
    acceptance = sample.measured.get("acceptance")
    colour = UNSURE if acceptance and acceptance[place] < FEW else None
    weights = sample.measured.get(BETA, sample.measured.get(REPLACED))
    ground = ""
    if weights:
        shade = int(weights[place] * (len(GROUNDS) - 1) + 0.5)
        ground = GROUNDS[min(len(GROUNDS) - 1, max(0, shade))]
    return Style(color=colour, bgcolor=ground or None)
