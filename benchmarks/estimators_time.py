"""What an estimator costs beyond the evaluations of f that it declares.

B = 100, D = 200, f a 200-200-784 decoder. A training step with an estimator of n evaluations,
`expectation(f, a, estimator).mean().backward()`, is held against n plain evaluations of f with the
backward passes that it declares: to f's parameters, and with `needs_gradient_of_f` one more to b.
The bound is 1.15. Both take turns of six calls each, in one process with one thread, and what
counts are the medians of the last five, as in `hardgate bench`: what a training loop sees. The
first call of a turn, which finds the caches as the other left them, is shown as *cold*. Freed
memory stays with the process (`reuse_memory`), on both sides alike. That the value is f's at the
samples drawn, and that f was not evaluated more often than declared, is asserted before anything is
timed. Run it on an idle machine:

    python benchmarks/estimators_time.py [NAME…]
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from hardgate.estimators import ESTIMATORS, Estimator, expectation
from hardgate_lab.rig.memory import reuse_memory
from hardgate_lab.rig.timing import Run, rounds

B, D, HIDDEN, PIXELS = 100, 200, 200, 784
MOST_EVALS, BOUND, SECONDS = 4, 1.15, 3.0

Loss = Callable[[Tensor], Tensor]


def problem() -> tuple[Loss, Tensor]:
    """f, and logits `[B, D]`."""
    torch.manual_seed(0)
    decoder = nn.Sequential(nn.Linear(D, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, PIXELS))
    x = torch.bernoulli(torch.full((B, PIXELS), 0.3))

    def f(b: Tensor) -> Tensor:
        pixels = decoder(b)
        losses = binary_cross_entropy_with_logits(pixels, x.expand_as(pixels), reduction="none")
        return losses.sum(-1)

    return f, torch.randn(B, D, requires_grad=True)


def check(f: Loss, a: Tensor, estimator: Estimator) -> None:
    """The value is the mean of f at samples that were really drawn: equality before timing."""
    seen: list[Tensor] = []

    def noted(b: Tensor) -> Tensor:
        losses = f(b)
        seen.append(losses.detach().view(-1, B))
        return losses

    context = torch.zeros(B, 1) if estimator.uses_context else None
    value = expectation(noted, a, estimator, context=context).detach()
    losses = torch.cat(seen)  # [evaluations, B]
    low, high = losses.amin(0), losses.amax(0)
    slack = 1e-3 * high.abs()
    assert ((value >= low - slack) & (value <= high + slack)).all(), type(estimator).__name__
    assert len(losses) <= int(estimator.n_evals), "evaluates f more often than declared"


def whole(f: Loss, a: Tensor, estimator: Estimator) -> Callable[[], None]:
    """The expectation with its backward pass."""
    context = torch.zeros(B, 1) if estimator.uses_context else None

    def run() -> None:
        a.grad = None
        expectation(f, a, estimator, context=context).mean().backward()

    return run


def plain(f: Loss, samples: Tensor, *, to_samples: bool) -> Callable[[], None]:
    """f at `[K, B, D]` at once, back-propagated to its parameters; and to the samples, or not."""

    def run() -> None:
        b = samples.requires_grad_(to_samples)
        losses = f(b)
        if to_samples:
            torch.autograd.grad(losses.sum(), b, retain_graph=True)
        losses.mean().backward()
        b.grad = None

    return run


def main() -> None:
    """Print the table: milliseconds, those of n plain evaluations, and the ratio."""
    torch.set_num_threads(1)
    reuse_memory()
    f, a = problem()
    print(f"torch {torch.__version__}, 1 thread, B = {B}, D = {D}, f {D}-{HIDDEN}-{PIXELS}")
    print(
        f"{'':18}{'evals':>6}{'∇f':>5}{'ms':>8}{'plain':>8}{'ratio':>7}{'cold':>7}  bound {BOUND}"
    )
    for name in sys.argv[1:] or ESTIMATORS:
        estimator = ESTIMATORS[name]()
        n = estimator.n_evals
        if not isinstance(n, int) or n > MOST_EVALS:
            continue
        check(f, a, estimator)
        b = torch.bernoulli(torch.sigmoid(a.detach()).expand(n, B, D))
        needs = estimator.needs_gradient_of_f
        runs: dict[str, Run] = {
            "ours": whole(f, a, estimator),
            "plain": plain(f, b, to_samples=needs),
        }
        steady, cold = rounds(runs, SECONDS)
        above, first = (times["ours"] / times["plain"] for times in (steady, cold))
        note = "" if above <= BOUND else "  over"
        facts = f"{name:18}{n:6}{'yes' if needs else 'no':>5}"
        times = f"{steady['ours']:8.2f}{steady['plain']:8.2f}{above:7.2f}{first:7.2f}"
        print(f"{facts}{times}{note}", flush=True)


if __name__ == "__main__":
    main()
