"""Counts of a probe → gains with intervals, the terminal table; what is missing stays missing."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from analysis.probe import gains as probe
from analysis.probe import view
from orchestrator.config import Experiment
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.probe import BEHAVIORS, CONTINUERS, LOGS, probe_unit
from orchestrator.records.writer import RunWriter
from orchestrator.selection.study import Study
from tests.sweeps import ROOT

QUICKSTART = ROOT / "experiments" / "quickstart.yaml"
N = 8  # answers of a prompt
Correct = Callable[[str, str, int, int], int]  # behavior, continuer, t, prompt → correct of N


@pytest.fixture
def experiment() -> Experiment:
    return load_experiment(QUICKSTART, ["probe.lengths=[8,4]", "probe.prompts=60"])


def write(
    runs: Path,
    experiment: Experiment,
    correct: Correct,
    lengths: tuple[int, ...] = (4, 8),
    done: bool = True,
) -> None:
    """A probe's directory with made-up counts, its prompts in reverse order."""
    with closing(RunWriter(runs, probe_unit(experiment, "arithmetic").id, LOGS)) as run:
        for t in lengths:
            for continuer in CONTINUERS:
                for behavior in BEHAVIORS:
                    rows = [
                        row(behavior, continuer, t, prompt, correct)
                        for prompt in reversed(range(60))
                    ]
                    run.append("continuations.jsonl", rows)
        run.write_document("example.json", {"prefix": "2+3="})
        run.write_document("excerpts.json", [{"prompt": "2+3=?"}])
        run.commit(4)
        if done:
            run.finish()


def row(behavior: str, continuer: str, t: int, prompt: int, correct: Correct) -> dict[str, Any]:
    counts = {"prefixes": 4, "finished": prompt % 2, "truncated": 0, "no_answer": 1, "timed_out": 0}
    place = {"behavior": behavior, "continuer": continuer, "t": t, "prompt": prompt}
    return place | {"n": N, "correct": correct(behavior, continuer, t, prompt)} | counts


def two_to_three(behavior: str, continuer: str, t: int, prompt: int) -> int:
    """Vanilla succeeds 2 times in 8 and TRB 3 times, give or take 1 for each prompt."""
    return (2 if behavior == "vanilla" else 3) + (prompt % 3 - 1)


def test_gains_are_ratios_of_success(experiment: Experiment, tmp_path: Path) -> None:
    write(tmp_path, experiment, two_to_three)
    gains = probe.continuation_gains(Study(experiment, [], tmp_path), "arithmetic")
    assert {continuer: list(own) for continuer, own in gains.items()} == {
        continuer: [4, 8] for continuer in CONTINUERS
    }
    for own in gains.values():
        for gain in own.values():
            assert gain is not None
            value, low, high = gain
            assert value == pytest.approx(0.5)
            assert low is not None
            assert high is not None
            assert low < value < high


def test_cells_are_told_apart(experiment: Experiment, tmp_path: Path) -> None:
    values = {("vanilla", "student", 4): 1, ("trust_region", "student", 4): 2, ("vanilla", "student", 8): 2,
              ("trust_region", "student", 8): 1, ("vanilla", "teacher", 4): 4, ("trust_region", "teacher", 4): 4,
              ("vanilla", "teacher", 8): 5, ("trust_region", "teacher", 8): 6}  # fmt: skip
    write(tmp_path, experiment, lambda behavior, continuer, t, _: values[behavior, continuer, t])
    found = {
        (c.continuer, c.t): c
        for c in probe.comparisons(Study(experiment, [], tmp_path), "arithmetic")
    }
    assert {place: c.gain and round(c.gain[0], 9) for place, c in found.items()} == {
        ("student", 4): 1.0, ("student", 8): -0.5, ("teacher", 4): 0.0, ("teacher", 8): 0.2}  # fmt: skip
    cell = found["teacher", 8].trust_region
    assert (cell.total("correct"), cell.total("n"), cell.success) == (360, 480, 0.75)
    assert (cell.total("finished"), cell.total("prefixes"), cell.finished_share) == (30, 240, 0.125)


