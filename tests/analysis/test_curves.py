"""The numbers that figures draw, from run directories."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.facts import curves
from analysis.facts.candidates import Candidate, select
from analysis.facts.curves import Curve, ScoredSetting
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


def read(study: Study, method: str) -> list[ScoredSetting]:
    settings = curves.read_settings(study, "arithmetic")
    return [setting for setting in settings if setting.method == method]


def logged(study: Study, method: str, *keys: str) -> dict[str, Curve]:
    """The columns that the first setting of a method has logged."""
    lines = curves.metric_series(study, read(study, method)[0], keys)
    return {key: series.curve for key, series in lines.items()}


def log(runs: Path, unit: Unit, *rows: dict[str, Any]) -> None:
    with closing(RunWriter(runs, unit.id)) as run:
        run.append("metrics.jsonl", rows)
        run.commit(1)


# --- settings and scores ---


def test_a_setting_holds_its_seeds(tmp_path: Path, two_seeds: Loaded) -> None:
    study = Study(*two_seeds, tmp_path)
    first, second = units_of(study.units, "vanilla")
    write_run(tmp_path, study.experiment, first, {20: [1, 1], 40: [2, 2]})
    write_run(tmp_path, study.experiment, second, {20: [3, 3]})
    (vanilla,) = read(study, "vanilla")
    assert vanilla.units == (first, second)
    assert vanilla.scores == {20: [0.25, 0.75], 40: [0.5]}
    knobs = [setting.knobs for setting in read(study, "trust_region")]
    assert knobs == [{"epsilon0": 0.01, "K": 12}, {"epsilon0": 0.05, "K": 12}]


def test_curves_start_at_the_untrained_student_unless_a_stage_came_first(
    tmp_path: Path, one_seed: Loaded
) -> None:
    study = Study(*one_seed, tmp_path)
    for method, correct in (("vanilla", 1), ("sft_warmup", 3)):
        unit = units_of(study.units, method)[0]
        write_run(tmp_path, study.experiment, unit, {20: [correct, correct]})
    vanilla, warmed, unscored = (read(study, name)[0] for name in ("vanilla", "sft_warmup", "veto"))
    assert curves.score_series(vanilla, 0.125).curve == {0: [0.125], 20: [0.25]}
    assert curves.score_series(vanilla, None).curve == {20: [0.25]}
    assert curves.score_series(warmed, 0.125).curve == {20: [0.75]}
    assert curves.score_series(warmed, 0.125).from_supervised
    assert curves.score_series(unscored, 0.125).curve == {}


def test_runs_that_go_on_after_the_stage_start_where_it_ended(tmp_path: Path) -> None:
    study = Study(*quickstart("training.sft.after=continue"), tmp_path)
    unit = units_of(study.units, "sft_warmup")[0]
    write_run(tmp_path, study.experiment, unit, {20: [3, 3]})
    log(tmp_path, unit, {"step": 0, "reward": 0.5})
    assert read(study, "sft_warmup")[0].scores == {35: [0.75]}
    assert logged(study, "sft_warmup", "reward") == {"reward": {15: [0.5]}}


# --- the best of a family ---


def test_the_selected_setting_of_each_family(tmp_path: Path, one_seed: Loaded) -> None:
    study = Study(*one_seed, tmp_path)
    settings = curves.read_settings(study, "arithmetic")
    # Families of one setting need no scores to be chosen, others do.
    alone = [method for method in study.experiment.methods if method != "trust_region"]
    assert list(curves.best_settings(settings, select(study))) == alone
    low, high = units_of(study.units, "trust_region")
    write_run(tmp_path, study.experiment, low, {20: [2, 2]})
    write_run(tmp_path, study.experiment, high, {20: [1, 3], 40: [3, 3]})
    best = curves.best_settings(settings, select(Study(*one_seed, tmp_path)))
    assert best["trust_region"].units == (high,)
    assert list(best) == list(study.experiment.methods)


# --- what steps log ---


def test_a_number_that_is_not_there_is_no_zero(tmp_path: Path, one_seed: Loaded) -> None:
    study = Study(*one_seed, tmp_path)
    first, second = {"step": 0, "reward": 0.5, "beta": 0.1}, {"step": 1, "reward": None}
    vanilla = units_of(study.units, "vanilla")[0]
    log(tmp_path, vanilla, first, second, {"step": 2, "reward": 0.0})
    assert logged(study, "vanilla", "reward", "beta", "replaced") == {
        "reward": {0: [0.5], 1: [], 2: [0.0]},
        "beta": {0: [0.1], 1: [], 2: []},
    }
    assert logged(study, "veto", "reward") == {}


def test_seeds_side_by_side(tmp_path: Path, two_seeds: Loaded) -> None:
    study = Study(*two_seeds, tmp_path)
    for unit, reward in zip(units_of(study.units, "vanilla"), (0.25, 0.5), strict=True):
        log(tmp_path, unit, {"step": 0, "reward": reward})
    assert logged(study, "vanilla", "reward") == {"reward": {0: [0.25, 0.5]}}


# --- sweeps ---


def test_best_over_training_of_each_setting(tmp_path: Path, two_seeds: Loaded) -> None:
    study = Study(*two_seeds, tmp_path)
    low, low_again, *_ = units_of(study.units, "trust_region")
    write_run(tmp_path, study.experiment, low, {20: [2, 2], 40: [4, 4], 60: [4, 4]})
    write_run(tmp_path, study.experiment, low_again, {20: [3, 3], 40: [0, 0]})
    (chosen,) = select(study)
    grid = curves.method_grid(read(study, "trust_region"), chosen.pool)
    assert (grid.method, grid.x, grid.fixed) == ("trust_region", "epsilon0", {"K": 12})
    score = grid.lines[()][0.01]
    assert score is not None
    assert (score.mean, score.spread) == (0.625, pytest.approx(0.125 * 2**0.5))
    assert score.reach == score.spread
    assert grid.lines[()][0.05] is None


def test_a_grid_of_two_knobs_has_the_papers_axis() -> None:
    loaded = quickstart("methods.trust_region={epsilon0: [0.05,0.01,0.02], K: [12,6]}")
    grid = curves.method_grid(read(Study(*loaded, Path("none")), "trust_region"), ())
    assert (grid.x, grid.fixed, grid.scored) == ("K", {}, False)
    assert list(grid.lines) == [(("epsilon0", budget),) for budget in (0.01, 0.02, 0.05)]
    assert list(grid.lines[(("epsilon0", 0.01),)]) == [6, 12]


def test_a_single_setting_has_no_axis(tmp_path: Path, one_seed: Loaded) -> None:
    study = Study(*one_seed, tmp_path)
    unit = units_of(study.units, "fixed_epsilon")[0]
    write_run(tmp_path, study.experiment, unit, {20: [2, 2], 40: [3, 3]})
    (chosen,) = select(study)
    grid = curves.method_grid(read(study, "fixed_epsilon"), chosen.pool)
    assert (grid.x, grid.fixed) == (None, {"epsilon": 0.01})
    assert grid.lines == {(): {0: curves.SeedMean(0.75)}}


def test_the_margin_of_one_run_is_that_of_its_problems() -> None:
    counts = {
        "a": (Tally(np.array([4, 4, 4, 4]), np.array([0, 4, 2, 2])),),  # s² = 1/6 of 4 problems
        "b": (Tally(np.array([2, 2]), np.array([1, 1])),),
    }
    margin = curves.problem_margin(Candidate("veto", {}, 20, ("u",), counts))
    assert margin == pytest.approx(1.96 * (1 / 24) ** 0.5 / 2)
    assert curves.problem_margin(Candidate("veto", {}, 20, ("u",), {"b": counts["b"]})) is None
