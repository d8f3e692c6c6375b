"""Triton's reading of logits against torch's operations, in Triton's interpreter.

The interpreter is slow, and its switch is read when Triton is imported: a process of its own
compares all cases, with few rows each, and prints what it found.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from orchestrator.engines.common.rounds import teacher_statistics
from orchestrator.engines.interface import Owner
from orchestrator.engines.sglang import verdict
from orchestrator.engines.sglang.blending_rows import plain_row_type, unpack
from orchestrator.engines.sglang.process import ROWS, Draw
from orchestrator.policy.vocabulary import TokenSpace
from tests.engines.installed import skip_without
from tests.sweeps import ROOT

pytestmark = pytest.mark.engines
# Name → rows, V, valid ids, stop ids of student and teacher, owner, τ, K, logits of a block.
CASES: dict[str, tuple[int, int, int, Any, Any, Owner, float, int, int]] = {
    "one block": (24, 14, 12, 10, 11, "student", 1.0, 4, 4096),
    "several blocks": (24, 300, 290, 3, 7, "student", 1.0, 5, 128),
    "tempered": (16, 300, 290, 3, 7, "student", 0.7, 5, 128),
    "stops of the student": (16, 300, 290, [3, 150, 9], [7, 3], "student", 1.0, 2, 128),
    "stops of the teacher": (16, 300, 290, [3, 150], [7, 299, 3], "teacher", 1.3, 2, 128),
    "no support": (16, 300, 290, 3, 7, "student", 1.0, 0, 128),
    "Qwen3's vocabulary": (2, 151936, 151669, 151643, 151645, "student", 1.0, 2, 4096),
}


@functools.cache
def found(logits: Path | None = None) -> dict[str, Any]:
    """What the process found, in its own cases or in a file of logits."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.engines.common.test_vocabulary_kernels"]
    command += [] if logits is None else [str(logits)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(autouse=True)
def triton() -> None:
    skip_without("triton")


@pytest.mark.parametrize("name", CASES)
def test_tokens_and_records_are_those_of_torch(name: str) -> None:
    case = found()[name]
    assert case["tokens"] == case["expected"]
    assert case["recorded"] == case["tokens"]
    assert case["support"] == case["expected_support"]
    for law in ("student", "behavior"):
        assert case[law] == pytest.approx(case[f"expected_{law}"], abs=1e-5), law


def test_ids_without_mass_are_never_drawn() -> None:
    """The only id with mass is the last of the valid ones; padding has the largest logits."""
    case = found()["one id with mass"]
    assert set(case["tokens"]) == {289}
    assert case["student"] == [0.0] * len(case["tokens"])
    assert [ids[0] for ids in case["support"]] == [289] * len(case["tokens"])
    assert all(len(set(ids)) == len(ids) for ids in case["support"])


def test_of_equal_logits_the_lowest_ids_are_recorded() -> None:
    case = found()["equal logits"]
    assert case["support"] == [[0, 1, 2, 4]] * len(case["tokens"]), "3 and 7 are stop ids"
    assert case["tokens"] == case["expected"]


def test_logits_that_are_not_finite_show_in_the_record() -> None:
    case = found()["not finite"]
    assert case["student"] == ["nan", "nan", "nan"]
    assert all(0 <= token < 300 for token in case["tokens"])


def test_forced_ids_are_the_response() -> None:
    """Of two requests at the second and the third position of their responses."""
    case = found()["forced"]
    assert case["tokens"] == [6, case["expected"][1]]
    assert case["student"] == pytest.approx(case["expected_student"], abs=1e-5)


@pytest.mark.parametrize("name", ["one stop", "several stops", "ids without mass"])
def test_the_teachers_statistics_are_those_of_torch(name: str) -> None:
    case = found()[f"statistics, {name}"]
    for field, (ours, expected) in case.items():
        assert ours == pytest.approx(expected, abs=2e-5), field
    assert 0 < sum(case["overlap_BT"][1]) < len(case["overlap_BT"][1])


def statistics(
    logits: torch.Tensor, space: TokenSpace, tokens: torch.Tensor, support: torch.Tensor
) -> dict[str, Any]:
    """Field → the values of the kernels, and those of torch's operations."""
    from orchestrator.engines.common import vocabulary_kernels

    vocabulary_kernels.KERNEL_BLOCK = 128
    ours = vocabulary_kernels.teacher_statistics(logits, space, tokens, support)
    log_q = space.teacher_log_prob(logits)
    expected = vars(teacher_statistics(log_q, tokens, support))
    return {
        name: (value.flatten().tolist(), expected[name].flatten().tolist())
        for name, value in vars(ours).items()
    }


def compared(
    logits: torch.Tensor, space: TokenSpace, owner: Owner, draws: list[dict[str, Any]], block: int
) -> dict[str, Any]:
    """Tokens and records of the kernels, and beside them what torch's operations give."""
    from orchestrator.engines.common import vocabulary_kernels

    positions = torch.arange(len(logits)) % 40 + draws[0]["prompt"]
    support = draws[0]["support"]
    verdict._space[:] = [(space, owner)]
    report: dict[str, Any] = {}
    for prefix, kernel in (("expected", ""), ("", "1")):
        os.environ[verdict.KERNEL] = kernel
        vocabulary_kernels.KERNEL_BLOCK = block
        tokens, kept = verdict.draw_tokens(logits, draws, positions)
        records = unpack([kept[ROWS][row] for row in range(len(logits))], plain_row_type(support))
        report[prefix or "tokens"] = tokens.tolist()
        start = f"{prefix}_" if prefix else ""
        for name in ("student", "behavior"):
            report[start + name] = [
                value if value == value else "nan" for value in records[name].tolist()
            ]
        report[f"{start}support"] = records["support_ids"].tolist() if support else []
        if not prefix:
            report["recorded"] = records["token"].tolist()
    return report


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    report: dict[str, Any] = {}

    def draws_of(rows: int, tau: float, support: int) -> list[dict[str, Any]]:
        seeds = torch.randint(2**62, (rows,), generator=generator).tolist()
        return [vars(Draw(seed, 4, tau, support)) for seed in seeds]

    if len(sys.argv) > 1:
        logits = load_file(sys.argv[1])["logits"]
        space = TokenSpace(logits.shape[1], 2, 2)
        for tau in (1.0, 0.7):
            draws = draws_of(len(logits), tau, 16)
            report[f"tau {tau}"] = compared(logits, space, "student", draws, 4096)
        print(json.dumps(report))
        return
    for name, (rows, size, valid, own, teachers, owner, tau, support, block) in CASES.items():
        logits = 3 * torch.randn(rows, size, generator=generator)
        space = TokenSpace(valid, own, teachers)
        report[name] = compared(logits, space, owner, draws_of(rows, tau, support), block)
    space = TokenSpace(290, 3, 7)
    alone = torch.full((4, 300), -torch.inf)
    alone[:, 289], alone[:, 290:] = 2.0, 50.0
    report["one id with mass"] = compared(alone, space, "student", draws_of(4, 1.0, 4), 128)
    flat = torch.zeros(8, 300)
    flat[:, 3] = flat[:, 7] = -1.0
    report["equal logits"] = compared(flat, space, "student", draws_of(8, 1.0, 4), 128)
    broken = torch.randn(3, 300, generator=generator)
    broken[0, 5], broken[1, 200], broken[2] = torch.nan, torch.inf, -torch.inf
    report["not finite"] = compared(broken, space, "student", draws_of(3, 1.0, 4), 128)
    forced = [vars(Draw(seed, 3, forced=ids)) for seed, ids in ((1, (5, 6)), (2, (5, 6)))]
    plain = torch.randn(2, 300, generator=generator)
    report["forced"] = compared(plain, space, "student", forced, 128)
    logits = 3 * torch.randn(6, 300, generator=generator)
    support = (logits + 2 * torch.randn(6, 300, generator=generator))[:, :290].topk(5).indices
    tokens = torch.randint(290, (6,), generator=generator)
    for name, stops in (("one stop", space), ("several stops", TokenSpace(290, [3, 9], [7, 250]))):
        report[f"statistics, {name}"] = statistics(logits, stops, tokens, support)
    logits[:, 40:] = -torch.inf
    cut = TokenSpace(290, 3, 7, rows=295)
    report["statistics, ids without mass"] = statistics(logits, cut, tokens % 40, support % 40)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
