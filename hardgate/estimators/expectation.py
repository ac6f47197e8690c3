"""E f(b) as a differentiable value: the one way in to every estimator."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate.enumeration import losses_of
from hardgate.estimators._estimator import Estimator, Loss
from hardgate.units._unit import Unit


def expectation(
    f: Loss,
    logits: Tensor,
    estimator: Estimator | Unit,
    *,
    generator: torch.Generator | None = None,
    context: Tensor | None = None,
) -> Tensor:
    """E f(b) for b_i ~ Bernoulli(σ(a_i)), estimated; its backward pass estimates the gradient.

    The gradient at `logits` is the estimator's; parameters inside f get their ordinary gradient,
    at the samples that were drawn. It has a first derivative only. An estimator that learns
    (`estimator.state`) has to be the same object in every step: make it once, beside the model.

    Args:
        f: samples `[..., D]` → losses `[...]`, one per sample; several samples come as a further
            axis in front, in fp32 where the logits are in half precision. Batch statistics or
            dropout inside f see all of them at once.
        logits: a, `[..., D]`.
        estimator: one of `hardgate.ESTIMATORS`; or a unit that back-propagates through its one
            sample, like `hardgate.StraightThrough()`. The value is then f at its h: for units that
            are not Bernoulli(σ(a)), like `hardgate.NoisyRectifier()`, an objective of their own.
        generator: of the noise; torch's own if None.
        context: the input `[..., C]` that the logits were computed from, for estimators with
            `uses_context`.

    Returns:
        the value, `[...]`.

    Example:
        >>> from hardgate.estimators import DisARM
        >>> a = torch.zeros(100, 3, requires_grad=True)
        >>> value = expectation(lambda b: (b - 0.4).square().sum(-1), a, estimator=DisARM())
        >>> value.mean().backward()
        >>> tuple(value.shape), tuple(a.grad.shape)
        ((100,), (100, 3))
    """
    _check(logits, estimator, context)
    if isinstance(estimator, Estimator):
        value: Tensor = estimator(f, logits, generator=generator, context=context)
        return value
    return losses_of(f, estimator(logits, estimator.sample_noise(logits, generator)))


def _check(logits: Tensor, estimator: object, context: Tensor | None) -> None:
    if not isinstance(logits, Tensor) or not logits.is_floating_point() or logits.dim() == 0:
        got = type(logits).__name__
        if isinstance(logits, Tensor):
            got = f"{logits.dtype} of shape {tuple(logits.shape)}"
        raise TypeError(f"expectation expected floating point logits [..., D], got {got}.")
    if isinstance(estimator, type):
        raise TypeError(
            f"expectation expected an estimator, got the class {estimator.__name__}. "
            f"Write estimator={estimator.__name__}()."
        )
    if not isinstance(estimator, Estimator | Unit):
        raise TypeError(
            "expectation expected an estimator of hardgate.ESTIMATORS or a unit, "
            f"got {type(estimator).__name__}. Write estimator=hardgate.estimators.DisARM()."
        )
    if isinstance(estimator, Unit) and not (estimator.training or estimator.eval_mode == "sample"):
        raise ValueError(
            f"expectation expected a unit that samples, got {type(estimator).__name__} in "
            "evaluation mode. Write estimator=unit.train(), or Unit(eval_mode='sample')."
        )
    if isinstance(estimator, Unit) and estimator.needs_loss:
        raise ValueError(
            f"expectation expected a unit that back-propagates, got {type(estimator).__name__}, "
            "which learns from the loss. Write estimator=hardgate.estimators.REINFORCE('optimal'), "
            "the same estimator."
        )
    uses = isinstance(estimator, Estimator) and estimator.uses_context
    if context is not None and not uses:
        raise ValueError(
            f"{type(estimator).__name__} expected no context: it makes no use of one. Leave "
            "context out, or write estimator=hardgate.estimators.NVIL()."
        )
    if context is not None:
        _check_context(logits, context)


def _check_context(logits: Tensor, context: object) -> None:
    batch = logits.shape[:-1]
    given = context.shape if isinstance(context, Tensor) else torch.Size()
    if len(given) > len(batch) and given[: len(batch)] == batch:
        return
    got = tuple(context.shape) if isinstance(context, Tensor) else type(context).__name__
    raise ValueError(
        f"expectation expected a context of one input for each example, a tensor "
        f"({', '.join(map(str, batch))}, ...) for logits {tuple(logits.shape)}, got {got}."
    )
