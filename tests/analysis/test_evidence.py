"""What stands behind the rows of a table: intervals, split-half, fresh samples and differences from
run directories, and how the formats show them."""

from __future__ import annotations

import csv
import json
import re
from contextlib import closing
from fractions import Fraction
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from analysis.facts.evidence import ColumnEvidence, Facts, RowEvidence
from analysis.facts.intervals import average, interval, resample, split_half_scores
from analysis.facts.verdict import explanation
from analysis.numbers import signed
from analysis.table import terminal
from analysis.table.evidence_formats import CELL_UNITS
from analysis.table.formats import to_csv, to_json, to_latex, to_markdown
from analysis.table.model import (
    CSV_COLUMNS,
    Score,
    Table,
    make_table,
    read_results,
    results_table,
)
from orchestrator.config import Experiment
from orchestrator.data.benchmarks import BENCHMARKS
from orchestrator.errors import UserError
from orchestrator.experiment.evaluation_protocol import evaluation_ids, fresh_evaluation_ids
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import Unit, expand
from orchestrator.records.writer import RunWriter
from orchestrator.selection.study import Study
from tests.fake_runs import (
    QUICKSTART,
    SHIPPED,
    quickstart,
    record,
    units_of,
    write_evaluation,
    write_run,
)
from tests.sweeps import ROOT, trb_refuses

Loaded = tuple[Experiment, list[Unit]]

SHORT, LONG = "arithmetic_short", "arithmetic_long"
PROBLEMS = {SHORT: 60, LONG: 41}


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return quickstart()


def draw(seed: int, rate: float, n: int = 4) -> dict[str, list[int]]:
    """Right answers of each problem: harder and easier problems, the same for every seed."""
    generator, problems = np.random.default_rng(seed), np.random.default_rng(0)
    logits = {
        key: problems.normal(np.log(rate / (1 - rate)), 1.5, size) for key, size in PROBLEMS.items()
    }
    return {
        key: generator.binomial(n, 1 / (1 + np.exp(-logit))).tolist()
        for key, logit in logits.items()
    }


def write(
    runs: Path, experiment: Experiment, unit: Unit, step: int, counts: dict[str, list[int]], n: int = 4,
    fresh: bool = False,
) -> None:  # fmt: skip
    """Records of a checkpoint; the short sums' problems are p0, p1, …"""
    setup = experiment.setups[unit.setup]
    ids = fresh_evaluation_ids(setup) if fresh else evaluation_ids(setup)
    with closing(RunWriter(runs, unit.id)) as run:
        for key, row in counts.items():
            write_evaluation(
                run, ids[key], step, [record(correct, n, f"p{i}") for i, correct in enumerate(row)]
            )


def row_of(table: Table, method: str) -> RowEvidence:
    assert table.facts is not None
    found = table.facts.find("arithmetic", method)
    assert found is not None
    return found


def column(table: Table, method: str, key: str = "avg") -> ColumnEvidence:
    return row_of(table, method).columns[key]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory, loaded: Loaded) -> Table:
    """Two checkpoints of vanilla, three of trust region of which the best was sampled again, the
    untrained student.
    """
    runs = tmp_path_factory.mktemp("runs")
    experiment, units = loaded
    vanilla, (low, high) = units_of(units, "vanilla")[0], units_of(units, "trust_region")
    write(runs, experiment, units_of(units, "base_eval")[0], 0, draw(1, 0.2))
    write(runs, experiment, vanilla, 20, draw(2, 0.4))
    write(runs, experiment, vanilla, 40, draw(3, 0.5))
    write(runs, experiment, low, 20, draw(4, 0.5))
    write(runs, experiment, low, 40, draw(5, 0.52))
    write(runs, experiment, high, 60, draw(6, 0.65))
    write(runs, experiment, high, 60, draw(7, 0.6), fresh=True)
    return results_table(Study(experiment, units, runs))


# --- numbers ---


