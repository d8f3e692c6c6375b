"""The rows of trackers, and the one of one's own: named by a key, and found before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import UserError
from orchestrator.selection.study import Study
from orchestrator.tracking.tracker import TRACKERS, tracker_function
from tests.fake_runs import quickstart


@pytest.mark.parametrize("name", TRACKERS)
def test_the_key_takes_the_name_of_each_row(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    experiment, units = quickstart(f"runtime.tracker={name}")
    tracker = tracker_function(experiment.runtime.tracker)(Study(experiment, units, tmp_path))
    assert tracker is not None
    assert str(tmp_path) in tracker.place
    assert str(tmp_path) in tracker.conclusion()


@pytest.mark.parametrize("name", ["tensorbord", "", "orchestrator.errors:board", "nowhere:board"])
def test_a_tracker_that_is_not_found_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=rf"^runtime\.tracker: '{name}': expected "):
        tracker_function(quickstart(f"runtime.tracker={name!r}")[0].runtime.tracker)
