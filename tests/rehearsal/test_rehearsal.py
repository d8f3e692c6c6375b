"""Every role fits into its budget on a pretended H100, counted at full size; `make rehearse-gpu`
has other cards, too.

A process of its own for each pair, since the pretence changes a whole process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal import pretended_cuda
from tests.sweeps import ROOT

PAIRS = [
    pytest.param(name, marks=pytest.mark.xdist_group(f"rehearsal of {name}"))
    for name in ("qwen3-1.7b", "qwen3-0.6b")
]
# What the host reads of the device, and so waits for: in two micro-batches of learning, in one pass
# of scoring, in one step or round of decoding. A blended round is judged in five to nine parts.
READS = {
    "learning": 5,
    "learning again": 5,
    "learning, staying": 5,
    "scoring": 4,
    "scoring, by torch": 4,
    "torch, alone": 6,
    "torch, blending": 24,
    "SGLang's sampler": 0,
    "sampler, by torch": 0,
    "SGLang, γ = 4": 75,
    "SGLang, γ = 6": 120,
    "SGLang, γ = 16": 135,
}
RECOMPUTED = 8 / 6  # passes with checkpointed layers: two forward, one backward


@pytest.mark.skipif(pretended_cuda.compiler() is None, reason="g++ is not installed")
@pytest.mark.parametrize("name", PAIRS)
def test_every_role_fits_into_its_budget(name: str, tmp_path: Path) -> None:
    file = tmp_path / "rehearsal.json"
    command = [
        sys.executable,
        "-m",
        "tests.rehearsal",
        name,
        "--card",
        "H100-80GB",
        "--json",
        str(file),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert file.exists(), done.stderr
    rows: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    assert done.returncode == 0, done.stdout
    # Only the smaller student may stay on its GPU beside a cache.
    expected = [role for role in READS if "staying" not in role or name == "qwen3-0.6b"]
    assert [row["role"] for row in rows] == expected
    for row in rows:
        assert row["fits"], row
        assert not row["refusal"], row
        # A budget that grants far more than is held would leave memory to nobody. That of a blended
        # round is the same for every γ.
        least = 0.7 if row["role"] == "SGLang, γ = 4" else 0.75
        assert row["measured_gib"] > least * row["granted_gib"], row
        assert sum(row["reads"].values()) == READS[row["role"]], row["reads"]
    # Attention over sequences of 8,192 tokens comes on top of 6ND, the more the smaller the model
    # is.
    kept, again = rows[0]["flops_of_6nd"], rows[1]["flops_of_6nd"]
    assert RECOMPUTED < again < 3.5
    # Passes that keep what they computed save a forward pass, a quarter; the loss is not recomputed.
    assert 0.75 < kept / again < 0.82
