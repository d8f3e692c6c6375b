"""The status of a sweep as text: its units, the families of a large one, and a line for the whole."""

from __future__ import annotations

import shlex
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from orchestrator.config import Experiment
from orchestrator.experiment.methods import BASE, REFERENCE, method_label
from orchestrator.monitor.status import FamilyStatus, Overview
from orchestrator.monitor.unit_status import LONGEST, STATES, UnitStatus
from orchestrator.planning.ranges import SCENARIOS

MOST_ROWS = 40  # of units; larger sweeps show a line for each family
GAP = 2  # blanks between columns
BAR, LEAST_BAR, SWEEP_BAR = 12, 4, 24  # characters, the last of the whole sweep's
SCORE, LEFT, LOSS = 5, 6, 7  # characters: `100.0`, `59m59s`, `12.3456`
WORD = 11  # of what a unit does, where there is no room for `LONGEST` letters
LEAST_NAME = 24  # of a unit's name beside the longest words on it
STYLES = {"done": "green", "running": "cyan", "failed": "red", "interrupted": "yellow"}
ALWAYS_SHOWN = ("running", "failed", "interrupted")
NOT_STARTED = "not started"
SEPARATOR = " · "
COUNTED = {  # headings of a family's units, and the states that count there
    "done": ("done",),
    "running": ("running",),
    "failed": ("failed", "damaged"),
    "to do": ("interrupted", "queued", "waiting"),
}
SHAPES = [  # of the table of families, from wide to narrow: headings of numbers, and whether the best has its step
    (("done", "running", "failed", "to do"), True),
    (("done", "running", "failed"), True),
    (("done", "running", "failed"), False),
    (("done", "failed"), False),
]

# Setup, label → difference to vanilla with its interval, of finished methods; `*` behind those of
# one training run.
Gaps = Mapping[tuple[str, str], str]


def header(experiment: Experiment, runs: Path, width: int, keys: Sequence[str] = ()) -> list[Text]:
    """The experiment and its differences from its file, then the runs folder and what `keys` do."""
    words, differences = iter(experiment.arguments[1:]), []
    for word in words:
        value = [next(words)] if word.startswith("--") else []
        if word != "--runs":
            differences.append(shlex.join([word, *value]))
    first, *rest = flowed([experiment.name, *differences], width)
    lines = [Text(first), *map(Text, rest), *map(Text, flowed([f"runs: {runs}", *keys], width))]
    lines[0].stylize("bold", 0, len(experiment.name))
    return lines


def status_view(
    overview: Overview,
    width: int,
    rows: int = MOST_ROWS,
    every: bool = False,
    sort: str | None = None,
    gaps: Gaps | None = None,
) -> Group:
    """The units, and the sweep below; see `units_view` and `best_lines`."""
    return Group(
        *units_view(overview, width, rows, every, sort),
        Text(),
        *summary_lines(overview, width, gaps),
    )


def units_view(
    overview: Overview, width: int, rows: int, every: bool = False, sort: str | None = None
) -> list[Table | Text]:
    """The units if they take at most `rows` lines or `every` is asked for, else a line for each
    family and the units that need a look. `sort` is `score`, `name`, `state` or `left`.

    Columns and their widths follow from `width` and from which units there are, never from how they
    stand: nothing moves while one looks. Nothing is cropped from `width` 60 on.
    """
    table = unit_table(ordered(overview.units, sort) if sort else overview.units, overview, width)
    if every or sort or table_lines(overview, width) <= rows:
        parts: list[Table | Text] = [table]
    else:
        families = family_table(overview, width)
        looks = [s for s in overview.units if s.state in ALWAYS_SHOWN]
        # Beside the families: a blank line, another heading, and the line that counts what has no
        # room.
        room = rows + 1 - len(Console(width=width).render_lines(families, pad=False)) - 3
        fitting = list(looks)
        while fitting and table_lines(overview, width, fitting) > room:
            fitting.pop()
        parts = [families]
        if fitting:
            parts += [Text(), unit_table(fitting, overview, width)]
        if len(looks) > len(fitting):
            more = " more" if fitting else ""
            parts.append(Text(f"{len(looks) - len(fitting)}{more} running, failed or interrupted"))
    return parts


