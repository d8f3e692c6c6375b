"""`trb table --by setting`, and `--compare` of two settings, on a grid of learning rates."""

from __future__ import annotations

import csv
import json
from io import StringIO

import numpy as np
import pytest
from scipy import stats

from analysis.facts.comparison import SettingRow, setting_rows
from analysis.table import settings
from analysis.table.compare import compare
from orchestrator.experiment.axes import RATE
from orchestrator.selection.study import Study
from tests.analysis.test_evidence import SHORT, draw, write
from tests.fake_runs import QUICKSTART, quickstart, units_of
from tests.sweeps import trb_refuses, trb_shows

GRID = (
    "axes.training.optimizer.lr=[1e-4,8e-4]",
    "methods.trust_region.epsilon0=0.05",
    "seeds=[0,1,2]",
)
SCORES = {1e-4: 0.4, 8e-4: 0.7}  # rate → share of right answers


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    runs = tmp_path_factory.mktemp("runs")
    experiment, units = quickstart(*GRID)
    for unit in units_of(units, "trust_region"):
        rate = SCORES[unit.knobs[RATE]] - 0.05 * unit.seed
        for step in (20, 40):
            seed = unit.seed + 10 * step
            write(runs, experiment, unit, step, draw(seed, rate - (0.1 if step == 20 else 0)))
    write(runs, experiment, units_of(units, "base_eval")[0], 0, draw(7, 0.2))
    return Study(experiment, units, runs)


def of_rate(rows: list[SettingRow], rate: float) -> SettingRow:
    [row] = [row for row in rows if row.checkpoint.knobs.get(RATE) == rate]
    return row


def test_each_setting_stands_at_its_best_step_with_its_runs(study: Study) -> None:
    rows = setting_rows(study)
    assert [row.checkpoint.method for row in rows] == ["base", "trust_region", "trust_region"]
    for rate in SCORES:
        row = of_rate(rows, rate)
        assert (row.checkpoint.step, len(row.averages)) == (40, 3)
        averages = [float(score) for score in row.averages]
        score = row.columns["avg"]
        assert float(score.value) == pytest.approx(np.mean(averages))
        reach = stats.t.ppf(0.975, 2) * np.std(averages, ddof=1) / np.sqrt(3)
        assert score.interval.high == pytest.approx(min(100, np.mean(averages) + reach))
    assert [row.chosen for row in rows] == [False, False, True]


def test_formats_tell_the_same(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = {}
    for form in ("md", "csv", "json"):
        words = ["table", QUICKSTART, *GRID, "--runs", study.runs, "--by", "setting"]
        outputs[form] = trb_shows(capsys, *words, "--format", form)
    records = json.loads(outputs["json"])["settings"]
    lines = list(csv.DictReader(StringIO(outputs["csv"])))
    assert [line["setting"] for line in lines] == [record["setting"] for record in records]
    for line, record in zip(lines, records, strict=True):
        assert line["score"] == f"{record['score']:.2f}"
    row = of_rate(setting_rows(study), 8e-4)
    chosen = f"**{float(row.columns['avg'].value):.1f}** ±"
    [shown] = [line for line in outputs["md"].splitlines() if "lr=0.0008" in line]
    assert chosen in shown
    assert " ".join(f"{float(score):.1f}" for score in row.averages) in shown
    assert "Confirmed |" not in outputs["md"]
    assert settings.UNCONFIRMED in outputs["md"]


def test_two_settings_are_tested_as_two_methods_are(study: Study) -> None:
    """By Welch's test on their runs; a part of the knobs is enough where it means one setting."""
    [found] = compare(study, "TRB lr=8e-4, trust_region epsilon0=0.05 lr=0.0001")
    rows = setting_rows(study)
    low, high = ([float(score) for score in of_rate(rows, rate).averages] for rate in (1e-4, 8e-4))
    gap = found.columns["avg"]
    assert gap is not None
    assert float(gap.estimate.value) == pytest.approx(np.mean(high) - np.mean(low))
    _, expected = stats.ttest_ind(high, low, equal_var=False)
    assert gap.p_value == pytest.approx(expected, rel=1e-6)
    [sentence] = found.verdict.sentences
    assert sentence.startswith(
        "TRB epsilon0=0.05 K=12 lr=0.0008 − TRB epsilon0=0.05 K=12 lr=0.0001"
    )
    assert found.columns[SHORT] is not None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--compare", "TRB K=12,vanilla"], "--compare: 'TRB K=12': expected one setting: TRB"),
        (["--compare", "TRB K=13,vanilla"], "--compare: 'TRB K=13': expected one setting: TRB"),
        (["--by", "setting", "--format", "tex"], "--format: 'tex': expected one of text, md"),
        (["--by", "setting", "--cost", "time"], "--cost: 'time': expected the table of an experi"),
        (["--by", "setting", "--compare", "TRB,SKD"], "--by: 'setting': expected the table of an"),
    ],
)
def test_refusals(
    study: Study, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = trb_refuses(capsys, "table", QUICKSTART, *GRID, "--runs", study.runs, *words)
    assert message in line
