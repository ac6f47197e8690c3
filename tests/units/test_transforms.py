"""Every unit under torch.compile, torch.func and vmap: the numbers of eager mode."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

import hardgate
from hardgate import UNITS, Unit
from hardgate.units._unit import NoiseTensors
from tests.support.statistics import Z_LEVEL, largest_z
from tests.support.transforms import (
    TORCH_JIT,
    TRANSFORMS,
    assert_equals_eager,
    backward,
    objective,
)
from tests.support.unit_cases import CASES, NEWER, each_unit, each_unit_newer_slow, samples, slow

pytestmark = pytest.mark.usefixtures("fresh_compiler")
each_needs_loss = pytest.mark.parametrize("name", [n for n in UNITS if UNITS[n]().needs_loss])
# Units that learn from the loss are not traced through torch.func, see below.
FUNC_IN_COMPILE = ("compile(grad)", "compile(vmap(grad))")


def prepared(name: str) -> tuple[Unit, Tensor, NoiseTensors]:
    torch.manual_seed(0)
    unit, a = CASES[name](), 2 * torch.randn(5, 3)
    if unit.needs_loss:  # a baseline that has seen something, so that reading it matters
        losses = unit(a.clone().requires_grad_()).sum(-1)
        hardgate.score_loss(unit, losses)
    return unit, a, unit.sample_noise(a)


@pytest.mark.parametrize(
    ("name", "transform"),
    [
        pytest.param(
            name,
            transform,
            marks=[slow] if name.startswith(NEWER) and transform in FUNC_IN_COMPILE else [],
        )
        for name, transform in itertools.product(CASES, TRANSFORMS)
        if not (CASES[name]().needs_loss and transform in FUNC_IN_COMPILE)
    ],
)
def test_training(name: str, transform: str) -> None:
    unit, a, noise = prepared(name)
    assert_equals_eager(TRANSFORMS[transform], objective(unit), a, noise)


@pytest.mark.parametrize("transform", FUNC_IN_COMPILE)
@each_needs_loss
def test_units_that_learn_from_the_loss_fall_back(name: str, transform: str) -> None:
    """Dynamo denies that the argument of a traced grad requires one: a record would be missed.

    So a whole graph is refused, never answered by a gradient of zero; with a break it is right.
    """
    unit, a, noise = prepared(name)
    with pytest.raises(RuntimeError, match=r"Write torch\.compile without fullgraph"):
        TRANSFORMS[transform](objective(unit))(a, noise)
    hardgate.clear_scores(unit)
    torch._dynamo.reset()
    inner = TRANSFORMS["vmap(grad)" if "vmap" in transform else "grad"]
    assert_equals_eager(
        lambda f: torch.compile(inner(f), backend="aot_eager"), objective(unit), a, noise
    )


# Plain `compile` in evaluation mode is in test_robustness.py, with NaN.
@pytest.mark.parametrize("transform", ["vmap(grad)", "compile(grad)"])
@each_unit_newer_slow
def test_evaluation(name: str, transform: str) -> None:
    unit, a, noise = prepared(name)
    assert_equals_eager(TRANSFORMS[transform], objective(unit.eval()), a, noise)


@pytest.mark.filterwarnings(TORCH_JIT)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@each_unit
def test_forward_mode(name: str, training: bool) -> None:
    """jvp along all ones equals the backward pass (h_i depends on a_i alone)."""
    unit, a, noise = prepared(name)
    unit.train(training)
    if unit.needs_loss and training:
        with pytest.raises(RuntimeError, match="forward-mode"):
            jvp(lambda x: unit(x, noise), (a,), (torch.ones_like(a),))
        return
    expected = backward(lambda x, z: (unit(x, z).sum(), x))(a, noise)[0]
    result = jvp(lambda x: unit(x, noise), (a,), (torch.ones_like(a),))
    assert torch.equal(result[0], unit(a, noise))
    torch.testing.assert_close(result[1], expected)


@each_unit
def test_probabilities_under_vmap_grad(name: str) -> None:
    """What the sparsity penalties differentiate."""
    unit, a, _ = prepared(name)

    def log_odds(x: Tensor, _: NoiseTensors) -> tuple[Tensor, Tensor]:
        active, inactive = unit.active_probability(x), unit.inactive_probability(x)
        # The added x gives the constant probabilities something to differentiate.
        return (active - 2 * inactive + x).sum(), torch.stack([active, inactive]).detach()

    gradient, both = backward(log_odds)(a, ())
    torch.testing.assert_close(both.sum(0), torch.ones_like(a))
    transformed_gradient, transformed_both = TRANSFORMS["vmap(grad)"](log_odds)(a, ())
    torch.testing.assert_close(transformed_gradient, gradient)
    torch.testing.assert_close(transformed_both.movedim(1, 0), both)


@each_unit_newer_slow
def test_compiled_draws(name: str) -> None:
    """Drawn at every call (not once, by the tracer), from the unit's law, seeded as in eager."""
    unit, a = CASES[name](), torch.tensor([-1.0, 0.0, 1.0]).expand(20_000, 3)
    run: Callable[[Tensor], Tensor] = torch.compile(unit, fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    first, second = run(a), run(a)
    torch.manual_seed(0)
    assert torch.equal(first, unit(a))
    assert torch.equal(first, second) == (not samples(unit))
    assert largest_z(second != 0, unit.active_probability(a[0])) < Z_LEVEL
    if unit.binary:
        assert torch.equal(second.unique(), torch.tensor([0.0, 1.0]))


@each_unit
def test_vmapped_draws(name: str) -> None:
    unit, a = CASES[name](), torch.tensor([-1.0, 0.0, 1.0]).expand(20_000, 3)
    torch.manual_seed(0)
    h = torch.vmap(unit, randomness="different")(a)
    assert (len(h.unique(dim=0)) > 1) == samples(unit)
    assert largest_z(h != 0, unit.active_probability(a[0])) < Z_LEVEL
    if unit.binary:
        assert torch.equal(h.unique(), torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize(
    ("name", "transform"),
    [
        ("StraightThrough()", "grad"),
        ("StraightThrough()", "compile(grad)"),
        ('StochasticBinary("optimal")', "grad"),
    ],
)
def test_parameters(name: str, transform: str) -> None:
    """a is computed inside the transform, not handed to it."""
    unit, x, noise = prepared(name)
    layer = nn.Linear(3, 3)

    def loss(weight: Tensor, noise: NoiseTensors) -> tuple[Tensor, Tensor]:
        return objective(unit)(functional_call(layer, {"weight": weight}, (x,)), noise)

    assert_equals_eager(TRANSFORMS[transform], loss, layer.weight.detach(), noise)


@pytest.mark.parametrize("transform", ["grad", "vmap(grad)", "compile"])
@each_needs_loss
def test_a_forgotten_score_loss_is_refused(name: str, transform: str) -> None:
    """Not answered by a gradient of zero."""
    unit, a, noise = prepared(name)

    def forgotten(a: Tensor, noise: NoiseTensors) -> tuple[Tensor, Tensor]:
        h = unit(a, noise)
        return h.sum(), h.detach()

    with pytest.raises(RuntimeError, match="score_loss"):
        TRANSFORMS[transform](forgotten)(a, noise)


@pytest.mark.slow
@pytest.mark.filterwarnings(TORCH_JIT)
@pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="inductor needs a C++ compiler"
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "name",
    ["StraightThrough()", "StochasticBinary(None)", "Rectifier()", "GRMCK()", "HardConcrete()"],
)
def test_inductor(name: str, dtype: torch.dtype) -> None:
    """The compiler that rewrites arithmetic: zeros, ones and NaN must survive it."""
    torch.manual_seed(0)
    unit = CASES[name]()
    a = 2 * torch.randn(8, 6, dtype=dtype)
    a[0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    noise = unit.sample_noise(a)

    def all_of_it(a: Tensor, noise: NoiseTensors) -> tuple[Tensor, Tensor]:
        h = unit(a, noise)
        active, inactive = unit.active_probability(a), unit.inactive_probability(a)
        total = (active if unit.needs_loss else h).nansum()
        return total, torch.stack([h, active, inactive]).detach()

    gradient, values = backward(all_of_it)(a, noise)
    inductor_gradient, inductor_values = backward(torch.compile(all_of_it, fullgraph=True))(
        a, noise
    )
    torch.testing.assert_close(inductor_gradient, gradient, equal_nan=True)
    torch.testing.assert_close(inductor_values, values, equal_nan=True)
    if unit.binary:
        assert torch.equal(inductor_values[0].nan_to_num(1).unique(), torch.tensor([0, 1]).to(a))
