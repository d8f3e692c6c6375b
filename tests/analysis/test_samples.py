"""Responses in the report: which are shown, how many, and how the page filters them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.facts.facts import facts
from analysis.report.page import build_page
from analysis.report.samples import (
    AHEAD,
    BEHIND,
    LONGEST,
    ROLLOUTS,
    SHOWN,
    ResponseKey,
    Responses,
    failures,
    kept_responses,
    shortened,
    training,
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


def responses(*texts: ResponseText, benchmark: str = SHORT) -> dict[ResponseKey, ResponseText]:
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


def groups_of(study: Study, kept: Mapping[str, Responses]) -> dict[str, tuple[list[str], int]]:
    """Kind → titles of the responses that are shown, and how many there are."""
    groups = failures(facts(study), {SETUP: kept}).get("Arithmetic", [])
    return {own.kind: ([each.title for each in own.shown], own.count) for own in groups}


def test_each_kind_has_the_first_responses_of_each_method_and_counts_the_others(
    study: Study,
) -> None:
    kept: dict[str, Responses] = {
        "vanilla": responses(*[WRONG] * (SHOWN + 2), RIGHT, RIGHT),
        "skd": responses(*[WRONG] * SHOWN, RIGHT, WRONG, EMPTY, RIGHT),
    }
    found = groups_of(study, kept)
    counts = {kind: (len(titles), count) for kind, (titles, count) in found.items()}
    assert counts == {
        "Wrong": (2 * SHOWN, 2 * SHOWN + 3),
        "Without an answer": (1, 1),
        AHEAD: (1, 1),
        BEHIND: (1, 1),
    }
    assert found[AHEAD][0] == [f"SKD and Vanilla: Short sums, problem p{SHOWN}"]


def test_texts_are_read_from_selected_checkpoints_and_stand_beside_the_untrained_students(
    study: Study,
) -> None:
    known = facts(study)
    kept = kept_responses(known)
    assert {method: len(found) for method, found in kept[SETUP].items()} == {
        "base": 2,
        "vanilla": 2,
    }
    ((pairs, (rollouts,)),) = training(known, kept).values()
    assert [each.title for each in pairs] == [
        f"Untrained student and Vanilla: Short sums, problem p{number}" for number in (0, 1)
    ]
    assert {step: len(own) for step, own in rollouts.steps.items()} == {0: ROLLOUTS, 29: ROLLOUTS}


def test_without_texts_the_page_says_why(tmp_path: Path) -> None:
    shown = build_page(facts(Study(*quickstart(), tmp_path)), tmp_path / "report.html")
    assert "evaluation.keep_texts" in shown


def test_responses_that_are_all_right_are_no_failures(study: Study) -> None:
    assert groups_of(study, {"vanilla": responses(RIGHT)}) == {}


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def test_a_browser_filters_responses_and_opens_all_on_paper(
    tab: Browser, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {
        "vanilla": responses(WRONG, RIGHT) | responses(TRUNCATED, benchmark=LONG),
        "skd": responses(RIGHT, SLOW),
    }
    monkeypatch.setattr("analysis.report.samples.kept_responses", lambda _: {SETUP: kept})
    page = tmp_path / "page.html"
    page.write_text(build_page(facts(study), page), "utf-8")
    tab.open(page, 1280)
    shown = "[document.title, document.querySelectorAll('pre *').length]"
    assert tab.evaluate(shown) == ["quickstart – trb report", 0]
    assert tab.evaluate("document.querySelector('pre + p + p + pre').textContent") == WRONG.text
    groups = "[...document.querySelectorAll('#samples details%s')].map(d => d.textContent.split(':')[0].trim())"
    kinds = ["Wrong", "Truncated", "Timed out while grading", AHEAD, BEHIND]
    assert tab.evaluate(groups % "") == kinds
    assert tab.evaluate(groups % "[open]") == []
    choose = """(place, value) => {
      const control = document.querySelectorAll('#samples select, #samples input')[place];
      control.value = value;
      control.dispatchEvent(new Event('input', { bubbles: true }));
      return document.querySelector('#samples output').value;
    }"""
    assert tab.evaluate(f"({choose})(1, 'Long sums')") == "1 of 5 responses"
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
