"""What the perturbation estimators share: f sampled at moved logits, with the noise of b."""

from __future__ import annotations

from abc import ABC

from hardgate._base.arguments import positive
from hardgate.estimators._estimator import Estimator


class Perturbation(Estimator, ABC):
    """An estimator that compares f at logits a certain `step` apart, under common random numbers.

    All of its samples are b = 1[u < σ(a′)] with the same u, so few units differ between two a′.
    For one u such a sample is a *step function* of a: it is constant almost everywhere, and no
    step, however small, gives a derivative. Only the mean over u is smooth; a difference is
    non-zero about as rarely as `step` is small, and then about 1/step large. So the variance
    grows as 1/step, while the bias falls as step².

    Args:
        step: how far the logits are moved.
    """

    unbiased = False

    def __init__(self, step: float = 0.1) -> None:
        super().__init__()
        self.step = positive("step", step, like=0.1)

    def extra_repr(self) -> str:
        return f"step={self.step:g}"
