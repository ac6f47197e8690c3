"""`ConditionalMLP` where torch expects an ordinary module: what needed a workaround once."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.utils import parameters_to_vector, parametrize, prune, vector_to_parameters

from hardgate import ConditionalMLP, Rectifier, max_norm_
from hardgate.kernels.dispatch import Backend
from hardgate.kernels.transposed_linear import TransposedLinear
from hardgate_lab.reproduce.torchrun import leave

WORLD = 2
EVERY = pytest.mark.parametrize("backend", ["sparse", "dense"])


def layer(backend: Backend = "sparse") -> ConditionalMLP:
    torch.manual_seed(0)
    return ConditionalMLP(6, 32, 3, bottleneck=5, unit=Rectifier(), backend=backend).double()


def inputs(n: int = 8) -> Tensor:
    return torch.randn(n, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_parameters_are_contiguous_and_gradients_too() -> None:
    model = layer()
    model(inputs()).square().mean().backward()
    for parameter in model.parameters():
        assert parameter.is_contiguous()
        assert parameter.grad is not None
        assert parameter.grad.is_contiguous()


@EVERY
def test_lbfgs(backend: Backend) -> None:
    model, x = layer(backend), inputs()
    optimiser, before = torch.optim.LBFGS(model.parameters(), lr=0.1), model(x).square().mean()

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss: Tensor = model(x).square().mean()
        loss.backward()
        return loss

    optimiser.step(closure)
    assert model(x).square().mean() < 0.5 * before


def test_parameters_as_a_vector() -> None:
    model, other = layer(), layer()
    other.reset_parameters()
    vector = parameters_to_vector(model.parameters())
    vector_to_parameters(vector, other.parameters())
    assert torch.equal(other(inputs()), model(inputs()))


@EVERY
@pytest.mark.parametrize("place", ["experts", "out"])
def test_unstructured_pruning(backend: Backend, place: str) -> None:
    model, x = layer(backend), inputs()
    part = model.get_submodule(place)
    smallest = part.weight.detach().abs().flatten().sort().values[part.weight.numel() // 2 - 1]  # type: ignore[operator]
    expected = copy.deepcopy(model)
    weight = expected.get_submodule(place).weight
    assert isinstance(weight, Tensor)
    with torch.no_grad():
        weight.mul_(weight.abs() > smallest)
    prune.l1_unstructured(part, "weight", 0.5)
    torch.testing.assert_close(model(x), expected(x))
    model(x).square().mean().backward()
    original = part.weight_orig
    assert isinstance(original, nn.Parameter)
    assert original.grad is not None
    assert (original.grad[part.weight_mask == 0] == 0).all()
    # What is stored has the names and shapes of a pruned nn.Linear.
    linear = prune.identity(nn.Linear(*_sizes(part)).double(), "weight")
    linear.load_state_dict(part.state_dict())
    torch.testing.assert_close(linear(torch.ones(1, _sizes(part)[0]).double()), _ones(part))
    prune.remove(part, "weight")
    torch.testing.assert_close(model(x), expected(x))


def _sizes(part: nn.Module) -> tuple[int, int]:
    assert isinstance(part, (nn.Linear, TransposedLinear))
    return part.in_features, part.out_features


def _ones(part: nn.Module) -> Tensor:
    y: Tensor = part(torch.ones(1, _sizes(part)[0]).double())
    return y


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


@EVERY
def test_a_parametrization_of_the_output(backend: Backend) -> None:
    model, x = layer(backend), inputs()
    y = model(x)
    parametrize.register_parametrization(model.out, "weight", Doubled())
    bias = model.out.bias
    torch.testing.assert_close(model(x) - bias, 2 * (y - bias))
    model(x).sum().backward()
    original = model.out.parametrizations.weight.original  # type: ignore[union-attr]
    assert isinstance(original, nn.Parameter)
    assert original.grad is not None


# --- its output layer stores as nn.Linear -------------------------------------------------------


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("prefix", ["", "inner.deep."])
def test_weights_move_to_and_from_linear(assign: bool, prefix: str) -> None:
    ours, theirs = TransposedLinear(4, 3), nn.Linear(4, 3)
    nest = nn.ModuleDict({"inner": nn.ModuleDict({"deep": ours})}) if prefix else ours
    stored = {prefix + name: t for name, t in theirs.state_dict().items()}
    held = ours.weight
    assert nest.load_state_dict(stored, strict=True, assign=assign).missing_keys == []
    x = torch.randn(5, 4)
    torch.testing.assert_close(ours(x), theirs(x))
    assert (ours.weight is held) == (not assign)
    assert ours.weight.shape == (4, 3)
    assert ours.weight.is_contiguous()
    assert ours.weight.requires_grad
    back = nn.Linear(4, 3)
    back.load_state_dict({name.removeprefix(prefix): t for name, t in nest.state_dict().items()})
    assert torch.equal(back.weight, theirs.weight)
    assert all(t.is_contiguous() for t in nest.state_dict().values())


def test_mistakes_are_reported_as_by_linear() -> None:
    ours, good = TransposedLinear(4, 3), nn.Linear(4, 3).state_dict()
    before = ours.weight.detach().clone()
    with pytest.raises(RuntimeError, match=r"size mismatch for weight.*\[4, 3\].*\[3, 4\]"):
        ours.load_state_dict({**good, "weight": torch.zeros(4, 3)})
    with pytest.raises(RuntimeError, match=r'Missing key.*"weight"'):
        ours.load_state_dict({"bias": good["bias"]})
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"more"'):
        ours.load_state_dict({**good, "more": torch.zeros(1)})
    assert ours.weight.shape == (4, 3)
    assert isinstance(ours.weight, nn.Parameter)
    assert ours.load_state_dict({"bias": good["bias"]}, strict=False).missing_keys == ["weight"]
    assert ours.weight.shape == before.shape


def test_hooks_of_state_dicts_see_the_shape_of_linear() -> None:
    ours, shapes = TransposedLinear(4, 3), []

    def rename(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        state[prefix + "weight"] = state.pop(prefix + "kernel")
        shapes.append(state[prefix + "weight"].shape)

    ours.register_load_state_dict_pre_hook(rename)  # type: ignore[no-untyped-call]
    ours.register_state_dict_post_hook(  # type: ignore[no-untyped-call]
        lambda module, state, prefix, _: shapes.append(state[prefix + "weight"].shape)
    )
    stored = nn.Linear(4, 3).state_dict()
    expected = stored["weight"].clone()
    stored["kernel"] = stored.pop("weight")
    ours.load_state_dict(stored)
    assert torch.equal(ours.state_dict()["weight"], expected)
    assert shapes == [(3, 4), (3, 4)]


def test_a_hook_that_fails_leaves_the_layer_whole() -> None:
    ours = TransposedLinear(4, 3)
    held = ours.weight

    def fail(*_: Any) -> None:
        raise KeyError("nothing here")

    ours.register_load_state_dict_pre_hook(fail)  # type: ignore[no-untyped-call]
    with pytest.raises(KeyError, match="nothing here"):
        ours.load_state_dict(nn.Linear(4, 3).state_dict())
    assert ours.weight is held


def test_swapped_tensors_are_loaded() -> None:
    ours, theirs = TransposedLinear(4, 3), nn.Linear(4, 3)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        ours.load_state_dict(theirs.state_dict())
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert torch.equal(ours.weight, theirs.weight.T)


COPIES: dict[str, Callable[[nn.Module], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "double": lambda m: copy.deepcopy(m).double().float(),
    "empty": lambda m: copy.deepcopy(m).to("meta").to_empty(device="cpu"),
}


@pytest.mark.parametrize("form", COPIES)
def test_copies_keep_their_layout(form: str) -> None:
    one = TransposedLinear(4, 3)
    other = COPIES[form](one)
    other.load_state_dict(one.state_dict())
    assert torch.equal(other.weight, one.weight)
    assert other.weight.is_contiguous()
    assert other.weight is not one.weight


def test_a_meta_layer_is_filled_by_assignment() -> None:
    with torch.device("meta"):
        ours = TransposedLinear(4, 3)
    theirs = nn.Linear(4, 3)
    ours.load_state_dict(theirs.state_dict(), assign=True)
    assert torch.equal(ours(torch.ones(1, 4)), theirs(torch.ones(1, 4)))
    assert {k: v.shape for k, v in ours.to("meta").state_dict().items()} == {
        k: v.shape for k, v in theirs.state_dict().items()
    }


def test_kept_variables_stay_in_the_graph() -> None:
    ours = TransposedLinear(4, 3)
    ours.state_dict(keep_vars=True)["weight"].sum().backward()
    assert ours.weight.grad is not None
    assert torch.equal(ours.weight.grad, torch.ones(4, 3))


def test_max_norm_limits_each_output() -> None:
    ours = TransposedLinear(100, 3)
    with torch.no_grad():
        ours.weight.fill_(1.0)
    max_norm_(ours, 2.0)
    torch.testing.assert_close(ours.weight.norm(dim=0), torch.full((3,), 2.0))


# --- fully_shard --------------------------------------------------------------------------------


def sharded_training(rank: int, world: int, sharded: bool) -> dict[str, Tensor]:
    """Three steps, each process with its part of the batch, and the state dict of the whole."""
    model = layer()
    if sharded:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(3):
        optimiser.zero_grad()
        model(inputs().chunk(world)[rank]).square().mean().backward()
        optimiser.step()
    state = model.state_dict()
    model.load_state_dict({name: t.clone() for name, t in state.items()})
    again = model.state_dict()
    whole = {name: _whole(t) for name, t in state.items()}
    assert all(torch.equal(_whole(again[name]), t) for name, t in whole.items())
    return whole


def _whole(t: Any) -> Tensor:
    full: Tensor = t.full_tensor() if hasattr(t, "full_tensor") else t
    return full.clone()


def sharding_worker(rank: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store{world}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    torch.save(sharded_training(rank, world, True), f"{folder}/{world}-{rank}.pt")
    leave(0)


@pytest.mark.parametrize("world", [1, WORLD])
def test_fully_shard(world: int, tmp_path: Path) -> None:
    """The steps of one process that holds everything."""
    spawn(sharding_worker, args=(world, str(tmp_path)), nprocs=world)
    expected = sharded_training(0, 1, False)
    assert expected["out.weight"].shape == (3, 32)
    for rank in range(world):
        found = torch.load(tmp_path / f"{world}-{rank}.pt")
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor)
