"""The style sheet and the scripts inside the page.

Plotly draws the curves. Its Python package ships the script of 4.8 MB; compressed in the page it
takes 2 MB.
"""

from __future__ import annotations

import base64
import gzip
from importlib.resources import files

from analysis.report.html import Html, element, join

CSS = (files("analysis.report") / "page.css").read_text(encoding="utf-8")
SCRIPTS = ("controls.js", "tables.js", "comparison.js", "curves.js", "samples.js")
# The element with Plotly's compressed script, which `curves.js` unpacks and adds to the page.
PACKED = "plotly"
LEVEL = 6  # of compression: level 9 takes twice as long for 1 % less


def scripts() -> Html:
    """The scripts at the end of the page, in their order."""
    plotly = (files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    packed = base64.b64encode(gzip.compress(plotly, LEVEL, mtime=0)).decode()
    parts = [element("script", packed, type="text/plain", id=PACKED)]
    for name in SCRIPTS:
        text = (files("analysis.report") / name).read_text(encoding="utf-8")
        parts.append(element("script", Html(text)))
    return join(parts)
