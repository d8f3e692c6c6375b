"""Claims on slices, between real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from orchestrator.liveness.claims import Claims
from orchestrator.records.slices import Slice
from tests.sweeps import ROOT

PART = Slice(0, 4, 0, 10, 10).name
HOLD = """
import sys, time
from pathlib import Path
from orchestrator.liveness.claims import Claims
claim = Claims(Path(sys.argv[1])).take("unit", "short-1", 20, sys.argv[2])
print(claim is not None, flush=True)
time.sleep(3600)
"""


def holder(runs: Path) -> subprocess.Popen[str]:
    """A process that holds the claim on PART, if it got it."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(runs), PART], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    return process


def test_one_process_has_a_slice_and_a_dead_one_leaves_it(tmp_path: Path) -> None:
    claims = Claims(tmp_path)
    for attempt in (1, 2):
        with holder(tmp_path) as process:
            assert claims.take("unit", "short-1", 20, PART) is None
            (held,) = claims.held("unit")
            assert (held.evaluation_id, held.step, held.holder.pid) == ("short-1", 20, process.pid)
            assert held.holder.attempt == attempt
            process.kill()
    assert claims.held("unit") == []
    claim = claims.take("unit", "short-1", 20, PART)
    assert claim is not None
    assert claim.attempt == 3
    claim.release(remove=True)
    assert list((tmp_path / ".locks" / "unit").iterdir()) == []


def test_a_claim_that_was_let_go_counts_no_attempt(tmp_path: Path) -> None:
    claims = Claims(tmp_path)
    for _ in range(3):
        claim = claims.take("unit", "short-1", 20, PART)
        assert claim is not None
        assert claim.attempt == 1
        claim.release(remove=True)


def test_lost_claims_are_forgotten_and_held_ones_are_not(tmp_path: Path) -> None:
    claims = Claims(tmp_path)
    with holder(tmp_path) as process:
        claims.forget_lost("unit")
        assert len(claims.held("unit")) == 1
        process.kill()
    claims.forget_lost("unit")
    claim = claims.take("unit", "short-1", 20, PART)
    assert claim is not None
    assert claim.attempt == 1
    claim.release(remove=True)


def test_other_slices_are_other_claims(tmp_path: Path) -> None:
    claims = Claims(tmp_path)
    parts = [
        ("short-1", 20, PART),
        ("short-1", 40, PART),
        ("long-2", 20, PART),
        ("short-1", 20, Slice(4, 8, 0, 10, 10).name),
    ]
    taken = [claims.take("unit", *which) for which in parts]
    assert None not in taken
    for claim in taken:
        assert claim is not None
        claim.release(remove=True)
