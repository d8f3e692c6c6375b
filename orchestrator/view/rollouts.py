"""The tab of training rollouts: those that were kept, and one of them token by token.

A token's colour says what happened to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import DataTable

from analysis.facts.evidence import Facts
from analysis.numbers import tenths_text
from orchestrator.experiment.units import Unit
from orchestrator.records.log import RolloutSample
from orchestrator.selection.study import Study
from orchestrator.sheet import Cell, Mark
from orchestrator.view.panes import LiveTable, Pane, below
from orchestrator.view.reading import Progress

HEADINGS = ("Method", "Seed", "Step", "No.", "Reward", "Tokens", "Survived %")
NOTHING = "No rollouts are kept token by token here; runtime.rollout_texts says how many are."
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


class RolloutsPane(Pane):
    """Rollouts of the selected runs; below, the tokens of the one under the cursor."""

    DEFAULT_CSS = "RolloutsPane VerticalScroll { height: 1fr; max-height: 100%; }"

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._rollouts: dict[str, KeptRollout] = {}

    def compose(self) -> ComposeResult:
        yield LiveTable(id="rollout-rows")
        yield below(NOTHING, "rollout")

    def basis(self) -> tuple[Any, ...] | None:
        """The steps that were taken, and the table."""
        return self.progress and (self.progress.overview.steps, self.table)

    def read(self, progress: Progress, basis: tuple[Any, ...]) -> Any:
        """Read the kept rollouts."""
        _, table = basis
        return kept_rollouts(progress.study, table.facts if table else None)

    def take(self, found: list[KeptRollout]) -> None:
        """Show the rollouts."""
        self._rollouts = {each.key: each for each in found}
        self.fill()

    def fill(self) -> None:
        """Show the rollouts whose run, prompt or response hold the searched words."""
        rows = {}
        for key, each in self._rollouts.items():
            sample, unit = each.sample, each.unit
            if not self.passes(f"{unit.label} {unit.id} {sample.prompt}{''.join(sample.tokens)}"):
                continue
            mark: Mark = "good" if sample.reward else "bad"
            share = "" if each.survived is None else tenths_text(100 * each.survived)
            rows[key] = [
                Cell(unit.label),
                Cell(str(unit.seed)),
                Cell(str(unit.first_batch + each.step)),
                Cell(str(each.number)),
                Cell("" if sample.reward is None else f"{sample.reward:g}", mark=mark),
                Cell(str(len(sample.tokens))),
                Cell(share),
            ]
        self.query_one(LiveTable).show(dict.fromkeys(HEADINGS), rows, HEADINGS[:1])
        self._describe()

    def on_data_table_row_highlighted(self, _: DataTable.RowHighlighted) -> None:
        self._describe()

    def _describe(self) -> None:
        """Show the prompt as the model saw it, and the response's tokens in their colours."""
        each = self._rollouts.get(self.query_one(LiveTable).selected or "")
        if each is None:
            self.say(NOTHING)
            return
        sample = each.sample
        text = Text.assemble((f"gold {sample.gold} · reward {sample.reward}", "bold"))
        text.append(" · truncated\n" if sample.truncated else "\n", "yellow")
        if sample.survived is not None:
            text.append(f"{LEGEND}\n", "dim")
        text.append(sample.prompt, "dim")
        text.append_text(coloured(sample))
        self.say(text)


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
