"""The estimators under test, in every form whose formula differs, and how their draws are taken.

Whatever is in `hardgate.ESTIMATORS` is here, so a new estimator is tested as soon as it is
registered.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hardgate
from hardgate import ESTIMATORS
from hardgate.estimators import REINFORCE, UGC, DoubleCV, Estimate, ManySamples, StochasticAD
from hardgate.estimators._estimator import Estimator, Loss, Noise
from hardgate_lab.rig.problems import EXTREME, PROBLEMS, GradientProblem

N = 40_000
TAIL = 4e-4  # 4 p of the extreme problem's rare units

ALL_PROBLEMS: dict[str, GradientProblem] = {**PROBLEMS, **EXTREME}


def _cases() -> dict[str, Callable[[], Estimator]]:
    cases: dict[str, Callable[[], Estimator]] = {}
    for name, cls in ESTIMATORS.items():
        default = cls()
        if isinstance(default, ManySamples):
            for K in sorted({default.samples, *range(default.fewest, 5)}):
                cases[f"{name}(samples={K})"] = functools.partial(type(default), K)
        else:
            cases[f"{name}()"] = cls
    cases |= {
        'REINFORCE("mean")': lambda: REINFORCE("mean"),
        'REINFORCE("optimal")': lambda: REINFORCE("optimal"),
        "UGC(among_rare=True)": lambda: UGC(among_rare=True),
        "DoubleCV(per_unit=True)": lambda: DoubleCV(per_unit=True),
        'StochasticAD("all")': lambda: StochasticAD("all"),
    }
    return cases


CASES = _cases()
UNBIASED = [name for name, make in CASES.items() if make().unbiased]
# One K of each is enough for what does not depend on the formula.
FORMS = [name for name in CASES if not name.endswith(("samples=3)", "samples=4)"))]
LEARNING = [name for name in FORMS if CASES[name]().state]

each_case = pytest.mark.parametrize("name", CASES)
each_unbiased = pytest.mark.parametrize("name", UNBIASED)
each_form = pytest.mark.parametrize("name", FORMS)
each_unbiased_form = pytest.mark.parametrize("name", [n for n in FORMS if n in UNBIASED])
each_learning = pytest.mark.parametrize("name", LEARNING)
each_problem = pytest.mark.parametrize("problem", PROBLEMS)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def leaf(a: Tensor, *rows: int) -> Tensor:
    """Independent copies `[*rows, D]` of a, each to be given a gradient of its own."""
    return a.detach().expand(*rows, *a.shape).clone().requires_grad_()


def draw(estimator: Estimator, f: Loss, a: Tensor, seed: int = 0) -> Estimate:
    """The value and the gradient at the leaf `a`, by the public way in."""
    a = a.detach().clone().requires_grad_()
    value = hardgate.expectation(f, a, estimator, generator=seeded(seed))
    (gradient,) = torch.autograd.grad(value.sum(), a)
    return Estimate(value.detach(), gradient)


def warm(estimator: Estimator, f: Loss, a: Tensor, steps: int = 20, rows: int = 500) -> Estimator:
    """The estimator after it has learnt from `steps` batches, then frozen."""
    if estimator.state:
        for step in range(steps):
            draw(estimator, f, leaf(a, rows), seed=1000 + step)
    estimator.adapt = False
    return estimator


@functools.cache
def draws(name: str, problem: str) -> Estimate:
    """N independent draws of the warmed up and frozen estimator."""
    f, a = ALL_PROBLEMS[problem].f, ALL_PROBLEMS[problem].logits
    rows = 2 if name == "Exact()" else N
    return draw(warm(CASES[name](), f, a), f, leaf(a, rows), seed=1)


def evaluations(estimator: Estimator, D: int) -> int:
    """n_evals as a number."""
    formula = str(estimator.n_evals).replace("^", "**").replace("·", "*")
    return int(eval(formula, {"D": D}))


def rare_draws(estimator: Estimator, problem: GradientProblem, n: int, seed: int = 2) -> Estimate:
    """n draws of value and gradient whose noise visits the tails, weighted so their mean stays.

    With probability ½ one uniform number of a rare unit (or of an example) is put into a tail,
    [0, t) or [1-t, 1); a draw weighs true density / density it was drawn from ≤ 2. Otherwise a
    unit at p = 1e-4 would be seen ten times in 10⁵ draws, too few for a z-score.
    """
    a, generator = leaf(problem.logits, n).detach(), seeded(seed)
    noise = estimator.sample_noise(a, generator)
    tensors = noise if isinstance(noise, tuple) else (noise,)
    rare = torch.where(problem.logits.abs() > 5)[0].tolist()
    flat = [u.reshape(-1, n, u.shape[-1]) for u in tensors]  # [K, n, D], or [1, n, 1]
    spots = [
        (t, k, i)
        for t, u in enumerate(flat)
        for k in range(len(u))
        for i in (rare if u.shape[-1] == a.shape[-1] else [0])
    ]
    assert all(((u >= 0) & (u < 1)).all() for u in flat), "the noise is expected to be uniform"
    if not spots:
        return estimator.estimate(problem.f, a[:2], noise)  # nothing is drawn
    chosen = torch.randint(2 * len(spots), (n,), generator=generator)  # the upper half: none
    tail = TAIL * torch.rand(n, generator=generator)
    tail = torch.where(torch.rand(n, generator=generator) < 0.5, tail, 1 - TAIL + tail)
    for s, (t, k, i) in enumerate(spots):
        flat[t][k, :, i] = torch.where(chosen == s, tail, flat[t][k, :, i])
    inside = [(flat[t][k, :, i] - 0.5).abs() > 0.5 - TAIL for t, k, i in spots]
    density = 0.5 + 0.5 * torch.stack(inside).double().mean(0) / (2 * TAIL)
    moved = tuple(u.view_as(v) for u, v in zip(flat, tensors, strict=True))
    found = estimator.estimate(problem.f, a, _like(noise, moved))
    return Estimate(found.value.detach() / density, found.gradient / density.unsqueeze(-1))


def _like(noise: Noise, tensors: tuple[Tensor, ...]) -> Noise:
    return tensors if isinstance(noise, tuple) else tensors[0]
