"""The conditional layers: what they compute, how they start, that they train and are stored."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hardgate
from hardgate import (
    UNITS,
    KLTarget,
    NoisyRectifier,
    Rectifier,
    Sigmoid,
    StochasticBinary,
    StochasticTimesSmooth,
    StraightThrough,
    Unit,
)
from hardgate.conditional import ConditionalLinear, ConditionalMLP, Gater, start_gates_
from hardgate.kernels.dispatch import ExecutionPath
from hardgate.kernels.transposed_linear import TransposedLinear
from hardgate.noise import Beta
from hardgate.sparsity.collect import sparsity_loss
from tests.support.tiny_layer import mlp

CASES: dict[str, Callable[[], Unit]] = {
    **UNITS,
    "StochasticTimesSmooth(noise=Beta(40.1))": lambda: StochasticTimesSmooth(noise=Beta(40.1)),
}
NEVER_OFF = {"Sigmoid()", 'Sigmoid("gaussian")', "BinaryConcrete()"}

each_unit = pytest.mark.parametrize("name", CASES)
each_block = pytest.mark.parametrize("block_size", [1, 16])
each_activation = pytest.mark.parametrize("activation", ["linear", "relu"])


def dense(layer: ConditionalMLP | ConditionalLinear, x: Tensor, gates: Tensor) -> Tensor:
    """The same network from `nn.Linear`s, with every expert computed."""
    experts = nn.Linear(layer.experts.in_features, layer.experts.out_features)
    experts.load_state_dict(layer.experts.state_dict())
    h = experts(x).relu() if layer.activation == "relu" else experts(x)
    h = h * gates.repeat_interleave(layer.block_size, dim=-1)
    if isinstance(layer, ConditionalLinear):
        gated: Tensor = h
        return gated
    out = nn.Linear(layer.out.in_features, layer.out.out_features)
    out.load_state_dict(layer.out.state_dict())
    y: Tensor = out(h)
    return y


# --- what they compute ----------------------------------------------------------------------


@each_block
@pytest.mark.parametrize("shape", [(6,), (0, 6), (7, 6), (2, 3, 6)])
def test_shapes(shape: tuple[int, ...], block_size: int) -> None:
    x = torch.randn(shape)
    assert mlp(block_size=block_size)(x).shape == (*shape[:-1], 3)
    linear = ConditionalLinear(6, 32, bottleneck=5, unit=StraightThrough(), block_size=block_size)
    assert linear(x).shape == (*shape[:-1], 32)


@each_activation
@each_block
@each_unit
def test_equals_the_dense_composition(name: str, block_size: int, activation: str) -> None:
    """Values and all gradients, with the same draw, in training and in evaluation mode."""
    layer = mlp(CASES[name](), block_size=block_size, activation=activation, rate=0.4)
    x = torch.randn(9, 6, requires_grad=True)
    leaves = {"x": x, **dict(layer.named_parameters())}
    state = copy.deepcopy(layer.gater.unit.state_dict())  # some units learn in every backward pass

    def run(network: Callable[[Tensor], Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        torch.manual_seed(3)
        layer.gater.unit.load_state_dict(state)
        losses = network(x).pow(2).sum(-1)
        total = losses.mean() + score(layer, losses)
        gradients = torch.autograd.grad(total, list(leaves.values()))
        return losses.detach(), dict(zip(leaves, gradients, strict=True))

    for mode in (True, False):
        layer.train(mode)
        torch.testing.assert_close(run(layer), run(lambda z: plain(layer, z)))


def plain(layer: ConditionalMLP, x: Tensor) -> Tensor:
    """The dense composition on the layer's own parameters, differentiated by autograd alone."""
    gates = layer.gater(x).repeat_interleave(layer.block_size, dim=-1)
    h = layer.experts(x)
    y: Tensor = layer.out((h.relu() if layer.activation == "relu" else h) * gates)
    return y


def score(layer: nn.Module, losses: Tensor) -> Tensor:
    return hardgate.score_loss(layer, losses, update_baselines=False)


