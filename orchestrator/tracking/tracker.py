"""The interface of trackers, which show a sweep outside of its run directories, in W&B for example.

docs/add-a-tracker.md explains how to write a tracker. `follow` calls it in a thread beside the
sweep, so a tracker may be slow, hang or raise.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from orchestrator.errors import refuse
from orchestrator.selection.study import Study
from orchestrator.tracking.projection import Projection, Results
from orchestrator.user_code import named_function

KEY = "runtime.tracker"


class Tracker(Protocol):
    """Shows the projections of one study in one place.

    The program reads nothing back from a tracker. After `show` the tracker has each row of the
    projection once, also if an earlier process that was killed had shown some of them.
    """

    @property
    def name(self) -> str:
        """Its name in messages."""
        ...

    @property
    def place(self) -> str:
        """The server or folder, for the message that it cannot be reached."""
        ...

    def announcement(self) -> str:
        """One line, before a sweep: where to watch it."""
        ...

    def conclusion(self) -> str:
        """One line, after everything was shown: where to find it."""
        ...

    def show(self, projection: Projection) -> None:
        """Show a unit. Called often, and mostly with a unit that is shown already.

        It may raise any exception; the next call tries again.
        """
        ...

    def show_results(self, results: Results) -> None:
        """Show the results tables, instead of earlier ones; raises as `show` does."""
        ...


# None where the user has switched the tracker off.
OpenTracker = Callable[[Study], Tracker | None]


@dataclass(frozen=True)
class TrackerRow:
    """A shipped tracker: its function as `module:function`, and the packages that it imports.

    `packages` are those beyond the default install, under their names for pip.
    """

    function: str
    packages: tuple[str, ...] = ()


# A new row also needs its name in `config.A_TRACKER`, and its packages in setup.cfg.
TRACKERS = {
    "wandb": TrackerRow("orchestrator.tracking.wandb_tracker:open_tracker"),
    "tensorboard": TrackerRow("orchestrator.tracking.tensorboard:open_tracker", ("tensorboard",)),
}


def tracker_function(name: str) -> OpenTracker:
    """The function that opens tracker `name`, without calling it.

    Raises UserError for an unknown name, and where its packages are not installed.
    """
    if name not in TRACKERS:
        return named_function(KEY, name, TRACKERS)[0]
    for package in TRACKERS[name].packages:
        if importlib.util.find_spec(package) is None:
            others = [other for other, row in TRACKERS.items() if not row.packages]
            remedy = f"`pip install {package}` first ({package} is not installed here)"
            raise refuse(KEY, name, f"{', '.join(others)}, or {remedy}")
    module, _, function = TRACKERS[name].function.partition(":")
    return getattr(importlib.import_module(module), function)
