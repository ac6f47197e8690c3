"""A unit that learns from the loss is right or refused: copies, checkpoints, torch.func, compile.

Everything is drawn with explicit noise, so that gradients can be compared with the plain ones.
"""

from __future__ import annotations

import copy
import io
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import hardgate
from hardgate import StochasticBinary, score_loss
from tests.support.score_net import (
    FORGOTTEN,
    NO_PASS,
    Net,
    assert_same,
    baseline_of,
    by_hand,
    close,
    leaf,
    step,
)

# torch's own: loading forward-mode decompositions or inductor still scripts something.
torch_jit = pytest.mark.filterwarnings(
    "ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning"
)
X, U = leaf(4, 3).detach(), torch.rand(4, 3, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def reference(model: Net, *noises: Tensor) -> tuple[list[Tensor], dict[str, Any]]:
    """The plain gradients and what they leave in the state, of a copy."""
    plain = copy.deepcopy(model)
    step(plain, X, *noises).backward()
    return plain.gradients(), plain.state_dict()


# --- copies ---------------------------------------------------------------------------------


def saved(model: Net) -> Net:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert isinstance(loaded, Net)
    return loaded


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), saved]
)
def test_copies_start_without_records(duplicate: Callable[[Net], Net]) -> None:
    model = Net()
    step(model, X).backward()
    losses = model(X, U)
    other = duplicate(model)
    with pytest.raises(RuntimeError, match=NO_PASS):
        score_loss(other, losses)
    model.zero_grad()
    other.zero_grad()
    (losses.mean() + score_loss(model, losses)).backward()  # the original is none the poorer
    step(other, X, U).backward()
    assert_same(other.gradients(), model.gradients())


def test_a_shallow_copy_shares_the_unit() -> None:
    model = Net()
    expected, _ = reference(model, U)
    step(copy.copy(model), X, U).backward()
    assert_same(model.gradients(), expected)
    unit = model.unit
    h = copy.copy(unit)(leaf(4, 3))
    (h.sum() + score_loss(unit, torch.rand(4))).backward()


# --- activation checkpointing ---------------------------------------------------------------


@pytest.mark.parametrize("layers", [1, 2])
def test_checkpoints(layers: int) -> None:
    model = Net(layers=layers)
    torch.manual_seed(1)
    expected, state = reference(model)
    torch.manual_seed(1)
    losses = checkpoint(model, X, use_reentrant=False)
    (losses.mean() + score_loss(model, losses)).backward()
    assert_same(model.gradients(), expected)
    torch.testing.assert_close(model.state_dict(), state)
    with pytest.raises(RuntimeError, match=NO_PASS):  # the second computation left no record
        score_loss(model, losses)
    with pytest.raises(RuntimeError, match=FORGOTTEN):
        checkpoint(model, X, use_reentrant=False).mean().backward()


def test_reentrant_checkpoints_are_refused() -> None:
    model = Net()
    losses = checkpoint(model, X.clone().requires_grad_(), use_reentrant=True)
    total = losses.mean() + score_loss(model, losses)
    with pytest.raises(RuntimeError, match=r"Write checkpoint\(..., use_reentrant=False\)"):
        total.backward()


def test_score_loss_inside_a_checkpoint_is_refused() -> None:
    total = checkpoint(step, Net(), X, use_reentrant=False)
    with pytest.raises(RuntimeError, match=r"outside of any checkpoint"):
        total.backward()


# --- torch.func -----------------------------------------------------------------------------


def objective(model: Net, **options: Any) -> Callable[..., Tensor]:
    def f(parameters: dict[str, Tensor], x: Tensor, u: Tensor) -> Tensor:
        losses: Tensor = functional_call(model, parameters, (x, u))
        return losses.mean() + score_loss(model, losses, **options)

    return f


def forgotten(model: Net) -> Callable[..., Tensor]:
    def f(parameters: dict[str, Tensor], x: Tensor, u: Tensor) -> Tensor:
        losses: Tensor = functional_call(model, parameters, (x, u))
        return losses.mean()

    return f


def warmed(baseline: Any) -> tuple[Net, dict[str, Tensor]]:
    model = Net(baseline)
    step(model, X).backward()
    model.zero_grad()
    return model, {k: v.detach() for k, v in model.named_parameters()}