@each_block
def test_conditional_linear_is_the_gated_linear(block_size: int) -> None:
    torch.manual_seed(0)
    layer = ConditionalLinear(6, 32, bottleneck=5, unit=Rectifier(), block_size=block_size)
    x = torch.randn(4, 6)
    gates = layer.gater(x)
    torch.testing.assert_close(layer(x), dense(layer, x, gates))
    assert (layer(x)[gates.repeat_interleave(block_size, dim=-1) == 0] == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    layer = mlp(dtype=dtype)
    x = torch.randn(4, 6, dtype=dtype)
    y = layer(x)
    y.sum().backward()
    assert y.dtype == dtype
    assert all(p.grad is not None and p.grad.dtype == dtype for p in layer.parameters())
    assert layer.out.weight.is_contiguous()


# --- that they train ------------------------------------------------------------------------


@each_block
@each_unit
def test_one_step_reaches_gater_and_experts(name: str, block_size: int) -> None:
    layer = mlp(CASES[name](), 6, 64, 3, block_size=block_size, rate=0.3)
    x, y = torch.randn(32, 6), torch.randn(32, 3)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    before = {n: p.detach().clone() for n, p in layer.named_parameters()}
    losses = (layer(x) - y).square().mean(-1)
    (losses.mean() + hardgate.score_loss(layer, losses)).backward()
    optimiser.step()
    for n, p in layer.named_parameters():
        assert p.grad is not None
        assert p.grad.isfinite().all()
        assert not torch.equal(p, before[n]), n
    assert layer.out.weight.is_contiguous()


@each_unit
@pytest.mark.parametrize("depth", [2, 3])
def test_gradients_reach_the_bottom_of_a_stack(name: str, depth: int) -> None:
    torch.manual_seed(0)
    stack = nn.Sequential(
        *(
            ConditionalMLP(6, 40, 6, bottleneck=5, unit=CASES[name](), rate=0.3)
            for _ in range(depth)
        )
    )
    x = torch.randn(32, 6)
    losses = start_gates_(stack, x)(x).square().sum(-1)
    (losses.mean() + hardgate.score_loss(stack, losses)).backward()
    bottom = stack[0]
    assert isinstance(bottom, ConditionalMLP)
    for p in bottom.parameters():
        assert p.grad is not None
        assert p.grad.isfinite().all()
        assert p.grad.abs().sum() > 0


def test_a_stack_of_conditional_linears_learns() -> None:
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = (x[:, 0] * x[:, 1]).sign().unsqueeze(-1)
    model = nn.Sequential(
        ConditionalLinear(8, 64, bottleneck=16, unit=StraightThrough(off_units="sampled")),
        ConditionalMLP(64, 64, 1, bottleneck=16, unit=NoisyRectifier(), activation="relu"),
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(150):
        loss = (model(x) - y).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) / 10 < 0.6 * losses[0]


def test_thresholds_are_calibrated_through_a_stack() -> None:
    torch.manual_seed(0)
    stack = nn.Sequential(*(mlp(None, 6, 50, 6) for _ in range(2)))
    reached = hardgate.calibrate_thresholds(stack, [torch.randn(64, 6)], rate=0.2)
    assert reached == {n: pytest.approx(0.2, abs=0.01) for n in ("0.gater.unit", "1.gater.unit")}


@pytest.mark.parametrize("sample", [True, False])
def test_the_probe_is_of_the_noise_that_was_drawn(sample: bool) -> None:
    """Experts are evaluated for the gradients that are there, and for no other: it costs."""
    unit = StraightThrough(sample=sample, off_units="sampled", off_rate=0.2)
    gater = Gater(6, 400, 5, unit, rate=0.3)
    probed = 0
    for x in torch.randn(20, 1, 6):
        gates, probe = gater(x, with_probe=True)
        (gradient,) = torch.autograd.grad(gates.sum(), gater.output.bias)
        off = gates[0] == 0
        assert torch.equal(probe[0][off] != 0, gradient[off] != 0)
        probed += int((probe[0][off] != 0).sum())
    n = 20 * 400 * 0.7  # gates that are off
    assert abs(probed - 0.2 * n) < 5.5 * math.sqrt(0.2 * 0.8 * n) + 0.2 * 0.02 * n


# --- how they start -------------------------------------------------------------------------


def test_weights_start_as_the_paper_did() -> None:
    layer = mlp(None, 60, 200, 10, bottleneck=50)
    within: dict[Any, float] = {
        layer.experts: math.sqrt(6 / 260),
        layer.out: math.sqrt(6 / 210),
        layer.gater.hidden: math.sqrt(6 / 110),
        layer.gater.output: 4 * math.sqrt(6 / 250),
    }
    for linear, bound in within.items():
        assert 0.95 * bound < linear.weight.abs().max() <= bound
        assert linear.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)
    for linear in (layer.experts, layer.out, layer.gater.hidden):
        assert (linear.bias == 0).all()