def test_the_interval_is_paired_by_prompt(experiment: Experiment, tmp_path: Path) -> None:
    """Prompts differ a lot in difficulty, the gain on each is the same: the interval is a point."""
    write(
        tmp_path,
        experiment,
        lambda behavior, _c, _t, prompt: (prompt % 4) * (1 if behavior == "vanilla" else 2),
    )
    gain = probe.continuation_gains(Study(experiment, [], tmp_path), "arithmetic")["student"][4]
    assert gain == pytest.approx((1.0, 1.0, 1.0))


def test_the_interval_covers_as_often_as_it_says() -> None:
    """95 % intervals of the ratio of two noisy shares, over made-up probes with a known gain of
    0.5.
    """
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        difficulty = rng.beta(2, 4, 80)
        cells = [cell(rng.binomial(N, share * difficulty).tolist()) for share in (0.6, 0.9)]
        gain = probe.gain(*cells)
        assert gain is not None
        assert gain[1] is not None
        assert gain[2] is not None
        covered += gain[1] <= 0.5 <= gain[2]
    assert 182 <= covered <= 198


def cell(correct: list[int]) -> probe.ProbeCounts:
    same = (0,) * len(correct)
    return probe.ProbeCounts(
        tuple(range(len(correct))),
        same,
        same,
        (N,) * len(correct),
        tuple(correct),
        same,
        same,
        same,
    )


def test_no_vanilla_success_is_no_gain(experiment: Experiment, tmp_path: Path) -> None:
    write(
        tmp_path,
        experiment,
        lambda behavior, _c, t, _p: 0 if behavior == "vanilla" and t == 4 else 3,
    )
    gains = probe.continuation_gains(Study(experiment, [], tmp_path), "arithmetic")
    assert gains["student"][4] is None
    assert gains["student"][8] is not None
    (first, *_) = view.to_json(Study(experiment, [], tmp_path))["probes"][0]["rows"]
    assert (first["gain"], first["gain_low"], first["gain_high"]) == (None, None, None)
    assert first["trust_region"]["correct"] == 180


def test_hardly_any_vanilla_success_has_no_interval() -> None:
    """One prompt carries it all: a third of the resamples has none, so no upper end is known."""
    one = cell([4, *[0] * 59])
    assert probe.gain(one, cell([1] * 60)) == (14.0, None, None)


def test_nothing_is_read_before_the_end(experiment: Experiment, tmp_path: Path) -> None:
    write(tmp_path, experiment, two_to_three, done=False)
    assert probe.continuation_gains(Study(experiment, [], tmp_path), "arithmetic") == {}
    assert probe.example(Study(experiment, [], tmp_path), "arithmetic") is None
    assert probe.excerpts(Study(experiment, [], tmp_path), "arithmetic") == []
    assert probe.comparisons(Study(experiment, [], tmp_path / "nowhere"), "arithmetic") == []


def test_documents(experiment: Experiment, tmp_path: Path) -> None:
    write(tmp_path, experiment, two_to_three)
    assert probe.example(Study(experiment, [], tmp_path), "arithmetic") == {"prefix": "2+3="}
    assert probe.excerpts(Study(experiment, [], tmp_path), "arithmetic") == [{"prompt": "2+3=?"}]


def test_an_experiment_without_a_trust_region_has_no_probe(tmp_path: Path) -> None:
    experiment = load_experiment(QUICKSTART, ["methods.trust_region=null"])
    assert probe.continuation_gains(Study(experiment, [], tmp_path), "arithmetic") == {}
    assert probe.example(Study(experiment, [], tmp_path), "arithmetic") is None


def test_the_table_fits_a_terminal(experiment: Experiment, tmp_path: Path) -> None:
    write(tmp_path, experiment, lambda behavior, c, t, p: 0 if (behavior, c, t) == ("vanilla", "student", 4) else
          two_to_three(behavior, c, t, p))  # fmt: skip
    out = io.StringIO()
    Console(file=out, width=80).print(view.to_rich(Study(experiment, [], tmp_path), "arithmetic"))
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "…" not in "".join(lines).replace(" … ", "").replace("…+", "")
    assert "student 4 0/480 0.0 180/480 37.5 12, 12" in lines
    assert any(
        line.startswith("teacher 8 120/480 25.0 180/480 37.5 12, 12 +50.0 +") for line in lines
    )
    assert "Untrained student, ε = 0.05; 60 prompts × 4 rollouts × 4 continuations." in lines
