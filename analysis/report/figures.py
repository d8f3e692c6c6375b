"""The section `figures`: images with captions, which also say what an image does not show."""

from __future__ import annotations

import base64
from dataclasses import replace

from analysis.figures.catalog import pictures
from analysis.figures.output import to_bytes
from analysis.figures.picture import Picture
from analysis.labels import setup_title
from analysis.report.html import Html, bullets, element, paragraph, section, void
from orchestrator.selection.study import Study

PHONE = 3.6  # inches: a figure that a screen of 390 pixels shows at its own size
WIDE = "(min-width: 46rem)"  # the width below which the style sheet has its layout for phones


def figures_section(study: Study) -> Html:
    """The figures in their order, and the reason for each figure that cannot be drawn."""
    parts, missing = [], []
    for picture in pictures(study):
        setup = setup_title(picture.subject, study.experiment.setups)
        if picture.drawing is None:
            missing.append(f"{picture.caption.title}, {setup}: {picture.missing}")
        else:
            parts.append(figure(picture, setup))
    if missing:
        parts += [paragraph("Not drawn:"), bullets(missing)]
    return section("Figures", "figures", *parts)


def figure(picture: Picture, subject: str) -> Html:
    """A picture that has a figure, and its caption with the title of its setup or experiment.

    An SVG inside an image keeps its ids and styles to itself; inline they would clash with those of
    the page and of other figures. Phones show a narrow version with letters of the same size.
    """
    caption = picture.caption
    image = element(
        "picture",
        void("source", srcset=_source(picture), media=WIDE),
        void("img", src=_source(replace(picture, width=PHONE)), alt=f"{subject}: {caption.alt}"),
    )
    words = element(
        "figcaption",
        element("strong", f"{caption.title}, {subject}. "),
        f"{caption.shows} {picture.basis} ",
        element("em", "What it does not show: "),
        caption.hides,
    )
    return element("figure", image, words, id=picture.name)


def _source(picture: Picture) -> str:
    assert picture.figure is not None
    return f"data:image/svg+xml;base64,{base64.b64encode(to_bytes(picture.figure, 'svg')).decode()}"
