"""ReinMax in its binary closed form (Liu et al. 2023), with an optional control variate."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate._base.arguments import flag, proper_decay
from hardgate._base.precision import widen
from hardgate._base.torch_state import compiling, is_wrapped
from hardgate.functional import relaxations
from hardgate.learning.coefficients import Coefficient
from hardgate.noise import uniform
from hardgate.units._bernoulli import BernoulliUnit
from hardgate.units._unit import EvalMode, NoiseTensors, single


class ReinMax(BernoulliUnit):
    """h = 1 with probability p = σ(a); ∂L/∂a := ½|h - p| ∂L/∂h.

    Second order: exact in expectation for losses that are quadratic in each h_i, biased beyond.

    `control_variate=True` adds c·(p(1-p) - ½|h - p|), whose mean is zero: the same mean gradient,
    with less variance. c is each unit's best multiple, learnt from past backward passes by two
    moving averages as in the paper's Corollary 1 (the mean of ∂L/∂h, where that does not depend
    on h). In eager mode, a hook on h uses c and updates it. Under `torch.compile` and
    `torch.func`, where not every hook runs, c is neither used nor updated: the gradient is that
    of plain ReinMax, which has the same mean.

    Args:
        control_variate: as above. c is part of `state_dict()` and has the scale of the loss that is
            back-propagated; it moves in training mode only, and not after `unit.control.eval()`.
        decay: of its moving averages, per backward pass.
        eval_mode: see `hardgate.Unit`.

    Example:
        >>> a = torch.zeros(2, requires_grad=True)
        >>> h = ReinMax()(a, torch.tensor([0.9, 0.1]))  # off, on
        >>> h.square().sum().backward()  # f'(0) = 0, f'(1) = 2; the exact gradient is ¼
        >>> a.grad.tolist(), a.grad.mean().item()
        ([0.0, 0.5], 0.25)

    References:
        Liu, Dong, Liu, Yu & Gao 2023, Bridging discrete and backpropagation: straight-through and
        beyond.
    """

    control: Coefficient | None

    def __init__(
        self,
        control_variate: bool = False,
        *,
        decay: float = 0.99,
        eval_mode: EvalMode = "threshold",
    ) -> None:
        super().__init__(eval_mode=eval_mode)
        self.control_variate = flag("control_variate", control_variate)
        self.decay = proper_decay(decay, 0.99)
        self.control = Coefficient(0.0, per_unit=True, decay=decay) if control_variate else None

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return uniform(a, generator)

    def sample(self, a: Tensor, noise: NoiseTensors) -> Tensor:
        h = relaxations.reinmax(a, single(noise))
        if self.control is not None and h.requires_grad and not (compiling() or is_wrapped(h)):
            _steer(h, widen(a.detach()), self.control)
        return h

    def extra_repr(self) -> str:
        control = "control_variate=True" if self.control_variate else ""
        return ", ".join(filter(None, [control, super().extra_repr()]))


def _steer(h: Tensor, a: Tensor, control: Coefficient) -> None:
    """Make ∂L/∂h, as it comes to h, ∂L/∂h + c·t, with t such that ½|h - p|·t has mean zero.

    t = 1 - 2|h - p|: then ½|h - p|·t = p(1-p) - ½|h - p|. c is read here: a backward pass through
    a later use of the unit must not change it.
    """
    k = 0.5 * torch.sigmoid(torch.where(h > 0, -a, a))  # ½|h - p|
    t = 1 - 4 * k
    shift = control.value(units=h.shape[-1] if h.dim() else 1) * t

    def hook(gradient: Tensor) -> Tensor:
        if control.training:
            control.learn_(k * gradient, k * t)
        return (gradient + shift).to(gradient.dtype)

    h.register_hook(hook)
