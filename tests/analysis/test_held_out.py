"""The distance from the teacher on held-out prompts, against scipy's tests of the same numbers."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from analysis import frames
from analysis.facts.curves import distance_series, read_settings, sequence_budgets
from analysis.facts.evidence import HeldOutRow
from analysis.facts.facts import facts
from analysis.facts.units import unit_scores
from analysis.figures import training
from analysis.table.formats import FORMATS
from analysis.table.model import Table, results_table
from orchestrator.experiment.evaluation_protocol import evaluation_ids
from orchestrator.experiment.units import Unit, expand
from orchestrator.records.log import HELD_OUT, HeldOut
from orchestrator.records.writer import RunWriter
from orchestrator.selection.study import Study
from orchestrator.tracking.projection import projected_rows
from tests.analysis.test_verdict import flat, on_terminal
from tests.fake_runs import quickstart, units_of, write_run

SETUP, STEPS = "arithmetic", (20, 40)
PROMPTS = list(range(100, 106))
ONLY = ("methods.fixed_epsilon=null", "methods.veto=null", "methods.skd=null",
        "methods.temperature_warmup=null", "methods.sft_warmup=null",
        "methods.trust_region.epsilon0=[0.05]")  # fmt: skip
By = Mapping[str, Sequence[Sequence[float]]]  # method → KL of the response to each prompt, by seed


def row(step: int, kl: Sequence[float], tokens: Sequence[int], tail: float = 0.01) -> HeldOut:
    """A measurement whose responses have these summed KLs and lengths."""
    mean = sum(kl) / sum(tokens)
    bucket = {"first": 1, "last": 8, "tokens": sum(tokens), "kl": mean, "tail_student": tail}
    return HeldOut(
        step=step,
        kl=mean,
        kl_error=0.01,
        sequence_kl=float(np.mean(kl)),
        tail_student=tail,
        tail_teacher=2 * tail,
        student_entropy=0.5,
        teacher_entropy=0.25,
        response_length=float(np.mean(tokens)),
        truncated=0.0,
        prompts=PROMPTS[: len(kl)],
        tokens=list(tokens),
        prompt_kl=list(kl),
        positions=[bucket | {"tail_teacher": 2 * tail}],
    )


def measure(runs: Path, unit: Unit, rows: Sequence[HeldOut]) -> None:
    with closing(RunWriter(runs, unit.id)) as run:
        run.append(HELD_OUT, [asdict(each) for each in rows])
        run.commit(run.next_step)
        run.finish()


def swept(runs: Path, by: By, tokens: Sequence[int], *overrides: str) -> Study:
    """Vanilla and TRB, both best at step 40, with these KLs there and twice as much at the start."""
    seeds = max(map(len, by.values()), default=1)
    experiment, _ = quickstart(*ONLY, f"seeds={list(range(seeds))}", *overrides)
    units = expand(experiment)
    for unit in units:
        if unit.is_untrained:
            write_run(runs, experiment, unit, {0: [1, 1]})
            continue
        scores = {20: [2, 2], 40: [3, 3 + unit.seed % 2]}
        write_run(runs, experiment, unit, scores, steps=unit.steps)
        kls = by.get(unit.method or "", ())
        if unit.seed < len(kls):
            kl = kls[unit.seed]
            rows = [row(0, [2 * each for each in kl], tokens), row(40, kl, tokens)]
            measure(runs, unit, rows)
    return Study(experiment, units, runs)


def rows_of(study: Study) -> dict[str, HeldOutRow]:
    return {row.method: row for row in facts(study).held_out}


LENGTHS = [3, 5, 4, 9, 2, 7]
KLS = np.random.default_rng(4).uniform(0.5, 3, (2, 3, 6)).round(3)
THREE: By = {"vanilla": KLS[0].tolist(), "trust_region": (KLS[1] / 2).tolist()}


def test_means_over_seeds_have_the_intervals_and_the_test_of_welch(tmp_path: Path) -> None:
    found = rows_of(swept(tmp_path, THREE, LENGTHS))
    means = {
        method: [sum(kl) / sum(LENGTHS) for kl in of_seeds] for method, of_seeds in THREE.items()
    }
    for method, values in means.items():
        row = found[method]
        low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
        assert float(row.kl.value) == pytest.approx(np.mean(values))
        assert (row.kl.interval.low, row.kl.interval.high) == pytest.approx((max(0, low), high))
        assert row.kl.over == "seeds"
        assert row.start == pytest.approx(2 * np.mean(values))
        assert row.first_kl == pytest.approx(np.mean(values))
        assert (row.step, len(row.units), row.prompts) == (40, 3, 6)
        assert (row.tail_student, row.tail_teacher) == pytest.approx((0.01, 0.02))
    expected: Any = stats.ttest_ind(means["trust_region"], means["vanilla"], equal_var=False)
    gap = found["trust_region"].difference
    assert gap is not None
    assert gap.outcome == "tested"
    assert gap.p_value == pytest.approx(expected.pvalue, abs=2e-4)
    limits = expected.confidence_interval(0.95)
    within = gap.estimate.interval
    assert (within.low, within.high) == pytest.approx((limits.low, limits.high), abs=2e-3)
    assert found["vanilla"].difference is None


def test_one_run_has_an_interval_over_its_prompts_and_a_paired_difference(tmp_path: Path) -> None:
    """With responses of one length the ratio is a mean over prompts, and scipy has its tests."""
    equal = [4] * 6
    found = rows_of(swept(tmp_path, {name: kls[:1] for name, kls in THREE.items()}, equal))
    per_token = {name: np.array(kls[0]) / 4 for name, kls in THREE.items()}
    for method, values in per_token.items():
        low, high = stats.t.interval(0.95, 5, values.mean(), stats.sem(values))
        interval = found[method].kl.interval
        assert (interval.low, interval.high) == pytest.approx((max(0, low), high))
        assert found[method].kl.over == "prompts"
    paired = stats.ttest_rel(per_token["trust_region"], per_token["vanilla"])
    limits = paired.confidence_interval(0.95)
    gap = found["trust_region"].difference
    assert gap is not None
    assert (gap.estimate.interval.low, gap.estimate.interval.high) == pytest.approx(
        (limits.low, limits.high)
    )
    assert (gap.outcome, gap.p_value) == ("one seed", None)


def test_what_was_not_measured_stays_missing(tmp_path: Path) -> None:
    """Old runs, and a method of which one run has no measurement at the selected step."""
    old = facts(swept(tmp_path / "old", {}, LENGTHS))
    assert old.held_out == ()
    assert "held-out" not in flat(on_terminal(results_table(old.study), 100))
    assert json.loads(FORMATS["json"](results_table(old.study)))["evidence"]["held_out"] == []
    partly = rows_of(
        swept(tmp_path / "partly", {**THREE, "vanilla": THREE["vanilla"][:2]}, LENGTHS)
    )
    assert set(partly) == {"trust_region"}
    assert partly["trust_region"].difference is None


def test_a_divergence_without_a_value_is_no_row(tmp_path: Path) -> None:
    study = swept(tmp_path, {}, LENGTHS)
    (unit,) = units_of(study.units, "vanilla")
    missing = asdict(row(40, [1.0, 2.0], [3, 4])) | {"kl": None, "prompt_kl": [None, 2.0]}
    measure(tmp_path, unit, [HeldOut(**missing)])
    assert facts(study).held_out == ()
    found = study.reader(unit).held_out_at(40)
    assert found is not None
    assert found.kl is None
    assert study.reader(unit).held_out_at(20) is None


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return results_table(swept(tmp_path_factory.mktemp("runs"), THREE, LENGTHS))


def test_every_form_of_the_table_has_the_distance(table: Table) -> None:
    assert table.facts is not None
    kl = f"{float(rows_of(table.facts.study)['vanilla'].kl.value):.3f}"
    shown = on_terminal(table, 100)
    assert "Distance from the teacher on held-out prompts" in shown
    assert f"{kl} ±" in shown
    assert "KL(p‖q): of the checkpoint's student from the teacher" in flat(shown)
    assert max(map(len, shown.splitlines())) <= 100
    assert f"{kl} ±" in FORMATS["md"](table)
    assert f"KL(p‖q) {kl} ±" in FORMATS["tex"](table)
    records = {
        each["method"]: each for each in json.loads(FORMATS["json"](table))["evidence"]["held_out"]
    }
    assert records["trust_region"]["p_value"] is not None
    lines = csv.DictReader(io.StringIO(FORMATS["csv"](table)))
    cells = {(line["method"], line["benchmark"]): line for line in lines}
    for method, record in records.items():
        of_average = cells[method, "avg"]
        assert float(of_average["kl"]) == pytest.approx(record["kl"], abs=1e-4)
        assert float(of_average["tail_teacher"]) == pytest.approx(0.02)
        # The names that both blocks have are those of the score, in per cent.
        gap = of_average["minus_vanilla"]
        assert (gap == "") == (method == "vanilla")
        assert not gap or abs(float(gap) - record["minus_vanilla"]) > 0.05
        assert cells[method, "arithmetic_short"]["kl"] == ""
    frame = frames.evidence(table).set_index(["method", "benchmark"])
    assert frame.loc[("vanilla", "avg"), "kl"] == pytest.approx(records["vanilla"]["kl"])


def test_curves_and_trackers_have_the_distance_over_steps(tmp_path: Path) -> None:
    study = swept(tmp_path, THREE, LENGTHS)
    setting = next(each for each in read_settings(study, SETUP) if each.method == "vanilla")
    steps, positions = distance_series(study, setting)
    finals = [sum(kl) / sum(LENGTHS) for kl in THREE["vanilla"]]
    assert steps.curve == {0: [2 * each for each in finals], 40: finals}
    assert positions.curve == {8: finals}
    unit = setting.units[0]
    run = study.reader(unit)
    rows = projected_rows(run, unit_scores(run, evaluation_ids(study.setup_of(unit))), unit)
    assert rows[40]["held_out/kl"] == finals[0]
    assert rows[40]["held_out/tail_teacher"] == 0.02
    assert rows[0]["held_out/kl"] == 2 * finals[0]
    assert "held_out/kl" not in rows[20]
    (data,) = facts(study, depth="scores").runs
    drawn = training.distance(data).figure
    assert drawn is not None
    lines = drawn.axes[0].get_lines()
    assert any(np.array_equal(np.asarray(line.get_xdata()), [0, 40]) for line in lines)


def test_a_study_without_measurements_has_no_such_figure(tmp_path: Path) -> None:
    (data,) = facts(swept(tmp_path, {}, LENGTHS), depth="scores").runs
    picture = training.distance(data)
    assert picture.figure is None
    assert picture.missing == "no run has measured itself on held-out prompts"


def test_the_budget_of_a_response_is_epsilon_times_its_length() -> None:
    unit = Unit(
        "a", "trial", SETUP, 0, 10, {}, "trust_region", {"epsilon0": 0.05, "K": 4}, first_batch=3
    )
    logged: list[dict[str, Any]] = [{"step": k, "response_length": 10.0 + k} for k in range(6)]
    logged[2]["response_length"] = None
    found = sequence_budgets(unit, logged)
    assert found == pytest.approx({3: 0.5, 4: 0.0375 * 11, 6: 0.0125 * 13})
    vanilla = Unit("b", "trial", SETUP, 0, 10, {}, "vanilla")
    assert sequence_budgets(vanilla, logged) == {}
