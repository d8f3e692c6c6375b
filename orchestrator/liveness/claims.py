"""Claims on slices, so that no two evaluators do the same work.

A claim is a lease (`liveness.lease`) in `.locks/<unit id>/`, removed when the slice is there. The
next evaluator takes over the claim of a process that died; the claim counts such takeovers. Claims
only save work: should two evaluators sample one slice all the same, the first file written counts
(`records.writer.write_slice`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import LeaseHeld
from orchestrator.liveness.lease import Holder, Lease, holder_of


@dataclass(frozen=True)
class Held:
    """The claim of `holder` on a slice of an evaluation, at the checkpoint after `step` steps."""

    evaluation_id: str
    step: int
    holder: Holder


class Claims:
    """The claims on slices of a runs folder."""

    def __init__(self, runs: Path):
        self._locks = runs / ".locks"

    def take(self, unit_id: str, evaluation_id: str, step: int, part: str) -> Lease | None:
        """Claim the slice whose file is named `part`; None while another process has it."""
        name = f"{evaluation_id}.step_{step:06d}.{part.removesuffix('.jsonl')}.claim"
        try:
            return Lease(self._locks / unit_id / name)
        except LeaseHeld:
            return None

    def held(self, unit_id: str) -> list[Held]:
        """The slices of a unit that processes work on now."""
        held = []
        for path in self._files(unit_id):
            evaluation_id, step, _ = path.name.split(".", 2)
            holder = holder_of(path)
            if holder is not None:
                held.append(Held(evaluation_id, int(step.removeprefix("step_")), holder))
        return held

    def forget_lost(self, unit_id: str) -> None:
        """Remove the claims of dead processes, and with them the count of their attempts."""
        for path in self._files(unit_id):
            if holder_of(path) is None:
                path.unlink(missing_ok=True)

    def _files(self, unit_id: str) -> list[Path]:
        return sorted((self._locks / unit_id).glob("*.claim"))
