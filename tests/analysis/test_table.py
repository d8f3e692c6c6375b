"""The results table: the paper's own table cell by cell, the rounding and ranking rules, and every
input error.
"""

import csv
import json
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest

from analysis.labels import SETUPS, benchmark_label
from analysis.table.evidence_formats import KINDS
from analysis.table.formats import to_csv, to_json, to_latex, to_markdown
from analysis.table.model import Score, Table, make_table, read_results, round_to_tenths
from orchestrator.data.benchmarks import BENCHMARKS
from orchestrator.experiment.methods import BASE, METHODS, method_label, method_title
from tests.sweeps import ROOT, trb_shows

LABELS = [method_label(key) for key in (*METHODS, BASE)]
PAPER_CSV = ROOT / "tests" / "fixtures" / "paper_results.csv"
HEADER = "method,setup,benchmark,pass_at_1"

# The tabular of the paper's main results table, without its \renewcommand.
PAPER_LATEX = r"""
\begin{tabular}{lcccccc|ccccc}
\toprule
& \multicolumn{6}{c}{Qwen3-1.7B-Base $\leftarrow$ Qwen3-8B} & \multicolumn{5}{c}{Qwen3-0.6B-Base $\leftarrow$ Qwen3-4B} \\
\cmidrule(lr){2-7} \cmidrule(lr){8-12}
\textbf{Method} & \textbf{Avg} & MATH500 & Olympiad & AMC & AIME24 & AIME25 & \textbf{Avg} & GSM8K & MATH500 & Olympiad & AMC \\
\midrule
\textbf{Trust-Region behavior Blending} & \textbf{33.2} & \textbf{69.7} & \textbf{34.3} & \textbf{44.8} & \underline{10.2} & 6.9 & \textbf{44.4} & \textbf{70.1} & \textbf{53.6} & \textbf{22.3} & 31.6 \\
\midrule
\quad Vanilla OPD & 32.3 & 69.1 & 33.7 & 43.0 & 8.8 & \underline{7.1} & 44.0 & \underline{69.9} & \underline{53.1} & 21.8 & 31.1 \\
\quad Veto & 32.6 & \underline{69.4} & 34.0 & 43.1 & 9.3 & \textbf{7.3} & 43.7 & 68.9 & 52.4 & 21.2 & \textbf{32.3} \\
\quad Interleaved teacher injection (SKD) & 32.7 & \underline{69.4} & 33.8 & \underline{44.2} & 9.8 & 6.6 & \underline{44.2} & \textbf{70.1} & 52.8 & \underline{22.2} & 31.5 \\
\quad Temperature warmup & \underline{32.8} & 69.2 & \underline{34.1} & \underline{44.2} & 9.9 & 6.6 & 44.0 & 69.1 & \underline{53.1} & 21.8 & \underline{32.1} \\
\quad SFT warmup & 32.2 & 67.6 & 34.0 & 42.4 & 9.6 & \underline{7.1} & 43.4 & 69.3 & 52.3 & 21.6 & 30.4 \\
\quad Fixed-$\varepsilon$ blending & 32.6 & 69.2 & 33.7 & 43.7 & \textbf{10.3} & 6.2 & 43.8 & 69.8 & 52.7 & 21.5 & 31.1 \\
\bottomrule
\end{tabular}
"""  # noqa: E501

BOOKTABS = "% needs \\usepackage{booktabs}\n"

# The same cells; * is bold, _ is underlined.
PAPER_CELLS = {
    "trust_region": "*33.2 *69.7 *34.3 *44.8 _10.2 6.9 *44.4 *70.1 *53.6 *22.3 31.6",
    "vanilla": "32.3 69.1 33.7 43.0 8.8 _7.1 44.0 _69.9 _53.1 21.8 31.1",
    "veto": "32.6 _69.4 34.0 43.1 9.3 *7.3 43.7 68.9 52.4 21.2 *32.3",
    "skd": "32.7 _69.4 33.8 _44.2 9.8 6.6 _44.2 *70.1 52.8 _22.2 31.5",
    "temperature_warmup": "_32.8 69.2 _34.1 _44.2 9.9 6.6 44.0 69.1 _53.1 21.8 _32.1",
    "sft_warmup": "32.2 67.6 34.0 42.4 9.6 _7.1 43.4 69.3 52.3 21.6 30.4",
    "fixed_epsilon": "32.6 69.2 33.7 43.7 *10.3 6.2 43.8 69.8 52.7 21.5 31.1",
}

