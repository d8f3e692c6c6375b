"""What is shown of a sweep: nothing cropped at any width, one line for each event, large sweeps by
family.
"""

from __future__ import annotations

import io
import os
import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from orchestrator.commands.detach import LastingOutput
from orchestrator.commands.display import (
    best_lines,
    clock,
    header,
    hours_line,
    next_step,
    runs_line,
    summary,
    summary_lines,
    sweep_line,
    sweep_lines,
)
from orchestrator.commands.unit_rows import ORDERS, duration, names, progress_bar, units_view
from orchestrator.commands.waiting import building
from orchestrator.monitor import status
from orchestrator.monitor.status import FamilyStatus, Overview, Session
from orchestrator.monitor.unit_status import UnitStatus
from orchestrator.planning.numbers import Range
from orchestrator.records.log import TRAINING
from orchestrator.selection.study import Invocation, Study
from tests import fake_runs

MISTAKE = "mistake: prompt.system: 'x': expected a system message"
LONG = "evaluating 12800 left"


METHODS_OF = {
    "TRB": "trust_region",
    "Temperature": "temperature_warmup",
    "SKD": "skd",
    "Veto": "veto",
}


def unit(label: str, state: str = "done", **other: Any) -> UnitStatus:
    """A trial of 60 steps, which are over unless the test says otherwise."""
    known = UnitStatus(f"arithmetic-{label}", "arithmetic", label, "trial", 0, state, 60, 60)
    scores = {"score": 0.455, "best_step": 40, "latest_step": 60, "latest_score": 0.45}
    more = {"loss": 0.1234, "doing": state, "method": METHODS_OF.get(label.split()[0])}
    return replace(known, **(scores | more | other))


UNITS = [
    unit("TRB epsilon0=0.05 K=12"),
    unit("Temperature tau0=0.85 E=15", "running", doing=LONG, seconds_left=3725.0, loss=12.3456),
    unit("SKD K=15 tau_T=0.6", "running", doing="training", seed=3, seconds_left=90.0),
    unit("Veto beta_start=0.4", "waiting", doing="waiting for rescoring", setup="qwen3-0.6b"),
]
OF_TRB = {"done": 12, "running": 2, "failed": 1}
FAMILIES = [
    FamilyStatus("arithmetic", "TRB", OF_TRB, 0.455, "epsilon0=0.05 K=12", 40),
    FamilyStatus("qwen3-0.6b", "Temperature", {"queued": 6}, None, None, None),
]


def printed(width: int, *parts: Any) -> list[str]:
    """The lines of a console of so many characters."""
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(*parts, sep="\n")
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def shown(overview: Overview, width: int, **options: Any) -> str:
    units = units_view(overview, width, **options)
    return "\n".join(printed(width, *units, "", *summary_lines(overview, width)))


# --- widths ---


@pytest.mark.parametrize("width", [80, 100, 400])
@pytest.mark.parametrize("rows", [3, 40])
def test_no_word_is_lost_at_any_width(width: int, rows: int) -> None:
    text = shown(Overview(UNITS, FAMILIES), width, rows=rows)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    words = {"TRB", "epsilon0=0.05", "K=12", "qwen3-0.6b", "45.5"}
    if rows == 40:
        words |= {"beta_start=0.4", "60/60", "1h02m", "1m30s", *LONG.split(), "state", "left"}
    else:
        words |= {"12/15", "0/6", "done", "failed"} | ({"to", "40"} if width > 80 else set())
    assert words <= set(text.split())


MOMENT = ("state", "doing", "step", "loss", "score", "seconds_left")
MOMENTS = [  # of the same units, with all that can change
    ("queued", "queued", 0, None, None, None),
    ("running", "starting models, try 2", 0, None, None, 359_999.0),
    ("running", LONG, 60, 12.3456, 1.0, 3_599.0),
    ("interrupted", "interrupted", 7, -0.5, 0.0, None),
    ("waiting", "waiting for its stage", 0, None, None, None),
    ("done", "done", 60, 0.1, 0.455, None),
]


