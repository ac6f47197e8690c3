"""Conditional layers whose linear layers somebody else changed: norms, pruning, wrappers."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm
from torch.nn.utils import parametrize as parametrizing

from hardgate import ConditionalMLP, FusedSGD, Rectifier
from hardgate.kernels.dispatch import Backend

OLD = "ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning"
CHANGES: dict[str, Callable[[nn.Module], object]] = {
    "pruning": lambda m: prune.random_unstructured(m, "weight", 0.4),
    "pruned bias": lambda m: prune.random_unstructured(m, "bias", 0.4),
    "weight norm": lambda m: parametrizations.weight_norm(m),
    "spectral norm": lambda m: parametrizations.spectral_norm(m),
    "old weight norm": lambda m: weight_norm(m),
    "old spectral norm": lambda m: spectral_norm(m),
}
PLACES = ["experts", "out", "gater.output", "gater.hidden"]
CASES = [(change, place) for change in CHANGES for place in PLACES]


def layer(backend: Backend = "sparse") -> ConditionalMLP:
    torch.manual_seed(0)
    return ConditionalMLP(6, 32, 3, bottleneck=5, unit=Rectifier(), backend=backend).double()


def called(model: ConditionalMLP, x: Tensor) -> Tensor:
    """The same network by calls of its linear layers."""
    gater = model.gater
    gates = torch.relu(gater.output(torch.tanh(gater.hidden(x))))
    y: Tensor = model.out(model.experts(x) * gates)
    return y


def train(model: ConditionalMLP, f: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Losses of a few steps: a weight that is not made anew shows from the second on."""
    optimiser, losses = torch.optim.SGD(model.parameters(), 0.01), []
    for step in range(3):
        torch.manual_seed(step)
        optimiser.zero_grad()
        losses.append(f(torch.randn(9, 6).double()).square().mean())
        losses[-1].backward()
        optimiser.step()
    return [loss.detach() for loss in losses]


@pytest.mark.filterwarnings(OLD)
@pytest.mark.parametrize(("change", "place"), CASES)
def test_as_if_the_linear_layers_were_called(change: str, place: str) -> None:
    models = layer(), layer()
    for model in models:
        torch.manual_seed(1)
        CHANGES[change](model.get_submodule(place))
    ours, theirs = models
    got, expected = train(ours, ours), train(theirs, lambda x: called(theirs, x))
    torch.testing.assert_close(torch.stack(got), torch.stack(expected))
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("norm", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_parametrized_outputs_are_stored_and_loaded(norm: Callable[[nn.Module], object]) -> None:
    one, other = layer(), layer()
    norm(one.out)
    norm(other.out)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.normal_()
    other.load_state_dict(one.state_dict())
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_plain_linear_layer_may_be_the_output() -> None:
    model, plain = layer(), nn.Linear(32, 3).double()
    x = torch.randn(9, 6).double()
    y = model(x)

    plain.load_state_dict(model.out.state_dict())
    model.out = plain  # type: ignore[assignment]
    torch.testing.assert_close(model(x), y)
    model(x).sum().backward()
    assert plain.weight.grad is not None


class Adapted(nn.Module):
    """What adapters put in the place of a layer: it shows the weight, and adds to the output."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner, self.weight, self.bias = inner, inner.weight, inner.bias


@pytest.mark.parametrize("place", ["experts", "out"])
def test_a_wrapper_around_the_weights_is_refused(place: str) -> None:
    model = layer()
    setattr(model, place, Adapted(getattr(model, place)))
    with pytest.raises(TypeError, match=r"expected torch.nn.Linear.*got Adapted.*parametrize"):
        model(torch.randn(2, 6).double())


@pytest.mark.parametrize("backend", ["sparse", "dense"])
@pytest.mark.parametrize("place", PLACES)
def test_fused_sgd_refuses_what_is_not_a_parameter(backend: Backend, place: str) -> None:
    """It would change what is computed from the parameters, and never them."""
    model = layer(backend)
    parametrizations.weight_norm(model.get_submodule(place))
    FusedSGD(model, 0.1)
    before = copy.deepcopy(model.state_dict())
    loss = model(torch.randn(9, 6).double()).square().mean()
    if place == "gater.hidden":  # which is called, and has gradients
        loss.backward()
        name = "gater.hidden.parametrizations.weight.original0"
        assert model.get_parameter(name).grad is not None
        return
    with pytest.raises(RuntimeError, match=r"own parameters, got weights that are computed"):
        loss.backward()
    inside = [name for name in before if name.startswith(place)]
    assert inside
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in inside)
    assert parametrizing.is_parametrized(model.get_submodule(place))
