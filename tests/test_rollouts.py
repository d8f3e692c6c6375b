"""Rollouts put into another order."""

from __future__ import annotations

from pathlib import Path

import torch

from orchestrator.engines.interface import Limits
from orchestrator.policy.spec import TrustRegion
from orchestrator.rollouts import concatenate, in_order
from tests import tiny


def test_rollouts_go_back_into_the_order_of_their_requests(tmp_path: Path) -> None:
    requests = tiny.requests(3)
    sampler = tiny.torch_engine(tmp_path).sampler()
    expected = concatenate(list(sampler.sample(requests, TrustRegion(0.1), Limits(8, 4))))
    shuffled = concatenate(list(sampler.sample(requests[::-1], TrustRegion(0.1), Limits(8, 4))))
    found = in_order(shuffled, requests)
    assert found.requests == requests
    assert found.tokens_BT.tolist() == expected.tokens_BT.tolist()
    assert found.lengths_B.tolist() == expected.lengths_B.tolist()
    assert found.teacher is not None
    assert expected.teacher is not None
    mask = expected.mask_BT
    torch.testing.assert_close(
        found.teacher.token_BT[mask], expected.teacher.token_BT[mask], atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(
        found.measured["beta"][mask], expected.measured["beta"][mask], atol=1e-4, rtol=1e-4
    )
    assert list(found.speculation) == list(expected.speculation)
    assert in_order(expected, requests) is expected
