"""What every form of the results says of 1, 2, 3 and 5 seeds, and that no character of a setting is
ever dropped.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cached_property
from html import unescape
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from analysis.facts.evidence import Advice, Verdict
from analysis.facts.facts import facts
from analysis.facts.verdict import explanation, headline, more_seeds, verdict
from analysis.report.page import build_page
from analysis.table import compare, terminal
from analysis.table.formats import FORMATS
from analysis.table.model import Table, results_table
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import expand
from orchestrator.selection.study import Study
from tests.analysis.test_evidence import draw, write
from tests.fake_runs import (
    QUICKSTART,
    SHIPPED,
    quickstart,
    quickstart_study,
    units_of,
    write_run,
)
from tests.sweeps import ROOT, environment, trb_here, trb_shows

# Methods with their mean pass rates; SFT warmup is far ahead, SKD level with vanilla.
RATES = {"vanilla": 0.45, "skd": 0.45, "sft_warmup": 0.8}


@dataclass(frozen=True)
class Sweep:
    """A made-up sweep with its run directories and its table."""

    study: Study
    table: Table

    @cached_property
    def page(self) -> str:
        """The report."""
        return build_page(facts(self.study), self.study.runs / "report.html")

    @property
    def overrides(self) -> list[str]:
        return [word for word in self.study.invocation.words if "=" in word]


def sweep(runs: Path, seeds: int, *overrides: str) -> Sweep:
    study = quickstart_study(runs, f"seeds=[{','.join(map(str, range(seeds)))}]", *overrides)
    experiment, units = study.experiment, list(study.units)
    write_run(runs, experiment, units_of(units, "base_eval")[0], {})
    write(runs, experiment, units_of(units, "base_eval")[0], 0, draw(9, 0.2))
    generator = np.random.default_rng(seeds)
    for method, rate in RATES.items():
        for unit in units_of(units, method)[: len(experiment.seeds_of(method))]:
            write_run(runs, experiment, unit, {})
            write(runs, experiment, unit, 20, draw(int(generator.integers(10**6)), rate))
    return Sweep(study, results_table(study))


@pytest.fixture(scope="module", params=[1, 2, 3, 5])
def several(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, Sweep]:
    return request.param, sweep(tmp_path_factory.mktemp("runs"), request.param)


def on_terminal(table: Table, width: int) -> str:
    console = Console(width=width, file=StringIO(), force_terminal=False)
    console.print(terminal.to_rich(table), crop=False)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def flat(text: str) -> str:
    """Text without line breaks, escapes and marks."""
    return re.sub(r"\s+", " ", re.sub(r"\n% ?|[*\\`]", " ", text)).replace("( ", "(")


# --- every form, with 1, 2, 3 and 5 seeds ---


@pytest.mark.parametrize("form", ["60", "80", "140", "md", "tex", "json", "report"])
def test_the_text_forms_name_what_the_intervals_are_over_and_end_in_the_verdict(
    several: tuple[int, Sweep], form: str
) -> None:
    count, found = several
    if form == "report":
        # Scripts compare methods of any number of seeds, and hold the words for each.
        body = re.sub(
            r"<script.*?</script>", " ", found.page.partition("<body>")[2], flags=re.DOTALL
        )
        text = unescape(re.sub(r"<[^>]+>", " ", body))
    else:
        text = on_terminal(found.table, int(form)) if form.isdigit() else FORMATS[form](found.table)
    text = flat(text)
    if count == 1:
        assert (
            "bootstrap over the problems of one training run each; another seed moves Avg" in text
        )
        assert "No method can be called better: one seed." in text
        if form == "json":
            assert json.loads(FORMATS["json"](found.table))["advice"]["trials"] == 32
        else:
            assert "5 seeds for every method, 32 more trials: trb submit" in text
            assert "'seeds=[0,1,2,3,4]'" in text
        assert "t interval" not in text
        assert not re.search(r"\bp(:| [=<|]|_value\": [0-9])", text)
    else:
        assert f"95 % t interval over {count} seeds" in text
        assert "from each method's own runs. It does not cover the choice of problems." in text
        assert ("few seeds" in text) == (count < 5)
        gap, by = r"\S+ \[\S+ \S+\], p", r"\(by permutation \S+\)"
        assert re.search(
            rf"SFT warmup − Vanilla: {gap} \S+ \S+ {by}, {count} seeds: SFT warmup is better\.",
            text,
        )
        assert re.search(
            rf"SKD − Vanilla: {gap} = \S+ {by}, {count} seeds: no difference shown\.", text
        )
        assert "(1 seed)" not in text
        assert "corrected for the number of methods by Dunnett's test with the variance of" in text
    if form not in ("json", "report"):
        assert ("(1 seed)" in text) == (count == 1)
        assert (
            "problems only" in text
        )  # with one seed every difference, else that of the untrained student
    lines = FORMATS["md"](found.table).splitlines()
    advice = found.table.verdict.advice
    if advice is None:
        assert lines[-1] == f"**{found.table.verdict.sentences[-1].replace('<', chr(92) + '<')}**"
    else:
        assert lines[-5:] == [advice.reason, "", "```", advice.command, "```"]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_command_stands_alone_on_one_line_of_any_terminal(tmp_path: Path, width: int) -> None:
    made = sweep(tmp_path, 1)
    assert made.table.verdict.advice is not None
    assert on_terminal(made.table, width).splitlines()[-1] == made.table.verdict.advice.command


def test_the_report_opens_with_the_verdict(several: tuple[int, Sweep]) -> None:
    _, found = several
    assert found.table.facts is not None
    head = unescape(found.page.partition("</h1>")[2]).lstrip()
    assert head.startswith(f'<p class="verdict">{headline(found.table.facts)}</p>')
    assert all(sentence in head for sentence in found.table.verdict.sentences)


def test_the_headline_groups_methods_by_what_was_shown(several: tuple[int, Sweep]) -> None:
    count, found = several
    assert found.table.facts is not None
    shown = "Better than Vanilla: SFT warmup; no difference shown: SKD."
    one_seed = "No method can be called better: one seed."
    assert headline(found.table.facts) == (one_seed if count == 1 else shown)


def test_numbers_of_csv_and_json(several: tuple[int, Sweep]) -> None:
    count, found = several
    rows = {
        (r["method"], r["benchmark"]): r
        for r in csv.DictReader(StringIO(FORMATS["csv"](found.table)))
    }
    document = json.loads(FORMATS["json"](found.table))
    evidence = {}
    for record in document["evidence"]["selected"]:
        evidence[record["method"], record["benchmark"]] = record
    for method in ("skd", "sft_warmup"):
        record, row = evidence[method, "avg"], rows[method, "avg"]
        over = "problems" if count == 1 else "seeds"
        for each in (record, row):
            assert each["interval_over"] == each["minus_vanilla_over"] == over
        assert row["seeds"] == str(count) == str(record["seeds"])
        assert row["outcome"] == record["outcome"] == ("one seed" if count == 1 else "tested")
        assert (record["p_value"] is None) == (row["p_value"] == "") == (count == 1)
    base = evidence["base", "avg"]
    assert (base["p_value"], base["minus_vanilla_over"]) == (None, "problems")
    permutation = evidence["skd", "avg"]["p_value_permutation"]
    assert (permutation is None) == (count == 1)


@pytest.mark.parametrize("form", ["md", "csv", "json"])
def test_a_comparison_says_the_same(several: tuple[int, Sweep], form: str) -> None:
    count, found = several
    compared = compare.compare(found.study, "SFT warmup,vanilla")
    text = compare.FORMATS[form](compared)
    judged = compare.verdict_of(compared)
    (said,), advice = judged.sentences, judged.advice
    if form == "csv":
        for row in csv.DictReader(StringIO(text)):
            assert (row["p_value"] == "") == (count == 1)
            assert row["difference_over"] == ("problems" if count == 1 else "seeds")
            assert row["first_seeds"] == row["second_seeds"] == str(count)
    elif form == "json":
        document = json.loads(text)
        assert document["verdict"] == [said]
        for record in document["comparisons"]:
            assert (record["p_value"] is None) == (count == 1)
    else:
        assert f"\n**{said}**\n" in text
        assert ("(1 seed)" in text) == ("problems only" in text) == (count == 1)
        assert bool(re.search(r"\| +p \|", text)) == (count > 1)
    if count == 1:
        assert said == "Neither method can be called better: one seed."
        assert advice is not None
        assert advice.trials == 2 * 4, "the other methods need no seeds for this pair"
        assert advice.command.endswith(" --methods vanilla,sft_warmup 'seeds=[0,1,2,3,4]'")
    else:
        assert said.startswith("SFT warmup − Vanilla: +")
        assert said.endswith(f", {count} seeds: SFT warmup is better.")
        assert advice is None


def test_the_csv_command_says_the_verdict_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = sweep(tmp_path, 1)
    for arguments in ([], ["--compare", "skd,vanilla"]):
        asked = ["table", QUICKSTART, *made.overrides, "--runs", tmp_path, "--format", "csv"]
        code, out, err = trb_here(capsys, *asked, *arguments)
        assert code == 0
        assert "can be called better: one seed.\n5 seeds for every method, " in err
        assert err.splitlines()[-1].startswith("trb submit ")
        assert "better" not in out


# --- seeds that methods do not share, and spreads of nothing ---


def test_methods_of_one_seed_stay_unjudged_beside_others(tmp_path: Path) -> None:
    own = [f"methods.{method}.seeds=[0,1,2]" for method in ("vanilla", "sft_warmup")]
    study = quickstart_study(tmp_path, *own)
    experiment, units = study.experiment, list(study.units)
    for method, rate in RATES.items():
        for place, unit in enumerate(units_of(units, method)[: len(experiment.seeds_of(method))]):
            write(tmp_path, experiment, unit, 20, draw(place, rate))
    table = results_table(study)
    first, second = table.verdict.sentences
    assert first.startswith("SFT warmup − Vanilla: +")
    assert re.fullmatch(r"Not tested, with one seed each: SKD \S+ against Vanilla\.", second)
    trials = 8 * 5 - (8 + 2 * 2)
    command = f"trb submit {QUICKSTART} evaluation.rescore=false"
    for key in ("seeds", "methods.vanilla.seeds", "methods.sft_warmup.seeds"):
        command += f" '{key}=[0,1,2,3,4]'"
    assert table.verdict.advice == Advice(command, trials)
    text = flat(on_terminal(table, 100))
    assert "and [ ] of one seed: 95 % bootstrap" in text
    assert "t interval over 3 seeds" in text
    assert "few seeds" in text
    assert table.facts is not None
    narrow = on_terminal(table, 60).splitlines()
    start = narrow.index(next(line for line in narrow if line.startswith("± and [ ]: ")))
    terms = [line for line in narrow[start : narrow.index("", start)] if line[:2] != "  "]
    assert len(terms) == len(explanation(table.facts)), (
        "a list, each item with its term at the left"
    )


def test_equal_seeds_leave_no_p_and_say_why(tmp_path: Path) -> None:
    experiment, units = quickstart("seeds=[0,1]")
    for method, rate in RATES.items():
        for unit in units_of(units, method)[:2]:
            write(tmp_path, experiment, unit, 20, draw(1, rate))
    table = results_table(Study(experiment, units, tmp_path))
    assert table.facts is not None
    gap = next(row for row in table.facts.rows if row.method == "skd").columns["avg"].difference
    assert gap is not None
    assert (gap.p_value, gap.estimate.over) == (None, "problems")
    listed = [line for line in FORMATS["md"](table).splitlines() if line.startswith("- ")]
    assert len(listed) == len(explanation(table.facts)), "a list of what the columns mean"
    text = flat(FORMATS["md"](table))
    assert "(equal seeds)" in text
    assert "Where no two seeds of a method differ, no spread between seeds can be told" in text
    assert "nan" not in text


def test_without_vanilla_or_rivals_nothing_is_judged(tmp_path: Path) -> None:
    study = quickstart_study(tmp_path, "seeds=[0,1]")
    experiment, units = study.experiment, list(study.units)
    for method in ("skd", "sft_warmup"):
        for unit in units_of(units, method)[:2]:
            write(tmp_path, experiment, unit, 20, draw(unit.seed, 0.5))
    table = results_table(study)
    said = "Vanilla has no scores to compare with; trb table --compare compares any two methods."
    assert table.verdict == Verdict((said,))
    assert table.facts is not None
    lone = replace(table.facts, rows=table.facts.rows[:1])
    assert verdict(lone) == Verdict()


@pytest.mark.parametrize(
    ("overrides", "words", "more"),
    [
        ([], "'seeds=[0,1,2,3,4]'", 32),
        (["seeds=[7]"], "'seeds=[7,0,1,2,3]'", 32),
        (["seeds=[0,1,2,3,4,5]"], "'seeds=[0,1,2,3,4,5]'", 0),
        (
            ["methods.vanilla.seeds=[0,9]", "training.steps=4"],
            "training.steps=4 'seeds=[0,9,1,2,3]' 'methods.vanilla.seeds=[0,9,1,2,3]'",
            31,
        ),
    ],
)
def test_the_advice_is_the_command_for_five_seeds(
    overrides: list[str], words: str, more: int
) -> None:
    study = quickstart_study(Path("runs"), *overrides)
    trials = len([unit for unit in study.units if unit.kind == "trial"])
    assert more_seeds(study) == Advice(
        f"trb submit {QUICKSTART} evaluation.rescore=false {words}", more
    )
    chosen = re.findall(r"'([a-z_.]*seeds=[^']+)'", words)
    wider = quickstart(*[word for word in overrides if "seeds" not in word], *chosen)[1]
    assert len([unit for unit in wider if unit.kind == "trial"]) - trials == more


# --- terminals and pipes of any width ---


@pytest.mark.parametrize("width", [40, 60, 80, 96, 100, 120, 160])
@pytest.mark.parametrize("seeds", [1, 3])
def test_no_character_is_dropped_at_any_width(tmp_path: Path, width: int, seeds: int) -> None:
    experiment, units = quickstart(f"seeds=[{','.join(map(str, range(seeds)))}]")
    settings = {}
    for unit in units:
        if unit.kind == "trial":
            write(tmp_path, experiment, unit, 20, draw(len(unit.id) + unit.seed, 0.5))
    table = results_table(Study(experiment, units, tmp_path))
    assert table.facts is not None
    settings = {row.setting for row in table.facts.rows if row.setting}
    assert {"epsilon=0.01", "tau0=0.8 E=15", "beta_start=0.4"} <= settings
    text = on_terminal(table, width)
    assert "…" not in text
    assert (
        max(len(line) for line in text.splitlines() if not line.startswith("trb submit ")) <= width
    )
    for row in table.facts.rows:
        for word in row.setting.split():
            assert re.search(rf"(^|\s){re.escape(word)}([;\s]|$)", text, re.M), (
                f"{word} at {width} columns"
            )
    for row in table.rows:
        for cell in row.cells:
            assert cell.text in text


def test_a_pipe_has_whole_settings_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = sweep(tmp_path, 1)
    asked = ["table", QUICKSTART, *made.overrides, "--runs", tmp_path, "--format", "text"]
    text = trb_shows(capsys, *asked)
    assert re.search(r"^ +K=15 tau_T=0\.6;", text, re.M)
    assert max(len(line) for line in text.splitlines() if not line.startswith("trb submit ")) <= 80


def test_markdown_is_the_default_where_output_is_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = sweep(tmp_path, 1)
    shown = trb_shows(capsys, "table", QUICKSTART, *made.overrides, "--runs", tmp_path)
    assert shown.startswith("|  | Arithmetic |")


@pytest.mark.parametrize(
    "command",
    [["table"], ["table", "--compare", "skd,vanilla"], ["figures", "--out", "x"], ["report"]],
)
def test_a_runs_folder_that_does_not_exist_is_said(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [command[0], QUICKSTART, "--runs", tmp_path / "nowhere", *command[1:]]
    code, _, err = trb_here(capsys, *asked)
    assert code == 1
    assert err.startswith(
        f"runs: {tmp_path / 'nowhere'} (does not exist; trb submit {QUICKSTART} makes it"
    )
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("form", ["text", "md"])
def test_a_terminal_that_knows_only_ascii_gets_its_table(form: str) -> None:
    paper = ROOT / "tests" / "fixtures" / "paper_results.csv"
    code = f"from orchestrator.cli import main; main({['table', '--results', str(paper), '--format', form]!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        cwd=ROOT,
        env=environment() | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Qwen3-1.7B-Base ? Qwen3-8B" in done.stdout


def test_setups_too_wide_for_a_page_have_a_tabular_each(tmp_path: Path) -> None:
    experiment = load_experiment(SHIPPED / "paper.yaml", [])
    made = results_table(Study(experiment, expand(experiment), tmp_path))
    text = FORMATS["tex"](made)
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2
    assert text.startswith("% needs \\usepackage{booktabs}\n")
