"""The figures as images in the page, each with what it shows and what it does not."""

from __future__ import annotations

import base64
from dataclasses import replace

from analysis.figures.catalog import pictures
from analysis.figures.output import to_bytes
from analysis.figures.picture import Picture
from analysis.labels import setup_title
from analysis.report.html import Html, bullets, element, join, paragraph, section, void
from orchestrator.config import Experiment
from orchestrator.selection.study import Study

PHONE = 3.6  # inches: a figure that a screen of 390 pixels shows at its own size
WIDE = "(min-width: 46rem)"  # as the style sheet's narrow layout begins


def figures_section(study: Study) -> Html:
    """The figures in their order, and why the others cannot be drawn."""
    shown, missing = [], []
    for picture in pictures(study):
        setup = _setup(picture, study.experiment)
        if picture.drawing is None:
            missing.append(f"{picture.caption.title}, {setup}: {picture.missing}")
        else:
            shown.append(figure(picture, setup))
    reasons = join([paragraph("Not drawn:"), bullets(missing)]) if missing else Html()
    return section("Figures", "figures", *shown, reasons)


def figure(picture: Picture, subject: str) -> Html:
    """A picture that has a figure, and its caption; `subject` is the setup or the experiment that
    it shows.

    As images, not inline: there their names and styles cannot meet those of the page or of other
    figures.

    The narrow one is for phones and has letters of the same size.
    """
    caption = picture.caption
    image = element(
        "picture",
        void("source", srcset=_source(picture), media=WIDE),
        void("img", src=_source(replace(picture, width=PHONE)), alt=f"{subject}: {caption.alt}"),
    )
    text = [
        element("strong", f"{caption.title}, {subject}. "),
        caption.shows,
        " ",
        picture.basis,
        " ",
    ]
    return element(
        "figure",
        image,
        element("figcaption", *text, element("em", "What it does not show: "), caption.hides),
        id=picture.name,
    )


def _source(picture: Picture) -> str:
    assert picture.figure is not None
    return f"data:image/svg+xml;base64,{base64.b64encode(to_bytes(picture.figure, 'svg')).decode()}"


def _setup(picture: Picture, experiment: Experiment) -> str:
    return setup_title(picture.name.partition("-")[2], experiment.setups)
