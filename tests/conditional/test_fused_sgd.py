"""SGD inside the backward pass: equal to torch's, or refused."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hardgate
from hardgate import (
    ConditionalLinear,
    ConditionalMLP,
    FusedSGD,
    Gater,
    NoisyRectifier,
    StraightThrough,
)
from hardgate.kernels import op
from hardgate.kernels.dispatch import Backend


def pair(backend: Backend, layers: int = 1, block: int = 1) -> tuple[nn.Module, nn.Module]:
    """A model and its copy, in fp64; gates that are off have no gradient."""
    torch.manual_seed(0)
    sizes = [6] * layers + [4]
    stack = [
        ConditionalMLP(
            a, 32, b, bottleneck=5, unit=NoisyRectifier(), backend=backend, block_size=block
        )
        for a, b in itertools.pairwise(sizes)
    ]
    model = nn.Sequential(*stack).double()
    return model, copy.deepcopy(model)


def train(model: nn.Module, optimiser: torch.optim.Optimizer, steps: int = 5) -> None:
    scheduler = torch.optim.lr_scheduler.StepLR(optimiser, step_size=2, gamma=0.5)
    for step in range(steps):
        torch.manual_seed(step)  # the same inputs and the same noise for both
        x = torch.randn(33, 6, dtype=torch.float64)
        optimiser.zero_grad()
        model(x).square().sum(-1).mean().backward()
        optimiser.step()
        scheduler.step()


def assert_same(ours: nn.Module, theirs: nn.Module) -> None:
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("backend", ["sparse", "dense"])
@pytest.mark.parametrize(("layers", "block"), [(1, 1), (1, 4), (2, 1)])
def test_equals_sgd_with_a_schedule(backend: Backend, layers: int, block: int) -> None:
    ours, theirs = pair(backend, layers, block)
    start = copy.deepcopy(ours)
    train(ours, FusedSGD(ours, 0.1))
    train(theirs, torch.optim.SGD(theirs.parameters(), 0.1))
    assert_same(ours, theirs)
    moved = [
        not torch.equal(a, b) for a, b in zip(ours.parameters(), start.parameters(), strict=True)
    ]
    assert all(moved)


def test_biases_that_lie_apart_are_stepped_where_they_are() -> None:
    """The kernels write rows; what lies between two numbers of a bias is not theirs."""
    torch.manual_seed(0)
    memory, x = torch.zeros(100), torch.randn(40, 30)
    model = ConditionalMLP(30, 1000, 3, bottleneck=50, unit=hardgate.Rectifier())
    model.gater.hidden.bias = nn.Parameter(memory[::2])
    twin = copy.deepcopy(model)
    for each, optimiser in (
        (model, FusedSGD(model, lr=0.1)),
        (twin, torch.optim.SGD(twin.parameters(), lr=0.1)),
    ):
        each(x).square().sum().backward()
        optimiser.step()
    torch.testing.assert_close(model.gater.hidden.bias, twin.gater.hidden.bias)
    assert model.gater.hidden.bias.abs().min() > 0
    assert not memory[1::2].any()


@pytest.mark.parametrize("backend", ["sparse", "dense"])
def test_max_norm_equals_sgd_then_max_norm(backend: Backend) -> None:
    class Limited(torch.optim.SGD):
        def step(self) -> None:  # type: ignore[override]
            super().step()
            hardgate.max_norm_(theirs, 0.7)

    ours, theirs = pair(backend)
    for model in (ours, theirs):
        hardgate.max_norm_(model, 0.7)
        out = model.get_parameter("0.out.weight").data
        out[:, :2] = 0.45
        out[:, 2:] *= 0.1
    train(ours, FusedSGD(ours, 0.1, max_norm=0.7))
    train(theirs, Limited(theirs.parameters(), 0.1))
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)  # renorm_ adds 1e-7 to the norm


@pytest.mark.parametrize("backend", ["sparse", "dense"])
def test_the_limit_is_not_one_of_outgoing_weights(backend: Backend) -> None:
    """Those of one expert may be longer: the limit is on what goes into each output."""
    ours, theirs = pair(backend)
    for model in (ours, theirs):
        out = model.get_parameter("0.out.weight").data.mul_(0.01)  # [hidden, out]
        out[:] += 0.01
        out[0] = 0.5  # one expert's four outgoing weights: norm 1; into each output: norm 0.5
    optimiser, x = FusedSGD(ours, 0.01, max_norm=0.7), torch.randn(33, 6, dtype=torch.float64)
    for model in (ours, theirs):
        torch.manual_seed(1)
        model(x).square().sum(-1).mean().backward()
    optimiser.step()
    weight = theirs.get_parameter("0.out.weight")
    assert weight.grad is not None
    assert weight.grad[0].any()
    expected = weight.detach() - 0.01 * weight.grad
    assert expected[0].norm() > 0.9
    assert (expected.norm(dim=0) < 0.7).all()
    torch.testing.assert_close(ours.get_parameter("0.out.weight").detach(), expected)


def test_straight_through_and_score_units_work() -> None:
    for unit in (StraightThrough(), StraightThrough(off_units="sampled")):
        layer = ConditionalLinear(6, 32, bottleneck=5, unit=unit, backend="sparse").double()
        other = copy.deepcopy(layer)
        train(layer, FusedSGD(layer, 0.05))
        train(other, torch.optim.SGD(other.parameters(), 0.05))
        assert_same(layer, other)


def backward(model: nn.Module) -> Tensor:
    loss: Tensor = model(torch.randn(8, 6, dtype=torch.float64)).square().mean()
    loss.backward()
    return loss


def test_what_it_cannot_do_it_refuses() -> None:
    model, _ = pair("sparse")
    optimiser = FusedSGD(model, 0.1)
    backward(model)
    with pytest.raises(RuntimeError, match=r"one backward pass.*optimiser.step\(\).*torch.optim"):
        backward(model)  # accumulation
    optimiser.step()
    backward(model)
    optimiser.step()
    with pytest.raises(RuntimeError, match="no closure"):
        optimiser.step(lambda: 0.0)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="expected eager mode"):
        compiled(torch.randn(8, 6, dtype=torch.float64))
    with pytest.raises(TypeError, match="fp32 or fp64"):
        FusedSGD(pair("dense")[0].bfloat16(), 0.1)
    with pytest.raises(ValueError, match="no ConditionalMLP"):
        FusedSGD(nn.Linear(2, 2), 0.1)
    with pytest.raises(TypeError, match=r"the model itself, got generator.*FusedSGD\(model"):
        FusedSGD(model.parameters(), 0.1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="lr expected a positive number"):
        FusedSGD(model, 0.0)


def test_shared_weights_are_refused() -> None:
    layer = ConditionalMLP(6, 32, 6, bottleneck=5, unit=NoisyRectifier()).double()
    FusedSGD(layer, 0.1)
    with pytest.raises(RuntimeError, match="recurrence or shared weights"):
        layer(layer(torch.randn(8, 6, dtype=torch.float64))).sum().backward()


def test_many_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = pair("sparse")
    FusedSGD(model, 0.1)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    with pytest.raises(RuntimeError, match="one process"):
        backward(model)


def fused(model: nn.Module) -> list[nn.Parameter]:
    """What the backward pass changes: all but the gater's bottleneck."""
    return [p for name, p in model.named_parameters() if "gater.hidden" not in name]


