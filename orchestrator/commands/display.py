"""A sweep in sentences: its units by name, what they do, and lines for the whole."""

from __future__ import annotations

import shlex
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from fractions import Fraction
from pathlib import Path

from rich.console import Console
from rich.text import Text

from analysis.numbers import signed, tenths_text
from orchestrator.experiment.methods import BASE, REFERENCE, method_label
from orchestrator.monitor.status import FamilyStatus, Overview
from orchestrator.monitor.unit_status import STATES, UnitStatus
from orchestrator.selection.study import Study
from orchestrator.sheet import MARK_STYLES, Mark
from orchestrator.sweep.failures import remedy_of

SWEEP_BAR = 24  # characters of the whole sweep's bar
STATE_MARKS: Mapping[str, Mark] = {
    "done": "good",
    "running": "active",
    "failed": "bad",
    "interrupted": "warning",
}
NOT_STARTED = "not started"
SEPARATOR = " · "

# Setup and label → difference to vanilla with its interval, of finished methods; ONE_SEED ends
# those of one training run.
Gaps = Mapping[tuple[str, str], str]
ONE_SEED = "*"


def say(console: Console, *lines: str) -> None:
    """Print lines for people: never wrapped, and no mark-up in them."""
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def header(study: Study, width: int, keys: Sequence[str] = ()) -> list[Text]:
    """The experiment and its differences from its file, then the runs folder and the `keys`."""
    words, differences = iter(study.invocation.words[1:]), []
    for word in words:
        value = [next(words)] if word.startswith("--") else []
        if word != "--runs":
            differences.append(shlex.join([word, *value]))
    name = study.experiment.name
    texts = flowed([name, *differences], width) + flowed([f"runs: {study.runs}", *keys], width)
    lines = [Text(text) for text in texts]
    lines[0].stylize("bold", 0, len(name))
    return lines


