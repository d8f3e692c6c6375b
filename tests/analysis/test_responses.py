"""The numbers of the selected checkpoints' responses are those of their single samples."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from analysis import frames
from analysis.facts.evidence import Estimate
from analysis.facts.facts import facts
from analysis.report.page import build_page
from analysis.table.formats import FORMATS
from analysis.table.model import Table, results_table
from orchestrator.experiment.evaluation_protocol import evaluation_ids
from orchestrator.experiment.units import Unit
from orchestrator.records.slices import ProblemRecord
from orchestrator.records.writer import RunWriter
from orchestrator.selection.study import Study
from tests.analysis.test_verdict import flat, on_terminal
from tests.fake_runs import quickstart, units_of, write_evaluation

SHORT, LONG = "arithmetic_short", "arithmetic_long"
LIMIT = 40  # tokens at which a response is cut off
SAMPLES, K = 4, 4


@dataclass(frozen=True)
class Sample:
    """A response: its answer (R is right, empty is none) and its length in tokens."""

    answer: str
    length: int


Problems = Sequence[Sequence[Sample]]


def drawn(seed: int, problems: int) -> Problems:
    generator = np.random.default_rng(seed)
    rows = []
    for _ in range(problems):
        answers = generator.choice(["R", "1", "2", ""], size=SAMPLES, p=[0.5, 0.2, 0.15, 0.15])
        lengths = np.minimum(generator.integers(3, 50, SAMPLES), LIMIT)
        rows.append([Sample(str(a), int(n)) for a, n in zip(answers, lengths, strict=True)])
    return rows


def record_of(problem: Sequence[Sample], name: str) -> ProblemRecord:
    answers = Counter(sample.answer for sample in problem if sample.answer)
    right = {answer: count for answer, count in answers.items() if answer == "R"}
    return ProblemRecord(
        problem=name,
        n=len(problem),
        correct=sum(right.values()),
        truncated=sum(sample.length == LIMIT for sample in problem),
        no_answer=sum(not sample.answer for sample in problem),
        timed_out=0,
        tokens=sum(sample.length for sample in problem),
        answers=dict(answers),
        right_answers=right,
        tokens_right=sum(sample.length for sample in problem if sample.answer == "R"),
    )


def write(study: Study, unit: Unit, step: int, samples: dict[str, Problems]) -> None:
    ids = evaluation_ids(study.experiment.setups[unit.setup])
    with closing(RunWriter(study.runs, unit.id)) as run:
        for key, problems in samples.items():
            records = [record_of(each, f"p{place}") for place, each in enumerate(problems)]
            write_evaluation(run, ids[key], step, records)


def by_hand(problems: Problems) -> dict[str, float]:
    """The numbers of one seed on one benchmark, from its single samples."""
    passed, voted = [], []
    for problem in problems:
        subsets = list(itertools.combinations(problem, K))
        passed.append(np.mean([any(s.answer == "R" for s in chosen) for chosen in subsets]))
        votes = []
        for chosen in subsets:
            counts = Counter(sample.answer for sample in chosen if sample.answer)
            most = [answer for answer in counts if counts[answer] == max(counts.values())]
            votes.append("R" in most and 1 / len(most))
        voted.append(np.mean(votes))
    every = [sample for problem in problems for sample in problem]
    right = [sample.length for sample in every if sample.answer == "R"]
    wrong = [sample.length for sample in every if sample.answer != "R"]
    return {
        "pass_at_k": 100 * float(np.mean(passed)),
        "maj_at_k": 100 * float(np.mean(voted)),
        "truncated": 100 * float(np.mean([sample.length == LIMIT for sample in every])),
        "no_answer": 100 * float(np.mean([not sample.answer for sample in every])),
        "tokens_right": float(np.mean(right)),
        "tokens_wrong": float(np.mean(wrong)),
    }


def responses(table: Table, method: str, column: str) -> dict[str, Estimate]:
    assert table.facts is not None
    row = table.facts.find("arithmetic", method)
    assert row is not None
    return dict(row.columns[column].responses)


def frame_rows(table: Table) -> dict[tuple[str, str], dict[str, Any]]:
    """Values of the evidence's frame by method and benchmark, None where one is missing."""
    headings, rows = frames.plain_rows(frames.evidence(table))
    found = {}
    for row in rows:
        values = dict(zip(headings, row, strict=True))
        found[values["method"], values["benchmark"]] = values
    return found


def two_seeds(runs: Path) -> tuple[Study, dict[str, list[dict[str, Problems]]]]:
    """Vanilla and SKD with two seeds each, and the samples of each seed."""
    experiment, units = quickstart("seeds=[0,1]")
    study = Study(experiment, units, runs)
    samples: dict[str, list[dict[str, Problems]]] = {}
    for place, method in enumerate(("vanilla", "skd")):
        samples[method] = []
        for seed, unit in enumerate(units_of(units, method)):
            own = {SHORT: drawn(10 * place + seed, 30), LONG: drawn(50 + 10 * place + seed, 20)}
            samples[method].append(own)
            write(study, unit, 20, own)
    return study, samples


