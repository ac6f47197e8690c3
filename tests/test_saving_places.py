"""`hardgate.save` and `load`: the dtypes come back, what is shared is shared, and what is typed
as an error says works."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import hardgate
from hardgate import ConditionalMLP, Rectifier, StochasticBinary
from hardgate.saving import LoadError, load, save

DOUBLE, FLOAT, BFLOAT16 = torch.float64, torch.float32, torch.bfloat16


# --- dtypes ---------------------------------------------------------------------------------


def test_a_double_model_decides_alike(tmp_path: Path) -> None:
    """Thresholds between two fp32 numbers: a gate that is on stays on."""
    torch.manual_seed(0)
    layer = ConditionalMLP(8, 64, 4, bottleneck=4, unit=StochasticBinary()).double()
    x = torch.randn(100, 8, dtype=DOUBLE)
    hardgate.calibrate_thresholds(layer.gater, [x], 0.25, per_unit=True)
    layer.eval()
    gates = layer.gater(x)
    threshold = layer.gater.unit.threshold
    narrow = (layer.gater.pre_activation(x) > threshold.float().double()).to(gates)
    assert not torch.equal(narrow, gates)  # what fp32 would decide, negative control
    save(layer, tmp_path / "m")
    again = load(tmp_path / "m")
    assert isinstance(again, ConditionalMLP)
    assert again.gater.unit.threshold.dtype == DOUBLE
    assert torch.equal(again.gater.unit.threshold, threshold)
    assert torch.equal(again.gater(x), gates)


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT, DOUBLE], ids=str)
def test_every_dtype_comes_back(dtype: torch.dtype, tmp_path: Path) -> None:
    """Sized by a first step or not; bf16 models keep their state in fp32."""
    classes = [nn.BatchNorm1d]
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), StochasticBinary()).to(dtype)
    for _ in range(2):
        save(model, tmp_path / "m", classes=classes)
        again = load(tmp_path / "m", classes=classes)
        found = {name: tensor.dtype for name, tensor in again.state_dict().items()}
        assert found == {name: tensor.dtype for name, tensor in model.state_dict().items()}
        torch.testing.assert_close(again.state_dict(), model.state_dict(), rtol=0, atol=0)
        losses = model(torch.randn(8, 4, dtype=dtype)).sum(-1)
        hardgate.score_loss(model, losses).backward()
    assert found["2.threshold"] == found["2.baseline.numerator"] == max(FLOAT, dtype, key=_bytes)
    assert found["1.running_mean"] == dtype
    assert found["1.num_batches_tracked"] == torch.int64


def _bytes(dtype: torch.dtype) -> int:
    return dtype.itemsize


def test_state_that_somebody_narrowed_in_the_file_is_widened(tmp_path: Path) -> None:
    save(Rectifier(), tmp_path / "m")
    with safe_open(tmp_path / "m", framework="pt") as file:
        header = file.metadata()
    save_file({"threshold": torch.ones(3, dtype=BFLOAT16)}, tmp_path / "m", metadata=header)
    again = load(tmp_path / "m")
    assert isinstance(again, Rectifier)
    assert again.threshold.dtype == FLOAT
    assert again.threshold.tolist() == [1, 1, 1]


# --- torch's layers and the user's ----------------------------------------------------------

LAYERS: dict[str, nn.Module] = {
    "BatchNorm1d": nn.BatchNorm1d(3),
    "BatchNorm1d without scale": nn.BatchNorm1d(3, affine=False),
    "Conv2d": nn.Conv2d(1, 2, 3, padding=1),
    "Conv2d without bias": nn.Conv2d(1, 2, (3, 1), bias=False),
    "GroupNorm": nn.GroupNorm(2, 4),
    "GRUCell": nn.GRUCell(3, 2),
    "Linear without bias": nn.Linear(3, 2, bias=False),
    "LayerNorm without bias": nn.LayerNorm(3, bias=False),
}


@pytest.mark.parametrize("name", LAYERS)
def test_what_the_error_says_works(name: str, tmp_path: Path) -> None:
    layer = LAYERS[name]
    classes = []
    if not isinstance(layer, nn.Linear | nn.LayerNorm):
        words = rf"got (\w+). Write save\(model, path, classes=\[{type(layer).__name__}\]\)"
        with pytest.raises(TypeError, match=words):
            save(layer, tmp_path / "m")
        classes = [type(layer)]
    save(layer, tmp_path / "m", classes=classes)
    again = load(tmp_path / "m", classes=classes)
    assert repr(again) == repr(layer)
    torch.testing.assert_close(again.state_dict(), layer.state_dict(), rtol=0, atol=0)


class Forgetful(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.layer = nn.Linear(d, d)


class Flagged(nn.Module):
    """Its `bias` is the flag itself, not a parameter."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.bias = bias
        self.layer = nn.Linear(2, 2, bias=bias)


