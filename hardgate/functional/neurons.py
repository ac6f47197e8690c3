"""Stochastic neurons as pure functions of the pre-activation `a` and explicit noise.

No state, no random numbers, no `autograd.Function`: gradients come from detach arithmetic, so
that `torch.compile`, `torch.func` and `vmap` see ordinary operations only. Half precision is
computed in fp32 and returned in the dtype of `a`. These are the paper's neurons; newer ones are in
`hardgate.functional.relaxations`.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from hardgate._base.precision import widen
from hardgate.functional.surrogates import bernoulli, clamp_infinite, indicator, surrogate

Placement = Literal["both", "stochastic"]


def sqrt_sigmoid(a: Tensor) -> Tensor:
    """√σ(a), with the derivative ½√p(1-p) finite for every a (√ alone gives 0·∞ at p = 0)."""
    return torch.exp(0.5 * logsigmoid(a))


def noisy_rectifier(a: Tensor, z: Tensor) -> Tensor:
    """h = max(0, a + z)  (§2.1). Differentiated as it stands: ∂h/∂a = 1[a + z > 0].

    Args:
        a: pre-activations `[..., D]`.
        z: additive noise of the same shape; logistic noise gives P(h > 0) = σ(a) and
            E[h] = softplus(a)  (Proposition 1).

    Returns:
        h, of the shape and dtype of `a`.

    Example:
        >>> noisy_rectifier(torch.tensor([1.0, -1.0]), torch.tensor([0.5, 0.5])).tolist()
        [1.5, 0.0]
    """
    return (widen(a) + z).relu_().to(a.dtype)


def stochastic_times_smooth(
    a: Tensor,
    u: Tensor,
    n: Tensor | None = None,
    *,
    placement: Placement = "both",
    corrected: bool = False,
) -> Tensor:
    """p = σ(a), b = 1[u < √p], h = b·√p  (Eq. 2); E[h] = p, P(h > 0) = √p.

    Plain back-propagation holds b constant: ∂h/∂a = b·½√p(1-p), whose mean is *half* of
    dE[h]/da = p(1-p). `corrected=True` passes the gradient straight through b as well:
    ∂h/∂a = (b + √p)·½√p(1-p), whose mean is right for a linear loss.

    Args:
        a: pre-activations `[..., D]`.
        u: uniform noise in [0, 1) of the same shape.
        n: noise added to the sigmoid's argument (App. A.2), or None.
        placement: `"both"` adds n in both halves, `"stochastic"` only where b is drawn.
        corrected: pass the gradient through b too.

    Returns:
        h, of the shape and dtype of `a`.

    Example:
        >>> stochastic_times_smooth(torch.zeros(2), torch.tensor([0.6, 0.8])).tolist()
        [0.7071067690849304, 0.0]
    """
    x = widen(a)
    noisy = x if n is None else x + n
    drawn = sqrt_sigmoid(noisy)
    smooth = drawn if placement == "both" else sqrt_sigmoid(x)
    b = bernoulli(drawn.detach(), u)
    if corrected:
        b = surrogate(b, drawn)
    return (b * smooth).to(a.dtype)


def stochastic_binary(a: Tensor, u: Tensor) -> Tensor:
    """h = 1[u < σ(a)]  (Eq. 3 as its proof uses it). The derivative is zero everywhere.

    Learning comes from the loss alone: see `hardgate.score_loss` (Theorem 1).

    Args:
        a: pre-activations `[..., D]`.
        u: uniform noise in [0, 1) of the same shape.

    Returns:
        h of exact zeros and ones, of the shape and dtype of `a`.

    Example:
        >>> stochastic_binary(torch.tensor([2.0, -2.0]), torch.tensor([0.5, 0.5])).tolist()
        [1.0, 0.0]
    """
    p = torch.sigmoid(widen(a))
    return indicator(u < p, p).to(a.dtype)


def threshold(a: Tensor, t: Tensor | float = 0.0, *, sigmoid_derivative: bool = False) -> Tensor:
    """h = 1[a > t], differentiated as a (or as σ(a)): the hard threshold of §4.

    Args:
        a: pre-activations `[..., D]`.
        t: the threshold, a number or a tensor that broadcasts against `a`.
        sigmoid_derivative: ∂h/∂a := σ'(a) instead of 1.

    Returns:
        h of exact zeros and ones, of the shape and dtype of `a`.

    Example:
        >>> threshold(torch.tensor([-1.0, 0.0, 1.0])).tolist()
        [0.0, 0.0, 1.0]
    """
    x = widen(a)
    soft = torch.sigmoid(x) if sigmoid_derivative else clamp_infinite(x)
    return surrogate((x > t).to(x.dtype), soft).to(a.dtype)


def straight_through(a: Tensor, u: Tensor, *, sigmoid_derivative: bool = False) -> Tensor:
    """h = 1[u < σ(a)], differentiated as a: ∂L/∂a := ∂L/∂h, or × σ'(a)  (§4).

    Args:
        a: pre-activations `[..., D]`.
        u: uniform noise in [0, 1) of the same shape.
        sigmoid_derivative: multiply by σ'(a) (the paper's variant; exact when the loss is
            linear in each h_i).

    Returns:
        h of exact zeros and ones, of the shape and dtype of `a`.

    Example:
        >>> a = torch.tensor([0.0, 1.0], requires_grad=True)
        >>> h = straight_through(a, torch.tensor([0.9, 0.1]))
        >>> (h * torch.tensor([2.0, 3.0])).sum().backward()
        >>> h.tolist(), a.grad.tolist()
        ([0.0, 1.0], [2.0, 3.0])
    """
    x = widen(a)
    p = torch.sigmoid(x)
    soft = p if sigmoid_derivative else clamp_infinite(x)
    return surrogate(bernoulli(p.detach(), u), soft).to(a.dtype)


def rectifier(a: Tensor) -> Tensor:
    """h = max(0, a): the noisy rectifier without its noise (the paper's first baseline)."""
    return torch.relu(a)


def sigmoid(a: Tensor, z: Tensor | float | None = None) -> Tensor:
    """h = σ(a + z): the paper's sigmoid baselines, with and without noise."""
    x = widen(a)
    return torch.sigmoid(x if z is None else x + z).to(a.dtype)
