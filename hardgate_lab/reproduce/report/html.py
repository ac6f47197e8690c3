"""HTML from text: what is not HTML by its type is escaped."""

from __future__ import annotations

import html
from collections.abc import Sequence


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: str) -> Html:
    """An element; children that are plain text, and all attributes, are escaped.

    Args:
        name: of the element.
        children: its content; `Html` as it is, any other string escaped.
        attributes: `class_` stands for class, `data_label` for data-label.

    Returns:
        the element.

    Example:
        >>> element("p", "1 < 2, ", element("b", "always"), class_="note")
        '<p class="note">1 &lt; 2, <b>always</b></p>'
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
        for key, value in attributes.items()
    )
    return Html(f"<{name}{given}>{join(*children)}</{name}>")


def join(*parts: str) -> Html:
    """One after the other; what is plain text is escaped."""
    return Html("".join(p if isinstance(p, Html) else html.escape(p, quote=False) for p in parts))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    """A table; on a phone each row becomes a card, where `data-label` stands for the head."""
    head = element("tr", *(element("th", name, scope="col") for name in heads))
    body = [
        element("tr", *(_cell(name, cell) for name, cell in zip(heads, cells, strict=True)))
        for cells in rows
    ]
    return element("table", element("thead", head), element("tbody", *body))


def _cell(head: str, content: str) -> Html:
    return element("td", element("div", content), data_label=head)