@pytest.mark.parametrize("width", [80, 100, 120, 400])
@pytest.mark.parametrize("rows", [3, 40])
def test_nothing_moves_while_one_looks(width: int, rows: int) -> None:
    """Headings stand where they stood, and each unit and method on its line, whatever the units do."""
    settings = {"TRB": "epsilon0=0.05 K=12", "Temperature": "tau0=0.85 E=15"}
    seen = []
    for values in MOMENTS:
        moment = dict(zip(MOMENT, values, strict=True))
        units, families = [], []
        for s in UNITS:
            units.append(replace(s, **moment))
        for f in FAMILIES:
            now = replace(f, states={moment["state"]: 15}, score=moment["score"], step=60)
            families.append(replace(now, setting=settings[f.label]))
        table, *_ = units_view(Overview(units, families), width, rows)
        lines = printed(width, table)
        name = lines[0].index("state" if rows == 40 else "best at")
        seen.append((lines[0], [line[:name] for line in lines]))
    assert all(each == seen[0] for each in seen)


def test_the_header_says_what_differs_from_the_file(tmp_path: Path) -> None:
    words = ["training.steps=4", "methods.trust_region={K: [5]}"]
    typed = Invocation(("quickstart", *words, "--methods", "TRB", "--runs", "r"))
    study = Study(*fake_runs.quickstart(), tmp_path, invocation=typed)
    lines = [line.plain for line in header(study, 400, ["Ctrl-C stops"])]
    first = "quickstart · training.steps=4 · 'methods.trust_region={K: [5]}' · --methods TRB"
    assert lines == [first, f"runs: {tmp_path} · Ctrl-C stops"]
    assert all(len(line.plain) <= 40 for line in header(study, 40))


def test_bars_fill_up() -> None:
    bars = [progress_bar(done, 8, 4).text for done in (0, 1, 4, 8)]
    assert bars == ["────", "────", "━━──", "━━━━"]
    assert progress_bar(0, 0, 4).text == "", "the untrained student has no steps"


def test_what_is_queued_is_not_started_where_nothing_drives() -> None:
    waiting = [replace(s, state="queued", doing="queued") for s in UNITS]
    assert "0 of 4 done · 4 not started" in shown(Overview(waiting, driven=False), 80)
    assert shown(Overview(waiting), 80).count("queued") == 5


def test_a_wide_terminal_has_a_line_for_each_unit() -> None:
    text = shown(Overview(UNITS, FAMILIES), 400)
    line = next(line for line in text.splitlines() if "Temperature" in line)
    assert line.split("  ")[0] == "arithmetic Temperature tau0=0.85 E=15"
    assert LONG in line
    assert "12.3456" in line


# --- large sweeps ---


def test_a_large_sweep_shows_families_and_the_units_that_need_a_look() -> None:
    many = [unit(f"TRB K={k}") for k in range(1, 60)] + [
        unit("Veto beta_start=0.4", "running", doing="training"),
        unit("Vanilla", "failed", doing="failed"),
    ]
    text = shown(Overview(many, FAMILIES), 100)
    assert "TRB K=7 " not in text
    assert "Veto beta_start=0.4" in text
    assert "failed" in text
    assert "59 of 61 done" in text
    everything = shown(Overview(many, FAMILIES), 100, every=True)
    assert "TRB K=7 " in everything


def test_what_does_not_fit_on_the_screen_is_counted() -> None:
    many = [unit(f"TRB K={k}", "running", doing="training") for k in range(50)]
    text = shown(Overview(many, FAMILIES), 100, rows=22)
    assert text.count("training") == 17
    assert "33 more running, failed or interrupted" in text


def test_units_are_sorted_as_asked() -> None:
    units = [
        unit("b", "running", score=0.1, seconds_left=5.0),
        unit("a", "done", score=None),
        unit("c", "failed", score=0.9, seconds_left=1.0),
    ]
    orders = {"score": "cba", "name": "abc", "state": "abc", "left": "cba"}
    for name, labels in orders.items():
        assert "".join(s.label for s in sorted(units, key=ORDERS[name])) == labels


