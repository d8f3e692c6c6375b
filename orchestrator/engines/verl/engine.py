"""The verl engine behind `engines.interface`: scores with the teacher and trains the student."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import torch

from orchestrator.engines.common.learning_rate import learning_rate
from orchestrator.engines.common.passes import Passes
from orchestrator.engines.common.rollout_loss import largest_gap
from orchestrator.engines.device import pass_tokens
from orchestrator.engines.interface import Job, Owner, Sampler, WeightsRef
from orchestrator.engines.verl.batches import share_out
from orchestrator.engines.verl.rank import Rank
from orchestrator.engines.verl.ranks import OneRank, Ranks, SeveralRanks
from orchestrator.errors import UserError
from orchestrator.policy.spec import Objective
from orchestrator.rollouts import Rollouts, TeacherScores

VERSION = "0.9.1"  # `library` overrides private methods of it


class VerlEngine:
    """Trainer and scorer over the same ranks, which start with the first of the two roles.

    `passes` default to `Passes.on` each rank's device.
    """

    def __init__(self, job: Job, passes: Passes | None = None, ranks: Ranks | None = None):
        self._job, self._passes, self._ranks = job, passes, ranks

    def sampler(self, owner: Owner = "student") -> Sampler:
        """Raises ValueError: verl's engine has no decoding."""
        raise ValueError("verl does not sample")

    def scorer(self) -> VerlScorer:
        return VerlScorer(self._job, self._passes, self._come_up())

    def trainer(self) -> VerlTrainer:
        return VerlTrainer(self._job, self._passes, self._come_up())

    def close(self) -> None:
        """End the processes of the ranks."""
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = None

    def _come_up(self) -> Ranks:
        if self._ranks is None:
            self._ranks = OneRank() if self._job.ranks == 1 else SeveralRanks(self._job.ranks)
        return self._ranks


def open_engine(job: Job) -> VerlEngine:
    """Open the engine for a job. Raises UserError if another version of verl is installed."""
    installed = metadata.version("verl")
    if installed != VERSION:
        raise UserError(
            f"engine.trainer: verl {installed}: expected verl {VERSION}, "
            "which make setup-engines installs"
        )
    return VerlEngine(job)


class VerlScorer:
    """Scores with the teacher, sharded over the ranks."""

    def __init__(self, job: Job, passes: Passes | None, ranks: Ranks):
        self._job, self._passes, self._ranks = job, passes, ranks
        self._packed: bool | None = None  # known once the teacher is loaded

    def start(self) -> None:
        """Load the teacher."""
        if self._packed is None:
            self._packed = all(self._ranks.call(Rank.open_teacher, self._job, self._passes))

    def score(self, rollouts: Rollouts) -> TeacherScores:
        """The teacher's statistics at every visited prefix."""
        self.start()
        rows, width, top_k = rollouts.support_ids_BTK.shape
        out = {field.name: torch.zeros(rows, width) for field in dataclasses.fields(TeacherScores)}
        out["support_BTK"] = torch.zeros(rows, width, top_k)
        tokens = pass_tokens(self._job, "scoring")
        shares = share_out(rollouts, None, tokens, self._ranks.size, bool(self._packed))
        for share, scored in zip(shares, self._ranks.call_each(Rank.score, shares), strict=True):
            for batch, scores in zip(share, scored, strict=True):
                inside = rollouts.mask_BT[batch.rows]
                for name, value in vars(scores).items():
                    block = out[name][batch.rows]
                    block[inside] = value  # both ordered by row, then by position
                    out[name][batch.rows] = block
        return TeacherScores(**out)


class VerlTrainer:
    """A student in training, sharded over the ranks.

    Master weights are float32, forward passes in `engine.dtype`.
    """

    def __init__(self, job: Job, passes: Passes | None, ranks: Ranks):
        self._job, self._ranks = job, ranks
        self._packed = all(ranks.call(Rank.open_student, job, passes))

    def step(
        self, rollouts: Rollouts, scores: TeacherScores | None, goal: Objective, step: int
    ) -> dict[str, float]:
        """Make update number `step` (from 0); see `TorchTrainer.step`."""
        total = int(rollouts.lengths_B.sum())
        rate = learning_rate(self._job.setup.training.optimizer, step, self._job.steps)
        tokens = pass_tokens(self._job, "learning")
        shares = share_out(rollouts, scores, tokens, self._ranks.size, self._packed)
        results = self._ranks.call_each(Rank.step, shares, total, goal, rate)
        sums = [of_rank for of_rank, _ in results]
        norm = sums[0].pop("grad_norm")  # of the whole gradient, on every rank
        metrics: dict[str, float] = {}
        for name in sums[0]:
            metrics[name] = sum(of_rank[name] for of_rank in sums) / total
        metrics |= largest_gap([gap for _, gaps in results for gap in gaps])
        metrics["grad_norm"] = norm
        metrics["lr"] = rate
        return metrics

    def log_probs(self, ids: Sequence[int]) -> list[float]:
        """log p of the ids under the student in training, in the forward pass's dtype."""
        return self._ranks.call(Rank.log_probs, list(ids))[0]

    def publish(self, step: int) -> WeightsRef:
        """The weights after `step` steps, in the forward pass's dtype, on the CPU.

        No rank ever holds all of them.
        """
        return WeightsRef(step, self._ranks.weights())

    def export(self, folder: Path) -> dict[str, str]:
        """Write the model in Hugging Face layout, in the forward dtype; each rank writes a part."""
        digests: dict[str, str] = {}
        for part in self._ranks.call(Rank.export, str(folder)):
            digests |= part
        return digests

    def save(self, folder: Path) -> None:
        """Write master weights and AdamW moments; each rank writes its own rows."""
        self._ranks.call(Rank.save, str(folder))

    def restore(self, folder: Path) -> None:
        """Continue from the saved state: exactly on as many ranks, on others up to rounding."""
        self._ranks.call(Rank.restore, str(folder))
