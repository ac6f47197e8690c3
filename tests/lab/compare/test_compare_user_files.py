"""`hardgate compare` on files whose f fails somewhere: left out, or refused, but in words."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner, Result

from hardgate_lab.cli import app
from hardgate_lab.compare import comparison as comparing
from hardgate_lab.compare.comparison import Comparison
from hardgate_lab.compare.comparison import compare as steps_of
from hardgate_lab.compare.comparison_figures import figures
from hardgate_lab.compare.recommend import recommend
from hardgate_lab.compare.user_problem import NotBinaryError, UserProblemError, load
from hardgate_lab.rig.candidates import candidates_named
from hardgate_lab.rig.problems import PROBLEMS, GradientProblem
from hardgate_lab.rig.timing import Call
from tests.support.paths import ROOT

HEAD = "import torch\nlogits = torch.tensor([0.3, -0.7, 1.1, 0.2, 0.9, -0.5])\n"


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody takes 10 µs per gradient; whoever is timed is also run."""

    def interleave(runs: dict[str, Call], _: float) -> dict[str, float]:
        for run in runs.values():
            run()
        return dict.fromkeys(runs, 1.0)

    monkeypatch.setattr(comparing, "interleave", interleave)


def problem_of(folder: Path, f: str) -> Path:
    path = folder / "mine.py"
    path.write_text(HEAD + f"def f(b):\n    {f}\n")
    return path


def compare(problem: Path, *names: str, files: Path) -> Result:
    options = [word for name in names for word in ("--estimator", name)]
    outputs = [f"--figure={files / 'c.png'}", f"--json={files / 'c.json'}", "--samples=1000"]
    command = ["compare", f"--problem={problem}", *options, *outputs]
    return CliRunner().invoke(app, command, env={"COLUMNS": "300"})


def play(problem: GradientProblem, *names: str) -> Comparison:
    chosen = [c for name in names for c in candidates_named(name, [2])]
    *_, (_, comparison) = steps_of("this", problem, chosen, 1000, 0)
    assert comparison is not None
    return comparison


# --- everybody left out -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("f", "name", "why"),
    [
        ("return b.long().sum(-1).float()", "ReinMax", "f has no gradient in b"),
        ("return b.sum(-1)", "NoisyRectifier", "its objective is its own"),
        ("return b.sum(-1) if b.frac().eq(0).all() else 1 / 0", "BinaryConcrete", "not binary"),
        ("return b.sum(-1)", "Exact", "enumeration expected at most 20 units, got 24"),
    ],
)
def test_nobody_left(f: str, name: str, why: str, tmp_path: Path) -> None:
    path = problem_of(tmp_path, f)
    if name == "Exact":
        path.write_text(path.read_text().replace("def f", "logits = logits.repeat(4)\ndef f"))
    result = compare(path, name, files=tmp_path)
    assert result.exit_code == 0, result.output
    assert f"{name}()." in result.output
    assert why in result.output
    assert "No recommendation" in result.output
    assert "--estimator RLOO" in result.output
    assert "Sorted by" not in result.output  # no table, no caption
    (record,) = json.loads((tmp_path / "c.json").read_text())["rounds"]
    assert record["rows"] == []
    assert [each["estimator"] for each in record["left_out"]] == [f"{name}()"]
    assert not (tmp_path / "c.png").exists()


def test_the_committed_example_without_those_who_can(tmp_path: Path) -> None:
    result = compare(ROOT / "examples" / "decoder.py", "Exact", files=tmp_path)
    assert result.exit_code == 0, result.output
    assert "enumeration expected at most 20 units, got 100" in result.output


# --- an f that fails at some b --------------------------------------------------------------

# What f does, and what must be said: also where it is seen long after the file was read.
FAILING = {
    "infinite at zero": ("return b.sum(-1).log()", ["-inf at b = [0, 0, 0, 0, 0, 0]", "clamp("]),
    "nan at a single b": (
        "return (b.sum(-1) - (b * 2 ** torch.arange(6)).sum(-1).eq(37) * 99).sqrt()",
        ["finite loss", "nan at b = [1, 0, 1, 0, 0, 1]"],
    ),
    "squeezed": ("return b.sum(-1).squeeze()", ["one loss each, (1, 1)", "squeeze()"]),
    "not one at a time": ("assert b.shape[0] > 1, 'alone'; return b.sum(-1)", ["alone (line 4)"]),
    "not many at once": (
        "assert b.numel() < 1000, 'too many'; return b.sum(-1)",
        ["AssertionError: too many (line 4)", "samples (2, 100, 6) to losses (2, 100)"],
    ),
    "never with a graph": (
        "return torch.from_numpy(b.numpy()).sum(-1)",
        ["detach().numpy()", "(line 4)"],
    ),
}


@pytest.mark.parametrize("name", FAILING)
def test_where_f_fails_is_said(name: str, tmp_path: Path) -> None:
    f, words = FAILING[name]
    result = compare(problem_of(tmp_path, f), "RLOO(2)", files=tmp_path)
    assert result.exit_code == 2, result.output
    for word in ("f of", "mine.py", *words):
        assert word in result.output


def test_only_those_who_ask_for_points_between_are_left_out(tmp_path: Path) -> None:
    path = problem_of(tmp_path, "return (b - 0.5).square().clamp(max=0.25).sub(0.25).sqrt().sum(-1)"
                                " + b.sum(-1)")  # fmt: skip
    problem = load(path)
    with pytest.raises(NotBinaryError, match="not finite where b is not binary"):
        problem.f(torch.full((2, 6), 0.3))
    comparison = play(problem, "BinaryConcrete", "RLOO")
    assert [row.estimator for row in comparison.rows] == ["RLOO(2)"]
    assert ["not finite where" in each.why for each in comparison.left_out] == [True]