def test_detach_gives_the_layers_back() -> None:
    model, _ = pair("sparse")
    FusedSGD(model, 0.1).detach()
    backward(model)
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("how", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_are_free_of_it(how: Callable[[nn.Module], nn.Module]) -> None:
    model, plain = pair("sparse")
    optimiser = FusedSGD(model, 0.1)
    free = how(model)
    train(free, torch.optim.SGD(free.parameters(), 0.1))
    train(plain, torch.optim.SGD(plain.parameters(), 0.1))
    assert_same(free, plain)
    before = copy.deepcopy(model)
    backward(model)  # the original is still its
    optimiser.step()
    assert all(p.grad is None for p in fused(model))
    pairs = zip(model.parameters(), before.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)


def test_groups_added_later_leave_the_gaters_rate_alone() -> None:
    ours, theirs = pair("sparse")
    added: dict[str, Any] = {"params": [nn.Parameter(torch.zeros(1))], "lr": 100.0}
    for options in ({}, {"gater_lr": 0.1}):
        optimiser = FusedSGD(ours, 0.1, **options)
        optimiser.add_param_group(dict(added))
        train(ours, optimiser, steps=2)
        train(theirs, torch.optim.SGD(theirs.parameters(), 0.1), steps=2)
        assert_same(ours, theirs)


def test_a_learning_rate_of_zero_changes_nothing() -> None:
    """As at the end of a schedule; -1, not 0, means a gradient to the kernels."""
    torch.manual_seed(0)
    layer = ConditionalMLP(9, 40, 3, bottleneck=4, unit=NoisyRectifier(), backend="sparse")
    optimiser = FusedSGD(layer, lr=0.1)
    optimiser.param_groups[0]["lr"] = 0.0
    before = {name: parameter.clone() for name, parameter in layer.named_parameters()}
    layer(torch.randn(5, 9)).square().mean().backward()
    optimiser.step()
    assert all(torch.equal(p, before[name]) for name, p in layer.named_parameters())


def test_a_gater_may_have_a_rate_of_its_own() -> None:
    ours, theirs = pair("sparse", layers=2)
    start = copy.deepcopy(ours)
    gaters = [m for m in theirs.modules() if isinstance(m, Gater)]
    own = [p for gater in gaters for p in gater.parameters()]
    rest = [p for p in theirs.parameters() if all(p is not q for q in own)]
    train(ours, FusedSGD(ours, 0.1, gater_lr=0.01))
    groups: list[dict[str, Any]] = [{"params": rest}, {"params": own, "lr": 0.01}]
    train(theirs, torch.optim.SGD(groups, 0.1))
    assert_same(ours, theirs)
    train(start, FusedSGD(start, 0.1))
    assert not torch.equal(next(start.parameters()), next(ours.parameters()))  # a gater's
    with pytest.raises(ValueError, match="gater_lr expected a positive number"):
        FusedSGD(ours, 0.1, gater_lr=0.0)


def test_rates_follow_a_state_that_is_loaded() -> None:
    """Loading replaces the groups: a step must look at the new ones."""
    model, _ = pair("sparse")
    optimiser = FusedSGD(model, 0.1, gater_lr=0.1)
    state = optimiser.state_dict()
    for group in state["param_groups"]:
        group["lr"] = 0.0
    optimiser.load_state_dict(state)
    before = [parameter.clone() for parameter in model.parameters()]
    backward(model)
    optimiser.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def test_parameters_of_other_modules_get_an_ordinary_step() -> None:
    model, _ = pair("sparse")
    whole = nn.Sequential(model, nn.Linear(4, 3).double())
    other: Any = whole[1]
    optimiser = FusedSGD(whole, 0.1)
    backward(whole)
    assert all(p.grad is None for p in fused(model))
    expected = other.weight.detach() - 0.1 * other.weight.grad
    optimiser.step()
    torch.testing.assert_close(other.weight.detach(), expected)
    optimiser.zero_grad()
    optimiser.param_groups[0]["lr"] = 0.03  # as a schedule does
    backward(whole)
    expected = other.weight.detach() - 0.03 * other.weight.grad
    optimiser.step()
    torch.testing.assert_close(other.weight.detach(), expected)
    optimiser.zero_grad(set_to_none=False)
    assert not other.weight.grad.any()
    optimiser.zero_grad()
    assert other.weight.grad is None


def test_hooks_on_a_step_are_called() -> None:
    model, _ = pair("sparse")
    optimiser, calls = FusedSGD(model, 0.1), []
    optimiser.register_step_pre_hook(lambda *_: calls.append("before"))
    optimiser.register_step_post_hook(lambda *_: calls.append("after"))
    optimiser.step()
    assert calls == ["before", "after"]


# --- backward passes that are not for it ------------------------------------------------------


@pytest.mark.parametrize("backend", ["sparse", "dense"])
def test_a_gradient_of_something_else_changes_nothing(backend: Backend) -> None:
    """A saliency map or a gradient to look at is no step, and does not use one up."""
    model, twin = pair(backend)
    optimiser, x = FusedSGD(model, 0.1), torch.randn(8, 6, dtype=torch.float64)
    x.requires_grad_()
    before = [parameter.clone() for parameter in model.parameters()]
    for name in (None, "0.gater.hidden.weight", "0.experts.weight"):
        leaf, same = (x if name is None else m.get_parameter(name) for m in (model, twin))
        torch.manual_seed(1)
        (got,) = torch.autograd.grad(model(x).square().sum(), leaf)
        torch.manual_seed(1)
        (expected,) = torch.autograd.grad(twin(x).square().sum(), same)
        torch.testing.assert_close(got, expected)
    model(x).square().sum().backward(inputs=[x])
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    backward(model)
    optimiser.step()
    assert not any(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def test_a_gradient_of_some_weights_is_refused() -> None:
    model, _ = pair("sparse")
    FusedSGD(model, 0.1)
    loss = model(torch.randn(8, 6, dtype=torch.float64)).sum()
    with pytest.raises(RuntimeError, match=r"all weights of a layer or to none"):
        loss.backward(inputs=[model.get_parameter("0.experts.weight")])


@pytest.mark.parametrize("hook", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_on_weights_are_refused(hook: str) -> None:
    """Clipping by hooks, say: there is no gradient to call them with."""
    model, _ = pair("sparse")
    FusedSGD(model, 0.1)
    getattr(model.get_parameter("0.experts.weight"), hook)(lambda g: None)
    with pytest.raises(RuntimeError, match="without hooks"):
        backward(model)


@pytest.mark.parametrize("backend", ["sparse", "dense"])
def test_who_needs_the_weights_as_they_were_is_told(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A penalty that is differentiated after the layer would see the new weights."""
    monkeypatch.setattr(op, "SMALL", 0)  # so that the gater's kernels run
    model, _ = pair(backend)
    FusedSGD(model, 0.1)
    for name in ("0.experts.weight", "0.gater.output.weight"):
        penalty = model.get_parameter(name).pow(3).sum()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            (penalty + model(torch.randn(33, 6, dtype=torch.float64)).square().sum()).backward()
        FusedSGD(model, 0.1)


# --- what it does not do ----------------------------------------------------------------------


@pytest.mark.parametrize("part", ["experts", "out"])
def test_weights_in_two_layers_are_refused(part: str) -> None:
    model = nn.Sequential(
        *(ConditionalMLP(6, 32, 6, bottleneck=5, unit=NoisyRectifier()) for _ in range(2))
    )
    FusedSGD(model, 0.1).detach()
    setattr(model[1], part, getattr(model[0], part))
    with pytest.raises(ValueError, match="two layers share"):
        FusedSGD(model, 0.1)
    FusedSGD(nn.ModuleDict({"one": model[0], "same": model[0]}), 0.1)  # a layer of two names


@pytest.mark.parametrize("option", ["momentum", "weight_decay", "maximize"])
def test_options_of_sgd_are_refused_wherever_they_come_from(option: str) -> None:
    model, _ = pair("sparse")
    optimiser = FusedSGD(model, 0.1)
    optimiser.add_param_group({"params": [nn.Parameter(torch.zeros(1))], option: True})
    backward(model)
    with pytest.raises(RuntimeError, match="no momentum, weight decay or maximize"):
        optimiser.step()
    optimiser = FusedSGD(model, 0.1)
    optimiser.param_groups[0][option] = True
    before = model.get_parameter("0.experts.weight").clone()
    with pytest.raises(RuntimeError, match="cycle_momentum=False"):
        backward(model)
    assert torch.equal(model.get_parameter("0.experts.weight"), before)


@pytest.mark.parametrize("unscaled", [False, True])
def test_a_scaled_loss_is_refused(unscaled: bool) -> None:
    model, _ = pair("sparse")
    whole = nn.Sequential(nn.Linear(6, 6).double(), model)
    optimiser, scaler = FusedSGD(whole, 0.1), torch.amp.GradScaler("cpu")
    scaler.scale(whole(torch.randn(8, 6, dtype=torch.float64)).mean()).backward()
    if unscaled:
        scaler.unscale_(optimiser)
    with pytest.raises(RuntimeError, match="scaled by a GradScaler"):
        scaler.step(optimiser)
    off = torch.amp.GradScaler("cpu", enabled=False)
    optimiser = FusedSGD(whole, 0.1)
    off.scale(whole(torch.randn(8, 6, dtype=torch.float64)).mean()).backward()
    off.step(optimiser)
