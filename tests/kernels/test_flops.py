"""FlopCounterMode counts the multiplications that are really done."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import hardgate
from hardgate import ConditionalMLP
from hardgate.kernels.dispatch import Backend

B, N, HIDDEN, OUT, BOTTLENECK = 32, 100, 400, 10, 100
GATER = B * BOTTLENECK * (N + HIDDEN)  # multiplications


def network(backend: Backend, block_size: int = 1) -> ConditionalMLP:
    torch.manual_seed(0)
    unit = hardgate.NoisyRectifier("gaussian")
    return ConditionalMLP(
        N, HIDDEN, OUT, bottleneck=BOTTLENECK, unit=unit, backend=backend, block_size=block_size
    )


def counted(run: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    flops: int = counter.get_total_flops()
    assert flops % 2 == 0
    return flops // 2


def _step(model: ConditionalMLP, x: Tensor) -> None:
    model(x).square().sum().backward()


@pytest.mark.parametrize("block", [1, 16])
@pytest.mark.parametrize("gradient", [False, True])
def test_a_forward_pass_counts_what_is_on(block: int, gradient: bool) -> None:
    model, x = network("sparse", block), torch.randn(B, N)
    gater = B * BOTTLENECK * (N + HIDDEN // block)
    with torch.set_grad_enabled(gradient):
        done = counted(lambda: model(x))
    telemetry = model.telemetry()
    assert done == telemetry.needed == telemetry.multiplications
    assert gater < done < telemetry.dense / 1.5


def test_the_dense_path_counts_everything() -> None:
    model, x = network("dense"), torch.randn(B, N)
    assert counted(lambda: model(x)) == model.telemetry().dense == model.telemetry().multiplications


def test_a_training_step_skips_in_the_layer_and_in_the_gater() -> None:
    x, done, pairs = torch.randn(B, N), {}, {}
    backends: tuple[Backend, ...] = ("sparse", "dense")
    for backend in backends:
        model = network(backend)
        torch.manual_seed(1)
        done[backend] = counted(partial(_step, model, x))
        pairs[backend] = int(model.telemetry().active.sum())
    # Forward n + out; backward dS, ∂w_out (out each) and ∂w_in (n): x wants no gradient.
    # The gater: ∂z and ∂V by the gates whose gradient is not zero, ∂U for all.
    layer, back = pairs["sparse"] * (2 * N + 3 * OUT), 2 * pairs["sparse"] * BOTTLENECK
    assert done["sparse"] == GATER + layer + back + B * N * BOTTLENECK
    everything = B * HIDDEN * (2 * N + 3 * OUT)  # the gater skips also here
    assert done["dense"] == GATER + everything + back + B * N * BOTTLENECK


@pytest.mark.parametrize("backend", ["sparse", "dense"])
def test_an_exported_network_counts_the_same(backend: Backend) -> None:
    """As a compiled one would; torch compiles nothing while a counter listens."""
    model, x = network(backend).eval(), torch.randn(B, N)
    exported = torch.export.export(model, (x,)).module()
    with torch.no_grad():
        assert counted(lambda: exported(x)) == counted(lambda: model(x))
    path = model.telemetry().path
    assert path is not None
    assert path.backend == backend


def test_registered_backward_counts_what_it_does() -> None:
    model, x = network("sparse"), torch.randn(B, N)
    with torch.no_grad():
        gates = model.gater(x)
    probe = torch.rand_like(gates) < 0.2
    layer = (model.experts.weight, model.experts.bias, model.out.weight)
    arguments = (torch.randn(B, OUT), x, gates, *layer, probe.float(), False)
    on, probed = int((gates != 0).sum()), int((probe & (gates == 0)).sum())
    operation = torch.ops.hardgate.conditional_backward
    done = counted(lambda: operation(*arguments, "sparse"))
    assert done == on * (3 * N + 2 * OUT) + probed * (N + OUT)
    assert counted(lambda: operation(*arguments, "dense")) == B * HIDDEN * (3 * N + 2 * OUT)


@pytest.mark.parametrize("gradient", [False, True])
def test_fake_tensors_are_never_read(gradient: bool) -> None:
    model, x = network("sparse"), torch.randn(B, N)
    mode = FakeTensorMode()
    with FakeCopyMode(mode):
        model = copy.deepcopy(model)
    with mode, torch.set_grad_enabled(gradient):
        y = model(mode.from_tensor(x))
        assert y.shape == (B, OUT)
        if gradient:
            y.sum().backward()
            assert model.experts.weight.grad is not None