def summary_lines(overview: Overview, width: int, gaps: Gaps | None = None) -> list[Text]:
    """The sweep as a whole: a bar of its steps and what `sweep_lines` says, in lines that break
    between facts.
    """
    done, of = sum(s.step for s in overview.units), sum(s.steps for s in overview.units)
    progress = bar(done, of, min(SWEEP_BAR, width // 3))
    facts = [f"{progress.plain} {done} of {of} steps"] if of else []
    for line in (sweep_line(overview), hours_line(overview)):
        facts += line.split(SEPARATOR) if line else []
    first, *rest = flowed(facts, width)
    lines = [
        Text.assemble(progress, first[len(progress) :]) if of else Text(first),
        *map(Text, rest),
    ]
    for line in best_lines(overview.families, gaps or {}):
        lines += map(Text, flowed(line.split(SEPARATOR), width))
    return lines


def flowed(parts: Sequence[str], width: int) -> list[str]:
    """The parts, joined by dots, in as many lines of `width` as they need; a longer part is broken."""
    lines: list[str] = []
    for part in parts:
        joined = f"{lines[-1]}{SEPARATOR}{part}" if lines else part
        if lines and len(joined) <= width:
            lines[-1] = joined
        else:
            lines += textwrap.wrap(part, width) or [""]
    return lines


def bar(done: float, of: float, width: int) -> Text:
    """`━━━━────`, of which the heavy part is what is done; blank where there is nothing to do."""
    full = int(width * min(1.0, done / of)) if of else 0
    style = STYLES["done" if done >= of else "running"]
    return (
        Text.assemble(("━" * full, style), ("─" * (width - full), "dim"))
        if of
        else Text(" " * width)
    )


@dataclass(frozen=True)
class _Widths:
    """Characters of the columns of the units: their name, the words on them, the bar and the step,
    and the loss.
    """

    name: int
    words: int
    bar: int
    step: int
    loss: int


def _widths(overview: Overview, width: int) -> _Widths:
    """The name gives way last: first the loss goes, the bar gets shorter, the words do, and then
    the bar goes, too.
    """
    called = names(overview.units).values()
    name = max(map(len, ["unit", *called]))
    word = max(len(word) for label in ["unit", *called] for word in label.split())
    step = max(len(f"{s.steps}/{s.steps}") for s in overview.units) if overview.units else 4
    step, room = max(4, step), width - SCORE - LEFT - 4 * GAP
    wide = room - LONGEST - 1 - step - name
    if wide - LOSS - GAP >= BAR:
        return _Widths(name, LONGEST, BAR, step, LOSS)
    if wide >= LEAST_BAR:
        return _Widths(name, LONGEST, min(BAR, wide), step, 0)
    words = LONGEST if room - LONGEST - LEAST_BAR - 1 - step >= min(name, LEAST_NAME) else WORD
    bar = LEAST_BAR if room - words - LEAST_BAR - 1 - step >= word else 0
    return _Widths(min(name, max(word, room - words - bar - bool(bar) - step)), words, bar, step, 0)


def table_lines(
    overview: Overview, width: int, statuses: Sequence[UnitStatus] | None = None
) -> int:
    """How many lines all units take, or some of them, without their heading."""
    name, called = _widths(overview, width).name, names(overview.units)
    return sum(
        len(textwrap.wrap(called[s.id], name))
        for s in (overview.units if statuses is None else statuses)
    )


def unit_table(statuses: Sequence[UnitStatus], overview: Overview, width: int) -> Table:
    """A row for each unit: what it does, its step, loss, best score and time left; columns suit all
    of the sweep.
    """
    called, widths = names(overview.units), _widths(overview, width)
    columns = [
        ("unit", widths.name),
        ("state", widths.words),
        ("step", widths.bar + bool(widths.bar) + widths.step),
    ]
    columns += [("loss", LOSS)] * bool(widths.loss) + [("score", SCORE), ("left", LEFT)]
    table = _table(columns, left=2)
    for s in statuses:
        words = s.doing or s.state
        if words == "queued" and not overview.driven:
            words = NOT_STARTED
        elif widths.words < LONGEST:
            words = words.split()[0].rstrip(",")
        progress = bar(s.step, s.steps, widths.bar)
        progress.append(
            f"{s.step}/{s.steps}".rjust(widths.step + bool(widths.bar)) if s.steps else ""
        )
        loss = [Text("" if s.loss is None else f"{s.loss:.4f}")] * bool(widths.loss)
        cells = [Text(called[s.id]), Text(words, STYLES.get(s.state, "dim")), progress, *loss]
        table.add_row(*cells, percent(s.score), duration(s.seconds_left))
    return table


def family_table(overview: Overview, width: int) -> Table:
    """A row for each method of each setup: how many of its units stand where, and the best score so
    far.

    Where `width` is short of it, first the units to do have no column, then the step of the best,
    then what runs.
    """
    several = len({family.setup for family in overview.families}) > 1
    called = [f"{f.setup} {f.label}" if several else f.label for f in overview.families]
    sizes = [sum(family.states.values()) for family in overview.families]
    settings, total = ["best at"], max([len("done"), *(len(f"{size}/{size}") for size in sizes)])
    for s in overview.units:
        settings.append(s.label.removeprefix(method_label(s.method or BASE)).strip())
    step = len(f" step {max((s.steps for s in overview.units), default=0)}")
    name, setting = max(map(len, ["method", *called])), max(map(len, settings))

    def room_beside(headings: Sequence[str]) -> int:
        return width - SCORE - total - len("".join(headings[1:])) - GAP * (len(headings) + 2)

    fitting = [
        shape for shape in SHAPES if name + setting + step * shape[1] <= room_beside(shape[0])
    ]
    headings, stepped = fitting[0] if fitting else SHAPES[-1]
    counts, room, place = (
        [total, *map(len, headings[1:])],
        room_beside(headings),
        setting + step * stepped,
    )
    least = [
        max(len(word) for text in texts for word in text.split())
        for texts in (["method", *called], settings)
    ]
    while name + place > room and (name > least[0] or place > least[1]):  # both break at blanks
        name, place = (
            (name - 1, place) if name - least[0] >= place - least[1] else (name, place - 1)
        )
    columns = [
        ("method", name),
        ("best at", place),
        *zip(headings, counts, strict=True),
        ("best", SCORE),
    ]
    table = _table(columns, left=2)
    for family, label, size in zip(overview.families, called, sizes, strict=True):
        at = family.setting or ""
        if stepped and family.step is not None:
            at = f"{at} step {family.step}".strip()
        numbers = [
            sum(family.states.get(state, 0) for state in COUNTED[heading]) for heading in headings
        ]
        table.add_row(
            label,
            at,
            f"{numbers[0]}/{size}",
            *(str(number or "") for number in numbers[1:]),
            percent(family.score),
        )
    return table


def _table(columns: Sequence[tuple[str, int]], left: int) -> Table:
    """A table without rows of columns (heading, width), of which the first `left` break at blanks."""
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for index, (heading, width) in enumerate(columns):
        side = "left" if index < left or heading == "step" else "right"
        table.add_column(heading, width=width, justify=side, no_wrap=index >= left, overflow="fold")
    return table


def names(statuses: Sequence[UnitStatus]) -> dict[str, str]:
    """Unit id → label, with the setup where there are several, and the seed where a label has
    several.
    """
    setups = {s.setup for s in statuses}
    seeds: dict[tuple[str, str], set[int]] = {}
    for s in statuses:
        seeds.setdefault((s.setup, s.label), set()).add(s.seed)
    found = {}
    for s in statuses:
        seeded = len(seeds[s.setup, s.label]) > 1
        parts = [s.setup] * (len(setups) > 1) + [s.label] + [f"seed {s.seed}"] * seeded
        found[s.id] = " ".join(parts)
    return found


def ordered(statuses: Sequence[UnitStatus], by: str) -> list[UnitStatus]:
    """The units sorted: best score first, by name, by state, or by the time that is left; the
    unknown last.
    """
    match by:
        case "score":
            return sorted(
                statuses, key=lambda s: -1.0 if s.score is None else s.score, reverse=True
            )
        case "name":
            return sorted(statuses, key=lambda s: (s.setup, s.label, s.seed))
        case "state":
            return sorted(statuses, key=lambda s: STATES.index(s.state))
        case _:
            return sorted(
                statuses, key=lambda s: float("inf") if s.seconds_left is None else s.seconds_left
            )


def sweep_lines(overview: Overview, gaps: Gaps | None = None) -> list[str]:
    """The sweep as a whole, and what it costs as far as anything of that is known."""
    best = best_lines(overview.families, gaps or {})
    return [line for line in (sweep_line(overview), hours_line(overview), *best) if line]


def best_lines(families: Sequence[FamilyStatus], gaps: Gaps) -> list[str]:
    """`best so far: SFT warmup 92.0 (+5.6) · Vanilla 86.4` for each setup in which two methods have
    scores.

    In brackets stands the difference to vanilla in points, with the interval of `gaps` where it is
    known.
    """
    setups: dict[str, list[FamilyStatus]] = {}
    for family in families:
        if family.score is not None and family.label != method_label(BASE):
            setups.setdefault(family.setup, []).append(family)
    lines = []
    for setup, scored in setups.items():
        if len(scored) < 2:
            continue
        vanilla = next(
            (family.score for family in scored if family.label == method_label(REFERENCE)), None
        )
        parts = []
        for family in sorted(scored, key=lambda family: family.score or 0.0, reverse=True):
            gap = (
                ""
                if vanilla is None or family.label == method_label(REFERENCE)
                else _points(family, vanilla)
            )
            gap = f" ({gaps[setup, family.label]})" if (setup, family.label) in gaps else gap
            parts.append(f"{family.label} {percent(family.score)}{gap}")
        if any(setup == where and gap.endswith("*") for (where, _), gap in gaps.items()):
            parts.append("* one seed")
        where = f" in {setup}" if len({family.setup for family in families}) > 1 else ""
        lines.append(f"best so far{where}: {' · '.join(parts)}")
    return lines


def _points(family: FamilyStatus, vanilla: float) -> str:
    """` (+1.2)`, the difference to vanilla's score in points."""
    difference = (family.score or 0.0) - vanilla
    points = percent(abs(difference))
    return f" ({'' if points == '0.0' else '+' if difference > 0 else '−'}{points})"


def hours_line(overview: Overview) -> str:
    """`0.42 core-hours spent · about 0.90 left (0.70 to 1.2) · done about 14:05 (13:58 to 14:20)`."""
    spent, left = overview.device_hours_spent, overview.device_hours_left
    unfinished = any(s.state != "done" for s in overview.units)
    parts = [f"{hours(spent)} {overview.device}-hours spent"] if spent else []
    if left is not None and unfinished:
        unit = "" if parts else f" {overview.device}-hours"
        parts.append(
            f"about {hours(left.mid)}{unit} left ({hours(left.low)} to {hours(left.high)})"
        )
    if overview.seconds_left_range is not None:
        now = datetime.now()
        low, mid, high = (
            clock(now, overview.seconds_left_range.at(scenario)) for scenario in SCENARIOS
        )
        parts.append(f"done about {mid} ({low} to {high})")
    if (
        overview.calibrated
        and (left is not None or overview.seconds_left_range is not None)
        and unfinished
    ):
        parts.append("rates measured on this card")
    return " · ".join(parts)


def hours(number: float) -> str:
    """`0.042`, `3.1`, `120` or `12,345`: two digits, and all of those before the point."""
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def clock(now: datetime, seconds: float) -> str:
    """The time of day after so many seconds, with the day if it is another one, and the year if
    that is another one.
    """
    then = now + timedelta(seconds=seconds)
    if then.date() == now.date():
        return f"{then:%H:%M}"
    return f"{then.day} {then:%b}{'' if then.year == now.year else f' {then.year}'} {then:%H:%M}"


def sweep_line(overview: Overview) -> str:
    """`4 of 11 done · 2 running · elapsed 1m20s · left about 2m40s (2m to 3m) · 2 of 2 CPUs used ·
    3.1 trials/min`.
    """
    parts = [summary(overview.units, overview.driven)]
    if overview.to_confirm:
        parts.append(f"then {overview.to_confirm} to confirm what is chosen")
    if overview.elapsed is not None:
        parts.append(f"elapsed {duration(overview.elapsed)}")
    if overview.seconds_left is not None:
        span = overview.seconds_left_range
        between = f" ({duration(span.low)} to {duration(span.high)})" if span is not None else ""
        parts.append(f"left about {duration(overview.seconds_left)}{between}")
    kind = "GPU" if overview.cluster.get("GPU") else "CPU"
    if overview.cluster.get(kind):
        parts.append(f"{overview.used[kind]:g} of {overview.cluster[kind]:g} {kind}s used")
    if overview.tokens_a_second is not None:
        parts.append(f"sampling {overview.tokens_a_second:,.0f} tokens/s")
    rate = overview.trials_an_hour
    if rate is not None:
        parts.append(f"{rate / 60:.1f} trials/min" if rate >= 60 else f"{rate:.1f} trials/h")
    return " · ".join(parts)


def summary(statuses: Sequence[UnitStatus], driven: bool = True) -> str:
    """`12 of 86 done · 4 running · 70 queued`; queued units are not started where nothing is
    `driven`.
    """
    counts = Counter(_word(s, driven) for s in statuses)
    rest = [f"{counts[word]} {word}" for word in (*STATES[1:], NOT_STARTED) if counts[word]]
    return " · ".join([f"{counts['done']} of {len(statuses)} done", *rest])


def _word(s: UnitStatus, driven: bool) -> str:
    """The state of a unit, or `not started` as its row in the table says."""
    return NOT_STARTED if (s.doing or s.state) == "queued" and not driven else s.state


def idle_line(overview: Overview, experiment: Experiment) -> str:
    """How to go on with an unfinished sweep that no process works on; empty for any other sweep."""
    if overview.driven or all(s.state == "done" for s in overview.units):
        return ""
    return f"no process works on this sweep; go on with: {experiment.command('submit')}"


def runs_line(runs: Path, statuses: Sequence[UnitStatus], absent: str = "does not exist") -> str:
    """Which runs folder is meant, and how much of the experiment it holds; `absent` if there is no
    such folder.
    """
    if not runs.is_dir():
        return f"runs: {runs} ({absent})"
    done = sum(s.state == "done" for s in statuses)
    return f"runs: {runs} ({done} of {len(statuses)} units done)"


def where_to_look(failed: UnitStatus, runs: Path) -> str:
    """Where the story of a failed unit stands."""
    return f"  traceback: {runs / failed.id / 'traceback.txt'}; its log: trb logs {failed.id} --runs {runs}"


def percent(score: float | None) -> str:
    """A score in [0, 1] in per cent, rounded half up like the results table."""
    return (
        ""
        if score is None
        else str(Decimal(str(round(100 * score, 9))).quantize(Decimal("0.1"), ROUND_HALF_UP))
    )


def duration(seconds: float | None) -> str:
    """`4s`, `3m10s`, `2h05m`, `3d04h`; empty when unknown."""
    if seconds is None:
        return ""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 48 * 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"