@pytest.mark.parametrize("baseline", [None, "mean", "optimal"])
def test_functional_gradients(baseline: Any) -> None:
    model, parameters = warmed(baseline)
    expected, _ = reference(model, U)
    options = {} if baseline is None else {"update_baselines": False}
    state = copy.deepcopy(model.state_dict())
    assert_same(list(grad(objective(model, **options))(parameters, X, U).values()), expected)
    each = vmap(grad(objective(model, **options)), (None, 0, 0))(parameters, X, U)
    assert_same([g.mean(0) for g in each.values()], expected)
    torch.testing.assert_close(model.state_dict(), state)
    losses = functional_call(model, dict(model.named_parameters()), (X, U))  # plain autograd
    (losses.mean() + score_loss(model, losses)).backward()
    assert_same(model.gradients(), expected)


@pytest.mark.parametrize("baseline", ["mean", "optimal"])
def test_functional_gradients_do_not_update_baselines(baseline: Any) -> None:
    model, parameters = warmed(baseline)
    with pytest.raises(
        RuntimeError, match=r"Write score_loss\(model, losses, update_baselines=Fal"
    ):
        grad(objective(model))(parameters, X, U)
    assert torch.isfinite(baseline_of(model.unit).value()).all()


def test_functional_gradients_of_a_forgotten_term_are_refused() -> None:
    model, parameters = warmed(None)
    with pytest.raises(RuntimeError, match=FORGOTTEN):
        grad(forgotten(model))(parameters, X, U)
    with pytest.raises(RuntimeError, match=FORGOTTEN):
        vmap(grad(forgotten(model)), (None, 0, 0))(parameters, X, U)
    with pytest.raises(RuntimeError, match=FORGOTTEN):
        jacrev(forgotten(model))(parameters, X, U)


def test_a_transform_that_breaks_off_leaves_no_gradient_to_charge() -> None:
    model, parameters = warmed("optimal")

    def breaks(parameters: dict[str, Tensor]) -> Tensor:
        functional_call(model, parameters, (X, U))
        raise KeyError("midway")

    with pytest.raises(KeyError, match="midway"):
        grad(breaks)(parameters)
    with pytest.raises(
        RuntimeError, match=r"transform that has ended. Call score_loss in the func"
    ):
        step(model, X)
    expected, _ = reference(model, U)
    step(model, X, U).backward()
    assert_same(model.gradients(), expected)


def test_mapping_inside_the_differentiation_is_refused() -> None:
    """vmap hides from h that it is differentiated outside; the gradient would be zero."""
    model, parameters = warmed(None)
    message = r"Write vmap\(grad\(f\)\)(.|\n)*the whole batch"
    with pytest.raises(RuntimeError, match=message):
        vmap(model)(X, U).mean().backward()
    with pytest.raises(RuntimeError, match=message):
        grad(lambda p: vmap(objective(model), (None, 0, 0))(p, X, U).mean())(parameters)
    with torch.no_grad():
        vmap(model)(X, U)
    frozen = {k: v.detach() for k, v in parameters.items()}
    assert vmap(lambda x, u: functional_call(model, frozen, (x, u)))(X, U).shape == (4,)


@torch_jit
def test_forward_mode_and_second_derivatives_are_refused() -> None:
    model, parameters = warmed(None)
    f = objective(model)
    with pytest.raises(RuntimeError, match="a second derivative"):
        grad(lambda x: grad(lambda y: f(parameters, y, U))(x).sum())(X)
    for forward_mode in (hessian(lambda x: f(parameters, x, U)), lambda x: jvp(model, (x,), (x,))):
        with pytest.raises(RuntimeError, match=r"forward-mode(.|\n)*Write torch.func.grad"):
            forward_mode(X)


# --- torch.compile --------------------------------------------------------------------------


def compiled(f: Callable[..., Any], *, fullgraph: bool = True, backend: str = "aot_eager") -> Any:
    return torch.compile(f, fullgraph=fullgraph, backend=backend)


def check_compiled(backend: str) -> None:
    """The forward pass, and the whole step with its update of the baseline."""
    for baseline in (None, "mean", "optimal"):
        model, _ = warmed(baseline)
        expected, state = reference(model, U)
        whole = copy.deepcopy(model)
        losses = compiled(model, backend=backend)(X, U)
        (losses.mean() + score_loss(model, losses)).backward()
        compiled(step, backend=backend)(whole, X, U).backward()
        for result in (model, whole):
            assert_same(result.gradients(), expected)
            torch.testing.assert_close(result.state_dict(), state)
            assert result.unit.records.last is None


