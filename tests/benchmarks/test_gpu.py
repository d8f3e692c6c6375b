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
    rows = {}
    for line in done.stdout.splitlines():
        name, *cells = line.strip("│ ").split("│")
        rows[name.strip()] = [cell.strip() for cell in cells]
    assert {"agreeing_rows", "solver_vs_bisection", "blend_vs_vanilla"} <= rows.keys()
    assert rows["blend_vs_vanilla"][1] == "≤ 1.3"
    if not torch.cuda.is_available():  # the CPU meets itself
        assert rows["agreeing_rows"][0] == "1.000"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_so() -> None:
    done = subprocess.run(
        COMMAND, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("no CUDA device here")
    assert done.stderr.count("\n") == 1
