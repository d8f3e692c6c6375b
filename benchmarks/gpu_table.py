"""The markdown of `make gpu-proof`: a row for each part with its numbers, and for each phase that
memory is granted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date

from benchmarks.part_runner import Result

TARGETS = {"blend_vs_vanilla": 1.3, "blend_vs_lockstep": 0.6}
TENSORS, DEVICE, GRANTED = "_torch_gib", "_device_gib", "_granted_gib"


def table(
    parts: Sequence[str], results: Mapping[str, Result], place: Mapping[str, str], commit: str
) -> str:
    """Rows of all parts in their order, under a line that says where they were measured; absent
    numbers are empty.
    """
    where = ", ".join(f"{name} {value}" for name, value in place.items())
    lines = [
        f"`make gpu-proof`, {where}, {commit}, {date.today().isoformat()}",
        "",
        "| part | seconds | peak of the card, GiB | measured |",
        "|---|---:|---:|---|",
    ]
    for part in parts:
        if part in results:
            result = results[part]
            peak = _gib(result.device_peak_gib)
            lines.append(
                f"| `{part}` | {result.seconds:.0f} | {peak} | {_measured(result, commit)} |"
            )
        else:
            lines.append(f"| `{part}` |  |  | not measured |")
    prices = blending_prices(results)
    if prices:
        lines.append(f"| blended ÷ (plain + scoring) |  |  | {_shown(prices)} |")
    memory = [row for part in parts if part in results for row in memory_rows(results[part])]
    if memory:
        lines += [
            "",
            "| phase | tensors, GiB | card, GiB | granted, GiB |",
            "|---|---:|---:|---:|",
            *memory,
        ]
    return "\n".join(lines) + "\n"


def memory_rows(result: Result) -> list[str]:
    """Peaks of the phases that the program grants memory for, beside what it grants; bold where
    they are larger.
    """
    rows = []
    for name, granted in result.measured.items():
        if name.endswith(GRANTED):
            phase = name.removesuffix(GRANTED)
            tensors, card = (result.measured.get(f"{phase}{kind}") for kind in (TENSORS, DEVICE))
            shown = f"**{_gib(card)}**" if card is not None and card > granted else _gib(card)
            rows.append(
                f"| `{result.part}` {phase.replace('_', ' ')} | {_gib(tensors)} | {shown} | {_gib(granted)} |"
            )
    return rows


def _measured(result: Result, commit: str) -> str:
    """Why it failed, another commit, and all numbers but those of the table of memory."""
    notes = [] if result.failure is None else [f"**FAILED**: {result.failure}"]
    if result.where.get("commit") != commit:
        notes.append(f"at {result.where.get('commit')}")
    numbers = {
        name: value
        for name, value in result.measured.items()
        if not name.endswith((TENSORS, DEVICE, GRANTED))
    }
    if numbers:
        notes.append(_shown(numbers))
    return "; ".join(notes).replace("|", "\\|")


def _gib(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _shown(numbers: Mapping[str, float]) -> str:
    """`tokens per s 9,812, blend vs vanilla 1.21 (target ≤ 1.3)`."""
    shown = []
    for name, value in numbers.items():
        number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        target = f" (target ≤ {TARGETS[name]:g})" if name in TARGETS else ""
        shown.append(f"{name.replace('_', ' ')} {number}{target}")
    return ", ".join(shown)


def blending_prices(results: Mapping[str, Result]) -> dict[str, float]:
    """Seconds of blended rollouts, which bring their scores, over those of plain ones and of
    scoring them.

    Both engines' rollouts are scored by the torch engine. A price whose parts are not all measured
    is left out.
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
