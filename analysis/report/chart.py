"""The section `curves`: a chart whose points name their method, seed, step and value.

`curves.js` draws it from numbers inside the page. The figures have the same curves as pictures, for
paper and for browsers that run no scripts.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from analysis.facts import curves
from analysis.facts.candidates import Selected
from analysis.facts.curves import ScoredSetting
from analysis.facts.evidence import setting_text
from analysis.figures.style import method_style
from analysis.labels import method_label, setup_title
from analysis.report.diagnostics import QUANTITIES
from analysis.report.html import Html, data, element, note, paragraph, section
from orchestrator.selection import scores as selection
from orchestrator.selection.study import Study

# Plotly's name of each marker of the figures, and the sign that stands for it beside a method.
SYMBOLS = {
    "X": ("x", "✖"), "o": ("circle", "●"), "p": ("pentagon", "⬟"), "D": ("diamond", "◆"),
    "^": ("triangle-up", "▲"), "v": ("triangle-down", "▼"), "s": ("square", "■"), "*": ("star", "★"),
    "P": ("cross", "✚"), "d": ("diamond-tall", "♦"), "h": ("hexagon", "⬢"),
    "<": ("triangle-left", "◀"), ">": ("triangle-right", "▶"),
}  # fmt: skip
SCORE = "Mean pass@1 (%)"
WITHOUT = (
    "A browser that runs scripts shows a chart here whose points name method, seed, step and value. The figures below "
    "have the same curves as pictures."
)
EXPLANATION = (
    "The best setting of each method, as in the figures. Lines are means over seeds, and small points single seeds, "
    "which scores alone have here. A point names itself under the pointer; dragging enlarges a part, and a double "
    "click shows all again. The list under the chart has the values at one step."
)


def chart_section(study: Study, chosen: Sequence[Selected]) -> Html:
    """The numbers of all setups and the place in which the script draws them."""
    untrained = curves.base_scores(study)
    setups = []
    for name in study.experiment.setups:
        best = curves.selected_settings(study, name, chosen)
        lines = []
        for index, setting in enumerate(best.values()):
            line = _line(study, name, setting, untrained.get(name), index)
            if line["values"]:
                lines.append(line)
        if lines:
            setups.append({"title": setup_title(name, study.experiment.setups), "lines": lines})
    if not setups:
        missing = paragraph("No step of a chosen run has been logged or evaluated yet.")
        return section("Curves", "curves", missing)
    quantities = [{"key": "score", "title": SCORE, "decimals": 1}]
    for key, column in QUANTITIES.items():
        quantities.append({"key": key, "title": column.heading, "decimals": column.decimals})
    return section(
        "Curves",
        "curves",
        paragraph(WITHOUT, class_="unscripted"),
        element("div", class_="live", id="chart"),
        element("div", note(EXPLANATION), class_="live"),
        data("curves-data", {"quantities": quantities, "setups": setups}),
    )


def _line(
    study: Study, setup: str, setting: ScoredSetting, untrained: float | None, index: int
) -> dict[str, Any]:
    """A setting as `curves.js` draws it: label, colour, marker, and values by quantity.

    `means` are points of step, value and number of seeds, `seeds` points of step, value and seed.
    `index` is the setting's place among those of its setup.
    """
    color, marker = method_style(setting.method, index)
    symbol, sign = SYMBOLS[marker]
    values = {}
    series = curves.score_series(setting, untrained)
    if series.has_values:
        seeds = []
        ids = list(study.evaluation_ids(setup).values())
        for unit in setting.units:
            for step, score in selection.trajectory(study.reader(unit), ids).items():
                seeds.append([unit.first_batch + step, _short(100 * float(score)), unit.seed])
        values["score"] = {"means": _means(series.curve, 100), "seeds": seeds}
    for key, series in curves.metric_series(study, setting, list(QUANTITIES)).items():
        values[key] = {"means": _means(series.curve, QUANTITIES[key].factor), "seeds": []}
    return {
        "method": setting.method,
        "label": method_label(setting.method),
        "setting": setting_text(setting.knobs),
        "color": color,
        "symbol": symbol,
        "sign": sign,
        "values": values,
    }


def _means(curve: curves.Curve, factor: int) -> list[list[float | None]]:
    """Points of step, mean and number of seeds; a step without the quantity breaks the line."""
    points = []
    for step, values in sorted(curve.items()):
        mean = _short(factor * fmean(values)) if values else None
        points.append([step, mean, len(values)])
    return points


def _short(value: float) -> float:
    """Round to six digits, more than a chart shows, so that the page stays small."""
    return float(f"{value:.6g}")