MARK_SIGNS = {"best": "*", "second": "_", None: ""}


def marked_cells(table: Table, method: str) -> str:
    """The cells of one row in the notation of PAPER_CELLS; a missing cell is `-`."""
    (row,) = (row for row in table.rows if row.method == method)
    return " ".join(MARK_SIGNS[cell.mark] + (cell.text or "-") for cell in row.cells)


def one_benchmark(**percent: str | None) -> Table:
    """A table of one benchmark with a score per method; its average column equals the benchmark's
    column.
    """
    return make_table(
        Score(method, "arithmetic", "gsm8k", None if text is None else Fraction(text))
        for method, text in percent.items()
    )


def last_column(table: Table) -> list[str]:
    return [MARK_SIGNS[row.cells[-1].mark] + (row.cells[-1].text or "-") for row in table.rows]


def write_csv(folder: Path, rows: Sequence[str], header: str = HEADER) -> Path:
    path = folder / "results.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def read_table(folder: Path, rows: Sequence[str]) -> Table:
    return make_table(read_results(write_csv(folder, rows)))


# --- the paper's table ---


def test_the_papers_latex_comes_out_verbatim() -> None:
    assert to_latex(make_table(read_results(PAPER_CSV))) == BOOKTABS + PAPER_LATEX.lstrip()


def test_the_command_prints_the_papers_latex(capsys: pytest.CaptureFixture[str]) -> None:
    shown = trb_shows(capsys, "table", "--results", PAPER_CSV, "--format", "tex")
    assert shown == BOOKTABS + PAPER_LATEX.lstrip()


def test_every_cell_of_the_paper_has_its_number_and_mark() -> None:
    table = make_table(read_results(PAPER_CSV))
    assert {row.method: marked_cells(table, row.method) for row in table.rows} == PAPER_CELLS
    assert [row.method for row in table.rows] == list(PAPER_CELLS)


def test_the_papers_markdown_has_the_same_cells_under_two_headings() -> None:
    lines = to_markdown(make_table(read_results(PAPER_CSV))).splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert rows[0] == ["", SETUPS["qwen3-1.7b"], *[""] * 5, SETUPS["qwen3-0.6b"], *[""] * 4]
    assert " ".join(rows[2]) == (
        "**Method** **Avg** MATH500 Olympiad AMC AIME24 AIME25 **Avg** GSM8K MATH500 Olympiad AMC"
    )
    for (label, *cells), expected in zip(rows[3:], PAPER_CELLS.values(), strict=True):
        assert label.strip("*") in LABELS
        assert cells == [
            re.sub(r"^_(.*)", r"<u>\1</u>", re.sub(r"^\*(.*)", r"**\1**", cell))
            for cell in expected.split()
        ]
    assert lines[3].startswith("| **TRB** | **33.2** |")


def test_two_printed_averages_of_the_paper_need_their_override() -> None:
    computed = make_table(score for score in read_results(PAPER_CSV) if score.benchmark != "avg")
    differing = {
        (row.method, column.setup, cell.text)
        for row in computed.rows
        for column, cell, printed in zip(
            computed.columns, row.cells, PAPER_CELLS[row.method].split(), strict=True
        )
        if cell.text != printed.strip("*_")
    }
    assert differing == {("skd", "qwen3-1.7b", "32.8"), ("sft_warmup", "qwen3-1.7b", "32.1")}


# --- rounding, averages, ranks ---


@pytest.mark.parametrize(
    ("value", "tenths"),
    [
        ("0.05", 1),
        ("0.049999999999999999999", 0),
        ("32.25", 323),
        ("2.675", 27),
        ("1/3", 3),
        ("99.95", 1000),
        ("0", 0),
    ],
)
def test_the_exact_half_rounds_up(value: str, tenths: int) -> None:
    assert round_to_tenths(Fraction(value)) == tenths


def test_a_csv_half_rounds_up_where_a_binary_float_would_not(tmp_path: Path) -> None:
    table = read_table(tmp_path, ["veto,arithmetic,gsm8k,0.0005", "skd,arithmetic,gsm8k,0.3225"])
    assert last_column(table) == ["_0.1", "*32.3"]