@pytest.mark.parametrize("unit", [NoisyRectifier(), Rectifier()])
def test_rectifiers_start_sparse(unit: Unit) -> None:
    weight = Gater(60, 200, 50, unit).output.weight
    assert ((weight != 0).sum(1) == 15).all()
    assert weight[weight != 0].std().item() == pytest.approx(1.0, rel=0.05)
    assert ((Gater(6, 20, 5, unit).output.weight != 0).sum(1) == 5).all()
    assert (Gater(60, 200, 50, unit, init="uniform").output.weight != 0).all()
    assert ((Gater(60, 9, 50, Sigmoid(), init="sparse").output.weight != 0).sum(1) == 15).all()


@pytest.mark.parametrize("rate", [0.1, 0.5])
@each_unit
def test_starts_at_the_target_rate(name: str, rate: float) -> None:
    torch.manual_seed(1)
    gater = Gater(30, 200, 20, CASES[name](), rate=rate)
    density = (gater(torch.randn(2000, 30)) != 0).float().mean().item()
    if name in NEVER_OFF:
        assert density == 1
        assert (gater.output.bias == 0).all()
    else:
        assert density == pytest.approx(rate, abs=0.02)


def test_starts_at_the_target_rate_on_given_data() -> None:
    torch.manual_seed(1)
    x = 0.1 * torch.randn(500, 30) + 0.2  # not N(0, 1)
    gater = Gater(30, 200, 20, NoisyRectifier())
    assert abs((gater(x) != 0).float().mean().item() - 0.1) > 0.02
    assert gater.start_(x) is gater
    p = gater.unit.active_probability(gater.pre_activation(x)).mean(0)
    torch.testing.assert_close(p, torch.full((200,), 0.1), atol=1e-4, rtol=0)


def test_meta_device_and_reset() -> None:
    layer = mlp(device="meta").to_empty(device="cpu")
    layer.reset_parameters()
    assert layer(torch.randn(4, 6)).isfinite().all()
    assert layer.out.weight.is_contiguous()
    linear = ConditionalLinear(6, 32, bottleneck=5, unit=Rectifier())
    before = linear.experts.weight.clone()
    linear.reset_parameters()
    assert not torch.equal(linear.experts.weight, before)


def test_a_compiled_layer_that_has_run_is_started_as_well() -> None:
    torch._dynamo.reset()
    layer = ConditionalMLP(8, 50, 8, bottleneck=4, unit=Rectifier())
    x = 3 * torch.randn(200, 8) + 2
    compiled: Any = torch.compile(layer, backend="eager")
    with torch.no_grad():
        compiled(x)
        start_gates_(compiled, x)
        layer(x)
    assert layer.telemetry().density == pytest.approx(0.1, abs=0.005)


def test_a_stack_is_started_from_the_bottom_up() -> None:
    torch.manual_seed(0)
    stack = nn.Sequential(*(mlp(NoisyRectifier(), 6, 200, 6) for _ in range(3)))
    x = 0.1 * torch.randn(500, 6)
    assert start_gates_(stack, x) is stack
    stack(x)
    for layer in stack:
        assert isinstance(layer, ConditionalMLP)
        assert layer.telemetry().density == pytest.approx(0.1, abs=0.02)
    biases = [
        layer.gater.output.bias.clone() for layer in stack if isinstance(layer, ConditionalMLP)
    ]
    stack(3 * x + 1)  # another call starts nothing
    for layer, bias in zip(stack, biases, strict=True):
        assert isinstance(layer, ConditionalMLP)
        assert torch.equal(layer.gater.output.bias, bias)
    with pytest.raises(ValueError, match=r"found no hardgate\.Gater"):
        start_gates_(nn.Linear(2, 2), x)


# --- how they are stored --------------------------------------------------------------------


def test_state_dict_is_that_of_linears() -> None:
    layer = mlp()
    experts, out = nn.Linear(6, 32), nn.Linear(32, 3)
    layer.experts.load_state_dict(experts.state_dict())
    layer.out.load_state_dict(out.state_dict())
    x, gates = torch.randn(5, 6), torch.ones(5, 32)
    torch.testing.assert_close(dense(layer, x, gates), out(experts(x)))
    keys = {k: tuple(v.shape) for k, v in layer.state_dict().items() if "gater" not in k}
    shapes = {"experts.weight": (32, 6), "experts.bias": (32,), "out.weight": (3, 32)}
    assert keys == {**shapes, "out.bias": (3,)}
    assert all(v.is_contiguous() for v in layer.state_dict().values())  # safetensors insists