def test_intervals_are_those_of_the_bootstrap_over_problems(table: Table) -> None:
    drawn = {
        key: resample({"a": np.array(row) / 4}, key)["a"] for key, row in draw(6, 0.65).items()
    }
    for key, replicates in {**drawn, "avg": average(list(drawn.values()))}.items():
        found = column(table, "trust_region", key).score
        expected = interval(0.0, replicates).high
        assert found.interval.high == pytest.approx(100 * expected)
        assert found.interval.low < float(found.value) < found.interval.high
        assert found.margin == max(
            found.interval.high - float(found.value), float(found.value) - found.interval.low
        )


def test_scores_are_the_cells_of_the_table(table: Table) -> None:
    for row in table.rows:
        for where, cell in zip(table.columns, row.cells, strict=True):
            if cell.value is not None:
                assert column(table, row.method, where.benchmark).score.value == cell.value


def test_a_difference_is_paired_with_vanilla(table: Table) -> None:
    pairs = {
        key: resample(
            {"t": np.array(draw(6, 0.65)[key]) / 4, "v": np.array(draw(3, 0.5)[key]) / 4}, key
        )
        for key in PROBLEMS
    }
    replicates = average([pair["t"] - pair["v"] for pair in pairs.values()])
    found = column(table, "trust_region").difference
    assert found is not None
    exact = column(table, "trust_region").score.value - column(table, "vanilla").score.value
    assert found.estimate.value == exact
    assert found.estimate.interval.low == pytest.approx(100 * interval(1.0, replicates).low)
    assert (found.p_value, found.estimate.over, found.runs) == (None, "problems", (1, 1))
    assert column(table, "vanilla").difference is None
    untrained = column(table, "base").difference
    assert untrained is not None
    assert (untrained.p_value, untrained.estimate.over, untrained.runs) == (
        None,
        "problems",
        (0, 1),
    )


def test_split_half_selects_among_the_familys_checkpoints(table: Table) -> None:
    pool = [draw(4, 0.5), draw(5, 0.52), draw(6, 0.65)]
    scores = split_half_scores(
        {key: np.array([counts[key] for counts in pool]) / 4 for key in PROBLEMS}
    )
    assert scores is not None
    for key, score in {**scores, "avg": sum(scores.values()) / 2}.items():
        assert column(table, "trust_region", key).split_half == pytest.approx(100 * score)
    assert column(table, "base").split_half == pytest.approx(
        float(column(table, "base").score.value)
    )


def test_fresh_samples_are_of_the_selected_checkpoint(table: Table) -> None:
    again = {key: Fraction(100 * sum(row), 4 * len(row)) for key, row in draw(7, 0.6).items()}
    fresh = column(table, "trust_region").fresh
    assert fresh is not None
    assert fresh.value == sum(again.values(), Fraction(0)) / 2
    assert fresh.interval.low < fresh.value < fresh.interval.high
    assert column(table, "vanilla").fresh is None


def test_fresh_samples_of_another_checkpoint_or_of_half_the_benchmarks_do_not_count(
    tmp_path: Path, loaded: Loaded
) -> None:
    experiment, units = loaded
    vanilla = units_of(units, "vanilla")[0]
    write(tmp_path, experiment, vanilla, 20, draw(2, 0.4))
    write(tmp_path, experiment, vanilla, 40, draw(3, 0.6))
    write(tmp_path, experiment, vanilla, 20, draw(4, 0.6), fresh=True)
    write(tmp_path, experiment, vanilla, 40, {SHORT: draw(4, 0.6)[SHORT]}, fresh=True)
    made = results_table(Study(experiment, units, tmp_path))
    assert row_of(made, "vanilla").step == 40
    assert column(made, "vanilla").fresh is None


def test_counts_and_provenance(table: Table, loaded: Loaded) -> None:
    found = row_of(table, "trust_region")
    assert (found.step, found.knobs, found.candidates, found.eligible) == (
        60,
        {"epsilon0": 0.05, "K": 12},
        3,
        3,
    )
    assert found.units == (units_of(loaded[1], "trust_region")[1].id,)
    assert (
        found.columns[SHORT].problems,
        found.columns[SHORT].samples,
        found.columns[SHORT].n,
    ) == (60, 240, 4)
    assert (
        found.columns["avg"].problems,
        found.columns["avg"].samples,
        found.columns["avg"].n,
    ) == (101, 404, None)
    assert table.facts is not None
    assert {(s.benchmark, s.evaluation_id) for s in table.facts.benchmarks} == set(
        evaluation_ids(loaded[0].setups["arithmetic"]).items()
    )


