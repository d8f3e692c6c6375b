"""How rows are shared out among ranks; nothing of it needs verl."""

from __future__ import annotations

import pytest
import torch

from orchestrator.engines.common.learning import MicroBatch
from orchestrator.engines.torch.decoding import Decoding, generate
from orchestrator.engines.verl.engine import share_out
from orchestrator.policy.spec import Student
from orchestrator.rollouts import Rollouts
from tests import tiny


@pytest.fixture(scope="module")
def rollouts() -> Rollouts:
    return generate(tiny.student(), None, tiny.requests(4, seed=3), Student(), Decoding(7, 4))


def lengths_of(batch: MicroBatch) -> list[int]:
    return [
        len(prompt) + len(response)
        for prompt, response in zip(batch.prompts, batch.responses, strict=True)
    ]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("max_tokens", [1, 40, 10_000])
def test_every_row_is_in_one_share_and_no_pass_has_more_tokens_than_fit(
    rollouts: Rollouts, max_tokens: int, ranks: int, packed: bool
) -> None:
    shares = share_out(rollouts, None, max_tokens, ranks, packed)
    assert len(shares) == ranks
    assert len({len(share) for share in shares}) == 1, (
        "FSDP's collectives need all ranks in every pass"
    )
    batches = [batch for share in shares for batch in share]
    assert sorted(row for batch in batches for row in batch.rows) == list(
        range(len(rollouts.requests))
    )
    assert sum(batch.tokens for batch in batches) == int(rollouts.lengths_B.sum())
    for batch in batches:
        fed = batch.inputs(torch.device("cpu"), packed)
        assert len(batch.rows) <= 1 or fed.ids.numel() <= max_tokens
        assert fed.ids.numel() == max(1, sum(lengths_of(batch))) or not packed
        assert len(fed.rows) == len(fed.columns) == batch.tokens
        following = (
            fed.ids[fed.rows, fed.columns + 1] if batch.tokens else torch.empty(0, dtype=torch.long)
        )
        assert torch.equal(following, batch.targets.tokens.long())


def test_packed_rows_of_unlike_length_need_fewer_passes(rollouts: Rollouts) -> None:
    passes = {True: 0, False: 0}
    for max_tokens in range(20, 80, 5):
        for packed in passes:
            (share,) = share_out(rollouts, None, max_tokens, 1, packed)
            passes[packed] += len(share)
    assert passes[True] < passes[False]
