"""Which path `backend="auto"` takes, on both sides of every limit."""

from __future__ import annotations

import pytest
import torch

from tests.support.kernel_cases import path

IN, HIDDEN, OUT = 32, 800, 4


def taken(
    batch: int, on: int, *, block: int = 1, n_in: int = IN, probed: int = 0, grad: bool = True
) -> tuple[str, float | None]:
    """The backend and the density by which it was chosen.

    In every example `on` per cent of the gates are on, and `probed` per cent are off but probed.
    All examples are alike, so that any sample of them has the same density.
    """
    gates = torch.zeros(batch, HIDDEN // block)
    count = gates.shape[1] * on // 100
    gates[:, :count] = 1.0
    probe = None
    if probed:
        probe = torch.zeros_like(gates)
        probe[:, : count + gates.shape[1] * probed // 100] = 1.0  # what is on does not count twice
    x, w_in = torch.randn(batch, n_in), torch.randn(HIDDEN, n_in, requires_grad=grad)
    biases: dict[str, None] = {"b_in": None, "b_out": None}
    tensors = {"x": x, "gates": gates, "w_in": w_in, "w_out": torch.randn(OUT, HIDDEN), **biases}
    with torch.set_grad_enabled(grad):
        way = path({**tensors, "probe": probe})
    assert way is not None
    return way.backend, way.density


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(
    ("batch", "block", "on", "backend"),
    [
        (40, 1, 60, "sparse"),
        (40, 1, 61, "dense"),
        (127, 1, 60, "sparse"),
        (127, 1, 61, "dense"),
        (128, 1, 35, "sparse"),  # many examples: dense products win earlier
        (128, 1, 36, "dense"),
        (128, 4, 60, "sparse"),  # but not against blocks
        (128, 4, 61, "dense"),
        (128, 2, 36, "dense"),  # of two there is no gain yet
    ],
)
def test_the_density_limit(batch: int, block: int, on: int, backend: str, grad: bool) -> None:
    found, density = taken(batch, on, block=block, grad=grad)
    assert found == backend
    assert density == pytest.approx(on / 100, abs=1e-6)


@pytest.mark.parametrize("grad", [True, False])
def test_few_examples_take_the_kernels_at_any_density(grad: bool) -> None:
    assert taken(8, 100, n_in=200, grad=grad) == ("sparse", None)  # which is not even counted
    assert taken(9, 100, n_in=200, grad=grad)[0] == "dense"


@pytest.mark.parametrize("grad", [True, False])
def test_small_layers_run_dense(grad: bool) -> None:
    """A million multiplications of the up-projection is where kernels begin to pay."""
    assert taken(25, 10, n_in=50, grad=grad)[0] == "sparse"  # 25 · 50 · 800 = 10⁶
    assert taken(25, 10, n_in=49, grad=grad)[0] == "dense"


def test_what_is_probed_counts_once() -> None:
    """Experts that are evaluated for a gradient cost as much as those whose gate is on."""
    assert taken(40, 40, probed=19)[0] == "sparse"
    assert taken(40, 40, probed=21)[0] == "dense"
    assert taken(40, 40, probed=21)[1] == pytest.approx(0.4, abs=1e-6)