def summary_lines(overview: Overview, width: int, gaps: Gaps | None = None) -> list[Text]:
    """A bar of the sweep's steps and the sentences of `sweep_lines`, broken between facts."""
    done = of = 0
    for s in overview.units:
        done += s.step
        of += s.steps
    bar = progress_bar(done, of, min(SWEEP_BAR, width // 3))
    facts = [f"{bar} {done} of {of} steps"] if of else []
    for line in (sweep_line(overview), hours_line(overview)):
        facts += line.split(SEPARATOR) if line else []
    lines = [Text(line) for line in flowed(facts, width)]
    if of:
        lines[0].stylize(MARK_STYLES[progress_mark(done, of)], 0, len(bar))
    for line in best_lines(overview.families, gaps or {}):
        lines += map(Text, flowed(line.split(SEPARATOR), width))
    return lines


def flowed(parts: Sequence[str], width: int) -> list[str]:
    """The parts, joined by dots, in lines of `width`; only a part that is longer is broken."""
    lines: list[str] = []
    for part in parts:
        joined = f"{lines[-1]}{SEPARATOR}{part}" if lines else part
        if lines and len(joined) <= width:
            lines[-1] = joined
        else:
            lines += textwrap.wrap(part, width) or [""]
    return lines


def progress_bar(done: float, of: float, width: int) -> str:
    """`━━━━────`, whose heavy part is done; empty without anything to do, or without room."""
    if not of or width <= 0:
        return ""
    full = int(width * min(1.0, done / of))
    return "━" * full + "─" * (width - full)


def progress_mark(done: float, of: float) -> Mark:
    """The mark of such a bar."""
    return "good" if done >= of else "active"


def names(statuses: Sequence[UnitStatus]) -> dict[str, str]:
    """Unit id → label, with setup and seed where several units share it.

    A run that confirms a choice is called `TRB K=12 confirming seed 100`.
    """
    setups = {s.setup for s in statuses}
    seeds: dict[tuple[str, str], set[int]] = {}
    for s in statuses:
        seeds.setdefault((s.setup, s.label), set()).add(s.seed)
    called = {}
    for s in statuses:
        name = f"{s.setup} {s.label}" if len(setups) > 1 else s.label
        if s.confirms is not None:
            name += f" confirming seed {s.seed}"
        elif len(seeds[s.setup, s.label]) > 1:
            name += f" seed {s.seed}"
        called[s.id] = name
    return called


def sweep_lines(overview: Overview, gaps: Gaps | None = None) -> list[str]:
    """The sweep as a whole, and its cost as far as that is known."""
    lines = [sweep_line(overview), hours_line(overview)]
    return [line for line in lines if line] + best_lines(overview.families, gaps or {})


def best_lines(families: Sequence[FamilyStatus], gaps: Gaps) -> list[str]:
    """`best so far: SFT warmup 92.0 (+5.6) · Vanilla 86.4`, for setups with two scored methods.

    In brackets stands the difference to vanilla in points, with the interval of `gaps` where it is
    known.
    """
    setups: dict[str, dict[str, float]] = {}
    for family in families:
        if family.score is not None and family.label != method_label(BASE):
            setups.setdefault(family.setup, {})[family.label] = family.score
    lines = []
    for setup, scores in setups.items():
        if len(scores) < 2:
            continue
        parts, one_seed, vanilla = [], False, scores.get(method_label(REFERENCE))
        for label in sorted(scores, key=lambda label: scores[label], reverse=True):
            gap = gaps.get((setup, label), "")
            one_seed |= gap.endswith(ONE_SEED)
            if not gap and vanilla is not None and label != method_label(REFERENCE):
                gap = signed(_in_percent(scores[label] - vanilla))
            parts.append(f"{label} {percent(scores[label])}" + (f" ({gap})" if gap else ""))
        if one_seed:
            parts.append(f"{ONE_SEED} one seed")
        where = f" in {setup}" if len({family.setup for family in families}) > 1 else ""
        lines.append(f"best so far{where}: {SEPARATOR.join(parts)}")
    return lines


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
    seconds = overview.seconds_left_range
    if seconds is not None:
        now = datetime.now()
        span = f"{clock(now, seconds.low)} to {clock(now, seconds.high)}"
        parts.append(f"done about {clock(now, seconds.mid)} ({span})")
    estimated = left is not None or seconds is not None
    if overview.calibrated and estimated and unfinished:
        parts.append("rates measured on this card")
    return SEPARATOR.join(parts)


def hours(number: float) -> str:
    """`0.042`, `3.1`, `120` or `12,345`: two digits, and all of those before the point."""
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def clock(now: datetime, seconds: float) -> str:
    """The time of day after so many seconds, with day and year if these are other ones than now."""
    then = now + timedelta(seconds=seconds)
    if then.date() == now.date():
        return f"{then:%H:%M}"
    return f"{then.day} {then:%b}{'' if then.year == now.year else f' {then.year}'} {then:%H:%M}"


def sweep_line(overview: Overview) -> str:
    """`4 of 11 done · 2 running · elapsed 1m20s · left about 2m40s (2m to 3m) · 2 of 2 CPUs used ·
    3.1 trials/min`.
    """
    parts = [summary(overview.units, overview.driven)]
    confirming = Counter(s.state == "done" for s in overview.units if s.confirms is not None)
    if confirming:
        parts.append(f"{confirming[True]} of {confirming.total()} confirming runs done")
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
    return SEPARATOR.join(parts)


def state_words(status: UnitStatus, driven: bool) -> str:
    """The words on a unit: its work or its state; a queued one is not started unless `driven`."""
    words = status.doing or status.state
    return NOT_STARTED if words == "queued" and not driven else words


def state_mark(status: UnitStatus) -> Mark:
    """The mark of these words."""
    return STATE_MARKS.get(status.state, "faint")


def summary(statuses: Sequence[UnitStatus], driven: bool = True) -> str:
    """`12 of 86 done · 4 running · 70 queued`; queued units are not started unless `driven`."""
    counts = Counter[str]()
    for s in statuses:
        idle = state_words(s, driven) == NOT_STARTED
        counts[NOT_STARTED if idle else s.state] += 1
    rest = [f"{counts[word]} {word}" for word in (*STATES[1:], NOT_STARTED) if counts[word]]
    return SEPARATOR.join([f"{counts['done']} of {len(statuses)} done", *rest])


def next_step(statuses: Sequence[UnitStatus], command: str) -> str:
    """How to go on: with the `command`, unless failures that come again hold all that is left."""
    remedies: list[str] = []
    for s in statuses:
        remedy = remedy_of(s.error) if s.state == "failed" else None
        if s.state not in ("done", "waiting") and remedy is None:
            return f"go on with: {command}"
        if remedy is not None and remedy not in remedies:
            remedies.append(remedy)
    if not remedies:
        return f"go on with: {command}"
    return f"the same again would fail; change {' and '.join(remedies)}, then: {command}"


def idle_line(overview: Overview, study: Study) -> str:
    """How to go on with an unfinished sweep that no process works on; empty for any other sweep."""
    if overview.driven or all(s.state == "done" for s in overview.units):
        return ""
    again = next_step(overview.units, study.invocation.command("submit"))
    return f"no process works on this sweep; {again}"


def runs_line(runs: Path, statuses: Sequence[UnitStatus], absent: str = "does not exist") -> str:
    """Name the runs folder, and how much of the experiment it holds; `absent` if it is missing."""
    if not runs.is_dir():
        return f"runs: {runs} ({absent})"
    done = sum(s.state == "done" for s in statuses)
    return f"runs: {runs} ({done} of {len(statuses)} units done)"


def where_to_look(failed: UnitStatus, runs: Path) -> str:
    """Where the story of a failed unit stands."""
    traceback = runs / failed.id / "traceback.txt"
    if not traceback.exists():  # its samples could not be taken
        traceback = next((runs / failed.id).glob("evals/*/*/traceback.txt"), traceback)
    return f"  traceback: {traceback}; its log: trb logs {failed.id} --runs {runs}"


def percent(score: float | None) -> str:
    """A score in [0, 1] in per cent, rounded half up like the results table."""
    return "" if score is None else tenths_text(_in_percent(score))


def _in_percent(score: float) -> Fraction:
    """Exactly what a person reads: 45.15 is no half of a float that lies below."""
    return Fraction(str(round(100 * score, 9)))


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
