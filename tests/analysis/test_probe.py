"""Counts of a probe → gains with intervals, the terminal table; what is missing stays missing."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from analysis.facts import probe
from orchestrator.commands import probe as view
from orchestrator.config import Experiment
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.probe import BEHAVIORS, CONTINUERS, LOGS, probe_unit
from orchestrator.records.writer import RunWriter
from orchestrator.selection.study import Study
from tests.sweeps import ROOT

SUMS = ROOT / "experiments" / "arithmetic-seeds.yaml"
N = 8  # answers of a prompt
Correct = Callable[[str, str, int, int], int]  # behavior, continuer, t, prompt → correct of N


@pytest.fixture
def experiment() -> Experiment:
    return load_experiment(SUMS, ["probe.lengths=[8,4]", "probe.prompts=60"])


def write(runs: Path, experiment: Experiment, correct: Correct, done: bool = True) -> Study:
    """A probe's directory with made-up counts, its prompts in reverse order, and its study."""
    with closing(RunWriter(runs, probe_unit(experiment, "arithmetic").id, LOGS)) as run:
        for t, continuer, behavior in product((4, 8), CONTINUERS, BEHAVIORS):
            rows = []
            for prompt in reversed(range(60)):
                rows.append(row(behavior, continuer, t, prompt, correct))
            run.append("continuations.jsonl", rows)
        run.write_document("example.json", {"prefix": "2+3="})
        run.write_document("excerpts.json", [{"prompt": "2+3=?"}])
        run.commit(4)
        if done:
            run.finish()
    return Study(experiment, [], runs)


def row(behavior: str, continuer: str, t: int, prompt: int, correct: Correct) -> dict[str, Any]:
    counts = {"prefixes": 4, "finished": prompt % 2, "truncated": 0, "no_answer": 1, "timed_out": 0}
    place = {"behavior": behavior, "continuer": continuer, "t": t, "prompt": prompt}
    return place | {"n": N, "correct": correct(behavior, continuer, t, prompt)} | counts


def two_to_three(behavior: str, continuer: str, t: int, prompt: int) -> int:
    """Vanilla succeeds 2 times in 8 and TRB 3 times, give or take 1 for each prompt."""
    return (2 if behavior == "vanilla" else 3) + (prompt % 3 - 1)


def test_gains_are_ratios_of_success(experiment: Experiment, tmp_path: Path) -> None:
    gains = probe.continuation_gains(write(tmp_path, experiment, two_to_three), "arithmetic")
    assert [(by, t) for by, own in gains.items() for t in own] == list(product(CONTINUERS, (4, 8)))
    for gain in [*gains["student"].values(), *gains["teacher"].values()]:
        assert gain is not None
        value, low, high = gain
        assert value == pytest.approx(0.5)
        assert low is not None
        assert high is not None
        assert low < value < high


def test_cells_are_told_apart(experiment: Experiment, tmp_path: Path) -> None:
    values = {
        ("student", 4): (1, 2),
        ("student", 8): (2, 1),
        ("teacher", 4): (4, 4),
        ("teacher", 8): (5, 6),
    }

    def correct(behavior: str, continuer: str, t: int, _: int) -> int:
        return values[continuer, t][BEHAVIORS.index(behavior)]

    rows = probe.comparisons(write(tmp_path, experiment, correct), "arithmetic")
    assert [(row.continuer, row.t) for row in rows] == list(values)
    for row, gain in zip(rows, (1.0, -0.5, 0.0, 0.2), strict=True):
        assert row.gain is not None
        assert row.gain[0] == pytest.approx(gain)
    cell = rows[-1].trust_region
    assert (cell.totals["correct"], cell.totals["n"], cell.success) == (360, 480, 0.75)
    ended = cell.totals["finished"], cell.totals["prefixes"], cell.finished_share
    assert ended == (30, 240, 0.125)


def test_the_interval_is_paired_by_prompt(experiment: Experiment, tmp_path: Path) -> None:
    """Prompts differ a lot in difficulty, the gain on each is the same: the interval is a point."""

    def correct(behavior: str, _continuer: str, _t: int, prompt: int) -> int:
        return prompt % 4 * (1 if behavior == "vanilla" else 2)

    gains = probe.continuation_gains(write(tmp_path, experiment, correct), "arithmetic")
    assert gains["student"][4] == pytest.approx((1.0, 1.0, 1.0))


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
    places, n = tuple(range(len(correct))), (N,) * len(correct)
    return probe.ProbeCounts(places, n, tuple(correct), Counter())


def test_no_vanilla_success_is_no_gain(experiment: Experiment, tmp_path: Path) -> None:
    def correct(behavior: str, _continuer: str, t: int, _prompt: int) -> int:
        return 0 if (behavior, t) == ("vanilla", 4) else 3

    study = write(tmp_path, experiment, correct)
    gains = probe.continuation_gains(study, "arithmetic")
    assert gains["student"][4] is None
    assert gains["student"][8] is not None
    (first, *_) = view.to_json(study)["probes"][0]["rows"]
    assert (first["gain"], first["gain_low"], first["gain_high"]) == (None, None, None)
    assert first["trust_region"]["correct"] == 180


def test_hardly_any_vanilla_success_has_no_interval() -> None:
    """One prompt carries it all: a third of the resamples has none, so no upper end is known."""
    one = cell([4, *[0] * 59])
    assert probe.gain(one, cell([1] * 60)) == (14.0, None, None)


def test_nothing_is_read_before_the_end(experiment: Experiment, tmp_path: Path) -> None:
    nowhere = Study(experiment, [], tmp_path / "nowhere")
    for study in (write(tmp_path, experiment, two_to_three, done=False), nowhere):
        assert probe.continuation_gains(study, "arithmetic") == {}
        assert probe.example(study, "arithmetic") is None
        assert probe.excerpts(study, "arithmetic") == []
        assert probe.comparisons(study, "arithmetic") == []


def test_documents(experiment: Experiment, tmp_path: Path) -> None:
    study = write(tmp_path, experiment, two_to_three)
    assert probe.example(study, "arithmetic") == {"prefix": "2+3="}
    assert probe.excerpts(study, "arithmetic") == [{"prompt": "2+3=?"}]


def test_an_experiment_without_a_trust_region_has_no_probe(tmp_path: Path) -> None:
    experiment = load_experiment(SUMS, ["methods.trust_region=null"])
    assert probe.continuation_gains(Study(experiment, [], tmp_path), "arithmetic") == {}
    assert probe.example(Study(experiment, [], tmp_path), "arithmetic") is None


def test_the_table_fits_a_terminal(experiment: Experiment, tmp_path: Path) -> None:
    def correct(behavior: str, continuer: str, t: int, prompt: int) -> int:
        empty = (behavior, continuer, t) == ("vanilla", "student", 4)
        return 0 if empty else two_to_three(behavior, continuer, t, prompt)

    out = io.StringIO()
    study = write(tmp_path, experiment, correct)
    Console(file=out, width=80).print(view.to_rich(study, "arithmetic"))
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "student 4 0/480 0.0 180/480 37.5 12, 12" in lines
    last = next(line for line in lines if line.startswith("teacher 8"))
    assert last.startswith("teacher 8 120/480 25.0 180/480 37.5 12, 12 +50.0 +")
    assert "Untrained student, ε = 0.05; 60 prompts × 4 rollouts × 4 continuations." in lines
