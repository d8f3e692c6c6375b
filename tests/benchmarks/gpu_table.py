"""The markdown table of `make gpu-proof`: a row for each part, with its peaks of memory and its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date

from tests.benchmarks.part_runner import Result

TARGETS = {"blend_vs_vanilla": 1.3, "blend_vs_lockstep": 0.6}
HEAD = ("part", "seconds", "peak GiB, tensors", "peak GiB, device", "granted GiB", "measured")
TENSORS, DEVICE, GRANTED = "_torch_gib", "_device_gib", "granted_gib"


def table(parts: Sequence[str], results: Mapping[str, Result], place: Mapping[str, str], commit: str) -> str:
    """Rows of all parts in their order, under a line that says where they were measured; absent numbers are empty."""
    where = ", ".join(f"{name} {value}" for name, value in place.items())
    lines = [
        f"`make gpu-proof`, {where}, {commit}, {date.today().isoformat()}",
        "",
        f"| {' | '.join(HEAD)} |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for part in parts:
        cells = ["", "", "", "", "not measured"]
        if part in results:
            cells = _cells(results[part], commit)
        lines.append(f"| `{part}` | {' | '.join(cells)} |")
    derived = blending_prices(results)
    if derived:
        lines.append(f"| blended ÷ (plain + scoring) | | | | | {_shown(derived)} |")
    return "\n".join(lines) + "\n"


def _cells(result: Result, commit: str) -> list[str]:
    measured = result.measured
    phases = [name for name in measured if name.endswith((TENSORS, DEVICE))]
    numbers = {name: value for name, value in measured.items() if name not in phases and name != GRANTED}
    notes = [] if result.failure is None else [f"**FAILED**: {result.failure}"]
    if result.where.get("commit") != commit:
        notes.append(f"at {result.where.get('commit')}")
    if numbers:
        notes.append(_shown(numbers))
    if len(phases) > 2:  # of one phase the columns say it all
        notes.append(_shown({name: measured[name] for name in phases}))
    peaks = [
        max((measured[name] for name in phases if name.endswith(TENSORS)), default=None),
        result.device_peak_gib,
        measured.get(GRANTED),
    ]
    text = "; ".join(notes).replace("|", "\\|")
    return [f"{result.seconds:.0f}", *("" if peak is None else f"{peak:.1f}" for peak in peaks), text]


def _shown(numbers: Mapping[str, float]) -> str:
    """`tokens per s 9,812, blend vs vanilla 1.21 (target ≤ 1.3)`."""
    shown = []
    for name, value in numbers.items():
        number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        target = f" (target ≤ {TARGETS[name]:g})" if name in TARGETS else ""
        shown.append(f"{name.replace('_', ' ')} {number}{target}")
    return ", ".join(shown)


def blending_prices(results: Mapping[str, Result]) -> dict[str, float]:
    """Seconds of blended rollouts, which bring their scores, over those of plain ones and of scoring them.

    Both engines' rollouts are scored by the torch engine. A price whose parts are not all measured is left out.
    """
    prices = {}
    for engine, lengths in (("sglang", (3, 5, 8)), ("torch", (5,))):
        apart = _sum_of(results, [(f"{engine}_plain", "rollout_s"), ("torch_scoring", "scoring_s")])
        for length in lengths:
            together = _sum_of(results, [(f"{engine}_blended_{length}", "rollout_s")])
            if apart is not None and together is not None:
                prices[f"{engine}_{length}"] = together / apart
    return prices


def _sum_of(results: Mapping[str, Result], wanted: Iterable[tuple[str, str]]) -> float | None:
    """The sum of numbers of parts; None unless all are there."""
    total = 0.0
    for part, name in wanted:
        if part not in results or name not in results[part].measured:
            return None
        total += results[part].measured[name]
    return total
