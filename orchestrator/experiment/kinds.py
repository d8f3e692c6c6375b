"""The kinds of units of work, their properties, and their names for people."""

from __future__ import annotations

from typing import Literal

Kind = Literal["base_eval", "sft", "trial", "probe"]

# In the order in which they are counted; a probe is no unit of a sweep.
KIND_NAMES: dict[Kind, str] = {
    "trial": "trial",
    "sft": "supervised stage",
    "base_eval": "untrained student",
}
SUPERVISED_STAGE = "Supervised stage"  # name of its units; trials are named by their methods


class OfKind:
    """Properties that follow from the `kind` of a unit, or of a statement about one."""

    kind: Kind

    @property
    def is_trial(self) -> bool:
        """Whether it is a run of a method: it distils on rollouts, and its checkpoints compete."""
        return self.kind == "trial"

    @property
    def is_supervised(self) -> bool:
        """Whether it is the supervised stage, which learns the teacher's answers first."""
        return self.kind == "sft"

    @property
    def is_untrained(self) -> bool:
        """Whether it is the evaluation of the untrained student, which has no rivals."""
        return self.kind == "base_eval"

    @property
    def trains(self) -> bool:
        """Whether it updates weights."""
        return self.is_trial or self.is_supervised

    @property
    def has_scores(self) -> bool:
        """Whether its checkpoints are evaluated on the benchmarks."""
        return self.is_trial or self.is_untrained
