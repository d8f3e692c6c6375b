"""The trust region at one real prefix (paper, Figure 1): the path from student to teacher, ended by
the budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.picture import NOT_PROBED, Caption, Picture, SetupRuns
from analysis.figures.style import (
    EPSILON,
    GRAY,
    NARROW,
    STUDENT,
    TEACHER,
    WIDTH,
    lettered,
    new_figure,
    set_title,
    styled,
)
from analysis.probe import gains

CAPTION = Caption(
    "The trust region at one prefix",
    "line chart of KL over the blending weight, beside bars of next-token probabilities of student, blend, teacher",
    "Left: how far a blend moves from the student as its weight β grows, and where each budget ε stops it. Right: "
    "what that does to the most likely next tokens.",
    "It is one prefix, picked because student and teacher clearly differ there; others are less striking.",
)

SHOWN_SOLUTIONS = 3
TOKEN_LETTERS = 10
PREFIX_LETTERS = 32
LOWEST = 0.01  # nats; stands for the lowest budget where none is positive
VISIBLE = {" ": "␣", "\n": "↵", "\t": "⇥"}
KL = r"KL($\mu_\beta\,\Vert\,\pi_S$) (nats)"


@styled()
def draw(example: Mapping[str, Any], title: str, width: float = WIDTH) -> Figure:
    """Left: KL(μ_β‖p) along the path p^(1−β) q^β, with each budget ε and its β*. Right: p, μ and q
    of the top tokens.

    In a narrow figure they stand one above the other.

    `example` has `tokens` (texts), `p` and `q` (probabilities of those tokens), `solutions`
    (`epsilon`, `beta`, `kl` in nats, `mu`) and `path` (pairs of β and KL in nats); its `prefix`, a
    text, may be there. Of many budgets the right panel shows three.
    """
    if width >= NARROW:
        figure = new_figure(width, 3.4)
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.5))
    else:
        figure = new_figure(width, 6.0)
        left, right = figure.subplots(2, 1)
    solutions = sorted(example["solutions"], key=lambda solution: solution["epsilon"])
    colors = [
        colormaps["Blues"](0.35 + 0.6 * (i + 1) / len(solutions)) for i in range(len(solutions))
    ]
    _draw_path(left, example["path"], solutions, colors)
    _draw_tokens(right, example, [(solutions[i], colors[i]) for i in _spread(len(solutions))])
    lettered([left, right])
    set_title(figure, title)
    return figure


def _draw_path(
    axes: Axes, path: Sequence[Sequence[float]], solutions: Sequence[Any], colors: Sequence[Any]
) -> None:
    """Budgets span decades, so the axis is logarithmic; the student itself, β = 0, lies at minus
    infinity.
    """
    floor = (
        min(
            [solution["epsilon"] for solution in solutions if solution["epsilon"] > 0],
            default=LOWEST,
        )
        / 5
    )
    # The solutions are points of the path too: with them the line runs through their markers.
    points = [*path, *((solution["beta"], solution["kl"]) for solution in solutions)]
    drawn = sorted((beta, kl) for beta, kl in points if kl > 0)
    axes.plot([beta for beta, _ in drawn], [kl for _, kl in drawn], color=GRAY, zorder=2)
    for solution, color in zip(solutions, colors, strict=True):
        epsilon, beta, kl = (solution[name] for name in ("epsilon", "beta", "kl"))
        if epsilon > 0 and kl > 0:
            axes.axhspan(floor, epsilon, color=color, alpha=0.10, linewidth=0)
            axes.axhline(epsilon, color=color, linewidth=0.8, linestyle="--")
            label = rf"{EPSILON}={epsilon:g}: $\beta^*$={beta:.2g}"
            axes.plot(
                [beta],
                [kl],
                color=color,
                marker="o",
                markersize=6,
                linestyle="none",
                label=label,
                zorder=3,
            )
    axes.set(xlabel=r"$\beta$   (0: student, 1: teacher)", ylabel=KL, xlim=(0, 1.02), yscale="log")
    axes.set_ylim(bottom=floor)
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.18),
        ncols=2,
        columnspacing=0.8,
        handletextpad=0.2,
    )


def _draw_tokens(
    axes: Axes, example: Mapping[str, Any], solutions: Sequence[tuple[Any, Any]]
) -> None:
    laws = [
        (r"student $\pi_S$", example["p"], STUDENT),
        *((rf"$\mu^*$ at {EPSILON}={s['epsilon']:g}", s["mu"], color) for s, color in solutions),
        (r"teacher $\pi_T$", example["q"], TEACHER),
    ]
    width = 0.84 / len(laws)
    for index, (label, values, color) in enumerate(laws):
        places = [place + width * (index - (len(laws) - 1) / 2) for place in range(len(values))]
        axes.bar(places, values, width, color=color, label=label)
    axes.set_xticks(range(len(example["tokens"])))
    shown = [token_text(token) for token in example["tokens"]]
    slanted = (
        {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
        if max(map(len, shown)) > 3
        else {}
    )
    for text in axes.set_xticklabels(shown, family="monospace", **slanted):
        text.set_parse_math(False)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel(
        _after(example["prefix"]) if "prefix" in example else "next token", parse_math=False
    )
    axes.set_ylabel("probability")
    axes.legend(loc="upper right")


def token_text(token: str) -> str:
    """A token on one line with its white space visible; letters that the figures' font may lack as
    escapes.
    """
    shown = "".join(
        VISIBLE.get(char, char if _has_glyph(char) else f"\\u{ord(char):04x}") for char in token
    )
    return shown if len(shown) <= TOKEN_LETTERS else shown[: TOKEN_LETTERS - 1] + "…"


def _after(prefix: str) -> str:
    """Names the axis of next tokens by the last letters of the prefix, on one line."""
    text = "".join(char if _has_glyph(char) else "·" for char in " ".join(prefix.split()))
    return f"next token after “{text if len(text) <= PREFIX_LETTERS else '…' + text[1 - PREFIX_LETTERS :]}”"


def _has_glyph(char: str) -> bool:
    """Latin, Greek and Cyrillic letters and mathematical signs are in DejaVu, the font that
    matplotlib ships.
    """
    return char.isprintable() and (ord(char) < 0x530 or 0x2190 <= ord(char) < 0x22A0)


def _spread(count: int) -> list[int]:
    """Indices of at most SHOWN_SOLUTIONS of `count`, from first to last."""
    if count <= SHOWN_SOLUTIONS:
        return list(range(count))
    return [round(i * (count - 1) / (SHOWN_SOLUTIONS - 1)) for i in range(SHOWN_SOLUTIONS)]


def picture(data: SetupRuns) -> Picture:
    """One prefix of the continuation probe of a setup, with its trust regions."""
    name, example = f"overview-{data.name}", gains.example(data.study, data.name)
    if not example:
        return Picture(name, CAPTION, missing=NOT_PROBED)
    return Picture(name, CAPTION, partial(draw, example, data.title))
