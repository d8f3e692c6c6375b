"""The figures as images in the page, each with what it shows and what it does not."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass

from matplotlib.figure import Figure

from analysis.figures import output
from analysis.figures.catalog import Picture, pictures
from analysis.labels import setup_title
from analysis.report.html import Html, bullets, element, join, paragraph, section, void
from orchestrator.config import Experiment
from orchestrator.selection.study import Study

PHONE = 3.6  # inches: a figure that a screen of 390 pixels shows at its own size
WIDE = "(min-width: 46rem)"  # as the style sheet's narrow layout begins


@dataclass(frozen=True)
class Caption:
    """`alt` says what kind of picture it is; `shows` how to read it; `hides` what must not be read from it."""

    title: str
    alt: str
    shows: str
    hides: str


CAPTIONS: Mapping[str, Caption] = {
    "trajectories": Caption(
        "Scores over training",
        "line chart of mean pass@1 over optimizer steps, a line for the best setting of each method",
        "Mean pass@1 over the setup's benchmarks at each evaluated checkpoint, for the best setting of each method.",
        "The settings were chosen by these scores, so the highest points are biased upward.",
    ),
    "entropy": Caption(
        "Teacher entropy and scores",
        "two stacked line charts over optimizer steps, teacher entropy above mean pass@1, vanilla and trust region",
        "Mean entropy of the teacher's next-token distribution on the prefixes that were visited, above the scores of "
        "the same runs; the blended steps are shaded.",
        "Low entropy alone does not say that a prefix is good: the teacher can be certain of a wrong path.",
    ),
    "sweep": Caption(
        "Best score over the grids",
        "panels of best mean pass@1 over the hyperparameters of each method, vanilla as a dashed line",
        "The best checkpoint of each hyperparameter setting; methods with a single one share a panel. The dashed line "
        "is vanilla's best, shaded as far as its own bar would reach.",
        "Each point is a maximum over checkpoints, of noisy scores. Settings beside each other may differ by chance.",
    ),
    "tradeoff": Caption(
        "Support against separability",
        "scatter plot of the AUROC of the teacher-support score over the mean teacher log-prob of sampled tokens",
        "The rollouts of a run's first steps: how likely the teacher finds them, and how well its support ranks "
        "correct above incorrect ones. Colour: share of correct rollouts.",
        "Early rollouts only; where a run ends is not in it.",
    ),
    "diagnostics": Caption(
        "What the steps logged",
        "small line charts over optimizer steps, one for each logged quantity",
        "Logged quantities of vanilla, of the best trust-region setting and of the best SKD setting. A line ends where "
        "a run no longer has the quantity, as after the warmup.",
        "They describe the batches a run trained on, not held-out problems; the batches differ in what was sampled.",
    ),
    "continuation": Caption(
        "Gain of continued prefixes",
        "bar chart of the relative gain in success of trust-region prefixes over vanilla ones, by prefix length",
        "Rollouts of the untrained student and of the trust region, cut after t tokens and continued by the student or "
        "the teacher: relative gain in success, with its interval over prompts.",
        "It is measured before any training, and a high relative gain may stand on a low success rate.",
    ),
    "overview": Caption(
        "The trust region at one prefix",
        "line chart of KL over the blending weight, beside bars of next-token probabilities of student, blend, teacher",
        "Left: how far a blend moves from the student as its weight β grows, and where each budget ε stops it. Right: "
        "what that does to the most likely next tokens.",
        "It is one prefix, picked because student and teacher clearly differ there; others are less striking.",
    ),
}


def figures_section(study: Study) -> Html:
    """The figures in their order, and why the others cannot be drawn."""
    found = list(pictures(study))
    narrow = pictures(study, PHONE)
    drawn, missing = [], []
    for picture, small in zip(found, narrow, strict=True):
        setup = _setup(picture, study.experiment)
        if picture.figure is None or small.figure is None:
            missing.append(f"{_caption(picture).title}, {setup}: {picture.missing}")
        else:
            drawn.append(_figure(picture, picture.figure, small.figure, setup))
    reasons = join([paragraph("Not drawn:"), bullets(missing)]) if missing else Html()
    return section("Figures", "figures", *drawn, reasons)


def _figure(picture: Picture, wide: Figure, narrow: Figure, setup: str) -> Html:
    """As images, not inline: there their names and styles cannot meet those of the page or of other figures.

    The narrow one is for phones and has letters of the same size.
    """
    caption = _caption(picture)
    image = element(
        "picture",
        void("source", srcset=_source(wide), media=WIDE),
        void("img", src=_source(narrow), alt=f"{setup}: {caption.alt}"),
    )
    text = [element("strong", f"{caption.title}, {setup}. "), caption.shows, " ", picture.basis, " "]
    return element(
        "figure",
        image,
        element("figcaption", *text, element("em", "What it does not show: "), caption.hides),
        id=picture.name,
    )


def _source(figure: Figure) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(output.to_bytes(figure, 'svg')).decode()}"


def _caption(picture: Picture) -> Caption:
    return CAPTIONS[picture.name.partition("-")[0]]


def _setup(picture: Picture, experiment: Experiment) -> str:
    return setup_title(picture.name.partition("-")[2], experiment.setups)
