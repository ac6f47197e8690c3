"""The kernels in use: errors, torch.compile, dispatch, threads, forks, the cache, no Numba."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hardgate
from hardgate.kernels import dispatch
from hardgate.kernels.dispatch import SMALL, Backend, ExecutionPath
from hardgate.kernels.problem import Problem, Weights
from tests.support.kernel_cases import (
    BACKENDS,
    EVERY,
    NAMES,
    TOLERANCE,
    Case,
    Tensors,
    call,
    computed,
    differentiate,
    error,
    path,
)

AUTO: tuple[Backend, ...] = ("auto", "sparse")
ROOT = Path(hardgate.__file__).parents[1]
LARGE = Case(B=64, n_in=100, gates=400, out=10, density=0.1, dtype=torch.float32)


@pytest.fixture
def unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was said yet."""
    monkeypatch.setattr(dispatch, "_warned", set())


def run(code: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter in which warnings are errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    return done


# --- errors ------------------------------------------------------------------------------------

ONES = torch.ones
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"x": ONES(5, 6)}, ValueError, "x expected shape [..., in], here (5, 7), got (5, 6)"),
    (
        {"x": torch.tensor(1.0)},
        ValueError,
        "w_in [hidden, in] and w_out [out, hidden], got the shapes (), (5, 12)",
    ),
    ({"x": ONES(4, 7)}, ValueError, "gates expected shape [..., gates], here (4, 12), got (5, 12)"),
    ({"gates": torch.tensor(1.0)}, ValueError, "got the shapes (5, 7), (), (12, 7), (3, 12)"),
    ({"gates": ONES(12)}, ValueError, "gates expected shape [..., gates], here (5, 12), got (12,)"),
    ({"gates": ONES(5, 5)}, ValueError, "width that divides the 12 hidden units, got 5"),
    ({"gates": ONES(5, 24)}, ValueError, "width that divides the 12 hidden units, got 24"),
    ({"gates": ONES(5, 0)}, ValueError, "width that divides the 12 hidden units, got 0"),
    ({"w_in": ONES(7)}, ValueError, "got the shapes (5, 7), (5, 12), (7,), (3, 12)"),
    ({"w_in": ONES(1, 12, 7)}, ValueError, "got the shapes (5, 7), (5, 12), (1, 12, 7), (3, 12)"),
    ({"w_in": ONES(0, 7)}, ValueError, "width that divides the 0 hidden units, got 12"),
    ({"b_in": ONES(1)}, ValueError, "b_in expected shape [hidden], here (12,), got (1,)"),
    ({"w_out": ONES(12, 3)}, ValueError, "w_out expected shape [out, hidden] with 12 hidden"),
    ({"w_out": torch.tensor(1.0)}, ValueError, "got the shapes (5, 7), (5, 12), (12, 7), ()"),
    ({"b_out": ONES(1, 3)}, ValueError, "b_out expected shape [out], here (3,), got (1, 3)"),
    ({"probe": ONES(5, 1)}, ValueError, "probe expected shape of gates, here (5, 12), got (5, 1)"),
    ({"x": ONES(5, 7).long()}, TypeError, "floating point tensors on the device of x, cpu, got"),
    ({"gates": ONES(5, 12).bool()}, TypeError, "got torch.bool on cpu. Write .to(x) on the one"),
    ({"b_in": ONES(12).to(torch.complex64)}, TypeError, "got torch.complex64 on cpu"),
    ({"w_in": ONES(12, 7, device="meta")}, TypeError, "got torch.float32 on meta"),
    ({"probe": ONES(5, 12, device="meta")}, TypeError, "got torch.float32 on meta"),
]


@EVERY
@pytest.mark.parametrize(("change", "kind", "words"), WRONG)
def test_what_does_not_fit_is_named(
    backend: Backend, change: Tensors, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=re.escape(words)):
        call({**Case(dtype=torch.float32).tensors(), **change}, backend)


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(ValueError, match="backend expected one of 'auto', 'dense', 'sparse', got"):
        call(Case().tensors(), "fast")  # type: ignore[arg-type]


# --- registered operations and torch.compile ---------------------------------------------------


def _operands(case: Case) -> list[Any]:
    t = case.tensors()
    t["w_out"] = None if t["w_out"] is None else t["w_out"].t()  # unit-major
    leaves: list[Any] = [t[k] for k in NAMES]
    leaves = [None if v is None else v.detach().requires_grad_() for v in leaves]
    return [*leaves, t["probe"], case.relu]