def test_the_average_is_the_exact_unweighted_mean() -> None:
    counts = [("gsm8k", Fraction(100, 3)), ("math500", Fraction(200, 3)), ("amc23", Fraction(10))]
    table = make_table(Score("veto", "arithmetic", name, value) for name, value in counts)
    assert table.rows[0].cells[0].value == Fraction(110, 3)
    assert [column.benchmark for column in table.columns] == ["avg", "gsm8k", "math500", "amc23"]


def test_an_average_lacking_a_benchmark_is_missing_unless_given() -> None:
    scores = [
        Score("veto", "arithmetic", "gsm8k", Fraction(10)),
        Score("veto", "arithmetic", "amc23", Fraction(20)),
        Score("skd", "arithmetic", "gsm8k", Fraction(30)),
        Score("sft_warmup", "arithmetic", "gsm8k", None),
        Score("sft_warmup", "arithmetic", "avg", Fraction(5)),
    ]
    table = make_table(scores)
    assert marked_cells(table, "veto") == "*15.0 _10.0 *20.0"
    assert marked_cells(table, "skd") == "- *30.0 -"
    assert marked_cells(table, "sft_warmup") == "_5.0 - -"


def test_an_empty_average_row_leaves_the_computed_mean(tmp_path: Path) -> None:
    table = read_table(tmp_path, ["veto,arithmetic,avg,", "veto,arithmetic,gsm8k,12"])
    assert marked_cells(table, "veto") == "*12.0 *12.0"


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        (["50", "40", "30"], ["*50.0", "_40.0", "30.0"]),
        (["50", "50", "40", "40", "30"], ["*50.0", "*50.0", "_40.0", "_40.0", "30.0"]),
        (["40.04", "39.95", "39.94"], ["*40.0", "*40.0", "_39.9"]),
        (["50", "50"], ["*50.0", "*50.0"]),
        (["50"], ["*50.0"]),
        ([None, "50", None], ["-", "*50.0", "-"]),
        ([None, "0"], ["-", "*0.0"]),
        ([None], ["-"]),
    ],
)
def test_ranks_come_after_rounding_and_ties_share(
    scores: list[str | None], expected: list[str]
) -> None:
    assert (
        last_column(one_benchmark(**dict(zip([*METHODS, BASE], scores, strict=False)))) == expected
    )


def test_the_untrained_student_comes_last_and_unranked() -> None:
    table = one_benchmark(base="90", mine="60", veto="50", trust_region="40")
    assert [row.method for row in table.rows] == ["trust_region", "veto", "mine", "base"]
    assert last_column(table) == ["40.0", "_50.0", "*60.0", "90.0"]
    assert to_latex(table).splitlines()[-4:-1] == [
        r"\midrule",
        r"\quad Untrained student & 90.0 & 90.0 \\",
        r"\bottomrule",
    ]


# --- reading ---


def test_names_may_be_keys_or_labels(tmp_path: Path) -> None:
    rows = [
        "Fixed-ε blending,Qwen3-1.7B-Base ← Qwen3-8B,OLYMPIAD,0.5",
        "Veto,qwen3-1.7b,aMc,0.25",
        "new,s,b,1",
    ]
    assert read_results(write_csv(tmp_path, rows)) == [
        Score("fixed_epsilon", "qwen3-1.7b", "olympiadbench_674", Fraction(50)),
        Score("veto", "qwen3-1.7b", "amc23", Fraction(25)),
        Score("new", "s", "b", Fraction(100)),
    ]


def test_one_value_above_one_makes_the_file_percent(tmp_path: Path) -> None:
    fractions = read_results(write_csv(tmp_path, ["veto,s,a,1", "veto,s,b,0.5", "veto,s,c,"]))
    percent = read_results(write_csv(tmp_path, ["veto,s,a,1.1", "veto,s,b,0.5", "veto,s,c,"]))
    assert [score.value for score in fractions] == [100, 50, None]
    assert [score.value for score in percent] == [Fraction(11, 10), Fraction(1, 2), None]


