"""Write the generated tables of README and docs anew, from the classes and from results/.

A page shows a table by having its two markers, `<!-- name: … -->` and `<!-- /name -->`; what stands
between them is replaced, and nothing else of the page is touched. `make readme` runs this in the
root of the repository.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hardgate_lab.bench import bench_tables
from hardgate_lab.compare import comparison_tables
from hardgate_lab.facts import facts_table
from hardgate_lab.reproduce import table
from hardgate_lab.rig import markers
from hardgate_lab.toy import toy_tables
from hardgate_lab.vae import vae_record, vae_table, variance_table

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"


def _read(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((RESULTS / name).read_text())
    return record


def _rows() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((RESULTS / "reproduce").glob("*.json"))]


def _vae() -> str:
    folder = RESULTS / "vae"
    return vae_table.markdown(vae_record.read(folder), vae_record.read_variance(folder))


TABLES: dict[str, Callable[[], str]] = {
    "facts": facts_table.markdown,
    "estimators": facts_table.estimators_markdown,
    "reproduce": lambda: table.markdown(_rows()),
    "compare": lambda: comparison_tables.rankings(_read("compare.json")),
    "recommended": lambda: comparison_tables.advice(_read("compare.json")),
    "toy": lambda: toy_tables.markdown(_read("toy.json")),
    "bench": lambda: bench_tables.markdown(_read("bench.json")),
    "vae": _vae,
    "vae-variance": lambda: variance_table.markdown(vae_record.read_variance(RESULTS / "vae")),
}


def pages() -> list[Path]:
    """README and docs, those that have a table."""
    all_pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [page for page in all_pages if markers.present(page.read_text(), TABLES)]


def written(page: Path) -> str:
    """The text of a page with its tables written anew."""
    return markers.write(page.read_text(), TABLES)


if __name__ == "__main__":
    for path in pages():
        path.write_text(written(path))
        print(f"→ {path.relative_to(ROOT)}")
