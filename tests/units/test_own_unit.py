"""A unit defined outside the package goes wherever the package's own do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hardgate
from hardgate import ConditionalMLP, KLTarget, Unit, sparsity_loss
from hardgate.functional import surrogate
from hardgate.kernels.dispatch import Backend
from hardgate.noise import normal
from hardgate.units._unit import NoiseTensors, OffGradient, single
from hardgate_lab.rig.candidates import all_candidates, candidates_named
from hardgate_lab.rig.law import exact_unit_gradient
from hardgate_lab.rig.measure import gradient_samples
from hardgate_lab.rig.problems import PROBLEMS
from tests.support.statistics import Z_LEVEL, Z_WRONG, largest_z

N = 50_000


class Probit(Unit):
    """h = 1[a + scale·z > 0], z ~ N(0, 1), differentiated as Φ(a/scale): as docs/extending.md."""

    unbiased = False
    binary = True
    off_gradient: OffGradient = "expert"
    starts_sparse = True
    own_objective = True

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.scale * normal(a, generator)

    def sample(self, a: Tensor, noise: NoiseTensors) -> Tensor:
        return surrogate((a + single(noise) > 0).to(a.dtype), self.mean(a))

    def mean(self, a: Tensor) -> Tensor:
        return 0.5 * torch.erfc(-a / (self.scale * 2**0.5))

    def gate(self, a: Tensor) -> Tensor:
        return surrogate((a > self.threshold).to(a.dtype), self.mean(a))

    def active_probability(self, a: Tensor) -> Tensor:
        return self.mean(a)

    def inactive_probability(self, a: Tensor) -> Tensor:
        return self.mean(-a)

    def law(self, a: Tensor) -> tuple[Tensor, Tensor]:
        zero = torch.zeros_like(a)
        return torch.stack([zero, zero + 1]), torch.stack([self.mean(-a), self.mean(a)])


def layer(backend: Backend = "sparse", unit: Unit | None = None, width: int = 64) -> ConditionalMLP:
    torch.manual_seed(0)
    return ConditionalMLP(
        8,
        width,
        3,
        bottleneck=20,
        unit=unit or Probit(0.5),
        backend=backend,
        sparsity=KLTarget(0.1, weight=0.1),
    )


def test_in_a_gater_its_weights_start_as_it_says() -> None:
    weight = layer().gater.output.weight
    assert ((weight != 0).sum(1) == 15).all()

    class Dense(Probit):
        starts_sparse = False

    assert (layer(unit=Dense()).gater.output.weight != 0).all()


def test_dense_and_sparse_layers_train_alike() -> None:
    steps: dict[Backend, dict[str, Tensor]] = {}
    backends: tuple[Backend, ...] = ("dense", "sparse")
    for backend in backends:
        model, x = layer(backend).double(), torch.randn(9, 8).double()
        torch.manual_seed(1)
        (model(x).square().mean() + sparsity_loss(model)).backward()
        steps[backend] = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        path = model.telemetry().path
        assert path is not None
        assert path.backend == backend
        model.eval()
        hardgate.calibrate_thresholds(model, [torch.randn(200, 8).double()], 0.2)
        assert model(x).isfinite().all()
    assert len(steps["dense"]) == 8
    for name, gradient in steps["dense"].items():
        torch.testing.assert_close(steps["sparse"][name], gradient)


def test_large_layers_draw_its_noise_by_the_kernels() -> None:
    model = layer(width=2**12)
    torch.manual_seed(2)
    model(torch.randn(9, 8)).sum().backward()
    assert 0.03 < model.telemetry().density < 0.3
    assert model.gater.output.weight.grad is not None


def test_which_off_experts_it_needs_decides_what_is_probed() -> None:
    a = torch.zeros(2, 3)
    assert torch.equal(Probit().probe(a, a), torch.ones(2, 3))  # type: ignore[arg-type]

    class Ignoring(Probit):
        def __init__(self) -> None:
            super().__init__()
            self.off_gradient = "zero"

    assert Ignoring().probe(a, a) is None


def test_saved_and_loaded(tmp_path: Path) -> None:
    model, path = layer().eval(), tmp_path / "own.safetensors"
    with pytest.raises(
        TypeError, match=r"got Probit\. Write save\(model, path, classes=\[Probit\]"
    ):
        hardgate.save(model, path)
    hardgate.save(model, path, classes=[Probit])
    again = hardgate.load(path, classes=[Probit])
    assert isinstance(again, ConditionalMLP)
    assert isinstance(again.gater.unit, Probit)
    assert again.gater.unit.scale == 0.5
    x = torch.randn(4, 8)
    assert torch.equal(again(x), model(x))
    with pytest.raises(hardgate.LoadError, match=r"load\(path, classes=\[...\]\)"):
        hardgate.load(path)


class Kept(Probit):
    """Keeps its argument under another name."""

    def __init__(self, width: float) -> None:
        super().__init__(width)

    def constructor_arguments(self) -> dict[str, Any]:
        return {"width": self.scale}


def test_arguments_under_other_names_are_saved(tmp_path: Path) -> None:
    hardgate.save(Kept(0.25), tmp_path / "kept", classes=[Kept])
    again = hardgate.load(tmp_path / "kept", classes=[Kept])
    assert isinstance(again, Kept)
    assert again.scale == 0.25


def test_its_law_is_measured() -> None:
    """Exact where f is linear in each h, biased elsewhere, as declared."""
    for problem, exact in (("multilinear", True), ("quadratic", False)):
        f, a = PROBLEMS[problem].f, PROBLEMS[problem].logits
        draws = gradient_samples(Probit(), f, a, N, torch.Generator().manual_seed(0))
        z = largest_z(draws, exact_unit_gradient(Probit(), f, a))
        assert z < Z_LEVEL if exact else z > Z_WRONG


def test_without_a_law_it_says_what_to_write() -> None:
    class Lawless(Probit):
        law = Unit.law

    with pytest.raises(NotImplementedError, match=r"Lawless expected a law.*def law\(self, a\)"):
        exact_unit_gradient(Lawless(), lambda h: h.sum(-1), torch.zeros(2))


def test_it_takes_part_in_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(hardgate.UNITS, "Probit()", Probit)
    (candidate,) = candidates_named("Probit(2.0)", [2])
    made = candidate.make()
    assert isinstance(made, Probit)
    assert made.scale == 2.0
    assert candidate.own_objective
    assert not candidate.unbiased
    assert candidate.needs_gradient
    assert "Probit()" in [each.name for each in all_candidates([2])]


@pytest.mark.parametrize("name", hardgate.UNITS)
def test_every_law_is_one_and_has_the_mean(name: str) -> None:
    unit, a = hardgate.UNITS[name](), torch.tensor([-2.0, -0.3, 0.5, 1.7], dtype=torch.float64)
    values, probabilities = unit.law(a)
    assert values.shape == probabilities.shape
    torch.testing.assert_close(probabilities.sum(0), torch.ones(4).double(), rtol=1e-6, atol=1e-6)
    if "sample=False" not in name and name != 'Sigmoid("gaussian")':  # means of other laws
        expected = (values * probabilities).sum(0)
        torch.testing.assert_close(expected, unit.mean(a).detach(), rtol=1e-4, atol=1e-4)
