"""The block of confirmed checkpoints, in every form of the table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from analysis import frames
from analysis.facts.facts import facts
from analysis.numbers import p_text
from analysis.report.page import build_page
from analysis.results import tracked_tables
from analysis.table.compare import compare, to_markdown
from analysis.table.formats import FORMATS
from analysis.table.model import Table, results_table
from orchestrator.config import Experiment
from orchestrator.errors import UserError
from orchestrator.experiment.evaluation_protocol import evaluation_ids, fresh_evaluation_ids
from orchestrator.experiment.units import Unit, expand
from orchestrator.records.rundir import RunReader
from orchestrator.records.writer import RunWriter
from orchestrator.selection.confirmation import with_confirmation
from orchestrator.selection.loading import load_study
from orchestrator.selection.study import Study
from tests.analysis.test_verdict import flat, on_terminal
from tests.fake_runs import quickstart, record, units_of, write_evaluation, write_run

METHODS = ("vanilla", "trust_region", "skd")
# Right answers out of 20 of each unit: what exploring shows, and what confirming runs find on the
# same problems.
EXPLORED = {"vanilla": 10, "trust_region": 15, "skd": 12}
CONFIRMED: Mapping[str, tuple[int, ...]] = {
    "vanilla": (9, 10, 11),
    "trust_region": (9, 11, 11),
    "skd": (16, 17, 18),
}


def scored(runs: Path, experiment: Experiment, unit: Unit, right: int, fresh: bool = False) -> None:
    """A trained unit whose last checkpoint has `right` of 20 answers right, on each benchmark."""
    write_run(runs, experiment, unit, {20: [None, None]}, steps=unit.steps)
    ids = (fresh_evaluation_ids if fresh else evaluation_ids)(experiment.setups[unit.setup])
    for evaluation_id in ids.values():
        records = [record(int(place < right), 1, f"p{place}") for place in range(20)]
        write_evaluation(RunReader(runs, unit.id), evaluation_id, 20, records)


def study_of(runs: Path, *overrides: str) -> Study:
    others = [
        f"methods.{name}=null"
        for name in ("fixed_epsilon", "veto", "temperature_warmup", "sft_warmup")
    ]
    one = "methods.trust_region={epsilon0: [0.05], K: [5]}"
    samples = [
        f"evaluation.benchmarks.{name}.n=1" for name in ("arithmetic_short", "arithmetic_long")
    ]
    limits = [
        f"evaluation.benchmarks.{name}.limit=20" for name in ("arithmetic_short", "arithmetic_long")
    ]
    experiment, units = quickstart(
        "confirm.seeds=[5,6,7]", one, *others, *samples, *limits, *overrides
    )
    for method in METHODS:
        for unit in units_of(units, method):
            scored(runs, experiment, unit, EXPLORED[method])
    return with_confirmation(Study(experiment, units, runs))


def confirm(study: Study, *methods: str) -> Study:
    for method in methods:
        units = [
            unit for unit in study.units if unit.id in study.confirming and unit.method == method
        ]
        for unit, right in zip(units, CONFIRMED[method], strict=True):
            scored(study.runs, study.experiment, unit, right, fresh=True)
    return study


def test_the_verdict_rests_on_confirming_runs_alone(tmp_path: Path) -> None:
    table = results_table(confirm(study_of(tmp_path), *METHODS))
    assert table.facts is not None
    rows = {row.method: row for row in table.facts.confirmed}
    assert [row.complete for row in rows.values()] == [True] * 3
    trb, skd = rows["trust_region"].columns["avg"], rows["skd"].columns["avg"]
    assert float(trb.explored) == 75
    assert float(trb.lead) == pytest.approx(75 - 100 * 31 / 60)
    assert trb.difference is not None
    assert skd.difference is not None
    assert (trb.difference.shown, skd.difference.shown) == (False, True)
    assert (skd.difference.corrected_for, skd.difference.runs) == (2, (3, 3))
    assert table.verdict.sentences[0].startswith("TRB − Vanilla: +1.7 [")
    assert table.verdict.sentences[0].endswith(", 3 seeds: no difference shown (confirmed).")
    assert table.verdict.sentences[1].endswith(", 3 seeds: SKD is better (confirmed).")
    assert table.verdict.advice is None


def test_methods_that_are_not_confirmed_yet_are_named(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    assert results_table(study).verdict.sentences == ("Not confirmed yet: Vanilla, TRB, SKD.",)
    table = results_table(confirm(study, "vanilla", "skd"))
    assert table.verdict.sentences[-1] == "Not confirmed yet: TRB."
    assert "SKD is better (confirmed)." in table.verdict.sentences[0]


@pytest.mark.parametrize("form", ["60", "120", "md", "tex", "report"])
def test_every_form_shows_confirmed_scores_and_leads(tmp_path: Path, form: str) -> None:
    study = confirm(study_of(tmp_path), *METHODS)
    table = results_table(study)
    if form == "report":
        text = build_page(facts(study), tmp_path / "report.html")
    else:
        text = on_terminal(table, int(form)) if form.isdigit() else FORMATS[form](table)
    assert "+23.3" in text, "the lead of TRB"
    assert "85.0" in text, "SKD's confirmed score"
    assert "the luck of the choice" in flat(text)


def test_numbers_of_json_and_frame(tmp_path: Path) -> None:
    table = results_table(confirm(study_of(tmp_path), *METHODS))
    records = json.loads(FORMATS["json"](table))["evidence"]["confirmed"]
    skd = next(row for row in records if (row["method"], row["benchmark"]) == ("skd", "avg"))
    assert skd["corrected_for"] == 2
    assert skd["p_value"] <= skd["p_value_holm"] < 0.05
    assert skd["wanted"] == skd["seeds"] == 3
    frame = frames.confirmed(table).set_index(["method", "benchmark"])
    assert frame.loc[("skd", "avg"), "p_value"] == skd["p_value"]
    assert frame.loc[("trust_region", "avg"), "seeds"] == 3
    headings, rows = tracked_tables(table)["confirmed"]
    assert dict(zip(headings, rows[-1], strict=True))["seeds"] == 3
    unconfirmed = results_table(study_of(tmp_path / "other"))
    assert frames.confirmed(unconfirmed).empty
    assert tracked_tables(unconfirmed).keys() == {"results", "scores", "leaderboard"}
    headings, rows = tracked_tables(table)["leaderboard"]
    board = [dict(zip(headings, row, strict=True)) for row in rows]
    assert [row["runs"] for row in board] == ["exploring"] * 3 + ["confirming"] * 3
    shown = board[[row["method"] for row in board].index("skd", 3)]
    assert {name: shown[name] for name in headings if name in skd} == {
        name: skd[name] for name in headings if name in skd
    }
    assert shown["outcome"] == "tested"


def test_until_wants_seeds_that_confirm(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--until: 1.0: expected --confirm N beside it"):
        load_study("quickstart", runs=tmp_path, until=1.0)
    assert (
        load_study("quickstart", runs=tmp_path, confirm=2, until=1.0).experiment.confirm.until
        == 1.0
    )


def test_no_seeds_are_advised_while_runs_confirm(tmp_path: Path) -> None:
    (found,) = compare(study_of(tmp_path), "skd,vanilla")
    assert found.verdict.sentences == ("Neither method can be called better: one seed.",)
    assert found.verdict.advice is None


def test_a_seed_that_chooses_cannot_confirm(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"confirm.seeds: 0"):
        study_of(tmp_path, "seeds=[0,5]", "confirm.seeds=[0,1]")
    with pytest.raises(ValueError, match=r"confirm.methods: 'veto'"):
        study_of(tmp_path, "confirm.methods=[vanilla,veto]")
    with pytest.raises(ValueError, match=r"confirm.seeds: \[3\]"):
        study_of(tmp_path, "confirm.seeds=[3]")


def test_seeds_are_added_to_methods_that_are_open_until_all_are_decided(tmp_path: Path) -> None:
    study = study_of(tmp_path, "confirm.until=12")
    study = with_confirmation(confirm(study, *METHODS))
    seeds = {
        method: [
            unit.seed
            for unit in study.units
            if unit.id in study.confirming and unit.method == method
        ]
        for method in METHODS
    }
    assert seeds == {
        "vanilla": [5, 6, 7, 8, 9, 10],
        "trust_region": [5, 6, 7, 8, 9, 10],
        "skd": [5, 6, 7],
    }
    assert results_table(study).verdict.sentences[-1] == "Not confirmed yet: Vanilla, TRB."
    for unit in study.units:
        if unit.id in study.confirming and unit.seed > 7:
            scored(study.runs, study.experiment, unit, 10 + unit.seed % 2, fresh=True)
    again = with_confirmation(study)
    assert again.confirming == study.confirming, "all are decided"
    first, second = results_table(again).verdict.sentences
    assert first.endswith("6 seeds: no difference shown (confirmed, to ±12).")
    assert second.endswith("SKD is better (confirmed).")


def test_two_methods_are_compared_by_their_confirmed_checkpoints(tmp_path: Path) -> None:
    study = confirm(study_of(tmp_path), *METHODS)
    (found,) = compare(study, "skd,trust_region")
    assert found.confirmed
    assert found.first is not None
    assert found.first.seeds == 3
    assert found.verdict.sentences[0].endswith("3 seeds: SKD is better (confirmed).")
    assert "SKD K=15 tau_T=0.6 step 20, confirmed − TRB" in to_markdown([found])


def test_two_methods_chosen_from_different_numbers_of_checkpoints_are_not_tested(
    tmp_path: Path,
) -> None:
    study = study_of(tmp_path, "confirm.seeds=[]", "seeds=[0,1]")
    for unit in units_of(list(study.units), "skd"):
        ids = evaluation_ids(study.experiment.setups[unit.setup])
        with closing(RunWriter(tmp_path, unit.id)) as run:
            for evaluation_id in ids.values():
                write_evaluation(
                    run,
                    evaluation_id,
                    40,
                    [record(place % 2, 1, f"p{place}") for place in range(20)],
                )
    (found,) = compare(study, "skd,vanilla")
    average = found.columns["avg"]
    assert average is not None
    assert (average.outcome, average.p_value, average.chosen_from) == (
        *("unequal choice", None, (2, 1)),
    )
    assert found.verdict.sentences[0].startswith("Not tested: chosen from 2 and 1 checkpoints")
    assert found.verdict.advice is not None
    assert found.verdict.advice.command.endswith("--confirm 3")


def worlds(runs: Path, right: Mapping[str, Mapping[str, tuple[int, ...]]]) -> Study:
    """Setup → method → right answers of its confirming runs, out of 20 of each benchmark.

    A setup without any method has not even explored.
    """
    experiment = study_of(runs).experiment
    setup = experiment.setups["arithmetic"]
    experiment = replace(experiment, setups={name: replace(setup, title=name) for name in right})
    units = expand(experiment)
    for unit in units:
        if unit.method is not None and right[unit.setup]:
            scored(runs, experiment, unit, EXPLORED[unit.method])
    study = with_confirmation(Study(experiment, units, runs))
    for setup, of_methods in right.items():
        for method, of_seeds in of_methods.items():
            confirming = []
            for unit in units_of(list(study.units), method):
                if unit.id in study.confirming and unit.setup == setup:
                    confirming.append(unit)
            for unit, number in zip(confirming, of_seeds, strict=True):
                scored(runs, study.experiment, unit, number, fresh=True)
    return study


def test_differences_are_averaged_over_the_setups(tmp_path: Path) -> None:
    """By hand and by scipy, from each seed's mean of both setups."""
    one = {"vanilla": (9, 10, 11), "trust_region": (12, 12, 13), "skd": (9, 12, 9)}
    two = {"vanilla": (3, 5, 4), "trust_region": (4, 7, 5), "skd": (5, 4, 3)}
    study = worlds(tmp_path, {"one": one, "two": two})
    table = results_table(study)
    means = {}
    for method in METHODS:
        means[method] = [5 * (a + b) / 2 for a, b in zip(one[method], two[method], strict=True)]
    rivals = [means["trust_region"], means["skd"]]
    alone: list[Any] = [stats.ttest_ind(each, means["vanilla"], equal_var=False) for each in rivals]
    # The control's part of both errors is what correlates the two.
    squares = [np.var(each, ddof=1) / 3 for each in (*rivals, means["vanilla"])]
    errors = [sqrt(square + squares[2]) for square in squares[:2]]
    correlation = squares[2] / (errors[0] * errors[1])
    shape: Any = [[1, correlation], [correlation, 1]]
    found = json.loads(FORMATS["json"](table))["evidence"]["across"]
    assert [row["method"] for row in found] == ["trust_region", "skd"]
    for place, row in enumerate(found):
        assert row["minus_vanilla"] == pytest.approx(
            np.mean(rivals[place]) - np.mean(means["vanilla"])
        )
        law: Any = stats.multivariate_t(shape=shape, df=alone[place].df)
        t = abs(alone[place].statistic)
        outside = 1 - law.cdf([t, t], lower_limit=[-t, -t], random_state=0)
        assert row["p_value"] == pytest.approx(outside, abs=2e-3)
        reach = (row["minus_vanilla"] - row["minus_vanilla_low"]) / errors[place]
        within = law.cdf([reach, reach], lower_limit=[-reach, -reach], random_state=0)
        assert within == pytest.approx(0.95, abs=2e-3)
        method = METHODS[place + 1]
        leads = [5 * (np.mean(each[method]) - np.mean(each["vanilla"])) for each in (one, two)]
        elsewhere = (row["elsewhere_low"], row["elsewhere_high"])
        if leads[0] == leads[1]:
            assert elsewhere == (None, None)
        else:
            within = stats.ttest_1samp(leads, 0).confidence_interval(0.95)
            assert elsewhere == pytest.approx((within.low, within.high))
    assert [(row["ahead"], row["setups"], row["seeds"]) for row in found] == [(2, 2, 3), (0, 2, 3)]
    frame = frames.across_setups(table)
    assert list(frame["minus_vanilla"]) == [row["minus_vanilla"] for row in found]
    assert "Mean of these 2 setups: TRB − Vanilla: +9.2" in flat(on_terminal(table, 80))
    for form in ("md", "tex"):
        assert "2 of 2" in FORMATS[form](table)
    assert "2 of 2" in build_page(facts(study), tmp_path / "report.html")


