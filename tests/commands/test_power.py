"""`trb power` and the line of `trb plan`: with finished runs, without any, and with wrong values."""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest

from tests.analysis.test_confirmed import CONFIRMED, METHODS, confirm, study_of
from tests.fake_runs import QUICKSTART, quickstart, units_of, write_run
from tests.selection.test_power import NEEDED
from tests.sweeps import trb_here

Capture = pytest.CaptureFixture[str]
RESCORE = "evaluation.rescore=false"


@pytest.fixture
def three_seeds(tmp_path: Path) -> list[str]:
    """Vanilla with 1, 2 and 3 of 4 samples right, TRB's first setting always with 2, 3 and 4."""
    overrides = [RESCORE, "seeds=[0,1,2]"]
    experiment, units = quickstart(*overrides)
    for method, first in (("vanilla", 1), ("trust_region", 2)):
        for unit in units_of(units, method):
            right = first + (unit.seed or 0)
            write_run(tmp_path, experiment, unit, {20: [right, right]}, steps=unit.steps)
    return [str(QUICKSTART), *overrides, "--runs", str(tmp_path)]


def document(capsys: Capture, *words: str) -> dict[str, Any]:
    code, out, err = trb_here(capsys, *words, "--json")
    assert code == 0, err
    return json.loads(out)


def test_a_given_standard_deviation_needs_no_runs(capsys: Capture, tmp_path: Path) -> None:
    words = ["power", str(QUICKSTART), "--runs", str(tmp_path), "--sd"]
    for deviation, (alone, _, corrected) in NEEDED.items():
        found = document(capsys, *words, str(deviation), "--difference", "0.4")
        [row] = found["rows"]
        assert row["needed"] == [{"difference": 0.4, "runs": alone, "corrected": corrected}]
        assert (row["method"], row["sampling_assumed"], found["compared"]) == (None, True, 6)
    code, out, _ = trb_here(capsys, *words, "0.5")
    assert code == 0
    assert "26 (38)" in out
    assert "every problem solved in half of its samples" in " ".join(out.split())
    assert "unknown before a unit has run here" in " ".join(out.split())


def test_finished_runs_give_the_standard_deviation(three_seeds: list[str], capsys: Capture) -> None:
    found = document(capsys, "power", *three_seeds, "--difference", "25,50", "--seeds", "4")
    rows = {row["method"]: row for row in found["rows"]}
    assert set(rows) == {"vanilla", "trust_region", None}
    assert rows["vanilla"]["sd"] == pytest.approx(25.0)
    assert rows["vanilla"]["needed"] is None
    assert [each["difference"] for each in rows["trust_region"]["needed"]] == [25.0, 50.0]
    assert rows["trust_region"]["found"]["runs"] == found["seeds"] == 4
    assert rows[None]["sd"] == pytest.approx(25.0)
    # One problem a benchmark with 4 samples: p(1 − p) ÷ 3 of each, over two benchmarks squared.
    shares = [0.25 * 0.75, 0.25, 0.25 * 0.75]
    variance = 100**2 * sum(shares) / 3 / 3 * 2 / 4
    assert rows["vanilla"]["sampling_sd"] == pytest.approx(sqrt(variance))
    assert not rows["vanilla"]["sampling_assumed"]
    code, out, _ = trb_here(capsys, "power", *three_seeds)
    assert code == 0
    assert "the bottleneck is" in " ".join(out.split())


def test_confirming_runs_are_preferred(tmp_path: Path, capsys: Capture) -> None:
    study = confirm(study_of(tmp_path), *METHODS)
    from analysis.facts.assess import finished_runs
    from orchestrator.commands.power import Asked, compared, lines_of, seed_cost, seeds_of
    from orchestrator.commands.power import document as numbers

    known = finished_runs(study)
    asked = Asked(0.8, (10.0,), seeds_of(study.experiment), compared(study.experiment))
    found = numbers(lines_of(study.experiment, known), asked, seed_cost(study))
    assert (found["seeds"], found["compared"]) == (3, 2)
    for row in found["rows"][:-1]:
        expected = stdev(5 * right for right in CONFIRMED[row["method"]])
        assert row["runs"] == 3
        assert row["sd"] == pytest.approx(expected)
        assert row["sampling_assumed"], "one sample a problem says nothing of sampling"
    assert found["one_more_seed"] == {"trials": 3, "device": "core", "hours": None}


