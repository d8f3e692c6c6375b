"""What the table of `make gpu-proof` shows of results, and what it leaves empty."""

from __future__ import annotations

from benchmarks.gpu import table
from benchmarks.part_runner import Result

PLACE = {"card": "a card", "torch": "2.13.0"}


def test_the_table_has_a_row_for_each_part_and_leaves_empty_what_is_missing() -> None:
    here = {**PLACE, "commit": "one"}
    results = {
        "sglang_plain": Result(
            "sglang_plain", {"rollout_s": 10.0, "tokens_per_s": 9812.3}, here, 71.2, None, 68.25
        ),
        "torch_scoring": Result(
            "torch_scoring", {"scoring_s": 2.0, "scoring_torch_gib": 20.0}, here, 30.0
        ),
        "sglang_blended_5": Result(
            "sglang_blended_5", {"rollout_s": 18.0}, here | {"commit": "zero"}, 60.0
        ),
        "switch": Result("switch", {}, here, 5.0, "ValueError: a|b — gpu-proof/switch.log"),
    }
    lines = table([*results, "evaluator"], results, PLACE, "one").splitlines()
    assert lines[0].startswith("`make gpu-proof`, card a card, torch 2.13.0, one, ")
    assert lines[4:] == [
        "| `sglang_plain` | 71 | 68.2 | rollout s 10, tokens per s 9,812 |",
        "| `torch_scoring` | 30 |  | scoring s 2 |",
        "| `sglang_blended_5` | 60 |  | at zero; rollout s 18 |",
        "| `switch` | 5 |  | **FAILED**: ValueError: a\\|b — gpu-proof/switch.log |",
        "| `evaluator` |  |  | not measured |",
        "| blended ÷ (plain + scoring) |  |  | sglang 5 1.5 |",
    ]


def test_peaks_stand_beside_what_is_granted_and_larger_ones_are_seen() -> None:
    peaks = {"start_s": 3.0, "start_torch_gib": 1.0, "start_device_gib": 2.0}
    peaks |= {
        "learning_torch_gib": 31.6,
        "learning_device_gib": 52.04,
        "learning_granted_gib": 50.0,
    }
    peaks |= {"scoring_torch_gib": 20.0, "scoring_granted_gib": 24.0}
    results = {"turns": Result("turns", peaks, {**PLACE, "commit": "one"}, 9.0)}
    lines = table(["turns"], results, PLACE, "one").splitlines()
    assert lines[4] == "| `turns` | 9 |  | start s 3 |"
    assert lines[-2:] == [
        "| `turns` learning | 31.6 | **52.0** | 50.0 |",
        "| `turns` scoring | 20.0 |  | 24.0 |",
    ]
