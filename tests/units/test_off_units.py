"""Straight-through at sparse cost: what the gradient of the units that are off becomes."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from hardgate import StraightThrough
from hardgate.conditional import ConditionalMLP
from hardgate.units.straight_through import OffUnits
from tests.support.statistics import Z_LEVEL, Z_WRONG, largest_z

RATE = 0.2
DRAWS = 20_000

each_form = pytest.mark.parametrize("sample", [True, False])


def unit(off_units: OffUnits, *, sample: bool = True, slope: bool = False) -> StraightThrough:
    return StraightThrough(slope, sample, off_units=off_units, off_rate=RATE)


def noise(p: Tensor, on: Tensor, kept: Tensor, sample: bool) -> Tensor:
    """A u that makes these choices: on where u < p, kept at the top of the rest."""
    if not sample:
        return torch.where(kept, 0.0, 0.9).to(p)
    return torch.where(on, 0.0, torch.where(kept, 1 - 1e-9, p + 1e-9))


def gradients(
    layer: ConditionalMLP, x: Tensor, u: Tensor, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Tensor]:
    """Of every parameter, for a loss that is not linear in y, with the draw fixed to u."""
    monkeypatch.setattr(layer.gater.unit, "sample_noise", lambda a: u)
    layer.zero_grad()
    layer(x).pow(2).sum().backward()
    return {n: p.grad.clone() for n, p in layer.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("block_size", [1, 2])
@pytest.mark.parametrize("slope", [False, True])
@each_form
def test_expected_gradient_is_exact_by_enumeration(
    sample: bool, slope: bool, block_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given h, over every choice of the off units that are kept: all parameters, in fp64."""
    torch.manual_seed(4)
    layer = ConditionalMLP(
        3,
        4 * block_size,
        2,
        bottleneck=2,
        unit=unit("sampled", sample=sample, slope=slope),
        block_size=block_size,
        rate=0.4,
        dtype=torch.float64,
    )
    x = torch.randn(1, 3, dtype=torch.float64)
    a = layer.gater.pre_activation(x).detach()
    on = torch.tensor([[True, False, False, True]]) if sample else a > 0
    off = (~on).nonzero()[:, 1]
    assert 0 < len(off) < 4
    mean: dict[str, Tensor] = {}
    for kept in itertools.product([False, True], repeat=len(off)):
        mask = torch.zeros_like(on)
        mask[0, off] = torch.tensor(kept)
        probability = RATE ** sum(kept) * (1 - RATE) ** (len(off) - sum(kept))
        u = noise(torch.sigmoid(a), on, mask, sample)
        assert torch.equal(layer.gater.unit(a, u) != 0, on)
        for name, gradient in gradients(layer, x, u, monkeypatch).items():
            mean[name] = mean.get(name, torch.zeros_like(gradient)) + probability * gradient
    layer.gater.unit = unit("exact", sample=sample, slope=slope)
    u = noise(torch.sigmoid(a), on, torch.zeros_like(on), sample)
    truth = gradients(layer, x, u, monkeypatch)
    assert truth["gater.output.bias"][off].abs().min() > 0
    assert set(mean) == set(truth)
    for name in truth:
        torch.testing.assert_close(mean[name], truth[name])


def draws(off_units: OffUnits, sample: bool) -> Tensor:
    """∂L/∂a for many draws on one example of a layer of 100 experts, less the exact one's."""
    torch.manual_seed(1)
    layer = ConditionalMLP(20, 100, 5, bottleneck=5, unit=StraightThrough())
    x = torch.randn(1, 20).expand(DRAWS, 20)

    def gradient(u: StraightThrough) -> Tensor:
        layer.gater.unit = u
        seen: list[Tensor] = []
        hook = u.register_forward_pre_hook(lambda m, args: seen.append(args[0]))
        torch.manual_seed(2)  # the same h
        loss = (layer(x) - 1).pow(2).sum()
        hook.remove()
        return torch.autograd.grad(loss, seen[0])[0]

    return gradient(unit(off_units, sample=sample)) - gradient(unit("exact", sample=sample))


@each_form
def test_expected_gradient_is_exact_on_a_big_layer(sample: bool) -> None:
    difference = draws("sampled", sample)
    assert (difference != 0).float().mean() > 0.3  # it is another gradient
    assert largest_z(difference, 0.0) < Z_LEVEL


