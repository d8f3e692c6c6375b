"""The verl engine behind `engines.interface`: scores with the teacher and trains the student."""

from __future__ import annotations

import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, TypeVar

from safetensors.torch import load_file
from torch import Tensor

from orchestrator.engines.common.learning import (
    MicroBatch,
    largest_gap,
    learning_rate,
    micro_batches_of,
)
from orchestrator.engines.common.passes import Passes
from orchestrator.engines.common.scoring import blank_scores, write_scores
from orchestrator.engines.device import pass_tokens
from orchestrator.engines.interface import Job, Owner, Sampler, WeightsRef
from orchestrator.engines.verl.rank import Rank
from orchestrator.errors import RankLost, UserError
from orchestrator.liveness.children import Child, ChildFailed, ChildLost, Result, Sign, messages
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
        tokens = pass_tokens(self._job, "scoring")
        return _scored(self._ranks, "teacher", rollouts, tokens, bool(self._packed))


def _scored(
    ranks: Ranks, owner: Owner, rollouts: Rollouts, tokens: int, packed: bool
) -> TeacherScores:
    """The statistics of one of the sharded models, in passes of at most so many `tokens`."""
    scores = blank_scores(rollouts)
    shares = share_out(rollouts, None, tokens, ranks.size, packed)
    for share, found in zip(shares, ranks.call_each(Rank.score, shares, owner), strict=True):
        for batch, statistics in zip(share, found, strict=True):
            write_scores(scores, rollouts, batch.rows, statistics)
    return scores


def share_out(
    rollouts: Rollouts,
    scores: TeacherScores | None,
    max_tokens: int,
    ranks: int,
    packed: bool = False,
) -> list[list[MicroBatch]]:
    """The micro-batches of each rank, the same number for all.

    No pass exceeds `max_tokens`, padding included, except for a single longer row. A batch smaller
    than the ranks' joint capacity is cut finer, so that no rank is idle.
    """
    if ranks > 1:
        fair = -(-sum(rollouts.sequence_lengths) // ranks)
        max_tokens = min(max_tokens, fair)
    batches = list(micro_batches_of(rollouts, scores, max_tokens, packed))
    # FSDP's collectives need all ranks in every pass: ranks with one pass fewer get an empty one.
    batches += [MicroBatch.gather(rollouts, scores, []) for _ in range(-len(batches) % ranks)]
    return [batches[rank::ranks] for rank in range(ranks)]


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

    def score(self, rollouts: Rollouts) -> TeacherScores:
        """The statistics of the student itself, in the forward pass's dtype; see `Trainer`."""
        tokens = pass_tokens(self._job, "learning")
        return _scored(self._ranks, "student", rollouts, tokens, self._packed)

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


# --- all ranks behind one object: one in this process, or several in child processes on this machine ---
#
# Several ranks are children of the training process, with one GPU each of its placement group's
# bundle. They end with it, however it ends. A lost rank takes its shard of the model with it: the
# others are then ended, too, and RankLost is raised. The unit's next attempt begins at its last
# commit.


MODULE = "orchestrator.engines.verl.member"
# The failure of other ranks in a collective may be noticed before the killed rank that caused it.
DEATH_IS_SEEN_S = 2.0
Value = TypeVar("Value")


class Ranks(Protocol):
    """The ranks, as trainer and scorer call them."""

    size: int

    def call(self, method: Callable[..., Value], *arguments: Any) -> list[Value]:
        """Call `method`, a function of `Rank`, on all ranks with the same arguments.

        Returns the results in order.
        """
        ...

    def call_each(
        self, method: Callable[..., Value], shares: Sequence[Any], *arguments: Any
    ) -> list[Value]:
        """As `call`, with each rank's own share before the other arguments."""
        ...

    def weights(self) -> dict[str, Tensor]:
        """The trained student's weights by Hugging Face name, in the forward pass's dtype."""
        ...

    def close(self) -> None: ...


class OneRank:
    """The only rank, in this process."""

    size = 1

    def __init__(self) -> None:
        self._rank: Rank | None = Rank()

    def call(self, method: Callable[..., Value], *arguments: Any) -> list[Value]:
        return [method(self._rank, *arguments)]

    def call_each(
        self, method: Callable[..., Value], shares: Sequence[Any], *arguments: Any
    ) -> list[Value]:
        (share,) = shares
        return [method(self._rank, share, *arguments)]

    def weights(self) -> dict[str, Tensor]:
        (weights,) = self.call(Rank.weights)
        return weights

    def close(self) -> None:
        if self._rank is not None:
            self._rank.close()
            self._rank = None


class SeveralRanks:
    """`size` ranks, in processes that end with this one."""

    def __init__(self, size: int):
        self.size = size
        self._meeting = tempfile.TemporaryDirectory(prefix="trb-ranks-")
        self._children: list[Child] = []
        self._end = weakref.finalize(self, _end, self._children, self._meeting)
        for number in range(size):
            name = f"rank {number + 1} of {size}"
            self._children.append(Child(MODULE, name, {"OMP_NUM_THREADS": "1"}))
        self._ask([(number, size, self._meeting.name) for number in range(size)])

    def call(self, method: Callable[..., Value], *arguments: Any) -> list[Value]:
        return self._ask([(method, arguments)] * self.size)

    def call_each(
        self, method: Callable[..., Value], shares: Sequence[Any], *arguments: Any
    ) -> list[Value]:
        return self._ask([(method, (share, *arguments)) for share in shares])

    def weights(self) -> dict[str, Tensor]:
        held = self.call(Rank.hold_weights)
        weights: dict[str, Tensor] = {}
        for pid, descriptor in held:
            weights |= load_file(f"/proc/{pid}/fd/{descriptor}")
        self.call_each(Rank.let_go, [descriptor for _, descriptor in held])
        return weights

    def close(self) -> None:
        self._end()

    def _ask(self, calls: Sequence[Any]) -> list[Any]:
        """Send each rank its call and wait for all results.

        Raises the first rank's error, or RankLost if a process is gone.
        """
        if not self._end.alive:
            raise RankLost("the ranks have been ended")
        results: dict[int, Any] = {}
        try:
            # Every rank gets its call before any result is awaited: collectives need all of them.
            for child, call in zip(self._children, calls, strict=True):
                child.send(call)
            for number, message in messages(self._children):
                match message:
                    case Sign():
                        pass
                    case Result(value):
                        results[number] = value
                    case error:
                        raise error
        except ChildLost as lost:
            self.close()
            raise RankLost(str(lost)) from None
        except ChildFailed as failed:
            lost = self._lost_lately()
            self.close()
            if lost is not None:
                raise RankLost(f"{lost.name} died") from failed
            raise failed.error from None
        return [results[number] for number in range(self.size)]

    def _lost_lately(self) -> Child | None:
        """A rank whose process is gone: other ranks' errors are then only consequences."""
        end = time.monotonic() + DEATH_IS_SEEN_S
        while time.monotonic() < end:
            for child in self._children:
                if not child.alive():
                    return child
            time.sleep(0.05)
        return None


def _end(children: list[Child], meeting: tempfile.TemporaryDirectory[str]) -> None:
    for child in children:
        child.end()
    meeting.cleanup()
