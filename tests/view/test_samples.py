"""Filters of responses, and which checkpoints they come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.table.model import results_table
from orchestrator.view.samples import (
    Answered,
    ResponseReader,
    TextSource,
    all_sources,
    filters,
    selected_sources,
)
from tests.view.sweeps import response, small_sweep

SETUP, SHORT = "arithmetic", "arithmetic_short"


def answered(method: str, right: bool, **how: bool | str | None) -> Answered:
    source = TextSource("unit", method, method, 0, 20, False, "bench")
    return Answered(source, response("p", "text", right, **how))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "how", "verdict"),
    [
        ("wrong", {}, "wrong"),
        ("no answer", {"answer": None}, "no answer"),
        ("truncated", {"answer": None, "truncated": True}, "truncated"),
        ("timed out", {"timed_out": True}, "timed out"),
    ],
)
def test_each_filter_finds_its_kind(name: str, how: dict[str, bool | None], verdict: str) -> None:
    holds = filters(["vanilla"])[name]
    found = answered("vanilla", False, **how)
    assert found.verdict == verdict
    assert holds([answered("vanilla", True), found])
    assert not holds([answered("vanilla", True)])


def test_one_method_right_and_another_wrong() -> None:
    of = filters(["vanilla", "trust_region"])
    right, wrong = of["TRB right, Vanilla wrong"], of["Vanilla right, TRB wrong"]
    pair = [answered("trust_region", True), answered("vanilla", False)]
    assert right(pair)
    assert not wrong(pair)
    assert not right([*pair, answered("trust_region", False)]), "another seed is wrong"
    assert not right(pair[:1]), "vanilla has no response"


def test_responses_come_from_selected_checkpoints_and_then_from_all_steps(tmp_path: Path) -> None:
    study = small_sweep(tmp_path).snapshot()
    evidence = results_table(study, depth="intervals").facts
    assert evidence is not None
    selected = selected_sources(study, evidence, SETUP, SHORT)
    assert {(source.method, source.step) for source in selected} == {
        *((None, 0), ("vanilla", 40)),
        ("trust_region", 40),
    }
    reader = ResponseReader()
    problems = reader.problems(study, selected)
    assert [row.problem for row in problems] == ["p0", "p1", "p2", "p3"]
    assert [(row.right, len(row.responses)) for row in problems] == [(2, 3), (2, 3), (2, 3), (1, 3)]
    sources = all_sources(study, selected, SETUP, SHORT, every_step=True)
    texts = {each.text.text for each in reader.responses(study, sources, "p1")}
    assert texts == {"step 0", "step 20", "step 40"}
