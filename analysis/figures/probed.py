"""Figures of the continuation probe: gains of continued prefixes, and one prefix with its region."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.facts import probe
from analysis.facts.curves import SetupRuns
from analysis.facts.probe import Gain
from analysis.figures import panels
from analysis.figures.picture import NOT_PROBED, Caption, Picture

# --- success of continued prefixes: TRB's over vanilla's (paper, "Early-Training Comparisons") ---

CONTINUATION = Caption(
    "continuation",
    "Gain of continued prefixes",
    "bar chart of the relative gain in success of trust-region prefixes over vanilla ones, by prefix length",
    "Rollouts of the untrained student and of the trust region, cut after t tokens and continued by the student or "
    "the teacher: relative gain in success, with its interval over prompts.",
    "It is measured before any training, and a high relative gain may stand on a low success rate.",
)
FILLS = {"student": (panels.STUDENT, ""), "teacher": (panels.TEACHER, "///")}
INTERVAL = "95 % interval over prompts"
BASIS = "Untrained student; intervals: 95 % bootstrap over prompts."


@panels.styled()
def draw_continuation(
    gains: Mapping[str, Mapping[int, Gain | None]], title: str, width: float = panels.WIDTH
) -> Figure:
    """Bars of the gain in per cent by prefix length t (tokens), a colour for each continuer.

    A gain that is not defined, None, has no bar but the words `no data`.
    """
    figure = panels.new_figure(width, 3.4)
    axes = figure.subplots()
    lengths = sorted(set().union(*gains.values()))
    for index, (continuer, own) in enumerate(gains.items()):
        known = {place: own.get(t) for place, t in enumerate(lengths)}
        defined = {place: gain for place, gain in known.items() if gain is not None}
        heights = {place: 100 * gain[0] for place, gain in defined.items()}
        color, hatch = FILLS[continuer]
        label = f"continued by the {continuer}"
        bars = {"facecolor": color, "hatch": hatch, "label": label, "edgecolor": "white"}
        shift = panels.grouped_bars(axes, index, len(gains), heights, 0.8, **bars)
        for place in range(len(lengths)):
            if place not in defined:
                words = {"color": panels.GRAY, "fontsize": 7, "ha": "center", "va": "bottom"}
                axes.text(place + shift, 0, "no data", rotation=90, **words)
                # Words alone do not widen the axis, and those of the first or last length would
                # lie outside.
                axes.update_datalim([(place + shift, 0)])
                continue
            _, low, high = defined[place]
            if low is not None and high is not None:
                ends = {"color": panels.BLACK, "linewidth": 1, "label": INTERVAL}
                axes.vlines(place + shift, 100 * low, 100 * high, **ends)
    axes.axhline(0, color=panels.BLACK, linewidth=0.8)
    axes.set_xticks(range(len(lengths)), list(map(str, lengths)))
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("length of the prefix, $t$ (tokens)")
    axes.set_ylabel("relative gain of TRB prefixes (%)")
    axes.margins(y=0.15)
    panels.set_title(axes, title)
    panels.shared_legend(figure, [axes])
    return figure


def continuation(data: SetupRuns) -> Picture:
    """The gains that the continuation probe of a setup found."""
    gains = probe.continuation_gains(data.study, data.name)
    if not gains:
        return Picture(CONTINUATION, data.name, missing=NOT_PROBED)
    return Picture(
        CONTINUATION, data.name, partial(draw_continuation, gains, f"{data.title}, step 0"), BASIS
    )


# --- the trust region at one real prefix (paper, Figure 1) ---

OVERVIEW = Caption(
    "overview",
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

Solutions = list[tuple[Mapping[str, Any], Any]]  # each with its colour


@panels.styled()
def draw_overview(example: Mapping[str, Any], title: str, width: float = panels.WIDTH) -> Figure:
    """KL(μ_β‖p) along the path p^(1−β) q^β with each budget ε and its β*, beside the top tokens.

    In a narrow figure the two panels stand one above the other. Of many budgets the panel of
    tokens shows three.

    `example` has `tokens` (texts), `p` and `q` (probabilities of those tokens), `solutions`
    (`epsilon`, `beta`, `kl` in nats, `mu`) and `path` (pairs of β and KL in nats). Its `prefix`, a
    text, is optional.
    """
    if width >= panels.NARROW:
        figure = panels.new_figure(width, 3.4)
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.5))
    else:
        figure = panels.new_figure(width, 6.0)
        left, right = figure.subplots(2, 1)
    ordered = sorted(example["solutions"], key=lambda solution: solution["epsilon"])
    solutions: Solutions = []
    for number, solution in enumerate(ordered, 1):
        solutions.append((solution, colormaps["Blues"](0.35 + 0.6 * number / len(ordered))))
    _draw_path(left, example["path"], solutions)
    few = min(SHOWN_SOLUTIONS, len(solutions))
    spread = np.linspace(0, len(solutions) - 1, few).round().astype(int)
    _draw_tokens(right, example, [solutions[index] for index in spread])
    panels.lettered([left, right])
    panels.set_title(figure, title)
    return figure


def _draw_path(axes: Axes, path: Sequence[Sequence[float]], solutions: Solutions) -> None:
    """KL along the path. Budgets span decades, so the axis of KL is logarithmic.

    The student, at β = 0 with a KL of 0, has no place on such an axis.
    """
    budgets = [solution["epsilon"] for solution, _ in solutions]
    floor = min(filter(None, budgets), default=LOWEST) / 5  # a budget of 0 is the student
    points = list(map(tuple, path))
    for solution, color in solutions:
        epsilon, beta, kl = solution["epsilon"], solution["beta"], solution["kl"]
        # The solutions are points of the path too: with them the line runs through their markers.
        points.append((beta, kl))
        if epsilon > 0 and kl > 0:
            axes.axhspan(floor, epsilon, color=color, alpha=0.10, linewidth=0)
            axes.axhline(epsilon, color=color, linewidth=0.8, linestyle="--")
            label = rf"{panels.EPSILON}={epsilon:g}: $\beta^*$={beta:.2g}"
            axes.plot(beta, kl, "o", color=color, markersize=6, label=label, zorder=3)
    betas, kls = np.array(sorted(points)).T
    axes.plot(betas[kls > 0], kls[kls > 0], color=panels.GRAY, zorder=2)
    axes.set(xlabel=r"$\beta$   (0: student, 1: teacher)", ylabel=KL, xlim=(0, 1.02), yscale="log")
    axes.set_ylim(bottom=floor)
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18), "ncols": 2}
    axes.legend(**place, columnspacing=0.8, handletextpad=0.2)


def _draw_tokens(axes: Axes, example: Mapping[str, Any], solutions: Solutions) -> None:
    laws = [(r"student $\pi_S$", example["p"], panels.STUDENT)]
    for solution, color in solutions:
        label = rf"$\mu^*$ at {panels.EPSILON}={solution['epsilon']:g}"
        laws.append((label, solution["mu"], color))
    laws.append((r"teacher $\pi_T$", example["q"], panels.TEACHER))
    for index, (label, law, color) in enumerate(laws):
        heights = dict(enumerate(law))
        panels.grouped_bars(axes, index, len(laws), heights, 0.84, color=color, label=label)
    axes.set_xticks(range(len(example["tokens"])))
    tokens = list(map(token_text, example["tokens"]))
    slanted = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    turn = slanted if max(map(len, tokens)) > 3 else {}
    for label in axes.set_xticklabels(tokens, family="monospace", **turn):
        label.set_parse_math(False)
    axes.grid(visible=False, axis="x")
    after = _after(example["prefix"]) if "prefix" in example else "next token"
    axes.set_xlabel(after, parse_math=False)
    axes.set_ylabel("probability")
    axes.legend(loc="upper right")


def token_text(token: str) -> str:
    """A token on one line with visible white space, and escapes for letters the font may lack."""
    shown = ""
    for char in token:
        shown += VISIBLE.get(char, char if _has_glyph(char) else f"\\u{ord(char):04x}")
    return shown if len(shown) <= TOKEN_LETTERS else shown[: TOKEN_LETTERS - 1] + "…"


def _after(prefix: str) -> str:
    """Name the axis of next tokens by the last letters of the prefix, on one line."""
    text = "".join(char if _has_glyph(char) else "·" for char in " ".join(prefix.split()))
    if len(text) > PREFIX_LETTERS:
        text = "…" + text[1 - PREFIX_LETTERS :]
    return f"next token after “{text}”"


def _has_glyph(char: str) -> bool:
    """Whether DejaVu, the font that matplotlib ships, surely has a sign for a character.

    Latin, Greek and Cyrillic letters, arrows and mathematical signs are sure.
    """
    return char.isprintable() and (ord(char) < 0x530 or 0x2190 <= ord(char) < 0x22A0)


def overview(data: SetupRuns) -> Picture:
    """One prefix of the continuation probe of a setup, with its trust regions."""
    example = probe.example(data.study, data.name)
    if not example:
        return Picture(OVERVIEW, data.name, missing=NOT_PROBED)
    return Picture(OVERVIEW, data.name, partial(draw_overview, example, data.title))
