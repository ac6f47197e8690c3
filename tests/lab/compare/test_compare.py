"""`hardgate compare`: who takes part, what is measured, what is written."""

from __future__ import annotations

import json
import math
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console
from torch import Tensor
from typer.testing import CliRunner, Result

from hardgate import ESTIMATORS, UNITS
from hardgate.enumeration import losses_of
from hardgate.estimators import Estimate, Estimator
from hardgate.estimators._estimator import Context, Loss, Noise
from hardgate_lab.cli import app
from hardgate_lab.compare import compare_command, comparison_tables
from hardgate_lab.compare import comparison as comparing
from hardgate_lab.compare.comparison import Comparison, compare, has_gradient
from hardgate_lab.compare.comparison_figures import figures, front, thin
from hardgate_lab.compare.long_average import long_run
from hardgate_lab.rig import progress
from hardgate_lab.rig.candidates import (
    Candidate,
    UnknownEstimatorError,
    all_candidates,
    candidates_named,
)
from hardgate_lab.rig.measure import evaluations, measure
from hardgate_lab.rig.problems import EXTREME, PROBLEMS, GradientProblem
from hardgate_lab.rig.timing import interleave
from hardgate_lab.rig.truth import enumerated, own
from tests.support.paths import ROOT
from tests.support.statistics import Z_LEVEL, Z_WRONG

