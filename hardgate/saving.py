"""A whole model in one file: its tensors, and as JSON how it is built. Nothing is unpickled."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as tensor_bytes
from torch import Tensor, nn

from hardgate import _atomic, baselines, noise, sparsity, units
from hardgate.conditional import ConditionalLinear, ConditionalMLP, Gater

__all__ = ["LoadError", "load", "save"]

_KEY, _FORMAT = "hardgate", 1
_ANYWHERE = ("device", "dtype")  # constructor arguments that the tensors answer
_OURS = [
    *(getattr(units, name) for name in units.__all__ if name not in ("UNITS", "Unit")),
    *(sparsity.KLTarget, sparsity.AdaptiveL1, sparsity.FiringRate),
    *(noise.Gaussian, noise.Logistic, noise.Beta, noise.Binomial),
    *(baselines.OptimalBaseline, baselines.MeanBaseline),
    *(Gater, ConditionalLinear, ConditionalMLP),
]
_TORCH = [
    *(nn.Sequential, nn.Linear, nn.LayerNorm, nn.Dropout, nn.Flatten, nn.Identity),
    *(nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.Softplus),
]
_KNOWN = {cls.__name__: cls for cls in _OURS} | {f"nn.{cls.__name__}": cls for cls in _TORCH}


class LoadError(ValueError):
    """A file that holds no model of this library, or one that cannot be built."""


def save(model: nn.Module, path: str | PathLike[str], *, classes: Iterable[type] = ()) -> None:
    """Write a model to one file: a safetensors file whose header says how to build it.

    Whole or not at all: a crash leaves the file that was there. Units, controllers, gaters and
    conditional layers can be saved, `nn.Sequential` of them with linear layers and activations,
    and your own classes whose constructor arguments are attributes of the same names.

    Args:
        model: the model.
        path: the file.
        classes: your own classes in it.

    Example:
        >>> import tempfile, hardgate
        >>> layer = hardgate.ConditionalMLP(8, 32, 3, bottleneck=4, unit=hardgate.Rectifier())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(layer, f"{folder}/layer.safetensors")
        ...     again = load(f"{folder}/layer.safetensors")
        >>> torch.equal(again.experts.weight, layer.experts.weight)
        True
    """
    names = {cls: name for name, cls in _known(classes).items()}
    config = {"format": _FORMAT, "training": model.training, "model": _describe(model, names)}
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    content = tensor_bytes(state, metadata={_KEY: json.dumps(config, allow_nan=False)})
    _atomic.write(Path(path), content)


def load(path: str | PathLike[str], *, classes: Iterable[type] = ()) -> nn.Module:
    """The model that `save` wrote, on the CPU, in the mode it was in.

    Only the classes of this library, a few of torch's and those given are ever made; nothing in
    the file is run.

    Args:
        path: the file.
        classes: your own classes in it.

    Returns:
        the model.
    """
    config, state = _read(Path(path))
    known = _known(classes)
    try:
        with torch.device("meta"):  # sizes first: a header must not claim more than there is
            _check_sizes(_build(config["model"], known), state)
        model: nn.Module = _build(config["model"], known)
        for name, parameter in model.named_parameters():
            parameter.data = parameter.data.to(state[name].dtype)
        model.load_state_dict(state)
        return model.train(bool(config["training"]))
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise LoadError(f"{path} holds a model that cannot be built: {error}") from None


def _known(classes: Iterable[type]) -> dict[str, type]:
    return {**_KNOWN, **{cls.__name__: cls for cls in classes}}


# How an argument is read where it is not the attribute of its name; None: it is left out.
_READ: Mapping[tuple[type, str], Callable[[Any], Any] | None] = {
    (units.NoisyRectifier, "noise"): lambda u: type(u.noise).__name__.lower(),
    (units.NoisyRectifier, "scale"): lambda u: u.noise.scale,
    (units.StochasticBinary, "decay"): None,  # the baseline's own
    (units.SlopeAnnealed, "sample"): lambda u: u.samples,
    (units.StraightThrough, "sample"): lambda u: u.samples,
    (sparsity.FiringRate, "layer"): lambda c: _no_layer(c),
    (Gater, "in_features"): lambda g: g.hidden.in_features,
    (Gater, "gates"): lambda g: g.output.out_features,
    (Gater, "bottleneck"): lambda g: g.hidden.out_features,
    **{
        (cls, name): read
        for cls in (ConditionalMLP, ConditionalLinear)
        for name, read in {
            "in_features": lambda m: m.experts.in_features,
            "bottleneck": lambda m: m.gater.hidden.out_features,
            "unit": lambda m: m.gater.unit,
            "rate": lambda m: m.gater.rate,
            "sparsity": lambda m: m.gater.sparsity,
            "init": lambda m: m.gater.init,
        }.items()
    },
    (ConditionalMLP, "hidden_features"): lambda m: m.experts.out_features,
    (ConditionalMLP, "out_features"): lambda m: m.out.out_features,
    (ConditionalLinear, "out_features"): lambda m: m.experts.out_features,
    (nn.Linear, "bias"): lambda m: m.bias is not None,
    (nn.LayerNorm, "bias"): lambda m: m.bias is not None,
}


def _describe(value: Any, names: Mapping[type, str]) -> Any:
    """`value` as JSON: a plain value, or a class and the arguments that make it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_describe(item, names) for item in value]
    if isinstance(value, Tensor) and value.dim() == 0:
        return value.item()
    cls = type(value)
    if cls not in names:
        raise TypeError(
            f"save expected classes of hardgate or torch's plain layers, got {cls.__name__}. "
            f"Write save(model, path, classes=[{cls.__name__}]) and the same in load, if its "
            "constructor arguments are attributes; or save model.state_dict()."
        )
    if cls is nn.Sequential:
        children = [[name, _describe(child, names)] for name, child in value.named_children()]
        return {"class": names[cls], "children": children}
    arguments = {name: _describe(read(value), names) for name, read in _readers(cls)}
    return {"class": names[cls], "arguments": arguments}


