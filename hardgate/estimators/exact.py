"""Exact: no sampling at all, f at every one of the 2^D binary vectors."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate.enumeration import exact_expectation
from hardgate.estimators._estimator import Context, Estimate, Estimator, Loss, Noise
from hardgate.estimators._refusals import needs_autograd


class Exact(Estimator):
    """g = ∂/∂a Σ_b q(b) f(b) = Σ_b q(b) f(b)(b - p): the gradient itself, D ≤ 20.

    The value is E f(b) itself, too. Where all b together hold more than about four million
    numbers, f is evaluated in parts, which are computed again in the backward pass, so memory
    stays bounded.

    Example:
        >>> import hardgate
        >>> a = torch.zeros(2, requires_grad=True)
        >>> value = hardgate.expectation(lambda b: b.sum(-1).square(), a, Exact())
        >>> value.backward()
        >>> value.item(), a.grad.tolist()
        (1.5, [0.5, 0.5])
    """

    unbiased = True
    n_evals = "2^D"

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> Noise:
        return ()

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        needs_autograd("Exact")
        a = a.detach().requires_grad_()
        value = exact_expectation(f, a)
        (g,) = torch.autograd.grad(value.sum(), a, retain_graph=True)
        return Estimate(value, g)
