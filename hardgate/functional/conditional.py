"""The conditional layer as a pure function of inputs, gates and weights."""

from __future__ import annotations

from torch import Tensor

from hardgate.kernels.dispatch import Backend
from hardgate.kernels.op import conditional
from hardgate.kernels.problem import Weights


def conditional_mlp(
    x: Tensor,
    gates: Tensor,
    w_in: Tensor,
    b_in: Tensor | None,
    w_out: Tensor,
    b_out: Tensor | None,
    *,
    backend: Backend = "auto",
    probe: Tensor | None = None,
    relu: bool = False,
) -> Tensor:
    """y = ((x W_inᵀ + b_in) ⊙ gates) W_outᵀ + b_out, computing only what non-zero gates need.

    Forward and backward. The gradient of `gates` exists where they are non-zero, and where
    `probe` is: there it is multiplied by the probe's weight. A unit that is off and not probed
    is not evaluated at all, whatever its weights hold. This holds for every backend.

    Args:
        x: `[..., in]`.
        gates: `[..., gates]`; `hidden / gates` consecutive units share a gate, so gates of width
            hidden/16 mean blocks of 16.
        w_in: `[hidden, in]`, as in `nn.Linear`.
        b_in: `[hidden]` or None.
        w_out: `[out, hidden]`, as in `nn.Linear`. The transposed view of a contiguous
            `[hidden, out]` tensor is used without a copy, and its gradient has that layout.
        b_out: `[out]` or None.
        backend: `"dense"` (masked matrix products), `"sparse"` (kernels that skip), or `"auto"`,
            the faster by density, batch and shape.
        probe: `[..., gates]`, weights of the gate's gradient where the gate is off; 0 is not
            probed. All ones give exact straight-through.
        relu: experts max(0, x W_inᵀ + b_in) instead of linear ones.

    Returns:
        y, `[..., out]`, in the dtype of x.

    Example:
        >>> import torch
        >>> x, gates = torch.randn(4, 8), (torch.rand(4, 16) < 0.1).float()
        >>> w_in, w_out = torch.randn(16, 8), torch.randn(3, 16)
        >>> y = conditional_mlp(x, gates, w_in, None, w_out, None)
        >>> torch.allclose(y, ((x @ w_in.T) * gates) @ w_out.T, atol=1e-4)
        True
    """
    rows = w_out.t() if w_out.dim() == 2 else w_out  # another shape is refused with the others
    weights = Weights(w_in, b_in, rows, b_out)
    return conditional(x, gates, weights, probe=probe, relu=relu, backend=backend)[0]


def conditional_linear(
    x: Tensor,
    gates: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    backend: Backend = "auto",
    probe: Tensor | None = None,
    relu: bool = False,
) -> Tensor:
    """y = (x Wᵀ + b) ⊙ gates, computing only where gates are non-zero.

    The paper's conditional layer without an output transform; see `conditional_mlp`.

    Args:
        x: `[..., in]`.
        gates: `[..., gates]`.
        w: `[hidden, in]`.
        b: `[hidden]` or None.
        backend, probe, relu: as in `conditional_mlp`.

    Returns:
        y, `[..., hidden]`, zero where the gate is.

    Example:
        >>> import torch
        >>> x, gates, w = torch.ones(1, 2), torch.tensor([[0.0, 2.0]]), torch.ones(2, 2)
        >>> conditional_linear(x, gates, w).tolist()
        [[0.0, 4.0]]
    """
    return conditional(x, gates, Weights(w, b), probe=probe, relu=relu, backend=backend)[0]