class Given(nn.Module):
    def __init__(self, scale: Tensor) -> None:
        super().__init__()
        self.scale = scale


class Changed(nn.Module):
    """Holds more than its constructor makes."""

    def __init__(self) -> None:
        super().__init__()


def test_an_argument_that_is_not_kept(tmp_path: Path) -> None:
    words = r"save expected Forgetful to keep its argument d as self.d, got no such attribute. Wri"
    with pytest.raises(TypeError, match=words + r"te self.d = d in its __init__"):
        save(nn.Sequential(Forgetful(3)), tmp_path / "m", classes=[Forgetful])


@pytest.mark.parametrize("bias", [False, True])
def test_a_bias_that_is_a_flag(bias: bool, tmp_path: Path) -> None:
    save(Flagged(bias), tmp_path / "m", classes=[Flagged])
    assert repr(load(tmp_path / "m", classes=[Flagged])) == repr(Flagged(bias))


def test_what_could_not_be_loaded_is_not_written(tmp_path: Path) -> None:
    changed = Changed()
    changed.layer = nn.Linear(2, 2)
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    refused: list[tuple[nn.Module, str]] = [
        (nn.GRU(3, 2), r"constructor arguments rebuild, got one that they do not: (.|\n)*input_s"),
        (changed, r"too many or too few: \['layer.bias', 'layer.weight'\]. Save model.state_dict"),
        (Given(torch.ones(3)), r"got a \(3,\) tensor. Save model.state_dict\(\) instead"),
        (tied, r"one module each, got 1.weight, which is also 0.weight(.|\n)*model.state_dict\(\)"),
    ]
    for model, words in refused:
        with pytest.raises(TypeError, match=words):
            save(model, tmp_path / "m", classes=[nn.GRU, Changed, Given])
        assert not (tmp_path / "m").exists()


def test_saving_draws_no_random_numbers(tmp_path: Path) -> None:
    layer = ConditionalMLP(8, 64, 4, bottleneck=4, unit=Rectifier())
    before = torch.get_rng_state()
    save(layer, tmp_path / "m")
    assert torch.equal(torch.get_rng_state(), before)


# --- one module in several places -----------------------------------------------------------


def test_a_module_in_several_places_is_one_again(tmp_path: Path) -> None:
    unit, relu, block = StochasticBinary(), nn.ReLU(), nn.Sequential(nn.Linear(4, 4))
    block.append(unit)
    layers = [ConditionalMLP(4, 8, 4, bottleneck=2, unit=unit) for _ in range(2)]
    model = nn.Sequential(nn.Linear(4, 4), relu, block, relu, unit, *layers, block).eval()
    unit.threshold.fill_(0.25)
    save(model, tmp_path / "m")
    names = set(load_file(tmp_path / "m"))
    assert "2.1.threshold" in names
    assert not {"4.threshold", "7.1.threshold", "5.gater.unit.threshold"} & names
    again: Any = load(tmp_path / "m")
    assert repr(again) == repr(model)
    assert again[1] is again[3]
    assert again[2] is again[7]
    assert again[0] is not again[2][0]
    assert again[2][1] is again[4] is again[5].gater.unit is again[6].gater.unit
    assert len(list(again.parameters())) == len(list(model.parameters()))
    assert again[4].threshold == 0.25
    x = torch.randn(5, 4)
    assert torch.equal(again(x), model(x))


