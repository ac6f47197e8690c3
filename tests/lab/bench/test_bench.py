"""`hardgate bench`: that it measures what it says, at a fraction of the sizes."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from hardgate import UNITS
from hardgate.kernels import sparse
from hardgate.kernels.problem import Wanted
from hardgate_lab.bench import bench_layer, bench_memory, bench_run, bench_steps, breakdown
from hardgate_lab.bench.bench_figures import break_even, figures
from hardgate_lab.bench.bench_layer import Timing
from hardgate_lab.bench.bench_tables import markdown, tables
from hardgate_lab.cli import app
from hardgate_lab.rig import memory
from hardgate_lab.rig.timing import STREAK, Call, Rounds, rounds


class Heard:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.cases: list[str] = []
        self.remarks: list[str] = []

    def now(self, what: str) -> None:
        self.cases.append(what)

    def say(self, message: str) -> None:
        self.remarks.append(message)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [(64, 128, 70, 1), (32, 64, 5, 1), (64, 128, 70, 16)]
    monkeypatch.setattr(bench_layer, "LAYERS", layers)
    monkeypatch.setattr(bench_layer, "BATCHES", (1, 8))
    monkeypatch.setattr(bench_layer, "WIDTHS", (256, 512))
    monkeypatch.setattr(bench_steps, "COMPILE", {"backend": "aot_eager"})  # no C++, in no time


@pytest.mark.usefixtures("small")
def test_it_prints_its_tables_and_writes_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "reuse_memory", bool)  # this process goes on
    monkeypatch.setattr(bench_steps, "compilation", lambda: "no C++ compiler")
    page, rows = tmp_path / "page.md", tmp_path / "b.json"
    page.write_text("<!-- bench: -->\n<!-- /bench -->\n")
    args = ["bench", "--seconds", "0.05", "--out", str(tmp_path), "--json", str(rows)]
    result = CliRunner().invoke(app, [*args, "--write", str(page)], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    words = ("64-128-70 blocks of 16", "torch.sparse", "FusedSGD", "ungated units", "threads")
    for word in (*words, "gater backward", "timed widths", "the compiled dense step is left out"):
        assert word in result.output
    record = json.loads(rows.read_text())
    assert [*dict.fromkeys(row["table"] for row in record["timings"])] == [
        "width",
        "forward",
        "forward + backward",
        "density",
        "training step",
        "equal time",
        "breakdown",
    ]
    assert markdown(record) in page.read_text()
    for name in ("bench-density.png", "bench-width.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("small")
def test_memory_is_kept_only_after_the_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def group(name: str) -> object:
        return lambda *_: order.append(name) or []  # type: ignore[func-returns-value]

    for module, name in (
        (bench_layer, "widths"),
        (bench_layer, "layers"),
        (bench_layer, "densities"),
    ):
        monkeypatch.setattr(module, name, group(name))
    monkeypatch.setattr(bench_run, "steps", group("steps"))
    monkeypatch.setattr(bench_run, "breakdown", group("breakdown"))
    monkeypatch.setattr(memory, "reuse_memory", group("reuse"))
    bench_run.measure([], 0.05, Console(file=StringIO()))
    assert order == ["widths", "reuse", "layers", "densities", "steps", "breakdown"]


@pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is Linux's")
def test_peak_memory_is_that_of_the_run() -> None:
    code = (  # in a process whose allocator nobody has changed
        "import torch; from hardgate_lab.rig.memory import reuse_memory\n"
        "from hardgate_lab.bench.bench_memory import *\n"
        "x = torch.ones(1 << 22)\n"  # 16 MB
        "print(peak(lambda: x + 1), peak(lambda: (x + 1) + (x + 2)), peak(lambda: x.add_(1)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    one, three, none = (float(word) for word in done.stdout.split())
    assert one == pytest.approx(16, abs=1)
    assert three == pytest.approx(48, abs=2)
    assert none < 1


def test_unknown_memory_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench_memory, "_CLEAR", tmp_path / "nowhere" / "clear_refs")
    assert bench_memory.peaks({"a": lambda: None}) == {}
    times = {"dense": 2.0, "sparse": 1.0}
    rows = [Timing("width", str(n), batch, 0.1, times) for n in (1, 2) for batch in (1, 32)]
    assert "MB" not in markdown({"timings": [vars(row) for row in rows]})
    densities = [Timing("density", "a", 32, d, {**times, "auto": 1.0}) for d in (0.1, 1.0)]
    assert len(figures(rows + densities, tmp_path)) == 2


@pytest.mark.usefixtures("small")
def test_steps_compile_the_dense_network_and_find_the_ungated_width(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_steps, "compilation", lambda: None)
    monkeypatch.setattr(bench_steps, "BOTTLENECKS", (10,))
    heard = Heard()
    step, equal = bench_steps.steps([bench_steps.DEFAULT], 0.05, heard)
    assert list(step.milliseconds) == ["dense", "compiled", "SGD", "FusedSGD", "ungated"]
    assert list(equal.milliseconds) == ["FusedSGD", "ungated"]
    assert equal.units is not None
    assert not heard.remarks
    assert any("compiling" in case for case in heard.cases)
    torch._dynamo.reset()


def test_rounds_tell_the_first_call_of_a_streak_from_the_rest() -> None:
    """A candidate that is slow after another's turn, and then quick."""
    turn: list[str] = []

    def candidate(name: str) -> Call:
        def run() -> None:
            time.sleep(0.004 if turn[-1:] != [name] else 0.001)
            turn.append(name)

        return run

    found = rounds({"a": candidate("a"), "b": candidate("b")}, 0.01, least=2)
    for name in "ab":
        assert found.cold[name] >= 4.0 > 3.0 > found.steady[name] >= 1.0
    streaks = [len(list(same)) for _, same in itertools.groupby(turn[2:])]
    assert streaks == [STREAK] * 4


