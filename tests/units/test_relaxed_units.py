"""What theory says about the units newer than the paper: formulas, identities, dominance.

Expectations over a binary unit's own draw are enumerated, not sampled: the noise that gives each
outcome is handed in. z-scores are for what further noise remains (see `tests/statistics.py`).
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from hardgate import (
    GRMCK,
    BinaryConcrete,
    GappedST,
    HardConcrete,
    KLTarget,
    SlopeAnnealed,
    STGumbel,
    Unit,
    exact_gradient,
)
from hardgate.functional.concrete import MeanSlope, mean_slope
from hardgate.functional.relaxations import hard_sigmoid
from hardgate_lab.rig.measure import gradient_samples
from hardgate_lab.rig.problems import PROBLEMS, GradientProblem
from tests.support.enumeration import A, expected, outcome_noise, outcomes, slope, variance
from tests.support.statistics import Z_LEVEL, Z_WRONG, largest_z
from tests.support.transforms import TRANSFORMS, assert_equals_eager, objective

N = 100_000
TEMPERATURES = (0.1, 0.5, 1.0)
PROBABILITIES = (1e-3, 0.03, 0.3, 0.5, 0.97, 1 - 1e-3)
each_temperature = pytest.mark.parametrize("temperature", TEMPERATURES)
each_problem = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=list(PROBLEMS))


def logit(p: float) -> float:
    return math.log(p) - math.log1p(-p)


def integral(y: float, temperature: float) -> float:
    """`mean_slope` by brute force: 40 Gauss nodes in each of some hundred panels."""
    nodes, weights = np.polynomial.legendre.leggauss(40)
    near, around = 60 * temperature, max(y, 0.0)
    edges = np.unique(np.r_[np.linspace(0, near, 61), np.linspace(max(0, y - 60), around + 80, 91)])
    z = edges[:-1, None] + np.diff(edges)[:, None] * (nodes + 1) / 2

    def log_sigmoid(x: np.ndarray) -> np.ndarray:
        y: np.ndarray = -np.logaddexp(0, -x)
        return y

    x = z / temperature
    log = log_sigmoid(x) + log_sigmoid(-x) + log_sigmoid(z - y) + log_sigmoid(y - z)
    values = np.exp(log - log_sigmoid(np.array(y))) / temperature
    return float((values * weights * np.diff(edges)[:, None] / 2).sum())


# --- slope-annealed straight-through --------------------------------------------------------


@pytest.mark.parametrize("sample", [True, False])
@pytest.mark.parametrize("alpha", [1.0, 5.0, 1000.0])
def test_slope_annealed_formula(alpha: float, sample: bool) -> None:
    """α/2 where |αa| ≤ 1, on and off; the slope encloses an area of 1 however large α is."""
    a = torch.linspace(-2, 2, 400_001, dtype=torch.float64)
    unit = SlopeAnnealed(alpha, sample)
    noise = unit.sample_noise(a, torch.Generator().manual_seed(0))
    g = slope(unit, a, noise)
    torch.testing.assert_close(g, torch.where((alpha * a).abs() <= 1, alpha / 2, 0.0).to(g))
    assert (g.sum() * 1e-5).item() == pytest.approx(1.0, abs=0.01)
    h = unit(a, noise)
    assert torch.equal(h, (a > 0).double()) == (not sample)


def test_a_steep_slope_is_the_step() -> None:
    """α → ∞: hard-σ(αa) → 1[a > 0], and hardly a unit has a gradient any more."""
    a = torch.linspace(-2, 2, 1001)
    for alpha in (1.0, 10.0, 1000.0):
        share = (slope(SlopeAnnealed(alpha), a, torch.rand(1001)) != 0).float().mean().item()
        assert share == pytest.approx(2 / (4 * alpha), abs=0.002)
    apart = a.abs() > 1e-3
    assert torch.equal(hard_sigmoid(a, 1000.0)[apart], (a > 0).float()[apart])


def test_the_slope_follows_the_schedule_and_is_state() -> None:
    unit = SlopeAnnealed()
    for epoch in range(1, 131):
        unit.steepen_()
        assert unit.slope.item() == pytest.approx(min(5.0, 1 + 0.04 * epoch), abs=1e-4)
    fresh = SlopeAnnealed()
    fresh.load_state_dict(unit.state_dict())
    assert fresh.slope == unit.slope
    steep = SlopeAnnealed(8.0)
    steep.steepen_(most=5.0)
    assert steep.slope == 8.0  # never lowered


def test_a_slope_that_is_raised_reaches_compiled_code() -> None:
    unit = SlopeAnnealed()
    a, u = torch.tensor([0.1, 0.4]), torch.tensor([0.5, 0.5])
    torch._dynamo.reset()
    run = TRANSFORMS["compile"](lambda a, noise: ((h := unit(a, noise)).sum(), h.detach()))
    assert run(a, u)[0].tolist() == [0.5, 0.5]
    unit.steepen_(by=3.0)
    assert run(a, u)[0].tolist() == [2.0, 0.0]


# --- ST-Gumbel and GR-MCK -------------------------------------------------------------------


def test_st_gumbel_formula() -> None:
    a, z = torch.randn(2, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    s = torch.sigmoid((a + z) / 0.3)
    torch.testing.assert_close(slope(STGumbel(0.3), a, z), s * (1 - s) / 0.3)
    assert torch.equal(STGumbel(0.3)(a, z), (a + z > 0).double())


@each_temperature
@pytest.mark.parametrize("p", PROBABILITIES)
def test_the_quadrature_is_the_integral(p: float, temperature: float) -> None:
    y = torch.tensor([logit(p)], dtype=torch.float64)
    truth = integral(y.item(), temperature)
    assert mean_slope(y, temperature).item() == pytest.approx(truth, rel=1e-6)
    assert mean_slope(y.float(), temperature).item() == pytest.approx(truth, rel=3e-6)
    assert MeanSlope(temperature)(y).item() == pytest.approx(truth, rel=3e-6)


@each_temperature
@pytest.mark.parametrize("p", PROBABILITIES)
def test_infinitely_many_draws_are_the_limit_of_many(p: float, temperature: float) -> None:
    """z-test of single conditional draws against the quadrature, for both outcomes."""
    a = torch.full((N, 2), logit(p), dtype=torch.float64)
    u = outcome_noise(torch.tensor([[0.0, 1.0]])).expand(N, 2)
    v = torch.rand(N, 2, generator=torch.Generator().manual_seed(0))
    single = slope(GRMCK(temperature, samples=1), a, (u, v))
    limit = slope(GRMCK(temperature), a[:1], u[:1])[0]
    assert largest_z(single / limit, 1.0) < Z_LEVEL


def test_fixed_nodes_miss_the_integral() -> None:
    """Negative control: 32 Gauss nodes in probability, at λ = 0.1 and p = 1e-3, given z < 0."""
    nodes, weights = np.polynomial.legendre.leggauss(32)
    v = torch.from_numpy((nodes + 1) / 2)
    y, temperature = -logit(1e-3), 0.1
    z = torch.nn.functional.softplus(y + v.log()) - torch.log1p(-v)
    s = torch.sigmoid(z / temperature)
    fixed = (s * (1 - s) / temperature * torch.from_numpy(weights / 2)).sum().item()
    assert abs(fixed / integral(y, temperature) - 1) > 0.5


@pytest.mark.parametrize("temperature", [0.05, 2 / 3, 1.0, 3.0])
def test_the_table_is_the_quadrature(temperature: float) -> None:
    y = torch.linspace(-45, 45, 10_001, dtype=torch.float64)
    ratio = MeanSlope(temperature)(y) / mean_slope(y, temperature)
    assert (ratio - 1).abs().max() < 1e-3
    assert (ratio[y.abs() < 9] - 1).abs().max() < 1e-5


@each_problem
def test_st_gumbel_and_gr_mck_have_one_mean(problem: GradientProblem) -> None:
    """… and the variance falls with K: Rao-Blackwell."""
    generator = torch.Generator().manual_seed(0)
    limit = GRMCK(0.5).double()
    mean, variances = expected(limit, problem.f, problem.logits), []
    for unit in (STGumbel(0.5), GRMCK(0.5, samples=1), GRMCK(0.5, samples=4)):
        draws = gradient_samples(unit.double(), problem.f, problem.logits, N // 2, generator)
        assert largest_z(draws, mean) < Z_LEVEL
        variances.append(draws.var(0).sum().item())
    variances.append(variance(limit, problem.f, problem.logits).sum().item())
    gumbel, one, four, infinite = variances
    assert one == pytest.approx(gumbel, rel=0.05)  # the same law
    assert infinite < four < 0.9 * one
    other = expected(GRMCK(1.0).double(), problem.f, problem.logits)
    assert largest_z(draws, other) > Z_WRONG  # negative control: another temperature's mean


# --- gapped straight-through ----------------------------------------------------------------


@pytest.mark.parametrize(("gap", "tau"), [(0.0, 1.0), (1.0, 1.0), (0.5, 0.2)])
def test_gapped_formula(gap: float, tau: float) -> None:
    a = torch.linspace(-3, 3, 25, dtype=torch.float64)
    for b, u in ((1.0, 0.0), (0.0, 1 - 2.0**-24)):
        s = torch.sigmoid(torch.maximum((2 * b - 1) * a, torch.tensor(gap)) / tau)
        unit, noise = GappedST(gap, tau), torch.full_like(a, u)
        torch.testing.assert_close(slope(unit, a, noise), s * (1 - s) / tau)
        assert (unit(a, noise) == b).all()


def test_gapped_is_straight_through_of_the_likelier_outcome() -> None:
    """gap = 0, τ = 1: ST × σ' where the outcome was the likelier one, σ'(0) = ¼ elsewhere."""
    g = slope(GappedST(0.0), A.expand(outcomes(4).shape), outcome_noise(outcomes(4)))
    likelier = (outcomes(4) > 0) == (A > 0)
    expected_slope = torch.where(likelier, A.sigmoid() * (-A).sigmoid(), 0.25)
    torch.testing.assert_close(g, expected_slope)


# --- binary and hard Concrete ---------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0, 3.0])
def test_concrete_means_are_those_of_the_draws(temperature: float) -> None:
    a = torch.tensor([-7.0, -3.0, 0.0, 2.0]).expand(N, 4)
    units: list[Unit] = [BinaryConcrete(temperature), HardConcrete(temperature, -0.3, 1.01)]
    for unit in units:
        h = unit(a, unit.sample_noise(a, torch.Generator().manual_seed(0)))
        assert largest_z(h, unit.mean(a[0].double())) < Z_LEVEL
        assert largest_z(h, unit.mean(a[0].double() + 0.2)) > Z_WRONG


def test_a_concrete_variable_rounds_to_its_bernoulli() -> None:
    a = torch.tensor([-2.0, 0.5]).expand(N, 2)
    unit = BinaryConcrete(0.7)
    h = unit(a, unit.sample_noise(a, torch.Generator().manual_seed(0)))
    assert largest_z((h > 0.5).double(), a[0].double().sigmoid()) < Z_LEVEL


@pytest.mark.parametrize("make", [BinaryConcrete, HardConcrete])
def test_relaxed_units_are_biased_for_the_binary_objective(
    make: type[BinaryConcrete] | type[HardConcrete],
) -> None:
    """`unbiased` speaks of E L(h). Held against Bernoulli(σ(a)) the same draws are off."""
    problem = PROBLEMS["smooth"]
    generator = torch.Generator().manual_seed(0)
    draws = gradient_samples(make().double(), problem.f, problem.logits, N, generator)
    assert largest_z(draws, exact_gradient(problem.f, problem.logits)) > Z_WRONG


def test_a_cold_concrete_unit_is_binary() -> None:
    problem = PROBLEMS["smooth"]
    generator = torch.Generator().manual_seed(0)
    cold = gradient_samples(BinaryConcrete(0.02), problem.f, problem.logits, N, generator)
    assert largest_z(cold, exact_gradient(problem.f, problem.logits)) < Z_LEVEL
    warm = gradient_samples(BinaryConcrete(0.5), problem.f, problem.logits, N, generator)
    assert cold.var(0).sum() > 10 * warm.var(0).sum()  # which is what the bias is traded for


@pytest.mark.parametrize(("gamma", "zeta"), [(-0.1, 1.1), (-0.5, 1.01), (-0.01, 2.0)])
@pytest.mark.parametrize("temperature", [0.3, 2 / 3])
def test_hard_concrete_probabilities(temperature: float, gamma: float, zeta: float) -> None:
    a = torch.tensor([-3.0, -0.5, 0.0, 2.0]).expand(N, 4)
    unit = HardConcrete(temperature, gamma, zeta)
    z = unit.sample_noise(a, torch.Generator().manual_seed(0))
    h = unit(a, z)
    x = a[0].double()
    on = torch.sigmoid(x - temperature * math.log(-gamma / zeta))
    full = torch.sigmoid(x - temperature * math.log((1 - gamma) / (zeta - 1)))
    torch.testing.assert_close(unit.active_probability(x), on)
    assert largest_z((h != 0).double(), on) < Z_LEVEL
    assert largest_z((h == 1).double(), full) < Z_LEVEL
    assert largest_z((h != 0).double(), x.sigmoid()) > Z_WRONG  # the binary unit's would not do
    s, g = torch.sigmoid((a + z) / temperature), slope(unit, a, z)
    formula = torch.where(h > 0, s * (1 - s) / temperature * (zeta - gamma), 0.0)
    torch.testing.assert_close(g[h < 1], formula[h < 1])
    assert (g[h == 1] != 0).float().mean() < 1e-4  # where it is 1 before it is clipped


def test_hard_concrete_under_a_kl_target() -> None:
    """The penalty sees P(h ≠ 0), not σ(a): at its minimum a tenth is on."""
    a = torch.zeros(64, 5, requires_grad=True)
    unit, control = HardConcrete(), KLTarget(0.1, weight=1.0)
    optimiser = torch.optim.SGD([a], lr=20.0)
    for _ in range(500):
        optimiser.zero_grad()
        control(unit, a, a).backward()
        optimiser.step()
    h = unit(a.detach().expand(200, 64, 5), None)
    assert largest_z((h != 0).double().flatten(), 0.1) < Z_LEVEL


# --- at the edges ---------------------------------------------------------------------------

FORMS: dict[str, Unit] = {
    "SlopeAnnealed(sample=False)": SlopeAnnealed(sample=False),
    "SlopeAnnealed(5.0)": SlopeAnnealed(5.0),
    "STGumbel(0.1)": STGumbel(0.1),
    "GRMCK(0.1)": GRMCK(0.1),
    "GRMCK(2.0)": GRMCK(2.0),
    "GRMCK(0.1, samples=3)": GRMCK(0.1, samples=3),
    "GappedST(0.0, 0.1)": GappedST(0.0, 0.1),
    "BinaryConcrete(0.1)": BinaryConcrete(0.1),
    "HardConcrete(0.1)": HardConcrete(0.1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_large_logits_at_other_temperatures(name: str, dtype: torch.dtype) -> None:
    """Forward and backward, also where the noise says what almost never happens."""
    unit = FORMS[name]
    ends = [-torch.inf, -1e30, -100.0, -40.0, 0.0, 40.0, 100.0, 1e30, torch.inf]
    a = torch.tensor(ends, dtype=dtype).expand(50, 9)
    noise = unit.sample_noise(a, torch.Generator().manual_seed(0))
    edges = [torch.zeros(50, 9), torch.full((50, 9), 1 - 2.0**-24)]
    count = len(noise) if isinstance(noise, tuple) else 1
    for tensors in (noise, *((edge,) * count for edge in edges)):
        assert unit(a, tensors).isfinite().all()
        g = slope(unit, a, tensors)
        assert g.isfinite().all()
        assert (g >= 0).all()


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", ["GRMCK(0.1, samples=3)", "SlopeAnnealed(sample=False)"])
def test_transforms(name: str, transform: str) -> None:
    unit = FORMS[name]
    a = torch.linspace(-2, 2, 15).reshape(5, 3)
    noise = unit.sample_noise(a, torch.Generator().manual_seed(0))
    torch._dynamo.reset()
    assert_equals_eager(TRANSFORMS[transform], objective(unit), a, noise)


@pytest.mark.parametrize("make", [STGumbel, GRMCK, BinaryConcrete, HardConcrete, GappedST])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_temperatures_are_checked(make: type[STGumbel], value: float) -> None:
    with pytest.raises(ValueError, match=rf"temperature expected a positive number, got {value}"):
        make(temperature=value)


def test_other_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match=r"slope expected a positive number.* got 0"):
        SlopeAnnealed(0.0)
    with pytest.raises(ValueError, match=r"gap expected a number of at least 0.*got -1"):
        GappedST(-1.0)
    for ends in ((0.0, 1.1), (-0.1, 1.0), (-math.inf, 2.0), (-0.1, math.nan)):
        with pytest.raises(ValueError, match=r"gamma below 0 and zeta above 1.*BinaryConcrete"):
            HardConcrete(0.5, *ends)
    for samples in (0, -1, 2.5):
        with pytest.raises(ValueError, match=r"samples=None \(K = ∞, by quadrature\) or a whole"):
            GRMCK(samples=samples)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"expected 4 noise tensors, got 2. Write unit\(a, unit.s"):
        GRMCK(samples=3)(torch.zeros(2), (torch.rand(2), torch.rand(2)))


def test_reprs() -> None:
    assert repr(GRMCK(0.1, samples=3)) == "GRMCK(temperature=0.1, samples=3)"
    assert repr(GappedST(0.5)) == "GappedST(gap=0.5, temperature=1)"
    assert repr(SlopeAnnealed(sample=False)) == "SlopeAnnealed(slope=1, sample=False)"
    assert repr(HardConcrete(0.5)) == "HardConcrete(temperature=0.5, gamma=-0.1, zeta=1.1)"


def test_noise_of_k_draws() -> None:
    noise = GRMCK(samples=3).sample_noise(torch.zeros(5))
    assert isinstance(noise, tuple)
    assert len(noise) == 4
    assert isinstance(GRMCK().sample_noise(torch.zeros(5)), Tensor)