@pytest.mark.parametrize("again", [7, -3, "0", None])
def test_damaged_references(again: Any, tmp_path: Path) -> None:
    relu = nn.ReLU()
    save(nn.Sequential(relu, relu), tmp_path / "m")
    _rewrite(tmp_path / "m", lambda model: model["children"][1].__setitem__(1, {"again": again}))
    with pytest.raises(LoadError, match="cannot be built"):
        load(tmp_path / "m")


def test_few_names_cannot_ask_for_endless_modules(tmp_path: Path) -> None:
    """Each Sequential twice in the next: 2^60 places."""
    save(nn.Sequential(nn.ReLU()), tmp_path / "m")

    def double(model: dict[str, Any]) -> None:
        for k in range(1, 60):
            inner = {"class": "nn.Sequential", "children": model["children"]}
            model["children"] = [["0", inner], ["1", {"again": k}]]

    _rewrite(tmp_path / "m", double)
    with pytest.raises(LoadError, match="expected at most 100000 modules, got more"):
        load(tmp_path / "m")


def _rewrite(path: Path, change: Any) -> None:
    """The file with another description of the model."""
    with safe_open(path, framework="pt") as file:
        config = json.loads(file.metadata()["hardgate"])
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(config["model"])
    save_file(state, path, metadata={"hardgate": json.dumps(config)})


# --- modes and what is frozen ---------------------------------------------------------------


def test_frozen_parameters_and_modes_come_back(tmp_path: Path) -> None:
    unit = hardgate.ReinMax(control_variate=True)
    model = nn.Sequential(nn.Linear(4, 3), unit, nn.Sequential(nn.Linear(3, 2), nn.Dropout()))
    model[0].weight.requires_grad_(False)
    assert unit.control is not None
    unit.control.eval()  # as its docstring says, to hold it
    for model.training in (True, False):
        save(model, tmp_path / "m")
        again = load(tmp_path / "m")
        frozen = {name for name, p in again.named_parameters() if not p.requires_grad}
        assert frozen == {"0.weight"}
        modes = {name: m.training for name, m in again.named_modules()}
        assert modes == {name: m.training for name, m in model.named_modules()}
        assert not modes["1.control"]


@pytest.mark.parametrize("key", ["frozen", "other_mode"])
def test_names_of_nothing_are_refused(key: str, tmp_path: Path) -> None:
    save(nn.Linear(2, 2), tmp_path / "m")
    _with(tmp_path / "m", {key: ["nowhere"]})
    with pytest.raises(LoadError, match="nowhere"):
        load(tmp_path / "m")
    _with(tmp_path / "m", {key: 3})
    with pytest.raises(LoadError, match="not iterable"):
        load(tmp_path / "m")


def test_a_file_that_says_nothing_of_them_still_loads(tmp_path: Path) -> None:
    save(nn.Linear(2, 2).eval(), tmp_path / "m")
    _with(tmp_path / "m", {}, without=("frozen", "other_mode"))
    again = load(tmp_path / "m")
    assert not again.training
    assert all(p.requires_grad for p in again.parameters())


def test_a_description_without_a_bottom(tmp_path: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    save_file({"weight": torch.zeros(2)}, tmp_path / "m", metadata={"hardgate": deep})
    with pytest.raises(LoadError, match="damaged"):
        load(tmp_path / "m")


def test_an_argument_that_json_has_no_word_for(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"not JSON compliant\. Save model\.state_dict"):
        save(nn.Softplus(threshold=float("inf")), tmp_path / "m")
    assert not list(tmp_path.iterdir())


def _with(path: Path, changes: dict[str, Any], without: tuple[str, ...] = ()) -> None:
    """Write the file again with another description."""
    with safe_open(path, framework="pt") as file:
        config = json.loads(file.metadata()["hardgate"])
    config = {key: value for key, value in config.items() if key not in without} | changes
    save_file(load_file(path), path, metadata={"hardgate": json.dumps(config)})