@pytest.mark.parametrize("assign", [False, True])
def test_state_dict_round_trip(assign: bool) -> None:
    one, other = mlp(), mlp().requires_grad_(False).requires_grad_(True)
    other.reset_parameters()
    other.load_state_dict(one.state_dict(), assign=assign)
    other.zero_grad()
    x = torch.randn(5, 6)
    torch.testing.assert_close(other.eval()(x), one.eval()(x))
    assert other.out.weight.is_contiguous()
    other(x).sum().backward()
    assert other.out.weight.grad is not None
    assert other.out.weight.grad.stride() == other.out.weight.stride()


@pytest.mark.parametrize("form", ["deepcopy", "pickle", "save", "double"])
def test_copies(form: str) -> None:
    """After a forward pass too: neither its graph nor its gates go along."""
    layer = mlp(sparsity=KLTarget(0.1, weight=1.0)).double()
    x = torch.randn(5, 6).double()
    layer(x)
    if form == "save":
        torch.save(layer, buffer := io.BytesIO())
        buffer.seek(0)
        other = torch.load(buffer, weights_only=False)
    else:
        copies = {"deepcopy": copy.deepcopy, "double": lambda m: copy.deepcopy(m).float().double()}
        other = copies.get(form, lambda m: pickle.loads(pickle.dumps(m)))(layer)
    torch.testing.assert_close(other.eval()(x), layer.eval()(x), atol=1e-5, rtol=1e-5)
    assert other.out.weight.is_contiguous()
    assert sparsity_loss(other) == 0
    assert sparsity_loss(layer) > 0


def test_layout_survives_every_optimiser() -> None:
    for make in (torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop):
        layer = TransposedLinear(4, 3)
        twin = nn.Linear(4, 3)
        twin.load_state_dict(layer.state_dict())
        x = torch.randn(5, 4)
        for module in (layer, twin):
            optimiser = make(module.parameters(), lr=0.1)
            for _ in range(2):
                optimiser.zero_grad()
                module(x).square().sum().backward()
                optimiser.step()
        torch.testing.assert_close(layer.state_dict()["weight"], twin.weight)
        assert layer.weight.is_contiguous()


# --- telemetry ------------------------------------------------------------------------------


def open_gates(layer: ConditionalMLP | ConditionalLinear, x: Tensor) -> None:
    """Gate i is on where x_0 > i: a threshold on a known input."""
    gater, gates = layer.gater, layer.gater.output.out_features
    nn.init.zeros_(gater.hidden.weight)
    nn.init.zeros_(gater.output.weight)
    gater.hidden.weight.data[0, 0] = 1e-3
    gater.output.weight.data[:, 0] = 1e3
    gater.output.bias.data.copy_(-torch.arange(gates) - 0.5)


@pytest.mark.parametrize("backend", ["dense", "auto"])
def test_telemetry_by_hand(backend: str) -> None:
    layer = mlp(Rectifier(), 3, 8, 5, bottleneck=2, block_size=2, backend=backend)
    x = torch.tensor([[[1.0, 0, 0], [2.0, 0, 0]], [[0.0, 0, 0], [4.0, 0, 0]]])
    open_gates(layer, x)
    layer(x)
    seen = layer.telemetry()
    assert seen.active.tolist() == [3, 2, 1, 1]
    assert seen.examples == 4
    assert seen.density == 7 / 16
    assert seen.dense == 4 * (3 * 2 + 2 * 4 + 8 * 3 + 8 * 5)
    assert seen.needed == 4 * (3 * 2 + 2 * 4) + 7 * 2 * (3 + 5)
    assert isinstance(seen.path, ExecutionPath)
    skipped = seen.path.backend != "dense"
    assert seen.multiplications == (seen.needed if skipped else seen.dense)
    assert seen.saving == seen.dense / seen.multiplications
    linear = ConditionalLinear(3, 4, bottleneck=2, unit=Rectifier())
    open_gates(linear, x)
    linear(x)
    assert linear.telemetry().needed == 4 * (3 * 2 + 2 * 4) + 7 * 3