@pytest.mark.parametrize("third", [{"vanilla": (3, 5, 4)}, {}], ids=["begun", "unexplored"])
def test_no_mean_is_taken_before_all_setups_are_confirmed(
    tmp_path: Path, third: Mapping[str, tuple[int, ...]]
) -> None:
    one = {method: CONFIRMED[method] for method in METHODS}
    table = results_table(worlds(tmp_path, {"one": one, "two": one, "three": third}))
    assert json.loads(FORMATS["json"](table))["evidence"]["across"] == []
    assert frames.across_setups(table).empty


ALIKE = (10, 11, 10, 12, 10, 11, 9, 11)


@pytest.mark.parametrize(
    "of_trust_region", [(1, 20, 3, 19, 0, 17, 5, 20), (20, 11, 20, 12, 14, 20, 13, 20), ALIKE]
)
def test_each_method_is_tested_by_the_spread_of_its_own_runs(
    tmp_path: Path, of_trust_region: tuple[int, ...]
) -> None:
    rights = {"vanilla": ALIKE, "trust_region": of_trust_region, "skd": ALIKE}
    table = confirmed_eight(tmp_path, rights)
    assert table.facts is not None
    for row in table.facts.confirmed:
        percent = [5 * right for right in rights[row.method]]
        reach = stats.t.ppf(0.975, 7) * stats.sem(percent)
        limits = row.columns["avg"].score.interval
        assert limits.low == pytest.approx(max(0, np.mean(percent) - reach))
        assert limits.high == pytest.approx(min(100, np.mean(percent) + reach))
    judged = [sentence for sentence in table.verdict.sentences if sentence.startswith("TRB")]
    better = of_trust_region != ALIKE and sum(of_trust_region) > 100
    assert [line.endswith("TRB is better (confirmed).") for line in judged] == [better]


