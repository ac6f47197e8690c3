"""A whole model in one file: its tensors, and as JSON how it is built. Nothing is unpickled."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as tensor_bytes
from torch import Tensor, nn

from hardgate import noise, units
from hardgate._base import atomic_file
from hardgate._base.lazy_state import LazyState
from hardgate._base.precision import widen
from hardgate._base.torch_state import children, declares
from hardgate.conditional.gater import Gater
from hardgate.conditional.linear import ConditionalLinear
from hardgate.conditional.mlp import ConditionalMLP
from hardgate.learning import baselines
from hardgate.sparsity.adaptive_l1 import AdaptiveL1
from hardgate.sparsity.firing_rate import FiringRate
from hardgate.sparsity.kl_target import KLTarget

__all__ = ["LoadError", "load", "save"]

_KEY, _FORMAT = "hardgate", 1
_IN_TENSORS = ("device", "dtype")  # constructor arguments that the saved tensors determine
_PLACES = 100_000  # modules, each counted wherever it is used: shared ones nest to 2^n places
_FAILURES = (LookupError, TypeError, ValueError, AttributeError, RuntimeError)
_OURS = [
    *(getattr(units, name) for name in units.__all__ if name not in ("UNITS", "Unit")),
    *(KLTarget, AdaptiveL1, FiringRate),
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

    The file is written whole or not at all: a crash leaves the previous file. Units, controllers,
    gaters and conditional layers can be saved, and `nn.Sequential` of them with torch's `Linear`,
    `LayerNorm`, `Dropout`, `Flatten`, `Identity` and activations. So can other classes, yours or
    torch's: pass them as `classes`. Such a class keeps its constructor arguments as attributes of
    the same names; a method `constructor_arguments()` returns those that it does not, as a dict.

    A module in several places is stored once, and is one module again when loaded. Frozen
    parameters (`requires_grad=False`) and the mode of each module are restored.

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
    """The model that `save` wrote, on the CPU, each module in the mode it was in.

    Only classes of this library, a few of torch's and those in `classes` are ever instantiated. No
    code in the file is run.

    Args:
        path: the file.
        classes: the other classes in it, the same as for `save`.

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
    """The mode of each module, and which parameters are frozen."""
    mode = model.training
    return {
        "training": mode,
        "other_mode": [name for name, m in model.named_modules() if m.training != mode],
        "frozen": [name for name, p in model.named_parameters() if not p.requires_grad],
    }


def _switch(model: nn.Module, config: Mapping[str, Any]) -> nn.Module:
    model.train(bool(config["training"]))
    for name in config.get("other_mode", ()):  # files of earlier versions have one mode only
        module = model.get_submodule(name)
        module.training = not module.training
    for name in config.get("frozen", ()):
        model.get_parameter(name).requires_grad_(False)
    return model


def _known(classes: Iterable[type]) -> dict[str, type]:
    if isinstance(classes, type):
        raise TypeError(f"classes expected a list of them, got one. Write [{classes.__name__}].")
    return {**_KNOWN, **{cls.__name__: cls for cls in classes}}


def _describe(value: Any, names: Mapping[type, str], seen: dict[nn.Module, int]) -> Any:
    """`value` as JSON: plain, or a class and its arguments.

    `seen` numbers the modules in the order in which `_build` finishes them.
    """
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
    if cls is nn.Sequential:
        description["children"] = [[name, _describe(m, names, seen)] for name, m in children(value)]
    else:
        given = {name: _describe(x, names, seen) for name, x in _arguments(value).items()}
        description["arguments"] = given
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
        f"path, classes=[{name}]) and load(path, classes=[{name}]), if its constructor arguments "
        "are attributes; or save model.state_dict()."
    )


def _arguments(value: Any) -> dict[str, Any]:
    """The arguments that rebuild an instance: as its class says, else from its attributes."""
    own = value.constructor_arguments() if hasattr(value, "constructor_arguments") else {}
    parameters = inspect.signature(type(value)).parameters.values()
    # torch's Tanh and Identity take *args and **kwargs and keep nothing.
    named = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return {
        name: own[name] if name in own else _attribute(value, name)
        for name in named
        if name not in _IN_TENSORS
    }


def _attribute(instance: Any, name: str) -> Any:
    """The value that the constructor was given as `name`."""
    try:
        value = getattr(instance, name)
    except AttributeError:
        raise TypeError(
            f"save expected {type(instance).__name__} to keep its argument {name} as self.{name}, "
            f"got no such attribute. Write self.{name} = {name} in its __init__, or a method "
            "constructor_arguments() that returns it in a dict, or save model.state_dict()."
        ) from None
    # torch's layers take the flag bias, and keep the parameter or None under that name.
    is_flag = name == "bias" and isinstance(instance, nn.Module) and declares(instance, name)
    return value is not None if is_flag else value


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
    """Build it on the meta device: a damaged header must not allocate memory."""
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
    """The name of each tensor in the file: the first one, for a module in several places."""
    first: dict[tuple[nn.Module, str], str] = {}
    for name in (names := dict.fromkeys(model.state_dict(), "")):
        owner, _, leaf = name.rpartition(".")
        names[name] = first.setdefault((model.get_submodule(owner), leaf), name)
    return names


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of the file, each once."""
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
    """Give the model the saved dtypes; the state of units and controllers is at least fp32."""
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data.to(state[name].dtype)
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(prefix, recurse=False):
            if name in state:  # buffers that are not persistent are not stored
                stored = widen(state[name]) if isinstance(module, LazyState) else state[name]
                buffer.data = buffer.data.to(stored.dtype)