def test_without_vanilla_there_is_no_difference(tmp_path: Path, loaded: Loaded) -> None:
    write(tmp_path, loaded[0], units_of(loaded[1], "veto")[0], 20, draw(1, 0.5))
    made = results_table(Study(*loaded, tmp_path))
    assert column(made, "veto").difference is None
    assert made.facts is not None
    assert len(made.facts.rows) == 1


def test_checkpoints_with_fewer_samples_are_counted_but_not_selected(
    tmp_path: Path, loaded: Loaded
) -> None:
    experiment, units = loaded
    vanilla = units_of(units, "vanilla")[0]
    write(tmp_path, experiment, vanilla, 20, draw(1, 0.9, n=2), n=2)
    write(tmp_path, experiment, vanilla, 40, draw(2, 0.5))
    found = row_of(results_table(Study(experiment, units, tmp_path)), "vanilla")
    assert (found.step, found.candidates, found.eligible, found.complete) == (40, 2, 1, True)


def test_a_selection_before_all_samples_are_there_is_noted(tmp_path: Path, loaded: Loaded) -> None:
    write(tmp_path, loaded[0], units_of(loaded[1], "vanilla")[0], 20, draw(1, 0.5, n=2), n=2)
    made = results_table(Study(*loaded, tmp_path))
    assert not row_of(made, "vanilla").complete
    assert (
        made.notes[-1]
        == "arithmetic Vanilla: selected before any checkpoint has the samples asked for"
    )


def test_the_spread_of_seeds_is_told_for_each_method(tmp_path: Path) -> None:
    experiment, units = quickstart("seeds=[0,1,2]")
    write(tmp_path, experiment, units_of(units, "base_eval")[0], 0, draw(9, 0.2))
    for unit, rate in zip(units_of(units, "vanilla"), (0.3, 0.5, 0.7), strict=True):
        write(tmp_path, experiment, unit, 20, draw(unit.seed, rate))
    for unit in units_of(units, "veto"):
        write(tmp_path, experiment, unit, 20, draw(unit.seed, 0.5))
    made = results_table(Study(experiment, units, tmp_path))
    spread_out, steady = row_of(made, "vanilla"), row_of(made, "veto")
    assert (len(spread_out.units), spread_out.columns[SHORT].samples) == (3, 720)
    assert spread_out.spread is not None
    assert steady.spread is not None
    assert spread_out.spread > 5 * steady.spread
    margins = [row.columns["avg"].score.margin for row in (spread_out, steady)]
    assert margins[0] > 5 * margins[1]
    assert {row.columns["avg"].score.over for row in (spread_out, steady)} == {"seeds"}
    untrained = column(made, "base").difference
    assert untrained is not None
    assert (untrained.p_value, untrained.estimate.over) == (None, "problems")


def test_a_single_problem_has_an_interval_but_no_halves(tmp_path: Path, loaded: Loaded) -> None:
    vanilla = units_of(loaded[1], "vanilla")[0]
    for step in (20, 40):
        write(tmp_path, loaded[0], vanilla, step, {SHORT: [2], LONG: [4]})
    found = column(results_table(Study(*loaded, tmp_path)), "vanilla", LONG)
    assert found.split_half is None
    assert found.score.interval.high == 100
    assert found.score.interval.low < 10


def test_different_problems_are_one_clear_error(tmp_path: Path, loaded: Loaded) -> None:
    vanilla, veto = (units_of(loaded[1], name)[0] for name in ("vanilla", "veto"))
    write(tmp_path, loaded[0], vanilla, 20, draw(1, 0.5))
    write(tmp_path, loaded[0], veto, 20, draw(1, 0.5) | {SHORT: [1, 2, 3]})
    with pytest.raises(UserError) as error:
        results_table(Study(*loaded, tmp_path))
    assert str(error.value).startswith(
        f"veto {veto.id} {SHORT}: 57 problems lacking, 0 added compared with vanilla"
    )
    assert "\n" not in str(error.value)


