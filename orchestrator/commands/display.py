"""A sweep in sentences: lines above and below its rows (`unit_rows`), and how to go on with it."""

from __future__ import annotations

import shlex
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from rich.console import Console
from rich.text import Text

from analysis.numbers import signed
from orchestrator.commands.unit_rows import (
    NOT_STARTED,
    duration,
    percent,
    points,
    progress_bar,
    state_words,
)
from orchestrator.experiment.methods import BASE, REFERENCE, method_label
from orchestrator.monitor.status import FamilyStatus, Overview
from orchestrator.monitor.unit_status import STATES, UnitStatus
from orchestrator.selection.study import Study
from orchestrator.sheet import MARK_STYLES
from orchestrator.sweep.failures import remedy_of

SWEEP_BAR = 24  # characters of the whole sweep's bar
SEPARATOR = " · "

# Setup and label → difference to vanilla with its interval, of finished methods; ONE_SEED ends
# those of one training run.
Gaps = Mapping[tuple[str, str], str]
ONE_SEED = "*"


def say(console: Console, *lines: str) -> None:
    """Print lines for people: never wrapped, and no mark-up in them."""
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


# --- above and below the units ---


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
    bar = progress_bar(overview.steps, overview.all_steps, min(SWEEP_BAR, width // 3))
    facts = [f"{bar.text} {steps_words(overview)}"] if bar.text else []
    for line in (sweep_line(overview), hours_line(overview)):
        facts += line.split(SEPARATOR) if line else []
    lines = [Text(line) for line in flowed(facts, width)]
    lines[0].stylize(MARK_STYLES[bar.mark], 0, len(bar.text))
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


# --- the sweep as a whole ---


def sweep_lines(overview: Overview, gaps: Gaps | None = None) -> list[str]:
    """The sweep as a whole, and its cost as far as that is known."""
    lines = [sweep_line(overview), hours_line(overview)]
    return [line for line in lines if line] + best_lines(overview.families, gaps or {})


def steps_words(overview: Overview) -> str:
    """`80 of 120 steps`."""
    return f"{overview.steps} of {overview.all_steps} steps"


def sweep_line(overview: Overview) -> str:
    """`4 of 11 done · 2 running · elapsed 1m20s · left about 2m40s (2m to 3m) · 2 of 2 CPUs used ·
    3.1 trials/min`.
    """
    parts = [summary(overview)]
    confirming = Counter(s.state == "done" for s in overview.units if s.confirms is not None)
    if confirming:
        parts.append(f"{confirming[True]} of {confirming.total()} confirming runs done")
    if overview.to_confirm:
        parts.append(f"then {overview.to_confirm} to confirm what is chosen")
    if overview.elapsed is not None:
        parts.append(f"elapsed {duration(overview.elapsed)}")
    span = overview.seconds_left_range
    if span is not None:
        between = f"{duration(span.low)} to {duration(span.high)}"
        parts.append(f"left about {duration(span.mid)} ({between})")
    kind = "GPU" if overview.cluster.get("GPU") else "CPU"
    if overview.cluster.get(kind):
        parts.append(f"{overview.used[kind]:g} of {overview.cluster[kind]:g} {kind}s used")
    if overview.tokens_a_second is not None:
        parts.append(f"sampling {overview.tokens_a_second:,.0f} tokens/s")
    rate = overview.trials_an_hour
    if rate is not None:
        parts.append(f"{rate / 60:.1f} trials/min" if rate >= 60 else f"{rate:.1f} trials/h")
    return SEPARATOR.join(parts)


def summary(overview: Overview) -> str:
    """`12 of 86 done · 4 running · 70 queued`; queued units are not started unless it is driven."""
    counts = Counter[str]()
    for s in overview.units:
        idle = state_words(s, overview.driven) == NOT_STARTED
        counts[NOT_STARTED if idle else s.state] += 1
    rest = [f"{counts[word]} {word}" for word in (*STATES[1:], NOT_STARTED) if counts[word]]
    if counts["stopped"]:
        rest[0] = f"{counts['stopped']} of these stopped by the search"
    return SEPARATOR.join([f"{overview.done} of {len(overview.units)} done", *rest])


def hours_line(overview: Overview) -> str:
    """`0.42 core-hours spent · about 0.90 left (0.70 to 1.2) · done about 14:05 (13:58 to 14:20)`."""
    spent, left = overview.device_hours_spent, overview.device_hours_left
    parts = [f"{hours(spent)} {overview.device}-hours spent"] if spent else []
    if left is not None and not overview.is_done:
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
    if overview.calibrated and estimated and not overview.is_done:
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
                gap = signed(points(scores[label] - vanilla))
            parts.append(f"{label} {percent(scores[label])}" + (f" ({gap})" if gap else ""))
        if one_seed:
            parts.append(f"{ONE_SEED} one seed")
        where = f" in {setup}" if len({family.setup for family in families}) > 1 else ""
        lines.append(f"best so far{where}: {SEPARATOR.join(parts)}")
    return lines


# --- how to go on ---


def next_step(overview: Overview, command: str) -> str:
    """How to go on: with the `command`, unless failures that come again hold all that is left."""
    remedies: list[str] = []
    for s in overview.units:
        remedy = remedy_of(s.error) if s.state == "failed" else None
        if not s.has_ended and s.state != "waiting" and remedy is None:
            return f"go on with: {command}"
        if remedy is not None and remedy not in remedies:
            remedies.append(remedy)
    if not remedies:
        return f"go on with: {command}"
    return f"the same again would fail; change {' and '.join(remedies)}, then: {command}"


def idle_line(overview: Overview, study: Study) -> str:
    """How to go on with an unfinished sweep that no process works on; empty for any other sweep."""
    if overview.driven or overview.is_done:
        return ""
    again = next_step(overview, study.invocation.command("submit"))
    return f"no process works on this sweep; {again}"


def runs_line(runs: Path, overview: Overview, absent: str = "does not exist") -> str:
    """Name the runs folder, and how much of the experiment it holds; `absent` if it is missing."""
    if not runs.is_dir():
        return f"runs: {runs} ({absent})"
    return f"runs: {runs} ({overview.done} of {len(overview.units)} units done)"


def where_to_look(failed: UnitStatus, runs: Path) -> str:
    """Where the story of a failed unit stands."""
    traceback = runs / failed.id / "traceback.txt"
    if not traceback.exists():  # its samples could not be taken
        traceback = next((runs / failed.id).glob("evals/*/*/traceback.txt"), traceback)
    return f"  traceback: {traceback}; its log: trb logs {failed.id} --runs {runs}"
