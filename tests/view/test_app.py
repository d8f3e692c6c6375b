"""The view as a user drives it: tabs, keys, mouse, search, a unit's log, and a sweep that goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import ContentSwitcher, Footer, Input, Log, Select, SelectionList, Static
from textual_plotext import PlotextPlot

from orchestrator.records.writer import RunWriter
from orchestrator.selection.study import Study
from orchestrator.view.app import CURVES, LEADERBOARD, ROLLOUTS, SAMPLES, UNITS, ViewApp
from orchestrator.view.panes import LiveTable
from orchestrator.view.units import UnitScreen
from tests.fake_runs import units_of
from tests.view.sweeps import small_sweep, write_unit

Driven = Callable[[ViewApp, Pilot[None]], Awaitable[None]]
TABS = [LEADERBOARD, UNITS, CURVES, SAMPLES, ROLLOUTS]
PATIENCE = 3000  # pauses of a hundredth of a second until a condition must hold


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return small_sweep(tmp_path)


def drive(study: Study, act: Driven, size: tuple[int, int] = (80, 24)) -> None:
    """Open the view, wait for its intervals, and act."""

    async def run() -> None:
        async with opened(study, size) as (app, pilot):
            await act(app, pilot)

    asyncio.run(run())


@asynccontextmanager
async def opened(study: Study, size: tuple[int, int]) -> AsyncIterator[tuple[ViewApp, Pilot[None]]]:
    app = ViewApp(study)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: "best of" in text(app, "#evidence"))
        yield app, pilot


async def until(pilot: Pilot[None], is_so: Callable[[], bool]) -> None:
    for _ in range(PATIENCE):
        if is_so():
            return
        await pilot.pause(0.01)
    raise AssertionError("it never came true")


def text(app: ViewApp, selector: str) -> str:
    return str(app.screen.query_one(selector, Static).content)


def rows(app: ViewApp, selector: str) -> list[list[str]]:
    table = app.screen.query_one(selector, LiveTable)
    return [[str(cell) for cell in table.get_row_at(at)] for at in range(table.row_count)]


async def press(pilot: Pilot[None], *keys: str) -> None:
    """Press keys one after the other."""
    for key in keys:
        await pilot.press(key)


async def search(app: ViewApp, pilot: Pilot[None], tab: str, words: str) -> None:
    """Go to a tab, and type words into the search."""
    await show(app, pilot, tab)
    await press(pilot, "slash")
    await until(pilot, lambda: app.query_one("#search", Input).has_focus)
    await press(pilot, *words)
    await until(pilot, lambda: app.query_one("#search", Input).value == words)


async def show(app: ViewApp, pilot: Pilot[None], tab: str) -> None:
    """Go to a tab by its key, and wait until keys reach its rows."""
    await press(pilot, str(TABS.index(tab) + 1))
    await until(pilot, lambda: shows(app, tab))


def shows(app: ViewApp, tab: str) -> bool:
    """Whether a tab is on the screen and has the keys."""
    active = app.query_one(ContentSwitcher).current
    return active == tab and app.focused in list(app.query_one(f"#{tab}").query("*"))


def test_the_best_method_comes_first_with_its_interval(study: Study) -> None:
    async def act(app: ViewApp, _: Pilot[None]) -> None:
        first, second, last = rows(app, "#method-rows")
        assert first[0] == "TRB"
        assert first[2] == "+25.0"
        assert (second[0], second[2]) == ("Vanilla", "")
        assert last[0] == "Untrained student"
        assert "TRB" in text(app, "#evidence")
        assert "80 of 120 steps" in text(app, "#headline")

    drive(study, act)


def test_every_key_of_the_footer_is_shown_in_a_small_terminal(study: Study) -> None:
    async def act(app: ViewApp, pilot: Pilot[None]) -> None:
        footer = app.screen.query_one(Footer)

        def ends() -> list[int]:
            """Right ends of the keys with a place; the footer makes its keys anew whenever they change."""
            return [key.region.right for key in footer.query("FooterKey") if key.region.width > 0]

        await until(pilot, lambda: len(ends()) == 3)
        assert max(ends()) <= app.size.width

    drive(study, act)


def test_keys_and_mouse_change_tabs(study: Study) -> None:
    async def act(app: ViewApp, pilot: Pilot[None]) -> None:
        await show(app, pilot, UNITS)
        await pilot.click(f"#tab-{CURVES}")
        await until(pilot, lambda: shows(app, CURVES))
        await show(app, pilot, LEADERBOARD)

    drive(study, act)


def test_a_search_leaves_rows_out_until_it_is_cleared(study: Study) -> None:
    async def act(app: ViewApp, pilot: Pilot[None]) -> None:
        await search(app, pilot, UNITS, "trb")
        only = [["TRB epsilon0=0.05 K=12"]]
        await until(pilot, lambda: [row[:1] for row in rows(app, "#unit-rows")] == only)
        await press(pilot, "escape")
        await until(pilot, lambda: len(rows(app, "#unit-rows")) == len(study.units))
        assert not app.query_one("#search", Input).display

    drive(study, act)


def test_enter_on_a_method_shows_its_units(study: Study) -> None:
    async def act(app: ViewApp, pilot: Pilot[None]) -> None:
        await press(pilot, "enter")
        only = [["TRB epsilon0=0.05 K=12"]]
        await until(pilot, lambda: [row[:1] for row in rows(app, "#unit-rows")] == only)
        await until(pilot, lambda: shows(app, UNITS))

    drive(study, act)


def test_a_unit_shows_its_growing_log_and_its_error(study: Study) -> None:
    async def act(app: ViewApp, pilot: Pilot[None]) -> None:
        await search(app, pilot, UNITS, "vanilla")
        await press(pilot, "enter")
        await until(pilot, lambda: shows(app, UNITS))
        await press(pilot, "enter")
        await until(pilot, lambda: isinstance(app.screen, UnitScreen))
        log = app.screen.query_one(Log)
        await until(pilot, lambda: "checkpoint of step 40" in "\n".join(log.lines))
        unit = units_of(study.units, "vanilla")[0]
        with closing(RunWriter(study.runs, unit.id)) as run:
            run.log.line("attempt 2 of 3")
            run.fail("it broke", "Traceback: here")
        await until(pilot, lambda: "attempt 2 of 3" in "\n".join(log.lines))
        await until(pilot, lambda: "it broke\nTraceback: here" in text(app, "#error"))
        await press(pilot, "slash")
        await until(pilot, lambda: app.screen.query_one(Input).has_focus)
        await press(pilot, *"attempt")
        await until(pilot, lambda: len([line for line in log.lines if line]) == 1)
        await press(pilot, "escape", "escape")
        await until(pilot, lambda: not isinstance(app.screen, UnitScreen))

    drive(study, act)


def test_curves_follow_the_quantity_and_the_chosen_methods(study: Study) -> None:
    async def act(app: ViewApp, pilot: Pilot[None]) -> None:
        await show(app, pilot, CURVES)
        plot, methods = app.query_one(PlotextPlot), app.query_one(SelectionList)
        await until(pilot, lambda: "75.0" in plot.plt.build())
        assert len(methods.selected) == 2
        await press(pilot, "right")
        await until(pilot, lambda: "25.0" in plot.plt.build())
        drawn = plot.plt.build()
        assert "75.0" not in drawn
        methods.deselect_all()
        await until(pilot, lambda: plot.plt.build() != drawn)

    drive(study, act)


def test_a_problem_is_shown_across_methods_and_steps(study: Study) -> None:
    async def act(app: ViewApp, pilot: Pilot[None]) -> None:
        def shown() -> list[list[str]]:
            return [row[:5] for row in rows(app, "#response-rows")]

        await show(app, pilot, SAMPLES)
        # The selected checkpoints: p1 of TRB is right, of the others it depends on the counts.
        await until(pilot, lambda: len(rows(app, "#problem-rows")) == 4)
        await press(pilot, "down")
        problems = app.query_one("#problem-rows", LiveTable)
        await until(pilot, lambda: problems.selected == "p1")
        selected = [
            ["right", "4", "Vanilla", "0", "40"],
            ["right", "4", "TRB", "0", "40"],
            ["wrong", "4", "Untrained student", "", "0"],
        ]
        await until(pilot, lambda: sorted(shown()) == sorted(selected))
        await press(pilot, "s")
        earlier = [["wrong", "4", "Vanilla", "0", "20"], ["right", "4", "TRB", "0", "20"]]
        await until(pilot, lambda: sorted(shown()) == sorted([*selected, *earlier]))
        assert "2+2=?" in text(app, "#response")

    drive(study, act, (120, 40))


def test_a_filter_leaves_problems_that_one_method_solves_alone(study: Study) -> None:
    async def act(app: ViewApp, pilot: Pilot[None]) -> None:
        await show(app, pilot, SAMPLES)
        await until(pilot, lambda: len(rows(app, "#problem-rows")) == 4)
        choice = app.query_one("#filter", Select)
        await press(pilot, "f")
        await until(pilot, lambda: choice.value == "wrong")
        choice.value = "TRB right, Vanilla wrong"
        await until(pilot, lambda: [row[0] for row in rows(app, "#problem-rows")] == ["p3"])

    drive(study, act, (120, 40))


def test_a_rollout_is_shown_token_by_token(study: Study) -> None:
    async def act(app: ViewApp, pilot: Pilot[None]) -> None:
        await show(app, pilot, ROLLOUTS)
        await until(pilot, lambda: len(rows(app, "#rollout-rows")) == 1)
        assert rows(app, "#rollout-rows")[0][-1] == "75.0"
        assert "1+1=?\nso it is 2" in text(app, "#rollout")

    drive(study, act)


def test_new_scores_reach_the_screen_and_the_cursor_stays(study: Study) -> None:
    async def act(app: ViewApp, pilot: Pilot[None]) -> None:
        table = app.query_one("#method-rows", LiveTable)
        await press(pilot, "down")
        await until(pilot, lambda: (table.selected or "").endswith("vanilla"))
        unit = units_of(study.units, "vanilla")[0]
        write_unit(study, unit, {60: (4, 4, 4, 4)}, 60, done=True)
        await press(pilot, "r")
        await until(pilot, lambda: rows(app, "#method-rows")[0][0] == "Vanilla")
        assert (table.selected or "").endswith("vanilla")

    drive(study, act)


@pytest.mark.parametrize("size", [(80, 24), (140, 40), (60, 15)])
def test_tables_need_no_scrolling_sideways(study: Study, size: tuple[int, int]) -> None:
    async def act(app: ViewApp, pilot: Pilot[None]) -> None:
        for tab, selector in ((LEADERBOARD, "#method-rows"), (UNITS, "#unit-rows")):
            await show(app, pilot, tab)
            table = app.query_one(selector, LiveTable)
            assert table.max_scroll_x == 0 or size[0] < 80
            assert table.size.height > 2

    drive(study, act, size)


def test_the_view_leaves_the_run_directories_as_they_are(study: Study) -> None:
    def contents() -> dict[str, bytes]:
        found = {}
        for path in sorted(study.runs.rglob("*")):
            if path.is_file() and ".index" not in path.parts:
                found[str(path)] = path.read_bytes()
        return found

    async def act(app: ViewApp, pilot: Pilot[None]) -> None:
        for tab in TABS:
            await show(app, pilot, tab)
        await press(pilot, "right", "r")

    before = contents()
    drive(study, act, (140, 40))
    assert contents() == before