def test_byte_order_mark_column_order_and_blank_lines_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text(
        "\ufeffpass_at_1, method,setup,benchmark\r\n\r\n 5e1 ,veto,s,gsm8k\r\n", encoding="utf-8"
    )
    assert read_results(path) == [Score("veto", "s", "gsm8k", Fraction(50))]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": has no column method: expected a UTF-8 CSV file with header method,"),
        (f"{HEADER}\n", ": has no rows below its header"),
        ("method,setup,pass_at_1\n", ": has no column benchmark"),
        (f"{HEADER}\nveto,s,b,69,7\n", ":2: 5 values in 'veto,s,b,69,7': expected 4"),
        (f"{HEADER}\n,s,b,1\n", ":2: column method: '': expected a key or label"),
        (f"{HEADER}\nveto,s,b,69.7%\n", ":2: column pass_at_1: '69.7%': expected percent from 0"),
        (f"{HEADER}\nveto,s,b,nan\n", ":2: column pass_at_1: 'nan': expected percent from 0"),
        (f"{HEADER}\nveto,s,b,100.1\n", ":2: column pass_at_1: '100.1': expected percent"),
        (
            f"{HEADER}\nveto,s,amc,1\n\nVeto,s,AMC23,2\n",
            ":4: 'veto,s,amc23': expected every row once",
        ),
    ],
)
def test_bad_input_is_told_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "results.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(f"{path}{message}")) as error:
        read_results(path)
    assert "\n" not in str(error.value)


def test_unreadable_files_are_told_in_one_line(tmp_path: Path) -> None:
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "absent.csv", tmp_path, binary):
        with pytest.raises(ValueError, match=re.escape(f"{path}: cannot be read (")) as error:
            read_results(path)
        assert "expected a UTF-8 CSV file" in str(error.value)


# --- writing ---


def rendered(table: Table) -> tuple[str, str, str]:
    return to_markdown(table), to_latex(table), to_csv(table)


@pytest.mark.parametrize(
    "scores",
    [
        read_results(PAPER_CSV),
        [
            Score("base", "arithmetic", "arithmetic_long", Fraction(200, 3)),
            Score("mine, & co", "new setup", "b", None),
            Score("veto", "arithmetic", "arithmetic_short", Fraction(100, 3)),
            Score("veto", "arithmetic", "arithmetic_long", Fraction(100, 7)),
        ],
        # Percentages that never exceed 1 would read as fractions.
        [Score("veto", "s", "gsm8k", Fraction(7, 10)), Score("skd", "s", "gsm8k", Fraction(1))],
        [Score("veto", "s", "gsm8k", Fraction(104, 100)), Score("skd", "s", "gsm8k", Fraction(0))],
        [Score("veto", "s", "gsm8k", Fraction(0)), Score("skd", "s", "amc23", None)],
    ],
)
def test_the_csv_reads_back_as_the_same_table(tmp_path: Path, scores: list[Score]) -> None:
    table = make_table(scores)
    path = tmp_path / "table.csv"
    path.write_text(to_csv(table), encoding="utf-8")
    assert rendered(make_table(read_results(path))) == rendered(table)


def test_the_csv_is_percent_with_one_decimal_averages_first() -> None:
    scores = [
        Score("veto", "s", "gsm8k", Fraction(200, 3)),
        Score("veto", "s", "amc23", Fraction(5)),
    ]
    assert list(csv.reader(to_csv(make_table(scores)).splitlines())) == [
        HEADER.split(","),
        ["veto", "s", "avg", "35.8"],
        ["veto", "s", "gsm8k", "66.7"],
        ["veto", "s", "amc23", "5.0"],
    ]


def test_missing_cells_are_empty_and_null() -> None:
    table = one_benchmark(veto=None)
    assert to_markdown(table).splitlines()[-1] == "| Veto |  |  |"
    assert r"\quad Veto &  &  \\" in to_latex(table)
    assert to_csv(table).splitlines()[1:] == ["veto,arithmetic,avg,", "veto,arithmetic,gsm8k,"]
    (row,) = json.loads(to_json(table))["rows"]
    assert row["cells"] == [{"value": None, "text": "", "mark": None}] * 2


def test_json_holds_values_before_rounding_with_text_and_mark() -> None:
    table = make_table(
        [Score("skd", "arithmetic", "arithmetic_long", Fraction(200, 3))],
        notes=["partial: 3 of 10"],
    )
    cell = {"value": 200 / 3, "text": "66.7", "mark": "best"}
    assert json.loads(to_json(table)) == {
        "columns": [
            {"setup": "arithmetic", "benchmark": "avg", "label": "Avg"},
            {"setup": "arithmetic", "benchmark": "arithmetic_long", "label": "Long sums"},
        ],
        "rows": [
            {"method": "skd", "label": "SKD", "title": method_title("skd"), "cells": [cell, cell]}
        ],
        "notes": ["partial: 3 of 10"],
        "evidence": {kind: [] for kind in KINDS},
        "benchmarks": [],
        "bootstrap": None,
        "caption": [],
        "verdict": [],
        "caveats": [],
        "advice": None,
    }