def test_telemetry_needs_a_pass() -> None:
    layer = mlp()
    with pytest.raises(RuntimeError, match="telemetry expected a forward pass"):
        layer.telemetry()
    layer(torch.zeros(0, 6))
    assert math.isnan(layer.telemetry().density)
    assert layer.telemetry().saving == 1.0
    layer(torch.randn(5, 6))
    assert layer._last is not None
    assert not layer._last[0].requires_grad


# --- refusals -------------------------------------------------------------------------------


def test_refuses_wrong_options() -> None:
    with pytest.raises(ValueError, match=r"multiple of block_size=16, got 40.*hidden_features=48"):
        mlp(None, 6, 40, 3, block_size=16)
    with pytest.raises(ValueError, match="block_size expected a whole number of at least 1, got 0"):
        mlp(block_size=0)
    with pytest.raises(ValueError, match="bottleneck expected a whole number"):
        mlp(bottleneck=2.5)
    with pytest.raises(ValueError, match="out_features expected a whole number"):
        mlp(None, 6, 40, 0)
    with pytest.raises(ValueError, match="backend expected one of 'auto', 'dense', 'sparse'"):
        mlp(backend="fast")
    with pytest.raises(ValueError, match="activation expected one of 'linear', 'relu', got 'tanh'"):
        mlp(activation="tanh")
    with pytest.raises(ValueError, match="init expected one of"):
        mlp(init="he")
    with pytest.raises(ValueError, match="rate expected a number between 0 and 1"):
        mlp(rate=1.5)
    with pytest.raises(TypeError, match=r"unit expected a hardgate unit.*StraightThrough\(\)"):
        ConditionalMLP(6, 32, 3, bottleneck=5, unit=StraightThrough)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"sparsity expected a hardgate\.Controller"):
        mlp(sparsity=0.1)
    with pytest.raises(ValueError, match=r"expected x of shape \[\.\.\., 6\], got \(4, 7\)"):
        mlp()(torch.randn(4, 7))


def test_the_score_term_is_insisted_on() -> None:
    layer = mlp(StochasticBinary())
    with pytest.raises(RuntimeError, match="score_loss"):
        layer(torch.randn(5, 6)).sum().backward()


def test_repr() -> None:
    text = repr(mlp(block_size=16, activation="relu"))
    assert "block_size=16, backend='auto', activation='relu'" in text
    assert "rate=0.1, init='auto'" in text


# --- evaluation -----------------------------------------------------------------------------


def test_evaluation_with_nearly_all_gates_off_is_warned_of_once() -> None:
    layer, x = mlp(StraightThrough(), 6, 400, 3), torch.randn(50, 6)
    with torch.no_grad():
        layer.gater.output.weight.mul_(0.01)  # undecided gates, all at P = 0.1
    with pytest.warns(UserWarning, match=r"(?s)0 % of the gates.*calibrate_thresholds.*rate=0\.09"):
        layer.eval()(x)
    layer(x)  # once: a second warning would be an error here


def test_calibrated_sampled_and_small_evaluations_are_not_warned_of() -> None:
    def undecided(unit: Unit, hidden: int = 400) -> ConditionalMLP:
        layer = mlp(unit, 6, hidden, 3)
        with torch.no_grad():
            layer.gater.output.weight.mul_(0.01)
        return layer

    x = torch.randn(50, 6)
    calibrated = undecided(StraightThrough())
    hardgate.calibrate_thresholds(calibrated, [x], rate=0.1)
    calibrated.eval()(x)
    assert calibrated.telemetry().density == pytest.approx(0.1, abs=0.01)
    undecided(StraightThrough(eval_mode="sample")).eval()(x)
    undecided(StraightThrough(), 8).eval()(x)


def test_the_rate_follows_the_controller() -> None:
    options = {"bottleneck": 4, "unit": StraightThrough(), "sparsity": KLTarget(0.3, weight=1.0)}
    assert ConditionalMLP(6, 20, 3, **options).gater.rate == 0.3  # type: ignore[arg-type]
    assert ConditionalMLP(6, 20, 3, rate=0.2, **options).gater.rate == 0.2  # type: ignore[arg-type]
    assert ConditionalMLP(6, 20, 3, bottleneck=4, unit=StraightThrough()).gater.rate == 0.1


def test_shapes_can_be_had_without_numbers() -> None:
    with torch.device("meta"):
        gater = Gater(6, 400, 4, hardgate.SlopeAnnealed()).eval()
        assert gater(torch.empty(50, 6)).shape == (50, 400)
    assert "SlopeAnnealed()" in repr(gater)
