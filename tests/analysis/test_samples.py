"""Responses in the report: which are shown, how many, and how the page filters them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.facts.candidates import select
from analysis.report import samples
from analysis.report.assets import scripts
from analysis.report.samples import (
    AHEAD,
    BEHIND,
    LONGEST,
    ROLLOUTS,
    SHOWN,
    Key,
    kept_responses,
    samples_section,
    shortened,
    training_section,
)
from orchestrator.experiment.evaluation_protocol import evaluation_ids
from orchestrator.records.slices import ResponseText, Slice
from orchestrator.records.writer import RunWriter, write_slice
from orchestrator.selection.study import Study
from tests.browser import Browser, browser
from tests.fake_runs import quickstart, record, units_of
from tests.view.sweeps import ROLLOUT

SETUP, SHORT, LONG = "arithmetic", "arithmetic_short", "arithmetic_long"
EVIL = "</script></pre><script>document.title='run'</script>"
RIGHT = ResponseText("p0", 0, "Add 1 and 1.", "2", "\\boxed{2}", "2", True, False, False, 4)
WRONG = replace(RIGHT, text=f"{EVIL} \\boxed{{3}}", answer="3", right=False)
TRUNCATED = replace(RIGHT, text="1 and 1 and 1", answer=None, right=False, truncated=True)
EMPTY = replace(RIGHT, text="two", answer=None, right=False)
SLOW = replace(RIGHT, answer="2^2^99", right=False, timed_out=True)


def responses(*texts: ResponseText, benchmark: str = SHORT) -> dict[Key, ResponseText]:
    """Texts as responses to problems p0, p1, …"""
    found = {}
    for number, text in enumerate(texts):
        name = f"p{number}"
        found[benchmark, name, 0] = replace(text, problem=name)
    return found


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """The untrained student and vanilla, with texts of one benchmark and of training rollouts."""
    experiment, units = quickstart()
    folder = tmp_path_factory.mktemp("runs")
    ids = evaluation_ids(experiment.setups[SETUP])
    for name, text, step in (("base_eval", EMPTY, 0), ("vanilla", RIGHT, 30)):
        with closing(RunWriter(folder, units_of(units, name)[0].id)) as run:
            for key, evaluation_id in ids.items():
                part = Slice(0, 4, 0, 2, 2)
                texts = [replace(text, problem=f"p{number}") for number in (0, 1)]
                records = [record(2, problem=f"p{number}") for number in (0, 1)]
                kept = texts if key == SHORT else []
                write_slice(run, evaluation_id, step, part, records, kept)
            if step:
                for at in (0, 29, 59):  # the last of them is after the selected checkpoint
                    run.write_samples(at, [replace(ROLLOUT, tokens=[f"at {at}", EVIL])] * 3)
                run.commit(60)
    return Study(experiment, units, folder)


def test_kinds_are_told_apart_by_their_cause() -> None:
    found = [each.failure for each in (RIGHT, WRONG, TRUNCATED, EMPTY, SLOW)]
    assert found == [None, "wrong", "truncated", "no answer", "timed out"]
    assert replace(RIGHT, truncated=True).failure == "truncated"  # right, and cut off after that


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    assert shortened("x" * LONGEST) == "x" * LONGEST
    text = f"begin{'-' * 3 * LONGEST}\\boxed{{7}}"
    found = shortened(text)
    assert len(found) < LONGEST + 60
    assert (found[:5], found[-9:]) == ("begin", "\\boxed{7}")
    assert f"{len(text) - LONGEST:,} characters left out" in found


def test_each_kind_has_the_first_responses_of_each_method_and_counts_the_others(
    study: Study,
) -> None:
    kept = {
        "vanilla": responses(*[WRONG] * (SHOWN + 2), RIGHT, RIGHT),
        "skd": responses(*[WRONG] * SHOWN, RIGHT, WRONG, EMPTY, RIGHT),
    }
    shown = samples_section(study, {SETUP: kept})
    assert f"Wrong: {2 * SHOWN} shown of {2 * SHOWN + 3}" in shown
    assert "Without an answer: 1 shown of 1" in shown
    assert f"{AHEAD}: 1 shown of 1" in shown
    assert f"{BEHIND}: 1 shown of 1" in shown
    assert "Truncated:" not in shown
    assert f"SKD and Vanilla: Short sums, problem p{SHOWN}<" in shown


def test_texts_stay_below_the_limit_and_the_first_of_each_method_come_in_first(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {name: responses(*[EMPTY] * SHOWN) for name in ("vanilla", "skd")}
    size = len(EMPTY.prompt) + len(EMPTY.text)
    monkeypatch.setattr(samples, "LIMIT", 3 * size)
    shown = samples_section(study, {SETUP: kept})
    assert f"Without an answer: 3 shown of {2 * SHOWN}" in shown
    assert all(f"{name}: Short sums, problem p0<" in shown for name in ("Vanilla", "SKD"))
    assert ">Vanilla: Short sums, problem p1<" in shown
    assert ">SKD: Short sums, problem p1<" not in shown


def test_texts_are_read_from_selected_checkpoints_and_stand_beside_the_untrained_students(
    study: Study,
) -> None:
    chosen = select(study)
    kept = kept_responses(study, chosen)
    assert {method: len(found) for method, found in kept[SETUP].items()} == {
        "base": 2,
        "vanilla": 2,
    }
    shown = training_section(study, chosen, kept)
    assert "The same problem before and after training: 2" in shown
    assert "Untrained student and Vanilla: Short sums, problem p0" in shown
    at = [shown.index(f"at {step}&lt;/script&gt;") for step in (0, 29)]
    assert at == sorted(at)
    assert "at 59" not in shown
    assert shown.count("1+1=?") == 2 * ROLLOUTS
    assert "75 % of the tokens drafted by the student" in shown


def test_without_texts_the_page_says_why(study: Study) -> None:
    assert "evaluation.keep_texts" in samples_section(study, {SETUP: {}})
    right = samples_section(study, {SETUP: {"vanilla": responses(RIGHT)}})
    assert "Every response whose text was kept is right." in right


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def test_a_browser_filters_responses_and_opens_all_on_paper(
    tab: Browser, study: Study, tmp_path: Path
) -> None:
    kept = {
        "vanilla": responses(WRONG, RIGHT) | responses(TRUNCATED, benchmark=LONG),
        "skd": responses(RIGHT, SLOW),
    }
    page = tmp_path / "page.html"
    section = samples_section(study, {SETUP: kept})
    page.write_text(f"<!doctype html><meta charset=utf-8><body>{section}{scripts()}", "utf-8")
    tab.open(page, 1280)
    assert tab.evaluate("[document.title, document.querySelectorAll('pre *').length]") == ["", 0]
    assert tab.evaluate("document.querySelector('pre + p + p + pre').textContent") == WRONG.text
    groups = "[...document.querySelectorAll('details%s')].map(d => d.textContent.split(':')[0])"
    kinds = ["Wrong", "Truncated", "Timed out while grading", AHEAD, BEHIND]
    assert tab.evaluate(groups % "") == kinds
    assert tab.evaluate(groups % "[open]") == []
    choose = """(place, value) => {
      const control = document.querySelectorAll('.tools select, .tools input')[place];
      control.value = value;
      control.dispatchEvent(new Event('input'));
      return document.querySelector('.tools output').value;
    }"""
    assert tab.evaluate(f"({choose})(1, '{LONG}')") == "1 of 5 responses"
    assert tab.evaluate(groups % ":not([hidden])") == ["Truncated"]
    assert tab.evaluate(f"({choose})(1, '')") == "5 of 5 responses"
    assert tab.evaluate(f"({choose})(0, 'skd')") == "3 of 5 responses"
    assert tab.evaluate(f"({choose})(2, 'two')") == "0 of 5 responses"
    # Whatever was open, paper shows all, and the screen is as before afterwards.
    tab.evaluate(
        "addEventListener('beforeprint', () => {"
        " document.title = [...document.querySelectorAll('details')].every(d => d.open); })"
    )
    tab.call("Page.printToPDF")
    assert tab.evaluate("document.title") == "true"
    assert tab.evaluate(groups % "[open]") == []