@EVERY
@pytest.mark.parametrize(
    "case",
    [
        Case(dtype=torch.float32, probe=0.3),
        Case(out=None, relu=True, block=4, layout="transposed"),
        Case(bias=False, layout="transposed"),
    ],
)
def test_opcheck(backend: Backend, case: Case) -> None:
    arguments, dy = _operands(case), case.tensors()["dy"]
    torch.library.opcheck(torch.ops.hardgate.conditional.default, (*arguments, backend))
    detached = [a.detach() if isinstance(a, Tensor) else a for a in arguments]
    del detached[5]  # b_out
    torch.library.opcheck(
        torch.ops.hardgate.conditional_backward.default,
        (dy, *detached, backend),
        test_utils=("test_schema", "test_faketensor"),
    )


@EVERY
@pytest.mark.parametrize("out", [None, 3])
def test_compiled_equals_eager(backend: Backend, out: int | None) -> None:
    for case in (
        Case(out=out, dtype=torch.float32, probe=0.3),
        Case(out=out, bias=False, relu=True, block=4, layout="transposed"),
    ):
        torch._dynamo.reset()
        t = case.tensors()

        def f(leaves: Tensors, relu: bool = case.relu) -> Tensor:
            return call(leaves, backend, relu)

        compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
        got, expected = differentiate(t, compiled), differentiate(t, f)
        for k in got:
            assert error(got[k], expected[k].double()) <= TOLERANCE[case.dtype], k
        with torch.no_grad():
            assert error(compiled(t), expected["y"].double()) <= TOLERANCE[case.dtype]


# --- dispatch ----------------------------------------------------------------------------------


def test_auto_takes_the_kernels_only_where_they_pay() -> None:
    for case, backend, why in (
        (LARGE, "sparse", "density 0.10 is at most"),
        (Case(**{**vars(LARGE), "density": 0.9}), "dense", "density 0.90 is above"),
        (Case(**{**vars(LARGE), "density": 0.0}), "sparse", "density 0.00 is at most"),
        (Case(**{**vars(LARGE), "probe": 1.0}), "dense", "density 1.00 is above"),
        (Case(**{**vars(LARGE), "B": 1}), "dense", "too small"),
        (Case(**{**vars(LARGE), "B": 8, "n_in": 1200, "density": 1.0}), "sparse", "few examples"),
        (Case(**{**vars(LARGE), "B": 9, "n_in": 1200, "density": 1.0}), "dense", "1.00 is above"),
        (Case(**{**vars(LARGE), "B": 200, "density": 0.45}), "dense", "is above 0.35"),
        (
            Case(**{**vars(LARGE), "B": 200, "density": 0.45, "block": 4}),
            "sparse",
            "is at most 0.6",
        ),
        (Case(**{**vars(LARGE), "B": 0}), "dense", "nothing to compute"),
    ):
        for with_gradients in (True, False):
            with torch.set_grad_enabled(with_gradients):
                taken = path(case.tensors())
            assert taken is not None
            assert taken.backend == backend
            assert why in taken.why
            assert (taken.density is None) == ("density" not in taken.why)
    assert LARGE.B * LARGE.n_in * LARGE.gates >= SMALL > LARGE.n_in * LARGE.gates


@EVERY
def test_what_is_asked_for_is_done(backend: Backend) -> None:
    for case in (LARGE, Case(B=1), Case(density=1.0)):
        assert path(case.tensors(), backend) == ExecutionPath(backend, "asked for", None)


def test_auto_equals_both() -> None:
    auto = computed(LARGE, "auto")
    for backend in BACKENDS:
        expected = computed(LARGE, backend)
        assert max(error(auto[k], expected[k].double()) for k in auto) <= 3e-5


@pytest.mark.usefixtures("unsaid")
@pytest.mark.parametrize("backend", AUTO)
def test_another_device_runs_dense_and_says_so_once(backend: Backend) -> None:
    t: Tensors = {
        k: v if v is None else v.to("meta").requires_grad_() for k, v in LARGE.tensors().items()
    }
    with pytest.warns(RuntimeWarning, match="kernels are for CPUs; on meta the layer runs dense"):
        y = call(t, backend)
    assert path(t, backend) == ExecutionPath("dense", "not on a CPU", None)
    assert (y.shape, y.device.type) == ((64, 10), "meta")
    y.sum().backward()
    assert t["gates"].grad.shape == t["gates"].shape
    call(t, backend)  # no second warning: it would be an error here


@pytest.mark.usefixtures("unsaid")
def test_dense_on_another_device_says_nothing() -> None:
    t = {k: v if v is None else v.to("meta") for k, v in Case(out=None).tensors().items()}
    assert call(t, "dense").shape == (5, 12)


