"""docs/estimators.md and docs/choosing.md: their tables are generated, their examples run."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from hardgate import ESTIMATORS
from hardgate_lab.compare import comparison_tables
from hardgate_lab.compare.user_problem import load
from hardgate_lab.facts import facts_table
from hardgate_lab.rig.candidates import candidates_named
from hardgate_lab.rig.problems import PROBLEMS
from tests.support.paths import ROOT

RESULTS = ROOT / "results"
ESTIMATORS_PAGE = (ROOT / "docs" / "estimators.md").read_text()
CHOOSING_PAGE = (ROOT / "docs" / "choosing.md").read_text()


@pytest.fixture
def compared() -> dict[str, Any]:
    record: dict[str, Any] = json.loads((RESULTS / "compare.json").read_text())
    return record


def python_in(page: str) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    return str(code)


def test_the_generated_tables_are_those_of_the_registry_and_the_committed_results() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "write_tables.py"))
    pages = tool["pages"]()
    assert len(pages) > 4
    for page in pages:
        assert tool["written"](page) == page.read_text(), f"{page}: run `make readme`"


def test_a_table_that_drifted_is_seen(compared: dict[str, Any]) -> None:
    for row in compared["rounds"][0]["rows"]:
        row["measured"]["variance"] *= 3
    assert comparison_tables.write(ESTIMATORS_PAGE, compared) != ESTIMATORS_PAGE
    edited = ESTIMATORS_PAGE.replace("| `RLOO` | yes |", "| `RLOO` | no |")
    assert edited != ESTIMATORS_PAGE
    assert facts_table.write(edited) == ESTIMATORS_PAGE


def test_every_estimator_is_in_the_property_table() -> None:
    rows = list(facts_table.estimator_facts())
    assert [row[0] for row in rows] == list(ESTIMATORS)
    assert all(len(row) == len(facts_table.ESTIMATOR_COLUMNS) and all(row) for row in rows)
    for name in ESTIMATORS:
        assert f"| `{name}` | " in ESTIMATORS_PAGE


def test_the_contest_is_whole_and_contradicts_no_claim(compared: dict[str, Any]) -> None:
    comparisons = comparison_tables.comparisons_of(compared)
    assert [r.problem for r in comparisons] == [*PROBLEMS, "extreme", "decoder"]
    for comparison in comparisons:
        classes = {row.estimator.partition("(")[0] for row in comparison.rows}
        left_out = {each.estimator.partition("(")[0] for each in comparison.left_out}
        assert classes | left_out >= set(ESTIMATORS)
        assert not [row.estimator for row in comparison.rows if row.contradicts]
        assert all(row.measured.variance_error >= 0 for row in comparison.rows)
    for name in ("compare.png", "compare-bias.png", "toy.png"):
        assert (ROOT / "docs" / "figures" / name).read_bytes().startswith(b"\x89PNG")


def test_the_example_of_an_expectation_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(python_in(ESTIMATORS_PAGE), "estimators.md", "exec"), {})
    assert "torch.Size([100, 20]) torch.Size([20])" in capsys.readouterr().out


def test_the_example_of_a_problem_is_one(tmp_path: Path) -> None:
    path = tmp_path / "my_problem.py"
    path.write_text(python_in(CHOOSING_PAGE))
    assert load(path).logits.shape == (30,)


def test_what_is_advised_exists() -> None:
    table = CHOOSING_PAGE.partition("Unbiased does not mean")[0]
    names = re.findall(r"`([A-Z]\w+)(?:\([^`]*\))?`", table)
    assert len(names) > 8
    for name in names:
        assert candidates_named(name, [2])