def test_the_same_samples_give_the_same_table(tmp_path: Path, loaded: Loaded) -> None:
    for name in ("vanilla", "veto", "skd"):
        write(tmp_path, loaded[0], units_of(loaded[1], name)[0], 20, draw(len(name), 0.5))
    first, second = (results_table(Study(*loaded, tmp_path)) for _ in range(2))
    assert to_json(first) == to_json(second)


# --- formats ---


def blocks(markdown: str) -> list[list[str]]:
    """Cells of the second table of the Markdown form."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    start = next(i for i, line in enumerate(lines) if "Split-half" in line)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:]]


def test_markdown_shows_what_the_averages_rest_on(table: Table) -> None:
    text = to_markdown(table)
    heading, _, *rows = blocks(text)
    assert heading == [
        *(
            "Method",
            "Avg",
            "Split-half",
            "Fresh",
            "− Vanilla",
            "95 % interval",
            "Of",
            "Seeds",
            "Step",
            "Setting",
        )
    ]
    selected, costs = ["TRB", "Vanilla", "Untrained student"], ["TRB", "Vanilla"]
    assert [row[0] for row in rows] == [
        *selected,
        *("Method", "---", *selected),
        *("Method", "---", *costs),
    ]
    cells = dict(zip(heading, rows[0], strict=True))
    assert re.fullmatch(r"\d+\.\d ±\d+\.\d\\\*", cells["Avg"]), (
        "one seed: its interval is over problems"
    )
    assert re.fullmatch(r"\+\d+\.\d \(1 seed\)", cells["− Vanilla"])
    assert re.fullmatch(r"\[[+−]?\d+\.\d, \+\d+\.\d\] problems only", cells["95 % interval"])
    assert (cells["Of"], cells["Seeds"], cells["Step"], cells["Setting"]) == (
        "3",
        "1",
        "60",
        "epsilon0=0.05 K=12",
    )
    assert cells["Avg"].startswith(
        next(row for row in table.rows if row.method == "trust_region").cells[0].text
    )
    assert rows[1][3:5] == ["", ""]
    assert table.facts is not None
    shown = text.replace("\\*", "*").splitlines()
    assert {f"- {line}" for line in explanation(table.facts)} <= set(shown)


def test_the_lines_of_the_second_block_are_no_longer_than_the_repositorys(table: Table) -> None:
    lines = to_markdown(table).splitlines()
    start = next(i for i, line in enumerate(lines) if "Split-half" in line)
    assert len(lines[start:]) > 5
    assert max(len(line) for line in lines[start:] if line.startswith("|")) <= 120


def tabular(table: Table) -> str:
    """The LaTeX form without its comments."""
    return "".join(
        line for line in to_latex(table).splitlines(keepends=True) if not line.startswith("%")
    )


def without_reach(latex: str) -> str:
    found = re.sub(r"\{\\scriptsize\$\\pm\$[0-9.]+\*?\}", "", latex)
    assert found != latex
    return found


def test_the_latex_tabular_is_the_plain_one(table: Table) -> None:
    plain = make_table(
        Score(row.method, where.setup, where.benchmark, cell.value)
        for row in table.rows
        for where, cell in zip(table.columns, row.cells, strict=True)
        if where.benchmark != "avg"
    )
    lines = to_latex(table).splitlines(keepends=True)
    comments = [line for line in lines if line.startswith("%")]
    assert without_reach("".join(line for line in lines if line not in comments)) == tabular(plain)
    assert sum("arithmetic TRB: " in line and "Split-half" in line for line in comments) == 1


def test_the_csv_adds_columns_that_reading_passes_over(tmp_path: Path, table: Table) -> None:
    text = to_csv(table)
    assert tuple(text.splitlines()[0].split(",")) == (*CSV_COLUMNS, *CELL_UNITS)
    found = {(row["method"], row["benchmark"]): row for row in csv.DictReader(StringIO(text))}
    trust_region, vanilla, missing = (
        found[name, "avg"] for name in ("trust_region", "vanilla", "skd")
    )
    assert (
        float(trust_region["ci_low"])
        < float(trust_region["pass_at_1"])
        < float(trust_region["ci_high"])
    )
    assert (trust_region["candidates"], trust_region["seeds"], trust_region["problems"]) == (
        "3",
        "1",
        "101",
    )
    assert trust_region["setting"] == "epsilon0=0.05 K=12"
    assert vanilla["minus_vanilla"] == vanilla["p_value"] == vanilla["fresh"] == ""
    assert set(list(missing.values())[3:]) == {""}
    path = tmp_path / "table.csv"
    path.write_text(text, encoding="utf-8")
    assert tabular(make_table(read_results(path))) == without_reach(tabular(table))


def test_a_csv_in_fractions_has_limits_in_fractions(tmp_path: Path, loaded: Loaded) -> None:
    counts = {SHORT: [1] * 2 + [0] * 198, LONG: [0] * 100}
    write(tmp_path, loaded[0], units_of(loaded[1], "vanilla")[0], 20, counts)
    (found,) = [
        row
        for row in csv.DictReader(StringIO(to_csv(results_table(Study(*loaded, tmp_path)))))
        if (row["method"], row["benchmark"]) == ("vanilla", SHORT)
    ]
    assert found["pass_at_1"] == "0.003"
    assert found["ci_low"] == "0.0000"
    assert 0.005 <= float(found["ci_high"]) <= 0.01


def test_json_holds_everything(table: Table) -> None:
    document = json.loads(to_json(table))
    found = {
        row["method"]: row for row in document["evidence"]["selected"] if row["benchmark"] == "avg"
    }
    trb, vanilla = found["trust_region"], found["vanilla"]
    assert (trb["outcome"], trb["p_value"]) == ("unequal choice", None)
    assert trb["minus_vanilla_over"] == trb["interval_over"] == "problems"
    assert trb["minus_vanilla_low"] < trb["minus_vanilla"] < trb["minus_vanilla_high"]
    assert (trb["candidates"], trb["eligible"], trb["spread"]) == (3, 3, None)
    assert len(trb["units"].split()) == 1
    assert document["bootstrap"]["confidence"] == 0.95
    assert vanilla["fresh"] is None
    assert vanilla["minus_vanilla"] is None


def test_json_names_every_benchmark_file_with_its_sha256(tmp_path: Path) -> None:
    experiment = load_experiment(SHIPPED / "paper.yaml", [])
    document = json.loads(to_json(results_table(Study(experiment, expand(experiment), tmp_path))))
    sources = {
        (source["setup"], source["benchmark"]): source["content"]
        for source in document["benchmarks"]
    }
    assert len(sources) == 9
    assert sources["qwen3-0.6b", "gsm8k"] == {
        "file": "eval/gsm8k_test.jsonl",
        "sha256": BENCHMARKS["gsm8k"].sha256,
    }
    assert document["evidence"]["selected"] == []


def printed(table: Table, width: int = 100) -> list[str]:
    console = Console(width=width, file=StringIO(), force_terminal=False, record=True)
    console.print(terminal.to_rich(table))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_the_terminal_shows_scores_with_the_reach_of_their_intervals(table: Table) -> None:
    lines = printed(table)
    assert max(map(len, lines)) <= 100
    trust_region = next(line for line in lines if line.startswith("TRB"))
    assert len(re.findall(r"\d+\.\d ±\d+\.\d", trust_region)) == 3
    veto = next(line for line in lines if line.startswith("Veto"))
    assert veto == "Veto"
    evidence = [line for line in lines if line.startswith("TRB")][1]
    assert evidence.endswith("60  epsilon0=0.05 K=12")


def test_the_terminal_shows_the_papers_table_setup_by_setup() -> None:
    paper = make_table(read_results(ROOT / "tests" / "fixtures" / "paper_results.csv"))
    lines = printed(paper)
    assert max(map(len, lines)) <= 100
    titles = [i for i, line in enumerate(lines) if "←" in line]
    assert [lines[i] for i in titles] == [
        "Qwen3-1.7B-Base ← Qwen3-8B",
        "Qwen3-0.6B-Base ← Qwen3-4B",
    ]
    vanilla = [line.split()[1:] for line in lines if line.startswith("Vanilla")]
    assert vanilla == [
        ["32.3", "69.1", "33.7", "43.0", "8.8", "7.1"],
        ["44.0", "69.9", "53.1", "21.8", "31.1"],
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Fraction(1, 20), "+0.1"),
        (Fraction(-1, 20), "−0.1"),
        (0.04, "0.0"),
        (-0.04, "0.0"),
        (-12.34, "−12.3"),
    ],
)
def test_differences_round_away_from_zero_and_carry_their_sign(
    value: Fraction | float, text: str
) -> None:
    assert signed(value) == text


def test_an_empty_sweep_has_no_second_block(tmp_path: Path, loaded: Loaded) -> None:
    made = results_table(Study(*loaded, tmp_path))
    assert isinstance(made.facts, Facts)
    assert made.facts.rows == ()
    assert "Split-half" not in to_markdown(made)
    assert "Split-half" not in "\n".join(printed(made))


def test_the_command_reports_different_problems_in_one_line(
    tmp_path: Path, loaded: Loaded, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, size in (("vanilla", 3), ("veto", 4)):
        write(
            tmp_path,
            loaded[0],
            units_of(loaded[1], name)[0],
            20,
            {SHORT: [1] * size, LONG: [2] * 3},
        )
    trb_refuses(capsys, "table", QUICKSTART, "--runs", tmp_path)


# --- a benchmark that is added later ---


def test_known_columns_stay_while_an_added_benchmark_is_evaluated(tmp_path: Path) -> None:
    experiment, units = quickstart("evaluation.benchmarks.arithmetic_long=null")
    base, vanilla, veto = (units_of(units, name)[0] for name in ("base_eval", "vanilla", "veto"))
    for unit, correct in ((base, 1), (vanilla, 2), (veto, 3)):
        steps = {0: [correct]} if unit is base else {20: [correct - 1], 60: [correct]}
        write_run(tmp_path, experiment, unit, steps, steps=unit.steps)
    before = results_table(Study(experiment, units, tmp_path))
    wider, same = quickstart()
    assert [unit.id for unit in same] == [unit.id for unit in units]
    made = results_table(Study(wider, units, tmp_path))

    def cells(table: Table, benchmark: str) -> dict[str, str]:
        place = next(i for i, column in enumerate(table.columns) if column.benchmark == benchmark)
        return {row.method: row.cells[place].text for row in table.rows}

    assert cells(made, SHORT) == cells(before, SHORT)
    assert cells(made, SHORT)["vanilla"] == "50.0"
    assert set(cells(made, LONG).values()) == set(cells(made, "avg").values()) == {""}
    assert (
        made.notes[0] == "waiting for Long sums: rows are selected on the other columns until then"
    )
    assert made.verdict.sentences == ()
    for unit, step in ((base, 0), (vanilla, 20), (vanilla, 60), (veto, 20), (veto, 60)):
        write(tmp_path, wider, unit, step, {LONG: [1]})
    full = results_table(Study(wider, units, tmp_path))
    assert cells(full, "avg")["vanilla"] == "37.5"
    assert full.verdict.sentences


def test_a_run_that_falls_after_its_best_step_is_counted_though_a_race_dropped_it(
    tmp_path: Path, loaded: Loaded
) -> None:
    """The last step has one sample a problem, too few to be chosen from, and shows the collapse."""
    experiment, units = loaded
    vanilla, veto = (units_of(units, name)[0] for name in ("vanilla", "veto"))
    write(tmp_path, experiment, units_of(units, "base_eval")[0], 0, draw(1, 0.3))
    for unit in (vanilla, veto):
        write(tmp_path, experiment, unit, 20, draw(2, 0.6))
    write(tmp_path, experiment, vanilla, 40, draw(3, 0.02, 1), 1)
    write(tmp_path, experiment, veto, 40, draw(3, 0.6, 1), 1)
    made = results_table(Study(experiment, units, tmp_path))
    fallen, steady = row_of(made, "vanilla"), row_of(made, "veto")
    assert (fallen.step, steady.step) == (20, 20)
    assert fallen.collapse is not None
    assert (fallen.collapse.collapsed, fallen.collapse.first) == (1, 40)
    assert steady.collapse is not None
    assert (steady.collapse.collapsed, steady.collapse.first) == (0, None)
    assert row_of(made, "base").collapse is None