@pytest.mark.usefixtures("unsaid")
def test_kernels_that_cannot_run_are_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "unavailable", lambda: "for a reason")
    with pytest.warns(RuntimeWarning, match="runs dense: for a reason"):
        call(LARGE.tensors(), "sparse")
    for backend in AUTO:
        taken = path(LARGE.tensors(), backend)  # no second warning: it would be an error here
        assert taken == ExecutionPath("dense", "for a reason", None)


# --- threads -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("block", [1, 4])
def test_repeated_runs_agree_to_the_last_bit(n: int, block: int) -> None:
    torch.set_num_threads(n)
    case = Case(B=33, n_in=65, gates=128, block=block, out=40, dtype=torch.float32, probe=0.1)
    first, one = computed(case, "sparse"), Case(**{**vars(case), "B": 1}).tensors()
    y = call(one, "sparse")
    for _ in range(5):
        again = computed(case, "sparse")
        assert all(torch.equal(first[k], again[k]) for k in first)
        assert torch.equal(y, call(one, "sparse"))


@pytest.mark.usefixtures("threads")
def test_the_number_of_threads_is_torch_s() -> None:
    numba = pytest.importorskip("numba")
    results = []
    for n in (1, 2, 1):
        torch.set_num_threads(n)
        results.append(computed(LARGE, "sparse"))
        assert numba.get_num_threads() == min(n, numba.config.NUMBA_NUM_THREADS)
        assert torch.get_num_threads() == n
    one, two, again = results
    assert all(torch.equal(one[k], again[k]) for k in one)
    assert max(error(two[k], one[k].double()) for k in one) <= 3e-5


def test_several_python_threads_at_once() -> None:
    cases = [Case(B=33, gates=64, out=40, dtype=torch.float32, seed=s) for s in range(4)]
    expected = [computed(case, "sparse") for case in cases]
    finished: list[int] = []
    failures: list[tuple[int, str]] = []

    def work(i: int) -> None:
        for _ in range(15):
            got = computed(cases[i], "sparse")
            failures.extend((i, k) for k in got if error(got[k], expected[i][k].double()) > 3e-5)
        finished.append(i)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(finished) == [0, 1, 2, 3]
    assert not failures


# --- processes ---------------------------------------------------------------------------------

FORK = """
import os, warnings, torch
from tests.support.kernel_cases import Case, call, computed, error, path
case = Case(B=8, gates=32, dtype=torch.float32)
expected, t = computed(case, "sparse"), case.tensors()
t["x"].requires_grad_()
waiting = call(t, "sparse")  # its backward pass runs in the child
child = os.fork()
if child == 0:
    code = 1
    try:
        torch.set_num_threads(1)  # as in any fork: torch's own pool does not survive it either
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            (dx,) = torch.autograd.grad(waiting, t["x"], t["dy"])
            for _ in range(2):
                got = computed(case, "sparse")
        assert error(dx, expected["x"].double()) < 3e-5
        assert max(error(got[k], expected[k].double()) for k in got) < 3e-5
        taken = path(t, "sparse")
        assert taken.backend == "dense" and "forked" in taken.why
        words = [str(w.message) for w in caught if w.category is RuntimeWarning]
        assert len(words) == 1 and "forked after its parent used the kernels" in words[0], words
        code = 0
    finally:
        os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert path(t, "sparse").backend == "sparse"
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_forked_child_runs_dense_and_says_so_once() -> None:
    run(FORK)


EARLY_FORK = """
import os, torch
from tests.support.kernel_cases import Case, path
child = os.fork()  # before the kernels were used: the child may use them
assert path(Case(B=8, dtype=torch.float32).tensors(), "sparse").backend == "sparse"
if child == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_child_forked_before_the_first_use_has_kernels() -> None:
    run(EARLY_FORK)


MISSING = """
import sys, warnings
sys.modules[{module!r}] = None
import torch, hardgate
from hardgate.kernels.op import conditional
from hardgate.kernels.problem import Weights
x, w_in = torch.randn(64, 100, requires_grad=True), torch.randn(400, 100)
gates, w_out = (torch.rand(64, 400) < 0.1).float(), torch.randn(10, 400)
expected = ((x @ w_in.T) * gates) @ w_out.T
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for backend in ("auto", "sparse", "auto", "dense"):
        y, path = conditional(x, gates, Weights(w_in, None, w_out.t()), backend=backend)
        assert torch.allclose(y, expected, atol=1e-3)
        y.sum().backward()
        assert path.backend == "dense"
words = [str(w.message) for w in caught]
assert len(words) == 1 and {words!r} in words[0], words
"""


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("numba", "Numba is not installed; pip install numba"),
        ("numba.np.ufunc.omppool", "Numba cannot run here"),
    ],
)
def test_without_numba_everything_runs_dense_with_one_notice(module: str, words: str) -> None:
    run(MISSING.format(module=module, words=words))


