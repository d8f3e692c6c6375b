"""A line for each event of a sweep: a unit began, reached a step, ended or failed."""

from __future__ import annotations

from orchestrator.commands.display import duration, names, percent
from orchestrator.monitor.status import Overview
from orchestrator.monitor.unit_status import UnitStatus
from orchestrator.records.log import RESCORING, TRAINING


class Events:
    """News of a sweep since the last look, a line for each unit; the first look brings none."""

    def __init__(self, first: Overview):
        self._seen = {s.id: _sign(s) for s in first.units if s.state != "running"}

    def since_then(self, overview: Overview) -> tuple[list[str], list[str]]:
        """Lines on units with news: of those that ended or failed, and of those that go on.

        `[4/10, 1m20s left] TRB epsilon0=0.05 K=12 seed 0: step 40/60, 45.5` begins with the units
        that are done, and the time that the sweep still takes.
        """
        called, ended, going_on = names(overview.units), [], []
        done = sum(s.state == "done" for s in overview.units)
        of = len(overview.units) + overview.to_confirm
        left = f", {duration(overview.seconds_left)} left" if overview.seconds_left else ""
        for s in overview.units:
            sign = _sign(s)
            needs_another = s.state == "waiting" and s.phase == TRAINING
            if self._seen.get(s.id) != sign and s.state != "queued" and not needs_another:
                lines = going_on if s.state in ("running", "waiting") else ended
                lines.append(f"[{done}/{of}{left}] {called[s.id]}: {event(s)}")
            self._seen[s.id] = sign
        return ended, going_on


def _sign(s: UnitStatus) -> tuple[object, ...]:
    """The facts of a unit whose change is an event."""
    return s.state, s.state == "running" and s.phase == RESCORING, s.latest_step, s.attempt, s.error


def event(s: UnitStatus) -> str:
    """Describe the state of a unit in words."""
    latest = "" if s.latest_score is None else f", {percent(s.latest_score)}"
    reached = latest
    if s.is_trial:
        best = "" if s.confirms is not None else "best "
        reached = "" if s.score is None else f", {best}{percent(s.score)} at step {s.best_step}"
    match s.state:
        case "done":
            return f"done{reached}"
        case "failed":
            return f"failed at step {s.step}/{s.steps}: {s.error}"
        case "damaged":
            return f"damaged: {s.error}"
        case "interrupted":
            return f"interrupted at step {s.step}/{s.steps}"
        case "waiting":
            return f"{'trained' if s.is_trial else 'evaluated'}{reached}; {s.doing}"
    attempt = f"attempt {s.attempt} of {s.attempts}, " if s.attempt and s.attempt > 1 else ""
    if s.phase == RESCORING:
        step = f" step {s.best_step}" if s.is_trial else ""
        return f"{attempt}rescoring{step} on fresh samples"
    if s.latest_step is None or not s.step:
        return f"{attempt}{s.phase or 'starting'}"
    return f"{attempt}step {s.latest_step}/{s.steps}{latest}"