def test_an_error_of_the_problem_leaves_nobody_out(tmp_path: Path) -> None:
    path = problem_of(tmp_path, "assert b.numel() < 1000, 'too many'; return b.sum(-1)")
    with pytest.raises(UserProblemError, match="too many"):
        play(load(path), "RLOO", "BinaryConcrete")


@pytest.mark.parametrize("tried", [1, 500])
def test_a_gradient_that_is_not_finite_is_not_ranked(
    tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """√Σb has a value but no derivative at b = 0, one draw in 64: seen when tried, or later."""
    monkeypatch.setattr(comparing, "BATCH", tried)
    problem = GradientProblem("", torch.zeros(6), lambda b: b.sum(-1).sqrt())
    (straight,) = candidates_named("StraightThrough", [])
    assert (comparing.refusal(straight, problem, True) is None) == (tried == 1)
    comparison = play(problem, "StraightThrough", "DoubleCV(2)", "RLOO(2)")
    assert [row.estimator for row in comparison.rows] == ["RLOO(2)"]
    assert {each.why for each in comparison.left_out} == {comparing._NOT_FINITE}
    assert recommend(comparison).startswith("RLOO(2)")


# --- a gradient that is zero ----------------------------------------------------------------


@pytest.mark.parametrize("offset", [0.0, 3.3])
def test_a_gradient_of_zero(offset: float, tmp_path: Path) -> None:
    """Relative to it nothing is defined; its rounding errors are held against nobody."""

    def constant(b: Tensor) -> Tensor:
        return 0 * b.sum(-1) + offset

    problem = GradientProblem("", torch.tensor([0.3, -0.7, 1.1, 0.2, 0.9, -2.0]), constant)
    comparison = play(problem, "REINFORCE", "RLOO", "Exact", "DisARM", "StraightThrough")
    assert len(comparison.rows) == 7
    assert not any(row.contradicts for row in comparison.rows)
    assert "and zero: bias and error" in comparison.truth
    for row in comparison.rows:
        assert math.isnan(row.measured.bias)
        assert math.isnan(row.error(100, comparison.scale))
    assert json.loads(json.dumps(comparison.as_dict(), allow_nan=False))
    assert "%" not in recommend(comparison)
    assert "nan" not in recommend(play(problem, "StraightThrough"))
    assert len(figures([comparison], tmp_path / "zero.png")) == 2


def test_a_small_gradient_is_none_of_zero() -> None:
    """Negative control: one part in a thousand of the loss, and a bias is still found."""
    smooth = PROBLEMS["smooth"]
    small = GradientProblem("", smooth.logits, lambda b: 1e-3 * smooth.f(b) + 1)
    comparison = play(small, "RLOO", "StraightThrough")
    assert "zero" not in comparison.truth
    assert comparison.rows[1].measured.bias > 2 * comparison.rows[1].measured.noise
    assert 0 < comparison.rows[0].error(100, comparison.scale) < math.inf


# --- names, brackets, outputs -----------------------------------------------------------------


def test_brackets_of_a_user_are_no_markup(tmp_path: Path) -> None:
    """rich would take them for a style, or fail at the end of the work."""
    path = tmp_path / "a [red]b.py"
    path.write_text(f'"""the loss [/x] of [bold]y"""\n{HEAD}def f(b): return b.sum(-1)\n')
    result = compare(path, "RLOO", files=tmp_path)
    assert result.exit_code == 0, result.output
    assert "a [red]b: the loss [/x] of [bold]y. Truth" in result.output
    assert "Recommended on a [red]b:" in result.output


def test_files_of_one_name_are_two_problems(tmp_path: Path) -> None:
    """Of each other, and of a problem of the lab."""
    paths = [tmp_path / "mine.py", tmp_path / "other" / "mine.py", tmp_path / "smooth.py"]
    paths[1].parent.mkdir()
    for k, path in enumerate(paths):
        path.write_text(HEAD + f"def f(b): return b.sum(-1) * {k + 1}\n")
    options = [f"--problem={path}" for path in paths] + ["--problem=smooth", "--estimator=RLOO(2)"]
    outputs = [f"--figure={tmp_path / 'c.png'}", f"--json={tmp_path / 'c.json'}", "--samples=1000"]
    result = CliRunner().invoke(app, ["compare", *options, *outputs])
    assert result.exit_code == 0, result.output
    comparisons = json.loads((tmp_path / "c.json").read_text())["rounds"]
    assert [r["problem"] for r in comparisons] == ["mine", str(paths[1]), str(paths[2]), "smooth"]


@pytest.mark.parametrize("command", ["compare", "toy"])
def test_outputs_that_cannot_be_are_refused_before_the_work(command: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("no markers")
    figure = tmp_path / "f.png"
    cases = {
        "expected the markers": ["--figure", figure, "--write", page],
        "is a folder": ["--figure", figure, "--write", tmp_path],
        "expected the name of a figure": ["--figure", tmp_path / "f.pngx"],
        "got " + str(tmp_path / "f") + ".": ["--figure", tmp_path / "f"],
        "twice": ["--figure", figure, "--json", figure],
    }
    for words, options in cases.items():
        args = [command, "--estimator", "RLOO", *map(str, options)]
        result = CliRunner().invoke(app, args, env={"COLUMNS": "300"})
        assert result.exit_code == 2, result.output
        assert words in result.output
        assert not figure.exists()