def _readers(cls: type) -> list[tuple[str, Callable[[Any], Any]]]:
    """The constructor's arguments, each with how to read it from an instance."""
    readers = []
    for name, parameter in inspect.signature(cls).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue  # torch's Tanh and Identity take anything and keep nothing
        read = _READ.get((cls, name), lambda instance, name=name: getattr(instance, name))
        if read is not None and name not in _ANYWHERE:
            readers.append((name, read))
    return readers


def _no_layer(controller: Any) -> None:
    if controller._layer != (None,):
        raise TypeError(
            "save expected FiringRate(rate), got one that pushes the bias of a layer elsewhere in "
            "the model. Save model.state_dict() instead."
        )


def _build(description: Any, known: Mapping[str, type]) -> Any:
    """What `_describe` described."""
    if isinstance(description, list):
        return [_build(item, known) for item in description]
    if not isinstance(description, dict):
        return description
    name = description["class"]
    if name not in known:
        raise LookupError(
            f"its class {name!r} is not one of hardgate's; expected one of {', '.join(known)}. "
            "If it is yours, write load(path, classes=[...])"
        )
    if known[name] is nn.Sequential:
        model = nn.Sequential()
        for child, inner in description["children"]:
            model.add_module(child, _build(inner, known))
        return model
    arguments = {key: _build(value, known) for key, value in description["arguments"].items()}
    return known[name](**arguments)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not path.is_file():
        raise FileNotFoundError(f"load expected a file written by hardgate.save, got {path}.")
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(_KEY)
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        config = json.loads(header) if header is not None else None
    except (SafetensorError, ValueError) as error:
        raise LoadError(f"{path} is damaged, or not a safetensors file: {error}") from None
    if not isinstance(config, dict) or config.get("format") != _FORMAT:
        raise LoadError(
            f"{path} expected a model of hardgate.save (format {_FORMAT}), got a safetensors file "
            "without one. If it holds a state_dict only, build the model and write "
            "model.load_state_dict(safetensors.torch.load_file(path))."
        )
    return config, state


def _check_sizes(model: Any, state: Mapping[str, Tensor]) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a module, got {type(model).__name__}")
    for name, parameter in model.named_parameters():
        if name not in state or state[name].shape != parameter.shape:
            got = tuple(state[name].shape) if name in state else "none"
            raise ValueError(f"{name} expected a tensor {tuple(parameter.shape)}, got {got}")
