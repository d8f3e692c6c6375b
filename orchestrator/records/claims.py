"""Claims on slices, so that no two evaluators do the same work.

A claim is a lease (`records.lease`) in `.locks/<unit id>/`, removed when the slice is there. The
next evaluator takes over the claim of a process that died; the claim counts such takeovers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.records.lease import Holder, Lease, LeaseHeld, holder_of
from orchestrator.records.slices import Slice


@dataclass(frozen=True)
class Held:
    """A claim that is held: on a slice of which evaluation of the checkpoint after how many steps,
    and by whom.
    """

    evaluation_id: str
    step: int
    holder: Holder


class Claims:
    """The claims on slices of a runs folder."""

    def __init__(self, runs: Path):
        self._locks = runs / ".locks"

    def take(self, unit_id: str, evaluation_id: str, step: int, part: Slice) -> Lease | None:
        """Claim a slice; None while another process has it."""
        try:
            return Lease(self._folder(unit_id) / self._name(evaluation_id, step, part))
        except LeaseHeld:
            return None

    def held(self, unit_id: str) -> list[Held]:
        """The slices of a unit that processes work on now."""
        found = []
        for path in self._files(unit_id):
            evaluation_id, step, _ = path.name.split(".", 2)
            holder = holder_of(path)
            if holder is not None:
                found.append(Held(evaluation_id, int(step.removeprefix("step_")), holder))
        return found

    def forget_lost(self, unit_id: str) -> None:
        """Remove claims of processes that are gone, and with them how often a slice was begun in
        vain.
        """
        for path in self._files(unit_id):
            if holder_of(path) is None:
                path.unlink(missing_ok=True)

    def _files(self, unit_id: str) -> Iterable[Path]:
        return sorted(self._folder(unit_id).glob("*.claim"))

    def _folder(self, unit_id: str) -> Path:
        return self._locks / unit_id

    def _name(self, evaluation_id: str, step: int, part: Slice) -> str:
        return f"{evaluation_id}.step_{step:06d}.{part.name.removesuffix('.jsonl')}.claim"
