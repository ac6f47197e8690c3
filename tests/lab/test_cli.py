"""The command line: what it prints, what it writes, and how it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hardgate import StraightThrough
from hardgate_lab.cli import app
from hardgate_lab.rig.candidates import all_candidates
from hardgate_lab.rig.problems import PROBLEMS


def run(*args: str) -> Result:
    return CliRunner().invoke(app, list(args), env={"COLUMNS": "100"})


def test_compare_measures_everybody(tmp_path: Path) -> None:
    figure, rows = tmp_path / "c.png", tmp_path / "c.json"
    files = ["--figure", str(figure), "--json", str(rows), "--problem", "multilinear"]
    result = run("compare", "--samples", "1000", "-k", "2", *files)
    assert result.exit_code == 0, result.output
    for word in ("multilinear: linear in each unit", "variance", "Recommended", str(figure)):
        assert word in result.output
    (comparison,) = json.loads(rows.read_text())["rounds"]
    found = {row["estimator"]: row["measured"] for row in comparison["rows"]}
    assert set(found) == {candidate.name for candidate in all_candidates([2])}
    assert comparison["left_out"] == []
    # Erratum 2: the halved gradient of stochastic-times-smooth units.
    assert found["StochasticTimesSmooth()"]["bias"] == pytest.approx(0.5, abs=0.05)


def test_compare_takes_every_problem_unless_told(tmp_path: Path) -> None:
    out = tmp_path / "c.json"
    files = ["--json", str(out), "--figure", str(tmp_path / "c.png")]
    result = run("compare", "--estimator", "Rectifier", "--samples", "1000", *files)
    assert result.exit_code == 0, result.output
    assert [each["problem"] for each in json.loads(out.read_text())["rounds"]] == list(PROBLEMS)


def test_compare_is_repeatable(tmp_path: Path) -> None:
    def once(name: str, seed: int) -> list[dict[str, float]]:
        out = tmp_path / f"{name}.json"
        files = ["--json", str(out), "--figure", str(tmp_path / "c.png")]
        chosen = ["--problem", "sparse", "--estimator", "DoubleCV(2)", "--seed", str(seed)]
        result = run("compare", *chosen, "--samples", "1000", *files)
        assert result.exit_code == 0, result.output
        return [row["measured"] for row in json.loads(out.read_text())["rounds"][0]["rows"]]

    assert once("a", 0) == once("b", 0)
    assert once("a", 0) != once("b", 1)


def test_a_contradicted_claim_ends_in_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ["--figure", str(tmp_path / "c.png"), "--problem", "smooth", "--samples", "1000"]
    assert run("compare", "--estimator", "StraightThrough", *files).exit_code == 0
    monkeypatch.setattr(StraightThrough, "unbiased", True)
    result = run("compare", "--estimator", "StraightThrough", *files)
    assert result.exit_code == 1
    assert "StraightThrough() is declared unbiased but is not on smooth." in result.output


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["compare", "--problem", "nope"], ["'nope' is not a problem", *PROBLEMS]),
        (["compare", "--problem", "no/such.py"], ["expected a Python file", "no/such.py"]),
        (["compare", "--estimator", "Nope"], ["expected one of", "DisARM", "got 'Nope'"]),
        (["compare", "--samples", "3"], ["1000"]),
        (["toy", "--estimator", "UGC"], ["whose evaluations divide 2", "UGC()", "--evals"]),
        (["compare", "--bogus"], ["No such option", "--problem", "--estimator", "-k"]),
        (["compare", "--figure", "/proc/nowhere/c.png"], ["cannot make the folder"]),
        (["facts", "--write", __file__], ["markers"]),
        (["bench", "--unit", "nope"], ["'nope' is not a unit", "StraightThrough()"]),
        (["nope"], ["No such command"]),
    ],
)
def test_refusals_say_what_was_expected(args: list[str], words: list[str]) -> None:
    result = run(*args)
    assert result.exit_code == 2
    text = " ".join(result.output.replace("│", " ").split())
    for word in words:
        assert word in text


def test_facts() -> None:
    assert run("facts", "--markdown").output.startswith("| unit | unbiased |")
    assert "| `RLOO` | yes | K |" in run("facts", "--markdown").output
    assert "DisARM" in run("facts").output
    assert "StochasticBinary(None)" in run("facts").output


def test_help_and_version() -> None:
    assert "compare" in run("--help").output
    assert "Examples" in run("compare", "--help").output
    assert run("--version").output.startswith("hardgate ")


def test_module_entry_point() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hardgate", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("hardgate ")


def test_without_the_cli_extra_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['rich'] = None\n"  # as if it were not installed
        "from hardgate_lab.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'hardgate[cli]'" in done.stderr
    assert "Traceback" not in done.stderr
