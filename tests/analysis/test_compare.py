"""`trb table --compare`: two methods on the same problems."""

from __future__ import annotations

import csv
import json
from io import StringIO
from pathlib import Path

import pytest

from analysis.table.compare import compare, to_csv, to_json, to_markdown
from orchestrator.config import Experiment
from orchestrator.errors import UserError
from orchestrator.experiment.units import Unit
from orchestrator.selection.study import Study
from tests.analysis.test_evidence import LONG, SHORT, draw, write
from tests.fake_runs import QUICKSTART, quickstart, units_of
from tests.sweeps import trb_refuses, trb_shows

Loaded = tuple[Experiment, list[Unit]]


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return quickstart()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, loaded: Loaded) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, rate in (("vanilla", 0.4), ("skd", 0.7)):
        write(folder, loaded[0], units_of(loaded[1], name)[0], 20, draw(len(name), rate))
    return folder


def test_a_clear_difference(loaded: Loaded, runs: Path) -> None:
    (found,) = compare(Study(*loaded, runs), "skd,vanilla")
    assert list(found.columns) == ["avg", SHORT, LONG]
    for gap in found.columns.values():
        assert gap is not None
        assert 0 < gap.estimate.interval.low < gap.estimate.value < gap.estimate.interval.high
        assert gap.p_value is None  # one seed


def test_the_other_way_round_is_the_negative(loaded: Loaded, runs: Path) -> None:
    (one,), (other,) = (
        compare(Study(*loaded, runs), "skd,vanilla"),
        compare(Study(*loaded, runs), "Vanilla OPD, SKD"),
    )
    assert other.methods == ("vanilla", "skd")
    for key, gap in one.columns.items():
        back = other.columns[key]
        assert gap is not None
        assert back is not None
        assert back.estimate.value == -gap.estimate.value
        assert back.estimate.interval.low == pytest.approx(-gap.estimate.interval.high)
        assert back.p_value == gap.p_value


def test_a_method_without_scores_leaves_empty_cells(loaded: Loaded, runs: Path) -> None:
    comparisons = compare(Study(*loaded, runs), "veto,vanilla")
    text = to_markdown(comparisons)
    assert "Veto (no scores yet) − Vanilla step 20" in text
    cells = [cell.strip() for cell in text.splitlines()[4].strip("|").split("|")]
    assert cells[:2] + cells[3:] == ["Avg", "", "", ""]
    assert cells[2]
    rows = list(csv.DictReader(StringIO(to_csv(comparisons))))
    assert [row["first_score"] + row["difference"] + row["p_value"] for row in rows] == ["", "", ""]
    for record in json.loads(to_json(comparisons))["comparisons"]:
        assert (record["first"], record["first_units"], record["difference"]) == (
            "veto",
            None,
            None,
        )


def test_formats_tell_the_same(
    loaded: Loaded, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = {}
    for name in ("md", "csv", "json"):
        asked = ["table", QUICKSTART, "--runs", runs, "--compare", "skd,vanilla", "--format", name]
        outputs[name] = trb_shows(capsys, *asked)
    average = next(csv.DictReader(StringIO(outputs["csv"])))
    record = json.loads(outputs["json"])["comparisons"][0]
    assert set(average) == set(record)
    assert [average[name] for name in ("setup", "benchmark", "first", "second")] == [
        *("arithmetic", "avg", "skd", "vanilla")
    ]
    assert average["difference"] == f"{record['difference']:.2f}"
    assert record["outcome"] == "one seed"
    line = next(line for line in outputs["md"].splitlines() if line.startswith("| Avg"))
    assert f"+{record['difference']:.1f} (1 seed)" in line
    assert line.rstrip(" |").endswith("] problems only")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--compare", "skd"], "--compare: 'skd': expected two different methods, FIRST,SECOND"),
        (["--compare", "skd,Interleaved teacher injection (SKD)"], "two different methods"),
        (["--compare", "skd,vanila"], "--compare: 'vanila': expected one of Vanilla, "),
        (
            ["--compare", "skd,vanilla", "--format", "tex"],
            "--format: 'tex': expected one of text, md, csv, json with",
        ),
        (
            ["methods.skd=null", "--compare", "skd,vanilla"],
            "--compare: 'skd': expected one of Vanilla, ",
        ),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in trb_refuses(capsys, "table", QUICKSTART, *arguments, "--runs", runs)


def test_numbers_from_a_file_cannot_be_compared(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["table", "--results", "results.csv", "--compare", "skd,vanilla"]
    assert "--compare: 'skd,vanilla': expected EXP.yaml" in trb_refuses(capsys, *asked)


def test_different_problems_cannot_be_compared(tmp_path: Path, loaded: Loaded) -> None:
    for name, size in (("vanilla", 3), ("veto", 4)):
        write(
            tmp_path,
            loaded[0],
            units_of(loaded[1], name)[0],
            20,
            {SHORT: [1] * size, LONG: [2] * 3},
        )
    with pytest.raises(UserError, match=f"{SHORT}: 1 problems lacking, 0 added compared with veto"):
        compare(Study(*loaded, tmp_path), "veto,vanilla")
