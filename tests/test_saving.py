"""`hardgate.save` and `load`: the same model back, and nothing but a model of known classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import hardgate
from hardgate import UNITS, AdaptiveL1, ConditionalLinear, ConditionalMLP, Rectifier
from hardgate.functional import surrogate
from hardgate.noise import normal
from hardgate.saving import LoadError, load, save


def _network(unit: str = "Rectifier()", dtype: torch.dtype | None = None) -> nn.Sequential:
    make = UNITS[unit]
    steered = not make().never_off and not make().needs_loss
    controller = AdaptiveL1(0.2, step=0.3) if steered else None
    return nn.Sequential(
        nn.Flatten(),
        ConditionalMLP(8, 32, 4, bottleneck=4, unit=make(), block_size=4, activation="relu"),
        nn.Tanh(),
        ConditionalLinear(4, 6, bottleneck=3, unit=make(), sparsity=controller),
        nn.Linear(6, 2, bias=False),
    ).to(dtype)


def _rewrite(path: Path, change: Any) -> None:
    """The file with another header."""
    with safe_open(path, framework="pt") as file:
        config = json.loads(file.metadata()["hardgate"])
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    changed = change(config)
    config = changed if isinstance(changed, list) else config
    save_file(state, path, metadata={"hardgate": json.dumps(config)})


@pytest.mark.parametrize("name", UNITS)
def test_round_trip(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = _network(name)
    x = torch.randn(16, 2, 4)
    if not any(getattr(m, "needs_loss", False) for m in model.modules()):
        model(x).sum().backward()  # state that starts with the first step
    model.eval()
    save(model, tmp_path / "m")
    again = load(tmp_path / "m")
    assert repr(again) == repr(model)
    assert not again.training
    assert torch.equal(again(x), model(x))
    for key, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], tensor), key


def test_learnt_thresholds_and_weights_of_controllers_come_back(tmp_path: Path) -> None:
    layer = ConditionalMLP(
        8,
        32,
        4,
        bottleneck=4,
        unit=hardgate.NoisyRectifier("logistic", 0.7),
        sparsity=AdaptiveL1(0.1),
    )
    for _ in range(5):
        layer(torch.randn(16, 8))
    hardgate.calibrate_thresholds(layer.gater, [torch.randn(100, 8)], 0.25)
    save(layer, tmp_path / "m")
    again = load(tmp_path / "m")
    assert isinstance(again, ConditionalMLP)
    assert again.training
    assert again.gater.unit.threshold.item() == layer.gater.unit.threshold.item()
    assert isinstance(again.gater.sparsity, AdaptiveL1)
    weight = layer.state_dict()["gater.sparsity.weight"]
    assert again.gater.sparsity.weight.item() == weight.item()
    assert again.out.weight.is_contiguous()  # the kernels' layout, though files hold [out, in]


def test_half_precision_stays(tmp_path: Path) -> None:
    model = _network(dtype=torch.bfloat16)
    save(model, tmp_path / "m")
    assert [p.dtype for p in load(tmp_path / "m").parameters()] == [torch.bfloat16] * 15


class Mine(nn.Module):
    def __init__(self, width: int, unit: hardgate.Unit) -> None:
        super().__init__()
        self.width, self.unit = width, unit
        self.layer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.unit(self.layer(x))
        return h


def test_classes_of_the_user(tmp_path: Path) -> None:
    model = nn.Sequential(Mine(3, Rectifier()))
    with pytest.raises(TypeError, match=r"got Mine. Write save\(model, path, classes=\[Mine\]\)"):
        save(model, tmp_path / "m")
    save(model, tmp_path / "m", classes=[Mine])
    with pytest.raises(LoadError, match=r"'Mine' is not one of hardgate's.*classes="):
        load(tmp_path / "m")
    x = torch.randn(4, 3)
    assert torch.equal(load(tmp_path / "m", classes=[Mine])(x), model(x))


class Probit(hardgate.Unit):
    """A unit of the user: on where a + scale·z > 0."""

    unbiased = False
    binary = True
    off_gradient = "expert"

    def __init__(self, scale: float, *, eval_mode: Any = "threshold") -> None:
        super().__init__(eval_mode=eval_mode)
        self.scale = scale

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.scale * normal(a, generator)

    def sample(self, a: Tensor, noise: Any) -> Tensor:
        return surrogate((a + noise > 0).to(a.dtype), self.mean(a))

    def mean(self, a: Tensor) -> Tensor:
        return 0.5 * torch.erfc(-a / self.scale / 2**0.5)

    def gate(self, a: Tensor) -> Tensor:
        return surrogate((a > self.threshold).to(a.dtype), self.mean(a))

    def active_probability(self, a: Tensor) -> Tensor:
        return self.mean(a)

    def inactive_probability(self, a: Tensor) -> Tensor:
        return self.mean(-a)


class Slow(hardgate.StraightThrough):
    """A subclass with an argument more: those of the parent are still read as it says."""

    def __init__(self, patience: int, sample: bool = True) -> None:
        super().__init__(sample=sample)
        self.patience = patience


class Renamed(nn.Module):
    """Keeps an argument under another name."""

    def __init__(self, width: int, bias: bool = True) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width, bias=bias)

    def constructor_arguments(self) -> dict[str, Any]:
        return {"width": self.layer.in_features, "bias": self.layer.bias is not None}


@pytest.mark.parametrize("unit", [Probit(0.5, eval_mode="mean"), Slow(3, sample=False)])
def test_a_unit_of_the_user_is_saved_like_ours(unit: Any, tmp_path: Path) -> None:
    layer = ConditionalMLP(8, 32, 4, bottleneck=4, unit=unit, sparsity=AdaptiveL1(0.2))
    layer(torch.randn(16, 8))
    save(layer, tmp_path / "m", classes=[type(unit)])
    again: Any = load(tmp_path / "m", classes=[type(unit)])
    assert type(again.gater.unit) is type(unit)
    for name in ("scale", "eval_mode", "patience", "samples"):
        assert getattr(again.gater.unit, name, None) == getattr(unit, name, None)
    x = torch.randn(16, 8)
    assert torch.equal(again.eval()(x), layer.eval()(x))


@pytest.mark.parametrize("bias", [False, True])
def test_a_class_says_its_own_arguments(bias: bool, tmp_path: Path) -> None:
    save(Renamed(3, bias), tmp_path / "m", classes=[Renamed])
    again = load(tmp_path / "m", classes=[Renamed])
    assert repr(again) == repr(Renamed(3, bias))


def test_a_controller_that_reaches_into_the_model_is_refused(tmp_path: Path) -> None:
    control = hardgate.FiringRate(0.1, nn.Linear(4, 8))
    gater = hardgate.Gater(4, 8, 3, Rectifier(), sparsity=control)
    with pytest.raises(TypeError, match="pushes the bias of a layer elsewhere"):
        save(gater, tmp_path / "m")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("name", ["os.system", "builtins.eval", "Unit", "nn.Module", ""])
def test_unknown_classes_are_never_made(name: str, tmp_path: Path) -> None:
    save(Rectifier(), tmp_path / "m")
    _rewrite(tmp_path / "m", lambda config: config["model"].update({"class": name}))
    with pytest.raises(LoadError, match="is not one of hardgate's; expected one of"):
        load(tmp_path / "m")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c["model"]["arguments"].update(surprise=1), "surprise"),
        (lambda c: c["model"]["arguments"].update(hidden_features=10**12), "expected a tensor"),
        (lambda c: c["model"]["arguments"].update(hidden_features="all"), "hidden_features"),
        (lambda c: c["model"]["arguments"].pop("bottleneck"), "bottleneck"),
        (
            lambda c: c["model"]["arguments"].update(unit={"class": "Gaussian", "arguments": {}}),
            "unit",
        ),
        (lambda c: c.update(model=None), "module"),
        (lambda c: c.update(model={"arguments": {}}), "class"),
        (lambda c: c.pop("model"), "model"),
        (lambda c: c.update(format=99), "format 1"),
        (lambda c: [c], "format 1"),
    ],
)
def test_damaged_descriptions(change: Any, words: str, tmp_path: Path) -> None:
    save(ConditionalMLP(8, 32, 4, bottleneck=4, unit=Rectifier()), tmp_path / "m")
    _rewrite(tmp_path / "m", change)
    with pytest.raises(LoadError, match=words):
        load(tmp_path / "m")


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "m"
    with pytest.raises(FileNotFoundError, match=r"written by hardgate\.save"):
        load(path)
    save(_network(), path)
    content = path.read_bytes()
    for damaged in (b"", content[:7], content[:100], content[:-1], b"\xff" * 64, b"PK\x03\x04"):
        path.write_bytes(damaged)
        with pytest.raises(LoadError, match="damaged"):
            load(path)
    save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(LoadError, match="without one"):
        load(path)
    torch.save(_network(), path)  # a pickle
    with pytest.raises(LoadError, match="damaged, or not a safetensors file"):
        load(path)


def test_a_save_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m"
    save(Rectifier(), path)
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        save(_network(), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize(
    ("wrap", "inner"),
    [
        (lambda m: torch.compile(m, backend="eager"), "_orig_mod"),
        (nn.DataParallel, "module"),
        (torch.optim.swa_utils.AveragedModel, "module"),
    ],
)
def test_a_wrapper_is_told_what_to_save(wrap: Any, inner: str, tmp_path: Path) -> None:
    wrapped, path = wrap(_network()), tmp_path / "m"
    with pytest.raises(TypeError, match=rf"Write save\(model\.{inner}, path\)"):
        save(wrapped, path)
    save(getattr(wrapped, inner), path)
    assert isinstance(load(path), nn.Sequential)


@pytest.mark.parametrize(
    ("model", "place", "classes", "error", "words"),
    [
        ({}, "m", (), TypeError, "save expected a model, an nn.Module, got dict"),
        (nn.ReLU(), "no/m", (), FileNotFoundError, "which is no folder"),
        (nn.ReLU(), "", (), FileNotFoundError, "a folder"),
        (nn.ReLU(), "m", nn.Conv2d, TypeError, r"a list of them, got one. Write \[Conv2d\]"),
    ],
)
def test_save_says_what_it_expected(
    model: Any, place: str, classes: Any, error: type[Exception], words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        save(model, tmp_path / place, classes=classes)
    assert not list(tmp_path.iterdir())