def test_runs_below_the_untrained_student_are_counted(tmp_path: Path) -> None:
    """The untrained student has 8 of 20; of eight runs each, 7 of TRB's and none of vanilla's are
    worse.
    """
    rights = {"vanilla": ALIKE, "trust_region": (7, 7, 0, 9, 1, 2, 7, 7), "skd": (8,) * 8}
    table = confirmed_eight(tmp_path, rights, untrained=8)
    assert table.facts is not None
    trb = next(row.collapse for row in table.facts.confirmed if row.method == "trust_region")
    assert trb is not None
    assert (trb.collapsed, trb.runs, trb.first) == (7, 8, 20)
    expected: Any = stats.fisher_exact([[7, 1], [0, 8]])
    assert trb.p_value == pytest.approx(2 * expected.pvalue)
    assert table.verdict.sentences[-1] == (
        "Runs that are below the untrained student: Vanilla 0 of 8, "
        f"TRB 7 of 8 (p = {p_text(trb.p_value)}), SKD 0 of 8 (p = 1.000)."
    )
    text = flat(on_terminal(table, 200))
    assert "7 of 8, from step 20" in text
    assert "Fisher's exact test" in text
    rows = json.loads(FORMATS["json"](table))["evidence"]["confirmed"]
    counts = {row["method"]: (row["collapsed"], row["collapsed_of"]) for row in rows}
    assert counts == {"vanilla": (0, 8), "trust_region": (7, 8), "skd": (0, 8)}


def confirmed_eight(
    runs: Path, rights: Mapping[str, tuple[int, ...]], untrained: int | None = None
) -> Table:
    """The table with eight confirming runs a method, and the untrained student if it is evaluated."""
    study = study_of(runs, "confirm.seeds=[5,6,7,8,9,10,11,12]")
    units = list(study.units)
    for unit in units_of(units, "base_eval") if untrained is not None else ():
        for evaluation_id in evaluation_ids(study.experiment.setups[unit.setup]).values():
            records = [record(int(place < (untrained or 0)), 1, f"p{place}") for place in range(20)]
            write_evaluation(RunReader(runs, unit.id), evaluation_id, 0, records)
    for method, of_runs in rights.items():
        confirming = [unit for unit in units_of(units, method) if unit.seed > 4]
        for unit, right in zip(confirming, of_runs, strict=True):
            scored(runs, study.experiment, unit, right, fresh=True)
    return results_table(study)
