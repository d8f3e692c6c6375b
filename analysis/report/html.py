"""HTML by functions: what is not `Html` already is text, and is escaped wherever it is put."""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Sequence


class Html(str):
    """Finished markup. Joining it with a plain string gives a plain string again, which would be
    escaped.
    """

    __slots__ = ()


MISSING = Html('<abbr title="not available">–</abbr>')


def join(parts: Iterable[str], between: str = "") -> Html:
    """Texts, escaped, and markup in a row."""
    return Html(_markup(between).join(_markup(part) for part in parts))


def element(name: str, /, *children: str, **attributes: str) -> Html:
    """`<name …>children</name>`; an attribute's name may end in an underscore, and has hyphens for
    those within.
    """
    return Html(f"{_open(name, attributes)}{join(children)}</{name}>")


def void(name: str, /, **attributes: str) -> Html:
    """An element that has no end."""
    return Html(_open(name, attributes))


def paragraph(*children: str, **attributes: str) -> Html:
    return element("p", *children, **attributes)


def bullets(items: Iterable[str]) -> Html:
    """A list; nothing without items."""
    entries = [element("li", item) for item in items]
    return element("ul", *entries) if entries else Html()


def section(title: str, key: str, *children: str) -> Html:
    """A part of the page with the heading that its contents point at."""
    return element("section", element("h2", title), *children, id=key)


def scrolling(label: str, *children: str) -> Html:
    """Wrap content that may be wider than a phone: it scrolls by itself, with the keyboard too."""
    return element("div", *children, class_="scroll", role="region", aria_label=label, tabindex="0")


def table(
    caption: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    texts: Collection[str] = (),
    total: Sequence[str] | None = None,
) -> Html:
    """A table whose first column names the rows; an empty cell is shown as missing.

    The columns named in `texts` are set as text, the others as numbers. `total` is a last row of
    its own.
    """
    kinds = [{"class_": "text"} if name in texts else {} for name in headings]
    kinds[0] = {"class_": "text"}
    head = [
        element("th", name, scope="col", **kind) for name, kind in zip(headings, kinds, strict=True)
    ]
    parts = [
        element("caption", caption),
        element("thead", element("tr", *head)),
        element("tbody", *(_row(row, kinds) for row in rows)),
    ]
    parts += [element("tfoot", _row(total, kinds))] if total else []
    return scrolling(caption, element("table", *parts))


def _row(cells: Sequence[str], kinds: Sequence[dict[str, str]]) -> Html:
    first, *rest = zip(cells, kinds, strict=True)
    header = element("th", first[0], scope="row", **first[1])
    return element("tr", header, *(element("td", cell or MISSING, **kind) for cell, kind in rest))


def _markup(part: str) -> str:
    return part if isinstance(part, Html) else html.escape(part)


def _open(name: str, attributes: dict[str, str]) -> str:
    texts = (
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
        for key, value in attributes.items()
    )
    return f"<{name}{''.join(texts)}>"