def test_equal_time_scales_the_width_by_the_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(bench_steps, "ungated", lambda hidden, data: asked.append(hidden))

    def clock(runs: object, seconds: float) -> Rounds:  # 1 ms and 1 µs for each unit
        return Rounds({"FusedSGD": 2.0, "ungated": 1 + asked[-1] / 1000}, {})

    monkeypatch.setattr(bench_steps, "rounds", clock)
    data = (torch.ones(1), torch.ones(1))
    found = bench_steps.equal_time(lambda: None, {"FusedSGD": 2.0, "ungated": 3.0}, data, 0.1)
    assert asked == [1333, 1143]
    assert found == (1143, {"FusedSGD": 2.0, "ungated": 2.143})


def test_a_compiler_that_fails_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no omp.h\nlong story")

    monkeypatch.setattr(bench_steps, "COMPILE", {"backend": broken})
    heard = Heard()
    assert bench_steps.compiled(bench_steps.DEFAULT, 10, bench_steps.examples(), heard) == {}
    assert "left out: " in heard.remarks[0]
    torch._dynamo.reset()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "g++" in str(bench_steps.compilation())


def test_the_parts_of_a_step_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_steps, "BOTTLENECKS", (10,))
    (timing,) = breakdown.breakdown(0.05, Heard())
    *parts, whole = timing.milliseconds
    assert whole == "whole step"
    assert parts[-1] == "autograd, Python"
    assert sum(timing.milliseconds[part] for part in parts) == pytest.approx(
        timing.milliseconds[whole]
    )
    monkeypatch.setattr(breakdown, "unavailable", lambda: "no Numba")
    heard = Heard()
    assert list(breakdown.breakdown(0.05, heard)) == []
    assert "no Numba" in heard.remarks[0]


def test_the_parts_are_those_of_the_step() -> None:
    """What is timed computes what the step computes: the same gradients, the same index."""
    x, y = bench_steps.examples()
    x, y = x[:32], y[:32]
    unit = UNITS[bench_steps.DEFAULT]()
    model = bench_steps.network(unit, 20, x)
    parts = breakdown.Parts(model, x, y)
    for name, run in parts.runs().items():
        if "backward" not in name:  # which change the weights
            run()
    again = sparse.backward(parts.problem, parts.dy, Wanted(), parts.saved).gates
    torch.testing.assert_close(again, parts.dh)  # from the index and the values left behind
    gates = parts.gates.clone().requires_grad_()
    p = parts.problem
    w_in, b_in, w_out, b_out = p.weights
    assert b_in is not None and w_out is not None and b_out is not None  # noqa: PT018
    logits = ((x @ w_in.T + b_in) * gates) @ w_out + b_out
    (dh,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, y), gates)
    torch.testing.assert_close(parts.dh, dh * (gates != 0), atol=1e-6, rtol=1e-3)


def test_figures_are_not_cut_on_a_narrow_terminal() -> None:
    times = dict.fromkeys(("dense", "compiled", "SGD", "FusedSGD", "ungated"), 12.34)
    row = Timing("training step", 'NoisyRectifier("gaussian"), bottleneck 400', 32, 0.1, times)
    out = StringIO()
    Console(file=out, width=80).print(*tables([row]))
    assert out.getvalue().count("12.34 1.0×") == 4
    assert "…" not in out.getvalue()


def test_break_even_is_interpolated() -> None:
    def at(density: float, sparse: float) -> Timing:
        return Timing("density", "a", 32, density, {"dense": 1.0, "sparse": sparse})

    assert break_even([at(0.2, 0.5), at(0.4, 2.0)]) == pytest.approx(0.2 + 0.2 * 1 / 1.5)
    assert break_even([at(0.2, 0.5)]) is None