def test_confirming_runs_are_told_apart() -> None:
    trb = UNITS[0]
    runs = [replace(trb, id=f"c{seed}", seed=seed, confirms=40) for seed in (100, 101)]
    overview = Overview([trb, *runs], FAMILIES[:1])
    assert list(names(overview.units).values()) == [
        "TRB epsilon0=0.05 K=12 seed 0",
        "TRB epsilon0=0.05 K=12 confirming seed 100",
        "TRB epsilon0=0.05 K=12 confirming seed 101",
    ]
    families = shown(overview, 100, rows=1).splitlines()
    assert families[2].split() == ["confirming", "40", "2/2", "45.5"]
    assert "2 of 2 confirming runs done" in sweep_line(overview)
    runs[1] = replace(runs[1], state="running", phase=TRAINING, score=None)
    overview = Overview([trb, *runs], FAMILIES[:1])
    families = shown(overview, 100, rows=1).splitlines()
    assert families[2].split() == ["confirming", "40", "1/2", "1"], "no score of a part"


# --- lines ---


def test_the_line_of_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status.time, "monotonic", lambda: 180.0)
    session, span = Session(100.0, -3, {"CPU": 2.0, "GPU": 0.0}), Range(120.0, 160.0, 180.0)
    overview = Overview(UNITS, [], session, {"CPU": 2.0}, span)
    rest = "elapsed 1m20s · left about 2m40s (2m00s to 3m00s) · 2 of 2 CPUs used · 3.0 trials/min"
    assert sweep_line(overview) == f"1 of 4 done · 2 running · 1 waiting · {rest}"
    gpus = replace(session, started=-3420.0, trials_before=-1, cluster={"CPU": 64.0, "GPU": 8.0})
    text = sweep_line(replace(overview, used={"GPU": 6.0}, session=gpus))
    assert text.endswith("6 of 8 GPUs used · 2.0 trials/h")


def test_the_line_of_the_hours_has_an_interval_and_a_finish() -> None:
    span = Range(60.0, 3600.0, 86400.0)
    overview = Overview(UNITS, seconds_left_range=span, device="GPU")
    assert "left about 1h00m (1m00s to 24h00m)" in sweep_line(overview)
    known = replace(overview, device_hours_spent=1234.5, device_hours_left=Range(0.123, 3.14, 20.0))
    beginning = "1,234 GPU-hours spent · about 3.1 left (0.12 to 20) · done about "
    assert sweep_lines(known)[1].startswith(beginning)
    assert hours_line(replace(overview, seconds_left_range=None)) == ""
    evening = datetime(2026, 12, 31, 22, 0)
    moments = [clock(evening, 3600.0 * hours) for hours in (1, 3, -24)]
    assert moments == ["23:00", "1 Jan 2027 01:00", "30 Dec 22:00"]


def test_the_runs_folder_is_named(tmp_path: Path) -> None:
    assert runs_line(tmp_path, Overview(UNITS)) == f"runs: {tmp_path} (1 of 4 units done)"
    assert (
        runs_line(tmp_path / "no", Overview(UNITS)) == f"runs: {tmp_path / 'no'} (does not exist)"
    )


