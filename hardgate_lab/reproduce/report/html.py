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
        attributes: `class_` stands for class, `aria_label` for aria-label.

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


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    groups: Sequence[tuple[str, int]] = (),
    class_: str = "",
) -> Html:
    """A table in a box of its own, in which it scrolls where the screen is narrow.

    Args:
        heads: the names of the columns.
        rows: the cells; the first of each names its row.
        groups: above the heads: a title, and how many columns it stands for.
        class_: of the box, besides "scroll".

    Returns:
        the box.
    """
    above = [
        element("th", title, scope="colgroup", colspan=str(columns)) for title, columns in groups
    ]
    lines = [element("tr", *above)] if above else []
    lines.append(element("tr", *(element("th", name, scope="col") for name in heads)))
    body = [
        element("tr", element("th", name, scope="row"), *(element("td", cell) for cell in cells))
        for name, *cells in rows
    ]
    filled = element("table", element("thead", *lines), element("tbody", *body))
    # A box that scrolls can be reached by keyboard.
    return element("div", filled, class_=f"scroll {class_}".strip(), tabindex="0")
