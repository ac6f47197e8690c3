"""The documents are true: every symbol is in them, what they name exists, snippets run."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import hardgate
from hardgate_lab.facts import facts_table
from hardgate_lab.reproduce.report.runs import read
from hardgate_lab.reproduce.report.write_report import digest
from tests.support.paths import ROOT
from tests.support.public_names import PUBLIC

README = (ROOT / "README.md").read_text()
API = (ROOT / "docs" / "api.md").read_text()
PAPER = (ROOT / "docs" / "paper.md").read_text()


@pytest.mark.parametrize(("module", "name"), PUBLIC, ids=[f"{m.__name__}.{n}" for m, n in PUBLIC])
def test_public_symbol_is_documented(module: object, name: str) -> None:
    assert f"| `{name}` |" in API or f"`{name}`" in API.split("##", 1)[0] or f": `{name}`" in API
    symbol = getattr(module, name)
    if inspect.isclass(symbol) or inspect.isroutine(symbol):
        assert inspect.getdoc(symbol)


def test_api_page_names_nothing_that_is_gone() -> None:
    public = {name for _, name in PUBLIC}
    assert set(re.findall(r"^\| `(\w+)` \|", API, re.MULTILINE)) <= public


@pytest.mark.parametrize("symbol", sorted(set(re.findall(r"`(hardgate\.[\w.]+)`", PAPER))))
def test_paper_page_symbols_exist(symbol: str) -> None:
    target: object = hardgate
    for part in symbol.split(".")[1:]:
        target = getattr(target, part)


@pytest.mark.parametrize("test", sorted(set(re.findall(r"`(test_\w+\.py(?:::\w+)?)`", PAPER))))
def test_paper_page_tests_exist(test: str) -> None:
    file, _, function = test.partition("::")
    (path,) = (ROOT / "tests").rglob(file)
    if function:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        assert inspect.isfunction(getattr(importlib.import_module(module), function))


def test_readme_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(code.strip().splitlines()) <= 16
    exec(compile(code, "README.md", "exec"), {})
    right, fewer = re.findall(r"[\d.]+", capsys.readouterr().out)
    assert float(right) > 90
    assert 4 < float(fewer) < 4.5


def test_the_example_on_conditional_layers_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "conditional.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    exec(compile(code, "conditional.md", "exec"), {})
    out = capsys.readouterr().out
    assert "Path(" in out
    assert "multiplications;" in out


@pytest.mark.parametrize("case", ["1024-4096-1024", "784-2000-10"])
def test_recorded_time_is_a_line_in_the_density(case: str) -> None:
    """The kernels' work is that of the gates that are on, and little besides."""
    record = json.loads((ROOT / "results" / "bench.json").read_text())
    rows = [t for t in record["timings"] if (t["table"], t["case"]) == ("density", case)]
    density = np.array([t["density"] for t in rows])
    time, dense = (np.array([t["milliseconds"][k] for t in rows]) for k in ("sparse", "dense"))
    slope, intercept = np.polyfit(density, time, 1)
    assert np.corrcoef(density, time)[0, 1] > 0.98
    assert 0 < intercept < 0.2 * np.median(dense) < slope


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "figures").glob("reproduce-*.png")))
def test_the_figures_are_those_of_the_committed_records(path: Path) -> None:
    (experiment,) = read(ROOT / "results" / "reproduce").experiments
    with Image.open(path) as figure:
        assert figure.info["Source"] == digest(experiment), "run `make readme`"


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
def test_the_pictures_of_the_pages_are_there(page: Path) -> None:
    for target in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text()):
        assert (page.parent / target).is_file()


def test_the_facts_of_the_units_are_generated() -> None:
    page = (ROOT / "docs" / "units.md").read_text()
    assert facts_table.write(page) == page, "run `make readme`"
    with pytest.raises(ValueError, match="markers"):
        facts_table.write("no markers")


def test_versions_agree() -> None:
    assert f"version: {hardgate.__version__}" in (ROOT / "CITATION.cff").read_text()
    assert f"## {hardgate.__version__}" in (ROOT / "CHANGELOG.md").read_text()
