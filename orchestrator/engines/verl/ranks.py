"""All ranks behind one object: one in this process, or several in child processes on this machine.

Several ranks are children of the training process, with one GPU each of its placement group's
bundle. They end with it, however it ends. A lost rank takes its shard of the model with it: the
others are then ended, too, and RankLost is raised. The unit's next attempt begins at its last
commit.
"""

from __future__ import annotations

import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from safetensors.torch import load_file
from torch import Tensor

from orchestrator.engines.verl.rank import Rank
from orchestrator.errors import RankLost
from orchestrator.liveness.children import Child, ChildFailed, ChildLost, Result, Sign, messages

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
