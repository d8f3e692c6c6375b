"""HTML by functions: text is escaped wherever it is put, and only `Html` counts as markup."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestrator.sheet import Cell, Sheet


class Html(str):
    """Finished markup, which is not escaped again.

    Adding a plain string to it gives a plain string, so that the sum is escaped as a whole.
    """

    __slots__ = ()


LONG = 1200  # letters; the block of a longer text may scroll
MISSING = Html('<abbr title="not available">–</abbr>')
MARKS = {"best": "b", "second": "u"}  # elements by the mark of a cell


def join(parts: Iterable[str], between: str = "") -> Html:
    """Texts, which are escaped, and markup in a row."""
    return Html(_markup(between).join(map(_markup, parts)))


def element(name: str, /, *children: str, **attributes: str) -> Html:
    """`<name …>children</name>`.

    An attribute `class_` is written `class`, and `aria_label` as `aria-label`.
    """
    return Html(f"{void(name, **attributes)}{join(children)}</{name}>")


def void(name: str, /, **attributes: str) -> Html:
    """An element that has no end."""
    text = name
    for key, value in attributes.items():
        text += f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
    return Html(f"<{text}>")


def paragraph(*children: str, **attributes: str) -> Html:
    return element("p", *children, **attributes)


def note(text: str) -> Html:
    """A paragraph that explains the parts above it."""
    return paragraph(text, class_="note")


def code(text: str) -> Html:
    return element("code", text)


def block(text: str, label: str) -> Html:
    """A text with its line breaks. A long one scrolls, so it takes the focus of the keyboard."""
    reach = {"tabindex": "0", "role": "region", "aria_label": label} if len(text) > LONG else {}
    return element("pre", text, **reach)


def bullets(items: Iterable[str]) -> Html:
    """A list; nothing without items."""
    entries = join(element("li", item) for item in items)
    return element("ul", entries) if entries else Html()


def terms(texts: Mapping[str, str], **attributes: str) -> Html:
    """A list of terms with their texts; an empty text reads `not recorded`."""
    parts = Html()
    for name, text in texts.items():
        parts = join([parts, element("dt", name), element("dd", text or "not recorded")])
    return element("dl", parts, **attributes)


def section(title: str, key: str, *children: str) -> Html:
    """A part of the page under a heading; the page's contents link to its `key`."""
    return element("section", element("h2", title), *children, id=key)


def scrolling(label: str, *children: str) -> Html:
    """Wrap content that may be wider than a phone: it scrolls by itself, with the keyboard too."""
    return element("div", *children, class_="scroll", role="region", aria_label=label, tabindex="0")


def data(key: str, value: Any) -> Html:
    """JSON for a script of the page, which finds it by the id `key`.

    Escaping `<` keeps a text such as `</script>` from ending the element.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return element("script", Html(text.replace("<", "\\u003c")), type="application/json", id=key)


def table(caption: str, sheet: Sheet, **attributes: str) -> Html:
    """A sheet whose first column names the rows; an empty cell is shown as missing.

    A row that begins with a cell marked `total` stands in the table's foot.
    """
    head = []
    for place, heading in enumerate(sheet.headings):
        head.append(element("th", heading, scope="col", **_kind(sheet, place)))
    body, foot = Html(), Html()
    for row in sheet.rows:
        if row[0].mark == "total":
            foot = join([foot, _row(sheet, row)])
        else:
            body = join([body, _row(sheet, row)])
    parts = [element("thead", element("tr", *head)), element("tbody", body)]
    if foot:
        parts.append(element("tfoot", foot))
    return scrolling(caption, element("table", element("caption", caption), *parts, **attributes))


def _row(sheet: Sheet, row: Sequence[Cell]) -> Html:
    cells = [element("th", _shown(row[0]), scope="row", **_kind(sheet, 0))]
    for place, cell in enumerate(row[1:], 1):
        cells.append(element("td", _shown(cell) or MISSING, **_kind(sheet, place)))
    return element("tr", *cells)


def _shown(cell: Cell) -> Html:
    text = element(MARKS[cell.mark], cell.text) if cell.mark in MARKS else cell.text
    reach = element("small", f" ±{cell.reach}") if cell.text and cell.reach else ""
    return join([text, reach])


def _kind(sheet: Sheet, place: int) -> dict[str, str]:
    """The attribute of a column of texts; the others hold numbers."""
    return {"class_": "text"} if place == 0 or place in sheet.left else {}


def _markup(part: str) -> str:
    return part if isinstance(part, Html) else html.escape(part)