def test_numbers_are_those_of_the_single_samples_with_t_intervals_over_seeds(
    tmp_path: Path,
) -> None:
    study, samples = two_seeds(tmp_path)
    table = results_table(study)
    for key in (SHORT, LONG, "avg"):
        of_seeds: dict[str, list[dict[str, float]]] = {}
        for method, seeds in samples.items():
            of_seeds[method] = []
            for own in seeds:
                hand = {name: by_hand(problems) for name, problems in own.items()}
                mean = {name: (hand[SHORT][name] + hand[LONG][name]) / 2 for name in hand[SHORT]}
                of_seeds[method].append(mean if key == "avg" else hand[key])
        for method, seeds in of_seeds.items():
            found = responses(table, method, key)
            assert found.keys() == seeds[0].keys()
            for name, number in found.items():
                values = [seed[name] for seed in seeds]
                assert float(number.value) == pytest.approx(np.mean(values))
                if len(set(values)) == 1:
                    assert number.over == "problems", "equal seeds have no spread"
                    continue
                assert number.over == "seeds"
                reach = stats.t.ppf(0.975, 1) * np.sqrt(np.var(values, ddof=1) / 2)
                highest = np.inf if name.startswith("tokens") else 100
                limits = (number.interval.low, number.interval.high)
                low, high = max(0, np.mean(values) - reach), min(highest, np.mean(values) + reach)
                assert limits == pytest.approx((low, high))


def test_one_seed_has_a_bootstrap_over_problems(tmp_path: Path) -> None:
    experiment, units = quickstart()
    study = Study(experiment, units, tmp_path)
    problems = drawn(3, 200)
    write(study, units_of(units, "vanilla")[0], 20, {SHORT: problems, LONG: drawn(4, 30)})
    found = responses(results_table(study), "vanilla", SHORT)
    # The standard errors of a mean over problems and, by linearisation, of a ratio of two sums.
    truncated = [100 * np.mean([s.length == LIMIT for s in problem]) for problem in problems]
    errors = {"truncated": np.std(truncated, ddof=1) / np.sqrt(len(problems))}
    sums = np.array([sum(s.length for s in each if s.answer == "R") for each in problems])
    counts = np.array([sum(s.answer == "R" for s in each) for each in problems])
    residuals = sums - sums.sum() / counts.sum() * counts
    errors["tokens_right"] = np.std(residuals, ddof=1) * np.sqrt(len(problems)) / counts.sum()
    for name, error in errors.items():
        number = found[name]
        assert number.over == "problems"
        width = number.interval.high - number.interval.low
        assert width == pytest.approx(2 * 1.96 * error, rel=0.08)
        assert number.interval.low < float(number.value) < number.interval.high


def test_numbers_that_a_record_lacks_are_missing(tmp_path: Path) -> None:
    study, samples = two_seeds(tmp_path)
    (first, _) = units_of(list(study.units), "vanilla")
    ids = evaluation_ids(study.experiment.setups[first.setup])
    with closing(RunWriter(tmp_path, first.id)) as run:
        older = []
        for place, problem in enumerate(samples["vanilla"][0][SHORT]):
            known = record_of(problem, f"p{place}")
            older.append(replace(known, right_answers=None, tokens_right=None))
        write_evaluation(run, ids[SHORT], 20, older)
    table = results_table(study)
    kept = {"pass_at_k", "truncated", "no_answer"}
    assert responses(table, "vanilla", SHORT).keys() == kept
    assert responses(table, "vanilla", "avg").keys() == kept
    assert len(responses(table, "vanilla", LONG)) == len(responses(table, "skd", "avg")) == 6
    rows = frame_rows(table)
    assert rows["vanilla", "avg"]["maj_at_k"] is None
    assert rows["skd", "avg"]["maj_at_k_low"] is not None


def test_responses_of_which_none_is_wrong_have_no_length_of_wrong_ones(tmp_path: Path) -> None:
    experiment, units = quickstart()
    study = Study(experiment, units, tmp_path)
    all_right = [[Sample("R", 7)] * SAMPLES] * 5
    write(study, units_of(units, "vanilla")[0], 20, {SHORT: all_right, LONG: drawn(4, 30)})
    table = results_table(study)
    found = responses(table, "vanilla", SHORT)
    assert "tokens_wrong" not in found
    assert "tokens_wrong" not in responses(table, "vanilla", "avg")
    assert float(found["tokens_right"].value) == 7
    assert found["maj_at_k"].interval.low < float(found["maj_at_k"].value) == 100


@pytest.mark.parametrize("form", ["40", "80", "140", "md", "tex", "report"])
def test_every_form_shows_the_responses(tmp_path: Path, form: str) -> None:
    study, _ = two_seeds(tmp_path)
    table = results_table(study)
    if form.isdigit():
        text = on_terminal(table, int(form))
    elif form == "report":
        text = build_page(facts(study), tmp_path / "report.html")
    else:
        text = FORMATS[form](table)
    shown = flat(text).casefold()
    for name in ("pass@4", "maj@4", "truncated", "no answer", "tokens right", "tokens wrong"):
        assert name in shown
    for number in responses(table, "skd", "avg").values():
        assert f"{float(number.value):.1f} ±{number.reach}" in shown


def test_files_have_the_numbers_with_their_limits(tmp_path: Path) -> None:
    study, _ = two_seeds(tmp_path)
    table = results_table(study)
    found = responses(table, "skd", LONG)
    document = json.loads(FORMATS["json"](table))
    values = frame_rows(table)["skd", LONG]
    (record,) = [
        row
        for row in document["evidence"]["responses"]
        if (row["method"], row["benchmark"]) == ("skd", LONG)
    ]
    assert values["k"] == K
    for name, number in found.items():
        assert record[name] == values[name] == float(number.value)
        assert record[f"{name}_high"] == number.interval.high
