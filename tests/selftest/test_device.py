"""What the checks of a device compute, on CPUs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softmax

from orchestrator.selftest import device
from orchestrator.selftest.addition import MEASURED, SUMMED
from orchestrator.selftest.device import ALLOWED, PACKED, largest_difference, masked_attention
from tests.selftest.benches import small_bench
from tests.selftest.fakes import never

CPU = torch.device("cpu")


def by_hand(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention (N, heads, D), one position of one sequence after the other."""
    heads, groups = query.shape[1], key.shape[1]
    rows, start = [], 0
    for length in PACKED:
        for last in range(start, start + length):
            keys = key[start : last + 1].repeat_interleave(heads // groups, 1)
            values = value[start : last + 1].repeat_interleave(heads // groups, 1)
            weights = softmax(
                torch.einsum("hd,nhd->hn", query[last], keys) / query.shape[2] ** 0.5, -1
            )
            rows.append(torch.einsum("hn,nhd->hd", weights, values))
        start += length
    return torch.stack(rows)


def across(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention that does not see where a sequence ends."""
    start = sum(PACKED) - PACKED[-1]
    output = masked_attention(query, key, value)
    return torch.cat([output[:start], masked_attention(query.roll(1, 0), key, value)[start:]])


def test_the_masked_reference_is_attention_within_each_sequence() -> None:
    assert largest_difference(by_hand, masked_attention, CPU, torch.float32) < 1e-4


def test_rounding_is_allowed_and_a_wrong_mask_is_not() -> None:
    rounded = largest_difference(masked_attention, masked_attention, CPU, torch.bfloat16)
    assert 1e-4 < rounded < ALLOWED[torch.bfloat16]
    assert (
        largest_difference(across, masked_attention, CPU, torch.float32)
        > 10 * ALLOWED[torch.bfloat16]
    )


def test_a_learners_state_comes_back_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "PIECE", 10_000)  # several pieces
    assert device.offload(small_bench(tmp_path)).verdict == "ok"

    class Forgetful(device.Offload):
        def to_device(self) -> None:
            super().to_device()
            next(iter(self._parameters.values())).data[7] += 1

    monkeypatch.setattr(device, "Offload", Forgetful)
    found = device.offload(small_bench(tmp_path))
    assert (found.verdict, found.detail) == ("fail", "the learner's state came back changed")


def test_a_host_without_room_is_told_before_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(
        "MemTotal:       999999999 kB\nMemFree:        1 kB\nMemAvailable:   20971520 kB\n"
    )
    assert device.available_gib(meminfo) == 20.0
    assert device.available_gib(tmp_path / "none") is None
    bench = small_bench(tmp_path)
    shape = replace(bench.declared.student.shape, layers=28, hidden=2048, ffn=6144)
    large = replace(
        bench,
        declared=replace(bench.declared, student=replace(bench.declared.student, shape=shape)),
    )
    monkeypatch.setattr(device, "available_gib", lambda: 2.0)
    found = device.offload(large)
    assert found.verdict == "fail"
    assert found.detail.startswith(
        "2.0 GiB of the host's memory are available, a learner's state takes "
    )


def test_two_processes_add_up_over_loopback(tmp_path: Path) -> None:
    found = device.collective(small_bench(tmp_path))
    assert found.verdict == "ok", found
    measured = json.loads((tmp_path / MEASURED).read_text())
    assert measured["bytes"] == 4 * SUMMED["cpu"]
    assert found.numbers["gb_s"] == pytest.approx(measured["bytes"] / measured["seconds"] / 1e9)


def test_a_process_that_does_not_come_fails_the_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "add_up", never)
    found = device.collective(small_bench(tmp_path))
    assert (found.verdict, found.detail) == ("fail", "gloo: its processes ended with 1 and 1")


def test_packed_sequences_are_compared_with_masked_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code that trains and scores; on GPUs the same check calls their kernel."""
    assert device.attention(small_bench(tmp_path)).verdict == "ok"
    real = device.packed_attention

    def one_sequence(
        query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, *rest: object
    ) -> Tensor:
        return real(query, key, value, bounds[[0, -1]], *rest)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(device, "packed_attention", one_sequence)
    assert device.attention(small_bench(tmp_path)).verdict == "fail"
