"""The options of `hardgate facts`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer
from rich.console import Console

from hardgate_lab.facts import facts_table
from hardgate_lab.rig.options import Page
from hardgate_lab.rig.text_tables import terminal_table


def facts_command(
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    write: Page = None,
) -> None:
    """List all units and estimators, and the mathematical facts that each declares.

    A fact is an attribute of the class: whether its gradient is unbiased, how
    often it evaluates f, whether it needs the gradient of f. The tests check
    every one of them against the exact gradient.

    Examples:

        hardgate facts

        hardgate facts --markdown
    """
    if write is not None:
        try:
            write.write_text(facts_table.write(write.read_text()))
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--write") from None
        return
    if as_markdown:
        typer.echo(f"{facts_table.markdown()}\n\n{facts_table.estimators_markdown()}")
        return
    estimators = list(facts_table.estimator_facts())
    _show("Units", facts_table.COLUMNS, facts_table.facts())
    _show("Estimators", facts_table.ESTIMATOR_COLUMNS[:-1], (row[:-1] for row in estimators))
    _show("What they are", ("estimator", "what it is"), ((row[0], row[-1]) for row in estimators))


def _show(title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    Console().print(terminal_table(columns, list(rows), title=title, words=True))