def test_names_tell_setups_and_seeds_apart() -> None:
    trb, base = UNITS[0], unit("Untrained student", kind="base_eval")
    vanilla = [unit("Vanilla"), unit("Vanilla", id="v1", seed=1)]
    name = "TRB epsilon0=0.05 K=12"
    assert list(names([trb]).values()) == [name]
    seeds = names([trb, replace(trb, id="x", seed=1)])
    assert list(seeds.values()) == [f"{name} seed 0", f"{name} seed 1"]
    assert names([base, replace(trb, seed=1)])[base.id] == "Untrained student"
    assert list(names([trb, *vanilla]).values()) == [name, "Vanilla seed 0", "Vanilla seed 1"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (0.4, "0s"), (80, "1m20s"), (7500, "2h05m"), (273600, "3d04h")],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_the_best_so_far_stands_under_the_sweep_once_two_methods_have_scores() -> None:
    def family(setup: str, label: str, score: float | None) -> FamilyStatus:
        return FamilyStatus(setup, label, {"done": 1}, score, "", 60)

    untrained, vanilla = family("a", "Untrained student", 0.2), family("a", "Vanilla", 0.45)
    assert best_lines([untrained, vanilla], {}) == []
    ahead, behind = family("a", "TRB", 0.512), family("a", "SKD", 0.4)
    expected = "TRB 51.2 (+6.2) · Vanilla 45.0 · SKD 40.0 (−5.0)"
    assert best_lines([untrained, behind, vanilla, ahead], {}) == [f"best so far: {expected}"]
    finished = {("a", "TRB"): "+6.2 [+1.0, +9.5]*"}
    assert best_lines([behind, vanilla, ahead], finished) == [
        "best so far: TRB 51.2 (+6.2 [+1.0, +9.5]*) · Vanilla 45.0 · SKD 40.0 (−5.0) · * one seed"
    ]
    # Halves are rounded up, as in the table.
    near = [vanilla, family("a", "TRB", 0.4525), family("a", "SKD", 0.4498)]
    assert best_lines(near, {}) == ["best so far: TRB 45.3 (+0.3) · Vanilla 45.0 · SKD 45.0 (0.0)"]
    others = [family("b", "TRB", 0.5), family("b", "Vanilla", None), family("b", "SKD", 0.6)]
    assert best_lines([behind, vanilla, ahead, *others], {}) == [
        f"best so far in a: {expected}",
        "best so far in b: SKD 60.0 · TRB 50.0",
    ]


def test_models_that_are_made_are_reported_in_quarters() -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=80)
    with building(console) as report:
        for update in range(0, 801, 50):
            report("student", {"update": update, "of": 800, "loss": 1.0})
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [re.findall(r"\d+", line)[0] for line in lines] == ["0", "25", "50", "75", "100"]
    assert all(line.startswith("making the student model") for line in lines)


# --- a pipe that is closed ---


def test_output_outlives_its_reader() -> None:
    reading, writing = os.pipe()
    told: list[str] = []
    with os.fdopen(writing, "w") as stream:
        console = Console(file=LastingOutput(stream, lambda: told.append("gone")))  # type: ignore[arg-type]
        console.print("first")
        assert os.read(reading, 100) == b"first\n"
        os.close(reading)
        console.print("second")
        console.print("third")
    assert told == ["gone"]


@pytest.mark.parametrize(
    ("errors", "rest", "expected"),
    [
        (
            [MISTAKE],
            ["done", "waiting"],
            "change the key or file that it names, then: trb submit x",
        ),
        (
            ["wrong weights: other ones"] * 2,
            ["done"],
            "change engine.dtype or engine.sampler, then",
        ),
        ([MISTAKE], ["queued"], "go on with: trb submit x"),
        ([MISTAKE, "lost: its process died"], ["done"], "go on with: trb submit x"),
        ([], ["interrupted"], "go on with: trb submit x"),
    ],
)
def test_what_would_fail_again_is_not_advised_to_be_repeated(
    errors: list[str], rest: list[str], expected: str
) -> None:
    failed = [unit(f"TRB {error}", "failed", error=error) for error in errors]
    others = [unit(f"Veto {state}", state) for state in rest]
    said = next_step(Overview([*failed, *others]), "trb submit x")
    assert expected in said
    assert ("the same again would fail" in said) == expected.startswith("change")


def test_a_trained_unit_that_lacks_its_evaluation_is_queued() -> None:
    trained = replace(UNITS[0], state="queued", doing="queued for evaluation")
    fresh = replace(UNITS[0], state="queued", doing="queued")
    assert (
        summary(Overview([trained, fresh], driven=False))
        == "0 of 2 done · 1 queued · 1 not started"
    )