def test_a_seed_costs_gpu_hours_by_the_plan(capsys: Capture, tmp_path: Path) -> None:
    """One more seed of a sweep of one seed is all of it but the untrained student's evaluation."""
    words = ["paper-small", "--runs", str(tmp_path), "seeds=[0]", "confirm.seeds=[]"]
    plan = document(capsys, "plan", *words)
    power = document(capsys, "power", *words, "--sd", "0.5")["one_more_seed"]
    whole, untrained = plan["totals"]["gpu_hours"]["total"], 0.0
    for unit in plan["units"]:
        if unit["kind"] == "base_eval":
            untrained += sum(each["mid"] for each in unit["resources"]["gpu_hours"].values())
    assert power["device"] == "GPU"
    assert power["trials"] == plan["totals"]["by_kind"]["trial"]
    assert power["hours"]["mid"] == pytest.approx(whole["mid"] - untrained, rel=1e-6)


def test_a_plan_says_what_its_seeds_find(three_seeds: list[str], capsys: Capture) -> None:
    power = document(capsys, "power", *three_seeds)
    [pooled] = [row for row in power["rows"] if row["method"] is None]
    known = document(capsys, "plan", *three_seeds)["power"]
    points = round(pooled["found"]["corrected"], 3)
    assert known == {
        "seeds": 3,
        "compared": 6,
        "setups": {"arithmetic": {"sd": round(pooled["sd"], 3), "points": points}},
    }
    code, out, _ = trb_here(capsys, "plan", *three_seeds)
    assert code == 0
    line = (
        "3 exploring seeds find 130.7 points at s.d. 25.0 (80 % power, corrected for 6 methods): "
    )
    assert line in " ".join(out.split())


def test_a_plan_with_one_other_method_corrects_for_none(
    three_seeds: list[str], capsys: Capture
) -> None:
    words = [*three_seeds, "--methods", "vanilla,TRB"]
    power = document(capsys, "plan", *words)["power"]
    assert (power["seeds"], power["compared"]) == (3, 1)
    code, out, _ = trb_here(capsys, "plan", *words)
    assert code == 0
    assert "3 exploring seeds find 87.7 points at s.d. 25.0 (80 % power): trb power " in " ".join(
        out.split()
    )


def test_a_single_seed_is_planned_as_one(capsys: Capture, tmp_path: Path) -> None:
    words = [str(QUICKSTART), "--runs", str(tmp_path), "seeds=[0]"]
    assert document(capsys, "plan", *words)["power"] == {"seeds": 1, "compared": 6, "setups": {}}
    # The test of a difference wants two runs of each method.
    assert document(capsys, "power", *words, "--sd", "0.5")["seeds"] == 2


def test_a_plan_without_runs_says_how_to_ask(capsys: Capture, tmp_path: Path) -> None:
    words = ["plan", str(QUICKSTART), "--runs", str(tmp_path)]
    assert document(capsys, *words)["power"]["setups"] == {}
    _, out, _ = trb_here(capsys, *words)
    assert "trb power" in out
    assert "--sd 0.5" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--sd 0", "--sd: '0': expected a number > 0"),
        ("--sd .5 --difference -1", "--difference: '-1': expected a number > 0"),
        ("--sd .5 --difference .4,x", "--difference: 'x': expected a number > 0"),
        ("--sd .5 --power 1.2", "--power: '1.2': expected a number from 0.1 to 0.99"),
        ("--sd .5 --seeds 1", "--seeds: 1: expected 2 to 10,000"),
        ("", "quickstart: no two finished runs of a method"),
    ],
)
def test_wrong_values_are_refused(words: str, named: str, capsys: Capture, tmp_path: Path) -> None:
    code, out, err = trb_here(
        capsys, "power", str(QUICKSTART), "--runs", str(tmp_path), *words.split()
    )
    assert (code, out) == (2, "")
    assert err.startswith(f"trb: {named}")
    assert err.count("\n") == 1
