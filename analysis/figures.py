"""Figures, one function each, from plain numbers; PNG and PDF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

# Okabe–Ito: distinguishable with any kind of colour vision.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C8C00")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def draw_trajectories(curves: dict[str, dict[int, list[float]]], title: str) -> Any:
    """Mean pass@1 (in [0, 1], shown in per cent) over optimizer steps, a line for each run.

    Where a step has several values (seeds), the line is their mean and the band ±1 standard deviation.
    """
    figure, axes = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
    for index, (label, curve) in enumerate(curves.items()):
        if curve:
            _draw_curve(axes, label, curve, COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)])
    axes.set(xlabel="optimizer step", ylabel="mean pass@1 (%)", title=title)
    axes.grid(color="#D8E2EC", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _draw_curve(axes: Any, label: str, curve: dict[int, list[float]], color: str, marker: str) -> None:
    steps, values = list(curve), list(curve.values())
    means = [100 * sum(v) / len(v) for v in values]
    axes.plot(steps, means, label=label, linewidth=1.6, markersize=5, color=color, marker=marker)
    if max(map(len, values)) > 1:
        spread = [100 * _deviation(v) for v in values]
        low, high = ([m + side * d for m, d in zip(means, spread, strict=True)] for side in (-1, 1))
        axes.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0)


def save(figure: Any, folder: Path, name: str) -> list[Path]:
    """Write `name`.png and `name`.pdf, without a date inside, and close the figure."""
    paths = [folder / f"{name}.png", folder / f"{name}.pdf"]
    figure.savefig(paths[0], dpi=160, metadata={"Software": None})
    figure.savefig(paths[1], metadata={"CreationDate": None})
    plt.close(figure)
    return paths


def _deviation(values: list[float]) -> float:
    mean = sum(values) / len(values)
    return (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5 if len(values) > 1 else 0.0
