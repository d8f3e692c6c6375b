"""What a phase notes: all pieces of a trial's and an evaluator's work on the tiny pair, in this
process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from orchestrator.checks import timing
from orchestrator.checks.bench import Bench
from orchestrator.checks.check import Found
from orchestrator.checks.experiment import CheckedSetup
from orchestrator.checks.timing import Measuring
from orchestrator.config import Experiment, Setup
from orchestrator.engines.interface import Limits, Owner
from orchestrator.planning.calibrated import Card, calibration_path, read_calibrations
from orchestrator.planning.costs import BLENDED, PASSING, PLAIN, SetupCosts
from orchestrator.planning.lengths import Lengths
from orchestrator.policy.spec import Behavior, TrustRegion
from orchestrator.records.log import EVALUATE, LEARN, SCORE
from orchestrator.rollouts import Request, Rollouts
from tests import tiny

WORK = {"responses": 8, "prompt": 4.0, "tokens": 6.0}
CARD = Card("NVIDIA H100 80GB HBM3", 79.2)
KEYS = {
    timing.decoding: {PLAIN, PASSING},
    timing.blending: {BLENDED},
    timing.evaluating: {EVALUATE},
    timing.scoring: {SCORE},
    timing.learning: {LEARN},
}


@pytest.fixture
def asked(tmp_path: Path) -> Measuring:
    """Ten responses a step of the tiny pair, for a second."""
    spec = tiny.worker_spec(tmp_path)
    training = replace(
        spec.setup.training, prompts_per_step=5, samples_per_prompt=2, max_prompt_tokens=8
    )
    evaluation = replace(spec.setup.evaluation, max_response_tokens=12, benchmarks={"gsm8k": None})
    setup = replace(
        spec.setup, training=replace(training, max_response_tokens=12), evaluation=evaluation
    )
    runtime = replace(
        spec.runtime, slice_responses=6, placement=replace(spec.runtime.placement, gpus=1)
    )
    folders: dict[Owner, Path] = {"student": tmp_path / "student", "teacher": tmp_path / "teacher"}
    experiment = Experiment("tiny", {"tiny": setup}, {}, {}, [0], None, runtime)
    of = CheckedSetup("tiny", setup, tmp_path, 0, experiment.data_dir, experiment.runtime)
    bench = Bench(of, setup, runtime, folders, (), tmp_path, blends=True)
    costs = SetupCosts(setup, runtime, "torch", lengths={"training": Lengths(6.0, 0.3, 12, 4.0)})
    path = calibration_path(tmp_path, CARD)
    return Measuring(bench, costs, (TrustRegion(0.01),), CARD, path, "2026-11-23", seconds=1.0)


@pytest.mark.parametrize("phase", KEYS, ids=lambda phase: phase.__name__)
def test_a_phase_notes_what_it_did(phase, asked: Measuring) -> None:
    found = phase(asked)
    [calibration] = read_calibrations(asked.bench.folder)
    assert calibration.card == CARD
    counts = any(row.counts for row in calibration.rows if row.key != PASSING)
    assert found.verdict == ("ok" if counts else "warn"), found.detail
    assert {row.key for row in calibration.rows} == KEYS[phase]
    for row in calibration.rows:
        assert (row.setup, row.sampler, row.trainer, row.random) == (
            "tiny",
            "torch",
            "torch",
            False,
        )
        assert row.seconds > 0
        assert row.about is not None
        assert "torch" in row.about["versions"]
        if row.key == PASSING:
            parts = [row.about[name] for name in ("offload", "publish", "load")]
            assert row.seconds == pytest.approx(sum(parts))
        else:
            assert 0 < row.tokens <= 12
            assert row.responses in ({6} if row.key == EVALUATE else {8, 10})
    of_work = [row for row in calibration.rows if row.key != PASSING]
    longest = max(of_work, key=lambda row: row.seconds)
    rate = longest.responses * longest.tokens / longest.seconds
    assert found.numbers["tokens_per_s"] == pytest.approx(rate)


class Clock:
    """A clock that only work moves on."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class LateSampler:
    """A sampler on a clock of its own: its start takes long, a token of all its rows 10 ms."""

    def __init__(self, clock: Clock, start_s: float):
        self._clock, self._start_s = clock, start_s

    def sampler(self) -> LateSampler:
        return self

    def start(self, teacher: bool) -> None:
        self._clock.now += self._start_s

    def sample(
        self, requests: Sequence[Request], behavior: Behavior, limits: Limits
    ) -> Iterator[Rollouts]:
        self._clock.now += 1.0 + 0.01 * limits.max_tokens
        count, nothing = len(requests), torch.zeros(len(requests), limits.max_tokens)
        lengths = torch.full((count,), limits.max_tokens)
        yield Rollouts(
            list(requests), nothing.long(), lengths, lengths > 0, nothing, nothing,
            torch.zeros(*nothing.shape, limits.support, dtype=torch.long),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("phase", "expected"), [(timing.evaluating, EVALUATE), (timing.blending, BLENDED)]
)
def test_an_engine_that_starts_for_longer_than_its_share_is_measured_all_the_same(
    phase: Callable[[Measuring], Found],
    expected: str,
    asked: Measuring,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a plan would rest on the first 32 tokens, and say that this card was measured."""
    setup = asked.bench.setup
    training = replace(setup.training, max_response_tokens=4096)
    evaluation = replace(setup.evaluation, max_response_tokens=4096)
    setup = replace(setup, training=training, evaluation=evaluation)
    lengths = {name: Lengths(900.0, 0.3, 4096, 4.0) for name in ("training", "gsm8k")}
    asked = replace(
        asked,
        bench=replace(asked.bench, setup=setup),
        costs=SetupCosts(setup, asked.bench.runtime, "torch", lengths=lengths),
        seconds=60.0,
    )
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    monkeypatch.setattr(timing, "open_engine", lambda *_: LateSampler(clock, 300.0))
    found = phase(asked)
    [calibration] = read_calibrations(asked.bench.folder)
    tokens = [row.tokens for row in calibration.rows]
    assert {row.key for row in calibration.rows} == {expected}
    assert tokens[:3] == [32, 128, 512]
    assert calibration.rows[-1].seconds > 5
    assert calibration.rows[-1].counts
    assert not calibration.rows[0].counts
    assert found.verdict == "ok"
    assert found.numbers["start_s"] == pytest.approx(301, abs=1)
    short = phase(replace(asked, seconds=3.0))
    assert short.verdict == "warn"
    assert "plans do not use it" in short.detail


def test_rows_are_there_as_soon_as_they_are_measured_and_replace_earlier_ones(
    asked: Measuring,
) -> None:
    first = timing.Notes(asked)
    first.add(LEARN, 1.0, {}, **WORK)
    first.add(SCORE, 2.0, {}, **WORK)
    again = timing.Notes(asked)

    def seconds(key: str) -> list[float]:
        [calibration] = read_calibrations(asked.bench.folder)
        return [row.seconds for row in calibration.rows if row.key == key]

    assert (seconds(LEARN), seconds(SCORE)) == ([1.0], [2.0])
    again.add(LEARN, 3.0, {}, **WORK)
    assert (seconds(LEARN), seconds(SCORE)) == ([3.0], [2.0])
    again.add(LEARN, 4.0, {}, **WORK)
    assert (seconds(LEARN), seconds(SCORE)) == ([3.0, 4.0], [2.0])


def test_what_dies_on_the_way_keeps_what_it_has_measured(
    asked: Measuring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "sizes", lambda first, most, deadline: iter([first, most]))
    made, real = [], timing.rollouts

    def twice(setup: Setup, prompt: int, lengths: Sequence[int]):
        made.append(len(lengths))
        if len(made) == 3:
            raise KeyboardInterrupt
        return real(setup, prompt, lengths)

    monkeypatch.setattr(timing, "rollouts", twice)
    with pytest.raises(KeyboardInterrupt):
        timing.learning(asked)
    [calibration] = read_calibrations(asked.bench.folder)
    assert [row.responses for row in calibration.rows] == [8]


@pytest.mark.parametrize(
    ("deadline", "most", "expected"),
    [
        (1000.0, 50, [2, 8, 32, 50, 50]),  # as much as there is, twice
        (150.0, 10_000, [2, 8, 32, 49, 49]),  # 108 left after the third: 49 twice
        (100.0, 10_000, [2, 8, 32, 32]),  # 58 left: no larger ones twice, and this one once more
        (70.0, 10_000, [2, 8, 27, 27]),
        (1.0, 50, [2]),  # no time at all: once
    ],
)
def test_work_grows_until_two_more_of_it_fill_the_time(
    deadline: float, most: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each unit of work takes a second."""
    clock, asked_for = Clock(), []
    monkeypatch.setattr(timing, "time", clock)
    for size in timing.sizes(2, most, deadline):
        asked_for.append(size)
        clock.now += size
    assert asked_for == expected
