"""What a training step tells people beside its row of numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.experiment.units import Unit
from orchestrator.trial.training_loop import TrainingStep


class Logged:
    """A run directory of which only the log is looked at."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.log = SimpleNamespace(line=self.lines.append)


def step_of(method: str, knobs: dict[str, Any], run: Logged) -> TrainingStep:
    unit = Unit("a", "trial", "tiny", method, knobs, 0, (), 10, 0, {})
    spec = SimpleNamespace(unit=unit)
    nothing = cast(Any, None)
    return TrainingStep(
        cast(Any, spec), cast(Any, run), nothing, nothing, nothing, nothing, nothing
    )


def test_the_log_says_once_when_epsilon_sinks_below_the_rounding() -> None:
    run = Logged()
    step = step_of("trust_region", {"epsilon0": 0.05, "K": 4}, run)
    for number, divergence in enumerate((0.002, 0.002, 0.02, 0.02, 0.02)):
        step.note_rounding(number, {"sampler_kl": divergence})
    assert len(run.lines) == 1, run.lines
    assert run.lines[0].startswith("step 3: ε 0.013 nats is below the 0.02 nats between")


@pytest.mark.parametrize(
    ("method", "knobs", "learned"),
    [
        ("trust_region", {"epsilon0": 0.05, "K": 4}, {"sampler_kl": 1e-13}),
        ("trust_region", {"epsilon0": 0.05, "K": 4}, {}),
        ("vanilla", {}, {"sampler_kl": 1.0}),
    ],
)
def test_nothing_is_said_without_a_ball_that_is_too_small(
    method: str, knobs: dict[str, Any], learned: dict[str, float]
) -> None:
    run = Logged()
    for number in range(4):
        step_of(method, knobs, run).note_rounding(number, learned)
    assert run.lines == []
