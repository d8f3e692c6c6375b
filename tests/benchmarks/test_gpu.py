"""The comparison of a GPU with the CPU as it is typed; without a GPU the CPU meets itself."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from tests.sweeps import ROOT, environment

COMMAND = [sys.executable, "-m", "benchmarks.gpu"]


def test_small_models_agree() -> None:
    done = subprocess.run(
        [*COMMAND, "--small"],
        cwd=ROOT, env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows = [line for line in done.stdout.splitlines() if "agreeing_rows" in line]
    assert len(rows) == 1
    assert "1.000" in rows[0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_so() -> None:
    done = subprocess.run(
        COMMAND, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout.startswith("no CUDA device here")
    assert done.stdout.count("\n") == 1
