"""What the conditional layer holds on to, and how much it takes where a number is not finite."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from hardgate.kernels import dense, reference, sparse
from hardgate.kernels.compiled.layout import LARGE
from hardgate.kernels.dispatch import Backend
from hardgate.kernels.problem import Problem
from tests.support.kernel_cases import (
    EVERY,
    TOLERANCE,
    Case,
    Tensors,
    call,
    defined,
    differentiate,
    error,
)


@EVERY
def test_what_the_backward_pass_used_is_freed(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the loss lives on, in a list of losses, say."""
    way = {"dense": dense, "sparse": sparse}[backend]
    run, kept = way.forward, list[StorageWeakRef]()

    def forward(problem: Problem) -> Any:
        y, saved = run(problem)
        tensors = saved if isinstance(saved, tuple) else (saved,)
        kept.extend(StorageWeakRef(t.untyped_storage()) for t in tensors if isinstance(t, Tensor))
        return y, saved

    monkeypatch.setattr(way, "forward", forward)
    t = Case().tensors()
    leaves: Tensors = {k: v if v is None else v.requires_grad_() for k, v in t.items()}
    loss = call(leaves, backend).sum()
    assert len(kept) == {"dense": 1, "sparse": 2}[backend]
    assert not any(memory.expired() for memory in kept)
    loss.backward()
    assert all(memory.expired() for memory in kept)
    assert loss.grad_fn is not None


@pytest.mark.parametrize("case", [Case(B=9, block=4, probe=0.3), Case(B=9, out=None, relu=True)])
def test_the_reference_is_asked_for_few_examples_at_once(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It copies the weights of every unit that is on: gigabytes, for a batch with one NaN."""
    t, sizes, run = case.tensors(), list[int](), reference.forward
    t["x"][3, 2] = float("nan")
    expected = defined(t, case.relu)

    def forward(problem: Problem) -> tuple[Tensor, None]:
        sizes.append(len(problem.x))
        return run(problem)

    monkeypatch.setattr(dense, "_COPIED", 2 * 12 * case.block * max(7, case.out or 1))
    monkeypatch.setattr(reference, "forward", forward)
    got = differentiate(t, lambda leaves: call(leaves, "dense", case.relu))
    for k in expected:
        torch.testing.assert_close(got[k], expected[k], equal_nan=True)
    assert sizes == [2, 2, 2, 2, 1]
    sizes.clear()
    call({**t, "gates": torch.ones_like(t["gates"])}, "dense", case.relu)
    assert not sizes, "nothing is off: torch's own result is right"


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("block", [1, 2, 4, 16])
@pytest.mark.parametrize(("n", "B"), [(1024, 2), (1024, 40), (1030, 9)])
def test_large_gradients_are_written_to_the_last_number(
    dtype: torch.dtype, block: int, n: int, B: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are written past the caches, where rows are whole vectors; nothing is left out."""
    hidden = -(-LARGE // (n * dtype.itemsize) // 16) * 16
    density = 0.1 if B == 2 else 0.4  # units that are on for no example, and for more than eight
    case = Case(B=B, n_in=n, gates=hidden // block, block=block, out=n, density=density)
    t = replace(case, dtype=dtype).tensors()
    expected = differentiate(
        {k: v if v is None else v.double() for k, v in t.items()}, lambda t: call(t, "dense")
    )
    monkeypatch.setattr(torch, "empty_like", lambda t, **o: torch.full_like(t, torch.nan, **o))
    got = differentiate(t, lambda t: call(t, "sparse"))
    errors = {k: error(got[k], expected[k]) for k in got}
    assert max(errors.values()) <= TOLERANCE[dtype], errors


_AT_THE_END = """
import ctypes, itertools, mmap, torch
from hardgate.functional import conditional_mlp

def at_the_end(t):
    \"\"\"A copy whose last number is the last of its page; the page after may not be read.\"\"\"
    size, page = t.numel() * t.element_size(), mmap.PAGESIZE
    room = -(-size // page) * page
    memory = mmap.mmap(-1, room + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + room), page, 0) == 0
    copy = torch.frombuffer(memory, dtype=t.dtype, count=t.numel(), offset=room - size)
    KEPT.append(memory)
    return copy.view(t.shape).copy_(t)

KEPT = []
kinds = (torch.float32, torch.float64, torch.bfloat16)
sizes = ((1, 10, 3), (8, 10, 3), (1, 33, 9), (4, 7, 9))
for kind, (block, out, batch) in itertools.product(kinds, sizes):
    print(kind, block, out, batch, flush=True)
    wide = torch.float32 if kind is torch.bfloat16 else kind
    x, gates = torch.randn(batch, 7, dtype=wide), torch.ones(batch, 40 // block, dtype=wide)
    w_in, w_out = torch.randn(40, 7, dtype=kind), torch.randn(40, out, dtype=kind)
    b_in, b_out = torch.randn(40, dtype=wide), torch.randn(out, dtype=wide)
    given = [at_the_end(t) for t in (x, gates, w_in, b_in, w_out, b_out)]
    leaves = [t if kind is torch.bfloat16 else t.requires_grad_() for t in given]
    y = conditional_mlp(*leaves[:4], leaves[4].T, leaves[5], backend="sparse")
    expected = (x @ w_in.to(wide).T + b_in) @ w_out.to(wide) + b_out
    assert torch.allclose(y, expected, atol=1e-3), (y - expected).abs().max()
    if y.requires_grad:
        y.sum().backward()
print("read what is there")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="protects pages by mprotect")
def test_nothing_is_read_beyond_the_end_of_a_tensor() -> None:
    """Short rows are read with the beginning of the next: the last one has none."""
    arguments = [sys.executable, "-c", _AT_THE_END]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr  # the last line names the case
    lines = done.stdout.strip().splitlines()
    assert (lines[-1], len(lines)) == ("read what is there", 13)
