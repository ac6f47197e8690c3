"""Tables of figures, for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

_NARROWEST = 12  # characters of the first column


def terminal_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str | None = None,
    caption: str | None = None,
    styles: Sequence[str | None] = (),
    sections: Iterable[int] = (),
    words: bool = False,
) -> Table:
    """A table that fits a narrow terminal: names are broken into lines, figures never.

    Args:
        columns: their names, the first that of the rows' names.
        rows: the cells.
        title: above the table.
        caption: below it.
        styles: of each row, in rich's words; may be left out.
        sections: the numbers of the rows above which a line is drawn.
        words: the cells are words, not figures: aligned left, and broken where needed; the names
            are kept whole.
    """
    table = Table(title=_plain(title), caption=_plain(caption), box=SIMPLE, padding=0)
    table.title_justify, table.title_style = "left", "bold"
    table.caption_justify = "left"
    for k, name in enumerate(columns):
        width = max((len(row[k]) for row in rows), default=0)
        if words:
            table.add_column(name, no_wrap=k == 0)
        elif k == 0:
            table.add_column(name, overflow="fold", min_width=min(width, _NARROWEST))
        else:
            table.add_column(name, justify="right", overflow="fold", min_width=width)
    for k, row in enumerate(rows):
        if k in sections:
            table.add_section()
        table.add_row(*map(escape, row), style=styles[k] if styles else None)
    return table


def markdown_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, align_right: bool = False
) -> str:
    """A Markdown table; `align_right` aligns all columns but the first to the right.

    Example:
        >>> print(markdown_table(["unit", "evals"], [["RLOO", "2"]]))
        | unit | evals |
        |---|---|
        | RLOO | 2 |
    """
    rule = "|" + "---|" * len(columns)
    if align_right:
        rule = _line(["---", *["---:"] * (len(columns) - 1)])
    return "\n".join([_line(columns), rule, *map(_line, rows)])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _plain(text: str | None) -> str | None:
    """Brackets in a user's words are not rich's markup."""
    return None if text is None else escape(text)
