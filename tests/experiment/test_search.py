"""Searches: which points a file asks for, again and again, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from orchestrator.config import Search
from orchestrator.errors import UserError
from orchestrator.experiment.axes import ValueRange
from orchestrator.experiment.load import load_experiment, resolved_text
from orchestrator.experiment.search import asked, rungs
from orchestrator.experiment.units import expand
from orchestrator.selection.results_folder import content_digest
from tests.sweeps import trb_refuses, trb_shows, write_experiment

RATE = "training.optimizer.lr"
METHODS = {"vanilla": {}, "trust_region": {"epsilon0": {"log": [0.05, 1.0]}, "K": [5, 10]}}
AXES = {RATE: {"log": [1e-4, 1e-2]}}
RANDOM = {"kind": "random", "trials": 6}


def written(folder: Path, **keys: object) -> Path:
    return write_experiment(folder, METHODS, **{"axes": AXES, "search": RANDOM, **keys})


def search(kind: str = "random", **keys: int) -> Search:
    return Search(kind=kind, **keys)  # pyright: ignore[reportArgumentType]


def test_the_same_file_asks_the_same_points(tmp_path: Path) -> None:
    """Pinned, since another version of Python or of this program must draw them, too."""
    experiment = load_experiment(written(tmp_path))
    assert experiment.points["trust_region"][:2] == [
        {"epsilon0": 0.415, "K": 10, RATE: 0.000346},
        {"epsilon0": 0.428, "K": 10, RATE: 0.000365},
    ]
    again = load_experiment(written(tmp_path))
    assert [unit.id for unit in expand(again)] == [unit.id for unit in expand(experiment)]
    other = load_experiment(written(tmp_path, search={**RANDOM, "seed": 1}))
    assert other.points["trust_region"][0] != experiment.points["trust_region"][0]
    assert content_digest(other) != content_digest(experiment)


def test_more_trials_add_points_and_methods_share_the_values_of_a_key(tmp_path: Path) -> None:
    few = load_experiment(written(tmp_path)).points
    many = load_experiment(written(tmp_path, search={**RANDOM, "trials": 9})).points
    assert many["trust_region"][:6] == few["trust_region"]
    assert len(many["trust_region"]) == 9
    rates = [point[RATE] for point in few["trust_region"]]
    assert [point[RATE] for point in few["vanilla"]] == rates


def test_draws_follow_their_ranges() -> None:
    """Kolmogorov-Smirnov for ranges, chi-square for lists; independent of each other."""
    space = {
        "a": ValueRange("log", 1e-4, 1e-2),
        "b": ValueRange("uniform", 0.0, 0.5),
        "c": [1, 2, 4],
    }
    points = asked("methods.x", space, search(trials=2000)) or []
    logarithms = stats.loguniform(1e-4, 1e-2)
    assert stats.kstest([each["a"] for each in points], logarithms.cdf).pvalue > 0.01
    assert stats.kstest([each["b"] for each in points], stats.uniform(0, 0.5).cdf).pvalue > 0.01
    chosen = [each["c"] for each in points]
    assert stats.chisquare([chosen.count(value) for value in (1, 2, 4)]).pvalue > 0.01
    ranks: Any = stats.spearmanr([each["a"] for each in points], [each["b"] for each in points])
    assert abs(ranks.statistic) < 0.07


def test_whole_ends_give_whole_values_and_all_points_differ() -> None:
    points = asked("methods.x", {"K": ValueRange("uniform", 3, 12)}, search(trials=10)) or []
    assert sorted(each["K"] for each in points) == list(range(3, 13))


def test_a_method_with_fewer_points_than_trials_tries_its_grid(tmp_path: Path) -> None:
    methods = {"vanilla": {}, "trust_region": {"epsilon0": [0.1, 0.2], "K": [5]}}
    plain = load_experiment(write_experiment(tmp_path, methods))
    searched = load_experiment(write_experiment(tmp_path, methods, search=RANDOM))
    assert not searched.points
    assert [unit.id for unit in expand(searched)] == [unit.id for unit in expand(plain)]


def test_the_resolved_experiment_asks_the_same_points_again(tmp_path: Path) -> None:
    experiment = load_experiment(written(tmp_path))
    record = tmp_path / "resolved.yaml"
    record.write_text(resolved_text(experiment, {"digest": "", "runs": ""}))
    again = load_experiment(record)
    assert again.points == experiment.points
    assert content_digest(again) == content_digest(experiment)
    assert [unit.id for unit in expand(again)] == [unit.id for unit in expand(experiment)]


def test_listed_points_are_the_settings(tmp_path: Path) -> None:
    listed = [{"epsilon0": 0.1, "K": 5, RATE: 1e-3}, {"epsilon0": 0.3, "K": 10, RATE: 1e-4}]
    path = write_experiment(tmp_path, {"trust_region": {"points": listed}})
    trials = [unit for unit in expand(load_experiment(path)) if unit.is_trial]
    assert [unit.knobs for unit in trials] == listed
    grid = {"epsilon0": [0.1], "K": [5], "axes": {RATE: [1e-3]}}
    [alone] = [
        unit
        for unit in expand(load_experiment(write_experiment(tmp_path, {"trust_region": grid})))
        if unit.is_trial
    ]
    assert alone.id == trials[0].id


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"search": {"kind": "asha"}},
            "search.kind: 'asha': expected one of grid, random, halving",
        ),
        ({"search": {"kind": "random"}}, "search.trials: missing: expected a number of points"),
        ({"search": {"trials": 4}}, "search.trials: 4: expected null with kind grid"),
        (
            {"search": {}},
            "methods.trust_region.epsilon0: a range without points: expected points: N",
        ),
        (
            {"search": {"kind": "halving", "trials": 4, "reduction": 1}},
            "search.reduction: 1: expected a whole number ≥ 2",
        ),
        (
            {
                "search": {"kind": "halving", "trials": 4},
                "axes": {"training.steps": [4, 6]},
            },
            "axes.training.steps: moves the rungs of search.kind halving",
        ),
        (
            {
                "search": {"kind": "halving", "trials": 4, "by": "held_out_kl"},
                "evaluation": {"held_out": 0},
            },
            "evaluation.held_out: 0: expected 1 or more, with search.by held_out_kl",
        ),
        (
            {"axes": {"training.optimizer.lr": {"log": [0, 1]}}},
            f"axes.{RATE}.log: [0, 1]: expected two numbers > 0",
        ),
    ],
)
def test_wrong_searches_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict, message: str
) -> None:
    assert message in trb_refuses(capsys, "plan", written(tmp_path, **changed))


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], "a list of mappings"),
        ([{"epsilon0": 0.1}], "expected each of epsilon0, K"),
        ([{"epsilon0": -1, "K": 5}], "methods.trust_region.points.epsilon0: -1: expected a number"),
        ([{"epsilon0": 0.1, "K": 5}, {"epsilon0": 0.1, "K": 5}], "every point once"),
        ([{"epsilon0": 0.1, "K": 5, "training.lr": 1}], "did you mean"),
    ],
)
def test_wrong_points_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], points: list, message: str
) -> None:
    path = write_experiment(tmp_path, {"trust_region": {"points": points}})
    assert message in trb_refuses(capsys, "plan", path)


def test_more_trials_than_points_are_refused() -> None:
    with pytest.raises(UserError, match=r"at most the 3 different points of methods\.x"):
        asked("methods.x", {"K": ValueRange("uniform", 1, 3)}, search(trials=4))


def test_the_plan_counts_the_points(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = trb_shows(capsys, "plan", written(tmp_path), "--runs", tmp_path / "runs")
    assert "12 trials" in shown
    assert "6 points of epsilon0" in shown


def test_rungs_are_checkpoints() -> None:
    assert rungs(24, 4, 3) == [4, 12]
    assert rungs(400, 20, 4) == [20, 80, 320]
    assert rungs(20, 20, 3) == []
