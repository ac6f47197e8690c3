"""README and docs: short where they must be, and every link, file and figure in them is real."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tools import draw_figure1, headlines

PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
IDS = [str(page.relative_to(ROOT)) for page in PAGES]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


def test_the_readme_is_short_and_in_order() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 150
    assert [line.removeprefix("## ") for line in lines if line.startswith("## ")] == [
        "Two commands",
        "Fifteen lines",
        "The paper's experiment",
        "Speed",
        "Where to go next",
    ]
    assert lines.index("## Two commands") < 25  # what it is, for whom, what it gives: one screen


def test_figure_1_is_what_the_script_draws() -> None:
    drawn = draw_figure1.draw()
    assert draw_figure1.TARGET.read_text() == drawn, "run `python tools/draw_figure1.py`"
    assert "1.27 of 2.70" in drawn  # 784·400 + 400·2000 + 200·794 of … + 2000·794
    assert "0.44 of 1.87" in drawn
    assert not re.findall(r"(?:href|src|url)\W+https?:", drawn)  # nothing is fetched
    for page in (ROOT / "README.md", ROOT / "docs" / "index.md"):
        assert "figures/figure1.svg" in page.read_text()[:1500]


@pytest.mark.parametrize("name", headlines.PAGES)
def test_the_short_tables_are_those_of_the_committed_results(name: str) -> None:
    page = (ROOT / name).read_text()
    assert headlines.headlines(page) == page, "run `make readme`"


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What `#…` may name in a page."""
    headings = re.findall(r"^#+ (.+)$", prose(page).lower(), re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading)) for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        goal = page.parent / name if name else page
        assert goal.is_file(), target
        assert not anchor or anchor in anchors(goal), target


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_files_that_are_named_exist(page: Path) -> None:
    folders = "hardgate|hardgate_lab|tests|tools|docs|results|examples|benchmarks"
    for name in re.findall(rf"`(?:python )?((?:{folders})/[\w./-]*)", prose(page)):
        assert "NAME" in name or (ROOT / name.rstrip(".")).exists(), name


def test_the_way_of_a_training_step_is_at_most_a_dozen_files() -> None:
    way = ARCHITECTURE.partition("<!-- way:")[2].partition("<!-- /way -->")[0]
    files = re.findall(r"^\d+\. `(\S+)`:", way, re.MULTILINE)
    assert 6 <= len(files) == len(set(files)) <= 12
    assert all((ROOT / name).is_file() for name in files)
    assert files[0].startswith("hardgate/conditional/")


def test_the_house_has_every_room_and_no_other() -> None:
    house = re.findall(r"```text\n(.*?)```", ARCHITECTURE, re.DOTALL)[0]
    drawn = set(re.findall(r"\w+(?=/)|\w+\.py", house))
    packages = [ROOT / "hardgate", ROOT / "hardgate_lab"]
    files = {each.name for package in packages for each in package.rglob("*")}
    rooms = {each.name for package in packages for each in package.iterdir()}
    assert drawn <= files
    assert rooms - {"__pycache__", "__main__.py", "__init__.py", "py.typed"} <= drawn
