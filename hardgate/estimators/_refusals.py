"""Where an estimator would be silently wrong, or fail without saying why: refused."""

from __future__ import annotations

import torch

from hardgate._base.torch_state import backward_pass, compiling, transforming

NOT_DIFFERENTIABLE = (
    "this estimator expected f to be differentiable in b, got losses that do not depend on b "
    "through torch operations. Write estimator=hardgate.estimators.DisARM(), or another with "
    "needs_gradient_of_f = False."
)


def needs_autograd(name: str) -> None:
    """Refuse where `torch.autograd.grad` does not work: in inference mode, under `torch.func`."""
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            f"{name} expected torch.no_grad(), got torch.inference_mode(), in which nothing can be "
            "differentiated. Write with torch.no_grad():"
        )
    if transforming():
        raise RuntimeError(
            f"{name} expected no torch.func transform around it: it differentiates with "
            "torch.autograd. Write value.sum().backward(), or estimator="
            "hardgate.estimators.DisARM(), which needs values of f only."
        )


def may_learn(name: str) -> None:
    """Refuse to learn where the state would keep a transform's tensors, or would learn twice."""
    if transforming():
        raise RuntimeError(
            f"{name} expected no torch.func transform around it while it learns. Write "
            "estimator.adapt = False, or call expectation outside of the transform."
        )
    # A checkpoint computes its forward pass again, and takes the gradient from the second one:
    # there the averages would already contain the present samples.
    if not compiling() and backward_pass() != -1:
        raise RuntimeError(
            f"{name} expected not to be called again in a backward pass: it would learn from the "
            "same samples twice, and be biased. Call expectation outside of checkpoint(...), "
            "which may be inside of f, or write estimator.adapt = False."
        )
