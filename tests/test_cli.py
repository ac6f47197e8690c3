"""The command line: what it prints, what it writes, and how it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hardgate import UNITS
from hardgate.cli import app
from hardgate.lab import PROBLEMS
from hardgate.lab.compare import Row
from hardgate.lab.measure import Measurement


def run(*args: str) -> Result:
    return CliRunner().invoke(app, list(args), env={"COLUMNS": "100"})


def test_compare_prints_a_table_and_writes_both_files(tmp_path: Path) -> None:
    figure, rows = tmp_path / "new" / "c.png", tmp_path / "c.json"
    result = run("compare", "--samples", "20000", "--figure", str(figure), "--json", str(rows))
    assert result.exit_code == 0, result.output
    for word in (*UNITS, *PROBLEMS, "variance", str(figure), str(rows)):
        assert word in result.output
    assert figure.read_bytes().startswith(b"\x89PNG")
    written = json.loads(rows.read_text())
    assert len(written["rows"]) == len(UNITS) * len(PROBLEMS)
    assert {"unit", "problem", "bias", "z", "variance", "evals", "microseconds"} <= set(
        written["rows"][0]
    )
    sts = next(
        r
        for r in written["rows"]
        if r["unit"] == "StochasticTimesSmooth()" and r["problem"] == "multilinear"
    )
    assert sts["bias"] == pytest.approx(0.5, abs=0.02)  # the halved gradient of erratum 2


def test_compare_one_problem_is_repeatable(tmp_path: Path) -> None:
    def once(name: str) -> list[dict[str, float]]:
        out = tmp_path / f"{name}.json"
        figure = str(tmp_path / "c.png")
        result = run(
            "compare",
            "--problem",
            "sparse",
            "--samples",
            "1000",
            "--json",
            str(out),
            "--figure",
            figure,
        )
        assert result.exit_code == 0, result.output
        rows: list[dict[str, float]] = json.loads(out.read_text())["rows"]
        return [{k: v for k, v in row.items() if k != "microseconds"} for row in rows]

    assert once("a") == once("b")


def test_a_contradicted_claim_is_seen() -> None:
    measured = Measurement(bias=0.3, z=40.0, variance=1.0, cosine=1.0, evals=1, samples=1000)
    assert Row("smooth", "X", True, measured, 1.0).contradicts
    assert not Row("smooth", "X", False, measured, 1.0).contradicts


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["compare", "--problem", "nope"], ["'nope' is not a problem", *PROBLEMS]),
        (["compare", "--samples", "3"], ["1000"]),
        (["compare", "--bogus"], ["No such option"]),
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
        "from hardgate.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'hardgate[cli]'" in done.stderr
    assert "Traceback" not in done.stderr
