"""Scores, best checkpoints and the selected rows of the table: exact projections of the run
directories.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from analysis.facts.candidates import Selected, select
from analysis.table.model import Row, Table, results_table
from orchestrator.config import Experiment
from orchestrator.experiment.evaluation_protocol import evaluation_ids
from orchestrator.experiment.units import Unit
from orchestrator.monitor import status
from orchestrator.records.rundir import RunReader
from orchestrator.records.slices import ProblemRecord
from orchestrator.records.writer import RunWriter
from orchestrator.selection import scores as selection
from orchestrator.selection.confirmation import missing_units
from orchestrator.selection.scores import (
    PASS_AT_1,
    Metric,
    Tally,
    Votes,
    majority_share,
    pass_share,
    votes_of,
)
from orchestrator.selection.study import Study
from tests.fake_runs import QUICKSTART, quickstart, record, units_of, write_evaluation, write_run
from tests.sweeps import trb_shows

Loaded = tuple[Experiment, list[Unit]]
FEW_PROBLEMS = (  # what the table says of benchmarks of one problem each
    "Short sums: 1 problem, so its intervals are wide",
    "Long sums: 1 problem, so its intervals are wide",
)


@pytest.fixture(scope="module")
def one_seed() -> Loaded:
    return quickstart()


@pytest.fixture(scope="module")
def two_seeds() -> Loaded:
    return quickstart("seeds=[0,1]")


def ids(loaded: Loaded) -> list[str]:
    return list(evaluation_ids(loaded[0].setups["arithmetic"]).values())


def trajectory(loaded: Loaded, runs: Path, unit: Unit) -> dict[int, Fraction]:
    return selection.trajectory(RunReader(runs, unit.id), ids(loaded))


def selected(loaded: Loaded, runs: Path) -> dict[str, Selected]:
    return {chosen.best.method: chosen for chosen in select(Study(*loaded, runs))}


# --- pass@1 ---


def test_pass_at_1_is_the_mean_of_c_over_n() -> None:
    records = [record(1, 3), record(2, 4), record(4, 7)]
    assert selection.pass_at_1(records) == (Fraction(1, 3) + Fraction(1, 2) + Fraction(4, 7)) / 3
    assert selection.pass_at_1(records) != Fraction(1 + 2 + 4, 3 + 4 + 7)


@pytest.mark.parametrize(("correct", "expected"), [(0, 0), (512, 1), (1, Fraction(1, 512))])
def test_pass_at_1_of_one_problem(correct: int, expected: Fraction) -> None:
    assert selection.pass_at_1([record(correct, 512)]) == expected


def test_nothing_is_lost_to_rounding() -> None:
    records = [record(c, 3) for c in (1, 1, 1)]
    assert selection.pass_at_1(records) == Fraction(1, 3)
    assert selection.exact_mean([Fraction(1, 3), Fraction(1, 7)]) == Fraction(5, 21)


def test_a_mean_needs_every_benchmark() -> None:
    assert selection.exact_mean([Fraction(1), None]) is None
    assert selection.exact_mean([]) is None
    assert selection.exact_mean([Fraction(0), Fraction(1)]) == Fraction(1, 2)


def test_benchmarks_weigh_the_same_however_many_problems_they_have(
    tmp_path: Path, one_seed: Loaded
) -> None:
    unit = units_of(one_seed[1], "vanilla")[0]
    write_run(tmp_path, one_seed[0], unit, {20: [4, 0]})
    many: list[ProblemRecord] = [record(0, problem=str(i)) for i in range(9)] + [record(4)]
    with closing(RunWriter(tmp_path, unit.id)) as run:
        write_evaluation(run, ids(one_seed)[1], 20, many)
    assert trajectory(one_seed, tmp_path, unit) == {20: Fraction(1 + Fraction(1, 10)) / 2}


# --- checkpoints ---


def test_best_step_ties_go_to_the_earliest(tmp_path: Path, one_seed: Loaded) -> None:
    unit = units_of(one_seed[1], "vanilla")[0]
    write_run(tmp_path, one_seed[0], unit, {20: [1, 2], 40: [3, 1], 60: [2, 2]})
    run = RunReader(tmp_path, unit.id)
    assert selection.best_step(run, ids(one_seed)) == 40
    assert selection.mean_score(run, ids(one_seed), 40) == 0.5
    assert selection.mean_score(run, ids(one_seed), 30) is None


def test_only_steps_that_all_benchmarks_have_count(tmp_path: Path, one_seed: Loaded) -> None:
    unit = units_of(one_seed[1], "vanilla")[0]
    write_run(tmp_path, one_seed[0], unit, {20: [1, 1], 40: [4, None], 60: [None, 4]})
    assert trajectory(one_seed, tmp_path, unit) == {20: Fraction(1, 4)}
    assert selection.best_step(RunReader(tmp_path, unit.id), ids(one_seed)) == 20


def test_no_best_step_before_the_first_evaluation(tmp_path: Path, one_seed: Loaded) -> None:
    unit = units_of(one_seed[1], "vanilla")[0]
    assert selection.best_step(RunReader(tmp_path, unit.id), ids(one_seed)) is None


# --- the row of a method ---


def test_the_best_setting_of_a_family(tmp_path: Path, one_seed: Loaded) -> None:
    low, high = units_of(one_seed[1], "trust_region")
    write_run(tmp_path, one_seed[0], low, {20: [2, 2], 40: [1, 1]})
    write_run(tmp_path, one_seed[0], high, {20: [1, 0], 40: [2, 3]})
    chosen = selected(one_seed, tmp_path)["trust_region"]
    assert (chosen.setup, chosen.candidates, chosen.best.step) == ("arithmetic", 4, 40)
    assert chosen.best.knobs == high.knobs == {"epsilon0": 0.05, "K": 12}
    assert chosen.best.by_seed == {
        "avg": [Fraction(5, 8)],
        "arithmetic_short": [Fraction(1, 2)],
        "arithmetic_long": [Fraction(3, 4)],
    }
    assert (chosen.best.mean, chosen.best.seeds, chosen.best.spread) == (Fraction(5, 8), 1, None)


def test_ties_go_to_the_earliest_step_and_then_to_the_grids_order(
    tmp_path: Path, one_seed: Loaded
) -> None:
    low, high = units_of(one_seed[1], "trust_region")
    write_run(tmp_path, one_seed[0], low, {40: [2, 2], 60: [1, 1]})
    write_run(tmp_path, one_seed[0], high, {20: [1, 1], 40: [1, 3]})
    best = selected(one_seed, tmp_path)["trust_region"].best
    assert (best.step, best.knobs) == (40, low.knobs)
    write_run(tmp_path, one_seed[0], high, {20: [0, 4]})
    best = selected(one_seed, tmp_path)["trust_region"].best
    assert (best.step, best.knobs) == (20, high.knobs)


def test_families_are_apart_and_the_untrained_student_is_one(
    tmp_path: Path, one_seed: Loaded
) -> None:
    for name, scores in {
        "base_eval": {0: [1, 0]},
        "vanilla": {20: [2, 2]},
        "sft_warmup": {20: [3, 3]},
    }.items():
        write_run(tmp_path, one_seed[0], units_of(one_seed[1], name)[0], scores)
    write_run(tmp_path, one_seed[0], units_of(one_seed[1], "sft")[0], {15: [4, 4]})
    found = {
        method: (c.best.step, c.best.mean) for method, c in selected(one_seed, tmp_path).items()
    }
    assert found == {
        "base": (0, Fraction(1, 8)),
        "vanilla": (20, Fraction(1, 2)),
        "sft_warmup": (20, Fraction(3, 4)),
    }


def test_a_trial_is_not_credited_for_the_untrained_student(
    tmp_path: Path, one_seed: Loaded
) -> None:
    write_run(tmp_path, one_seed[0], units_of(one_seed[1], "vanilla")[0], {0: [4, 4], 20: [1, 1]})
    assert selected(one_seed, tmp_path)["vanilla"].best.step == 20


# --- seeds ---


def test_seeds_are_averaged_before_selecting(tmp_path: Path, two_seeds: Loaded) -> None:
    first, second = units_of(two_seeds[1], "vanilla")
    assert (first.seed, second.seed) == (0, 1)
    write_run(tmp_path, two_seeds[0], first, {20: [4, 4], 40: [2, 2]})
    write_run(tmp_path, two_seeds[0], second, {20: [0, 0], 40: [3, 3]})
    best = selected(two_seeds, tmp_path)["vanilla"].best
    assert (best.step, best.mean, best.seeds) == (40, Fraction(5, 8), 2)
    assert best.spread == pytest.approx((2 * 0.125**2) ** 0.5)


def test_one_lucky_seed_does_not_make_a_setting_the_best(tmp_path: Path, two_seeds: Loaded) -> None:
    lucky, unlucky, *steady = units_of(two_seeds[1], "trust_region")
    for unit, scores in ((lucky, [4, 4]), (unlucky, [0, 0]), *((unit, [3, 2]) for unit in steady)):
        write_run(tmp_path, two_seeds[0], unit, {20: scores})
    chosen = selected(two_seeds, tmp_path)["trust_region"]
    assert chosen.best.knobs == steady[0].knobs
    assert (chosen.best.mean, chosen.best.spread, chosen.candidates) == (Fraction(5, 8), 0.0, 2)


def test_a_step_counts_when_all_seeds_have_it(tmp_path: Path, two_seeds: Loaded) -> None:
    first, second = units_of(two_seeds[1], "vanilla")
    write_run(tmp_path, two_seeds[0], first, {20: [1, 1], 40: [4, 4]})
    assert "vanilla" not in selected(two_seeds, tmp_path)
    write_run(tmp_path, two_seeds[0], second, {20: [1, 1], 40: [4, None]})
    chosen = selected(two_seeds, tmp_path)["vanilla"]
    assert (chosen.best.step, chosen.candidates) == (20, 1)


def test_the_note_on_the_spread_over_seeds(tmp_path: Path, two_seeds: Loaded) -> None:
    for unit, scores in zip(units_of(two_seeds[1], "vanilla"), ([2, 2], [3, 3]), strict=True):
        write_run(tmp_path, two_seeds[0], unit, {20: scores})
    assert results_table(Study(*two_seeds, tmp_path)).notes == (
        f"partial: 2 of {len(two_seeds[1])} units done",
        "arithmetic: standard deviation of Avg: Vanilla 17.7 (2 seeds)",
        *FEW_PROBLEMS,
    )


# --- tables of partial sweeps ---


def texts(table: Table) -> dict[str, list[str]]:
    return {row.method: [cell.text for cell in row.cells] for row in table.rows}


def marks(row: Row) -> list[str | None]:
    return [cell.mark for cell in row.cells]


def test_a_sweep_not_begun_is_an_empty_table(tmp_path: Path, one_seed: Loaded) -> None:
    table = results_table(Study(*one_seed, tmp_path))
    assert texts(table) == {method: ["", "", ""] for method in [*one_seed[0].methods, "base"]}
    assert [column.label for column in table.columns] == ["Avg", "Short sums", "Long sums"]
    assert table.notes == (f"partial: 0 of {len(one_seed[1])} units done",)


def test_what_is_missing_is_empty_and_noted(tmp_path: Path, one_seed: Loaded) -> None:
    write_run(tmp_path, one_seed[0], units_of(one_seed[1], "base_eval")[0], {0: [0, 1]})
    write_run(tmp_path, one_seed[0], units_of(one_seed[1], "vanilla")[0], {20: [3, 1]}, done=False)
    write_run(tmp_path, one_seed[0], units_of(one_seed[1], "skd")[0], {20: [4, None]}, done=False)
    table = results_table(Study(*one_seed, tmp_path))
    found = texts(table)
    assert found["base"] == ["12.5", "0.0", "25.0"]
    assert found["vanilla"] == ["50.0", "75.0", "25.0"]
    assert found["skd"] == found["veto"] == ["", "", ""]
    assert table.notes == (f"partial: 1 of {len(one_seed[1])} units done", *FEW_PROBLEMS)
    assert table.facts is not None
    assert {row.method for row in table.facts.rows} == {"base", "vanilla"}
    assert marks(next(row for row in table.rows if row.method == "veto")) == [None, None, None]


def test_a_complete_sweep_tells_what_was_selected(tmp_path: Path, one_seed: Loaded) -> None:
    experiment, units = one_seed
    for unit in units:
        step = 0 if unit.kind == "base_eval" else unit.steps
        write_run(tmp_path, experiment, unit, {step: [1, 2]}, steps=unit.steps)
    assert {found.state for found in status.collect(Study(experiment, units, tmp_path))} == {"done"}
    assert missing_units(Study(experiment, units, tmp_path)) == []
    table = results_table(Study(experiment, units, tmp_path))
    assert table.notes == FEW_PROBLEMS
    assert table.facts is not None
    found = table.facts.find("arithmetic", "trust_region")
    assert found is not None
    assert (found.setting, found.step, found.candidates, found.complete) == (
        "epsilon0=0.01 K=12",
        60,
        2,
        True,
    )
    assert set(map(tuple, texts(table).values())) == {("37.5", "25.0", "50.0")}


def test_more_samples_make_a_unit_incomplete_again(tmp_path: Path, one_seed: Loaded) -> None:
    unit = units_of(one_seed[1], "vanilla")[0]
    write_run(tmp_path, one_seed[0], unit, {60: [1, 2]})
    experiment, units = quickstart("evaluation.benchmarks.arithmetic_long.n=8")
    again = next(u for u in units if u.id == unit.id)
    assert unit not in missing_units(Study(*one_seed, tmp_path))
    assert again in missing_units(Study(experiment, units, tmp_path))


# --- pass@k and maj@k against every choice of k samples, one by one ---


# Samples of problems: R is right, digits are wrong answers, - is none.
PROBLEMS = (
    "R",
    "-",
    "RRRRRR",
    "111111",
    "------",
    "RR1122",
    "R11---",
    "R12345",
    "RR11-2",
    "RRR111222",
    "RR1112-3-",
    "RRR1122-4",
    "1122334-R",
    "R--------",
)


def votes(samples: str) -> Votes:
    counts = Counter(samples)
    wrong = sorted(count for answer, count in counts.items() if answer not in "R-")
    return Votes(counts["R"], tuple(wrong), counts["-"])


def verdict(chosen: tuple[str, ...]) -> Fraction:
    """What a vote of these samples is worth, by counting its most frequent answers."""
    counts = Counter(answer for answer in chosen if answer != "-")
    most = max(counts.values(), default=0)
    ahead = [answer for answer, count in counts.items() if count == most]
    return Fraction(1, len(ahead)) if "R" in ahead else Fraction(0)


@pytest.mark.parametrize("samples", PROBLEMS)
def test_maj_at_k_is_the_mean_vote_over_all_subsets(samples: str) -> None:
    for k in range(1, len(samples) + 1):
        subsets = list(itertools.combinations(samples, k))
        by_hand = sum(map(verdict, subsets)) / Fraction(len(subsets))
        assert majority_share(votes(samples), k) == by_hand


@pytest.mark.parametrize("samples", PROBLEMS)
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(samples: str) -> None:
    for k in range(1, len(samples) + 1):
        subsets = list(itertools.combinations(samples, k))
        with_right = sum("R" in chosen for chosen in subsets)
        assert pass_share(len(samples), samples.count("R"), k) == Fraction(with_right, len(subsets))


def test_a_vote_of_one_is_pass_at_1() -> None:
    for samples in PROBLEMS:
        assert majority_share(votes(samples), 1) == Fraction(samples.count("R"), len(samples))


def test_many_samples_stay_exact() -> None:
    # Two answers of 100 samples each: by symmetry each wins half of the votes, ties counting half.
    assert majority_share(Votes(100, (100,), 0), 64) == Fraction(1, 2)
    assert majority_share(Votes(60, (1,) * 30 + (2,) * 15, 20), 101) == 1


def test_spellings_of_an_answer_vote_together() -> None:
    found = record(3, n=9)
    answers = {r"\frac12": 2, "0.5": 1, r"\dfrac{1}{3}": 2, r"\frac{1}{3}": 1, "7": 1}
    found = replace(found, answers=answers, no_answer=2)
    assert votes_of(found) is None
    right = {r"\frac12": 2, "0.5": 1}
    assert votes_of(replace(found, right_answers=right)) == Votes(3, (1, 3), 2)


def test_an_answer_that_timed_out_once_votes_for_itself() -> None:
    found = replace(record(1, n=3), answers={"8": 3}, right_answers={"8": 1})
    assert votes_of(found) == Votes(1, (2,), 0)


def test_scores_of_a_benchmark_are_means_over_its_problems() -> None:
    samples = ("RR11-2", "R12345", "RRRRRR", "111111")
    correct = np.array([problem.count("R") for problem in samples])
    tally = Tally(np.full(4, 6), correct, votes=tuple(votes(problem) for problem in samples))
    for k in range(1, 7):
        majority = [majority_share(each, k) for each in tally.votes]
        assert tally.score(Metric("maj", k)) == sum(majority) / 4
        assert tally.shares(Metric("maj", k)) == pytest.approx(list(map(float, majority)))
        passed = [pass_share(6, problem.count("R"), k) for problem in samples]
        assert tally.score(Metric("pass", k)) == sum(passed) / 4
        assert tally.shares(Metric("pass", k)) == pytest.approx(list(map(float, passed)))
    assert tally.score(PASS_AT_1) == tally.pass_at_1


def test_the_command_prints_the_same_table(
    tmp_path: Path, one_seed: Loaded, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, one_seed[0], units_of(one_seed[1], "vanilla")[0], {20: [3, 1]})
    shown = trb_shows(capsys, "table", QUICKSTART, "--format", "json", "--runs", tmp_path)
    rows = {
        row["method"]: [cell["value"] for cell in row["cells"]] for row in json.loads(shown)["rows"]
    }
    assert rows["vanilla"] == [50.0, 75.0, 25.0]
    assert rows["veto"] == [None, None, None]
