"""Cost of training and scores at equal cost, against numbers worked out by hand."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from analysis import frames
from analysis.facts.candidates import select
from analysis.facts.costs import cost_rows, curve, training_cost
from analysis.facts.evidence import MEASURES, amount_text
from analysis.facts.facts import facts
from analysis.figures import training
from analysis.figures.catalog import pictures
from analysis.table.formats import to_json, to_markdown
from analysis.table.model import results_table
from orchestrator.experiment.units import Unit
from orchestrator.records.writer import RunWriter
from orchestrator.selection.study import Study
from tests.fake_runs import quickstart, units_of, write_run
from tests.sweeps import trb_refuses, trb_shows

TOKENS, DRAFTS = (
    100,
    130,
)  # of a step: of its responses, and those that a teacher judged while decoding
SCORES = {  # step → correct of 4 samples on the two benchmarks
    "base_eval": {0: [0, 0]},
    "vanilla": {20: [1, 1], 40: [2, 2], 60: [3, 3]},
    "trust_region": {20: [1, 1], 40: [3, 3], 60: [4, 4]},
    "sft_warmup": {20: [2, 2], 40: [2, 2], 60: [4, 4]},
}


def log(runs: Path, unit: Unit, seconds: float) -> None:
    """Tokens and clock of every step, and one step that was repeated after a kill."""
    rows = []
    for step in range(unit.steps):
        drafts = {"teacher_positions": DRAFTS} if unit.method == "trust_region" else {}
        rows.append({"step": step, "response_tokens": TOKENS, **drafts})
    with closing(RunWriter(runs, unit.id)) as run:
        run.describe({}, dict)
        run.append("metrics.jsonl", rows)
        run.commit(unit.steps)
        for step in [*range(unit.steps), 3]:
            run.append_timing(
                {"step": step, "phase": "train", "rollout": seconds / 2, "learn": seconds / 2}
            )


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return made(tmp_path, "methods.trust_region={epsilon0: [0.01], K: [12]}")


def made(tmp_path: Path, override: str) -> Study:
    """The quickstart's methods of SCORES with one that is changed or added, after its training."""
    experiment, expanded = quickstart(override)
    units = [
        unit for unit in expanded if unit.is_supervised or (unit.method or unit.kind) in SCORES
    ]
    for unit in units:
        name = unit.method or unit.kind
        if unit.kind != "base_eval":
            log(tmp_path, unit, 2.0 if name == "trust_region" else 1.0)
        write_run(tmp_path, experiment, unit, SCORES.get(name, {}), unit.steps)
    return Study(experiment, units, tmp_path)


def unit_of(study: Study, name: str) -> Unit:
    [unit] = units_of(list(study.units), name)
    return unit


def test_the_cost_of_a_checkpoint(study: Study) -> None:
    blended = training_cost(study, unit_of(study, "trust_region"), 20)
    assert (blended.seconds, blended.student_tokens, blended.teacher_scored) == (
        40,
        20 * DRAFTS,
        20 * DRAFTS,
    )
    assert (blended.updates, blended.supervised_updates) == (20, 0)
    warmed = training_cost(study, unit_of(study, "sft_warmup"), 40)
    assert (warmed.seconds, warmed.updates, warmed.supervised_updates) == (55, 55, 15)
    assert (warmed.student_tokens, warmed.teacher_scored, warmed.teacher_decoded) == (
        4000,
        4000,
        1500,
    )


def test_missing_clocks_stay_missing(study: Study) -> None:
    vanilla = unit_of(study, "vanilla")
    (study.runs / vanilla.id / "timing.jsonl").unlink()
    found = training_cost(study, vanilla, 20)
    assert (found.seconds, found.device_seconds, found.updates, found.student_tokens) == (
        None,
        None,
        20,
        2000,
    )
    table = cost_rows(study, select(study), "time")
    assert {row.method: row.why_not for row in table}["vanilla"] == "not logged"


@pytest.mark.parametrize(
    ("measure", "amount", "scores"),
    [
        # The supervised stage's 15 updates count, so SFT warmup is read off at step 45: a quarter
        # of the way to 60.
        ("updates", 60, {"vanilla": 75, "trust_region": 100, "sft_warmup": 50 + 50 / 4}),
        # A step of the trust region takes twice the time, so that 60 seconds end at its step 30.
        ("time", 60, {"vanilla": 75, "trust_region": 50, "sft_warmup": 50 + 50 / 4}),
    ],
)
def test_scores_at_equal_cost(
    study: Study, measure: str, amount: float, scores: dict[str, float]
) -> None:
    table = cost_rows(study, select(study), measure)
    assert table[0].amount == amount
    found = {row.method: row.columns["avg"] for row in table}
    assert {method: float(column.score.value) for method, column in found.items()} == pytest.approx(
        scores
    )
    for method, column in found.items():
        if method != "vanilla":
            assert column.difference is not None
            assert float(column.difference.estimate.value) == pytest.approx(
                scores[method] - scores["vanilla"]
            )


