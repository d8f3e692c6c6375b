"""Training rollouts on the screen: those that were kept, and one of them token by token."""

from __future__ import annotations

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import DataTable, Static

from analysis.numbers import tenths_text
from orchestrator.errors import UserError
from orchestrator.sheet import Cell, Mark
from orchestrator.view.live_table import LiveTable
from orchestrator.view.reading import Progress
from orchestrator.view.reading_pane import ReadingPane
from orchestrator.view.rollout_tokens import LEGEND, KeptRollout, coloured, kept_rollouts
from orchestrator.view.searching import holds_words

HEADINGS = ("Method", "Seed", "Step", "No.", "Reward", "Tokens", "Survived %")
NOTHING = "No rollouts are kept token by token here; runtime.rollout_texts says how many are."


class RolloutsPane(ReadingPane):
    """Rollouts of the selected runs; below, the tokens of the one under the cursor."""

    DEFAULT_CSS = """
    RolloutsPane LiveTable { height: 1fr; }
    RolloutsPane VerticalScroll {
        height: 1fr; border-top: solid $primary; padding: 0 1; scrollbar-size: 1 1;
    }
    """

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._rollouts: dict[str, KeptRollout] = {}
        self._words = ""

    def compose(self) -> ComposeResult:
        yield LiveTable(id="rollout-rows")
        with VerticalScroll():
            yield Static(NOTHING, id="rollout", markup=False)

    def focus_first(self) -> None:
        """Let keys reach the rows."""
        self.query_one(LiveTable).focus()

    def search(self, words: str) -> None:
        """Show only rollouts whose run, prompt or response hold all of these words."""
        self._words = words
        self._fill()

    def basis(self, progress: Progress) -> object:
        """The steps that were taken, and the table."""
        return progress.steps, self._table

    def read(self, progress: Progress) -> None:
        """Read the kept rollouts."""
        self._read_rollouts(progress)

    @work(thread=True, exclusive=True, group="rollouts")
    def _read_rollouts(self, progress: Progress) -> None:
        evidence = self._table.facts if self._table else None
        try:
            with progress.lock:
                rollouts = kept_rollouts(progress.study, evidence)
        except UserError as error:
            self.app.call_from_thread(self.query_one("#rollout", Static).update, str(error))
            return
        self.app.call_from_thread(self._take, rollouts)

    def _take(self, rollouts: list[KeptRollout]) -> None:
        self._rollouts = {each.key: each for each in rollouts}
        self._fill()

    def _fill(self) -> None:
        rows = {}
        for key, each in self._rollouts.items():
            sample, unit = each.sample, each.unit
            searched = f"{unit.label} {unit.id} {sample.prompt}{''.join(sample.tokens)}"
            if not holds_words(searched, self._words):
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
        self.query_one(LiveTable).show(HEADINGS, rows)
        self._describe()

    def on_data_table_row_highlighted(self, _: DataTable.RowHighlighted) -> None:
        self._describe()

    def _describe(self) -> None:
        """Show the prompt as the model saw it, and the response's tokens in their colours."""
        each = self._rollouts.get(self.query_one(LiveTable).selected or "")
        if each is None:
            self.query_one("#rollout", Static).update(NOTHING)
            return
        sample = each.sample
        text = Text.assemble((f"gold {sample.gold} · reward {sample.reward}", "bold"))
        text.append(" · truncated\n" if sample.truncated else "\n", "yellow")
        if sample.survived is not None:
            text.append(f"{LEGEND}\n", "dim")
        text.append(sample.prompt, "dim")
        text.append_text(coloured(sample))
        self.query_one("#rollout", Static).update(text)