def test_notes_go_under_markdown_and_into_latex_comments() -> None:
    scores = [Score("veto", "s", "gsm8k", Fraction(1))]
    table = make_table(scores, notes=["partial: 3 of 10 units done", "two\nlines"])
    assert to_markdown(table).endswith(" |\n\npartial: 3 of 10 units done\n\ntwo lines\n")
    assert to_latex(table).startswith(
        BOOKTABS + "% partial: 3 of 10 units done\n% two lines\n\\begin{tabular}"
    )


def test_latex_text_is_escaped() -> None:
    table = make_table([Score(r"a_b & 50% ε", "x ← #1", r"{\k}~^$", Fraction(50))])
    latex = to_latex(table)
    assert r"\quad \textbf{a\_b \& 50\% $\varepsilon$} & \textbf{50.0}" in latex
    assert r"\multicolumn{2}{c}{x $\leftarrow$ \#1}" in latex
    assert r"& \{\textbackslash{}k\}\textasciitilde{}\textasciicircum{}\$ \\" in latex


def test_markdown_text_cannot_break_the_table() -> None:
    table = make_table([Score("a|b", "x\ny", "<c>*", Fraction(50))])
    assert to_markdown(table).splitlines()[0] == "|  | x y |  |"
    assert r"| **Avg** | \<c>\* |" in to_markdown(table)
    assert r"| **a\|b** | **50.0** |" in to_markdown(table)


def test_a_table_without_scores_still_renders() -> None:
    table = make_table([])
    assert to_csv(table) == f"{HEADER}\n"
    assert "multicolumn" not in to_latex(table)
    assert "cmidrule" not in to_latex(table)
    nothing: dict[str, object] = {
        key: []
        for key in (
            "columns",
            "rows",
            "notes",
            "benchmarks",
            "caption",
            "verdict",
            "caveats",
        )
    }
    nothing |= {"evidence": {kind: [] for kind in KINDS}}
    nothing |= {"bootstrap": None, "advice": None}
    assert json.loads(to_json(table)) == nothing


def test_latex_without_the_trust_region_row_has_one_rule_above_the_rivals() -> None:
    assert to_latex(one_benchmark(veto="1")).count(r"\midrule") == 1


def test_benchmarks_with_one_label_in_a_setup_keep_their_keys() -> None:
    scores = [Score("veto", "s", name, Fraction(1)) for name in ("amc23", "amc22_23", "gsm8k")]
    assert [column.label for column in make_table(scores).columns] == [
        "Avg",
        "amc23",
        "amc22_23",
        "GSM8K",
    ]


def test_every_label_reads_back_to_a_benchmark_of_that_label(tmp_path: Path) -> None:
    for key, benchmark in BENCHMARKS.items():
        by_key, by_label = read_results(
            write_csv(tmp_path, [f"veto,s,{key},1", f"skd,s,{benchmark.label},1"])
        )
        assert by_key.benchmark == key
        assert benchmark_label(by_label.benchmark) == benchmark.label


def test_a_long_file_is_a_table(tmp_path: Path) -> None:
    """Time that grew with the square of the rows took minutes."""
    assert len(read_table(tmp_path, [f"m{i},s,gsm8k,0.5" for i in range(30_000)]).rows) == 30_000
    assert (
        len(read_table(tmp_path, [f"veto,s{i},gsm8k,0.5" for i in range(30_000)]).columns) == 60_000
    )


def test_names_are_bold_only_where_every_average_is_the_best() -> None:
    scores = [
        ("trust_region", "a", 50),
        ("veto", "a", 60),
        ("trust_region", "b", 70),
        ("veto", "b", 60),
    ]
    split = make_table(
        Score(method, setup, "gsm8k", Fraction(value)) for method, setup, value in scores
    )
    assert "**TRB**" not in to_markdown(split)
    assert "**Veto**" not in to_markdown(split)
    won = make_table(
        Score(method, setup, "gsm8k", Fraction(value)) for method, setup, value in scores[:2]
    )
    assert "| **Veto** | **60.0** |" in to_markdown(won)
    assert r"\quad \textbf{Veto} & \textbf{60.0}" in to_latex(won)
    assert "\nTrust-Region behavior Blending & " in to_latex(won)
