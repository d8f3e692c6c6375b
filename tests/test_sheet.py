"""Each writer of a sheet, by hand; numbers are set right and no character is dropped."""

from __future__ import annotations

import io

from rich.console import Console

from orchestrator.sheet import Cell, Sheet, to_csv, to_lines, to_markdown, to_rich

SHEET = Sheet(
    ["Method", "Avg", "Setting"],
    [
        [Cell("TRB"), Cell("56.4", mark="best", reach="2.9*"), Cell("epsilon=0.1")],
        [Cell("Vanilla"), Cell("7.0", mark="second"), Cell("")],
    ],
    left=(0, 2),
)


def test_lines_are_as_wide_as_their_cells() -> None:
    lines = list(to_lines(SHEET))
    assert [line.plain for line in lines] == [
        "Method          Avg  Setting",
        "───────  ──────────  ───────────",
        "TRB      56.4 ±2.9*  epsilon=0.1",
        "Vanilla         7.0",
    ]
    assert SHEET.width() == len(lines[1])
    styles = {lines[2].plain[span.start : span.end]: span.style for span in lines[2].spans}
    assert styles["56.4"] == "bold"
    assert styles[" ±2.9*"] == "dim"


def test_markdown_marks_and_escapes_cells() -> None:
    assert to_markdown(SHEET, escapes={ord("*"): r"\*"}) == [
        "| Method | Avg | Setting |",
        "| --- | ---: | --- |",
        r"| TRB | **56.4** ±2.9\* | epsilon=0.1 |",
        "| Vanilla | <u>7.0</u> |  |",
    ]


def test_aligned_markdown_has_columns_of_one_width() -> None:
    sheet = Sheet.of(["", "p"], [["average", "0.5"], ["a", ""]])
    assert to_markdown(sheet, aligned=True) == [
        "|         |   p |",
        "| ------- | --: |",
        "| average | 0.5 |",
        "| a       |     |",
    ]


def test_columns_that_are_left_keep_their_side() -> None:
    some = SHEET.only([2, 1])
    assert list(some.headings) == ["Setting", "Avg"]
    assert list(some.left) == [0]
    assert [cell.plain for cell in some.rows[0]] == ["epsilon=0.1", "56.4 ±2.9*"]


def test_a_narrow_terminal_breaks_cells_and_drops_nothing() -> None:
    out = io.StringIO()
    sheet = Sheet.of(["key", "problems"], [["[red]abcdefghijklmnop", "1234567"]])
    Console(file=out, width=20).print(to_rich(sheet))
    assert max(map(len, out.getvalue().splitlines())) <= 20
    shown = sorted(out.getvalue().replace("\n", "").replace(" ", ""))
    assert shown == sorted("keyproblems[red]abcdefghijklmnop1234567")


def test_csv_quotes_and_leaves_missing_values_empty() -> None:
    assert to_csv(["a", "b"], [["x,y", None], [1, "z"]]) == 'a,b\n"x,y",\n1,z\n'
