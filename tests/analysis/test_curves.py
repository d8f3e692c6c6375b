"""The numbers that figures draw, from run directories."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.figures import curves
from analysis.figures.curves import ScoredSetting
from analysis.scores.candidates import Candidate
from analysis.table import build
from orchestrator.config import Experiment
from orchestrator.experiment.units import Unit
from orchestrator.records.writer import RunWriter
from orchestrator.selection.scores import Tally
from orchestrator.selection.study import Study
from tests.fake_runs import quickstart, units_of, write_run

Loaded = tuple[Experiment, list[Unit]]


@pytest.fixture(scope="module")
def one_seed() -> Loaded:
    return quickstart()


@pytest.fixture(scope="module")
def two_seeds() -> Loaded:
    return quickstart("seeds=[0,1]")


def read(loaded: Loaded, runs: Path, method: str) -> list[ScoredSetting]:
    return [
        setting
        for setting in curves.read_settings(Study(*loaded, runs), "arithmetic")
        if setting.method == method
    ]


def log(runs: Path, unit: Unit, rows: Iterable[dict[str, Any]]) -> None:
    with closing(RunWriter(runs, unit.id)) as run:
        run.append("metrics.jsonl", rows)
        run.commit(1)


# --- settings and scores ---


def test_a_setting_holds_its_seeds(tmp_path: Path, two_seeds: Loaded) -> None:
    first, second = units_of(two_seeds[1], "vanilla")
    write_run(tmp_path, two_seeds[0], first, {20: [1, 1], 40: [2, 2]})
    write_run(tmp_path, two_seeds[0], second, {20: [3, 3]})
    (vanilla,) = read(two_seeds, tmp_path, "vanilla")
    assert vanilla.units == (first, second)
    assert vanilla.scores == {20: [0.25, 0.75], 40: [0.5]}
    assert [setting.knobs for setting in read(two_seeds, tmp_path, "trust_region")] == [
        {"epsilon0": 0.01, "K": 12},
        {"epsilon0": 0.05, "K": 12},
    ]


def test_curves_start_at_the_untrained_student_unless_a_stage_came_first(
    tmp_path: Path, one_seed: Loaded
) -> None:
    write_run(tmp_path, one_seed[0], units_of(one_seed[1], "vanilla")[0], {20: [1, 1]})
    write_run(tmp_path, one_seed[0], units_of(one_seed[1], "sft_warmup")[0], {20: [3, 3]})
    vanilla, warmed, unscored = (
        read(one_seed, tmp_path, name)[0] for name in ("vanilla", "sft_warmup", "veto")
    )
    assert curves.score_series(vanilla, 0.125).curve == {0: [0.125], 20: [0.25]}
    assert curves.score_series(vanilla, None).curve == {20: [0.25]}
    assert curves.score_series(warmed, 0.125).curve == {20: [0.75]}
    assert curves.score_series(warmed, 0.125).from_supervised
    assert curves.score_series(unscored, 0.125).curve == {}


def test_runs_that_go_on_after_the_stage_start_where_it_ended(tmp_path: Path) -> None:
    loaded = quickstart("training.sft.after=continue")
    unit = units_of(loaded[1], "sft_warmup")[0]
    write_run(tmp_path, loaded[0], unit, {20: [3, 3]})
    log(tmp_path, unit, [{"step": 0, "reward": 0.5}])
    (setting,) = read(loaded, tmp_path, "sft_warmup")
    assert setting.scores == {35: [0.75]}
    assert curves.metric_series(Study(*loaded, tmp_path), setting, ["reward"])["reward"].curve == {
        15: [0.5]
    }


# --- the best of a family ---


def test_the_selected_setting_of_each_family(tmp_path: Path, one_seed: Loaded) -> None:
    low, high = units_of(one_seed[1], "trust_region")
    write_run(tmp_path, one_seed[0], low, {20: [2, 2]})
    write_run(tmp_path, one_seed[0], high, {20: [1, 3], 40: [3, 3]})
    settings = curves.read_settings(Study(*one_seed, tmp_path), "arithmetic")
    best = curves.best_settings(settings, build.select(Study(*one_seed, tmp_path)))
    assert best["trust_region"].units == (high,)
    assert list(best) == list(
        one_seed[0].methods
    )  # families of one setting need no scores to be chosen


def test_no_setting_of_a_family_without_scores(tmp_path: Path, one_seed: Loaded) -> None:
    settings = curves.read_settings(Study(*one_seed, tmp_path), "arithmetic")
    assert "trust_region" not in curves.best_settings(
        settings, build.select(Study(*one_seed, tmp_path))
    )


# --- what steps log ---


def test_a_number_that_is_not_there_is_no_zero(tmp_path: Path, one_seed: Loaded) -> None:
    unit = units_of(one_seed[1], "vanilla")[0]
    rows = [
        {"step": 0, "reward": 0.5, "beta": 0.1},
        {"step": 1, "reward": None},
        {"step": 2, "reward": 0.0},
    ]
    log(tmp_path, unit, rows)
    (vanilla,) = read(one_seed, tmp_path, "vanilla")
    found = curves.metric_series(
        Study(*one_seed, tmp_path), vanilla, ["reward", "beta", "replaced"]
    )
    assert {key: series.curve for key, series in found.items()} == {
        "reward": {0: [0.5], 1: [], 2: [0.0]},
        "beta": {0: [0.1], 1: [], 2: []},
    }
    assert (
        curves.metric_series(
            Study(*one_seed, tmp_path), read(one_seed, tmp_path, "veto")[0], ["reward"]
        )
        == {}
    )


def test_seeds_side_by_side(tmp_path: Path, two_seeds: Loaded) -> None:
    for unit, reward in zip(units_of(two_seeds[1], "vanilla"), (0.25, 0.5), strict=True):
        log(tmp_path, unit, [{"step": 0, "reward": reward}])
    (vanilla,) = read(two_seeds, tmp_path, "vanilla")
    assert curves.metric_series(Study(*two_seeds, tmp_path), vanilla, ["reward"])[
        "reward"
    ].curve == {0: [0.25, 0.5]}


# --- sweeps ---


def test_best_over_training_of_each_setting(tmp_path: Path, two_seeds: Loaded) -> None:
    low, low_again, *_ = units_of(two_seeds[1], "trust_region")
    write_run(tmp_path, two_seeds[0], low, {20: [2, 2], 40: [4, 4], 60: [4, 4]})
    write_run(tmp_path, two_seeds[0], low_again, {20: [3, 3], 40: [0, 0]})
    chosen = {found.best.method: found for found in build.select(Study(*two_seeds, tmp_path))}
    grid = curves.method_grid(
        read(two_seeds, tmp_path, "trust_region"), chosen["trust_region"].pool
    )
    assert (grid.method, grid.x, grid.fixed) == ("trust_region", "epsilon0", {"K": 12})
    score = grid.lines[()][0.01]
    assert score is not None
    assert (score.mean, score.spread) == (0.625, pytest.approx(0.125 * 2**0.5))
    assert score.reach == score.spread
    assert grid.lines[()][0.05] is None


def test_a_grid_of_two_knobs_has_the_papers_axis() -> None:
    experiment, units = quickstart("methods.trust_region={epsilon0: [0.05,0.01,0.02], K: [12,6]}")
    settings = [
        s
        for s in curves.read_settings(Study(experiment, units, Path("none")), "arithmetic")
        if s.method == "trust_region"
    ]
    grid = curves.method_grid(settings, ())
    assert (grid.x, grid.fixed, grid.scored) == ("K", {}, False)
    assert list(grid.lines) == [(("epsilon0", budget),) for budget in (0.01, 0.02, 0.05)]
    assert list(grid.lines[(("epsilon0", 0.01),)]) == [6, 12]


def test_a_single_setting_has_no_axis(tmp_path: Path, one_seed: Loaded) -> None:
    write_run(
        tmp_path, one_seed[0], units_of(one_seed[1], "fixed_epsilon")[0], {20: [2, 2], 40: [3, 3]}
    )
    (chosen,) = build.select(Study(*one_seed, tmp_path))
    grid = curves.method_grid(read(one_seed, tmp_path, "fixed_epsilon"), chosen.pool)
    assert (grid.x, grid.fixed, grid.lines) == (
        None,
        {"epsilon": 0.01},
        {(): {0: curves.SeedMean(0.75)}},
    )


def test_the_margin_of_one_run_is_that_of_its_problems() -> None:
    counts = {
        "a": (Tally(np.array([4, 4, 4, 4]), np.array([0, 4, 2, 2])),),  # s² = 1/6 of 4 problems
        "b": (Tally(np.array([2, 2]), np.array([1, 1])),),
    }
    margin = curves.problem_margin(Candidate("veto", {}, 20, ("u",), counts))
    assert margin == pytest.approx(1.96 * (1 / 24) ** 0.5 / 2)
    assert curves.problem_margin(Candidate("veto", {}, 20, ("u",), {"b": counts["b"]})) is None