REGISTERED = """
import sys, torch, hardgate
assert torch.ops.hardgate.conditional.default is not None
assert torch.ops.hardgate.conditional_backward.default is not None
from hardgate.functional import conditional_mlp
one = torch.ones(1, 1)
for backend in ("auto", "dense"):  # too small for kernels: nothing to import
    conditional_mlp(one, one, one, None, one, None, backend=backend)
assert not any(name.split(".")[0] in ("numba", "llvmlite") for name in sys.modules)
assert "hardgate.kernels.compiled.cpu" not in sys.modules
"""


def test_operations_are_registered_and_numba_is_not_imported() -> None:
    assert run(REGISTERED).stderr == ""


ONE = """
import torch
from hardgate.functional import conditional_mlp
one = torch.ones(1, 1)
print(conditional_mlp(one, one, one, None, one, None, backend="sparse").item())
"""


@pytest.mark.slow  # compiles twice
def test_the_cache_never_runs_a_stale_kernel(tmp_path: Path) -> None:
    """Nor after a change in a function that kernels call. In a copy with a cache of its own."""
    copy = tmp_path / "hardgate"
    shutil.copytree(ROOT / "hardgate", copy, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {"PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def result() -> subprocess.CompletedProcess[str]:
        return run(ONE, cwd=tmp_path, **environment)

    first = result()
    assert float(first.stdout) == 1.0
    assert "compiling kernels for this CPU" in first.stderr
    compiled = {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").rglob("*.nbc")}
    assert compiled
    assert float(result().stdout) == 1.0
    assert compiled == {p: p.stat().st_mtime_ns for p in compiled}, "found on disk"
    source = (copy / "kernels" / "compiled" / "cpu.py").read_text()
    added = "row[o] += part[o]"  # what the threads found, to the output
    assert source.count(added) == 1
    changed = source.replace(added, added.replace("+", "-"))  # of the same size
    (copy / "kernels" / "compiled" / "cpu.py").write_text(changed)
    assert float(result().stdout) == -1.0
    vectors = copy / "kernels" / "compiled" / "vectors.py"  # which Numba does not watch
    vectors.write_text(vectors.read_text() + "\n")
    heard = "import warnings; warnings.simplefilter('always')\n" + ONE  # not an error
    refused = run(heard, cwd=tmp_path, **environment)
    assert float(refused.stdout) == 1.0  # by the dense path
    assert re.search(r"Write CALLED = '[0-9a-f]{16}' into cpu.py", refused.stderr)


SHORTER = """
import sys, pytest
from hardgate.kernels.compiled import vectors
assert vectors.VECTOR == 32
chosen = "shapes or blocks or large or leak or infinity"
files = ["tests/kernels/test_kernels.py", "tests/kernels/test_kernel_memory.py"]
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-k", chosen, *files]))
"""


@pytest.mark.slow  # compiles everything
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names CPUs of x86")
def test_kernels_for_a_cpu_without_avx512(tmp_path: Path) -> None:
    """Its vectors are half as long and its registers half as many: other tiles, other padding."""
    cpu = {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": "+avx2,+fma"}
    done = run(SHORTER, cwd=ROOT, NUMBA_CACHE_DIR=str(tmp_path), **cpu)
    assert " passed" in done.stdout


THREADS = """
import torch
from hardgate.functional import conditional_mlp
torch.set_num_threads(1)
one = torch.ones(1, 1)
conditional_mlp(one, one, one, None, one, None, backend="sparse")
print(torch.get_num_threads())
"""


def test_torch_keeps_its_number_of_threads() -> None:
    """Starting Numba's OpenMP pool sets the number for the whole process."""
    assert run(THREADS, cwd=ROOT).stdout.strip() == "1"


def test_more_gates_than_an_index_holds_run_dense() -> None:
    """Entries are numbered in 32 bits; an expanded tensor needs no memory."""
    many = torch.zeros(1, 1).expand(2**16, 2**15)
    one = torch.zeros(1, 1)
    for backend in ("auto", "sparse"):
        x, w_in = one.expand(2**16, 1), one.expand(2**15, 1)
        found = dispatch.choose(Problem(x, many, Weights(w_in, None, one)), backend)
        assert (found.backend, found.density) == ("dense", None)
        assert "32-bit" in found.why
