"""Several ranks as processes: what becomes of them when one is lost, or the one that started them.

They need no verl, but six processes that import torch; so they come with the tests of what they are
for.
"""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator

import pytest

from orchestrator.engines.verl.engine import SeveralRanks
from orchestrator.engines.verl.rank import Rank
from orchestrator.errors import RankLost
from orchestrator.sweep.failures import failure_of
from tests.sockets import listening_addresses

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(
        importlib.util.find_spec("verl") is None, reason="verl is not installed (make test-engines)"
    ),
]
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}  # as /proc/net has 127.0.0.1 and ::1


@pytest.fixture
def ranks() -> Iterator[SeveralRanks]:
    ranks = SeveralRanks(2)
    yield ranks
    ranks.close()


def process_of(rank: Rank) -> int:
    return os.getpid()


def sum_over_ranks(rank: Rank, value: int) -> int:
    import torch.distributed as dist

    values = [0] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return sum(values)


def fail_in_one(rank: Rank, fails: bool) -> int:
    if fails:
        raise MemoryError("no room for 3 tensors")
    return sum_over_ranks(rank, 1)  # waits for the one that failed


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_ranks_work_together_until_one_of_them_fails(ranks: SeveralRanks) -> None:
    assert ranks.call_each(sum_over_ranks, [3, 4]) == [7, 7]
    processes = ranks.call(process_of)
    assert len({os.getpid(), *processes}) == 3
    assert listening_addresses(os.getpid()) <= LOOPBACK
    with pytest.raises(MemoryError, match="no room for 3 tensors") as raised:
        ranks.call_each(fail_in_one, [False, True])
    assert "in rank 2 of 2:" in raised.value.__notes__[0]
    assert "fail_in_one" in raised.value.__notes__[0]
    assert all(gone(pid) for pid in processes)
    with pytest.raises(RankLost, match="have been ended"):
        ranks.call(process_of)


def test_a_lost_rank_ends_the_attempt_and_another_may_fare_better(ranks: SeveralRanks) -> None:
    processes = ranks.call(process_of)
    os.kill(processes[1], signal.SIGKILL)
    with pytest.raises(RankLost, match="rank 2 of 2") as raised:
        ranks.call_each(sum_over_ranks, [3, 4])  # the other one waits for it in a collective
    assert failure_of(raised.value).passes
    assert failure_of(raised.value).kind == "lost"
    assert gone(processes[0])
