"""`hardgate toy`: the published ordering, and the committed table."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from hardgate import exact_expectation
from hardgate_lab.cli import app
from hardgate_lab.rig.candidates import candidates_named
from hardgate_lab.toy import toy_tables
from hardgate_lab.toy.toy_problem import PUBLISHED, Curve, Toy, ascend, takes_part
from tests.support.paths import ROOT


@pytest.fixture
def committed() -> dict[str, Any]:
    record: dict[str, Any] = json.loads((ROOT / "results" / "toy.json").read_text())
    return record


def climb(name: str, toy: Toy) -> Curve:
    (candidate,) = candidates_named(name, [2])
    return ascend(candidate, toy, [0])


def test_the_objective_is_exact() -> None:
    toy = Toy(units=4)
    a = torch.tensor([0.3, -1.0, 2.0, 0.0], dtype=torch.float64)
    assert toy.objective(a) == pytest.approx(-exact_expectation(toy.f, a).item(), abs=1e-12)
    assert toy.start == pytest.approx(0.250001)
    assert toy.optimum == pytest.approx(0.251001)
    assert toy.objective(torch.full((4,), 40.0)) == pytest.approx(toy.optimum)


def test_the_published_ordering_holds_early_on() -> None:
    """One seed, 1200 steps: the gaps are 1e-4 and more, what seeds differ by is 1e-5."""
    toy = Toy(steps=1200, every=600, draws=50)
    double, disarm, plain = (climb(n, toy) for n in ("DoubleCV(2)", "DisARM", "REINFORCE()"))
    assert double.final[0] > disarm.final[0] + 1e-4 > plain.final[0] + 4e-4
    assert abs(plain.final[0] - toy.start) < 1e-4  # lost in its noise
    assert double.variance[-1] < disarm.variance[-1] / 10 < plain.variance[-1] / 1e5
    assert double.steps == [0, 600, 1200]


def test_everybody_has_the_same_evaluations() -> None:
    """REINFORCE averages two estimates at K = 2: half the variance."""
    one, two = (climb("REINFORCE()", Toy(evals=k, steps=1, draws=4000)) for k in (1, 2))
    assert one.variance[0] / two.variance[0] == pytest.approx(2, rel=0.1)
    toy = Toy()
    fits = {
        n: takes_part(candidates_named(n, [2])[0], toy) for n in ("RLOO", "Exact", "UGC", "ARM")
    }
    assert fits == {"RLOO": True, "Exact": False, "UGC": False, "ARM": True}
    assert not takes_part(candidates_named("NoisyRectifier", [2])[0], toy)


def test_looking_leaves_the_estimator_as_it_was() -> None:
    often, seldom = (climb("DoubleCV(2)", Toy(steps=40, every=k, draws=20)) for k in (1, 40))
    assert len(often.steps) == 41
    assert seldom.steps == [0, 40]
    assert often.final == seldom.final
    assert often.objective[0] == pytest.approx(Toy().start)


def test_the_command_writes_table_figure_and_json(tmp_path: Path) -> None:
    page, figure, rows = tmp_path / "p.md", tmp_path / "t.png", tmp_path / "t.json"
    page.write_text("<!-- toy: -->\n<!-- /toy -->\n")
    names = ["--estimator", "DisARM", "--estimator", "DoubleCV", "--estimator", "StraightThrough"]
    files = ["--figure", str(figure), "--json", str(rows), "--write", str(page)]
    args = ["toy", *names, "--steps", "20", "--seeds", "2", *files]
    result = CliRunner().invoke(app, args, env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    for word in ("DisARM()", "0.2506", "StraightThrough() *", "optimum 0.251001"):
        assert word in result.output
    assert figure.read_bytes().startswith(b"\x89PNG")
    record = json.loads(rows.read_text())
    assert record["settings"]["steps"] == 20
    assert record["seeds"] == [0, 1]
    assert [len(curve["final"]) for curve in record["curves"]] == [2, 2, 2]
    assert toy_tables.markdown(record) in page.read_text()


def test_a_name_given_twice_climbs_once(tmp_path: Path) -> None:
    names = ["--estimator", "RLOO", "--estimator", "RLOO(2)"]
    args = ["toy", *names, "--steps", "2", "--figure", str(tmp_path / "t.png")]
    result = CliRunner().invoke(app, args, env={"COLUMNS": "120"})
    assert result.output.count("RLOO(2)") == 1


@pytest.mark.parametrize("option", ["--seed", "--evals"])
def test_numbers_beyond_reason_are_refused(option: str) -> None:
    result = CliRunner().invoke(app, ["toy", "--estimator", "RLOO", option, str(10**20)])
    assert result.exit_code == 2


def test_the_committed_run_is_the_published_experiment(committed: dict[str, Any]) -> None:
    settings = committed["settings"]
    assert {k: settings[k] for k in ("units", "t", "evals", "steps", "lr")} == {
        "units": 200, "t": 0.499, "evals": 2, "steps": 2000, "lr": 0.01,
    }  # fmt: skip
    final = {c["estimator"]: statistics.fmean(c["final"]) for c in committed["curves"]}
    for name, published in PUBLISHED.items():
        assert final[name] == pytest.approx(published, abs=1.5e-4)
    assert final["DoubleCV(2)"] > max(final["DisARM()"], final["RLOO(2)"]) > final["REINFORCE()"]


def test_the_table_in_the_documents_is_that_of_the_run(committed: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "estimators.md").read_text()
    assert toy_tables.write(page, committed) == page, "run `make readme`"
    changed = {**committed, "seeds": [*committed["seeds"], 99]}
    assert toy_tables.write(page, changed) != page