def check_compiled_forgotten(backend: str) -> None:
    def not_added(x: Tensor, u: Tensor) -> Tensor:
        losses = model(x, u)
        score_loss(model, losses)
        mean: Tensor = losses.mean()
        return mean

    model = Net()
    with pytest.raises(RuntimeError, match=FORGOTTEN):
        compiled(model, backend=backend)(X, U).mean().backward()
    hardgate.clear_scores(model)
    losses = compiled(model, backend=backend)(X, U)
    score_loss(model, losses)
    with pytest.raises(RuntimeError, match=FORGOTTEN):
        losses.mean().backward()
    with pytest.raises(RuntimeError, match=FORGOTTEN):
        compiled(not_added, backend=backend)(X, U).backward()


def test_compiled() -> None:
    check_compiled("aot_eager")


def test_compiled_forgotten() -> None:
    check_compiled_forgotten("aot_eager")


@pytest.mark.slow
@torch_jit
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")
def test_inductor() -> None:
    check_compiled("inductor")
    check_compiled_forgotten("inductor")

    def drawn(a: Tensor) -> tuple[Tensor, Tensor]:
        h = unit(a)
        losses = h.sum(-1).square()
        return losses.mean() + score_loss(unit, losses), h.detach()

    unit = StochasticBinary()  # the noise of the forward pass is that of the backward pass
    for seed in range(3):
        a, before = leaf(32, 50, seed=seed), baseline_of(unit).value()
        total, h = compiled(drawn, backend="inductor")(a)
        total.backward()
        assert a.grad is not None
        close(a.grad, by_hand(h, a, h.sum(-1).square(), before), 1e-4)


def test_compiled_steps_and_models_do_not_run_out_of_recompilations() -> None:
    for _ in range(10):
        model = Net()
        step(model, X).backward()  # the size of the baseline is known
        run = compiled(model)
        losses = torch.stack([run(X, U) for _ in range(10)]).sum(0)
        (losses.mean() + score_loss(model, losses)).backward()


def test_compiled_calls_left_behind_and_changes_in_place() -> None:
    model = Net(None)
    run = compiled(model)
    run(X, U)
    losses = run(X, U)
    with pytest.raises(RuntimeError, match=r"got 2 calls of a unit and losses that do not depend"):
        score_loss(model, losses)

    def scaled(x: Tensor, u: Tensor, in_place: bool) -> Tensor:
        a = model.linears[0](x)
        h = model.unit(a, u)
        h, a = (h.mul_(2), a.add_(1)) if in_place else (h * 2, a + 1)
        losses: Tensor = model.out(h).squeeze(-1).square()
        return losses

    for f, in_place in ((scaled, False), (compiled(scaled), True)):
        losses = f(X, U, in_place)
        (losses.mean() + score_loss(model, losses)).backward()
    gradients = model.gradients()
    model.zero_grad()
    losses = scaled(X, U, False)
    (losses.mean() + score_loss(model, losses)).backward()
    assert_same(gradients, [2 * g for g in model.gradients()])


def test_compiled_checkpoints() -> None:
    model = Net()
    expected, _ = reference(model, U)
    losses = compiled(lambda: checkpoint(model, X, U, use_reentrant=False), fullgraph=False)()
    (losses.mean() + score_loss(model, losses)).backward()
    assert_same(model.gradients(), expected)


def test_compiled_transforms() -> None:
    """Outside of fullgraph they run as they are; inside, the tracer quotes what to type."""
    model, parameters = warmed("optimal")
    expected, _ = reference(model, U)
    f = grad(objective(model, update_baselines=False))
    result = compiled(f, fullgraph=False)(parameters, X, U)
    assert_same(list(result.values()), expected)
    with pytest.raises(RuntimeError, match=FORGOTTEN):
        compiled(grad(forgotten(model)), fullgraph=False)(parameters, X, U)
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match=r"Write torch.compile without fullgraph=True"):
        compiled(f)(parameters, X, U)
    mapped = vmap(model)
    for fullgraph, message in ((False, r"Write vmap\(grad\(f\)\)"), (True, "fullgraph=True")):
        torch._dynamo.reset()
        with pytest.raises(RuntimeError, match=message):
            compiled(lambda: mapped(X, U), fullgraph=fullgraph)()


# --- wrappers -------------------------------------------------------------------------------


def test_wrapped_models(tmp_path: Path) -> None:
    """Units are found through .modules(), whatever wraps the model."""
    model = Net()
    expected, _ = reference(model, U)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        step(DistributedDataParallel(model), X, U).backward()
    finally:
        dist.destroy_process_group()
    assert_same(model.gradients(), expected)
    model.zero_grad()
    step(nn.Sequential(Net(None), nn.Identity()), X).backward()
    close(torch.zeros(()), step(nn.ModuleList([nn.Identity()])[0], torch.zeros(4)))
