"""A whole model in one file: its tensors, and as JSON how it is built. Nothing is unpickled."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from operator import attrgetter
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as tensor_bytes
from torch import Tensor, nn

from hardgate import noise, sparsity, units
from hardgate._base import atomic_file
from hardgate._base.lazy_state import LazyState
from hardgate._base.precision import widen
from hardgate.conditional import ConditionalLinear, ConditionalMLP, Gater
from hardgate.learning import baselines

__all__ = ["LoadError", "load", "save"]

_KEY, _FORMAT = "hardgate", 1
_ANYWHERE = ("device", "dtype")  # constructor arguments that the tensors answer
_PLACES = 100_000  # modules, each counted wherever it is used: a few names can ask for 2^n
_FAILURES = (LookupError, TypeError, ValueError, AttributeError, RuntimeError)
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
    conditional layers can be saved, `nn.Sequential` of them with torch's `Linear`, `LayerNorm`,
    `Dropout`, `Flatten`, `Identity` and activations, and other classes, yours or torch's, whose
    constructor arguments are attributes of the same names. A module
    in several places is stored once, and is one again when loaded; what is frozen
    (`requires_grad=False`) is frozen again, and each module in the mode it was in.

    Args:
        model: the model.
        path: the file.
        classes: the other classes in it, such as `[MyNet, nn.Conv2d]`.

    Example:
        >>> import tempfile, hardgate
        >>> layer = hardgate.ConditionalMLP(8, 32, 3, bottleneck=4, unit=hardgate.Rectifier())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(layer, f"{folder}/layer.safetensors")
        ...     again = load(f"{folder}/layer.safetensors")
        >>> torch.equal(again.experts.weight, layer.experts.weight)
        True
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"save expected a model, an nn.Module, got {type(model).__name__}. Write save(model, "
            "path); a state_dict is for torch.save or safetensors."
        )
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        what = "a folder" if path.is_dir() else f"one in {path.parent}, which is no folder"
        raise FileNotFoundError(f"save expected the path of a file, got {str(path)!r}: {what}.")
    known = _known(classes)
    description = _describe(model, {cls: name for name, cls in known.items()}, {})
    state = _tensors(model)
    config = {"format": _FORMAT, "model": description, **_switches(model)}
    try:
        _rehearse(description, known, state)
        header = json.dumps(config, allow_nan=False)
    except _FAILURES as error:
        expected = "a model that its classes and their constructor arguments rebuild"
        got = f"one that they do not: {error}. Save model.state_dict() instead."
        raise TypeError(f"save expected {expected}, got {got}") from None
    atomic_file.write(path, tensor_bytes(state, metadata={_KEY: header}))


def load(path: str | PathLike[str], *, classes: Iterable[type] = ()) -> nn.Module:
    """The model that `save` wrote, on the CPU, in the modes it was in.

    Only the classes of this library, a few of torch's and those given are ever made; nothing in
    the file is run.

    Args:
        path: the file.
        classes: your own classes in it.

    Returns:
        the model.
    """
    (config, state), known = _read(Path(path)), _known(classes)
    try:
        _rehearse(config["model"], known, state)
        model: nn.Module = _build(config["model"], known, [])
        _adopt_dtypes(model, state)
        model.load_state_dict({name: state[first] for name, first in _first(model).items()})
        return _switch(model, config)
    except _FAILURES as error:
        raise LoadError(f"{path} holds a model that cannot be built: {error}") from None


def _switches(model: nn.Module) -> dict[str, Any]:
    """What is neither a tensor nor an argument: the modes, and what is frozen."""
    mode = model.training
    return {
        "training": mode,
        "other_mode": [name for name, m in model.named_modules() if m.training != mode],
        "frozen": [name for name, p in model.named_parameters() if not p.requires_grad],
    }


def _switch(model: nn.Module, config: Mapping[str, Any]) -> nn.Module:
    model.train(bool(config["training"]))
    for name in config.get("other_mode", ()):  # files of earlier versions know only one mode
        module = model.get_submodule(name)
        module.training = not module.training
    for name in config.get("frozen", ()):
        model.get_parameter(name).requires_grad_(False)
    return model


def _known(classes: Iterable[type]) -> dict[str, type]:
    if isinstance(classes, type):
        raise TypeError(f"classes expected a list of them, got one. Write [{classes.__name__}].")
    return {**_KNOWN, **{cls.__name__: cls for cls in classes}}


# How an argument is read where it is not the attribute of its name; units say so themselves.
_READ: Mapping[tuple[type, str], Callable[[Any], Any]] = {
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
}


def _describe(value: Any, names: Mapping[type, str], seen: dict[nn.Module, int]) -> Any:
    """`value` as JSON: plain, or a class and its arguments; `seen` as `_build` finishes them."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_describe(item, names, seen) for item in value]
    if isinstance(value, Tensor) and value.dim() == 0:
        return value.item()
    cls = type(value)
    if isinstance(value, nn.Module) and value in seen:
        return {"again": seen[value]}
    if cls not in names:
        raise _unknown(value)
    description: dict[str, Any] = {"class": names[cls]}
    if cls is nn.Sequential:  # not named_children(): it leaves out a module's second place
        parts = value._modules.items()
        description["children"] = [[name, _describe(m, names, seen)] for name, m in parts]
    else:
        inner = {name: _describe(read(value), names, seen) for name, read in _readers(cls)}
        description["arguments"] = inner
    if isinstance(value, nn.Module):
        seen[value] = len(seen)
    return description


