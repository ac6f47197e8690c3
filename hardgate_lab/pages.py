"""`python -m hardgate_lab.pages`: the lab's generated tables, from the committed results."""

from __future__ import annotations

import json
from pathlib import Path

from hardgate_lab.compare import comparison_tables
from hardgate_lab.facts import facts_table
from hardgate_lab.toy import toy_tables


def estimators(page: str, results: Path) -> str:
    """docs/estimators.md, with its tables written anew."""
    page = comparison_tables.write(facts_table.write(page), _read(results / "compare.json"))
    return toy_tables.write(page, _read(results / "toy.json"))


def choosing(page: str, results: Path) -> str:
    """docs/choosing.md, with its recommendations written anew."""
    return comparison_tables.write(page, _read(results / "compare.json"))


def _read(path: Path) -> dict[str, object]:
    record: dict[str, object] = json.loads(path.read_text())
    return record


def main() -> None:
    """Write both pages."""
    for name, written in (("estimators", estimators), ("choosing", choosing)):
        path = Path("docs") / f"{name}.md"
        path.write_text(written(path.read_text(), Path("results")))


if __name__ == "__main__":
    main()
