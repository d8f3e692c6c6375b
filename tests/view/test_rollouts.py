"""Tokens of rollouts in the colours of what happened to them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.style import Style

from orchestrator.view.rollouts import (
    GROUNDS,
    TAKEN_OVER,
    UNSURE,
    coloured,
    kept_rollouts,
    token_style,
)
from tests.view.sweeps import ROLLOUT, small_sweep


def test_tokens_are_coloured_by_what_happened() -> None:
    styles = [token_style(ROLLOUT, place) for place in range(4)]
    assert styles == [Style(), TAKEN_OVER, Style(color=UNSURE, bgcolor=GROUNDS[2]), Style()]
    assert coloured(ROLLOUT).plain == "so it is 2"


def test_without_a_teacher_tokens_are_plain() -> None:
    plain = replace(ROLLOUT, survived=None, teacher=None, measured={})
    assert [token_style(plain, place) for place in range(4)] == [Style()] * 4


def test_rollouts_of_trials_are_found(tmp_path: Path) -> None:
    (kept,) = kept_rollouts(small_sweep(tmp_path), None)
    assert (kept.unit.method, kept.step, kept.survived) == ("trust_region", 0, 0.75)