FEW = ("REINFORCE()", "RLOO(2)", "DisARM", "DoubleCV(2)", "StraightThrough")


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody takes 10 µs per gradient: what is measured here does not depend on the machine."""
    monkeypatch.setattr(comparing, "interleave", lambda runs, _: dict.fromkeys(runs, 1.0))


def named(*names: str) -> list[Candidate]:
    return [c for name in names for c in candidates_named(name, [2])]


def play(problem: GradientProblem, *names: str, samples: int = 1000) -> Comparison:
    *_, (_, comparison) = compare("this", problem, named(*names), samples, 0)
    assert comparison is not None
    return comparison


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["compare", *args], env={"COLUMNS": "120"})


class Known(Estimator):
    """Truth + shift + scatter·z: what has to be found out about it is known."""

    unbiased = True
    n_evals = 1

    def __init__(self, truth: Tensor, shift: float = 0.0, scatter: float = 1.0) -> None:
        super().__init__()
        self.truth, self.shift, self.scatter = truth, shift, scatter

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> Noise:
        return torch.randn(a.shape, generator=generator, dtype=a.dtype)

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        assert isinstance(noise, Tensor)
        value = losses_of(f, (a > 0).to(a.dtype))
        return Estimate(value, self.truth + self.shift + self.scatter * noise)


def test_measured_are_the_known_bias_variance_and_their_errors() -> None:
    problem = PROBLEMS["smooth"]
    truth = enumerated(problem)
    norm = truth.gradient.norm().item()
    m = measure(Known(truth.gradient, 0.5, 2.0), problem, truth, 100_000, seed=1)
    assert m.draws == 100_000
    assert m.evals == 1
    assert m.bias == pytest.approx(0.5 * 2 / norm, abs=5 * m.noise)  # ‖(½, ½, ½, ½)‖ = 1
    assert m.noise == pytest.approx(math.sqrt(16 / 100_000) / norm, rel=0.01)
    assert m.z > Z_WRONG
    # The variance of a Gaussian's sample variance: 2σ⁴/n for each of four components.
    theory = math.sqrt(4 * 2 * 2.0**4 / 100_000)
    assert m.variance == pytest.approx(16, abs=5 * theory)
    assert m.variance_error == pytest.approx(theory, rel=0.5)  # 50 blocks: known to some 10 %
    shifted = truth.gradient + 0.5
    cosine = (shifted @ truth.gradient / shifted.norm() / norm).item()
    assert m.cosine_of_mean == pytest.approx(cosine, abs=0.02)
    assert 0 < m.cosine < m.cosine_of_mean


def test_an_unbiased_one_is_seen_to_be_and_one_without_variance_too() -> None:
    problem = PROBLEMS["smooth"]
    truth = enumerated(problem)
    fair = measure(Known(truth.gradient), problem, truth, 20_000)
    assert fair.z < Z_LEVEL
    assert fair.bias < 3 * fair.noise
    still = measure(Known(truth.gradient, scatter=0.0), problem, truth, 1000)
    assert still.variance == 0
    assert still.bias == pytest.approx(0, abs=1e-12)
    assert still.z < 1
    off = measure(Known(truth.gradient, shift=0.01, scatter=0.0), problem, truth, 1000)
    assert off.z > 1e4  # what does not scatter has to be exact


def test_rare_units_are_not_judged() -> None:
    """p = 1e-4: among 20 000 draws it is on twice, and a z-score would say nothing."""
    problem = EXTREME["extreme"]
    truth = enumerated(problem)
    rare = GradientProblem("", problem.logits[[0, 0, 3, 3]], problem.f)
    assert math.isnan(measure(ESTIMATORS["DisARM"](), rare, enumerated(rare), 20_000).z)
    shift = torch.tensor([9.0, 0, 0, 0], dtype=torch.float64)
    assert measure(Known(truth.gradient + shift), problem, truth, 20_000).z < Z_LEVEL
    assert measure(Known(truth.gradient + shift.roll(1)), problem, truth, 20_000).z > Z_WRONG


def test_a_unit_is_rare_by_its_own_law() -> None:
    """On `sparse`, h of NoisyRectifier is nonzero with Φ(-3.1) = 0.001: once in 1000 draws."""
    problem, unit = PROBLEMS["sparse"], UNITS['NoisyRectifier("gaussian")']()
    seldom = GradientProblem("", problem.logits[[1, 1, 1, 1]], problem.f)
    assert math.isnan(measure(unit, seldom, own(unit, seldom), 1000).z)
    assert measure(unit, seldom, own(unit, seldom), 50_000).z < Z_LEVEL


@pytest.mark.parametrize("name", ESTIMATORS)
def test_evaluations_are_those_declared(name: str) -> None:
    made, problem = ESTIMATORS[name]().double(), PROBLEMS["smooth"]
    formula = str(made.n_evals).replace("·", "*").replace("^", "**")
    assert evaluations(made, problem) == eval(formula, {"D": 4})


def test_a_name_is_a_class_or_a_call() -> None:
    def names(text: str) -> list[str]:
        return [c.name for c in candidates_named(text, [2, 4])]

    assert names("RLOO") == ["RLOO(2)", "RLOO(4)"]
    assert names("RLOO(8)") == ["RLOO(8)"]
    assert names(" DisARM ") == ["DisARM()"]
    assert names("REINFORCE('optimal')") == ['REINFORCE("optimal")']
    assert names("REINFORCE")[0] == "REINFORCE()"
    assert names("StraightThrough(sample=False)") == ["StraightThrough(sample=False)"]
    assert candidates_named("RLOO(8)", [])[0].make().n_evals == 8


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Nope", "expected one of .*DisARM.*got 'Nope'"),
        ("RLOO(1)", "samples expected a whole number of at least 2, got 1"),
        ("RLOO(samples)", "expected arguments that RLOO takes"),
        ("RLOO(bogus=3)", "bogus"),
        ("RLOO(", "expected one of"),
        ("__import__('os').getcwd()", "expected one of"),
        ("[RLOO]", "expected one of"),
    ],
)
def test_what_is_no_estimator_is_refused_and_not_run(text: str, words: str) -> None:
    with pytest.raises(UnknownEstimatorError, match=words):
        candidates_named(text, [2])


def test_everybody_takes_part_by_default() -> None:
    names = [c.name for c in all_candidates([2, 4])]
    assert len(names) == len(set(names))
    assert {name.partition("(")[0] for name in names} >= set(ESTIMATORS)
    assert {"RLOO(2)", "RLOO(4)"} <= set(names)
    assert {n for n in UNITS if n not in names} == {n for n in UNITS if "StochasticBinary" in n}


def test_a_relaxation_is_biased_for_the_binary_objective() -> None:
    (concrete,) = candidates_named("BinaryConcrete", [2])
    assert not concrete.unbiased
    assert concrete.needs_relaxed
    (rectifier,) = candidates_named("NoisyRectifier", [2])
    assert rectifier.own_objective


def test_unit_and_twin_are_measured_alike() -> None:
    """StochasticBinary goes through score_loss, REINFORCE through expectation: one estimator."""
    comparison = play(PROBLEMS["smooth"], 'StochasticBinary("optimal")', 'REINFORCE("optimal")')
    unit, twin = (row.measured for row in comparison.rows)
    error = math.hypot(unit.variance_error, twin.variance_error)
    assert unit.variance == pytest.approx(twin.variance, abs=5 * error)
    assert all(row.learns and row.unbiased for row in comparison.rows)


def _counts(b: Tensor) -> Tensor:
    return b.long().sum(-1).double()  # without a gradient


def test_without_a_gradient_those_that_need_it_are_left_out() -> None:
    problem = GradientProblem("a count", PROBLEMS["smooth"].logits, _counts)
    assert not has_gradient(problem)
    assert has_gradient(PROBLEMS["smooth"])
    comparison = play(problem, *FEW, "NoisyRectifier")
    assert [row.estimator for row in comparison.rows] == ["REINFORCE()", "RLOO(2)", "DisARM()"]
    assert {each.why for each in comparison.left_out} == {"f has no gradient in b"}


def test_what_cannot_run_is_left_out_with_its_reason() -> None:
    def only_binary(b: Tensor) -> Tensor:
        if not ((b == 0) | (b == 1)).all():
            raise LookupError("b is neither 0 nor 1")
        return b.square().sum(-1)

    many = GradientProblem("", torch.zeros(24), only_binary)
    comparison = play(many, "BinaryConcrete", "Exact", "Sigmoid", "DisARM")
    assert [row.estimator for row in comparison.rows] == ["DisARM()"]
    why = {each.estimator: each.why for each in comparison.left_out}
    assert "LookupError: b is neither 0 nor 1" in why["BinaryConcrete()"]
    assert "enumeration expected at most 20 units" in why["Exact()"]
    assert "its objective is its own" in why["Sigmoid()"]


def test_the_long_run_is_near_the_truth_and_knows_its_error() -> None:
    """E Σ_i c_i b_i + 3 has the gradient c p(1-p): known with any number of units."""
    c = torch.linspace(-1, 2, 24)
    problem = GradientProblem("", torch.linspace(-1, 1, 24), lambda b: (b * c).sum(-1) + 3)
    truth = long_run(named("REINFORCE()", "RLOO(2)", "StraightThrough"), problem, 2000, 0)
    p = torch.sigmoid(problem.logits.double())
    error = truth.gradient - c.double() * p * (1 - p)
    assert "20,000 draws of RLOO(2)" in truth.how
    assert (truth.error > 0).all()
    assert (error / truth.error).abs().max() < Z_LEVEL
    assert (error / truth.error).abs().max() > 0.5  # an error as large as it says
    fallback = long_run(named("StraightThrough"), problem, 1000, 0)
    assert "RLOO(4)" in fallback.how
    steep = GradientProblem("", problem.logits, lambda b: b.sqrt().sum(-1))  # no derivative at 0
    assert "RLOO(2)" in long_run(named("DoubleCV(2)", "RLOO(2)"), steep, 100, 0).how


def test_time_is_that_of_one_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "interleave", interleave)
    monkeypatch.setattr(comparing, "_SECONDS", 0.05)

    def slow(b: Tensor) -> Tensor:
        time.sleep(0.01)
        return b.sum(-1)

    (row,) = play(GradientProblem("", torch.zeros(3), slow), "RLOO(2)").rows
    assert 100 <= row.microseconds < 2000  # 10 ms for 100 gradients
    assert row.per_microsecond == row.measured.variance * row.microseconds
    assert row.per_evaluation == 2 * row.measured.variance


def test_a_round_survives_json() -> None:
    comparison = play(EXTREME["extreme"], "DisARM", "Exact", "REINFORCE()")
    text = json.dumps(comparison.as_dict(), allow_nan=False)
    again = Comparison.from_dict(json.loads(text))
    assert again.as_dict() == comparison.as_dict()
    assert math.isnan(again.rows[0].measured.z) == math.isnan(comparison.rows[0].measured.z)


def test_shares_of_a_gradient_that_is_zero_are_a_dash(tmp_path: Path) -> None:
    file = tmp_path / "flat.py"
    file.write_text("import torch\nlogits = torch.zeros(3)\nf = lambda b: 0 * b.sum(-1)\n")
    result = run("--problem", str(file), "--estimator", "RLOO(2)", "--samples", "1000",
                 "--figure", str(tmp_path / "flat.png"))  # fmt: skip
    (line,) = (line for line in result.output.splitlines() if line.strip().startswith("RLOO"))
    assert line.split()[1::8] == ["–", "–"]  # bias and error


def test_names_in_a_figure_do_not_lie_on_each_other() -> None:
    axis = Figure().subplots()
    for name, at in (("best", 0.5), ("hidden", 0.5), ("apart", 0.1)):
        axis.annotate(name, (at, at))
    thin(axis)
    assert [text.get_text() for text in axis.texts] == ["best", "apart"]


def test_the_command_writes_tables_figures_and_json(tmp_path: Path) -> None:
    figure, rows = tmp_path / "new" / "c.png", tmp_path / "c.json"
    options = [word for name in FEW for word in ("--estimator", name)]
    files = ["--figure", str(figure), "--json", str(rows)]
    result = run(*options, "--problem", "smooth", "--problem", "quadratic", "-k", "2", *files,
                 "--samples", "1000", "--budget", "50")  # fmt: skip
    assert result.exit_code == 0, result.output
    plane = figure.with_name("c-bias.png")
    flat = " ".join(result.output.split())
    for word in (
        "smooth:",
        "quadratic:",
        str(rows),
        "within 50 evaluations",
    ):
        assert word in flat
    assert flat.count("Recommended on") == 2
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert plane.read_bytes().startswith(b"\x89PNG")
    record = json.loads(rows.read_text())
    assert {"hardgate", "torch", "processor", "threads", "samples", "budget", "seed"} <= set(record)
    assert [r["problem"] for r in record["rounds"]] == ["smooth", "quadratic"]
    for comparison in record["rounds"]:
        assert len(comparison["rows"]) == len(FEW)
        assert ": least variance at equal seconds among 4 unbiased" in comparison["recommendation"]
        assert all(row["microseconds"] > 0 for row in comparison["rows"])
        assert all(row["measured"]["draws"] >= 1000 for row in comparison["rows"])
    assert record["rounds"][0]["recommendation"].startswith("DoubleCV(2): ")
    ordered = comparison_tables.ordered(comparison_tables.comparisons_of(record)[0].rows)
    figures_ = [row.per_evaluation for row in ordered if row.unbiased]
    assert figures_ == sorted(figures_)
    positions = [flat.index(row.estimator) for row in ordered]
    assert positions == sorted(positions)


def test_markdown_ranks_over_all_problems(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- compare: -->\nold\n<!-- /compare -->\nafter\n")
    rows = tmp_path / "c.json"
    files = ["--figure", str(tmp_path / "c.png"), "--write", str(page), "--json", str(rows)]
    result = run("--estimator", "RLOO(2)", "--estimator", "REINFORCE()", "--problem", "smooth",
                 "--samples", "1000", *files)  # fmt: skip
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert text.startswith("before\n<!-- compare: -->\nTaken on: hardgate ")
    assert "old" not in text
    assert text.index("`RLOO(2)`") < text.index("`REINFORCE()`")
    page.write_text("<!-- recommended: -->\n<!-- /recommended -->\n")
    record = json.loads(rows.read_text())
    advised = comparison_tables.write(page.read_text(), record)
    assert "- *smooth* (a sum of softplus units, 4 units): RLOO(2): least variance" in advised
    with pytest.raises(ValueError, match="markers"):
        comparison_tables.write("no markers", record)


def test_a_bar_on_a_terminal_and_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_BETWEEN_LINES", 0.0)  # of a quick run, too

    def said(*, terminal: bool) -> str:
        console = Console(force_terminal=terminal, width=100, record=True)
        with console.capture() as capture:
            compare_command._run({"smooth": PROBLEMS["smooth"]}, named("RLOO(2)"), 1000, 0, console)
        return capture.get()

    assert re.search(r"measuring: \d+ % done, \d:\d\d left", said(terminal=False))
    assert "% done" not in said(terminal=True)
    assert "━" in said(terminal=True)


def test_figures_show_what_was_measured(tmp_path: Path) -> None:
    from matplotlib import image

    comparison = play(PROBLEMS["smooth"], *FEW)
    for name, comparisons in (("a", [comparison]), ("b", [comparison, comparison])):
        for path in figures(comparisons, tmp_path / f"{name}.png"):
            pixels = image.imread(path)[..., :3]
            assert min(pixels.shape[:2]) > 200
            colours = np.unique((255 * pixels).astype(int) @ [1, 256, 65536])
            assert len(colours) > 50  # markers, lines and text, smoothed
    small, large = image.imread(tmp_path / "a.png"), image.imread(tmp_path / "b.png")
    assert large.shape[0] > small.shape[0]  # a row of panels for each problem
    names = [r.estimator for r in front(comparison.rows, lambda r: r.measured.evals)]
    assert names[-1] == "DoubleCV(2)"
    assert "RLOO(2)" not in names
    empty = Comparison("x", "", 4, True, "", 1.0, [], [])
    assert figures([empty], tmp_path / "none.png") == []


def test_the_committed_example_is_a_problem(tmp_path: Path) -> None:
    figure = str(tmp_path / "d.png")
    example = str(ROOT / "examples" / "decoder.py")
    result = run("--problem", example, "--estimator", "RLOO(2)", "--estimator", "REINFORCE()",
                 "--samples", "1000", "--figure", figure)  # fmt: skip
    assert result.exit_code == 0, result.output
    flat = " ".join(result.output.split())
    assert "decoder: A decoder of 100 binary units" in flat
    assert "the mean of 10,000 draws of RLOO(2)" in flat