@each_form
def test_ignoring_is_seen_to_be_biased(sample: bool) -> None:
    difference = draws("ignore", sample)
    moved = difference[:, difference.abs().sum(0) > 0]
    assert moved.shape[1] > 50
    assert largest_z(moved, 0.0) > Z_WRONG


@each_form
def test_kept_off_units_weigh_one_over_the_rate_in_the_unit_alone(sample: bool) -> None:
    """The fact holds outside a conditional layer too, and values stay exact."""
    u = unit("sampled", sample=sample)
    a = torch.randn(2000, 50, generator=torch.Generator().manual_seed(0)).requires_grad_()
    z = u.sample_noise(a, torch.Generator().manual_seed(1))
    h = u(a, z)
    h.sum().backward()
    assert a.grad is not None
    off = h == 0
    assert set(h.unique().tolist()) == {0.0, 1.0}
    assert (a.grad[~off] == 1).all()
    assert set(a.grad[off].unique().tolist()) == {0.0, 1 / RATE}
    assert largest_z((a.grad[off] != 0).double(), RATE) < Z_LEVEL
    probe = u.probe(a, z)
    assert probe is not None
    assert torch.equal(a.grad[off] != 0, probe[off] == 1)


@pytest.mark.parametrize("mode", ["train", "threshold", "mean"])
@each_form
def test_ignored_off_units_have_no_gradient(sample: bool, mode: str) -> None:
    u = StraightThrough(sample=sample, off_units="ignore")
    if mode != "train":
        u.eval_mode = "mean" if mode == "mean" else "threshold"
        u.eval()
    a = torch.randn(100, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    h = u(a)
    h.sum().backward()
    assert a.grad is not None
    assert u.off_gradient == "zero"
    assert torch.equal(a.grad[h == 0], torch.zeros_like(a.grad[h == 0]))
    assert (a.grad[h == 1] == 1).all()


def test_sampling_is_exact_in_evaluation_mode() -> None:
    u = unit("sampled").eval()
    a = torch.tensor([1.0, -1.0], requires_grad=True)
    u(a).sum().backward()
    assert a.grad is not None
    assert a.grad.tolist() == [1.0, 1.0]
    probe = u.probe(a, None)
    assert probe is not None
    assert probe.tolist() == [1.0, 1.0]


def test_exact_is_the_default_and_extremes_stay_exact() -> None:
    assert StraightThrough().off_units == "exact"
    assert StraightThrough().off_gradient == unit("sampled").off_gradient == "expert"
    extremes = [-float("inf"), -1e38, 1e38, float("inf"), float("nan")]
    a = torch.tensor(extremes).requires_grad_()
    for off_units in ("sampled", "ignore"):
        h = unit(off_units)(a, torch.full((5,), 0.95))
        assert h[:4].tolist() == [0.0, 0.0, 1.0, 1.0]
        assert h[4].isnan()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    a = torch.zeros(1000, dtype=dtype, requires_grad=True)
    h = unit("sampled")(a)
    h.sum().backward()
    assert a.grad is not None
    assert h.dtype == a.grad.dtype == dtype
    assert set(a.grad.float().unique().tolist()) == {0.0, 1.0, 5.0}


def test_a_dead_unit_comes_back_where_it_is_sampled() -> None:
    a = torch.full((10_000,), -30.0, requires_grad=True)
    unit("sampled")(a).sum().backward()
    assert a.grad is not None
    assert largest_z((a.grad != 0).double(), RATE) < Z_LEVEL


def test_refuses_wrong_options() -> None:
    with pytest.raises(ValueError, match="off_units expected one of 'exact', 'sampled', 'ignore'"):
        StraightThrough(off_units="none")  # type: ignore[arg-type]
    for rate in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="off_rate expected a fraction between 0 and 1"):
            StraightThrough(off_units="sampled", off_rate=rate)
    with pytest.raises(ValueError, match="expected one noise tensor, got 0"):
        unit("sampled", sample=False)(torch.zeros(2), ())


def test_repr() -> None:
    assert repr(unit("sampled")) == "StraightThrough(off_units='sampled', off_rate=0.2)"
    assert repr(unit("ignore", sample=False)) == "StraightThrough(sample=False, off_units='ignore')"
