"""Neurons newer than the paper, as pure functions; public as `hardgate.functional`.

`binary_concrete` and `hard_concrete` are relaxations. All others are Bernoulli(σ(a)) and differ in
the slope that replaces ∂b/∂a. With y = (2b - 1)a, the logit of the outcome that was drawn:

    ST × σ'                  σ(y)σ(-y)
    slope-annealed ST        α/2 where |αa| ≤ 1
    ST-Gumbel                s(1-s)/λ, s = σ(z/λ), z = a + logistic noise, b = 1[z > 0]
    GR-MCK                   the mean of that over z, given b
    gapped ST                s(1-s)/τ, s = σ(max(y, gap)/τ)
    ReinMax                  ½|b - p| = ½σ(-y)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus

from hardgate._base.precision import widen
from hardgate.functional.concrete import mean_slope, slope_at
from hardgate.functional.surrogates import bernoulli, surrogate, with_slope


def slope_annealed(a: Tensor, u: Tensor, slope: Tensor | float = 1.0) -> Tensor:
    """h = 1[u < σ(a)], differentiated as the hard sigmoid clip((αa + 1)/2, 0, 1).

    Args:
        a: pre-activations `[..., D]`.
        u: uniform noise in [0, 1) of the same shape.
        slope: α; the steeper, the fewer units have a gradient and the larger it is.

    Returns:
        h of exact zeros and ones, of the shape and dtype of `a`.

    Example:
        >>> a = torch.tensor([0.4, -0.6], requires_grad=True)
        >>> slope_annealed(a, torch.tensor([0.5, 0.5]), slope=2.0).sum().backward()
        >>> a.grad.tolist()
        [1.0, 0.0]
    """
    x = widen(a)
    return surrogate(bernoulli(torch.sigmoid(x), u), hard_sigmoid(x, slope)).to(a.dtype)


def hard_sigmoid(a: Tensor, slope: Tensor | float = 1.0) -> Tensor:
    """clip((αa + 1)/2, 0, 1)."""
    return ((slope * a + 1) / 2).clamp(0, 1)


def binary_concrete(a: Tensor, z: Tensor, temperature: float) -> Tensor:
    """h = σ((a + z)/λ): a Bernoulli(σ(a)) variable, relaxed, and differentiated as it stands.

    Args:
        a: pre-activations `[..., D]`.
        z: logistic noise of the same shape.
        temperature: λ; h rounds to a Bernoulli(σ(a)) variable, and is one as λ → 0.

    Returns:
        h in (0, 1), of the shape and dtype of `a`.

    Example:
        >>> binary_concrete(torch.zeros(2), torch.tensor([0.0, 10.0]), 0.5).tolist()
        [0.5, 1.0]
    """
    return torch.sigmoid((widen(a) + z) / temperature).to(a.dtype)


def hard_concrete(
    a: Tensor, z: Tensor, temperature: float, gamma: float = -0.1, zeta: float = 1.1
) -> Tensor:
    """h = clip(s(ζ - γ) + γ, 0, 1), s = σ((a + z)/λ): with exact zeros and ones.

    Args:
        a: pre-activations `[..., D]`.
        z: logistic noise of the same shape.
        temperature: λ.
        gamma: γ < 0, how far below 0 the relaxed variable is stretched.
        zeta: ζ > 1, how far above 1.

    Returns:
        h in [0, 1], of the shape and dtype of `a`; no gradient where it is clipped.

    Example:
        >>> hard_concrete(torch.zeros(3), torch.tensor([-9.0, 0.0, 9.0]), 0.5).tolist()
        [0.0, 0.5, 1.0]
    """
    s = torch.sigmoid((widen(a) + z) / temperature)
    # relu, not clamp(0, 1): at 0 exactly the derivative of the latter is 1, and off is off.
    return torch.relu(s * (zeta - gamma) + gamma).clamp(max=1).to(a.dtype)


def st_gumbel(a: Tensor, z: Tensor, temperature: float) -> Tensor:
    """h = 1[a + z > 0], differentiated as the binary Concrete σ((a + z)/λ).

    Args:
        a: pre-activations `[..., D]`.
        z: logistic noise of the same shape, so that P(h = 1) = σ(a).
        temperature: λ.

    Returns:
        h of exact zeros and ones, of the shape and dtype of `a`.

    Example:
        >>> st_gumbel(torch.zeros(2), torch.tensor([0.1, -0.1]), 0.5).tolist()
        [1.0, 0.0]
    """
    x = widen(a) + z
    return surrogate((x > 0).to(x.dtype), torch.sigmoid(x / temperature)).to(a.dtype)


def gr_mck(a: Tensor, u: Tensor, v: Sequence[Tensor] | None, temperature: float) -> Tensor:
    """h = b = 1[u < σ(a)] with the slope of ST-Gumbel, averaged over z given b.

    The logistic variable given the outcome is |z| = softplus(y + log v) - log(1 - v), v uniform,
    y = (2b - 1)a; s(1-s)/λ does not depend on its sign.

    Args:
        a: pre-activations `[..., D]`.
        u: uniform noise in [0, 1) of the same shape, which draws b.
        v: K uniform noises for as many draws of z, or None for their expectation, K = ∞.
        temperature: λ.

    Returns:
        h of exact zeros and ones, of the shape and dtype of `a`.

    Example:
        >>> a = torch.zeros(2, requires_grad=True)
        >>> gr_mck(a, torch.tensor([0.4, 0.6]), None, temperature=1.0).sum().backward()
        >>> [round(g, 4) for g in a.grad.tolist()]  # E[s(1-s)] for s uniform: 1/6
        [0.1667, 0.1667]
    """
    if v is None:
        return of_outcome(a, u, lambda y: mean_slope(y, temperature))
    draws = [each.clamp(min=2.0**-25) for each in v]  # rand() returns 0 once in 2²⁴ draws

    def mean(y: Tensor) -> Tensor:
        z = [softplus(y + torch.log(d), threshold=60.0) - torch.log1p(-d) for d in draws]
        return torch.stack([slope_at(each, temperature) for each in z]).mean(0)

    return of_outcome(a, u, mean)


def gapped_straight_through(
    a: Tensor, u: Tensor, gap: float = 1.0, temperature: float = 1.0
) -> Tensor:
    """h = 1[u < σ(a)] with the slope s(1-s)/τ, s = σ(max(y, gap)/τ), y = (2b - 1)a.

    No noise beyond b enters the slope: the outcome that was drawn is made the likelier one, by
    at least `gap` in logits.

    Args:
        a: pre-activations `[..., D]`.
        u: uniform noise in [0, 1) of the same shape.
        gap: the least logit of the outcome.
        temperature: τ.

    Returns:
        h of exact zeros and ones, of the shape and dtype of `a`.

    Example:
        >>> a = torch.tensor([0.0, 9.0], requires_grad=True)
        >>> gapped_straight_through(a, torch.tensor([0.9, 0.9]), gap=0.0).sum().backward()
        >>> tuple(round(g, 4) for g in a.grad.tolist())
        (0.25, 0.0001)
    """
    return of_outcome(a, u, lambda y: slope_at(y.clamp(min=gap), temperature))


def reinmax(a: Tensor, u: Tensor) -> Tensor:
    """h = b = 1[u < σ(a)] with the slope ½|b - p|: second order, in its binary closed form.

    E[½|b - p| f'(b)] = p(1-p)(f'(0) + f'(1))/2, the trapezoidal rule for f(1) - f(0): exact for
    losses that are quadratic in each h_i.

    Args:
        a: pre-activations `[..., D]`.
        u: uniform noise in [0, 1) of the same shape.

    Returns:
        h of exact zeros and ones, of the shape and dtype of `a`.

    Example:
        >>> a = torch.zeros(2, requires_grad=True)
        >>> reinmax(a, torch.tensor([0.4, 0.6])).sum().backward()
        >>> a.grad.tolist()
        [0.25, 0.25]
    """
    return of_outcome(a, u, lambda y: 0.5 * torch.sigmoid(-y))


def of_outcome(a: Tensor, u: Tensor, slope: Callable[[Tensor], Tensor]) -> Tensor:
    """h = b = 1[u < σ(a)] with a slope that depends on y = (2b - 1)a alone.

    The probability of the outcome that was drawn is σ(y), that of the other σ(-y) = |b - p|.
    """
    x = widen(a)
    b = bernoulli(torch.sigmoid(x), u)
    y = torch.where(b > 0, x, -x).detach()
    return with_slope(b, x, slope(y)).to(a.dtype)
