"""The style sheet and the scripts inside the page, and the policy that lets a browser run them.

Plotly draws the curves. Its Python package ships the script of 4.8 MB; compressed in the page it
takes 2 MB. Bokeh's script is a quarter of that size, but writes style sheets into the page while it
draws, which a policy without `unsafe-inline` forbids.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from importlib.resources import files

from analysis.report.html import Html, element, join

CSS = (files("analysis.report") / "page.css").read_text(encoding="utf-8")
SCRIPTS = ("controls.js", "tables.js", "comparison.js", "curves.js", "samples.js")
# The element with Plotly's compressed script, which `curves.js` unpacks and adds to the page.
PACKED = "plotly"
LEVEL = 6  # of compression: level 9 takes twice as long for 1 % less


def scripts() -> Html:
    """The scripts at the end of the page, in their order."""
    plotly = _plotly()
    packed = base64.b64encode(gzip.compress(plotly.encode(), LEVEL, mtime=0)).decode()
    parts = [element("script", packed, type="text/plain", id=PACKED)]
    # Plotly adds a style sheet for maps unless the page has an element with its id. The policy
    # would refuse the sheet with a complaint in the browser's console.
    maps = re.search(r'getElementById\("([0-9a-f]{64})"\)', plotly)
    if maps:
        parts.append(element("template", id=maps[1]))
    for text in _own():
        parts.append(element("script", Html(text)))
    return join(parts)


def policy() -> str:
    """Let in the style sheet, the scripts and the images inside the page, and no network."""
    allowed = []
    for text in (*_own(), _plotly()):
        allowed.append(_digest(text))
    # Plotly starts a style sheet empty and adds its rules by calls, which a policy does not check.
    styles = f"{_digest(CSS)} {_digest('')}"
    return (
        f"default-src 'none'; script-src {' '.join(allowed)}; style-src {styles}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _own() -> list[str]:
    return [(files("analysis.report") / name).read_text(encoding="utf-8") for name in SCRIPTS]


def _plotly() -> str:
    return (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