def _unknown(value: Any) -> TypeError:
    if isinstance(value, Tensor):
        expected, got = "numbers, strings or modules as arguments", f"a {tuple(value.shape)} tensor"
        return TypeError(f"save expected {expected}, got {got}. Save model.state_dict() instead.")
    name = type(value).__name__
    for inner in ("_orig_mod", "module"):  # of torch.compile; of torch's parallel and averaged ones
        if isinstance(getattr(value, inner, None), nn.Module):
            advice = f"Write save(model.{inner}, path): it has the same weights."
            return TypeError(f"save expected a model, got {name} around one. {advice}")
    return TypeError(
        f"save expected classes of hardgate or torch's plain layers, got {name}. Write save(model, "
        f"path, classes=[{name}]) and the same in load, if its constructor arguments are "
        "attributes; or save model.state_dict()."
    )


def _readers(cls: type) -> list[tuple[str, Callable[[Any], Any]]]:
    """The constructor's arguments, each with how to read it from an instance."""
    readers = []
    for name, parameter in inspect.signature(cls).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue  # torch's Tanh and Identity take anything and keep nothing
        attribute = cls.saved_as.get(name, name) if issubclass(cls, units.Unit) else name
        if attribute is None or name in _ANYWHERE:
            continue
        read = _READ.get((cls, name), partial(_attribute, name=name, attribute=attribute))
        readers.append((name, read))
    return readers


def _attribute(instance: Any, name: str, attribute: str) -> Any:
    """What the constructor was given as `name`."""
    try:
        value = attrgetter(attribute)(instance)
    except AttributeError:
        raise TypeError(
            f"save expected {type(instance).__name__} to keep its argument {name} as self.{name}, "
            f"got no such attribute. Write self.{name} = {name} in its __init__, or save "
            "model.state_dict()."
        ) from None
    # torch's layers are told whether to have a bias, and keep the parameter, or None.
    given = name == "bias" and name in getattr(instance, "_parameters", ())
    return value is not None if given else value


def _no_layer(controller: Any) -> None:
    if controller._layer != (None,):
        raise TypeError(
            "save expected FiringRate(rate), got one that pushes the bias of a layer elsewhere in "
            "the model. Save model.state_dict() instead."
        )


def _build(description: Any, known: Mapping[str, type], built: list[nn.Module]) -> Any:
    """What `_describe` described; `built` are the modules finished so far."""
    if isinstance(description, list):
        return [_build(item, known, built) for item in description]
    if not isinstance(description, dict):
        return description
    if "again" in description:
        return built[description["again"]]
    name = description["class"]
    if name not in known:
        raise LookupError(
            f"its class {name!r} is not one of hardgate's; expected one of {', '.join(known)}. "
            "If it is yours, write load(path, classes=[...])"
        )
    if known[name] is nn.Sequential:
        made: Any = nn.Sequential()
        for child, inner in description["children"]:
            made.add_module(child, _build(inner, known, built))
    else:
        arguments = description["arguments"].items()
        made = known[name](**{key: _build(value, known, built) for key, value in arguments})
    if isinstance(made, nn.Module):
        built.append(made)
    return made


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not path.is_file():
        raise FileNotFoundError(f"load expected a file written by hardgate.save, got {path}.")
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(_KEY)
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        config = json.loads(header) if header is not None else None
    except (SafetensorError, ValueError, RecursionError) as error:
        raise LoadError(f"{path} is damaged, or not a safetensors file: {error}") from None
    if not isinstance(config, dict) or config.get("format") != _FORMAT:
        raise LoadError(
            f"{path} expected a model of hardgate.save (format {_FORMAT}), got a safetensors file "
            "without one. If it holds a state_dict only, build the model and write "
            "model.load_state_dict(safetensors.torch.load_file(path))."
        )
    return config, state


def _rehearse(description: Any, known: Mapping[str, type], state: Mapping[str, Tensor]) -> None:
    """Build it without memory: a header must not claim more than there is."""
    with torch.device("meta"):
        model = _build(description, known, [])
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a module, got {type(model).__name__}")
    if any(islice(model.named_modules(remove_duplicate=False), _PLACES, None)):
        raise ValueError(f"expected at most {_PLACES} modules, got more")
    expected = model.state_dict()  # which may store a parameter in another shape than it has
    for name, _ in model.named_parameters():
        if name not in state or state[name].shape != expected[name].shape:
            got = tuple(state[name].shape) if name in state else "none"
            raise ValueError(f"{name} expected a tensor {tuple(expected[name].shape)}, got {got}")
    if different := set(_first(model).values()) ^ set(state):
        raise ValueError(f"expected its tensors, got too many or too few: {sorted(different)}")


def _first(model: nn.Module) -> dict[str, str]:
    """For each tensor its name in the file: the first, for a module in several places."""
    first: dict[tuple[nn.Module, str], str] = {}
    for name in (names := dict.fromkeys(model.state_dict(), "")):
        owner, _, leaf = name.rpartition(".")
        names[name] = first.setdefault((model.get_submodule(owner), leaf), name)
    return names


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """What the file holds, each tensor once."""
    names: dict[int, str] = {}
    first = _first(model)
    state = {name: v for name, v in model.state_dict().items() if first[name] == name}
    for name, tensor in state.items():
        if tensor.numel() and (other := names.setdefault(tensor.data_ptr(), name)) != name:
            raise TypeError(
                f"save expected tensors of one module each, got {name}, which is also {other}: "
                "loaded, they would be two. Save model.state_dict() instead."
            )
    return {name: tensor.contiguous() for name, tensor in state.items()}


def _adopt_dtypes(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """The dtypes that were saved; the state of units and controllers is at least fp32."""
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data.to(state[name].dtype)
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(prefix, recurse=False):
            if name in state:  # those that are not persistent are not stored
                stored = widen(state[name]) if isinstance(module, LazyState) else state[name]
                buffer.data = buffer.data.to(stored.dtype)
