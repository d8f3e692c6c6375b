"""What SGLang would import and resolve on GPUs that are not here, see
`tests.rehearsal.sglang_start`.

`golden_sglang.json` holds it; `python -m tests.engines.sglang.test_start_on_gpus` writes it anew.
Do that after a change of what engines are given, and read the difference: it is what a GPU would
see.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from tests.engines.installed import skip_without
from tests.rehearsal.cards import CARDS
from tests.sweeps import ROOT

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here: kernels.txt is installed"),
]
GOLDEN = ROOT / "tests" / "golden_sglang.json"
SEE = "see the docstring of this file"


@functools.cache
def started(card: str) -> dict[str, Any]:
    """The report of a process that pretends to have the card."""
    command = [sys.executable, "-m", "tests.rehearsal.sglang_start", card]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@functools.cache
def golden() -> dict[str, Any]:
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.fixture(params=sorted(CARDS))
def card(request: pytest.FixtureRequest) -> str:
    skip_without("sglang")
    return request.param


def test_an_engines_processes_import_all_that_they_need(card: str) -> None:
    assert started(card)["failed"] == {}
    assert started(card)["missing"] == golden()[card]["missing"], SEE


def test_arguments_come_out_as_they_were_read(card: str) -> None:
    assert started(card)["arguments"] == golden()[card]["arguments"], SEE


def test_tritons_attention_fits_on_each_card(card: str) -> None:
    room = CARDS[card].shared_kib * 1024
    for shape, kernels in started(card)["kernels"].items():
        assert len(kernels) == 3, "decoding in two steps, and prefill"
        for kernel, taken in kernels.items():
            assert taken <= room, f"{kernel} for {shape} on {card}"


def test_the_kernels_that_read_logits_are_built_for_each_card(card: str) -> None:
    room = CARDS[card].shared_kib * 1024
    for kernels in started(card)["sampler"]:
        assert sorted(kernels) == ["_draw_rows", "_read_blocks", "_score_rows"]
        assert max(kernels.values()) <= room


def test_padding_reads_zeros_once_the_cache_is_taken_again(card: str) -> None:
    assert started(card)["table"] == [[0, 0], [7, 7], [7, 7]]


def main() -> None:
    content = {
        card: {part: started(card)[part] for part in ("missing", "arguments")}
        for card in sorted(CARDS)
    }
    GOLDEN.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