def test_a_method_that_has_no_checkpoint_at_that_cost(study: Study) -> None:
    """Vanilla has taken 20 steps by now; the first checkpoint of SFT warmup comes after 35 updates."""
    vanilla = unit_of(study, "vanilla")
    for step in (40, 60):
        for path in (study.runs / vanilla.id / "evals").glob(f"*/step_{step:06d}/*"):
            path.unlink()
    table = cost_rows(study, select(study), "updates")
    why_not = {row.method: row.why_not for row in table}
    assert (table[0].amount, why_not) == (
        20,
        {"vanilla": "", "trust_region": "", "sft_warmup": "before its first checkpoint"},
    )


def test_times_on_other_hardware_are_not_compared(study: Study) -> None:
    trust = unit_of(study, "trust_region")
    path = study.runs / trust.id / "attempts.jsonl"
    row = json.loads(path.read_text().splitlines()[-1])
    path.write_text(json.dumps({**row, "host": {"gpus": ["NVIDIA H100"]}}) + "\n")
    table = cost_rows(study, select(study), "time")
    assert {row.method: row.why_not for row in table} == {
        "vanilla": "",
        "trust_region": "other hardware",
        "sft_warmup": "",
    }
    table = cost_rows(study, select(study), "updates")
    assert not any(row.why_not for row in table)
    drawn = {each.name: each for each in pictures(facts(study))}["cost-arithmetic"].figure
    assert drawn is not None
    assert [len(axes.get_lines()) for axes in drawn.axes] == [3, 2]  # updates, time


def test_times_have_no_p_value(study: Study) -> None:
    """A clock has a spread of its own, which no interval holds; at equal updates the same runs have
    a p-value.
    """
    experiment, expanded = quickstart(
        "methods={vanilla: {}, veto: {beta_start: [0.4]}}", "seeds=[0,1,2]"
    )
    units = [unit for unit in expanded if unit.is_trial]
    for unit in units:
        log(study.runs, unit, 1.0)
        write_run(study.runs, experiment, unit, {60: [2, unit.seed]}, unit.steps)
    several = Study(experiment, units, study.runs)
    found = {}
    for measure in ("updates", "time"):
        table = cost_rows(several, select(several), measure)
        gap = {row.method: row.columns["avg"].difference for row in table}["veto"]
        assert gap is not None
        found[measure] = gap.p_value
    assert found == {"updates": pytest.approx(1.0), "time": None}


def test_a_line_for_each_method_over_its_cost(study: Study) -> None:
    chosen = [selected.best for selected in select(study) if selected.best.method != "base"]
    curves = [curve(study, best) for best in chosen]
    panels = {
        measure: [training.series(points, measure) for points in curves]
        for measure in training.AXES
    }
    figure = training.draw_cost(panels, "Arithmetic")
    updates, time = figure.axes
    [warmed] = [
        line for line in updates.get_lines() if str(line.get_label()).startswith("SFT warmup")
    ]
    assert list(warmed.get_xdata()) == [35, 55, 75]
    assert list(warmed.get_ydata()) == [50, 50, 100]
    assert list(time.get_lines()[0].get_xdata()) == [20, 40, 60]


def test_the_table_says_it_in_every_form(study: Study) -> None:
    assert results_table(study).verdict.sentences == ("No method can be called better: one seed.",)
    table = results_table(study, cost="updates")
    [line] = [
        line
        for line in to_markdown(table).splitlines()
        if line.startswith("| SFT warmup") and "1,500" in line
    ]
    assert line.startswith("| SFT warmup | 62.5 ±")
    for record in json.loads(to_json(table))["evidence"]["cost"]:
        assert (record["measure"], record["amount"]) == ("updates", 60)
    frame = frames.costs(table).set_index("method")
    assert frame.loc["sft_warmup", "teacher_decoded"] == 1500
    assert frame.loc["sft_warmup", "minus_vanilla"] == pytest.approx(-12.5)


def test_the_command_offers_every_measure_and_refuses_it_beside_a_comparison(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "{" + ",".join(MEASURES) + "}" in trb_shows(capsys, "table", "--help")
    for option, value in (("--cost", "time"), ("--metric", "pass@2")):
        asked = ["table", "quickstart", "--compare", "TRB,Vanilla", option, value]
        expected = f"{option}: '{value}': expected the table of an experiment, without --compare"
        assert trb_refuses(capsys, *asked) == f"trb: {expected}"


def test_costs_as_text() -> None:
    assert amount_text("updates", 60, on_gpus=False) == "60 updates"
    assert amount_text("time", 5400, on_gpus=True) == "1.5 GPU-hours"
    assert amount_text("time", 12000, on_gpus=False) == "200 core-minutes"
