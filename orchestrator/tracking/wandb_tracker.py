"""W&B as a tracker: its mode, when to send a run, and the lines that say where W&B shows runs."""

from __future__ import annotations

import math
import threading
from contextlib import suppress
from dataclasses import dataclass

from orchestrator.errors import UserError
from orchestrator.selection.study import Study
from orchestrator.tracking.login import (
    Destination,
    chosen_mode,
    leet_command,
    logged_in,
    mirror_folder,
    noted_project,
    server_url,
    sync_command,
    was_given,
)
from orchestrator.tracking.projection import OPEN, Projection, Results

HEARTBEAT_S = 120.0  # W&B marks a run that is silent for some minutes as crashed
ASKING_S = 5.0  # longest wait for the server to name the project's page


def open_tracker(study: Study) -> WandbTracker | None:
    """W&B in the mode that the experiment, the environment or the login chooses; None if disabled."""
    mode = chosen_mode(study.experiment.runtime.wandb)
    return None if mode == "disabled" else WandbTracker(study, mode)


@dataclass(frozen=True)
class WandbTracker:
    """Sends runs that W&B shows out of date; `mode` is online or offline."""

    study: Study
    mode: str

    @property
    def name(self) -> str:
        return "W&B"

    @property
    def destination(self) -> Destination:
        return Destination(self.study.runs, self.mode, self.study.experiment.runtime.wandb_project)

    @property
    def place(self) -> str:
        return server_url() if self.mode == "online" else str(mirror_folder(self.study.runs))

    def announcement(self) -> str:
        """The page of the project, or the command that shows offline runs."""
        if self.mode == "online":
            return f"W&B: {self._page() or f'online at {server_url()}'}"
        shown_by = leet_command(self.study.runs)
        return f"W&B: offline (`wandb login` puts runs online); shown by: {shown_by}"

    def conclusion(self) -> str:
        """The page that the server named, or the command that sends offline runs to one."""
        if self.mode == "online":
            page = noted_project(self.study.experiment.runtime.wandb_project, self.study.runs)
            return f"W&B: {page or f'online at {server_url()}'}"
        return f"W&B is offline; to a server: {sync_command(self.study.runs)}"

    def show(self, projection: Projection) -> None:
        """Send a unit if it is out of date."""
        if not self.is_stale(projection):
            return
        self._require_login()
        from orchestrator.tracking import upload  # wandb takes a second to import

        upload.mirror(self.study.experiment, projection, self.study.runs, self.mode)

    def show_results(self, results: Results) -> None:
        """Send the results tables if they are out of date."""
        if was_given(results.id, results.content, self.destination):
            return
        self._require_login()
        from orchestrator.tracking import upload

        upload.mirror_results(self.study.experiment, results, self.study.runs, self.mode)

    def is_stale(self, projection: Projection) -> bool:
        """Whether W&B shows a unit out of date.

        Offline, a run cannot stay open, so a unit counts as stale only once it is done or the sweep
        has ended. Online, open runs are sent every HEARTBEAT_S even without new rows, so that W&B
        does not mark them as crashed.
        """
        is_open = projection.outcome == OPEN
        if is_open and self.mode == "offline":
            return False
        within = HEARTBEAT_S if is_open else math.inf
        unit_id, content = projection.unit.id, projection.content
        return not was_given(unit_id, content, self.destination, within)

    def _require_login(self) -> None:
        """Raise UserError where the server would ask for a key."""
        if self.mode == "online" and not logged_in():
            raise UserError("no key: `wandb login`, or WANDB_API_KEY in the environment")

    def _page(self) -> str | None:
        """The project's page: as noted, or from the server if it answers within seconds."""
        project_name = self.study.experiment.runtime.wandb_project
        known = noted_project(project_name, self.study.runs)
        if known or not logged_in():
            return known
        answers: list[str | None] = []
        asking = threading.Thread(
            target=_ask_for_page, args=(project_name, answers), daemon=True, name="page"
        )
        asking.start()
        asking.join(ASKING_S)
        return answers[0] if answers else None


def _ask_for_page(project_name: str, answers: list[str | None]) -> None:
    """Append the page to `answers`, since a thread returns nothing.

    Errors are left out here: they come again, and are reported, when runs are sent.
    """
    from orchestrator.tracking.upload import project_page

    with suppress(Exception):
        answers.append(project_page(project_name))
