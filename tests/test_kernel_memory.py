"""What the conditional layer holds on to, and how much it takes where a number is not finite."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from hardgate.kernels import dense, reference, sparse
from hardgate.kernels.op import Backend
from hardgate.kernels.problem import Problem
from tests.test_kernels import EVERY, Case, Tensors, call, defined, differentiate


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

    monkeypatch.setattr(dense, "_ROOM", 2 * 12 * case.block * max(7, case.out or 1))
    monkeypatch.setattr(reference, "forward", forward)
    got = differentiate(t, lambda leaves: call(leaves, "dense", case.relu))
    for k in expected:
        torch.testing.assert_close(got[k], expected[k], equal_nan=True)
    assert sizes == [2, 2, 2, 2, 1]
    sizes.clear()
    call({**t, "gates": torch.ones_like(t["gates"])}, "dense", case.relu)
    assert not sizes, "nothing is off: torch's own result is right"
